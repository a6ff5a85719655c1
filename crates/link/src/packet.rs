//! Raw Ethernet frames with our own `EtherType`, through packet sockets.

pub(crate) mod bare;
mod config;
mod discovery;
mod error;
mod filter;
mod neighbours;
mod ring;
mod socket;
mod transmit;

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use delivery::{Evidence, Instant, LinkCaps, LinkEvent, RxFrame, TxBatch};
use mem::Payload;
use wire_edge::{ENVELOPE_BYTES, EnvelopeKind, PeerAddr};

use self::ring::ReceiveRing;
use self::transmit::{FRAMES_MAX, Transmitter};
use crate::clock::ReceiveClock;
use crate::ethernet::EthernetHeader;
use crate::ethernet::{
    AnswerLimit, Arrival, ETHERTYPE_MIN, ETHERTYPE_VLAN, FRAME_BYTES_SAFE, Framing, PortClaim,
    Refused, Station, VLAN_MAX,
};
use crate::interface::{ASK_NS, Interface, Watch, request_socket};
use crate::payload::PayloadCopier;
use crate::refusal::Refusals;
use crate::udp::PayloadUnmapped;
use crate::{Link, LinkStatistics, OnFrame, WaitFds, check_frame_bytes};

pub use self::config::PacketConfig;
pub use self::discovery::discover;
pub use self::error::{Names, PacketError};
pub use self::neighbours::resolve;

/// One packet socket on one interface, for one endpoint and any number of peers.
///
/// The link receives from a ring in shared memory: a poll reads one word and needs no system call.
/// It sends many frames with one system call. It adapts to changes of its interface: to a new MTU
/// or address, to the loss of the carrier, and to an interface that is deleted and created again
/// under the same name.
///
/// Peers know the link by the address of its interface. If this address changes, the link reports
/// the new address by [`LinkEvent::Changed`]. Until peers know the new address, the frames that
/// they send are lost.
#[derive(Debug)]
pub struct PacketLink {
    config: PacketConfig,
    framing: Framing,
    interface: Interface,
    /// Prevents other endpoints from using the port. When the interface is deleted, this becomes
    /// `None`, until the link claims the port on a new interface.
    claim: Option<PortClaim>,
    port: Port,
    caps: LinkCaps,
    clock: ReceiveClock,
    answers: AnswerLimit,
    /// Socket for interface requests, in the network namespace in which the link was created.
    requests: OwnedFd,
    watch: Watch,
    refusals: Refusals,
    /// The return value of [`Link::doubtful`].
    doubtful: usize,
    statistics: LinkStatistics,
    kernel_drops: Cell<u64>,
}

/// State that is created again in two cases: the interface was created again, or it carries larger
/// frames than before.
#[derive(Debug)]
pub(crate) struct Port {
    pub(crate) socket: OwnedFd,
    pub(crate) ring: ReceiveRing,
    transmitter: Transmitter,
    /// The interface to which the socket is bound.
    interface_index: u32,
    /// Size of the largest frame that fits into a slot of the ring and of the transmitter, in
    /// bytes.
    frame_bytes_max: u16,
}

impl PacketLink {
    /// Opens a link on the interface that `config` names.
    ///
    /// # Errors
    /// Returns [`PacketError`]; each variant names one cause.
    pub fn open(config: &PacketConfig) -> Result<Self, PacketError> {
        let watch = Watch::new();
        let (interface, station) = usable(config)?;
        let claim = claim(config, &interface)?;
        let (ethertype, vlan) = (config.ethertype, config.vlan);
        let framing = Framing { station, ethertype, vlan, port: claim.port() };
        let failed = |attempt| move |source| PacketError::new(&config.interface, attempt, source);
        let port = Port::open(config, &framing, &interface).map_err(failed(SET_UP))?;
        let mut link = Self {
            caps: caps(config, &framing, &interface, &port),
            clock: ReceiveClock::new(),
            answers: AnswerLimit::new(),
            requests: request_socket().map_err(failed("open a socket for requests"))?,
            watch,
            refusals: Refusals::default(),
            doubtful: 0,
            statistics: LinkStatistics::default(),
            kernel_drops: Cell::new(0),
            claim: Some(claim),
            config: config.clone(),
            framing,
            interface,
            port,
        };
        link.watch.report(!link.interface.is_running, false, link.caps);
        Ok(link)
    }

    /// Returns the address of the interface, and the port on it.
    pub const fn local(&self) -> (Station, u16) {
        (self.framing.station, self.framing.port)
    }

