//! Tests of memory regions and memory windows.

use std::sync::Arc;

use verbs::{
    AccessFlags, CompletionOpcode, CompletionStatus, Error, MemoryRegion, MemoryWindow, QueuePair,
    QueuePairType, Reregistration, SendOpcode, SendRequest, WindowBinding, WindowType,
    first_address, next_key,
};

use crate::{Host, receive, results, send};

const SUCCESS: CompletionStatus = CompletionStatus::Success;

/// Writes 8 bytes to the peer, and returns the status of the completion.
fn write(host: &Host, from: &QueuePair, address: u64, key: u32) -> CompletionStatus {
    let pieces = [host.piece(0, 8)];
    let opcode = SendOpcode::Write { address, key, immediate: None };
    from.post_send(&[SendRequest { opcode, ..send(1, &pieces) }]).expect("a send");
    host.poll().iter().find(|results| results.id == 1).expect("a completion").status
}

fn bind(
    host: &Host,
    window: &MemoryWindow,
    on: &QueuePair,
    binding: &WindowBinding<'_>,
) -> CompletionStatus {
    let opcode = window.bind(on, binding).expect("a binding");
    on.post_send(&[SendRequest { opcode, ..send(9, &[]) }]).expect("a send");
    window.on_posted(&opcode);
    let found = host.poll();
    assert_eq!(found[0].opcode, CompletionOpcode::BindWindow);
    found[0].status
}

fn binding<'a>(host: &Host, region: &'a MemoryRegion, key: Option<u32>) -> WindowBinding<'a> {
    let access = AccessFlags::REMOTE_WRITE;
    WindowBinding { region: Some(region), address: host.buffer.address(), length: 64, access, key }
}

#[test]
fn registering_unmapped_memory_returns_bad_address() {
    let host = Host::new();
    let register = |address, length| host.domain.register(address, length, 0, AccessFlags(1));
    let bad = register(4096, 4096);
    assert!(matches!(bad, Err(Error::System { number, .. }) if number == nix::libc::EFAULT));
    assert!(matches!(register(usize::MAX - 10, 4096), Err(Error::Invalid(_))));
    assert!(matches!(register(0, u64::MAX), Err(Error::Invalid(_))));
    assert_eq!(host.region.deregister(), Ok(()));
    assert_eq!(host.domain.deallocate(), Ok(()), "what was refused uses nothing");
}

#[test]
fn peers_address_a_region_by_the_chosen_start() {
    let host = Host::new();
    let (one, _other) = host.pair();
    let address = host.buffer.address() as usize + 3;
    assert_eq!(first_address(address, AccessFlags::ZERO_BASED), 0);
    assert_eq!(first_address(address, AccessFlags::default()), address as u64);
    let access = AccessFlags(0x3 | AccessFlags::OPTIONAL.0);
    let region = host.domain.register(address, 100, 0x7000_0000, access).expect("a region");
    assert_eq!((region.remote_address(), region.address()), (0x7000_0000, address));
    host.buffer.write(0, b"01234567");
    assert_eq!(write(&host, &one, 0x7000_0005, region.key()), SUCCESS);
    assert_eq!(host.bytes(8, 8), b"01234567");
    assert_eq!(write(&host, &one, address as u64, region.key()), CompletionStatus::RemoteAccess);
}

#[test]
fn reregistering_a_region_keeps_its_key_and_changes_rights_and_memory() {
    let host = Host::new();
    let (one, _other) = host.pair();
    let address = host.buffer.address();
    let before = host.region.key();
    let change = Reregistration { access: Some(AccessFlags(0x3)), ..Reregistration::default() };
    assert_eq!(host.region.reregister(&change), Ok(()));
    assert_eq!(host.region.key(), before);
    assert_eq!(write(&host, &one, address, host.region.key()), SUCCESS);
    let other = host.context.allocate_domain().expect("a domain");
    let change = Reregistration {
        domain: Some(&other),
        range: Some((address as usize + 64, 64)),
        ..Reregistration::default()
    };
    assert_eq!(host.region.reregister(&change), Ok(()));
    assert_eq!((host.region.len(), host.region.remote_address()), (64, address + 64));
    assert!(Arc::ptr_eq(&host.region.domain(), &other));
    assert!(matches!(other.deallocate(), Err(Error::Busy(_))));
    let wrong = Reregistration { access: Some(AccessFlags(0x2)), ..Reregistration::default() };
    let key = host.region.key();
    assert!(matches!(host.region.reregister(&wrong), Err(Error::Invalid(_))));
    assert_eq!(host.region.key(), key, "what is refused changes nothing");
    assert_eq!(host.region.deregister(), Ok(()));
    assert_eq!(other.deallocate(), Ok(()));
}

#[test]
fn a_type_1_window_opens_a_range_under_its_own_key_for_every_queue_pair() {
    let host = Host::new();
    let (one, other) = host.pair();
    let (three, _four) = host.pair();
    let window = host.domain.allocate_window(WindowType::One).expect("a window");
    let first = window.key();
    let bound = bind(&host, &window, &other, &binding(&host, &host.region, None));
    assert_eq!((bound, window.key()), (SUCCESS, next_key(first)));
    let address = host.buffer.address();
    assert_eq!(write(&host, &one, address + 56, window.key()), SUCCESS);
    assert_eq!(write(&host, &three, address, window.key()), SUCCESS);
    assert!(matches!(host.region.deregister(), Err(Error::Busy(_))));
    let bound = bind(&host, &window, &other, &binding(&host, &host.region, None));
    assert_eq!(bound, SUCCESS);
    assert_eq!(write(&host, &three, address, next_key(first)), CompletionStatus::RemoteAccess);
    let nothing = WindowBinding { length: 0, region: None, ..binding(&host, &host.region, None) };
    assert_eq!(bind(&host, &window, &other, &nothing), SUCCESS);
    assert_eq!(host.region.deregister(), Ok(()));
    assert_eq!(window.deallocate(), Ok(()));
}

