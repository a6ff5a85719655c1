//! The device.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use iwarp::{Config, Counters, INLINE_BYTES_MAX, MESSAGE_BYTES_MAX, PIECES_MAX};
use link::host::{Interface, interfaces};
use link::tcp::TcpPort;
use mem::{MemoryTable, TableLimits};
use rdma_cm::{
    Caller, ConnectionManager, Exchange, Listener, Listening, ManagedDevice, ManagerAttributes,
    PortClaim, PortSpace, PrivateDataLimits, Request, Route,
};
use runtime::{Forked, OnDemand};
use verbs::{
    Device, DeviceAttributes, Error, FailedStarts, Gid, GidEntry, GidKind, OnDemandPaging,
    PortAttributes, PortCounters, PortState, Provider, QueuePair, QueuePairType, Registry,
    Services, Transport, Vendor, WAIT_MAX, Wire,
};
use work::{COMPLETIONS_MAX, SHARED_RECEIVES_MAX, SharedReceives};

use crate::entry::Asking;
use crate::exchange::{StreamExchange, StreamListening};
use crate::failure::system;
use crate::instance::Instance;
use crate::limits::{DOMAINS_MAX, QUEUE_PAIRS_MAX, READ_DEPTH, WORK_REQUESTS_MAX, stream_config};
use crate::settings::Settings;
use crate::streams::Home;
use crate::wire::StreamWire;

/// Returns the iWARP device of this process, and does not start it. A forked child cannot use the
/// device of its parent, so it must call this function itself.
///
/// # Errors
/// Returns the errors of listing the host's interfaces.
pub fn device(settings: Settings) -> Result<ManagedDevice, Error> {
    let host = interfaces().map_err(Error::of_cause)?;
    let station = station(&host);
    let iwarp = Arc::new(Iwarp {
        attributes: attributes(&settings, station),
        settings,
        station,
        registry: Registry::new(),
        instance: OnDemand::default(),
        failed_starts: FailedStarts::default(),
    });
    Ok(ManagedDevice { device: Device::new(iwarp.clone()), manager: iwarp })
}

/// An iWARP device of this process.
struct Iwarp {
    settings: Settings,
    attributes: DeviceAttributes,
    station: [u8; 6],
    registry: Arc<Registry>,
    instance: OnDemand<Instance>,
    failed_starts: FailedStarts,
}

impl Iwarp {
    /// Returns the instance that runs the device. Starts it if necessary.
    fn instance(&self) -> Result<&Arc<Instance>, Error> {
        self.instance.get_or_start(of_the_parent, || {
            let settings = &self.settings;
            let instance = Instance::start(settings, &self.registry).inspect_err(|error| {
                self.failed_starts.note(settings.log, &settings.name, error);
            })?;
            let home: Arc<dyn Home> = Arc::clone(&instance) as _;
            let home = Arc::downgrade(&home);
            instance.with_streams(move |streams, _, _| streams.settle(home))?;
            Ok(instance)
        })
    }

    fn running(&self) -> Option<&Arc<Instance>> {
        self.instance.running()
    }
}

impl Provider for Iwarp {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn check(&self) -> Result<(), Error> {
        self.instance.check().map_err(of_the_parent)
    }

    fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    fn port(&self) -> PortAttributes {
        let host = interfaces().unwrap_or_default();
        let outside = host.iter().filter(|interface| !interface.is_loopback);
        let running = outside.filter(|interface| interface.is_running);
        let rate = running.clone().filter_map(|interface| interface.rate).max();
        let state = if running.count() > 0 || !host.is_empty() {
            PortState::Active
        } else {
            PortState::Down
        };
        PortAttributes { state, active_mtu: PATH_MTU, gids: 1, rate }
    }

    fn counters(&self) -> PortCounters {
        let running = self.running().filter(|instance| instance.check().is_ok());
        let counted =
            running.map(|instance| instance.with_streams(|streams, _, _| streams.counters()));
        let Counters { fpdus_sent, fpdus_received, bytes_sent, bytes_received, nudges } =
            counted.and_then(Result::ok).unwrap_or_default();
        PortCounters {
            sent_bytes: bytes_sent,
            received_bytes: bytes_received,
            sent_frames: fpdus_sent,
            received_frames: fpdus_received,
            hardware: vec![("nudges", nudges)],
            ..PortCounters::default()
        }
    }

    fn path_mtu(&self) -> u32 {
        PATH_MTU
    }

    fn gids(&self) -> Vec<GidEntry> {
        let (gid, kind) = (Gid::of_station(self.station), GidKind::Station);
        vec![GidEntry { gid, kind, index: 0, interface: 0 }]
    }

    fn memory(&self) -> Result<Arc<MemoryTable>, Error> {
        Ok(Arc::clone(self.instance()?.runtime().memory()))
    }

    fn reserve_number(&self, _service: QueuePairType) -> Result<u32, Error> {
        let number = self.instance()?.reserve_number();
        number.ok_or_else(|| Error::NoRoom(format!("all {QUEUE_PAIRS_MAX} queue pairs are in use")))
    }

    fn release_number(&self, number: u32) {
        if self.check().is_ok()
            && let Some(instance) = self.running()
        {
            instance.release_number(number);
        }
    }

    fn wire(&self, queue_pair: &Arc<QueuePair>) -> Result<Box<dyn Wire>, Error> {
        let instance = self.instance()?;
        let source = instance.enter(queue_pair)?;
        Ok(Box::new(StreamWire::new(instance, &source)))
    }

