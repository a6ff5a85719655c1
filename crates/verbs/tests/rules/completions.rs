//! Tests of completion queues: order, events, sizes and overruns.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout};
use verbs::{
    Arm, AsyncEventKind, CompletionChannel, CompletionQueue, CompletionStatus, Ending, Error,
    EventElement, QueuePair, QueuePairInit, QueuePairState, QueuePairType, SendFlags, SendRequest,
    WorkCompletion,
};

use work::OperationError;

use crate::loopback::Loopback;
use crate::{Host, poll, receive, results, send};

const SUCCESS: CompletionStatus = CompletionStatus::Success;

/// A completion queue with a channel, and two queue pairs whose receives complete in that queue.
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
        let mut init = QueuePairInit {
            receive_queue: Arc::clone(&queue),
            ..host.init(QueuePairType::Reliable)
        };
        init.limits.receives = 8;
        let (one, other) = host.pair_of(&init);
        Self { host, channel, queue, one, other }
    }

    /// Sends a message from `one` to `other`.
    fn message(&self, is_solicited: bool) {
        self.other.post_receive(&[receive(1, &[])]).expect("a receive");
        let flags = SendFlags { signalled: true, solicited: is_solicited, fence: false };
        self.one.post_send(&[SendRequest { flags, ..send(2, &[]) }]).expect("a send");
        assert_eq!(results(&self.host.poll()), [(2, SUCCESS)]);
    }

    /// Reads and acknowledges an event, which must be present.
    fn take_event(&self) {
        let queue = self.channel.take().expect("a channel").expect("an event");
        queue.acknowledge_events(1);
    }

    fn is_readable(&self) -> bool {
        let mut wanted = [PollFd::new(self.channel.descriptor(), PollFlags::POLLIN)];
        nix::poll::poll(&mut wanted, PollTimeout::ZERO).expect("it can be polled") > 0
    }
}

#[test]
fn an_armed_queue_reports_the_next_completion_once() {
    let watched = Watched::new();
    watched.message(false);
    assert!(!watched.is_readable(), "it is not armed");
    assert_eq!(poll(&watched.queue).len(), 1);
    watched.queue.arm(Arm::Next).expect("it is armed");
    assert!(!watched.is_readable());
    watched.message(false);
    assert!(watched.is_readable());
    watched.message(false);
    let queue = watched.channel.get().expect("an event");
    assert!(Arc::ptr_eq(&queue, &watched.queue));
    assert!(!watched.is_readable(), "one event for each time it was armed");
    assert_eq!(poll(&watched.queue).len(), 2);
    queue.acknowledge_events(1);
}

#[test]
fn a_queue_that_is_not_empty_raises_an_event_when_it_is_armed() {
    let watched = Watched::new();
    watched.message(false);
    watched.queue.arm(Arm::Next).expect("it is armed");
    watched.take_event();
    assert!(!watched.is_readable(), "one event for each time it was armed");
    assert_eq!(poll(&watched.queue).len(), 1);
}

/// The benchmark `ib_send_lat -e` reads an event, arms the queue and polls once. If the benchmark
/// got an event but found no completion, it would send too early.
#[test]
fn polling_once_per_event_finds_a_completion_each_time() {
    let watched = Watched::new();
    watched.queue.arm(Arm::Next).expect("it is armed");
    for round in 0..10 {
        for _ in 0..=round % 3 {
            watched.message(false);
        }
        for _ in 0..=round % 3 {
            watched.take_event();
            watched.queue.arm(Arm::Next).expect("it is armed");
            let mut one = [WorkCompletion::NOTHING];
            assert_eq!(watched.queue.poll(&mut one), Ok(1));
        }
        assert!(!watched.is_readable(), "an event without a completion");
    }
}

