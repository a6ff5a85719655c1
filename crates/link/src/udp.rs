//! Frames in UDP datagrams.

mod address;
mod config;
mod control;
mod error;
mod hot;
mod interface;
mod receive;
mod setup;
mod socket;
mod transmit;

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use delivery::{Instant, LinkCaps, LinkEvent, RxFrame, TxBatch};
use mem::Payload;
use wire_edge::PeerAddr;

use self::address::{Family, SocketName};
use self::control::{ControlBuffer, ErrorReport};
use self::hot::{HotSocket, Traffic};
use self::receive::ReceiveRing;
use self::transmit::{Run, SEGMENTS_MAX, SEGMENTS_SAFE, Transmitter};
use crate::clock::ReceiveClock;
use crate::interface::{Interface, Monitor};
use crate::{Link, LinkStatistics, WaitFds};

pub use self::config::{UdpConfig, UdpFeatures};
pub use self::error::{PayloadUnmapped, UdpError};

/// One unconnected UDP socket that speaks with any number of peers, and a connected one for the
/// peer that most frames are exchanged with.
///
/// A batch is sent as one system call per run of equal-sized frames, whose pieces the kernel takes
/// straight from the batch and from registered memory. Received messages are split where the kernel
/// has coalesced frames. What the kernel turns out not to support is done without from then on; see
/// [`UdpLink::features`].
#[derive(Debug)]
pub struct UdpLink {
    socket: OwnedFd,
    hot: Option<HotSocket>,
    traffic: Traffic,
    /// The address bound to, which the connected socket shares; `None` if it must not have one.
    shareable: Option<SocketName>,
    family: Family,
    features: UdpFeatures,
    config: UdpConfig,
    caps: LinkCaps,
    interface: Option<Interface>,
    is_down: bool,
    interface_checked_at: Instant,
    /// Readable when some interface has changed; `None` if the kernel refused it.
    monitor: Option<Monitor>,
    news_checked_at: Instant,
    ring: ReceiveRing,
    transmitter: Transmitter,
    clock: ReceiveClock,
    /// The kernel's drop count when it was last told, modulo 2^32.
    drops_told: u32,
    events: VecDeque<LinkEvent>,
    hints: Vec<String>,
    statistics: LinkStatistics,
}

impl UdpLink {
    /// A link on `address`; port 0 takes a free one, an unspecified address serves all interfaces.
    pub fn bind(address: SocketAddr, config: &UdpConfig) -> Result<Self, UdpError> {
        let family = Family::of(&address);
        let failed = |attempt| move |source| UdpError::new(attempt, address, source);
        let socket = socket::open(family).map_err(failed("open a socket for"))?;
        let given_scope = if let SocketAddr::V6(v6) = address { v6.scope_id() } else { 0 };
        let scope = interface::scope_of(address.ip(), given_scope);
        let mut scoped = address;
        if let SocketAddr::V6(v6) = &mut scoped {
            v6.set_scope_id(scope);
        }
        socket::bind(socket.as_fd(), &SocketName::new(&scoped)).map_err(failed("bind"))?;
        let (local_name, local) = socket::local_name(socket.as_fd())
            .and_then(|name| {
                let local = name.peer().ok_or(io::ErrorKind::Unsupported)?;
                Ok((name, local))
            })
            .map_err(failed("read the address bound to"))?;

        let mut features = config.features;
        let fallbacks = setup::set_options(socket.as_fd(), family, &mut features)
            .map_err(failed("set the path MTU option of"))?;
        let mut hints = Vec::new();
        let receive_buffer_bytes =
            setup::size_buffers(socket.as_fd(), config, &mut features, &mut hints)
                .map_err(failed("size the buffers of"))?;
        // Before the interface is asked, so that no change is missed.
        let monitor = Monitor::new().ok();
        let interface = interface::interface_of(socket.as_fd(), address.ip()).unwrap_or(None);

        // Behind an unspecified address a connected socket would fix which one frames come from.
        let is_shareable = features.connected_peer && !address.ip().is_unspecified();
        features.connected_peer = is_shareable;
        let mut link = Self {
            hot: None,
            traffic: Traffic::new(),
            shareable: is_shareable.then_some(local_name),
            family,
            features,
            config: *config,
            caps: LinkCaps {
                frame_bytes_max: 0,
                frame_bytes_safe: 0,
                segments: 1,
                offloads: false,
                receive_buffer_bytes,
                rate: interface.as_ref().and_then(Interface::rate),
                local,
            },
            interface,
            is_down: false,
            interface_checked_at: Instant(0),
            monitor,
            news_checked_at: Instant(0),
            ring: ReceiveRing::new(if features.batching {
                config.receive_messages.into()
            } else {
                1
            }),
            transmitter: Transmitter::new(family, scope),
            clock: ReceiveClock::new(),
            drops_told: 0,
            events: VecDeque::with_capacity(EVENTS_MAX),
            hints,
            statistics: LinkStatistics { fallbacks, ..LinkStatistics::default() },
            socket,
        };
        if features.segmentation {
            link.caps.segments = SEGMENTS_MAX as u16;
            link.caps.offloads = true;
        }
        link.set_frame_sizes();
        Ok(link)
    }

