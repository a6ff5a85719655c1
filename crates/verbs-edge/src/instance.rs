//! The parts of a started device: links, the engine and its threads.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use delivery::{Instant, LINKS_MAX, LinkId};
use engine::{Engine, EngineConfig};
use link::{CaptureOutput, ClaimedSlot, Fault, FaultShares, Link, ShmLink, Slots, UdpConfig};
use links::Opener;
use mem::{MemoryAccess, TableLimits};
use runtime::{Runtime, RuntimeConfig};
use verbs::{
    Error, Gid, Log, LogLevel, PortCounters, QueuePairState, QueuePairType, Registry,
    SharedCapture, WAIT_MAX,
};
use wire_edge::{PeerAddr, QueuePairNumber};
use work::SharedReceives;

use super::addresses::Places;
use super::connection_table::{ConnectionTable, Wanted};
use super::failure::forked;
use super::greeting::{QueuePairPlace, SERVICE};
use super::hooks::TableHooks;
use super::limits::{DOMAINS_MAX, READ_DEPTH};
use super::manager::{self, Manager};
use super::meeting::Expected;
use super::numbers::Numbers;
use super::port::PortWatch;
use super::source::QueuePairSource;
use super::statistics_socket::Statistics;
use super::ways::Ways;
use crate::settings::Settings;

/// A started device.
pub(crate) struct Instance {
    runtime: Runtime,
    /// Addresses of the device. The index of an address is also the number of the address's link.
    places: Places,
    ways: Ways,
    numbers: Mutex<Numbers>,
    table: Arc<ConnectionTable>,
    manager: Arc<Manager>,
    registry: Arc<Registry>,
    /// Whether the failure of the device has been reported.
    has_failed: AtomicBool,
    /// Watches the interfaces as long as the instance exists.
    _port: Option<PortWatch>,
}

impl AsRef<Runtime> for Instance {
    fn as_ref(&self) -> &Runtime {
        &self.runtime
    }
}