#[test]
fn polling_a_few_completions_per_event_yields_events_for_the_rest() {
    let watched = Watched::new();
    watched.queue.arm(Arm::Next).expect("it is armed");
    for _ in 0..4 {
        watched.message(false);
        watched.message(false);
    }
    let mut found = 0;
    while found < 8 {
        watched.take_event();
        watched.queue.arm(Arm::Next).expect("it is armed");
        let mut few = [WorkCompletion::NOTHING; 3];
        found += watched.queue.poll(&mut few).expect("it can be polled");
    }
}

#[test]
fn arming_and_polling_until_empty_yields_at_most_one_spurious_event() {
    let watched = Watched::new();
    for _ in 0..10 {
        watched.message(false);
        watched.message(false);
        watched.queue.arm(Arm::Next).expect("it is armed");
        assert_eq!(poll(&watched.queue).len(), 2);
        watched.take_event();
        watched.queue.arm(Arm::Next).expect("it is armed");
        assert_eq!(poll(&watched.queue), []);
        assert!(!watched.is_readable(), "an event without a new completion");
        watched.message(false);
        watched.take_event();
        assert_eq!(poll(&watched.queue).len(), 1);
    }
}

#[test]
fn pending_flushes_raise_an_event_when_their_queue_is_armed() {
    for what in [Arm::Next, Arm::Solicited] {
        let watched = Watched::new();
        watched.other.post_receive(&[receive(1, &[]), receive(2, &[])]).expect("receives");
        crate::go(&watched.other, QueuePairState::Error, 0);
        let mut one = [WorkCompletion::NOTHING];
        assert_eq!(watched.queue.poll(&mut one), Ok(1));
        watched.queue.arm(what).expect("it is armed");
        watched.take_event();
        assert_eq!(results(&poll(&watched.queue)), [(2, CompletionStatus::Flushed)]);
        watched.queue.arm(what).expect("it is armed");
        assert!(!watched.is_readable(), "nothing is left");
    }
}

/// When a program queries a queue pair whose peer is lost, the library moves completions to a list
/// of its own. These completions must still raise an event.
#[test]
fn dequeued_unpolled_completions_raise_an_event_when_their_queue_is_armed() {
    for is_solicited in [false, true] {
        let host = Host::new();
        let channel = host.context.create_channel().expect("a channel");
        let queue = host.context.create_completion_queue(8, Some(&channel)).expect("a queue");
        let init = QueuePairInit {
            send_queue: Arc::clone(&queue),
            receive_queue: Arc::clone(&queue),
            ..host.init(QueuePairType::Reliable)
        };
        let (one, other) = host.pair_of(&init);
        let watched = Watched { host, channel, queue, one, other };
        watched.other.post_receive(&[receive(1, &[])]).expect("a receive");
        let flags = SendFlags { solicited: is_solicited, ..SendFlags::default() };
        let message = SendRequest { flags, ..send(2, &[]) };
        watched.one.post_send(&[message]).expect("a send");
        assert_eq!(watched.host.poll(), [], "a completion arrived before the message");
        watched.host.device.end(&watched.other, 0, Ending::ByPeer, OperationError::Flushed);
        // To answer the query, the library must decide which sends the lost peer has carried out,
        // so it dequeues all completions.
        watched.other.query().expect("attributes");
        watched.queue.arm(Arm::Solicited).expect("it is armed");
        assert_eq!(watched.is_readable(), is_solicited);
        watched.queue.arm(Arm::Next).expect("it is armed");
        watched.take_event();
        assert_eq!(results(&poll(&watched.queue)), [(1, SUCCESS)]);
    }
}

#[test]
fn arming_for_solicited_completions_raises_an_immediate_event_only_for_those() {
    let watched = Watched::new();
    watched.message(false);
    watched.queue.arm(Arm::Solicited).expect("it is armed");
    assert!(!watched.is_readable());
    watched.message(true);
    watched.take_event();
    watched.queue.arm(Arm::Solicited).expect("it is armed");
    assert!(!watched.is_readable(), "an event has reported it");
    watched.message(true);
    watched.take_event();
    assert_eq!(poll(&watched.queue).len(), 3);
    watched.message(true);
    watched.message(false);
    watched.queue.arm(Arm::Solicited).expect("it is armed");
    watched.take_event();
    assert_eq!(poll(&watched.queue).len(), 2);
    watched.queue.arm(Arm::Solicited).expect("it is armed");
    assert!(!watched.is_readable(), "nothing is left");
}