    /// What the link makes use of, after what it found missing.
    pub const fn features(&self) -> UdpFeatures {
        self.features
    }

    /// What an administrator could improve, each a sentence with a command.
    pub fn hints(&self) -> &[String] {
        &self.hints
    }

    /// Derives the frame sizes from the interface's MTU.
    fn set_frame_sizes(&mut self) {
        let mtu_bytes = self.interface.as_ref().map_or(MTU_UNKNOWN_BYTES, |i| i.mtu_bytes);
        let is_loopback = self.interface.as_ref().is_some_and(|i| i.is_loopback);
        let (max, safe) =
            setup::frame_sizes(mtu_bytes, is_loopback, self.family, self.config.frame_bytes_max);
        self.caps.frame_bytes_max = max;
        self.caps.frame_bytes_safe = safe;
    }

    fn push_event(&mut self, event: LinkEvent) {
        if self.events.len() == EVENTS_MAX {
            self.events.pop_front();
            self.statistics.events_dropped += 1;
        }
        self.events.push_back(event);
    }

    /// Counts a capability that turned out to be missing and tells of changed capabilities.
    #[cold]
    fn fall_back(&mut self) {
        self.statistics.fallbacks += 1;
        self.push_event(LinkEvent::Changed(self.caps));
    }

    /// Looks at the interface now and then, and soon when there is news: its MTU, and whether it runs.
    #[inline]
    fn watch_interface(&mut self, now: Instant) {
        if now.since_ns(self.news_checked_at) >= NEWS_NS {
            self.look_for_news(now);
        }
    }

    #[cold]
    fn look_for_news(&mut self, now: Instant) {
        self.news_checked_at = now;
        let has_news = self.monitor.as_mut().is_some_and(Monitor::has_changed);
        if has_news || now.since_ns(self.interface_checked_at) >= INTERFACE_CHECK_NS {
            self.interface_checked_at = now;
            self.check_interface();
        }
    }

    #[cold]
    fn check_interface(&mut self) {
        let Some(known) = &self.interface else { return };
        let seen = known.refreshed(self.socket.as_fd());
        let is_down = !seen.is_running && !self.caps_serve_all_interfaces();
        let is_changed = seen.mtu_bytes != known.mtu_bytes || (self.is_down && !is_down);
        self.interface = Some(seen);
        self.set_frame_sizes();
        if is_down && !self.is_down {
            self.push_event(LinkEvent::Down);
        } else if is_changed && !is_down {
            self.push_event(LinkEvent::Changed(self.caps));
        }
        self.is_down = is_down;
    }

    fn caps_serve_all_interfaces(&self) -> bool {
        self.caps.local.to_socket().is_none_or(|local| local.ip().is_unspecified())
    }

