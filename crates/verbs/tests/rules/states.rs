//! Tests of state transitions: required attributes, allowed attributes, and effects.

use std::sync::atomic::Ordering;

use verbs::{
    AsyncEventKind, AttributeMask, CompletionStatus, Error, Gid, Modification, QueuePairAttributes,
    QueuePairState, QueuePairType,
};

use crate::{Host, attributes, go, mask_of, modify, receive, results, send};

const SERVICES: [QueuePairType; 3] =
    [QueuePairType::Reliable, QueuePairType::Unreliable, QueuePairType::Datagram];

/// A function that makes one attribute invalid.
type Change = fn(&mut QueuePairAttributes);

fn is_refused(result: &Result<(), Error>) -> bool {
    matches!(result, Err(Error::Invalid(_)))
}

#[test]
fn the_masks_that_programs_use_lead_to_rts() {
    for service in SERVICES {
        let host = Host::new();
        let (one, other) = (host.queue_pair(service), host.queue_pair(service));
        assert_eq!(one.state(), QueuePairState::Reset);
        crate::connect(&one, &other);
        // The benchmarks of perftest change attributes in RTS with a mask that does not contain the
        // state.
        let mask = match service {
            QueuePairType::Reliable => AttributeMask::NOT_READY_TIMER,
            QueuePairType::Unreliable => AttributeMask::ACCESS,
            QueuePairType::Datagram => AttributeMask::QUEUE_KEY,
        };
        let changed =
            QueuePairAttributes { not_ready_timer: 1, access: 1, queue_key: 5, ..attributes(0) };
        assert_eq!(modify(&one, QueuePairState::Reset, mask, changed), Ok(()));
        assert_eq!(one.state(), QueuePairState::ReadyToSend);
    }
}

#[test]
fn each_missing_attribute_fails_a_transition_without_a_change() {
    for service in SERVICES {
        let host = Host::new();
        let (one, other) = (host.queue_pair(service), host.queue_pair(service));
        for state in
            [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend]
        {
            let before = one.query().expect("what it is like");
            let mask = mask_of(service, state);
            for bit in (1..32).map(|bit| 1 << bit).filter(|bit| mask.0 & bit != 0) {
                let lacking = AttributeMask(mask.0 & !bit);
                assert!(is_refused(&modify(&one, state, lacking, attributes(1))), "{bit:#x}");
            }
            for bit in [1 << 19, 1 << 21, 1 << 25, 1 << 31] {
                let odd = AttributeMask(mask.0 | bit);
                assert!(is_refused(&modify(&one, state, odd, attributes(1))), "{bit:#x}");
            }
            let after = one.query().expect("what it is like");
            assert_eq!((after.state, after.attributes), (before.state, before.attributes));
            go(&one, state, other.number());
        }
    }
}

#[test]
fn only_the_transitions_of_the_table_are_possible() {
    use QueuePairState::{
        Error as Failed, Init, ReadyToReceive, ReadyToSend, Reset, SendQueueDrained,
    };
    let ways = [
        (Reset, vec![Reset, Init, Failed]),
        (Init, vec![Reset, Init, ReadyToReceive, Failed]),
        (ReadyToReceive, vec![Reset, ReadyToSend, Failed]),
        (ReadyToSend, vec![Reset, ReadyToSend, SendQueueDrained, Failed]),
        (SendQueueDrained, vec![Reset, ReadyToSend, SendQueueDrained, Failed]),
        (Failed, vec![Reset, Failed]),
    ];
    for service in SERVICES {
        for (from, possible) in &ways {
            for to in QueuePairState::ALL {
                let host = Host::new();
                let (one, other) = (host.queue_pair(service), host.queue_pair(service));
                let way = [Init, ReadyToReceive, ReadyToSend, SendQueueDrained];
                if *from == Failed {
                    go(&one, Failed, 0);
                } else {
                    for state in way.into_iter().take_while(|_| one.state() != *from) {
                        go(&one, state, other.number());
                    }
                }
                assert_eq!(one.state(), *from);
                let mask = match (from, to) {
                    (Reset, Init) | (Init, ReadyToReceive) | (ReadyToReceive, ReadyToSend) => {
                        mask_of(service, to)
                    }
                    _ => AttributeMask::STATE,
                };
                let made = modify(&one, to, mask, attributes(other.number()));
                assert_eq!(made.is_ok(), possible.contains(&to), "{service:?} {from:?} {to:?}");
                assert_eq!(one.state(), if made.is_ok() { to } else { *from });
            }
        }
    }
}

