//! A second socket, connected to the peer with the most frames.
//!
//! For a connected socket, the kernel looks up the route once, and not for each message. When the
//! kernel finds a connected socket for a received message, it does not search for a better match.
//! Both sockets have the same local address, and the kernel delivers each message to the socket
//! that matches best. So the unconnected socket still receives the messages of all peers except the
//! connected peer.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use delivery::Instant;
use wire_edge::PeerAddr;

use super::address::{Family, SocketName};
use super::config::{UdpConfig, UdpFeatures};
use super::{setup, socket};

/// The connected socket.
#[derive(Debug)]
pub(super) struct HotSocket {
    pub(super) socket: OwnedFd,
    pub(super) peer: PeerAddr,
    /// The kernel's drop count as last reported, modulo 2^32.
    pub(super) drops_reported: u32,
    /// True if sending failed for a reason that may not affect the unconnected socket. The link
    /// sends no more frames through this socket, and closes it at the next receive.
    pub(super) has_failed: bool,
    /// True if the kernel reports receive times and congestion marks of this socket's messages.
    reports_details: bool,
    /// Number of consecutive receive calls that found at most one frame.
    quiet_calls: u32,
    family: Family,
    features: UdpFeatures,
}

impl HotSocket {
    /// Opens a socket with the address (`local`) and options of `main`, connected to `peer`.
    ///
    /// # Errors
    /// Returns any error of the kernel. In this case, `main` is unchanged.
    pub(super) fn open(
        main: &OwnedFd,
        local: &SocketName,
        peer: (PeerAddr, &SocketName),
        family: Family,
        config: &UdpConfig,
        features: UdpFeatures,
    ) -> io::Result<Self> {
        let opened = socket::open(family)?;
        let mut kept = features;
        if setup::set_options(opened.as_fd(), family, &mut kept)? > 0 {
            return Err(io::ErrorKind::Unsupported.into());
        }
        setup::ask_for_buffers(opened.as_fd(), config, &mut kept)?;
        // Only during these calls can another socket bind the address, and only a socket of the
        // same user.
        share_address(main, true)?;
        let result = share_address(&opened, true)
            .and_then(|()| socket::bind(opened.as_fd(), local))
            .and_then(|()| socket::connect(opened.as_fd(), peer.1));
        share_address(main, false)?;
        result?;
        share_address(&opened, false)?;
        Ok(Self {
            socket: opened,
            peer: peer.0,
            drops_reported: 0,
            has_failed: false,
            reports_details: true,
            quiet_calls: 0,
            family,
            features: kept,
        })
    }

    /// Notes that a call found `frames` frames, and that each of the last `streak` calls found
    /// frames. In a long exchange of single frames, disables the reports of receive times and
    /// congestion marks. A receive then costs 0.2 µs less. Such an exchange does not need the
    /// reports: the polling thread reads each frame right after its arrival, and no queue builds up
    /// whose frames switches could mark. When frames arrive close together again, enables the
    /// reports.
    #[inline]
    pub(super) fn note_frames(&mut self, frames: usize, streak: u8) {
        if frames > 1 || streak > 1 {
            self.quiet_calls = 0;
            if !self.reports_details {
                self.set_details(true);
            }
        } else if self.reports_details {
            self.quiet_calls += u32::from(frames == 1);
            if self.quiet_calls >= QUIET_CALLS_MIN {
                self.set_details(false);
            }
        }
    }

    /// Enables or disables the kernel's reports of receive times and congestion marks. Ignores
    /// errors, because the link works with and without the reports.
    #[cold]
    fn set_details(&mut self, reports_details: bool) {
        self.reports_details = reports_details;
        let socket = self.socket.as_fd();
        let value = i32::from(reports_details);
        if self.features.timestamps {
            let _ = socket::set_option(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, value);
        }
        if self.features.congestion_marks {
            let _ = match self.family {
                Family::V4 => socket::set_option(socket, libc::IPPROTO_IP, libc::IP_RECVTOS, value),
                Family::V6 => {
                    socket::set_option(socket, libc::IPPROTO_IPV6, libc::IPV6_RECVTCLASS, value)
                }
            };
        }
    }
}

