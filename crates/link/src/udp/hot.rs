//! A second socket, connected to the peer that most frames are exchanged with.
//!
//! The kernel finds the way to the peer of a connected socket once, not for each message, and the
//! socket of a message without asking whether others fit better. Both sockets have the same local
//! address; the kernel gives each message to the one that fits it best, so what the connected one
//! does not get comes to the other as before.

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
    /// The kernel's drop count when it last reported it, modulo 2^32.
    pub(super) drops_reported: u32,
    /// Sending failed for a reason that the unconnected socket may not know: nothing more is sent
    /// through this one, and it is closed when next frames are received.
    pub(super) has_failed: bool,
    /// The kernel reports times of reception and congestion marks of this socket's messages.
    reports_details: bool,
    /// Calls in a row that found one frame at most.
    quiet_calls: u32,
    family: Family,
    features: UdpFeatures,
}

impl HotSocket {
    /// A socket with the address of `main` (`local`) and its options, connected to `peer`.
    ///
    /// # Errors
    /// Whatever the kernel refuses; `main` is as it was.
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
        // The address is shared for a moment only, and with sockets of the same user: before and after, this socket
        // alone has it.
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

    /// Notes that a call found `frames` frames, `streak` calls in a row having found some. A long exchange of single
    /// frames does not use times of reception, which the polling thread knows as well, nor marks, which report queues
    /// that such an exchange does not make; without them a reception costs 0.2 µs less. With the first frames that come
    /// close together they are reported again.
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

    /// What the kernel refuses here only costs or spares time, so its answer is not looked at.
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

/// Whom messages come from: finds the peer that is worth a socket, and when it no longer is.
#[derive(Debug)]
pub(super) struct Traffic {
    /// Who sent the latest messages to the unconnected socket.
    peer: PeerAddr,
    /// How many messages in a row those are.
    run: u32,
    /// Messages in a row that make a peer worth a socket.
    run_min: u32,
    /// Messages to the unconnected socket since the last one to the connected socket.
    foreign: u32,
    /// The unconnected socket may hold messages older than any of the connected one.
    pub(super) has_older: bool,
    /// Calls since the unconnected socket was looked at.
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

    /// Notes a message to the unconnected socket.
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

    /// Notes a message to the connected socket.
    #[inline]
    pub(super) fn note_hot(&mut self) {
        self.foreign = 0;
    }

    /// The peer that is worth a socket, if there is one.
    #[inline]
    pub(super) fn candidate(&self) -> Option<PeerAddr> {
        (self.run >= self.run_min).then_some(self.peer)
    }

    /// Whether the connected socket has nothing to do while the other one has.
    #[inline]
    pub(super) fn is_elsewhere(&self) -> bool {
        self.foreign >= RUN_MIN
    }

    /// Notes that a socket was opened, or could not be. The next one must be worth more.
    pub(super) fn on_opened(&mut self, is_open: bool) {
        self.run = 0;
        self.foreign = 0;
        self.has_older = is_open;
        self.run_min = if is_open { (self.run_min * 2).min(RUN_MIN_MAX) } else { u32::MAX };
    }

    /// Whether this call should look at the unconnected socket too, after the connected one was
    /// looked at and had something (`is_busy`) or not.
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

/// Messages in a row from one peer that make it worth a socket: at 20 µs for the socket and 0.3 µs
/// saved per message, it has paid for itself when as many have come again.
pub(super) const RUN_MIN: u32 = 64;

/// Receptions of single frames, with pauses between, after which times and marks are no longer reported: two system
/// calls of 0.2 µs have paid for themselves after as many.
const QUIET_CALLS_MIN: u32 = 64;

/// It doubles with each socket, so that peers that take turns do not cause one each time; up to
/// this, which is a second of ping-pong.
const RUN_MIN_MAX: u32 = 1 << 17;

/// Calls in a row that may look at the connected socket alone. A look costs 0.3 µs.
const SKIPPED_MAX: u8 = 15;

/// How long other peers may be kept waiting for a look, in nanoseconds: about a round trip.
const SKIPPED_NS_MAX: u64 = 5_000;

/// The same while the connected socket always has something.
const BUSY_NS_MAX: u64 = 50_000;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use super::*;

    fn peer(port: u16) -> PeerAddr {
        PeerAddr::from(SocketAddr::from(([10, 0, 0, 1], port)))
    }

    #[test]
    fn only_an_uninterrupted_run_makes_a_peer_worth_a_socket() {
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
    fn an_address_is_shared_with_sockets_of_the_same_user_alone() {
        // Anybody's socket may ask for this sort of sharing, and would get what comes for ours.
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
        let refused = socket::bind(strange.as_fd(), &name).expect_err("it is not theirs");
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
        share_address(&own, true).expect("it can be shared");
        socket::bind(own.as_fd(), &name).expect("it is shared with this one");
        for socket in [&main, &own] {
            share_address(socket, false).expect("sharing ends");
        }
        let late = open();
        share_address(&late, true).expect("it wants to share");
        socket::bind(late.as_fd(), &name).expect_err("it is shared no more");
    }

    #[test]
    fn each_socket_must_be_worth_more_than_the_one_before() {
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
    fn a_refused_socket_is_not_asked_for_again() {
        let mut traffic = Traffic::new();
        traffic.on_opened(false);
        for _ in 0..10 * RUN_MIN_MAX {
            traffic.note_main(peer(1));
        }
        assert_eq!(traffic.candidate(), None);
    }

    #[test]
    fn the_unconnected_socket_is_looked_at_after_some_calls_or_some_time() {
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
