//! Links through `AF_XDP`. Frames pass through rings in memory that the process shares with the
//! kernel. An XDP (eBPF) program at the driver redirects received frames to these rings.

mod bpf;
mod config;
mod device;
mod error;
mod instruction;
mod live;
mod program;
mod receive;
mod rings;
mod shape;
mod socket;
mod transmit;
pub(crate) mod yardstick;

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::thread;
use std::time::Duration;

use delivery::{Instant, LinkCaps, LinkEvent, RxFrame, TxBatch};
use mem::Payload;
use wire_edge::{ENVELOPE_BYTES, EnvelopeKind, PeerAddr};

use self::config::{RING_FRAMES_MAX, RING_FRAMES_MIN};
use self::live::Live;
use self::receive::Consumer;
use crate::ethernet::{
    AnswerLimit, Arrival, ETHERTYPE_MIN, FRAME_BYTES_SAFE, Framing, PortClaim, Refused, Station,
    VLAN_MAX,
};
use crate::interface::{Interface, RETRY_NS, Watch, request_socket};
use crate::{Link, LinkStatistics, OnFrame, WaitFds, check_frame_bytes};

pub use self::config::{XdpConfig, XdpMode};
pub use self::error::XdpError;

/// A link through one queue of an Ethernet interface, by `AF_XDP`.
///
/// An eBPF program on the interface selects the frames of this endpoint, and passes all other
/// frames to the kernel's network stack. The link passes received frames to the engine without
/// copying them from the memory in which the kernel stored them. To send, the link builds frames in
/// memory that the kernel reads, and copies payload from registered memory once. While frames keep
/// arriving, receiving takes no system call. Sending a batch takes one system call, or none if the
/// driver polls the ring.
///
/// An interface can have only one XDP program, and therefore only one `XdpLink`. When the link is
/// dropped or the process ends in any way, the kernel removes the program.
#[derive(Debug)]
pub struct XdpLink {
    config: XdpConfig,
    framing: Framing,
    claim: Option<PortClaim>,
    interface: Interface,
    /// The open queue. `None` while the interface does not exist or its queue cannot be opened.
    live: Option<Live>,
    watch: Watch,
    requests: OwnedFd,
    caps: LinkCaps,
    /// True if the kernel must still be notified of frames in the transmit ring.
    is_kick_due: bool,
    answers: AnswerLimit,
    statistics: LinkStatistics,
    /// Number of drops that the kernel counted on earlier sockets of this link, which are now
    /// closed.
    drops_before: u64,
}

impl XdpLink {
    /// Opens a link on a queue of an interface.
    ///
    /// # Errors
    /// Returns [`XdpError`]; each variant names one cause.
    pub fn open(config: &XdpConfig) -> Result<Self, XdpError> {
        let watch = Watch::new();
        let (interface, station) = usable(config)?;
        let failed = |attempt| {
            let interface = interface.name();
            move |source| XdpError::Io { attempt, interface, source }
        };
        let claim = claim(config, &interface)?;
        let requests = request_socket().map_err(failed("query"))?;
        let framing = framing(config, station, claim.port());
        let frame_bytes_max = interface.raw_frame_bytes(config.frame_bytes_max);
        let live = open_patiently(config, &interface, &framing, frame_bytes_max)?;
        let caps = LinkCaps {
            frame_bytes_max,
            frame_bytes_safe: frame_bytes_max.min(FRAME_BYTES_SAFE),
            segments: BATCH_FRAMES,
            offloads: false,
            receive_buffer_bytes: live.shape.receive_bytes(),
            rate: interface.rate(),
            local: PeerAddr::mac(station, claim.port()),
        };
        let mut link = Self {
            config: config.clone(),
            framing,
            claim: Some(claim),
            interface,
            live: Some(live),
            watch,
            requests,
            caps,
            is_kick_due: false,
            answers: AnswerLimit::new(),
            statistics: LinkStatistics::default(),
            drops_before: 0,
        };
        link.watch.report(!link.interface.is_running, false, link.caps);
        Ok(link)
    }

    /// Checks whether [`XdpLink::open`] would work, without changing the interface. This cannot
    /// check whether the driver supports XDP; only opening the link shows that.
    ///
    /// # Errors
    /// Returns [`XdpError`]; each variant names one cause.
    pub fn check(config: &XdpConfig) -> Result<(), XdpError> {
        let (interface, station) = usable(config)?;
        let claim = claim(config, &interface)?;
        let framing = framing(config, station, claim.port());
        let frame_bytes_max = interface.raw_frame_bytes(config.frame_bytes_max);
        Live::check(config, &interface, &framing, frame_bytes_max.into())
    }

