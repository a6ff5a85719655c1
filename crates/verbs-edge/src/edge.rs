//! The verbs device on top of Ethernot's protocol engine.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use link::host::{Interface, interfaces};
use links::{LinkSpec, UdpPlace};
use mem::{MemoryTable, TableLimits};
use rdma_cm::{
    Caller, ConnectionManager, Exchange, Listener, Listening, ManagedDevice, ManagerAttributes,
    PortClaim, PortSpace, PrivateDataLimits, Request, Route,
};
use runtime::{Forked, OnDemand};
use semantics::{PIECES_MAX, SHARED_RECEIVES_MAX, SharedReceives};
use verbs::{
    Device, DeviceAttributes, Error, FailedStarts, GidEntry, OnDemandPaging, PortAttributes,
    PortCounters, Provider, QueuePair, QueuePairType, Registry, Services, SharedCapture, Transport,
    Vendor, WAIT_MAX, Wire,
};
use work::{COMPLETIONS_MAX, OPERATION_BYTES_MAX};

use crate::addresses::{Places, leaving};
use crate::datagrams;
use crate::instance::Instance;
use crate::limits::{
    DOMAINS_MAX, GROUPS_MAX, INLINE_MAX, QUEUE_PAIRS_MAX, READ_DEPTH, WORK_REQUESTS_MAX,
};
use crate::ports::ClaimedPorts;
use crate::settings::{DeviceKind, DeviceSettings, Settings};
use crate::source::QueuePairSource;
use crate::wire::ConnectedWire;

/// Returns the edge devices of this process, and does not start them. A forked child cannot use the
/// devices of its parent, so it must call this function itself.
///
/// # Errors
/// * Returns [`Error::Invalid`] if this host cannot satisfy the settings.
/// * Returns the errors of listing the host's interfaces.
pub fn devices(settings: &Settings) -> Result<Vec<ManagedDevice>, Error> {
    devices_capturing(settings, &SharedCapture::new(settings.pcap.clone()))
}

/// Returns the edge devices as [`devices`] does. They capture to `capture` instead of to a file of
/// their own, so that devices of other kinds can use the same file.
///
/// # Errors
/// Returns the errors of [`devices`].
pub fn devices_capturing(
    settings: &Settings,
    capture: &SharedCapture,
) -> Result<Vec<ManagedDevice>, Error> {
    let host = interfaces().map_err(Error::of_cause)?;
    let ports = Arc::new(ClaimedPorts::default());
    let mut devices = Vec::new();
    for (index, settings) in (0..).zip(each_device(settings, &host)?) {
        let places = Places::of(&settings.links, &host)?;
        let edge = Arc::new(Edge {
            attributes: attributes(&settings, &places, &host, index),
            settings,
            places,
            is_first: index == 0,
            capture: capture.clone(),
            ports: Arc::clone(&ports),
            registry: Registry::new(),
            instance: OnDemand::default(),
            failed_starts: FailedStarts::default(),
        });
        devices.push(ManagedDevice { device: Device::new(edge.clone()), manager: edge });
    }
    Ok(devices)
}

/// Returns separate settings for each device. In each of these settings, the device is the first
/// and only device.
fn each_device(settings: &Settings, host: &[Interface]) -> Result<Vec<Settings>, Error> {
    let mut devices = settings.devices();
    devices.retain(|device| device.kind == DeviceKind::Edge);
    if devices.len() > 1 && devices.iter().all(|device| device.links.is_empty()) {
        // Assign each interface to one device. The device is like a network adapter, where each
        // port also belongs to one device.
        let interfaces = leaving(host);
        let (found, wanted) = (interfaces.len(), devices.len());
        if found < wanted {
            let what = format!(
                "only {found} interfaces leave this host, but each of {wanted} devices needs one; name links for each device (ETHERNOT_LINKS=eth0//eth1)"
            );
            return Err(Error::Invalid(what));
        }
        for (device, interface) in (0..wanted).cycle().zip(interfaces) {
            if let Some(device) = devices.get_mut(device) {
                let place = UdpPlace::Interface(interface.name.clone());
                device.links.push(LinkSpec::Udp { place, port: None });
            }
        }
        if !settings.faults.is_any() {
            for device in &mut devices {
                device.links.push(LinkSpec::SharedMemory);
            }
        }
    }
    let one = |device: DeviceSettings| Settings {
        kind: device.kind,
        device: device.name,
        links: device.links,
        others: Vec::new(),
        ..settings.clone()
    };
    Ok(devices.into_iter().map(one).collect())
}