#[test]
fn a_wait_for_solicited_completions_ignores_the_others() {
    let watched = Watched::new();
    watched.queue.arm(Arm::Solicited).expect("it is armed");
    watched.message(false);
    assert!(!watched.is_readable());
    watched.message(true);
    assert!(watched.is_readable());
}

#[test]
fn a_failure_wakes_a_wait_for_solicited_completions() {
    let watched = Watched::new();
    watched.other.post_receive(&[receive(1, &[])]).expect("a receive");
    watched.queue.arm(Arm::Solicited).expect("it is armed");
    crate::go(&watched.other, QueuePairState::Error, 0);
    assert!(watched.is_readable());
    assert_eq!(results(&poll(&watched.queue)), [(1, CompletionStatus::Flushed)]);
}

#[test]
fn a_locally_raised_event_wakes_its_waiters() {
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
fn a_nonblocking_channel_reports_that_it_is_empty() {
    let watched = Watched::new();
    fcntl(watched.channel.descriptor(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("a flag");
    assert_eq!(watched.channel.get().map(|_| ()), Err(Error::Again));
    watched.queue.arm(Arm::Next).expect("it is armed");
    watched.message(false);
    watched.channel.get().expect("an event").acknowledge_events(1);
    assert_eq!(watched.channel.get().map(|_| ()), Err(Error::Again));
}

#[test]
fn a_blocked_thread_drives_the_device_until_an_event() {
    let watched = Watched::new();
    watched.queue.arm(Arm::Next).expect("it is armed");
    watched.other.post_receive(&[receive(1, &[])]).expect("a receive");
    watched.one.post_send(&[send(2, &[])]).expect("a send");
    watched.channel.get().expect("an event").acknowledge_events(1);
    assert_eq!(results(&poll(&watched.queue)), [(1, SUCCESS)]);
}

#[test]
fn a_program_that_waits_in_calls_drives_the_device_itself_for_the_next_arms() {
    let watched = Watched::new();
    let arm = || watched.queue.arm(Arm::Next).expect("it is armed");
    let left_alone = || watched.host.device.left_alone.load(Ordering::SeqCst);
    arm();
    assert_eq!(left_alone(), 1, "it may wait on the descriptor");
    watched.other.post_receive(&[receive(1, &[])]).expect("a receive");
    watched.one.post_send(&[send(2, &[])]).expect("a send");
    watched.channel.get().expect("an event").acknowledge_events(1);
    assert_eq!(results(&poll(&watched.queue)), [(1, SUCCESS)]);
    for _ in 0..4 {
        arm();
    }
    assert_eq!(left_alone(), 1);
    arm();
    assert_eq!(left_alone(), 2, "it has not waited in a call for long");
}

#[test]
fn a_blocked_thread_gets_the_event_of_an_armed_queue_with_completions() {
    let watched = Watched::new();
    watched.queue.arm(Arm::Next).expect("it is armed");
    watched.message(false);
    watched.take_event();
    watched.queue.arm(Arm::Solicited).expect("it is armed");
    watched.queue.arm(Arm::Next).expect("it is armed");
    assert!(!watched.is_readable(), "an event has reported what is left");
    watched.channel.get().expect("an event").acknowledge_events(1);
    // The queue raises at most one event for each time that it is armed.
    assert!(!watched.is_readable());
    watched.message(false);
    assert!(!watched.is_readable());
}

#[test]
fn a_completion_polled_before_its_event_raises_none_and_the_queue_stays_armed() {
    let watched = Watched::new();
    watched.queue.arm(Arm::Next).expect("it is armed");
    watched.host.device.reports_late.store(true, Ordering::SeqCst);
    watched.message(false);
    assert_eq!(results(&poll(&watched.queue)), [(1, SUCCESS)]);
    watched.host.device.report();
    assert!(
        !watched.is_readable(),
        "an event is pending although its completion was already polled"
    );
    watched.message(false);
    assert!(watched.is_readable(), "the queue is no longer armed for the next completion");
    assert_eq!(results(&poll(&watched.queue)), [(1, SUCCESS)]);
}

#[test]
fn arming_before_polling_raises_no_event_for_a_late_completion() {
    let watched = Watched::new();
    watched.queue.arm(Arm::Next).expect("it is armed");
    watched.host.device.reports_late.store(true, Ordering::SeqCst);
    watched.message(false);
    watched.channel.get().expect("an event").acknowledge_events(1);
    // Arm the queue first and then poll, like programs do.
    watched.queue.arm(Arm::Next).expect("it is armed");
    watched.host.device.report();
    assert_eq!(results(&poll(&watched.queue)), [(1, SUCCESS)]);
    assert!(!watched.is_readable(), "the late report used up the arming for the next completion");
    watched.message(false);
    watched.channel.get().expect("an event").acknowledge_events(1);
    assert_eq!(results(&poll(&watched.queue)), [(1, SUCCESS)]);
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
fn destroying_a_queue_waits_for_its_events_to_be_acknowledged() {
    let watched = Watched::new();
    watched.queue.arm(Arm::Next).expect("it is armed");
    watched.message(false);
    let taken = watched.channel.get().expect("an event");
    watched.queue.arm(Arm::Next).expect("it is armed");
    watched.message(false);
    assert!(watched.is_readable(), "no second event is pending");
    assert!(matches!(watched.queue.destroy(), Err(Error::Busy(_))));
    watched.one.destroy().expect("nothing uses it");
    watched.other.destroy().expect("nothing uses it");
    assert!(matches!(watched.channel.destroy(), Err(Error::Busy(_))));
    std::thread::scope(|scope| {
        let destroying = scope.spawn(|| watched.queue.destroy());
        taken.acknowledge_events(1);
        assert_eq!(destroying.join().expect("no panic"), Ok(()));
    });
    assert!(!watched.is_readable(), "the pending event of the destroyed queue still exists");
    assert_eq!(watched.channel.destroy(), Ok(()));
}

#[test]
fn completions_of_many_queue_pairs_pass_one_queue_in_order() {
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
            let own = found.iter().filter(move |results| results.queue_pair == number);
            own.map(|results| results.id).collect::<Vec<_>>()
        };
        let index = index as u64;
        assert_eq!(ids(one.number()), [index, 10 + index, 20 + index]);
        assert_eq!(ids(other.number()), [100 + index, 110 + index, 120 + index]);
    }
}

#[test]
fn an_overrun_queue_fails_with_its_queue_pairs() {
    let host = Host::new();
    let queue = host.context.create_completion_queue(1, None).expect("a queue");
    let mut init = host.init(QueuePairType::Reliable);
    init.limits.sends = 600;
    init.send_queue = Arc::clone(&queue);
    let (one, other) = host.pair_of(&init);
    // The program asked for one entry, but the queue has more places, because some completions are
    // only for the library. So the queue overruns only after several completions.
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
    // The program can poll the completions that are in the queue, but the completion that found no
    // place is lost.
    assert_eq!(poll(&queue).len() as u64, posted - 1);
    one.post_send(&[send(7, &[])]).expect("a send");
    assert_eq!(results(&poll(&queue)), [(7, CompletionStatus::Flushed)]);
}

#[test]
fn flushed_unsignalled_work_does_not_overrun_a_queue() {
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
fn a_queue_can_be_resized_but_not_below_its_completions() {
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
fn a_queue_size_may_be_large_but_not_zero() {
    let host = Host::on(Loopback::new());
    let make = |entries| host.context.create_completion_queue(entries, None);
    assert!(matches!(make(0), Err(Error::Invalid(_))));
    assert!(matches!(make((1 << 20) + 1), Err(Error::Invalid(_))));
    assert_eq!(make(262_144).expect("a queue").entries(), 262_144);
}
