//! Interprets failed system calls. An error often concerns an earlier datagram; the error queue
//! then has the details.

use std::io;

use delivery::{Evidence, LinkEvent, TxBatch};

use super::control::{ControlBuffer, ErrorReport};
use super::receive::{self, ReceiveRing};
use super::transmit::Run;
use super::{ATTEMPTS_MAX, UdpLink, Which, fd_of};

impl UdpLink {
    /// Classifies the error of a receive call. If the error concerns an earlier send, reads the
    /// error queue.
    #[cold]
    pub(super) fn on_receive_error(&mut self, error: io::Error) -> io::Result<Receiving> {
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

    /// Classifies the error of a send call for `run`.
    #[cold]
    pub(super) fn on_send_error(
        &mut self,
        error: &io::Error,
        batch: &TxBatch,
        first: usize,
        run: Run,
        attempts: usize,
    ) -> Sending {
        let Some(errno) = error.raw_os_error() else { return Sending::Failed };
        match errno {
            libc::ENOBUFS if self.refusals.is_lost() => {
                self.statistics.send_full += 1;
                Sending::Lost
            }
            libc::EAGAIN => Sending::Full,
            libc::ENOBUFS | libc::ENOMEM => {
                self.doubtful = run.frames;
                Sending::Full
            }
            libc::EINTR => Sending::Again,
            // Send the frames one by one to find the bad frame.
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
                    // The error concerned an earlier send, and the kernel did not attempt this
                    // send.
                    return Sending::Again;
                }
                if errno == libc::EMSGSIZE {
                    self.statistics.send_too_big += run.frames as u64;
                    self.check_interface();
                    if !drained.local_too_big {
                        let len = batch.frame(first).len().saturating_sub(1) as u16;
                        self.watch.push(LinkEvent::TooBig(
                            batch.to(),
                            len.min(self.caps.frame_bytes_max),
                            Evidence::Local,
                        ));
                    }
                    return Sending::Lost;
                }
                if let Some(hot) = &mut self.hot
                    && hot.peer == batch.to()
                    && !hot.has_failed
                {
                    // The connected socket uses the route that the kernel looked up when the socket
                    // was connected. Another route may still work, so use the unconnected socket.
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

    /// Reads the error queues and converts their reports to events.
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
            let Ok(failed) = receive::receive_error(socket, &mut control) else { break };
            self.statistics.errors_reported += 1;
            let report = control.0.get(..failed.control_bytes).and_then(ErrorReport::parse);
            let Some(report) = report else { continue };
            drained.any |= !report.is_local;
            let Some(peer) = failed.name.peer() else { continue };
            let evidence =
                if report.is_local { Evidence::Local } else { Evidence::quoted(failed.head()) };
            match report.errno {
                libc::EMSGSIZE => {
                    drained.local_too_big |= report.is_local;
                    let frame_bytes = report.info.saturating_sub(self.family.header_bytes());
                    let frame_bytes = u16::try_from(frame_bytes).unwrap_or(u16::MAX);
                    self.watch.push(LinkEvent::TooBig(peer, frame_bytes, evidence));
                }
                libc::ECONNREFUSED => self.watch.push(LinkEvent::Refused(peer, evidence)),
                _ => {}
            }
        }
    }
}

/// Meaning of a failed receive call.
pub(super) enum Receiving {
    /// No message waits.
    Empty,
    /// The error concerned an earlier operation, and not this receive. Frames may be waiting, so
    /// the caller must retry.
    Again,
}

/// Meaning of a failed send call.
pub(super) enum Sending {
    /// The error concerned an earlier operation, so a retry may succeed.
    Again,
    /// The kernel has no room.
    Full,
    /// The host cannot send these frames to this peer, or the kernel has refused them for too long.
    Lost,
    /// The frames must be sent one by one.
    Singly,
    /// The socket is unusable, or payload memory is unmapped.
    Failed,
}

/// Summary of the reports in the error queues.
#[derive(Clone, Copy, Default)]
struct Drained {
    /// True if there was a report from the network.
    any: bool,
    /// True if this host reported that a frame was too big.
    local_too_big: bool,
}

/// Returns whether the error concerns an earlier datagram. The kernel returns such an error from
/// the next call on the socket, whatever that call does.
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

/// Returns whether the error would occur for all peers and frames.
const fn is_failure_of_the_socket(errno: i32) -> bool {
    matches!(errno, libc::EBADF | libc::ENOTSOCK | libc::EPIPE | libc::ENOSYS)
}

/// Maximum number of reports read from the error queue at a time. The next error causes a read of
/// the remaining reports.
const ERRORS_MAX: usize = 64;
