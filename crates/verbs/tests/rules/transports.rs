//! Tests of the rules that differ between the transports: which queue pairs a device has, which
//! operations they carry, and how they are connected.

use std::sync::Arc;

use verbs::{
    AddressVectorAttributes, AttributeMask, CompletionStatus, Error, GidKind, Modification,
    Operation, Operations, QueuePair, QueuePairAttributes, QueuePairState, QueuePairType,
    ScatterGather, SendOpcode, SendRequest, Services, Transport, WindowBinding, WindowType,
};

use crate::loopback::Loopback;
use crate::{Host, attributes, mask_of, modify, receive, results, send};

const RELIABLE: QueuePairType = QueuePairType::Reliable;

fn iwarp() -> Host {
    Host::on(Loopback::iwarp())
}

fn change(state: QueuePairState, mask: AttributeMask) -> Modification {
    Modification {
        mask: mask | AttributeMask::STATE,
        state,
        current: QueuePairState::Reset,
        drained_event: false,
        attributes: QueuePairAttributes { access: 7, port: 1, ..QueuePairAttributes::default() },
    }
}

/// Connects two queue pairs of an iWARP device, as its connection manager does.
fn iwarp_pair(host: &Host) -> (Arc<QueuePair>, Arc<QueuePair>) {
    let (one, other) = (host.queue_pair(RELIABLE), host.queue_pair(RELIABLE));
    for queue_pair in [&one, &other] {
        let mask = AttributeMask::ACCESS | AttributeMask::PORT;
        queue_pair.modify(&change(QueuePairState::Init, mask)).expect("INIT");
    }
    host.device.meet(&one, &other);
    for queue_pair in [&one, &other] {
        for state in [QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend] {
            queue_pair.modify_met(&change(state, AttributeMask::NONE)).expect("a transition");
        }
    }
    (one, other)
}

/// Returns a work request for each operation except a bind of a memory window, with a list of
/// scatter/gather entries that suits the operation.
fn every_request(host: &Host) -> [(SendOpcode, [ScatterGather; 1]); 9] {
    let (address, key) = (host.buffer.address() + 512, host.region.key());
    let immediate = Some(3);
    [
        SendOpcode::Write { address, key, immediate: None },
        SendOpcode::Write { address, key, immediate },
        SendOpcode::Send { immediate: None },
        SendOpcode::Send { immediate },
        SendOpcode::Read { address, key },
        SendOpcode::CompareSwap { address, key, compare: 0, swap: 0 },
        SendOpcode::FetchAdd { address, key, operand: 0 },
        SendOpcode::LocalInvalidate { key },
        SendOpcode::SendInvalidate { key },
    ]
    .map(|opcode| (opcode, [host.piece(0, 8)]))
}

/// Returns the operations that the queue pair accepts when they are posted. All others must fail
/// with [`Error::Invalid`], and the error must name the operation and the device.
fn accepted(host: &Host, queue_pair: &QueuePair) -> Operations {
    let mut accepted = Operations::NONE;
    for (opcode, pieces) in every_request(host) {
        let operation = opcode.operation();
        let mut posting = queue_pair.begin_sends().expect("it is in RTS");
        match posting.add(&SendRequest { opcode, ..send(1, &pieces) }) {
            Ok(()) => accepted = accepted | Operations::of(&[operation]),
            Err(Error::Invalid(why)) => {
                let names = [operation.to_string(), host.context.device().name().to_owned()];
                assert!(names.iter().all(|name| why.contains(name)), "{why}");
            }
            Err(other) => panic!("{operation}: {other}"),
        }
    }
    accepted
}

#[test]
fn a_queue_pair_accepts_the_operations_that_its_device_carries() {
    let binds = Operations::of(&[Operation::BindWindow]);
    let of = |transport: Transport| Services::of(transport).operations(RELIABLE).without(binds);
    let host = Host::new();
    let (one, _other) = host.pair();
    assert_eq!(accepted(&host, &one), of(Transport::InfiniBand));
    let host = iwarp();
    let (one, _other) = iwarp_pair(&host);
    let carried = of(Transport::Iwarp);
    assert_eq!(accepted(&host, &one), carried);
    let removed = Operations::IMMEDIATES | Operations::ATOMICS;
    assert_eq!(carried.without(removed), carried, "iWARP has immediates or atomics");
}

