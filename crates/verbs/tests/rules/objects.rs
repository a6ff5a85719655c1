//! Tests of objects: which objects use others, when they can be destroyed, and how many there can
//! be.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use verbs::{
    AccessFlags, AddressVectorAttributes, Arm, Error, QueuePairInit, QueuePairLimits,
    QueuePairType, WindowType, WorkCompletion,
};

use crate::loopback::Loopback;
use crate::{Host, attributes, receive, send};

fn is_busy<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Busy(_)))
}

fn is_refused<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::Invalid(_)))
}

fn is_full<T>(result: &Result<T, Error>) -> bool {
    matches!(result, Err(Error::NoRoom(_)))
}

#[test]
fn an_object_in_use_cannot_be_destroyed() {
    let host = Host::new();
    let channel = host.context.create_channel().expect("a channel");
    let queue = host.context.create_completion_queue(8, Some(&channel)).expect("a queue");
    let shared = host.domain.create_shared_queue(8, 1).expect("a queue");
    let init = QueuePairInit {
        send_queue: Arc::clone(&queue),
        shared_queue: Some(Arc::clone(&shared)),
        ..host.init(QueuePairType::Reliable)
    };
    let one = host.domain.create_queue_pair(&init).expect("a queue pair");
    let path = attributes(0).path;
    let handle = host.domain.create_address_handle(&path).expect("a handle");
    let window = host.domain.allocate_window(WindowType::One).expect("a window");
    assert!(is_busy(&host.context.close()));
    assert!(is_busy(&host.domain.deallocate()));
    assert!(is_busy(&channel.destroy()));
    assert!(is_busy(&queue.destroy()) && is_busy(&host.queue.destroy()));
    assert!(is_busy(&shared.destroy()));
    for destroyed in [one.destroy(), queue.destroy(), host.queue.destroy(), channel.destroy()] {
        assert_eq!(destroyed, Ok(()));
    }
    assert!(is_busy(&host.domain.deallocate()));
    for destroyed in
        [shared.destroy(), handle.destroy(), window.deallocate(), host.region.deregister()]
    {
        assert_eq!(destroyed, Ok(()));
    }
    assert!(is_busy(&host.context.close()));
    assert_eq!(host.domain.deallocate(), Ok(()));
    assert_eq!(host.context.close(), Ok(()));
}

#[test]
fn a_destroyed_object_can_be_neither_destroyed_again_nor_used() {
    let host = Host::new();
    let queue = host.context.create_completion_queue(8, None).expect("a queue");
    assert_eq!(queue.destroy(), Ok(()));
    assert!(is_refused(&queue.destroy()));
    let init = QueuePairInit { send_queue: queue, ..host.init(QueuePairType::Reliable) };
    assert!(is_refused(&host.domain.create_queue_pair(&init)));
    // The failed attempts to create a queue pair must not count as users of these objects.
    assert_eq!(host.queue.destroy(), Ok(()));
    assert_eq!(host.region.deregister(), Ok(()));
    assert!(is_refused(&host.region.deregister()));
    assert_eq!(host.domain.deallocate(), Ok(()));
    assert!(is_refused(&host.domain.allocate_window(WindowType::One)));
    assert_eq!(host.context.close(), Ok(()));
    assert!(is_refused(&host.context.allocate_domain()));
}

#[test]
fn objects_are_limited_by_the_device_and_destroyed_ones_make_room() {
    let device = Loopback::with(|attributes| {
        attributes.domains_max = 2;
        attributes.windows_max = 1;
        attributes.address_handles_max = 1;
        attributes.queue_pairs_max = 1;
        attributes.completion_queues_max = 1;
        attributes.shared_queues_max = 1;
        attributes.regions_max = 1;
    });
    let host = Host::on(device);
    let second = host.context.allocate_domain().expect("a domain");
    assert!(is_full(&host.context.allocate_domain()));
    second.deallocate().expect("nothing uses it");
    assert!(host.context.allocate_domain().is_ok());

    let window = host.domain.allocate_window(WindowType::Two).expect("a window");
    assert!(is_full(&host.domain.allocate_window(WindowType::Two)));
    window.deallocate().expect("it opens nothing");
    assert!(host.domain.allocate_window(WindowType::Two).is_ok());

    let handle = host.domain.create_address_handle(&attributes(0).path).expect("a handle");
    assert!(is_full(&host.domain.create_address_handle(&attributes(0).path)));
    handle.destroy().expect("nothing uses it");

    let one = host.queue_pair(QueuePairType::Reliable);
    let init = host.init(QueuePairType::Reliable);
    assert!(is_full(&host.domain.create_queue_pair(&init)));
    one.destroy().expect("nothing uses it");
    assert!(host.domain.create_queue_pair(&init).is_ok());

    assert!(is_full(&host.context.create_completion_queue(1, None)));
    let shared = host.domain.create_shared_queue(1, 1).expect("a queue");
    assert!(is_full(&host.domain.create_shared_queue(1, 1)));
    shared.destroy().expect("nothing uses it");

    let address = host.buffer.address() as usize;
    let register = || host.domain.register(address, 8, 0, AccessFlags::default());
    assert!(is_full(&register()));
    host.region.deregister().expect("no windows");
    assert!(register().is_ok());
}