    /// Returns the mode in which frames reach the process; `None` while the interface is gone.
    pub fn mode(&self) -> Option<XdpMode> {
        self.live.as_ref().map(|live| live.mode)
    }

    /// Returns improvements that an administrator could make. Each is a sentence with a command.
    pub fn hints(&self) -> Vec<String> {
        let mut hints = Vec::new();
        let Some(live) = &self.live else { return hints };
        let name = self.interface.name;
        if live.device.queues > 1 {
            hints.push(format!(
                "{name} has {} receive queues and the link uses only queue {}; if frames of peers \
                 do not arrive, reduce the queues to one: ethtool -L {name} combined 1",
                live.device.queues, self.config.queue
            ));
        }
        if self.framing.vlan.is_some() && !live.device.is_veth {
            hints.push(format!(
                "if {name} removes VLAN tags from received frames, the link does not recognise its \
                 frames: ethtool -K {name} rxvlan off"
            ));
        }
        if live.mode == XdpMode::Generic && !live.device.is_veth {
            hints.push(format!(
                "the driver of {name} does not support XDP, so frames pass through the network \
                 stack; a packet link may be as fast"
            ));
        }
        hints
    }

    /// Returns the port of the endpoint on the interface.
    pub const fn port(&self) -> u16 {
        self.framing.port
    }

    /// Queries the interface and adapts to its changes.
    #[cold]
    fn check_interface(&mut self) {
        let seen = Interface::query(self.requests.as_fd(), self.interface.name);
        let Ok((seen, station)) = seen.and_then(|seen| {
            let station = seen.station.ok_or(io::ErrorKind::Unsupported)?;
            Ok((seen, station))
        }) else {
            self.close();
            self.watch.retry(false);
            return self.watch.report(true, false, self.caps);
        };
        let was = self.interface.clone();
        self.interface = seen;
        if was.index != self.interface.index {
            self.close();
        }
        self.caps.frame_bytes_max = self.interface.raw_frame_bytes(self.config.frame_bytes_max);
        self.caps.frame_bytes_safe = self.caps.frame_bytes_max.min(FRAME_BYTES_SAFE);
        self.caps.rate = self.interface.rate();
        let fits = self.live.as_ref().is_some_and(|live| {
            let ethernet_bytes =
                usize::from(self.caps.frame_bytes_max) + self.framing.header_bytes();
            ethernet_bytes <= live.shape.ethernet_bytes_max as usize
        });
        if !fits {
            self.close();
        }
        let has_moved = self.framing.station != station;
        self.framing.station = station;
        self.caps.local = PeerAddr::mac(station, self.framing.port);
        let selected = match &self.live {
            Some(live) if has_moved => live.select(&self.framing).is_ok(),
            Some(_) => true,
            None => self.reopen(),
        };
        let is_usable = self.interface.is_running && self.interface.mtu_bytes >= MTU_BYTES_MIN;
        // If the interface is not usable, do not retry, because a notification reports when it is
        // usable again.
        self.watch.retry(self.live.is_none() && is_usable);
        let is_changed = !fits || has_moved || was.mtu_bytes != self.interface.mtu_bytes;
        self.watch.report(!selected || !is_usable, is_changed, self.caps);
    }

    /// Closes the socket and releases the queue.
    fn close(&mut self) {
        if self.live.is_some() {
            self.drops_before += self.kernel_drops();
            self.live = None;
            self.claim = None;
            self.is_kick_due = false;
            self.watch.push(LinkEvent::Descriptors);
        }
    }

    /// Opens the queue of an interface that exists again, or has another MTU.
    fn reopen(&mut self) -> bool {
        let config = XdpConfig { port: self.framing.port, ..self.config.clone() };
        let Ok(claim) = claim(&config, &self.interface) else { return false };
        let frame_bytes_max = u32::from(self.caps.frame_bytes_max);
        match Live::open(&config, &self.interface, &self.framing, frame_bytes_max) {
            Ok(live) => {
                self.caps.receive_buffer_bytes = live.shape.receive_bytes();
                self.live = Some(live);
                self.claim = Some(claim);
                self.watch.push(LinkEvent::Descriptors);
                true
            }
            Err(_) => false,
        }
    }

    /// Returns the number of frames for which the kernel had no room. Counts frames of the current
    /// socket only.
    fn kernel_drops(&self) -> u64 {
        let statistics = self.live.as_ref().and_then(|live| live.socket.statistics().ok());
        statistics.map_or(0, |counted| counted.rx_dropped + counted.rx_ring_full)
    }

