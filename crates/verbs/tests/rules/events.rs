//! Tests of asynchronous events.

use std::sync::Arc;

use nix::poll::{PollFd, PollFlags, PollTimeout};
use verbs::{AsyncEventKind, Context, Device, Ending, Error, EventElement, PortState, Provider};
use work::OperationError;

use crate::Host;

pub(crate) fn is_readable(context: &Context) -> bool {
    let mut wanted = [PollFd::new(context.event_descriptor(), PollFlags::POLLIN)];
    nix::poll::poll(&mut wanted, PollTimeout::ZERO).expect("it can be polled") > 0
}

#[test]
fn every_context_gets_the_events_of_the_port_and_the_device() {
    let host = Host::new();
    let second = Device::new(host.device.clone()).open().expect("a context");
    let registry = host.device.registry();
    registry.on_port(PortState::Down);
    registry.on_port(PortState::Active);
    registry.on_gids_changed();
    registry.on_device_failed();
    for context in [&host.context, &second] {
        let kinds: Vec<_> =
            (0..4).map(|_| context.get_event().expect("an event").kind as u8).collect();
        assert_eq!(kinds, [10, 9, 18, 8]);
        assert!(!is_readable(context));
    }
}

#[test]
fn an_event_carries_the_user_value_of_its_object() {
    let host = Host::new();
    let (one, _other) = host.pair();
    one.user.store(77, std::sync::atomic::Ordering::SeqCst);
    host.device.end(&one, 0, Ending::DeviceFailed, OperationError::Flushed);
    let event = host.context.get_event().expect("an event");
    assert_eq!((event.kind, event.element.user()), (AsyncEventKind::QueuePairFatal, 77));
    assert!(matches!(&event.element, EventElement::QueuePair(of) if Arc::ptr_eq(of, &one)));
}

#[test]
fn destroying_a_queue_pair_waits_for_its_taken_event_and_drops_the_others() {
    let host = Host::new();
    let (one, other) = host.pair();
    for queue_pair in [&one, &other] {
        host.device.end(queue_pair, 0, Ending::PeerMisbehaved, OperationError::Flushed);
    }
    let event = host.context.get_event().expect("an event");
    assert_eq!(event.kind, AsyncEventKind::RequestError);
    std::thread::scope(|scope| {
        let destroying = scope.spawn(|| one.destroy());
        host.context.acknowledge_event(&event);
        assert_eq!(destroying.join().expect("no panic"), Ok(()));
    });
    host.device.end(&other, 0, Ending::PeerMisbehaved, OperationError::Flushed);
    assert_eq!(other.destroy(), Ok(()));
    assert!(!is_readable(&host.context), "the destroyed queue pair still raises an event");
}

#[test]
fn a_nonblocking_context_reports_that_no_event_is_pending() {
    let host = Host::new();
    let flag = nix::fcntl::FcntlArg::F_SETFL(nix::fcntl::OFlag::O_NONBLOCK);
    nix::fcntl::fcntl(host.context.event_descriptor(), flag).expect("a flag");
    assert_eq!(host.context.get_event().map(|_| ()), Err(Error::Again));
}