/// A device of this process.
pub(crate) struct Edge {
    attributes: DeviceAttributes,
    settings: Settings,
    /// Addresses and links of the device, as they were when the device was created.
    places: Places,
    /// Whether this is the first device of the process. The first device also serves loopback
    /// addresses, and does all work that belongs to no particular device.
    is_first: bool,
    /// Capture file that all devices of the process share.
    capture: SharedCapture,
    /// Ports of ids, which all devices of the process share.
    ports: Arc<ClaimedPorts>,
    registry: Arc<Registry>,
    instance: OnDemand<Instance>,
    failed_starts: FailedStarts,
}

impl Edge {
    /// Returns the instance that runs the device. Starts the instance if necessary.
    fn instance(&self) -> Result<&Arc<Instance>, Error> {
        self.instance.get_or_start(belongs_to_the_parent, || {
            let (settings, capture) = (&self.settings, &self.capture);
            Instance::start(settings, self.places.clone(), capture, &self.registry)
                .inspect_err(|error| self.failed_starts.note(settings.log, &settings.device, error))
        })
    }

    /// Returns the instance that runs the device, if it is started.
    fn running(&self) -> Option<&Arc<Instance>> {
        self.instance.running()
    }
}

impl Provider for Edge {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn check(&self) -> Result<(), Error> {
        self.instance.check().map_err(belongs_to_the_parent)
    }

    fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    fn port(&self) -> PortAttributes {
        interfaces().map_or_else(|_| self.places.port(), |host| self.places.now(&host).port())
    }

    fn counters(&self) -> PortCounters {
        let running = self.running().filter(|instance| instance.check().is_ok());
        running.map_or_else(PortCounters::default, |instance| instance.counters())
    }

    fn path_mtu(&self) -> u32 {
        self.running().map_or(&self.places, |instance| instance.places()).port().active_mtu
    }

    fn gids(&self) -> Vec<GidEntry> {
        self.running().map_or(&self.places, |instance| instance.places()).gids()
    }

    fn memory(&self) -> Result<Arc<MemoryTable>, Error> {
        Ok(Arc::clone(self.instance()?.runtime().memory()))
    }

    fn reserve_number(&self, _service: QueuePairType) -> Result<u32, Error> {
        let number = self.instance()?.numbers().reserve();
        number.ok_or_else(|| Error::NoRoom(format!("all {QUEUE_PAIRS_MAX} queue pairs are in use")))
    }

    fn release_number(&self, number: u32) {
        if self.check().is_ok()
            && let Some(instance) = self.running()
        {
            instance.numbers().release(number);
        }
    }

    fn wire(&self, queue_pair: &Arc<QueuePair>) -> Result<Box<dyn Wire>, Error> {
        let instance = self.instance()?;
        if queue_pair.service() == QueuePairType::Datagram {
            return datagrams::wire(instance, queue_pair);
        }
        let source = QueuePairSource::new(queue_pair, queue_pair.domain()?, instance.table().due());
        Ok(Box::new(ConnectedWire::new(instance, source)))
    }

    fn receives_posted(&self, receives: &Arc<SharedReceives>) {
        if let Some(instance) = self.running() {
            instance.receives_posted(receives);
        }
    }

    fn arm_limit(&self, receives: &Arc<SharedReceives>, limit: u32) -> Result<bool, Error> {
        self.instance()?.arm_limit(receives, limit)
    }

    fn drive(&self) {
        self.instance.drive(|instance| instance.check().is_ok());
    }

    fn send_deferred(&self) {
        self.instance.ring_deferred();
    }

    fn wait(&self, ready: &mut dyn FnMut() -> bool) {
        if self.instance().is_ok() {
            self.instance.wait(WAIT_MAX, |instance| instance.check().is_ok(), ready);
        }
    }

    fn wake(&self) {
        self.instance.wake_waiting();
    }