impl Instance {
    /// Claims a slot, opens the links and starts the threads. A slot is a UDP port with the queue
    /// pair numbers that belong to it. No other process of the host uses them.
    pub(crate) fn start(
        settings: &Settings,
        places: Places,
        capture: &SharedCapture,
        registry: &Arc<Registry>,
    ) -> Result<Arc<Self>, Error> {
        let slots = match settings.slot_base {
            None => Slots::default(),
            Some(port) => Slots::new(port).ok_or_else(|| {
                Error::Invalid(format!(
                    "ETHERNOT_SLOT_BASE: invalid port {port}: it must be from 1 to {}",
                    0xf000
                ))
            })?,
        };
        let udp = UdpConfig::default();
        let ips: Vec<IpAddr> = places.addresses.iter().map(|address| address.ip).collect();
        let claimed = slots.claim(&ips, random() as u16, &udp).map_err(Error::of_cause)?;
        let ClaimedSlot { slot, links } = claimed;
        let wrapping = Wrapping::new(settings, capture)?;
        let mut all = Vec::new();
        for link in links {
            all.push(wrapping.wrap(Box::new(link))?);
        }
        let opener = Opener { udp, port: 0 };
        for spec in &places.others {
            all.push(
                wrapping.wrap(opener.open_named(&spec.to_string()).map_err(Error::of_cause)?)?,
            );
        }
        // The library injects no faults into shared memory. So the device does not use shared
        // memory if the settings contain faults but no links. Otherwise the frames over shared
        // memory would have no faults.
        let is_plain = !settings.faults.is_any();
        let shares_memory = places.shares_memory && (!settings.links.is_empty() || is_plain);
        if shares_memory {
            match ShmLink::open() {
                Ok(link) => all.push(wrapping.capture(Box::new(link))),
                Err(error) if !settings.links.is_empty() => return Err(Error::of_cause(error)),
                // If the host has no shared memory, the device uses only its other links.
                Err(_) => {}
            }
        }
        if all.len() > LINKS_MAX {
            return Err(Error::Invalid(format!(
                "{} links exceed the maximum of {LINKS_MAX}; name fewer links",
                all.len()
            )));
        }
        let log = Log::open(settings.log, settings.trace.as_deref())?;
        log.note(
            LogLevel::Info,
            format_args!("{}: slot {slot:#05x} at {ips:?}, {} links", settings.device, all.len()),
        );
        let table = Arc::new(ConnectionTable::new(registry, log));
        let statistics = Statistics::listen(settings, &places, registry);
        let manager = Manager::new(&table);
        let hooks = TableHooks {
            table: Arc::clone(&table),
            manager: Arc::clone(&manager),
            statistics: statistics.clone(),
        };
        let runtime =
            Runtime::start(config(settings)?, all, Box::new(hooks)).map_err(Error::of_cause)?;
        if let Some(statistics) = statistics {
            statistics.watch(&runtime);
        }
        let listen = |engine: &mut Engine, _: &MemoryAccess<'_>, _: Instant| {
            engine.listen(SERVICE);
            engine.listen(manager::SERVICE);
        };
        runtime.control(listen).map_err(forked)?;
        let numbers = Mutex::new(Numbers::new(slot, random() as u16));
        let port = PortWatch::start(&places, registry);
        let (ways, registry) = (Ways::new(&places.addresses, slots), Arc::clone(registry));
        let made = Arc::new(Self {
            runtime,
            places,
            ways,
            numbers,
            table,
            manager,
            registry,
            has_failed: AtomicBool::new(false),
            _port: port,
        });
        made.manager.settle(&made);
        Ok(made)
    }

    pub(crate) const fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    pub(crate) const fn places(&self) -> &Places {
        &self.places
    }

    pub(crate) const fn ways(&self) -> &Ways {
        &self.ways
    }

    /// Returns the registry of completion owners.
    pub(crate) const fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    pub(crate) const fn table(&self) -> &Arc<ConnectionTable> {
        &self.table
    }

    pub(crate) const fn manager(&self) -> &Arc<Manager> {
        &self.manager
    }

    /// Returns the queue pair numbers of this process's slot.
    pub(crate) fn numbers(&self) -> MutexGuard<'_, Numbers> {
        self.numbers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Checks that this process has created the device, and that the engine has not panicked. The
    /// first call after a panic raises the event that the device has failed.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.runtime.check_process().map_err(forked)?;
        if self.runtime.is_sound() { Ok(()) } else { Err(self.fail()) }
    }

    #[cold]
    fn fail(&self) -> Error {
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            self.registry.on_device_failed();
        }
        Error::Failed("a thread panicked inside the engine, which is a bug of the library".into())
    }

    /// Calls `work` with the connection table, inside the engine.
    pub(crate) fn with_table<R: Send + 'static>(
        &self,
        work: impl FnOnce(&ConnectionTable, &mut Engine, &MemoryAccess<'_>, Instant) -> R
        + Send
        + 'static,
    ) -> Result<R, Error> {
        self.check()?;
        let table = Arc::clone(&self.table);
        let work = move |engine: &mut Engine, memory: &MemoryAccess<'_>, now| {
            work(&table, engine, memory, now)
        };
        self.runtime.control(work).map_err(forked)
    }

    /// Returns the counters of the links and the engine.
    pub(crate) fn counters(&self) -> PortCounters {
        let mut counters = PortCounters::default();
        // Ignore the error, because a forked child has nothing to count.
        let links = self.runtime.link_addresses().unwrap_or_default();
        for (link, _) in links {
            let Ok(Some(link)) = self.runtime.link_statistics(link) else { continue };
            counters.sent_bytes += link.send_bytes;
            counters.received_bytes += link.receive_bytes;
            counters.sent_frames += link.send_frames;
            counters.received_frames += link.receive_frames;
            counters.send_discards += link.send_too_big + link.send_unreachable;
            counters.send_waits += link.send_full;
            counters.receive_errors += link.receive_discarded
                + link.receive_kernel_drops
                + link.receive_truncated
                + link.receive_checksum_errors;
        }
        let of_engine = self.runtime.control(|engine: &mut Engine, _: &MemoryAccess<'_>, _| {
            engine.counters().iter().map(|(name, value, _)| (name, value)).collect()
        });
        if let Ok(of_engine) = of_engine {
            counters.hardware = of_engine;
        }
        counters
    }

    /// Returns the peer that a queue pair's attributes name, and the route to the peer.
    pub(crate) fn wanted(&self, source: &QueuePairSource) -> Result<Wanted, Error> {
        let queue_pair = source.queue_pair();
        let attributes = queue_pair.attributes();
        let index = attributes.path.source_index;
        let gids = self.places.gids();
        let own = gids.get(usize::from(index)).ok_or_else(|| {
            Error::Invalid(format!("there is no GID {index}: the port has {}", gids.len()))
        })?;
        let peer_gid = attributes.path.gid;
        if !attributes.path.is_global || peer_gid.is_group() || peer_gid == Gid::default() {
            let what = "the path to the peer needs a GID that is not multicast";
            return Err(Error::Invalid(what.into()));
        }
        let is_sending = queue_pair.state() == QueuePairState::ReadyToSend;
        let expected = Expected {
            kind: queue_pair.service(),
            own: QueuePairPlace { number: queue_pair.number(), gid: own.gid },
            peer: QueuePairPlace { number: attributes.destination, gid: peer_gid },
            receive_psn: attributes.receive_psn,
            send_psn: is_sending.then_some(attributes.send_psn),
        };
        debug_assert!(expected.kind != QueuePairType::Datagram, "those have no peer");
        Ok(Wanted { expected, path: self.path_to(index.into(), expected.peer) })
    }

    /// Returns the link and the address for requests to queue pair `peer`.
    fn path_to(&self, index: usize, peer: QueuePairPlace) -> Option<(LinkId, PeerAddr)> {
        let number = QueuePairNumber::new(peer.number)?;
        let number = QueuePairNumber::at(number.slot(), number.index())?;
        self.ways.to(index, peer.gid, number)
    }

    /// Resumes connections that wait for receives of a shared queue.
    pub(crate) fn receives_posted(&self, receives: &Arc<SharedReceives>) {
        let receives = Arc::clone(receives);
        let go_on = move |engine: &mut Engine, memory: &MemoryAccess<'_>, now| {
            engine.on_receives_posted(now, memory, &receives);
        };
        // Ignore errors: in a forked child, no connection waits for receives.
        let _forked = self.check().is_ok() && self.runtime.control(go_on).is_err();
    }

    /// Arms the limit of a shared queue, like [`SharedReceives::arm_limit`].
    pub(crate) fn arm_limit(
        &self,
        receives: &Arc<SharedReceives>,
        limit: u32,
    ) -> Result<bool, Error> {
        self.check()?;
        let receives = Arc::clone(receives);
        self.runtime.control(move |_, _, _| receives.arm_limit(limit)).map_err(forked)
    }

    /// Waits until `ready` returns true, but at most for [`WAIT_MAX`].
    pub(crate) fn wait(&self, ready: &mut dyn FnMut() -> bool) {
        // After a failure of the device, no completion arrives.
        if self.check().is_ok() {
            self.runtime.wait_for_news(WAIT_MAX, ready);
        }
    }
}