#[test]
fn sizes_beyond_the_device_are_refused() {
    let host = Host::new();
    let usual = host.init(QueuePairType::Reliable).limits;
    for limits in [
        QueuePairLimits { sends: 16385, ..usual },
        QueuePairLimits { receives: 16385, ..usual },
        QueuePairLimits { send_pieces: 33, ..usual },
        QueuePairLimits { receive_pieces: 33, ..usual },
        QueuePairLimits { inline: 257, ..usual },
    ] {
        let init = QueuePairInit { limits, ..host.init(QueuePairType::Reliable) };
        assert!(is_refused(&host.domain.create_queue_pair(&init)), "{limits:?}");
    }
    for (receives, pieces) in [(0, 1), (1025, 1), (1, 33)] {
        assert!(is_refused(&host.domain.create_shared_queue(receives, pieces)));
    }
}

#[test]
fn objects_of_two_contexts_do_not_mix() {
    let (host, stranger) = (Host::new(), Host::new());
    let queue = Arc::clone(&stranger.queue);
    let init = QueuePairInit { receive_queue: queue, ..host.init(QueuePairType::Reliable) };
    assert!(is_refused(&host.domain.create_queue_pair(&init)));
    let shared = stranger.domain.create_shared_queue(8, 1).expect("a queue");
    let init = QueuePairInit { shared_queue: Some(shared), ..host.init(QueuePairType::Reliable) };
    assert!(is_refused(&host.domain.create_queue_pair(&init)));
    let channel = stranger.context.create_channel().expect("a channel");
    assert!(is_refused(&host.context.create_completion_queue(8, Some(&channel))));
}

#[test]
fn an_address_handle_needs_a_gid_at_both_ends() {
    let host = Host::new();
    let path = attributes(0).path;
    let refused =
        |path: AddressVectorAttributes| is_refused(&host.domain.create_address_handle(&path));
    assert!(refused(AddressVectorAttributes { is_global: false, ..path }));
    assert!(refused(AddressVectorAttributes { port: 2, ..path }));
    assert!(refused(AddressVectorAttributes { source_index: 1, ..path }));
    let handle = host.domain.create_address_handle(&path).expect("a handle");
    assert_eq!(handle.attributes(), &path);
}

#[test]
fn the_return_address_is_read_from_the_route_header_of_a_datagram() {
    let host = Host::new();
    let mut header = [0; 40];
    header[20] = 0x45;
    header[32..36].copy_from_slice(&[10, 0, 0, 9]);
    header[36..40].copy_from_slice(&[127, 0, 0, 1]);
    let completion = WorkCompletion { has_route_header: true, ..WorkCompletion::NOTHING };
    let answer =
        |completion, header| verbs::answer_to(host.domain.context(), 1, &completion, header);
    let path = answer(completion, &header).expect("a way back");
    assert_eq!(path.gid.address().to_string(), "10.0.0.9");
    assert!(path.is_global && host.domain.create_address_handle(&path).is_ok());
    assert!(is_refused(&answer(WorkCompletion::NOTHING, &header)));
    assert!(is_refused(&answer(completion, &[0; 40])));
}

#[test]
fn every_call_in_a_forked_child_reports_a_missing_device() {
    let host = Host::new();
    let (one, _other) = host.pair();
    let channel = host.context.create_channel().expect("a channel");
    let shared = host.domain.create_shared_queue(8, 1).expect("a queue");
    let window = host.domain.allocate_window(WindowType::One).expect("a window");
    host.device.is_foreign.store(true, Ordering::SeqCst);
    let gone = |result: Result<(), Error>| assert!(matches!(result, Err(Error::NoDevice(_))));
    gone(host.context.device().open().map(drop));
    gone(host.context.close());
    gone(host.context.query_port(1).map(drop));
    gone(host.context.gids().map(drop));
    gone(host.context.allocate_domain().map(drop));
    gone(host.context.create_channel().map(drop));
    gone(host.context.create_completion_queue(1, None).map(drop));
    gone(host.context.get_event().map(drop));
    gone(host.queue.poll(&mut [WorkCompletion::NOTHING]).map(drop));
    gone(host.queue.arm(Arm::Next));
    gone(host.queue.resize(1));
    gone(host.queue.destroy());
    gone(channel.get().map(drop));
    gone(channel.take().map(drop));
    gone(channel.destroy());
    gone(host.domain.deallocate());
    gone(host.region.deregister());
    gone(window.deallocate());
    gone(shared.post(&[receive(1, &[])]).map_err(|(_, error)| error));
    gone(shared.set_limit(1));
    gone(shared.destroy());
    gone(one.post_send(&[send(1, &[])]).map_err(|(_, error)| error));
    gone(one.post_receive(&[receive(1, &[])]).map_err(|(_, error)| error));
    gone(one.query().map(drop));
    gone(one.destroy());
    let address = host.buffer.address() as usize;
    gone(host.domain.register(address, 8, 0, AccessFlags::default()).map(drop));
    gone(host.domain.create_queue_pair(&host.init(QueuePairType::Reliable)).map(drop));
}