    /// Queries the interface and adapts to its changes.
    #[cold]
    fn check_interface(&mut self) {
        // A change of the interface also sets the socket's error. If the error is not read, the
        // socket stays readable.
        socket::take_error(self.port.socket.as_fd());
        let seen = self.interface.refreshed(self.requests.as_fd());
        let known = std::mem::replace(&mut self.interface, seen);
        let mut changed = known.mtu_bytes != self.interface.mtu_bytes;
        if let Some(station) = self.interface.station
            && station != self.framing.station
        {
            self.framing.station = station;
            // Set a new filter, because a filter for the old address would drop every frame.
            changed |= socket::set_filter(self.port.socket.as_fd(), &self.framing).is_ok();
        }
        // Compare with the bound interface and not with the last query, because the interface may
        // have been down at the last query.
        let is_remade = self.port.interface_index != self.interface.index;
        let carried = self.interface.raw_frame_bytes(self.config.frame_bytes_max);
        let is_larger = carried > self.port.frame_bytes_max;
        let is_ready = !is_remade && !is_larger || self.reopen(is_remade);
        self.caps = caps(&self.config, &self.framing, &self.interface, &self.port);
        let is_usable = u32::from(self.caps.frame_bytes_max) >= FRAME_BYTES_MIN;
        let is_down = !self.interface.is_running || !is_ready || !is_usable;
        self.watch.report(is_down, changed || is_remade || is_larger, self.caps);
    }

    /// Creates socket, ring and slots again. If the interface is a new one, also claims the port.
    /// Returns whether the link can be used.
    #[cold]
    fn reopen(&mut self, is_remade: bool) -> bool {
        if !self.interface.is_up {
            // The next notification about the interface causes another attempt.
            return false;
        }
        if is_remade {
            self.claim = None;
            let Framing { ethertype, vlan, port, .. } = self.framing;
            self.claim = PortClaim::take(self.interface.index, ethertype, vlan, port).ok();
            if self.claim.is_none() {
                return false;
            }
        }
        self.count_kernel_drops();
        if let Ok(port) = Port::open(&self.config, &self.framing, &self.interface) {
            self.port = port;
            self.watch.push(LinkEvent::Descriptors);
            return true;
        }
        // If the interface is the same, the old socket still works, but its slots limit frames to
        // the old size.
        !is_remade
    }

    fn count_kernel_drops(&self) {
        let drops = socket::take_drops(self.port.socket.as_fd());
        self.kernel_drops.set(self.kernel_drops.get() + u64::from(drops));
    }

    //= protocol.md: envelope.5
    /// Answers a Discover request with a frame of kind Here.
    #[cold]
    fn answer(&mut self, now: Instant, to: (Station, u16)) {
        if self.answers.permits(now) {
            self.port.transmitter.build_empty(&self.framing, EnvelopeKind::Here, to);
            self.statistics.send_calls += 1;
            // Ignore errors, because the requesting station retries.
            let _ = self.port.transmitter.send(self.port.socket.as_fd(), 0);
        }
    }

    /// Passes the frames that were built to the kernel. Returns the number of frames that were sent
    /// or lost.
    #[inline]
    fn send_built(&mut self, to: PeerAddr) -> usize {
        let described = self.port.transmitter.described();
        let mut done = 0;
        while done < described {
            self.statistics.send_calls += 1;
            match self.port.transmitter.send(self.port.socket.as_fd(), done) {
                Ok(frames) => {
                    self.refusals.on_taken();
                    self.note_sent(done, frames);
                    done += frames;
                }
                Err(error) => match self.on_send_error(&error, to, described - done) {
                    Some(lost) => done += lost,
                    None => break,
                },
            }
        }
        done
    }

    #[inline]
    fn note_sent(&mut self, first: usize, frames: usize) {
        let bytes: usize =
            (first..first + frames).map(|index| self.port.transmitter.bytes_of(index)).sum();
        let headers = frames * self.framing.header_bytes();
        self.statistics.send_messages += frames as u64;
        self.statistics.send_frames += frames as u64;
        self.statistics.send_bytes += bytes.saturating_sub(headers) as u64;
    }