#[test]
fn a_window_grants_no_access_beyond_its_binding() {
    let host = Host::new();
    let (one, other) = host.pair();
    let window = host.domain.allocate_window(WindowType::One).expect("a window");
    assert_eq!(bind(&host, &window, &other, &binding(&host, &host.region, None)), SUCCESS);
    let beyond = host.buffer.address() + 57;
    assert_eq!(write(&host, &one, beyond, window.key()), CompletionStatus::RemoteAccess);
}

#[test]
fn a_type_2_window_belongs_to_the_queue_pair_that_bound_it() {
    let host = Host::new();
    let (one, other) = host.pair();
    let (three, _four) = host.pair();
    let window = host.domain.allocate_window(WindowType::Two).expect("a window");
    let key = next_key(window.key());
    let bound = bind(&host, &window, &other, &binding(&host, &host.region, Some(key)));
    assert_eq!((bound, window.key()), (SUCCESS, key));
    let address = host.buffer.address();
    assert_eq!(write(&host, &one, address, key), SUCCESS);
    assert_eq!(write(&host, &three, address, key), CompletionStatus::RemoteAccess);
    // The peer invalidates the window's key by a send with invalidate.
    other.post_receive(&[receive(5, &[])]).expect("a receive");
    let opcode = SendOpcode::SendInvalidate { key };
    one.post_send(&[SendRequest { opcode, ..send(6, &[]) }]).expect("a send");
    let found = host.poll();
    let received = found.iter().find(|results| results.id == 5).expect("a message");
    assert_eq!((received.status, received.invalidated), (SUCCESS, Some(key)));
    assert_eq!(host.region.deregister(), Ok(()), "no window is left");
}

#[test]
fn a_local_invalidate_ends_a_window_by_its_key() {
    let host = Host::new();
    let (_one, other) = host.pair();
    let window = host.domain.allocate_window(WindowType::Two).expect("a window");
    let key = next_key(window.key());
    assert_eq!(bind(&host, &window, &other, &binding(&host, &host.region, Some(key))), SUCCESS);
    let opcode = SendOpcode::LocalInvalidate { key };
    other.post_send(&[SendRequest { opcode, ..send(6, &[]) }]).expect("a send");
    let found = host.poll();
    assert_eq!(results(&found), [(6, SUCCESS)]);
    assert_eq!(found[0].opcode, CompletionOpcode::LocalInvalidate);
    assert_eq!(host.region.deregister(), Ok(()));
}

#[test]
fn a_binding_that_contradicts_itself_is_refused() {
    let host = Host::new();
    let (_one, other) = host.pair();
    let one = host.domain.allocate_window(WindowType::One).expect("a window");
    let two = host.domain.allocate_window(WindowType::Two).expect("a window");
    let usual = binding(&host, &host.region, None);
    let refused = |window: &MemoryWindow, on: &QueuePair, binding: WindowBinding<'_>| {
        matches!(window.bind(on, &binding), Err(Error::Invalid(_)))
    };
    let key = Some(next_key(two.key()));
    assert!(
        !refused(&one, &other, usual) && !refused(&two, &other, WindowBinding { key, ..usual })
    );
    assert!(
        refused(&one, &other, WindowBinding { key, ..usual }),
        "a window of type 1 accepted a key"
    );
    assert!(refused(&two, &other, usual), "a window of type 2 was bound without a key");
    let key = Some(two.key() ^ 0x100);
    assert!(refused(&two, &other, WindowBinding { key, ..usual }), "of another window");
    assert!(refused(&one, &other, WindowBinding { region: None, ..usual }));
    assert!(refused(&one, &other, WindowBinding { length: 4097, ..usual }));
    assert!(refused(&one, &other, WindowBinding { address: usual.address - 1, ..usual }));
    let datagrams = host.queue_pair(QueuePairType::Datagram);
    assert!(refused(&one, &datagrams, usual));
    let address = host.buffer.address();
    let register =
        |access| host.domain.register(address as usize, 4096, address, access).expect("a region");
    let plain = register(AccessFlags(0x3));
    assert!(refused(&one, &other, WindowBinding { region: Some(&plain), ..usual }));
    let read_only = register(AccessFlags::WINDOW_BIND);
    assert!(refused(&one, &other, WindowBinding { region: Some(&read_only), ..usual }));
    let reading = WindowBinding { access: AccessFlags::REMOTE_READ, ..usual };
    assert!(!refused(&one, &other, WindowBinding { region: Some(&read_only), ..reading }));
    let elsewhere = host.context.allocate_domain().expect("a domain");
    let stranger = elsewhere.register(address as usize, 4096, address, AccessFlags(0x13));
    let stranger = stranger.expect("a region");
    assert!(refused(&one, &other, WindowBinding { region: Some(&stranger), ..usual }));
    let stranger = elsewhere.allocate_window(WindowType::One).expect("a window");
    assert!(refused(&stranger, &other, usual));
}