#[test]
fn a_wrong_current_state_is_refused() {
    let host = Host::new();
    let (one, _other) = host.pair();
    let mask = AttributeMask::STATE | AttributeMask::CURRENT_STATE;
    let change = |current| Modification {
        mask,
        state: QueuePairState::ReadyToSend,
        current,
        drained_event: false,
        attributes: attributes(0),
    };
    assert!(is_refused(&one.modify(&change(QueuePairState::SendQueueDrained))));
    assert_eq!(one.modify(&change(QueuePairState::ReadyToSend)), Ok(()));
}

#[test]
fn values_beyond_the_device_are_refused() {
    let to_receive = QueuePairState::ReadyToReceive;
    let wrong: [(QueuePairState, Change); 10] = [
        (QueuePairState::Init, |of| of.port = 2),
        (QueuePairState::Init, |of| of.partition_key_index = 1),
        (to_receive, |of| of.path_mtu = 1500),
        (to_receive, |of| of.destination = 1 << 24),
        (to_receive, |of| of.peer_reads_max = 129),
        (to_receive, |of| of.not_ready_timer = 32),
        (to_receive, |of| of.path.source_index = 9),
        (to_receive, |of| of.path.is_global = false),
        (to_receive, |of| of.path.port = 0),
        (to_receive, |of| of.path = verbs::AddressVectorAttributes::default()),
    ];
    for (state, change) in wrong {
        let host = Host::new();
        let one = host.queue_pair(QueuePairType::Reliable);
        if state == to_receive {
            go(&one, QueuePairState::Init, 0);
        }
        let mut attributes = attributes(1);
        change(&mut attributes);
        let mask = mask_of(QueuePairType::Reliable, state);
        assert!(is_refused(&modify(&one, state, mask, attributes)));
    }
    let to_send: [Change; 4] = [
        |of| of.reads_max = 129,
        |of| of.timeout = 32,
        |of| of.retries = 8,
        |of| of.not_ready_retries = 8,
    ];
    let host = Host::new();
    let one = host.queue_pair(QueuePairType::Reliable);
    go(&one, QueuePairState::Init, 0);
    go(&one, to_receive, 1);
    for change in to_send {
        let mut attributes = attributes(1);
        change(&mut attributes);
        let state = QueuePairState::ReadyToSend;
        let mask = mask_of(QueuePairType::Reliable, state);
        assert!(is_refused(&modify(&one, state, mask, attributes)));
    }
}

#[test]
fn a_query_returns_the_attributes_that_were_set() {
    let host = Host::new();
    let (one, other) = host.pair();
    let query = one.query().expect("what it is like");
    assert_eq!(query.attributes.destination, other.number());
    assert_eq!(query.attributes.path.gid, crate::loopback::own_gid());
    assert_eq!((query.attributes.timeout, query.attributes.reads_max), (14, 1));
    assert_eq!((query.limits.sends, query.limits.inline), (4, 256));
    assert_eq!(query.attributes.queue_key, 0, "a reliable queue pair has a queue key");
}

#[test]
fn a_draining_queue_pair_reports_when_nothing_is_in_flight() {
    let host = Host::new();
    let (one, _other) = host.pair();
    host.device.holds.store(true, Ordering::SeqCst);
    one.post_send(&[send(1, &[])]).expect("a send");
    assert_eq!(host.poll(), []);
    let mask = AttributeMask::STATE | AttributeMask::DRAINED_EVENT;
    modify(&one, QueuePairState::SendQueueDrained, mask, attributes(0)).expect("a transition");
    assert!(one.query().expect("what it is like").is_draining);
    one.post_send(&[send(2, &[])]).expect("a send that waits for RTS");
    assert_eq!(host.poll(), []);
    assert_eq!(host.device.held(&one), 1);
    host.device.release(&one);
    let event = host.context.get_event().expect("an event");
    assert_eq!(event.kind, AsyncEventKind::SendQueueDrained);
    host.context.acknowledge_event(&event);
    assert!(!one.query().expect("what it is like").is_draining);
    assert_eq!(results(&host.poll()), [(1, CompletionStatus::Success)]);
    let mask = AttributeMask::STATE;
    modify(&one, QueuePairState::ReadyToSend, mask, attributes(0)).expect("a transition");
    assert_eq!(host.poll(), []);
    assert_eq!(
        host.device.held(&one),
        1,
        "the send that was posted while draining has not started"
    );
}