    /// Notifies the kernel of frames in the transmit ring.
    fn kick(&mut self) -> io::Result<()> {
        let Some(live) = &mut self.live else { return Ok(()) };
        match live.transmitter.kick(&mut live.socket, &mut self.statistics) {
            Ok(taken) => self.is_kick_due = !taken,
            // The interface is down or gone. A notification will report that.
            Err(error) if is_about_interface(&error) => self.is_kick_due = false,
            Err(error) => return Err(error),
        }
        Ok(())
    }

    //= protocol.md: envelope.5
    /// Answers a Discover request with a frame of kind Here.
    #[cold]
    fn answer(&mut self, now: Instant, to: (Station, u16)) -> io::Result<()> {
        if !self.answers.permits(now) {
            return Ok(());
        }
        if let Some(live) = &mut self.live {
            let Live { transmitter, socket, .. } = live;
            transmitter.send_empty(socket, &self.framing, EnvelopeKind::Here, to);
        }
        self.kick()
    }
}

impl Link for XdpLink {
    fn caps(&self) -> LinkCaps {
        self.caps
    }

    #[inline]
    fn receive(&mut self, now: Instant, limit: usize, on_frame: OnFrame<'_>) -> io::Result<usize> {
        // If the queue could not be opened, try again: the cause may disappear by itself. For
        // example, when another link ends, its program stays on the interface for a moment.
        let ask_ns = if self.live.is_none() { RETRY_NS } else { u64::MAX };
        if self.watch.is_due(now, ask_ns) {
            self.check_interface();
        }
        let Some(Live { socket, receiver, .. }) = &mut self.live else { return Ok(0) };
        let mut arrivals = Arrivals {
            framing: &self.framing,
            statistics: &mut self.statistics,
            now,
            on_frame,
            left: limit,
            question: None,
        };
        let any = receiver.receive(socket, &mut arrivals);
        let (left, question) = (arrivals.left, arrivals.question);
        self.statistics.receive_messages += (limit - left) as u64;
        if !any && (self.config.busy_poll || socket.fill.needs_wakeup()) {
            self.statistics.receive_calls += 1;
            socket.wake_receiver();
        }
        if let Some(asker) = question {
            self.answer(now, asker)?;
        }
        if self.is_kick_due {
            self.kick()?;
        }
        Ok(limit - left)
    }

    #[inline]
    fn send(&mut self, batch: &TxBatch) -> io::Result<usize> {
        let Some(Live { socket, transmitter, .. }) =
            self.live.as_mut().filter(|_| !self.watch.is_down())
        else {
            self.statistics.send_unreachable += batch.len() as u64;
            return Ok(batch.len());
        };
        let (framing, limit) = (&self.framing, self.caps.frame_bytes_max);
        let sent = transmitter.send(socket, framing, limit, batch, &mut self.statistics);
        if sent.frames < batch.len() && sent.unmapped.is_none() {
            self.statistics.send_full += 1;
        }
        self.kick()?;
        match sent.unmapped {
            Some(frame) => Err(transmit::unmapped(frame)),
            None => Ok(sent.frames),
        }
    }

    #[inline]
    fn poll_event(&mut self) -> Option<LinkEvent> {
        self.watch.pop()
    }

    fn wait_fds(&self) -> WaitFds<'_> {
        match &self.live {
            Some(live) => [Some(live.as_fd()), self.watch.news()],
            None => [self.watch.news(), self.watch.timer()],
        }
    }

    fn statistics(&self) -> LinkStatistics {
        let receive_kernel_drops = self.drops_before + self.kernel_drops();
        let events_dropped = self.watch.events_dropped();
        LinkStatistics { receive_kernel_drops, events_dropped, ..self.statistics }
    }

    fn ethernet_header(&self) -> Option<crate::ethernet::EthernetHeader> {
        Some(self.framing.ethernet_header())
    }
}

/// State of one receive call, for the handling of its Ethernet frames.
struct Arrivals<'a> {
    framing: &'a Framing,
    statistics: &'a mut LinkStatistics,
    now: Instant,
    on_frame: OnFrame<'a>,
    /// Number of edge frames still wanted.
    left: usize,
    /// The sender of the latest Discover request.
    question: Option<(Station, u16)>,
}

