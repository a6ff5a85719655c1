//! Tests of ids on devices whose connection managers differ: one like InfiniBand's, and one like
//! iWARP's.

use verbs::{QueuePairInit, QueuePairLimits};

use super::*;

/// The address that both devices have.
const SHARED: [u8; 4] = [127, 0, 0, 3];

fn infiniband() -> Arc<Memory> {
    let addresses = [[127, 0, 0, 1].into(), SHARED.into()];
    Memory::new(ManagerAttributes::INFINIBAND, &addresses, 40_000)
}

fn iwarp() -> Arc<Memory> {
    let addresses = [[127, 0, 0, 2].into(), SHARED.into()];
    Memory::new(ManagerAttributes::IWARP, &addresses, 50_000)
}

/// Returns a host whose second device is like iWARP.
fn both() -> World {
    World::with(&[infiniband(), iwarp()])
}

/// Returns an id of the client that has an address of the device like iWARP, and a queue pair.
fn iwarp_client(world: &World, to: SocketAddr) -> (Arc<Id>, Arc<QueuePair>) {
    let id = bare_client(world, ([127, 0, 0, 2], 0).into(), to);
    let queue_pair = queue_pair(&id);
    id.take_queue_pair(&queue_pair).expect("it is in RESET");
    (id, queue_pair)
}

/// Returns an id of the client that has the address `from` and no queue pair.
fn bare_client(world: &World, from: SocketAddr, to: SocketAddr) -> Arc<Id> {
    let id = world.id(&world.client, PortSpace::Tcp);
    id.resolve_address(Some(from), to).expect("it is looked for");
    got(&world.client, EventKind::AddressResolved);
    id.resolve_route().expect("it is looked for");
    got(&world.client, EventKind::RouteResolved);
    id
}

/// Creates a queue pair of the id's device.
fn queue_pair(id: &Id) -> Arc<QueuePair> {
    let context = id.device().expect("a device").open().expect("it opens");
    let queue = context.create_completion_queue(1, None).expect("a queue");
    let domain = context.allocate_domain().expect("a domain");
    let init = QueuePairInit {
        service: QueuePairType::Reliable,
        send_queue: Arc::clone(&queue),
        receive_queue: queue,
        shared_queue: None,
        limits: QueuePairLimits { sends: 1, receives: 1, ..QueuePairLimits::default() },
        signals_all: true,
    };
    domain.create_queue_pair(&init).expect("a queue pair")
}

fn is_on(id: &Id, device: &Arc<Memory>) -> bool {
    let known = id.device().expect("a device");
    Arc::ptr_eq(known.provider().registry(), &device.registry)
}

fn everywhere(port: u16) -> SocketAddr {
    ([0; 4], port).into()
}

#[test]
fn the_order_of_the_devices_decides_which_device_gets_an_address() {
    let at = SocketAddr::from((SHARED, 0));
    for world in [both(), World::with(&[iwarp(), infiniband()])] {
        let bound = world.id(&world.client, PortSpace::Tcp);
        bound.bind(at).expect("a free port");
        assert!(is_on(&bound, &world.devices[0]));
        assert_eq!(world.devices[0].claims.ports().len(), 1);
        assert!(world.devices[1].claims.ports().is_empty());
    }
}

#[test]
fn a_bound_id_stays_with_its_device() {
    let world = both();
    // The route to this address begins at an address of the other device.
    let id = bare_client(&world, ([127, 0, 0, 2], 0).into(), loopback(9));
    assert!(is_on(&id, &world.devices[1]));
    assert_eq!(id.local().map(|local| local.ip()), Some([127, 0, 0, 2].into()));
    let other = world.resolved(PortSpace::Tcp, loopback(9));
    assert!(is_on(&other, &world.devices[0]));
}

#[test]
fn a_port_space_that_a_device_does_not_carry_gets_the_next_device() {
    let world = World::with(&[iwarp(), infiniband()]);
    let id = world.id(&world.client, PortSpace::Udp);
    id.bind((SHARED, 0).into()).expect("a free port");
    assert!(is_on(&id, &world.devices[1]));
    let all = world.id(&world.server, PortSpace::Udp);
    all.bind(everywhere(0)).expect("a free port");
    all.listen(0).expect("it listens");
    assert!(world.devices[0].claims.ports().is_empty());
    // Without another device, there is no device for the id.
    let world = World::with(&[iwarp()]);
    for at in [everywhere(0), (SHARED, 0).into()] {
        let id = world.id(&world.server, PortSpace::Udp);
        assert_eq!(errno(id.bind(at)), Errno::ENODEV as i32);
    }
}