    fn serve_alone(&self) {
        self.instance.leave_links();
    }
}

impl ConnectionManager for Edge {
    fn attributes(&self) -> ManagerAttributes {
        ManagerAttributes::INFINIBAND
    }

    fn private_data_limits(&self, space: PortSpace, service: QueuePairType) -> PrivateDataLimits {
        PrivateDataLimits::infiniband(space, service)
    }

    fn carries(&self, _space: PortSpace) -> bool {
        true
    }

    fn claim(&self, at: SocketAddr, _space: PortSpace) -> Result<Box<dyn PortClaim>, Error> {
        self.ports.claim(at)
    }

    fn listen(
        &self,
        claim: &dyn PortClaim,
        space: PortSpace,
        listener: Arc<dyn Listener>,
    ) -> Result<Box<dyn Listening>, Error> {
        let home = self.instance()?;
        let at = claim.address();
        let listen = || home.manager().listen_at((home, self.is_first), at, space, listener);
        self.ports.listen(at, listen)
    }

    fn connect(
        &self,
        route: Route,
        request: &Request,
        queue_pair: Option<&Arc<QueuePair>>,
        caller: Arc<dyn Caller>,
    ) -> Result<Arc<dyn Exchange>, Error> {
        let home = self.instance()?;
        home.manager().connect_to(home, route, request, queue_pair, caller)
    }

    fn has_address(&self, address: IpAddr) -> bool {
        self.places.addresses.iter().any(|known| known.ip == address)
    }
}

fn belongs_to_the_parent(_: Forked) -> Error {
    let what =
        "the device belongs to the parent process; a forked child must open the device again";
    Error::NoDevice(what.into())
}

/// Returns the limits and properties of a device.
fn attributes(
    settings: &Settings,
    places: &Places,
    host: &[Interface],
    index: u8,
) -> DeviceAttributes {
    DeviceAttributes {
        name: settings.device.clone(),
        node_guid: node_guid(places, host, index),
        vendor: Vendor::NONE,
        services: Services::of(Transport::InfiniBand),
        on_demand_paging: OnDemandPaging::Supported,
        message_bytes_max: OPERATION_BYTES_MAX,
        queue_pairs_max: QUEUE_PAIRS_MAX,
        work_requests_max: WORK_REQUESTS_MAX,
        pieces_max: PIECES_MAX as u32,
        read_pieces_max: PIECES_MAX as u32,
        inline_max: INLINE_MAX,
        completion_queues_max: 1 << 16,
        completions_max: COMPLETIONS_MAX as u32,
        regions_max: TableLimits::REGIONS_MAX,
        windows_max: 1 << 16,
        region_bytes_max: 1 << 46,
        domains_max: DOMAINS_MAX,
        read_depth_max: READ_DEPTH,
        shared_queues_max: 1 << 14,
        shared_receives_max: (SHARED_RECEIVES_MAX as u32).min(WORK_REQUESTS_MAX),
        address_handles_max: 1 << 16,
        groups_max: GROUPS_MAX,
        strictness: settings.strictness,
    }
}