    /// Handles a failed send of `waiting` frames. Returns the number of frames that are lost.
    /// Returns `None` if the kernel has no room, so the frames must wait.
    #[cold]
    fn on_send_error(&mut self, error: &io::Error, to: PeerAddr, waiting: usize) -> Option<usize> {
        match error.raw_os_error() {
            Some(libc::EINTR) => Some(0),
            Some(libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM) => {
                self.statistics.send_full += 1;
                let is_dropped = error.raw_os_error() == Some(libc::ENOBUFS);
                let lost = (is_dropped && self.refusals.is_lost()).then_some(1);
                let is_left = error.raw_os_error() == Some(libc::EAGAIN);
                self.doubtful = usize::from(lost.is_none() && !is_left);
                lost
            }
            Some(libc::EMSGSIZE) => {
                self.statistics.send_too_big += 1;
                self.check_interface();
                self.watch.push(LinkEvent::TooBig(to, self.caps.frame_bytes_max, Evidence::Local));
                Some(1)
            }
            Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV) => {
                self.statistics.send_unreachable += waiting as u64;
                self.watch.suspect();
                Some(waiting)
            }
            _ => {
                self.statistics.send_unreachable += 1;
                self.watch.suspect();
                Some(1)
            }
        }
    }
}

impl Link for PacketLink {
    fn caps(&self) -> LinkCaps {
        self.caps
    }

    fn doubtful(&self) -> usize {
        self.doubtful
    }

    fn receive(&mut self, now: Instant, limit: usize, on_frame: OnFrame<'_>) -> io::Result<usize> {
        // While the link is down, also query the interface at intervals. The cause may disappear
        // without a notification.
        let ask_ns = if self.watch.is_down() { ASK_NS } else { u64::MAX };
        if self.watch.is_due(now, ask_ns) {
            self.check_interface();
        }
        self.refusals.set_time(now);
        let (mut delivered, mut looked) = (0, 0);
        let (mut is_losing, mut asked) = (false, None);
        let Self { port, framing, clock, statistics, .. } = self;
        while delivered < limit && looked < port.ring.slots() {
            let Some(received) = port.ring.peek() else { break };
            if looked == 0 {
                clock.refresh(now);
            }
            looked += 1;
            is_losing |= received.is_losing;
            let arrival = if received.is_truncated {
                Err(Refused::Truncated)
            } else {
                framing.check(received.bytes, received.tag)
            };
            match arrival {
                Ok(Arrival::Frame { from, bytes }) => {
                    delivered += 1;
                    statistics.receive_bytes += bytes.len() as u64;
                    let received_at = clock.instant(received.wall_ns, now);
                    on_frame(RxFrame {
                        bytes,
                        outside: Payload::EMPTY,
                        received_at,
                        congestion_experienced: false,
                        from,
                    });
                }
                Ok(Arrival::Discover { from }) => asked = Some(from),
                // This endpoint sends no Discover requests.
                Ok(Arrival::Here { .. }) => Refused::NotOurs.count(statistics),
                Err(refused) => refused.count(statistics),
            }
            port.ring.release();
        }
        statistics.receive_messages += looked as u64;
        statistics.receive_frames += delivered as u64;
        if is_losing {
            self.count_kernel_drops();
        }
        if let Some(station) = asked {
            self.answer(now, station);
        }
        Ok(delivered)
    }

    fn send(&mut self, batch: &TxBatch) -> io::Result<usize> {
        let Some(to) = batch.to().to_mac() else {
            self.statistics.send_unreachable += batch.len() as u64;
            return Ok(batch.len());
        };
        self.doubtful = 0;
        let mut sent = 0;
        while sent < batch.len() {
            let built = self.port.transmitter.build(&self.framing, to, batch, sent);
            if built.too_big > 0 {
                self.statistics.send_too_big += built.too_big as u64;
                self.watch.push(LinkEvent::TooBig(
                    batch.to(),
                    self.caps.frame_bytes_max,
                    Evidence::Local,
                ));
            }
            let described = self.port.transmitter.described();
            let done = self.send_built(batch.to());
            if done < described {
                return Ok(sent + self.port.transmitter.frames_before(done));
            }
            sent += built.frames;
            if let Some(failed) = built.failed {
                return match failed.source.raw_os_error() {
                    Some(libc::EFAULT) => Err(PayloadUnmapped { frame: sent }.into()),
                    _ => Err(failed.source),
                };
            }
        }
        Ok(sent)
    }

    fn poll_event(&mut self) -> Option<LinkEvent> {
        self.watch.pop()
    }

    fn wait_fds(&self) -> WaitFds<'_> {
        [Some(self.port.socket.as_fd()), self.watch.news()]
    }

    fn statistics(&self) -> LinkStatistics {
        self.count_kernel_drops();
        LinkStatistics {
            receive_kernel_drops: self.kernel_drops.get(),
            events_dropped: self.watch.events_dropped(),
            ..self.statistics
        }
    }

    fn ethernet_header(&self) -> Option<EthernetHeader> {
        Some(self.framing.ethernet_header())
    }
}