fn share_address(socket: &OwnedFd, shared: bool) -> io::Result<()> {
    socket::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEPORT, shared.into())
}

/// Statistics of senders. From these, the link decides for which peer to open a connected socket,
/// and when to close it.
#[derive(Debug)]
pub(super) struct Traffic {
    /// The sender of the latest messages to the unconnected socket.
    peer: PeerAddr,
    /// Number of consecutive messages from `peer`.
    run: u32,
    /// Number of consecutive messages after which a peer gets a connected socket.
    run_min: u32,
    /// Number of messages to the unconnected socket after the latest message to the connected
    /// socket.
    foreign: u32,
    /// True if the unconnected socket may contain older messages than the connected socket.
    pub(super) has_older: bool,
    /// Number of receive calls since the last read of the unconnected socket.
    skipped: u8,
    looked_at: Instant,
}

impl Traffic {
    pub(super) fn new() -> Self {
        Self {
            peer: PeerAddr::default(),
            run: 0,
            run_min: RUN_MIN,
            foreign: 0,
            has_older: false,
            skipped: 0,
            looked_at: Instant(0),
        }
    }

    /// Records a message to the unconnected socket.
    #[inline]
    pub(super) fn note_main(&mut self, from: PeerAddr) {
        self.foreign = self.foreign.saturating_add(1);
        if from == self.peer {
            self.run = self.run.saturating_add(1);
        } else {
            self.peer = from;
            self.run = 1;
        }
    }

    /// Records a message to the connected socket.
    #[inline]
    pub(super) fn note_hot(&mut self) {
        self.foreign = 0;
    }

    /// Returns the peer for which to open a connected socket, if any.
    #[inline]
    pub(super) fn candidate(&self) -> Option<PeerAddr> {
        (self.run >= self.run_min).then_some(self.peer)
    }

    /// Returns whether the connected socket should be closed, because messages arrive only at the
    /// unconnected socket.
    #[inline]
    pub(super) fn is_elsewhere(&self) -> bool {
        self.foreign >= RUN_MIN
    }

    /// Records that a connected socket was opened, or that opening failed. After a success, the
    /// next connected socket requires a longer run of messages from one peer.
    pub(super) fn on_opened(&mut self, is_open: bool) {
        self.run = 0;
        self.foreign = 0;
        self.has_older = is_open;
        self.run_min = if is_open { (self.run_min * 2).min(RUN_MIN_MAX) } else { u32::MAX };
    }

    /// Returns whether this call should also read the unconnected socket. `is_busy`: the connected
    /// socket had messages.
    #[inline]
    pub(super) fn is_main_due(&mut self, now: Instant, is_busy: bool) -> bool {
        let limit_ns = if is_busy { BUSY_NS_MAX } else { SKIPPED_NS_MAX };
        let is_due = self.skipped >= SKIPPED_MAX || now.since_ns(self.looked_at) >= limit_ns;
        if is_due {
            self.skipped = 0;
            self.looked_at = now;
        } else {
            self.skipped += 1;
        }
        is_due
    }
}

/// Number of consecutive messages after which a peer gets a connected socket. Opening the socket
/// costs 20 µs, and the socket saves 0.3 µs per message. So about 64 further messages recover the
/// cost.
pub(super) const RUN_MIN: u32 = 64;

/// Number of receives of single frames, with pauses between them, after which the reports are
/// disabled. Disabling the reports takes two system calls of 0.2 µs. A few further receives recover
/// this cost.
const QUIET_CALLS_MIN: u32 = 64;

/// Maximum of `run_min`, which doubles with each socket. Without the doubling, peers that send
/// alternately could each cause a new socket again and again. In a ping-pong, this number of
/// messages takes about a second.
const RUN_MIN_MAX: u32 = 1 << 17;

