//! How an initiator connects.

use std::io;

use delivery::Instant;
use iwarp::{Config, Stream};
use link::tcp::TcpStream;
use nix::errno::Errno;
use rdma_cm::Over;

use super::{Entry, Found, Phase, segment_bytes};
use crate::journal::Journal;
use crate::parting::Parting;

impl Entry {
    /// Starts to connect.
    pub(super) fn connect(&mut self, now: Instant, journal: &Journal, found: &mut Found) {
        let Some(asking) = &self.asking else { return };
        found.worked = true;
        match TcpStream::connect(Some(asking.from), asking.to) {
            Ok(socket) => {
                self.socket = Some(socket);
                self.phase = Phase::Connecting { until: now.after_ns(CONNECT_NS) };
                (self.watches_room, self.is_writable, found.connects) = (true, true, true);
            }
            Err(error) => self.fail_to_connect(now, journal, &error, found),
        }
    }

    /// Begins to speak if the socket is connected now.
    pub(super) fn speak(&mut self, now: Instant, journal: &Journal, found: &mut Found) {
        if let Phase::Connecting { until } = self.phase
            && until <= now
        {
            let error = io::Error::from_raw_os_error(Errno::ETIMEDOUT as i32);
            return self.fail_to_connect(now, journal, &error, found);
        }
        if !std::mem::take(&mut self.is_writable) {
            return;
        }
        let (Some(asking), Some(socket)) = (&self.asking, &self.socket) else { return };
        let ended = match socket.take_error() {
            Ok(None) => None,
            Ok(Some(error)) | Err(error) => Some(error),
        };
        if let Some(error) = ended {
            return self.fail_to_connect(now, journal, &error, found);
        }
        if socket.peer_address().is_err() {
            // TCP has not connected yet; the socket is watched for it.
            return;
        }
        let config = Config { mss: segment_bytes(socket), ..asking.config };
        match Stream::initiate(config, &asking.private_data, now) {
            Ok(stream) => {
                self.phase = Phase::Open(Box::new(stream));
                (self.is_readable, self.is_writable, found.worked) = (true, true, true);
            }
            Err(_too_long) => {
                let error = io::Error::from_raw_os_error(Errno::EINVAL as i32);
                self.fail_to_connect(now, journal, &error, found);
            }
        }
    }

    /// Ends an attempt to connect with an error, which its caller gets.
    pub(crate) fn fail_to_connect(
        &mut self,
        now: Instant,
        journal: &Journal,
        error: &io::Error,
        found: &mut Found,
    ) {
        (found.worked, found.more) = (true, true);
        if error.kind() == io::ErrorKind::ConnectionRefused && self.tries_again(now, found) {
            return;
        }
        journal.not_connected(self.peer, error);
        let status = -error.raw_os_error().unwrap_or(Errno::EIO as i32);
        let over = match error.kind() {
            io::ErrorKind::ConnectionRefused => Over::Refused { status, private_data: Vec::new() },
            io::ErrorKind::TimedOut => Over::Unreachable,
            _ => Over::Failed { status },
        };
        if let Some(source) = self.source.take() {
            source.set_stream(None);
        }
        self.notify_of_end(over, found);
        self.phase = Phase::Parting(Parting::unconnected(now));
    }

    /// Lets an initiator connect again after a pause, because no program has answered. Returns
    /// false if it has tried often enough.
    pub(super) fn tries_again(&mut self, now: Instant, found: &mut Found) -> bool {
        let asking = self.asking.as_mut().filter(|asking| asking.tries + 1 < TRIES_MAX);
        let Some(asking) = asking else { return false };
        asking.tries += 1;
        self.phase = Phase::Pausing { until: now.after_ns(AGAIN_NS) };
        (found.paused, self.captured) = (self.socket.take(), None);
        true
    }
}

/// Time in which TCP must connect, in nanoseconds: as long as the peer has for its reply then.
const CONNECT_NS: u64 = 10_000_000_000;

/// Number of attempts to connect to a port at which no program listens, and the pause between them
/// in nanoseconds. Some programs connect twice to one port, and their servers reopen the listener
/// in between.
const TRIES_MAX: u32 = 5;
const AGAIN_NS: u64 = 30_000_000;
