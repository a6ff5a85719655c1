//! Completion queues: order, events, sizes, and what becomes of too many.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use verbs::{
    Arm, AsyncEventKind, CompletionChannel, CompletionQueue, CompletionStatus, Error, EventElement,
    QueuePair, QueuePairInit, QueuePairState, QueuePairType, SendFlags, SendRequest,
    WorkCompletion,
};

use crate::loopback::Loopback;
use crate::{Host, poll, receive, send, told};

const SUCCESS: CompletionStatus = CompletionStatus::Success;

/// A channel, a queue of it, and two queue pairs whose receives complete there.
struct Watched {
    host: Host,
    channel: Arc<CompletionChannel>,
    queue: Arc<CompletionQueue>,
    one: Arc<QueuePair>,
    other: Arc<QueuePair>,
}

impl Watched {
    fn new() -> Self {
        let host = Host::new();
        let channel = host.context.create_channel().expect("a channel");
        let queue = host.context.create_completion_queue(8, Some(&channel)).expect("a queue");
        let init = QueuePairInit {
            receive_queue: Arc::clone(&queue),
            ..host.init(QueuePairType::Reliable)
        };
        let (one, other) = host.pair_of(&init);
        Self { host, channel, queue, one, other }
    }

    /// A message comes.
    fn message(&self, is_solicited: bool) {
        self.other.post_receive(&[receive(1, &[])]).expect("a receive");
        let flags = SendFlags { signalled: true, solicited: is_solicited, fence: false };
        self.one.post_send(&[SendRequest { flags, ..send(2, &[]) }]).expect("a send");
        assert_eq!(told(&self.host.poll()), [(2, SUCCESS)]);
    }

    fn is_readable(&self) -> bool {
        let mut wanted = [PollFd::new(self.channel.descriptor(), PollFlags::POLLIN)];
        nix::poll::poll(&mut wanted, PollTimeout::ZERO).expect("it can be polled") > 0
    }
}

#[test]
fn a_queue_that_was_armed_tells_of_the_next_completion_once() {
    let watched = Watched::new();
    watched.message(false);
    assert!(!watched.is_readable(), "nobody waits");
    watched.queue.arm(Arm::Next).expect("it is armed");
    assert!(!watched.is_readable(), "what is there already does not count");
    watched.message(false);
    assert!(watched.is_readable());
    watched.message(false);
    let queue = watched.channel.get().expect("an event");
    assert!(Arc::ptr_eq(&queue, &watched.queue));
    assert!(!watched.is_readable(), "one event for each time it was armed");
    assert_eq!(poll(&watched.queue).len(), 3);
    queue.acknowledge_events(1);
}

#[test]
fn who_waits_for_what_is_solicited_is_not_woken_by_the_rest() {
    let watched = Watched::new();
    watched.queue.arm(Arm::Solicited).expect("it is armed");
    watched.message(false);
    assert!(!watched.is_readable());
    watched.message(true);
    assert!(watched.is_readable());
}

#[test]
fn who_waits_for_what_is_solicited_is_woken_by_a_failure() {
    let watched = Watched::new();
    watched.other.post_receive(&[receive(1, &[])]).expect("a receive");
    watched.queue.arm(Arm::Solicited).expect("it is armed");
    crate::go(&watched.other, QueuePairState::Error, 0);
    assert!(watched.is_readable());
    assert_eq!(told(&poll(&watched.queue)), [(1, CompletionStatus::Flushed)]);
}

#[test]
fn an_event_that_the_wire_does_not_bring_wakes_who_waits_for_it() {
    let watched = Watched::new();
    crate::go(&watched.other, QueuePairState::Error, 0);
    watched.queue.arm(Arm::Next).expect("it is armed");
    assert_eq!(watched.host.device.left_alone.load(Ordering::SeqCst), 1);
    let before = watched.host.device.wakes.load(Ordering::SeqCst);
    watched.other.post_receive(&[receive(1, &[])]).expect("a receive that is flushed");
    assert_eq!(watched.host.device.wakes.load(Ordering::SeqCst), before + 1);
    watched.channel.get().expect("an event").acknowledge_events(1);
}