    /// Reads messages from one of the sockets and passes on their frames, about `limit` at most.
    fn receive_from(
        &mut self,
        which: Which,
        now: Instant,
        limit: usize,
        on_frame: &mut dyn FnMut(RxFrame<'_>),
    ) -> io::Result<usize> {
        let mut delivered = 0;
        let mut errors = 0;
        while delivered < limit && errors < ATTEMPTS_MAX {
            let wanted = self.ring.messages_for(limit - delivered);
            self.statistics.receive_calls += 1;
            let socket = fd_of(&self.socket, self.hot.as_ref(), which);
            let messages = match self.ring.fill(socket, wanted) {
                Ok(messages) => messages,
                Err(error) => match self.on_receive_error(error)? {
                    Receiving::Empty => {
                        self.ring.note_found(false);
                        break;
                    }
                    Receiving::Again => {
                        errors += 1;
                        continue;
                    }
                },
            };
            if self.features.timestamps && messages > 0 {
                self.clock.refresh(now);
            }
            let mut fullest = 1;
            for index in 0..messages {
                let frames = self.deliver(which, index, now, on_frame);
                delivered += frames;
                fullest = fullest.max(frames);
            }
            self.ring.note_fullest(fullest);
            self.ring.note_found(true);
            if let (Some(hot), Which::Hot) = (&mut self.hot, which) {
                hot.note_frames(fullest, self.ring.streak());
            }
            // One that was asked for alone leaves the rest to the next call.
            if messages < wanted || wanted == 1 {
                break;
            }
        }
        Ok(delivered)
    }

    /// Reads both sockets: the connected one always, the other one now and then.
    fn receive_from_both(
        &mut self,
        now: Instant,
        limit: usize,
        on_frame: &mut dyn FnMut(RxFrame<'_>),
    ) -> io::Result<usize> {
        let mut delivered = 0;
        while self.traffic.has_older && delivered < limit {
            let frames = self.receive_from(Which::Main, now, limit - delivered, on_frame)?;
            delivered += frames;
            self.traffic.has_older = frames > 0;
        }
        if delivered < limit {
            delivered += self.receive_from(Which::Hot, now, limit - delivered, on_frame)?;
        }
        if self.traffic.is_main_due(now, delivered > 0) && delivered < limit {
            delivered += self.receive_from(Which::Main, now, limit - delivered, on_frame)?;
        }
        if self.traffic.is_elsewhere() || self.hot.as_ref().is_some_and(|hot| hot.has_failed) {
            delivered += self.give_up_hot(now, limit.saturating_sub(delivered), on_frame)?;
        }
        Ok(delivered)
    }

    /// Reads what the connected socket holds, and closes it when that is nothing.
    #[cold]
    fn give_up_hot(
        &mut self,
        now: Instant,
        limit: usize,
        on_frame: &mut dyn FnMut(RxFrame<'_>),
    ) -> io::Result<usize> {
        let mut delivered = 0;
        while delivered < limit {
            let frames = self.receive_from(Which::Hot, now, limit - delivered, on_frame)?;
            delivered += frames;
            if frames == 0 {
                self.hot = None;
                self.push_event(LinkEvent::Descriptors);
                break;
            }
        }
        Ok(delivered)
    }

    /// Opens a socket for a peer that alone has sent the latest messages.
    #[cold]
    fn open_hot(&mut self, peer: PeerAddr) {
        let scope = self.transmitter.scope();
        let name = SocketName::of_peer(peer, self.family, scope);
        let opened = self.shareable.zip(name).and_then(|(local, name)| {
            let (config, features) = (&self.config, self.features);
            HotSocket::open(&self.socket, &local, (peer, &name), self.family, config, features).ok()
        });
        self.traffic.on_opened(opened.is_some());
        if opened.is_some() {
            self.statistics.connected += 1;
            self.push_event(LinkEvent::Descriptors);
        } else {
            self.features.connected_peer = false;
        }
        self.hot = opened;
    }

    /// Passes on message `index` of the ring and returns the number of its frames.
    fn deliver(
        &mut self,
        which: Which,
        index: usize,
        now: Instant,
        on_frame: &mut dyn FnMut(RxFrame<'_>),
    ) -> usize {
        let message = self.ring.message(index);
        self.statistics.receive_messages += 1;
        if let Some(drops) = message.ancillary.drops {
            let told = match (&mut self.hot, which) {
                (Some(hot), Which::Hot) => &mut hot.drops_told,
                _ => &mut self.drops_told,
            };
            self.statistics.receive_kernel_drops += u64::from(drops.wrapping_sub(*told));
            *told = drops;
        }
        let Some(from) = message.from.peer().filter(|_| !message.is_truncated) else {
            self.statistics.receive_discarded += 1;
            return 0;
        };
        match which {
            Which::Main => self.traffic.note_main(from),
            Which::Hot => self.traffic.note_hot(),
        }
        let received_at = match message.ancillary.wall_ns {
            Some(wall_ns) => self.clock.instant(wall_ns, now),
            None => now,
        };
        let congestion_experienced = message.ancillary.congestion_experienced;
        let bytes = message.bytes.len();
        let segment_bytes = match message.ancillary.segment_bytes {
            0 => bytes.max(1),
            segment_bytes => segment_bytes as usize,
        };
        let mut frames = 0;
        for bytes in message.bytes.chunks_mut(segment_bytes) {
            frames += 1;
            let outside = Payload::EMPTY;
            on_frame(RxFrame { bytes, outside, received_at, congestion_experienced, from });
        }
        self.statistics.receive_frames += frames as u64;
        self.statistics.receive_bytes += bytes as u64;
        frames
    }

    /// Decides what a failed receive means: an error of an earlier send is read from the error queue.
    #[cold]
    fn on_receive_error(&mut self, error: io::Error) -> io::Result<Receiving> {
        match error.raw_os_error() {
            Some(libc::EAGAIN | libc::ENOMEM | libc::ENOBUFS) => Ok(Receiving::Empty),
            Some(libc::EINTR) => Ok(Receiving::Again),
            Some(libc::ENOSYS) if self.features.batching => {
                self.features.batching = false;
                self.ring = ReceiveRing::new(1);
                self.fall_back();
                Ok(Receiving::Again)
            }
            Some(errno) if is_asynchronous(errno) => {
                self.drain_errors();
                Ok(Receiving::Again)
            }
            _ => Err(error),
        }
    }

    /// Reads the error queues and turns their reports into events.
    #[cold]
    fn drain_errors(&mut self) -> Drained {
        let mut drained = Drained::default();
        if self.features.error_queue {
            self.drain_errors_of(Which::Main, &mut drained);
            if self.hot.is_some() {
                self.drain_errors_of(Which::Hot, &mut drained);
            }
        }
        drained
    }

    #[cold]
    fn drain_errors_of(&mut self, which: Which, drained: &mut Drained) {
        let mut control = ControlBuffer::default();
        for _ in 0..ERRORS_MAX {
            let socket = fd_of(&self.socket, self.hot.as_ref(), which);
            let Ok((name, len)) = receive::receive_error(socket, &mut control) else { break };
            self.statistics.errors_reported += 1;
            let Some(report) = control.0.get(..len).and_then(ErrorReport::parse) else { continue };
            drained.any |= !report.is_local;
            let Some(peer) = name.peer() else { continue };
            match report.errno {
                libc::EMSGSIZE => {
                    drained.local_too_big |= report.is_local;
                    let frame_bytes = report.info.saturating_sub(self.family.header_bytes());
                    let frame_bytes = u16::try_from(frame_bytes).unwrap_or(u16::MAX);
                    self.push_event(LinkEvent::TooBig(peer, frame_bytes));
                }
                libc::ECONNREFUSED => self.push_event(LinkEvent::Refused(peer)),
                _ => {}
            }
        }
    }

    /// Sends some frames from `first` on; returns how many were taken, 0 if there is no room.
    fn send_some(&mut self, batch: &TxBatch, first: usize) -> io::Result<usize> {
        let is_segmented = self.features.segmentation;
        let segments_max = if is_segmented { usize::from(self.caps.segments) } else { 1 };
        let mut attempts = 0;
        loop {
            let which = self.choose(batch);
            let socket = fd_of(&self.socket, self.hot.as_ref(), which);
            self.statistics.send_calls += 1;
            let (result, run) = if is_segmented || !self.features.batching {
                let run = self.transmitter.gather(batch, first, segments_max);
                (self.transmitter.send_run(socket, run).map(|()| run.frames), run)
            } else {
                let run = Run { frames: 1, bytes: 0, segment_bytes: batch.frame(first).len() };
                (self.transmitter.send_each(socket, batch, first, usize::MAX), run)
            };
            let error = match result {
                Ok(frames) => {
                    self.note_sent(batch, first, frames, run);
                    return Ok(frames);
                }
                Err(error) => error,
            };
            attempts += 1;
            match self.on_send_error(&error, batch, first, run, attempts) {
                Sending::Again => {}
                Sending::Full => {
                    self.statistics.send_full += 1;
                    return Ok(0);
                }
                Sending::Lost => return Ok(run.frames),
                Sending::Singly => return self.send_singly(batch, first, run),
                Sending::Failed => return Err(error),
            }
        }
    }

    /// The socket for this batch.
    #[inline]
    fn choose(&mut self, batch: &TxBatch) -> Which {
        let is_hot = self.hot.as_ref().is_some_and(|hot| hot.peer == batch.to() && !hot.has_failed);
        self.transmitter.set_connected(is_hot);
        if is_hot { Which::Hot } else { Which::Main }
    }

    fn note_sent(&mut self, batch: &TxBatch, first: usize, frames: usize, run: Run) {
        self.statistics.send_frames += frames as u64;
        if run.frames == frames && run.bytes > 0 {
            self.statistics.send_messages += 1;
            self.statistics.send_bytes += run.bytes as u64;
        } else {
            self.statistics.send_messages += frames as u64;
            let bytes: usize = (first..first + frames).map(|index| batch.frame(index).len()).sum();
            self.statistics.send_bytes += bytes as u64;
        }
    }

    /// Decides what a failed send of `run` means.
    #[cold]
    fn on_send_error(
        &mut self,
        error: &io::Error,
        batch: &TxBatch,
        first: usize,
        run: Run,
        attempts: usize,
    ) -> Sending {
        let Some(errno) = error.raw_os_error() else { return Sending::Failed };
        match errno {
            libc::EAGAIN | libc::ENOBUFS | libc::ENOMEM => Sending::Full,
            libc::EINTR => Sending::Again,
            // Which frame is to blame is found by sending each on its own.
            libc::EFAULT | libc::EINVAL | libc::EIO if run.frames > 1 => Sending::Singly,
            libc::EFAULT => Sending::Failed,
            libc::ENOSYS if self.features.batching => {
                self.features.batching = false;
                self.fall_back();
                Sending::Again
            }
            _ => {
                let drained = self.drain_errors();
                if drained.any && !drained.local_too_big && attempts < ATTEMPTS_MAX {
                    // The error was that of an earlier send and this one has not been tried.
                    return Sending::Again;
                }
                if errno == libc::EMSGSIZE {
                    self.statistics.send_too_big += run.frames as u64;
                    self.check_interface();
                    if !drained.local_too_big {
                        let len = batch.frame(first).len().saturating_sub(1) as u16;
                        self.push_event(LinkEvent::TooBig(
                            batch.to(),
                            len.min(self.caps.frame_bytes_max),
                        ));
                    }
                    return Sending::Lost;
                }
                if let Some(hot) = &mut self.hot
                    && hot.peer == batch.to()
                    && !hot.has_failed
                {
                    // Perhaps only the way that it keeps has become impossible.
                    hot.has_failed = true;
                    return Sending::Again;
                }
                if is_failure_of_the_socket(errno) {
                    return Sending::Failed;
                }
                self.statistics.send_unreachable += run.frames as u64;
                Sending::Lost
            }
        }
    }

    /// Sends the frames of a run that was refused as a whole each on its own, which tells a frame
    /// that cannot be sent from a kernel that cannot segment.
    #[cold]
    fn send_singly(&mut self, batch: &TxBatch, first: usize, run: Run) -> io::Result<usize> {
        let mut frame = first;
        let mut attempts = 0;
        while frame < first + run.frames {
            let single = self.transmitter.gather(batch, frame, 1);
            let which = self.choose(batch);
            let socket = fd_of(&self.socket, self.hot.as_ref(), which);
            self.statistics.send_calls += 1;
            let Err(error) = self.transmitter.send_run(socket, single) else {
                self.note_sent(batch, frame, 1, single);
                frame += 1;
                continue;
            };
            if error.raw_os_error() == Some(libc::EFAULT) {
                return Err(PayloadUnmapped { frame }.into());
            }
            attempts += 1;
            match self.on_send_error(&error, batch, frame, single, attempts) {
                Sending::Again => {}
                Sending::Full => {
                    self.statistics.send_full += 1;
                    return Ok(frame - first);
                }
                Sending::Lost | Sending::Singly => {
                    // A refusal of single frames says nothing about segmentation.
                    return Ok(frame + 1 - first);
                }
                Sending::Failed => return Err(error),
            }
        }
        if run.frames > SEGMENTS_SAFE {
            self.caps.segments = SEGMENTS_SAFE as u16;
        } else {
            self.features.segmentation = false;
            self.caps.segments = 1;
            self.caps.offloads = false;
        }
        self.fall_back();
        Ok(run.frames)
    }
}

impl Link for UdpLink {
    fn caps(&self) -> LinkCaps {
        self.caps
    }

    fn receive(
        &mut self,
        now: Instant,
        limit: usize,
        on_frame: &mut dyn FnMut(RxFrame<'_>),
    ) -> io::Result<usize> {
        self.watch_interface(now);
        if self.hot.is_some() {
            return self.receive_from_both(now, limit, on_frame);
        }
        let delivered = self.receive_from(Which::Main, now, limit, on_frame)?;
        if self.features.connected_peer
            && let Some(peer) = self.traffic.candidate()
        {
            self.open_hot(peer);
        }
        Ok(delivered)
    }

    fn send(&mut self, batch: &TxBatch) -> io::Result<usize> {
        if !self.transmitter.set_peer(batch.to()) {
            self.statistics.send_unreachable += batch.len() as u64;
            return Ok(batch.len());
        }
        let mut sent = 0;
        while sent < batch.len() {
            match self.send_some(batch, sent) {
                Ok(0) => break,
                Ok(frames) => sent += frames,
                Err(error) if error.raw_os_error() == Some(libc::EFAULT) => {
                    return Err(PayloadUnmapped { frame: sent }.into());
                }
                Err(error) => return Err(error),
            }
        }
        Ok(sent)
    }

    fn poll_event(&mut self) -> Option<LinkEvent> {
        self.events.pop_front()
    }

    fn wait_fds(&self) -> WaitFds<'_> {
        let main = self.socket.as_fd();
        match &self.hot {
            // The one that sends first: it is the one that may be full.
            Some(hot) if self.transmitter.is_connected() => [Some(hot.socket.as_fd()), Some(main)],
            Some(hot) => [Some(main), Some(hot.socket.as_fd())],
            None => [Some(main), self.monitor.as_ref().map(AsFd::as_fd)],
        }
    }

    fn statistics(&self) -> LinkStatistics {
        self.statistics
    }
}

/// One of the two sockets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Which {
    /// The one that any peer can reach.
    Main,
    /// The one connected to a peer.
    Hot,
}

/// The socket that is meant, of those there are.
#[inline]
fn fd_of<'a>(main: &'a OwnedFd, hot: Option<&'a HotSocket>, which: Which) -> BorrowedFd<'a> {
    match (hot, which) {
        (Some(hot), Which::Hot) => hot.socket.as_fd(),
        _ => main.as_fd(),
    }
}

/// What a failed receive means.
enum Receiving {
    /// Nothing waits.
    Empty,
    /// The error was about something else; frames may wait.
    Again,
}

/// What a failed send means.
enum Sending {
    /// The error was about something else; the same send may work.
    Again,
    /// The kernel has no room.
    Full,
    /// The host cannot send these frames to this peer.
    Lost,
    /// The frames must be tried one by one.
    Singly,
    /// The socket is of no use, or payload memory is gone.
    Failed,
}

/// What the error queue held.
#[derive(Clone, Copy, Default)]
struct Drained {
    /// Whether a report of the network was among it.
    any: bool,
    /// Whether this host found the frame just sent too big.
    local_too_big: bool,
}

/// Events nobody has polled; the oldest are dropped beyond it. A driver has one per peer in the
/// worst case, and the engine polls after every turn.
const EVENTS_MAX: usize = 64;

/// Reports read from the error queue in one go; the rest is read after the next error.
const ERRORS_MAX: usize = 64;

/// Times an operation is tried again after an error that was about something else.
const ATTEMPTS_MAX: usize = 4;

/// How often the interface is looked at: two requests of a microsecond together, 0.001 % of a core.
const INTERFACE_CHECK_NS: u64 = 100_000_000;

/// How often news of interfaces are looked for: what a thread that polls pays is a thousandth.
const NEWS_NS: u64 = 1_000_000;

/// MTU assumed when no interface is known: that of every Ethernet.
const MTU_UNKNOWN_BYTES: u32 = 1500;

/// Errors that the socket reports about earlier datagrams, at whatever call comes next.
const fn is_asynchronous(errno: i32) -> bool {
    matches!(
        errno,
        libc::ECONNREFUSED
            | libc::EHOSTUNREACH
            | libc::ENETUNREACH
            | libc::EHOSTDOWN
            | libc::ENETDOWN
            | libc::EMSGSIZE
            | libc::EOPNOTSUPP
            | libc::ENOPROTOOPT
            | libc::EPROTO
            | libc::EACCES
            | libc::ENONET
    )
}

/// Errors that no other peer and no other frame would avoid.
const fn is_failure_of_the_socket(errno: i32) -> bool {
    matches!(errno, libc::EBADF | libc::ENOTSOCK | libc::EPIPE | libc::ENOSYS)
}

#[cfg(test)]
mod tests {
    use mem::PayloadSlice;

    use super::*;

    /// A kernel refuses to segment for a socket without checksums, as it does on devices that
    /// cannot compute them.
    fn unable_to_segment() -> UdpLink {
        let link = UdpLink::bind(([127, 0, 0, 1], 0).into(), &UdpConfig::default()).unwrap();
        socket::set_option(link.socket.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        link
    }

    #[test]
    fn refused_segmentation_is_done_without_and_no_frame_is_lost() {
        let mut link = unable_to_segment();
        if !link.features().segmentation {
            println!("skipped: this kernel has no UDP segmentation");
            return;
        }
        let mut batch = TxBatch::new(300, 300 * 40);
        batch.reset(link.caps().local);
        for index in 0..300_u16 {
            batch.header_mut().extend_from_slice(&[index.to_be_bytes(); 20].concat());
            batch.finish_frame(PayloadSlice::EMPTY);
        }
        assert_eq!(link.send(&batch).unwrap(), 300);
        assert!(!link.features().segmentation);
        assert_eq!(link.caps().segments, 1);
        // First the number of segments is doubted, then segmentation itself.
        assert_eq!(link.statistics().fallbacks, 2);
        for segments in [64, 1] {
            let event = link.poll_event();
            assert!(
                matches!(event, Some(LinkEvent::Changed(caps)) if caps.segments == segments),
                "{event:?}"
            );
        }
        let mut seen = Vec::new();
        while seen.len() < 300 {
            link.receive(Instant(0), 512, &mut |f| seen.push([f.bytes[0], f.bytes[1]])).unwrap();
        }
        assert_eq!(seen, (0..300_u16).map(u16::to_be_bytes).collect::<Vec<_>>());
    }

    #[test]
    fn events_nobody_polls_are_bounded() {
        let mut link = unable_to_segment();
        for _ in 0..EVENTS_MAX + 3 {
            link.push_event(LinkEvent::Down);
        }
        assert_eq!(link.events.len(), EVENTS_MAX);
        assert_eq!(link.statistics().events_dropped, 3);
    }
}