/// Layers around a link: injected faults and the capture file.
struct Wrapping {
    faults: FaultShares,
    capture: Option<CaptureOutput>,
}

impl Wrapping {
    fn new(settings: &Settings, capture: &SharedCapture) -> Result<Self, Error> {
        Ok(Self { faults: settings.faults, capture: capture.open()? })
    }

    /// Adds the configured faults to a link. The capture file shows the frames after the faults.
    fn wrap(&self, link: Box<dyn Link>) -> Result<Box<dyn Link>, Error> {
        if !self.faults.is_any() {
            return Ok(self.capture(link));
        }
        let config = self.faults.config(random());
        Ok(self.capture(Box::new(Fault::new(link, config).map_err(Error::of_cause)?)))
    }

    fn capture(&self, link: Box<dyn Link>) -> Box<dyn Link> {
        match &self.capture {
            Some(output) => Box::new(output.capture(link)),
            None => link,
        }
    }
}

/// Returns the runtime configuration of a device.
fn config(settings: &Settings) -> Result<RuntimeConfig, Error> {
    let usual = RuntimeConfig::from_entropy().map_err(Error::of_cause)?;
    Ok(RuntimeConfig {
        engine: EngineConfig::default()
            .requests_max(REQUESTS_MAX)
            .confirm_ns(CONFIRM_NS)
            .read_depth(READ_DEPTH.into()),
        progress_processor: settings.progress_processor,
        handles_max: 1,
        submissions_max: 1,
        regions: TableLimits::default()
            .regions_max(TableLimits::REGIONS_MAX)
            .domains_max(DOMAINS_MAX),
        ..usual
    })
}

/// Returns a random number. Two processes probably get different numbers.
fn random() -> u64 {
    RandomState::new().hash_one(0)
}

/// Maximum number of connection requests that wait until this end accepts or rejects them. A
/// quarter of this number is the maximum for one requesting host, so that one host can send a
/// request to every queue pair of the device. A request uses memory only while it waits.
const REQUESTS_MAX: u32 = 4 * crate::limits::QUEUE_PAIRS_MAX;

/// Time in which peers must confirm connections, in nanoseconds. Requests often wait until a
/// program has named its peer. With 64 processes on two processors, this takes seconds.
const CONFIRM_NS: u64 = 10_000_000_000;
