//! Shared receive queues.

use mem::Buffer;
use verbs::{AsyncEventKind, CompletionStatus, QueuePairState, ScatterGather};
use wire_iwarp::Opcode;

use crate::host::{BUFFER_BYTES, Host, receive, registered, results};

const SUCCESS: CompletionStatus = CompletionStatus::Success;

#[test]
fn messages_of_all_connections_take_the_receives_of_their_shared_queue_in_order() {
    let host = Host::new();
    let shared = host.domain.create_shared_queue(4, 2).expect("a queue");
    let mut ends = [(); 2].map(|()| host.connect(Some(&shared)));
    let pieces = [0, 1, 2].map(|at| [host.piece(at * 64, 4), host.piece(at * 64 + 32, 28)]);
    let receives = [receive(70, &pieces[0]), receive(71, &pieces[1]), receive(72, &pieces[2])];
    shared.post(&receives).expect("receives");
    for (end, id) in [(0, 70), (1, 71), (0, 72)] {
        ends[end].peer.send(b"some bytes");
        let found = host.completions(1);
        assert_eq!(results(&found), [(id, SUCCESS)]);
        let number = ends[end].queue_pair.number();
        assert_eq!((found[0].bytes, found[0].queue_pair), (10, number));
        let mut placed = [[0; 4], [0; 4], [0; 4]];
        let at = (id - 70) * 64;
        host.buffer.read(at, &mut placed[0]);
        host.buffer.read(at + 32, &mut placed[1]);
        host.buffer.read(at + 36, &mut placed[2]);
        assert_eq!(placed.map(|part| part.to_vec()).concat(), b"some bytes\0\0");
    }
    assert_eq!(shared.receives().len(), 0);
}

#[test]
fn the_limit_of_a_shared_queue_raises_one_event() {
    let host = Host::new();
    let shared = host.domain.create_shared_queue(4, 1).expect("a queue");
    let mut end = host.connect(Some(&shared));
    let piece = [host.piece(0, 64)];
    shared.post(&[receive(1, &piece), receive(2, &piece), receive(3, &piece)]).expect("receives");
    shared.set_limit(2).expect("it has so many receives");
    for _ in 0..3 {
        end.peer.send(b"m");
    }
    let event = host.context.get_event().expect("an event");
    assert_eq!(event.kind, AsyncEventKind::ReceiveLimitReached);
    host.context.acknowledge_event(&event);
    assert_eq!(results(&host.completions(3)), [(1, SUCCESS), (2, SUCCESS), (3, SUCCESS)]);
    assert_eq!(shared.query().expect("it is open").limit, 0);
}

#[test]
fn a_message_without_a_shared_receive_ends_its_connection_and_no_other() {
    let host = Host::new();
    let shared = host.domain.create_shared_queue(4, 1).expect("a queue");
    let mut ends = [(); 2].map(|()| host.connect(Some(&shared)));
    ends[0].peer.send(b"too early");
    let (opcodes, _) = ends[0].peer.read_to_end();
    assert_eq!(opcodes, [Opcode::Terminate]);
    let kinds = [(); 2].map(|()| {
        let event = host.context.get_event().expect("an event");
        host.context.acknowledge_event(&event);
        event.kind
    });
    assert!(kinds.contains(&AsyncEventKind::LastReceiveReached), "{kinds:?}");
    assert_eq!(ends[0].queue_pair.state(), QueuePairState::Error);
    let piece = [host.piece(0, 64)];
    shared.post(&[receive(5, &piece), receive(6, &piece)]).expect("receives");
    ends[1].peer.send(b"in time");
    assert_eq!(results(&host.completions(1)), [(5, SUCCESS)]);
    // The receives of a shared queue are flushed with no queue pair.
    for end in &ends {
        end.queue_pair.destroy().expect("nothing uses it");
    }
    assert_eq!(shared.receives().len(), 1);
    shared.destroy().expect("no queue pair uses it");
}

#[test]
fn a_shared_queue_may_have_another_domain_than_its_queue_pair() {
    let host = Host::new();
    let domain = host.context.allocate_domain().expect("a domain");
    let buffer = Buffer::new(BUFFER_BYTES);
    let region = registered(&domain, &buffer);
    let shared = domain.create_shared_queue(4, 1).expect("a queue");
    let mut end = host.connect(Some(&shared));
    let piece = [ScatterGather { address: buffer.address(), length: 8, key: region.key() }];
    shared.post(&[receive(1, &piece)]).expect("a receive");
    end.peer.send(b"foreign");
    assert_eq!(results(&host.completions(1)), [(1, SUCCESS)]);
    let mut placed = [0; 7];
    buffer.read(0, &mut placed);
    assert_eq!(&placed, b"foreign");
}

#[test]
fn a_shared_receive_whose_region_has_ended_fails_with_its_message() {
    let host = Host::new();
    let shared = host.domain.create_shared_queue(4, 1).expect("a queue");
    let mut end = host.connect(Some(&shared));
    let buffer = Buffer::new(BUFFER_BYTES);
    let region = registered(&host.domain, &buffer);
    let piece = [ScatterGather { address: buffer.address(), length: 8, key: region.key() }];
    shared.post(&[receive(1, &piece)]).expect("a receive");
    region.deregister().expect("nothing uses it");
    end.peer.send(b"nowhere");
    let found = results(&host.completions(1));
    assert_eq!(found, [(1, CompletionStatus::LocalProtection)]);
}