#[test]
fn a_claim_for_all_devices_has_all_or_none() {
    let world = both();
    let [first, second] = [0, 1].map(|at| Arc::clone(&world.devices[at].claims));
    let id = world.id(&world.server, PortSpace::Tcp);
    for foreign in [&first, &second] {
        lock(&foreign.foreign).insert(600);
        assert_eq!(errno(id.bind(everywhere(600))), Errno::EADDRNOTAVAIL as i32);
        assert!(first.ports().is_empty() && second.ports().is_empty());
        lock(&foreign.foreign).clear();
    }
    // A port that an id has at one address of one device cannot be claimed for all of them.
    let one = world.id(&world.server, PortSpace::Tcp);
    one.bind(([127, 0, 0, 2], 600).into()).expect("a free port");
    assert_eq!(errno(id.bind(everywhere(600))), Errno::EADDRNOTAVAIL as i32);
    assert!(first.ports().is_empty());
    one.destroy().expect("once");
    id.bind(everywhere(600)).expect("a free port");
    assert_eq!((first.ports(), second.ports()), (vec![600], vec![600]));
    // Ids that share the port share the claims.
    let shares = world.id(&world.server, PortSpace::Tcp);
    shares.set_option(IdOption::ReuseAddress(true)).expect("it is early");
    shares.bind(everywhere(600)).expect("it is shared");
    id.destroy().expect("once");
    assert_eq!((first.ports(), second.ports()), (vec![600], vec![600]));
    shares.destroy().expect("once");
    assert!(first.ports().is_empty() && second.ports().is_empty());
}

#[test]
fn port_0_is_tried_until_all_devices_have_the_port() {
    let world = both();
    let [first, second] = [0, 1].map(|at| Arc::clone(&world.devices[at].claims));
    lock(&second.foreign).extend([40_000, 40_001, 40_002]);
    let id = world.id(&world.server, PortSpace::Tcp);
    id.bind(everywhere(0)).expect("a free port");
    assert_eq!(id.local(), Some(everywhere(40_003)));
    assert_eq!((first.ports(), second.ports()), (vec![40_003], vec![40_003]));
    // If the second device has no free port, the tries end.
    lock(&second.foreign).extend(40_004..50_000);
    let id = world.id(&world.server, PortSpace::Tcp);
    assert_eq!(errno(id.bind(everywhere(0))), Errno::EADDRNOTAVAIL as i32);
    assert_eq!((first.ports(), second.ports()), (vec![40_003], vec![40_003]));
}

#[test]
fn an_id_that_listens_on_all_addresses_listens_on_all_devices() {
    let world = both();
    let listener = world.id(&world.server, PortSpace::Tcp);
    listener.bind(everywhere(0)).expect("a free port");
    listener.listen(0).expect("it listens");
    let port = listener.local().expect("an address").port();
    let client = world.resolved(PortSpace::Tcp, loopback(port));
    client.connect(&saying(b"")).expect("it asks");
    let server = Arc::clone(&got(&world.server, EventKind::ConnectRequest).id);
    assert!(is_on(&client, &world.devices[0]) && is_on(&server, &world.devices[0]));
    // Both devices have the destination address. The new id must belong to the device at which the
    // request arrives, not to the first device.
    let (client, _) = iwarp_client(&world, (SHARED, port).into());
    client.connect(&saying(b"")).expect("it asks");
    let server = Arc::clone(&got(&world.server, EventKind::ConnectRequest).id);
    assert!(is_on(&client, &world.devices[1]) && is_on(&server, &world.devices[1]));
    assert_eq!(server.local(), Some((SHARED, port).into()));
    // After the listener is destroyed, neither device passes requests on.
    listener.destroy().expect("once");
    let (client, _) = iwarp_client(&world, (SHARED, port).into());
    client.connect(&saying(b"")).expect("it asks");
    let refused = got(&world.client, EventKind::Rejected);
    assert_eq!(refused.status, -(Errno::ECONNREFUSED as i32));
}

