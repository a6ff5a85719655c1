//! Links over UDP.

mod address;
mod auxiliary;
mod config;
mod control;
mod deliver;
mod error;
mod failure;
mod hot;
mod interface;
mod receive;
mod send;
mod setup;
mod socket;
mod stage;
mod transmit;

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use delivery::{Instant, LinkCaps, LinkEvent, TxBatch};

use self::address::{Family, SocketName};
use self::failure::Sending;
use self::hot::{HotSocket, Traffic};
use self::receive::ReceiveRing;
use self::transmit::{Run, SEGMENTS_MAX, Transmitter};
use crate::clock::ReceiveClock;
use crate::interface::{ASK_NS, Interface, Watch};
use crate::refusal::Refusals;
use crate::{Link, LinkStatistics, OnFrame, WaitFds};

pub use self::auxiliary::{AuxiliarySocket, GROUP_PORT, give_way};
pub use self::config::{UdpConfig, UdpFeatures};
pub use self::error::{PayloadUnmapped, UdpError};

/// A link over UDP. It has an unconnected socket for any number of peers, and a second socket that
/// is connected to the peer with the most frames.
///
/// The link sends a batch with one system call per run of equal-sized frames. The kernel reads
/// these frames directly from the batch and from registered memory. If the kernel has coalesced
/// received frames into one message, the link splits the message. If the kernel does not support a
/// feature, the link stops using it; see [`UdpLink::features`].
#[derive(Debug)]
pub struct UdpLink {
    socket: OwnedFd,
    hot: Option<HotSocket>,
    traffic: Traffic,
    /// The bound address. The link binds the connected socket to the same address. `None` if the
    /// link must not have a connected socket.
    shareable: Option<SocketName>,
    family: Family,
    features: UdpFeatures,
    config: UdpConfig,
    caps: LinkCaps,
    interface: Option<Interface>,
    watch: Watch,
    refusals: Refusals,
    /// The return value of [`Link::doubtful`].
    doubtful: usize,
    ring: ReceiveRing,
    transmitter: Transmitter,
    clock: ReceiveClock,
    /// The kernel's drop count as last reported, modulo 2^32.
    drops_reported: u32,
    hints: Vec<String>,
    statistics: LinkStatistics,
}

impl UdpLink {
    /// Opens a link on `address`. Port 0 chooses a free port; an unspecified address serves all
    /// interfaces.
    ///
    /// # Errors
    /// Returns [`UdpError`]; each variant names one cause.
    pub fn bind(address: SocketAddr, config: &UdpConfig) -> Result<Self, UdpError> {
        config.check()?;
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
            .map_err(failed("read the address of the socket for"))?;

        let mut features = config.features;
        let fallbacks = setup::set_options(socket.as_fd(), family, &mut features)
            .map_err(failed("set the path MTU option of"))?;
        let mut hints = Vec::new();
        let receive_buffer_bytes =
            setup::size_buffers(socket.as_fd(), config, &mut features, &mut hints)
                .map_err(failed("size the buffers of"))?;
        let watch = Watch::new();
        let interface = interface::interface_of(socket.as_fd(), address.ip()).unwrap_or(None);
        if family == Family::V6 {
            // Send datagrams to groups through this interface. For IPv4, the bound address already
            // selects the interface.
            let index = interface::index_of(address.ip()).cast_signed();
            let level = libc::IPPROTO_IPV6;
            let _ = socket::set_option(socket.as_fd(), level, libc::IPV6_MULTICAST_IF, index);
        }

        // If the address is unspecified, do not share it: a connected socket would fix the source
        // address of frames.
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
            watch,
            refusals: Refusals::default(),
            doubtful: 0,
            ring: ReceiveRing::new(if features.batching {
                config.receive_messages.into()
            } else {
                1
            }),
            transmitter: Transmitter::new(family, scope),
            clock: ReceiveClock::new(),
            drops_reported: 0,
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

    /// Returns the features in use. Features that the kernel lacks are not in the result.
    pub const fn features(&self) -> UdpFeatures {
        self.features
    }

    /// Returns improvements that an administrator could make. Each is a sentence with a command.
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

    /// Counts a capability that the system lacks, and reports the changed capabilities.
    #[cold]
    fn fall_back(&mut self) {
        self.statistics.fallbacks += 1;
        self.watch.push(LinkEvent::Changed(self.caps));
    }

    /// Queries the interface for its MTU and whether it is running.
    #[cold]
    fn check_interface(&mut self) {
        let Some(known) = &self.interface else { return };
        let seen = known.refreshed(self.socket.as_fd());
        let is_down = !seen.is_running && !self.caps_serve_all_interfaces();
        let is_changed = seen.mtu_bytes != known.mtu_bytes;
        self.interface = Some(seen);
        self.set_frame_sizes();
        self.watch.report(is_down, is_changed, self.caps);
    }

    fn caps_serve_all_interfaces(&self) -> bool {
        self.caps.local.to_socket().is_none_or(|local| local.ip().is_unspecified())
    }
}

impl Link for UdpLink {
    fn caps(&self) -> LinkCaps {
        self.caps
    }