    /// Does nothing: no connection waits for receives. A message without a receive ends its
    /// connection.
    fn receives_posted(&self, _receives: &Arc<SharedReceives>) {}

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

/// A TCP port that ids have claimed.
struct ClaimedPort(Arc<TcpPort>);

impl PortClaim for ClaimedPort {
    fn address(&self) -> SocketAddr {
        self.0.address()
    }
}

impl ConnectionManager for Iwarp {
    fn attributes(&self) -> ManagerAttributes {
        ManagerAttributes::IWARP
    }

    fn private_data_limits(&self, _: PortSpace, _: QueuePairType) -> PrivateDataLimits {
        PrivateDataLimits::IWARP
    }

    fn carries(&self, space: PortSpace) -> bool {
        matches!(space, PortSpace::Tcp)
    }

    fn claim(&self, at: SocketAddr, _space: PortSpace) -> Result<Box<dyn PortClaim>, Error> {
        let port = TcpPort::reserve(at)
            .map_err(|error| system(format!("reserving TCP port {at}"), &error))?;
        Ok(Box::new(ClaimedPort(Arc::new(port))))
    }

    fn listen(
        &self,
        claim: &dyn PortClaim,
        _space: PortSpace,
        listener: Arc<dyn Listener>,
    ) -> Result<Box<dyn Listening>, Error> {
        let instance = self.instance()?;
        let at = claim.address();
        // The claim keeps the port if the id stops to listen, and the id needs a socket of its own.
        let port = TcpPort::reserve(at)
            .map_err(|error| system(format!("reserving TCP port {at}"), &error))?;
        let listening = instance
            .with_streams(move |streams, _, _| streams.listen(Arc::new(port), listener))?
            .map_err(|error| system(format!("listening at TCP port {at}"), &error))?;
        Ok(Box::new(StreamListening { instance: Arc::clone(instance), port: listening }))
    }

    fn connect(
        &self,
        route: Route,
        request: &Request,
        queue_pair: Option<&Arc<QueuePair>>,
        caller: Arc<dyn Caller>,
    ) -> Result<Arc<dyn Exchange>, Error> {
        let instance = self.instance()?;
        let queue_pair =
            queue_pair.ok_or_else(|| Error::Invalid("iWARP connects a queue pair".into()))?;
        let source = instance.source_of(queue_pair)?;
        let config = Config {
            ird: request.end.responder_resources.into(),
            ord: request.end.initiator_depth.into(),
            ..stream_config(&self.settings)
        };
        let from = SocketAddr::new(route.from.ip(), 0);
        let (to, private_data) = (route.to, request.private_data.clone());
        let asking = Asking { from, to, config, private_data, tries: 0 };
        let stream = instance
            .with_streams(move |streams, _, _| streams.connect(asking, source, caller))?
            .map_err(|error| system("watching a TCP socket".into(), &error))?;
        Ok(Arc::new(StreamExchange { instance: Arc::clone(instance), stream }))
    }

    fn has_address(&self, address: IpAddr) -> bool {
        let has = |interface: &Interface| interface.addresses.iter().any(|own| own.ip == address);
        interfaces().is_ok_and(|host| host.iter().any(has))
    }

    fn binds_loopback(&self, _address: IpAddr) -> bool {
        false
    }
}

fn of_the_parent(_: Forked) -> Error {
    let what =
        "the device belongs to the parent process; a forked child must open the device again";
    Error::NoDevice(what.into())
}

/// Returns the station address of the first interface that has one, or a locally administered one.
fn station(host: &[Interface]) -> [u8; 6] {
    let outside = host.iter().filter(|interface| !interface.is_loopback);
    outside
        .filter_map(|interface| interface.mac)
        .find(|mac| *mac != [0; 6])
        .unwrap_or([2, 0, 0, 0, 0, 2])
}

/// Returns the node GUID: the station address, and zeros after it, as siw has it.
fn node_guid(station: [u8; 6]) -> [u8; 8] {
    let mut guid = [0; 8];
    for (place, byte) in guid.iter_mut().zip(station) {
        *place = byte;
    }
    guid
}

/// Returns the limits and properties of the device.
fn attributes(settings: &Settings, station: [u8; 6]) -> DeviceAttributes {
    DeviceAttributes {
        name: settings.name.clone(),
        node_guid: node_guid(station),
        vendor: Vendor::NONE,
        services: Services::of(Transport::Iwarp),
        on_demand_paging: OnDemandPaging::Unsupported,
        message_bytes_max: MESSAGE_BYTES_MAX,
        queue_pairs_max: QUEUE_PAIRS_MAX,
        work_requests_max: WORK_REQUESTS_MAX,
        pieces_max: PIECES_MAX as u32,
        read_pieces_max: PIECES_MAX as u32,
        inline_max: INLINE_BYTES_MAX as u32,
        completion_queues_max: 1 << 16,
        completions_max: COMPLETIONS_MAX as u32,
        regions_max: TableLimits::REGIONS_MAX,
        windows_max: 1 << 16,
        region_bytes_max: 1 << 46,
        domains_max: DOMAINS_MAX,
        read_depth_max: READ_DEPTH,
        shared_queues_max: 1 << 14,
        shared_receives_max: (SHARED_RECEIVES_MAX as u32).min(WORK_REQUESTS_MAX),
        address_handles_max: 0,
        groups_max: 0,
        strictness: settings.strictness,
    }
}

/// Path MTU that the port reports: siw reports the same for Ethernet.
const PATH_MTU: u32 = 1024;