/// Returns a listening id with an address of the device like iWARP.
fn iwarp_listener(world: &World) -> Arc<Id> {
    let id = world.id(&world.server, PortSpace::Tcp);
    id.bind(([127, 0, 0, 2], 0).into()).expect("a free port");
    id.listen(0).expect("it listens");
    id
}

#[test]
fn on_iwarp_established_is_the_only_event_of_a_connection_and_private_data_has_its_true_length() {
    let world = both();
    let listener = iwarp_listener(&world);
    let (client, own) = iwarp_client(&world, listener.local().expect("an address"));
    assert!(!client.has_path_record());
    let options = ConnectOptions { responder_resources: Some(3), ..saying(&[7; 508]) };
    client.connect(&options).expect("it asks");
    let asked = got(&world.server, EventKind::ConnectRequest);
    assert_eq!(asked.private_data, [7; 508]);
    let Details::Connection(seen) = asked.details else { panic!("{asked:?}") };
    assert_eq!((seen.initiator_depth, seen.number), (3, own.number()));
    let server = Arc::clone(&asked.id);
    assert!(!server.has_path_record());
    let theirs = queue_pair(&server);
    server.take_queue_pair(&theirs).expect("it is in RESET");
    let options = Some(saying(b"yes"));
    server.accept(&AcceptOptions { options, queue_key: None }).expect("it accepts");
    let accepted = got(&world.client, EventKind::Established);
    assert_eq!((accepted.private_data.as_slice(), accepted.status), (&b"yes"[..], 0));
    let Details::Connection(seen) = accepted.details else { panic!("{accepted:?}") };
    assert_eq!(seen.number, theirs.number());
    got(&world.server, EventKind::Established);
    // The wire has connected both queue pairs, and the ids have changed neither.
    assert_eq!(*lock(&world.devices[1].connected), [own.number(), theirs.number()]);
    assert_eq!([own.state(), theirs.state()], [QueuePairState::Init; 2]);
    assert_eq!(errno(client.establish()), Errno::EINVAL as i32);
    client.disconnect().expect("there is a connection");
    for channel in [&world.client, &world.server] {
        got(channel, EventKind::Disconnected);
        nothing(channel);
    }
    // The wire ends the queue pair as soon as it has sent the posted work, and the id leaves it.
    assert_eq!(own.state(), QueuePairState::Init);
}

#[test]
fn on_iwarp_a_connection_of_a_queue_pair_of_the_program_is_established_already() {
    let world = both();
    let listener = iwarp_listener(&world);
    let to = listener.local().expect("an address");
    let client = bare_client(&world, ([127, 0, 0, 2], 0).into(), to);
    assert_eq!(errno(client.establish()), Errno::EINVAL as i32);
    let own = queue_pair(&client);
    let options = ConnectOptions { external: (false, own.number()), ..saying(b"") };
    client.connect(&options).expect("there is such a queue pair");
    let asked = got(&world.server, EventKind::ConnectRequest).id;
    let theirs = queue_pair(&asked);
    let accept = AcceptOptions {
        options: Some(ConnectOptions { external: (false, theirs.number()), ..saying(b"") }),
        queue_key: None,
    };
    asked.accept(&accept).expect("it waits");
    got(&world.client, EventKind::Established);
    client.establish().expect("the wire has established it");
}

#[test]
fn on_iwarp_the_program_makes_no_transition_to_rtr_and_rts() {
    let world = both();
    let client = bare_client(&world, ([127, 0, 0, 2], 0).into(), loopback(9));
    for state in [QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend] {
        let change = client.modification(state).expect("it needs no peer");
        assert_eq!((change.state, change.mask), (state, AttributeMask::NONE));
    }
}