impl Port {
    fn open(config: &PacketConfig, framing: &Framing, interface: &Interface) -> io::Result<Self> {
        let frame_bytes_max = interface.raw_frame_bytes(config.frame_bytes_max);
        let socket = socket::prepare(framing, config.send_buffer_bytes, config.qdisc_bypass)?;
        let ring = ReceiveRing::new(socket.as_fd(), config.receive_ring_bytes, frame_bytes_max)?;
        socket::bind(socket.as_fd(), interface.index, framing)?;
        let transmitter = Transmitter::new(frame_bytes_max);
        Ok(Self { socket, ring, transmitter, interface_index: interface.index, frame_bytes_max })
    }
}

/// Returns the configured interface and its address, if a link can work there.
fn usable(config: &PacketConfig) -> Result<(Interface, Station), PacketError> {
    let name = config.interface.as_str();
    check_numbers(config)?;
    PayloadCopier::probe().map_err(|source| PacketError::NoFaultSafeCopies { source })?;
    let interface = Interface::named(name).map_err(|e| PacketError::of_interface(name, e))?;
    let Some(station) = interface.station else {
        return Err(PacketError::NotEthernet { interface: name.to_string() });
    };
    if !interface.is_up {
        return Err(PacketError::InterfaceDown { interface: name.to_string() });
    }
    let least_bytes = FRAME_BYTES_MIN + ENVELOPE_BYTES as u32;
    if interface.mtu_bytes < least_bytes {
        let (interface, mtu_bytes) = (name.to_string(), interface.mtu_bytes);
        return Err(PacketError::MtuTooSmall { interface, mtu_bytes, least_bytes });
    }
    // Try to open a packet socket before the port is claimed. If the process may not open packet
    // sockets, the error then names this cause.
    match socket::open() {
        Ok(_) => Ok((interface, station)),
        Err(source) => Err(PacketError::new(name, "open a packet socket", source)),
    }
}

/// Claims the configured port. If it is 0, claims a free port.
fn claim(config: &PacketConfig, interface: &Interface) -> Result<PortClaim, PacketError> {
    let PacketConfig { ethertype, vlan, port, .. } = *config;
    PortClaim::take(interface.index, ethertype, vlan, port).map_err(|source| {
        let interface = config.interface.clone();
        match source.kind() {
            io::ErrorKind::AddrInUse => PacketError::PortTaken { interface, port },
            _ => PacketError::new(&interface, "claim a port", source),
        }
    })
}

fn check_numbers(config: &PacketConfig) -> Result<(), PacketError> {
    check_frame_bytes(config.frame_bytes_max)?;
    if let Some(vlan) = config.vlan
        && !(1..=VLAN_MAX).contains(&vlan)
    {
        return Err(PacketError::Vlan { vlan });
    }
    let ethertype = config.ethertype;
    if ethertype < ETHERTYPE_MIN || ETHERTYPES_OF_HOSTS.contains(&ethertype) {
        return Err(PacketError::Ethertype { ethertype });
    }
    Ok(())
}

fn caps(config: &PacketConfig, framing: &Framing, interface: &Interface, port: &Port) -> LinkCaps {
    let frame_bytes_max =
        interface.raw_frame_bytes(config.frame_bytes_max).min(port.frame_bytes_max);
    let frame_bytes_safe =
        if interface.is_loopback { frame_bytes_max } else { frame_bytes_max.min(FRAME_BYTES_SAFE) };
    let receive_buffer_bytes = port.ring.slots() as u64 * u64::from(frame_bytes_max);
    LinkCaps {
        frame_bytes_max,
        frame_bytes_safe,
        segments: BATCH_FRAMES,
        offloads: false,
        receive_buffer_bytes: u32::try_from(receive_buffer_bytes).unwrap_or(u32::MAX),
        rate: interface.rate(),
        local: PeerAddr::mac(framing.station, framing.port),
    }
}

/// The operation that failed, for error messages.
const SET_UP: &str = "set up a packet socket with its ring";

/// Smallest value, in bytes, of a link's maximum frame size with which the engine accepts the link.
const FRAME_BYTES_MIN: u32 = crate::FRAME_BYTES_MIN as u32;

/// Maximum number of frames in a batch. A batch takes two system calls for copying, and two for
/// sending.
const BATCH_FRAMES: u16 = 2 * FRAMES_MAX as u16;

/// Protocols that the host itself uses: IPv4, ARP, a VLAN tag, IPv6.
const ETHERTYPES_OF_HOSTS: [u16; 4] = [0x0800, 0x0806, ETHERTYPE_VLAN, 0x86dd];