#[test]
fn an_operation_that_a_device_lacks_is_refused_although_its_transport_has_it() {
    let lacking = Operations::of(&[Operation::SendInvalidate, Operation::Read]);
    let services = Services::of(Transport::InfiniBand).without(lacking);
    let host = Host::on(Loopback::with(|attributes| attributes.services = services));
    let (one, _other) = host.pair();
    let binds = Operations::of(&[Operation::BindWindow]);
    assert_eq!(accepted(&host, &one), Operations::ALL.without(lacking).without(binds));
}

#[test]
fn a_refused_operation_is_not_posted_and_later_sends_still_are() {
    let host = iwarp();
    let (one, other) = iwarp_pair(&host);
    other.post_receive(&[receive(7, &[])]).expect("a receive");
    let immediate = SendOpcode::Send { immediate: Some(1) };
    let all = [send(1, &[]), SendRequest { opcode: immediate, ..send(2, &[]) }, send(3, &[])];
    assert!(matches!(one.post_send(&all), Err((1, Error::Invalid(_)))));
    let mut found = results(&host.poll());
    found.sort_by_key(|(id, _)| *id);
    assert_eq!(found, [(1, CompletionStatus::Success), (7, CompletionStatus::Success)]);
}

#[test]
fn queue_pairs_of_a_service_that_the_device_lacks_are_not_supported() {
    let host = iwarp();
    for service in [QueuePairType::Unreliable, QueuePairType::Datagram] {
        let Err(Error::NotSupported(why)) = host.domain.create_queue_pair(&host.init(service))
        else {
            panic!("iWARP has {service:?} queue pairs")
        };
        assert!(why.contains("loopiwarp0") && why.contains("iWARP"), "{why}");
    }
    assert!(host.domain.create_queue_pair(&host.init(RELIABLE)).is_ok());
    let host = Host::new();
    for service in QueuePairType::ALL {
        assert!(host.domain.create_queue_pair(&host.init(service)).is_ok(), "{service:?}");
    }
}

#[test]
fn address_handles_exist_only_on_devices_with_datagrams() {
    let to = AddressVectorAttributes { is_global: true, port: 1, ..Default::default() };
    let on = |host: &Host| host.domain.create_address_handle(&to).map(|_| ());
    assert!(matches!(on(&iwarp()), Err(Error::NotSupported(_))));
    assert_eq!(on(&Host::new()), Ok(()));
}

#[test]
fn memory_windows_exist_only_on_devices_that_bind_them() {
    let on = |host: &Host| host.domain.allocate_window(WindowType::Two).map(|_| ());
    let binds = Operations::of(&[Operation::BindWindow]);
    let without = Host::on(Loopback::with(|attributes| {
        attributes.services = attributes.services.without(binds);
    }));
    assert!(matches!(on(&without), Err(Error::NotSupported(_))));
    assert_eq!(on(&Host::new()), Ok(()));
    let host = iwarp();
    let (one, _other) = iwarp_pair(&host);
    let window = host.domain.allocate_window(WindowType::Two).expect("a window");
    let binding = WindowBinding {
        region: Some(&host.region),
        address: host.buffer.address(),
        length: 8,
        access: verbs::AccessFlags::REMOTE_READ,
        key: Some(verbs::next_key(window.key())),
    };
    let opcode = window.bind(&one, &binding).expect("a bind");
    assert_eq!(one.post_send(&[SendRequest { opcode, ..send(1, &[]) }]), Ok(()));
    assert_eq!(results(&host.poll()), [(1, CompletionStatus::Success)]);
}

#[test]
fn reads_have_a_limit_of_scatter_gather_entries_of_their_own() {
    let host = iwarp();
    let (one, _other) = iwarp_pair(&host);
    let (address, key) = (host.buffer.address(), host.region.key());
    let two = [host.piece(0, 8), host.piece(8, 8)];
    let post = |opcode, pieces| one.post_send(&[SendRequest { opcode, ..send(1, pieces) }]);
    let refused = |result| matches!(result, Err((0, Error::Invalid(_))));
    assert!(refused(post(SendOpcode::Read { address, key }, &two)));
    assert_eq!(post(SendOpcode::Read { address, key }, &two[..1]), Ok(()));
    assert_eq!(post(SendOpcode::Write { address, key, immediate: None }, &two), Ok(()));
    let host = Host::new();
    let (one, _other) = host.pair();
    let (address, key) = (host.buffer.address(), host.region.key());
    let read = SendOpcode::Read { address, key };
    let two = [host.piece(0, 8), host.piece(8, 8)];
    assert_eq!(one.post_send(&[SendRequest { opcode: read, ..send(1, &two) }]), Ok(()));
}