    fn receive(&mut self, now: Instant, limit: usize, on_frame: OnFrame<'_>) -> io::Result<usize> {
        if self.watch.is_due(now, ASK_NS) {
            self.check_interface();
        }
        self.refusals.set_time(now);
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
        self.doubtful = 0;
        let (mut sent, mut attempts) = (0, 0);
        while sent < batch.len() {
            let is_segmented = self.features.segmentation;
            let segments_max = if is_segmented { usize::from(self.caps.segments) } else { 1 };
            let which = self.choose(batch);
            let socket = fd_of(&self.socket, self.hot.as_ref(), which);
            self.statistics.send_calls += 1;
            let (result, run) = if is_segmented || !self.features.batching {
                let run = self.transmitter.gather(batch, sent, segments_max);
                (self.transmitter.send_run(socket, run).map(|()| run.frames), run)
            } else {
                let run = Run { frames: 1, bytes: 0, segment_bytes: batch.frame(sent).len() };
                (self.transmitter.send_each(socket, batch, sent, usize::MAX), run)
            };
            let error = match result {
                Ok(frames) => {
                    self.refusals.on_taken();
                    self.note_sent(batch, sent, frames, run);
                    (sent, attempts) = (sent + frames, 0);
                    continue;
                }
                Err(error) => error,
            };
            attempts += 1;
            let done = match self.on_send_error(&error, batch, sent, run, attempts) {
                Sending::Again => continue,
                Sending::Full => {
                    self.statistics.send_full += 1;
                    break;
                }
                Sending::Lost => run.frames,
                Sending::Singly => self.send_singly(batch, sent, run)?,
                Sending::Failed if error.raw_os_error() == Some(libc::EFAULT) => {
                    return Err(PayloadUnmapped { frame: sent }.into());
                }
                Sending::Failed => return Err(error),
            };
            if done == 0 {
                break;
            }
            (sent, attempts) = (sent + done, 0);
        }
        Ok(sent)
    }

    fn doubtful(&self) -> usize {
        self.doubtful
    }

    fn poll_event(&mut self) -> Option<LinkEvent> {
        self.watch.pop()
    }

    fn wait_fds(&self) -> WaitFds<'_> {
        let main = self.socket.as_fd();
        match &self.hot {
            // The socket that sends comes first, because callers wait for room to send only on the
            // first descriptor.
            Some(hot) if self.transmitter.is_connected() => [Some(hot.socket.as_fd()), Some(main)],
            Some(hot) => [Some(main), Some(hot.socket.as_fd())],
            None => [Some(main), self.watch.news()],
        }
    }

    fn statistics(&self) -> LinkStatistics {
        LinkStatistics { events_dropped: self.watch.events_dropped(), ..self.statistics }
    }
}

/// Selects one of the two sockets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Which {
    /// The unconnected socket, which any peer can reach.
    Main,
    /// The socket connected to one peer.
    Hot,
}

/// Returns the selected socket. If there is no connected socket, returns the unconnected socket.
#[inline]
fn fd_of<'a>(main: &'a OwnedFd, hot: Option<&'a HotSocket>, which: Which) -> BorrowedFd<'a> {
    match (hot, which) {
        (Some(hot), Which::Hot) => hot.socket.as_fd(),
        _ => main.as_fd(),
    }
}

/// Maximum number of retries of a call that fails with errors of earlier operations.
const ATTEMPTS_MAX: usize = 4;

/// MTU assumed if no interface is known, in bytes. Every Ethernet carries packets of this size.
const MTU_UNKNOWN_BYTES: u32 = 1500;

#[cfg(test)]
mod tests {
    use mem::PayloadSlice;

    use super::*;

    /// Returns a link that cannot segment: its socket computes no checksums, and for such a socket
    /// the kernel refuses to segment. The kernel also refuses on devices that cannot compute
    /// checksums.
    fn unable_to_segment() -> UdpLink {
        let link = UdpLink::bind(([127, 0, 0, 1], 0).into(), &UdpConfig::default()).unwrap();
        socket::set_option(link.socket.as_fd(), libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
        link
    }

    #[test]
    fn a_link_works_without_refused_segmentation_and_loses_no_frame() {
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
        // The link first reduces the number of segments per message, then stops segmenting.
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
}