impl Consumer for Arrivals<'_> {
    #[inline]
    fn take(&mut self, bytes: &mut [u8]) {
        match self.framing.check(bytes, None) {
            Ok(Arrival::Frame { from, bytes }) => {
                self.left -= 1;
                self.statistics.receive_frames += 1;
                self.statistics.receive_bytes += bytes.len() as u64;
                (self.on_frame)(RxFrame {
                    bytes,
                    outside: Payload::EMPTY,
                    received_at: self.now,
                    congestion_experienced: false,
                    from,
                });
            }
            Ok(Arrival::Discover { from }) => self.question = Some(from),
            // Ignore the answer. An endpoint that sends Discover requests receives their answers on
            // another socket.
            Ok(Arrival::Here { .. }) => {}
            Err(refused) => refused.count(self.statistics),
        }
    }

    #[cold]
    fn refuse_too_long(&mut self) {
        Refused::Truncated.count(self.statistics);
    }

    #[inline]
    fn is_full(&self) -> bool {
        self.left == 0
    }
}

/// Opens the socket. If the queue is in use, retries for a while: when a socket is closed, the
/// kernel releases its queue with a delay.
fn open_patiently(
    config: &XdpConfig,
    interface: &Interface,
    framing: &Framing,
    frame_bytes_max: u16,
) -> Result<Live, XdpError> {
    let mut attempts = 0;
    loop {
        match Live::open(config, interface, framing, u32::from(frame_bytes_max)) {
            Err(XdpError::QueueBusy { .. }) if attempts < QUEUE_ATTEMPTS => {
                attempts += 1;
                thread::park_timeout(QUEUE_PAUSE);
            }
            result => return result,
        }
    }
}

/// Returns the interface and its address, if a link can work there.
fn usable(config: &XdpConfig) -> Result<(Interface, Station), XdpError> {
    if let Some(vlan) = config.vlan.filter(|vlan| !(1..=VLAN_MAX).contains(vlan)) {
        return Err(XdpError::Vlan { vlan });
    }
    if config.ethertype < ETHERTYPE_MIN {
        return Err(XdpError::Ethertype { ethertype: config.ethertype });
    }
    check_frame_bytes(config.frame_bytes_max)?;
    for frames in [config.receive_frames, config.transmit_frames] {
        if !frames.is_power_of_two() || !(RING_FRAMES_MIN..=RING_FRAMES_MAX).contains(&frames) {
            return Err(XdpError::RingSize { frames });
        }
    }
    let named = || config.interface.clone();
    let interface = Interface::named(&config.interface).map_err(|source| {
        if source.kind() == io::ErrorKind::InvalidInput
            || source.raw_os_error() == Some(libc::ENODEV)
        {
            XdpError::NoSuchInterface { interface: named(), known: Interface::names() }
        } else {
            XdpError::Io { attempt: "query", interface: named(), source }
        }
    })?;
    let station = interface.station.filter(|_| !interface.is_loopback);
    let Some(station) = station else {
        return Err(XdpError::NotEthernet { interface: named() });
    };
    if !interface.is_up {
        return Err(XdpError::InterfaceDown { interface: named() });
    }
    let mtu_bytes = interface.mtu_bytes;
    if mtu_bytes < MTU_BYTES_MIN {
        let least_bytes = MTU_BYTES_MIN;
        return Err(XdpError::MtuTooSmall { interface: named(), mtu_bytes, least_bytes });
    }
    Ok((interface, station))
}

fn claim(config: &XdpConfig, interface: &Interface) -> Result<PortClaim, XdpError> {
    let XdpConfig { ethertype, vlan, port, .. } = *config;
    PortClaim::take(interface.index, ethertype, vlan, port).map_err(|source| {
        let interface = interface.name();
        if source.kind() == io::ErrorKind::AddrInUse {
            XdpError::PortTaken { interface, port, ethertype }
        } else {
            XdpError::Io { attempt: "claim a port of", interface, source }
        }
    })
}

const fn framing(config: &XdpConfig, station: Station, port: u16) -> Framing {
    Framing { station, ethertype: config.ethertype, vlan: config.vlan, port }
}

fn is_about_interface(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENETDOWN | libc::ENXIO | libc::ENODEV))
}

/// Smallest MTU, in bytes: the smallest frame that every receiver accepts (docs/protocol.md, §2.2)
/// and its envelope.
const MTU_BYTES_MIN: u32 = 256 + ENVELOPE_BYTES as u32;
/// Maximum number of frames in a batch: the number of frames that kernels with a fixed limit send
/// in one call.
const BATCH_FRAMES: u16 = 32;
/// Maximum number of attempts to open a queue that is in use. When the owner of an XDP queue has
/// ended, a worker thread of the kernel releases the queue. For this, the worker needs the lock of
/// all interfaces (RTNL). Usually the release takes milliseconds. On hosts that create and delete
/// namespaces, the kernel may get the lock only after hundreds of milliseconds.
const QUEUE_ATTEMPTS: u32 = 100;
const QUEUE_PAUSE: Duration = Duration::from_millis(10);