#[test]
fn a_message_longer_than_the_device_carries_is_refused() {
    let host = iwarp();
    let (one, _other) = iwarp_pair(&host);
    let post = |pieces: &[ScatterGather]| one.post_send(&[send(1, pieces)]);
    assert_eq!(post(&[host.piece(0, 1024), host.piece(1024, 1024)]), Ok(()));
    let long = [host.piece(0, 1024), host.piece(1024, 1025)];
    assert!(matches!(post(&long), Err((0, Error::Invalid(_)))));
    let host = Host::new();
    let (one, _other) = host.pair();
    assert_eq!(one.post_send(&[send(1, &long)]), Ok(()));
}

#[test]
fn only_the_connection_manager_connects_queue_pairs_of_iwarp() {
    let host = iwarp();
    let one = host.queue_pair(RELIABLE);
    let mask = mask_of(RELIABLE, QueuePairState::Init);
    assert_eq!(modify(&one, QueuePairState::Init, mask, attributes(0)), Ok(()));
    // Neither the attributes of InfiniBand nor none at all connect the queue pair.
    let to = QueuePairState::ReadyToReceive;
    for mask in [mask_of(RELIABLE, to), AttributeMask::STATE] {
        let Err(Error::Invalid(why)) = modify(&one, to, mask, attributes(1)) else {
            panic!("ibv_modify_qp has connected the queue pair")
        };
        assert!(why.contains("iWARP") && why.contains("rdma_connect"), "{why}");
        assert_eq!(one.state(), QueuePairState::Init);
    }
    assert_eq!(one.modify_met(&change(to, AttributeMask::ACCESS)), Ok(()));
    assert_eq!(one.state(), to);
    // The queue pair is connected now, so that the program may move it on.
    let mask = AttributeMask::STATE | AttributeMask::ACCESS;
    assert_eq!(modify(&one, QueuePairState::ReadyToSend, mask, attributes(0)), Ok(()));
    assert_eq!(one.state(), QueuePairState::ReadyToSend);
    assert_eq!(one.attributes().access, 0xf);
}

#[test]
fn rtr_and_rts_of_iwarp_take_access_flags_at_most() {
    let host = iwarp();
    for bit in (1..=20).filter(|bit| *bit != 19) {
        let extra = AttributeMask(1 << bit);
        let one = host.queue_pair(RELIABLE);
        one.modify(&change(QueuePairState::Init, AttributeMask::NONE)).expect("INIT");
        for state in [QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend] {
            let result = one.modify_met(&change(state, extra));
            let is_allowed = extra == AttributeMask::ACCESS;
            assert_eq!(result.is_ok(), is_allowed, "{state:?} {bit}");
            if !is_allowed {
                assert!(matches!(result, Err(Error::Invalid(_))), "{state:?} {bit}");
                one.modify_met(&change(state, AttributeMask::NONE)).expect("a transition");
            }
        }
        one.destroy().expect("destroyed");
    }
}

#[test]
fn work_of_a_queue_pair_that_the_manager_has_connected_is_carried_out() {
    let host = iwarp();
    let (one, other) = iwarp_pair(&host);
    host.buffer.write(0, b"abcdefgh");
    let (source, sink) = ([host.piece(0, 8)], [host.piece(256, 8)]);
    other.post_receive(&[receive(1, &sink)]).expect("a receive");
    one.post_send(&[send(2, &source)]).expect("a send");
    assert_eq!(host.poll().len(), 2);
    assert_eq!(host.bytes(256, 8), b"abcdefgh");
}

#[test]
fn an_iwarp_device_has_one_gid_of_its_station_and_no_partition_key() {
    let host = iwarp();
    let entry = host.context.query_gid(1, 0).expect("a GID");
    assert_eq!((entry.kind, &entry.gid.0[..6]), (GidKind::Station, &[2, 0, 0, 0, 0, 1][..]));
    assert_eq!(entry.gid.0[6..], [0; 10]);
    assert!(matches!(host.context.query_partition_key(1, 0), Err(Error::Invalid(_))));
    let host = Host::new();
    assert_eq!(host.context.query_gid(1, 0).expect("a GID").kind, GidKind::RoceV2);
    assert_eq!(host.context.query_partition_key(1, 0), Ok(0xffff));
    assert!(matches!(host.context.query_partition_key(1, 1), Err(Error::Invalid(_))));
}