#[test]
fn on_iwarp_a_queue_pair_of_the_program_is_connected_by_its_number() {
    let world = both();
    let listener = iwarp_listener(&world);
    let to = listener.local().expect("an address");
    let client = bare_client(&world, ([127, 0, 0, 2], 0).into(), to);
    let own = queue_pair(&client);
    let naming = |number| ConnectOptions { external: (false, number), ..saying(b"") };
    assert_eq!(errno(client.connect(&naming(own.number() + 1))), Errno::EINVAL as i32);
    client.connect(&naming(own.number())).expect("it asks");
    let server = Arc::clone(&got(&world.server, EventKind::ConnectRequest).id);
    let theirs = queue_pair(&server);
    let accept = |number| AcceptOptions { options: Some(naming(number)), queue_key: None };
    assert_eq!(errno(server.accept(&accept(1))), Errno::EINVAL as i32);
    assert_eq!(errno(server.accept(&AcceptOptions::default())), Errno::EINVAL as i32);
    server.accept(&accept(theirs.number())).expect("it accepts");
    got(&world.client, EventKind::Established);
    got(&world.server, EventKind::Established);
    assert_eq!(*lock(&world.devices[1].connected), [own.number(), theirs.number()]);
    // A destroyed queue pair is not found, although the program still holds it.
    let client = bare_client(&world, ([127, 0, 0, 2], 0).into(), to);
    let own = queue_pair(&client);
    own.destroy().expect("once");
    assert_eq!(errno(client.connect(&naming(own.number()))), Errno::EINVAL as i32);
}

#[test]
fn on_infiniband_a_queue_pair_of_the_program_stays_with_the_program() {
    let world = both();
    let listener = world.listener(PortSpace::Tcp);
    let client = world.resolved(PortSpace::Tcp, listener.local().expect("an address"));
    assert!(client.has_path_record());
    let own = queue_pair(&client);
    let options = ConnectOptions { external: (false, own.number()), ..saying(b"") };
    client.connect(&options).expect("it asks");
    let server = Arc::clone(&got(&world.server, EventKind::ConnectRequest).id);
    server.accept(&AcceptOptions::default()).expect("it accepts");
    let response = got(&world.client, EventKind::ConnectResponse);
    assert_eq!(response.private_data, [0; 196]);
    assert_eq!(own.state(), QueuePairState::Reset);
    nothing(&world.client);
}

#[test]
fn on_iwarp_private_data_beyond_the_limit_is_refused() {
    let world = both();
    let listener = iwarp_listener(&world);
    let (client, _) = iwarp_client(&world, listener.local().expect("an address"));
    assert_eq!(errno(client.connect(&saying(&[1; 509]))), Errno::EINVAL as i32);
    client.connect(&saying(&[1; 508])).expect("it asks");
    let server = Arc::clone(&got(&world.server, EventKind::ConnectRequest).id);
    assert_eq!(errno(server.reject(&[1; 509])), Errno::EINVAL as i32);
    server.reject(&[1; 508]).expect("it rejects");
}

#[test]
fn on_iwarp_a_refusal_has_an_error_number_as_status() {
    let world = both();
    let listener = iwarp_listener(&world);
    let to = listener.local().expect("an address");
    let (client, own) = iwarp_client(&world, to);
    client.connect(&saying(b"")).expect("it asks");
    let server = Arc::clone(&got(&world.server, EventKind::ConnectRequest).id);
    server.reject(b"no").expect("it rejects");
    let rejected = got(&world.client, EventKind::Rejected);
    assert_eq!(rejected.status, -(Errno::ECONNRESET as i32));
    assert_eq!(rejected.private_data, b"no");
    assert_eq!(own.state(), QueuePairState::Error);
    let (client, _) = iwarp_client(&world, ([127, 0, 0, 2], 1).into());
    client.connect(&saying(b"")).expect("it asks");
    let rejected = got(&world.client, EventKind::Rejected);
    assert_eq!(rejected.status, -(Errno::ECONNREFUSED as i32));
    assert!(rejected.private_data.is_empty());
}

#[test]
fn a_connection_that_fails_for_another_reason_is_a_connect_error() {
    let world = both();
    world.devices[1].failure.store(-(Errno::EINVAL as i32), Ordering::SeqCst);
    let (client, own) = iwarp_client(&world, ([127, 0, 0, 2], 1).into());
    client.connect(&saying(b"")).expect("it asks");
    let failed = got(&world.client, EventKind::ConnectError);
    assert_eq!(failed.status, -(Errno::EINVAL as i32));
    assert_eq!(own.state(), QueuePairState::Error);
    nothing(&world.client);
}