/// Returns the node GUID: a MAC address, extended to 64 bits as in RFC 4291.
///
/// The MAC address is that of an interface of the device. If no interface of the device has a MAC
/// address, it is that of another interface of the host. If no interface of the host has one, it is
/// a fixed, locally administered address. The devices of a process differ in the last of the two
/// bytes that extend the address.
fn node_guid(places: &Places, host: &[Interface], index: u8) -> [u8; 8] {
    let is_own = |interface: &&Interface| {
        places.addresses.iter().any(|address| address.interface == interface.index)
    };
    let of_others = host.iter().filter(|interface| !is_own(interface));
    let station = host
        .iter()
        .filter(is_own)
        .chain(of_others)
        .filter(|interface| !interface.is_loopback)
        .find_map(|interface| interface.mac.filter(|mac| *mac != [0; 6]));
    let [first, rest @ .., third, second, last] = station.unwrap_or([2, 0, 0, 0, 0, 1]);
    let [of_maker, maker] = rest;
    [first ^ 2, of_maker, maker, 0xff, 0xfe - index, third, second, last]
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use verbs::{
        AddressVectorAttributes, AsyncEventKind, AttributeMask, Modification, QueuePairAttributes,
        QueuePairInit, QueuePairLimits, QueuePairState, SendFlags, SendOpcode, SendRequest,
    };

    use super::*;

    fn loopback() -> Arc<Edge> {
        let links = LinkSpec::parse_list("udp:127.0.0.1").expect("it means something");
        let settings = Settings { links, ..Settings::default() };
        let host = interfaces().expect("the kernel tells");
        let places = Places::of(&settings.links, &host).expect("it has loopback");
        Arc::new(Edge {
            attributes: attributes(&settings, &places, &host, 0),
            places,
            is_first: true,
            capture: SharedCapture::default(),
            ports: Arc::default(),
            settings,
            registry: Registry::new(),
            instance: OnDemand::default(),
            failed_starts: FailedStarts::default(),
        })
    }

    /// Moves a queue pair to RTS. The number of its peer is one of this device's numbers, but no
    /// queue pair has it.
    fn be_ready(queue_pair: &QueuePair) {
        let gid = queue_pair.context().query_gid(1, 0).expect("the first GID").gid;
        let path = AddressVectorAttributes { gid, is_global: true, port: 1, ..Default::default() };
        let attributes = QueuePairAttributes {
            path_mtu: 1024,
            destination: queue_pair.number() + 1000,
            path,
            timeout: 20,
            port: 1,
            ..QueuePairAttributes::default()
        };
        for (state, mask) in [
            (QueuePairState::Init, 0x39),
            (QueuePairState::ReadyToReceive, 0x12_9181),
            (QueuePairState::ReadyToSend, 0x1_2e01),
        ] {
            let mask = AttributeMask(mask);
            let current = queue_pair.state();
            let change = Modification { mask, state, current, drained_event: false, attributes };
            queue_pair.modify(&change).expect("a transition");
        }
    }

    #[test]
    fn queue_pairs_without_a_peer_are_not_polled_in_each_turn() {
        let edge = loopback();
        let context = Device::new(Arc::clone(&edge) as Arc<dyn Provider>).open().expect("it opens");
        let queue = context.create_completion_queue(64, None).expect("a queue");
        let domain = context.allocate_domain().expect("a domain");
        let limits = QueuePairLimits { sends: 1, receives: 1, ..QueuePairLimits::default() };
        let init = QueuePairInit {
            service: QueuePairType::Reliable,
            send_queue: Arc::clone(&queue),
            receive_queue: queue,
            shared_queue: None,
            limits,
            signals_all: true,
        };
        let send = SendRequest {
            id: 1,
            opcode: SendOpcode::Send { immediate: None },
            flags: SendFlags::default(),
            pieces: &[],
            inline: None,
            to: None,
        };
        for _ in 0..50 {
            let queue_pair = domain.create_queue_pair(&init).expect("a queue pair");
            be_ready(&queue_pair);
            queue_pair.post_send(&[send]).expect("it is posted");
        }
        let runtime = edge.instance().expect("it starts").runtime();
        for _ in 0..1000 {
            runtime.poll().expect("not forked");
        }
        let counters = runtime.counters().expect("not forked");
        assert!(counters.turns_with_work >= 50, "their peers are looked for");
        assert_eq!(counters.asked_again, 0);
    }

    #[test]
    fn a_panic_inside_the_engine_becomes_an_event_and_an_error() {
        let edge = loopback();
        let context = Device::new(Arc::clone(&edge) as Arc<dyn Provider>).open().expect("it opens");
        let queue = context.create_completion_queue(16, None).expect("a queue");
        let instance = Arc::clone(edge.instance().expect("it starts"));
        let fails = || instance.with_table(|_, _, _, _| panic!("on purpose"));
        assert!(catch_unwind(AssertUnwindSafe(fails)).is_err() || !instance.runtime().is_sound());
        for _ in 0..3 {
            assert_eq!(queue.poll(&mut []), Ok(0));
            let failed = instance.with_table(|_, _, _, _| ());
            assert!(matches!(failed, Err(Error::Failed(_))), "{failed:?}");
        }
        assert_eq!(context.get_event().expect("there is one").kind, AsyncEventKind::DeviceFatal);
    }
}