#[test]
fn a_peer_that_sends_before_rts_raises_an_event_once() {
    let host = Host::new();
    let (one, other) =
        (host.queue_pair(QueuePairType::Reliable), host.queue_pair(QueuePairType::Reliable));
    for (queue_pair, peer) in [(&one, &other), (&other, &one)] {
        go(queue_pair, QueuePairState::Init, 0);
        go(queue_pair, QueuePairState::ReadyToReceive, peer.number());
    }
    assert!(!crate::events::is_readable(&host.context), "connecting raised an event");
    go(&other, QueuePairState::ReadyToSend, one.number());
    for id in 0..2 {
        one.post_receive(&[receive(id, &[])]).expect("a receive");
        other.post_send(&[send(10 + id, &[])]).expect("a send");
        assert_eq!(host.poll().len(), 2);
    }
    let event = host.context.get_event().expect("an event");
    assert_eq!(event.kind, AsyncEventKind::CommunicationEstablished);
    host.context.acknowledge_event(&event);
    assert!(!crate::events::is_readable(&host.context));
}

#[test]
fn a_queue_pair_can_be_its_own_peer() {
    let host = Host::new();
    let one = host.queue_pair(QueuePairType::Reliable);
    go(&one, QueuePairState::Init, one.number());
    go(&one, QueuePairState::ReadyToReceive, one.number());
    go(&one, QueuePairState::ReadyToSend, one.number());
    one.post_receive(&[receive(1, &[])]).expect("a receive");
    one.post_send(&[send(2, &[])]).expect("a send");
    assert_eq!(host.poll().len(), 2);
    assert_eq!(one.destroy(), Ok(()));
}

#[test]
fn a_queue_pair_in_a_multicast_group_is_in_use() {
    let host = Host::new();
    let one = host.queue_pair(QueuePairType::Datagram);
    let group = Gid::of("224.1.2.3".parse().expect("an address"));
    assert!(is_refused(&one.set_membership(group, false)));
    assert_eq!(one.set_membership(group, true), Ok(()));
    assert_eq!(one.set_membership(group, true), Ok(()));
    assert!(is_refused(&one.set_membership(crate::loopback::own_gid(), true)));
    assert!(matches!(one.destroy(), Err(Error::Busy(_))));
    assert_eq!(one.set_membership(group, false), Ok(()));
    assert_eq!(one.destroy(), Ok(()));
    let connected = host.queue_pair(QueuePairType::Reliable);
    assert!(is_refused(&connected.set_membership(group, true)));
}

#[test]
fn a_wire_that_connects_by_itself_moves_the_queue_pair_from_init_to_rts() {
    let host = Host::new();
    let queue_pair = host.queue_pair(QueuePairType::Reliable);
    assert!(!queue_pair.on_connected(3, 5), "it is in RESET");
    go(&queue_pair, QueuePairState::Init, 0);
    assert!(queue_pair.on_connected(3, 5));
    assert_eq!(queue_pair.state(), QueuePairState::ReadyToSend);
    let attributes = queue_pair.query().expect("not forked").attributes;
    assert_eq!((attributes.reads_max, attributes.peer_reads_max), (3, 5));
    assert!(!queue_pair.on_connected(9, 9), "it is connected already");
    assert_eq!(queue_pair.query().expect("not forked").attributes.reads_max, 3);
}

#[test]
fn a_queue_pair_that_the_program_has_ended_is_not_connected_any_more() {
    let host = Host::new();
    for state in [QueuePairState::Reset, QueuePairState::Error] {
        let queue_pair = host.queue_pair(QueuePairType::Reliable);
        go(&queue_pair, QueuePairState::Init, 0);
        go(&queue_pair, state, 0);
        assert!(!queue_pair.on_connected(1, 1));
        assert_eq!(queue_pair.state(), state);
    }
}