/// Maximum number of consecutive calls that read only the connected socket. Reading the unconnected
/// socket costs 0.3 µs.
const SKIPPED_MAX: u8 = 15;

/// Longest time between reads of the unconnected socket, in nanoseconds: about a round trip.
const SKIPPED_NS_MAX: u64 = 5_000;

/// Longest time between reads of the unconnected socket while the connected socket always has
/// messages, in nanoseconds.
const BUSY_NS_MAX: u64 = 50_000;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn peer(port: u16) -> PeerAddr {
        PeerAddr::from(SocketAddr::from(([10, 0, 0, 1], port)))
    }

    #[test]
    fn only_an_uninterrupted_run_of_frames_earns_a_peer_its_own_socket() {
        let mut traffic = Traffic::new();
        for _ in 0..10 * RUN_MIN {
            traffic.note_main(peer(1));
            traffic.note_main(peer(2));
            assert_eq!(traffic.candidate(), None);
        }
        for _ in 0..RUN_MIN {
            traffic.note_main(peer(3));
        }
        assert_eq!(traffic.candidate(), Some(peer(3)));
    }

    #[test]
    fn an_address_is_shared_only_with_sockets_of_the_same_user() {
        // If the kernel accepted `SO_REUSEADDR` for sharing, a socket of any user could bind the
        // address, and would receive messages for our socket.
        let reuse = |socket: &OwnedFd| {
            socket::set_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_REUSEADDR, 1)
        };
        let open = || socket::open(Family::V4).expect("a socket");
        let (main, own, strange) = (open(), open(), open());
        let name = SocketName::new(&([127, 0, 0, 1], 0).into());
        socket::bind(main.as_fd(), &name).expect("loopback");
        let name = socket::local_name(main.as_fd()).expect("it is bound");
        share_address(&main, true).expect("it can be shared");
        reuse(&strange).expect("a common option");
        let refused = socket::bind(strange.as_fd(), &name).expect_err("the address is not shared");
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        share_address(&own, true).expect("it can be shared");
        socket::bind(own.as_fd(), &name).expect("the address is shared");
        for socket in [&main, &own] {
            share_address(socket, false).expect("sharing ends");
        }
        let late = open();
        share_address(&late, true).expect("the option can be set");
        socket::bind(late.as_fd(), &name).expect_err("sharing has ended");
    }

    #[test]
    fn each_further_socket_needs_a_longer_run() {
        let mut traffic = Traffic::new();
        traffic.on_opened(true);
        for _ in 0..RUN_MIN {
            traffic.note_main(peer(1));
        }
        assert!(traffic.is_elsewhere());
        assert_eq!(traffic.candidate(), None);
        for _ in 0..RUN_MIN {
            traffic.note_main(peer(1));
        }
        assert_eq!(traffic.candidate(), Some(peer(1)));
    }

    #[test]
    fn a_refused_socket_is_not_requested_again() {
        let mut traffic = Traffic::new();
        traffic.on_opened(false);
        for _ in 0..10 * RUN_MIN_MAX {
            traffic.note_main(peer(1));
        }
        assert_eq!(traffic.candidate(), None);
    }

    #[test]
    fn the_unconnected_socket_is_polled_after_some_calls_or_some_time() {
        let mut traffic = Traffic::new();
        let at = Instant(1_000_000);
        assert!(traffic.is_main_due(at, true));
        for _ in 0..SKIPPED_MAX {
            assert!(!traffic.is_main_due(at, false));
        }
        assert!(traffic.is_main_due(at, true));
        assert!(!traffic.is_main_due(at, false));
        let at = at.after_ns(SKIPPED_NS_MAX);
        assert!(!traffic.is_main_due(at, true));
        assert!(traffic.is_main_due(at, false));
        assert!(traffic.is_main_due(at.after_ns(BUSY_NS_MAX), true));
    }
}