#[test]
fn a_channel_that_is_not_to_block_says_that_there_is_nothing() {
    let watched = Watched::new();
    fcntl(watched.channel.descriptor(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("a flag");
    assert_eq!(watched.channel.get().map(|_| ()), Err(Error::Again));
    watched.queue.arm(Arm::Next).expect("it is armed");
    watched.message(false);
    watched.channel.get().expect("an event").acknowledge_events(1);
    assert_eq!(watched.channel.get().map(|_| ()), Err(Error::Again));
}

#[test]
fn who_blocks_drives_the_device_until_there_is_an_event() {
    let watched = Watched::new();
    watched.queue.arm(Arm::Next).expect("it is armed");
    watched.other.post_receive(&[receive(1, &[])]).expect("a receive");
    watched.one.post_send(&[send(2, &[])]).expect("a send");
    watched.channel.get().expect("an event").acknowledge_events(1);
    assert_eq!(told(&poll(&watched.queue)), [(1, SUCCESS)]);
}

#[test]
fn who_blocks_while_completions_are_left_in_an_armed_queue_is_told_of_them() {
    let watched = Watched::new();
    watched.message(false);
    watched.queue.arm(Arm::Solicited).expect("it is armed");
    watched.queue.arm(Arm::Next).expect("it is armed");
    assert!(!watched.is_readable());
    watched.channel.get().expect("an event").acknowledge_events(1);
    // Once for each time it was armed, as ever.
    assert!(!watched.is_readable());
    watched.message(false);
    assert!(!watched.is_readable());
}

#[test]
fn a_completion_that_was_polled_before_it_is_told_of_brings_no_event_and_the_queue_stays_armed() {
    let watched = Watched::new();
    watched.queue.arm(Arm::Next).expect("it is armed");
    watched.host.device.tells_late.store(true, Ordering::SeqCst);
    watched.message(false);
    assert_eq!(told(&poll(&watched.queue)), [(1, SUCCESS)]);
    watched.host.device.tell();
    assert!(!watched.is_readable(), "who polls once for each event would find nothing");
    watched.message(false);
    assert!(watched.is_readable(), "the next completion is still waited for");
    assert_eq!(told(&poll(&watched.queue)), [(1, SUCCESS)]);
}

#[test]
fn who_blocks_does_not_tell_himself_of_a_completion_that_he_is_about_to_be_told_of() {
    let watched = Watched::new();
    watched.queue.arm(Arm::Next).expect("it is armed");
    watched.host.device.tells_late.store(true, Ordering::SeqCst);
    watched.message(false);
    watched.channel.get().expect("an event").acknowledge_events(1);
    // As programs do: armed first, then polled.
    watched.queue.arm(Arm::Next).expect("it is armed");
    watched.host.device.tell();
    assert_eq!(told(&poll(&watched.queue)), [(1, SUCCESS)]);
    assert!(!watched.is_readable(), "a late word would take the arming that is for the next");
    watched.message(false);
    watched.channel.get().expect("an event").acknowledge_events(1);
    assert_eq!(told(&poll(&watched.queue)), [(1, SUCCESS)]);
}

#[test]
fn the_events_of_a_channel_can_be_waited_for_through_a_copy_of_its_descriptor() {
    let watched = Watched::new();
    let copy = watched.channel.descriptor().try_clone_to_owned().expect("a copy");
    assert_ne!(copy.as_raw_fd(), watched.channel.descriptor().as_raw_fd());
    watched.queue.arm(Arm::Next).expect("it is armed");
    watched.message(false);
    let mut wanted = [PollFd::new(std::os::fd::AsFd::as_fd(&copy), PollFlags::POLLIN)];
    assert_eq!(nix::poll::poll(&mut wanted, PollTimeout::ZERO), Ok(1));
}

#[test]
fn a_queue_is_destroyed_when_the_events_that_were_taken_are_acknowledged() {
    let watched = Watched::new();
    watched.queue.arm(Arm::Next).expect("it is armed");
    watched.message(false);
    let taken = watched.channel.get().expect("an event");
    watched.queue.arm(Arm::Next).expect("it is armed");
    watched.message(false);
    assert!(watched.is_readable(), "this one was not taken");
    assert!(matches!(watched.queue.destroy(), Err(Error::Busy(_))));
    watched.one.destroy().expect("nobody uses it");
    watched.other.destroy().expect("nobody uses it");
    assert!(matches!(watched.channel.destroy(), Err(Error::Busy(_))));
    std::thread::scope(|scope| {
        let destroying = scope.spawn(|| watched.queue.destroy());
        taken.acknowledge_events(1);
        assert_eq!(destroying.join().expect("no panic"), Ok(()));
    });
    assert!(!watched.is_readable(), "the event that was not taken is no more");
    assert_eq!(watched.channel.destroy(), Ok(()));
}

#[test]
fn completions_of_many_queue_pairs_come_through_one_queue_in_their_order() {
    let host = Host::new();
    let pairs: Vec<_> = (0..4).map(|_| host.pair()).collect();
    for round in 0..3 {
        for (index, (one, other)) in pairs.iter().enumerate() {
            let id = round * 10 + index as u64;
            other.post_receive(&[receive(100 + id, &[])]).expect("a receive");
            one.post_send(&[send(id, &[])]).expect("a send");
        }
    }
    let found = host.poll();
    assert_eq!(found.len(), 24);
    for (index, (one, other)) in pairs.iter().enumerate() {
        let ids = |number| {
            let own = found.iter().filter(move |told| told.queue_pair == number);
            own.map(|told| told.id).collect::<Vec<_>>()
        };
        let index = index as u64;
        assert_eq!(ids(one.number()), [index, 10 + index, 20 + index]);
        assert_eq!(ids(other.number()), [100 + index, 110 + index, 120 + index]);
    }
}

#[test]
fn a_queue_without_room_is_an_error_of_the_queue_and_of_its_queue_pairs() {
    let host = Host::new();
    let queue = host.context.create_completion_queue(1, None).expect("a queue");
    let mut init = host.init(QueuePairType::Reliable);
    init.limits.sends = 600;
    init.send_queue = Arc::clone(&queue);
    let (one, other) = host.pair_of(&init);
    // A wire may have work under way that is flushed and of which nothing is told but once: room for that is no
    // room that the program may count on.
    let mut posted = 0;
    while one.state() == QueuePairState::ReadyToSend {
        assert!(posted < 600, "it takes more than it has room for");
        other.post_receive(&[receive(1, &[])]).expect("a receive");
        one.post_send(&[send(posted, &[])]).expect("a send");
        posted += 1;
        assert!(host.poll().len() <= 1);
    }
    assert!(posted > 1);
    let kinds: Vec<_> = (0..2).map(|_| host.context.get_event().expect("an event")).collect();
    assert_eq!(kinds[0].kind, AsyncEventKind::CompletionQueueError);
    assert!(
        matches!(&kinds[0].element, EventElement::CompletionQueue(of) if Arc::ptr_eq(of, &queue))
    );
    assert_eq!(kinds[1].kind, AsyncEventKind::QueuePairFatal);
    for event in &kinds {
        host.context.acknowledge_event(event);
    }
    // What is in the queue can be polled; the completion for which there was no room is lost.
    assert_eq!(poll(&queue).len() as u64, posted - 1);
    one.post_send(&[send(7, &[])]).expect("a send");
    assert_eq!(told(&poll(&queue)), [(7, CompletionStatus::Flushed)]);
}

#[test]
fn marks_of_flushed_work_overrun_no_queue_that_has_room_for_what_is_told() {
    let host = Host::new();
    let queue = host.context.create_completion_queue(1, None).expect("a queue");
    let mut init = host.init(QueuePairType::Reliable);
    init.limits.sends = 200;
    init.send_queue = Arc::clone(&queue);
    let (one, _other) = host.pair_of(&init);
    host.device.holds.store(true, Ordering::SeqCst);
    for id in 0..200 {
        one.post_send(&[crate::unsignalled(id, &[])]).expect("a send");
    }
    host.poll();
    assert_eq!(host.device.held(&one), 200);
    crate::go(&one, QueuePairState::Error, 0);
    let found = poll(&queue);
    assert_eq!((found.len(), queue.work().is_overrun()), (200, false));
}

#[test]
fn a_queue_can_be_made_larger_and_not_smaller_than_what_is_in_it() {
    let host = Host::new();
    let (one, other) = host.pair();
    for id in 0..3 {
        other.post_receive(&[receive(id, &[])]).expect("a receive");
        one.post_send(&[send(id, &[])]).expect("a send");
    }
    let mut some = [WorkCompletion::NOTHING; 2];
    assert_eq!(host.queue.poll(&mut some), Ok(2));
    assert!(matches!(host.queue.resize(3), Err(Error::Invalid(_))));
    assert!(matches!(host.queue.resize(0), Err(Error::Invalid(_))));
    assert!(matches!(host.queue.resize((1 << 20) + 1), Err(Error::Invalid(_))));
    assert_eq!(host.queue.entries(), 64);
    assert_eq!(host.queue.resize(1 << 20), Ok(()));
    assert_eq!(host.queue.entries(), 1 << 20);
    assert_eq!(host.poll().len(), 4);
}

#[test]
fn a_queue_has_as_many_entries_as_large_programs_ask_for_and_not_none() {
    let host = Host::on(Loopback::new());
    let make = |entries| host.context.create_completion_queue(entries, None);
    assert!(matches!(make(0), Err(Error::Invalid(_))));
    assert!(matches!(make((1 << 20) + 1), Err(Error::Invalid(_))));
    assert_eq!(make(262_144).expect("a queue").entries(), 262_144);
}
