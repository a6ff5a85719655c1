//! Sends runs of equal-sized frames. Each run becomes one message, which the kernel reads directly
//! from registered memory.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use delivery::TxBatch;
use libc::{c_uint, iovec, mmsghdr, msghdr};
use wire_edge::PeerAddr;

use super::address::{Family, SocketName};
use super::control::SegmentControl;
use super::stage::Stage;

/// Maximum number of frames in one segmented message on any kernel (`UDP_MAX_SEGMENTS` since 6.9).
pub(super) const SEGMENTS_MAX: usize = 128;

/// Number of frames in one segmented message that every kernel with segmentation accepts.
pub(super) const SEGMENTS_SAFE: usize = 64;

/// Maximum number of messages in one `sendmmsg`.
const MESSAGES_MAX: usize = 64;

/// Maximum number of entries in a message: a header and a payload per frame. This is far below the
/// kernel's limit of 1024.
const VECTORS_MAX: usize = 2 * SEGMENTS_MAX;

/// Maximum number of bytes in one message: the largest IPv4 packet without its headers.
const MESSAGE_BYTES_MAX: usize = 65_535 - 20 - 8;

/// State for sending that is not in the batch. Allocates only when created.
#[derive(Debug)]
pub(super) struct Transmitter {
    vectors: Vec<iovec>,
    messages: Vec<mmsghdr>,
    control: SegmentControl,
    stage: Stage,
    family: Family,
    scope: u32,
    /// The peer whose address is in `name`.
    peer: PeerAddr,
    name: SocketName,
    /// True if the next messages go through a connected socket and need no address.
    is_connected: bool,
}

/// Frames that are sent as one message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Run {
    /// Number of frames, at least 1.
    pub(super) frames: usize,
    /// Total number of bytes.
    pub(super) bytes: usize,
    /// Number of bytes of each frame except the last, which may be shorter.
    pub(super) segment_bytes: usize,
}

impl Transmitter {
    /// Creates a transmitter for a socket of `family`. `scope` is the scope of its link-local
    /// peers.
    pub(super) fn new(family: Family, scope: u32) -> Self {
        Self {
            vectors: Vec::with_capacity(VECTORS_MAX),
            messages: Vec::with_capacity(MESSAGES_MAX),
            control: SegmentControl::new(),
            stage: Stage::new(MESSAGE_BYTES_MAX),
            family,
            scope,
            peer: PeerAddr::default(),
            name: SocketName::default(),
            is_connected: false,
        }
    }

    /// Sets the destination of the next messages. Returns false if the socket cannot reach `peer`.
    #[must_use]
    pub(super) fn set_peer(&mut self, peer: PeerAddr) -> bool {
        if peer == self.peer {
            return peer != PeerAddr::default();
        }
        let Some(name) = SocketName::of_peer(peer, self.family, self.scope) else { return false };
        self.peer = peer;
        self.name = name;
        true
    }

    /// Sets whether the next messages go through a socket that is connected to the peer.
    pub(super) const fn set_connected(&mut self, is_connected: bool) {
        self.is_connected = is_connected;
    }

    /// Returns the value last set by [`Transmitter::set_connected`].
    pub(super) const fn is_connected(&self) -> bool {
        self.is_connected
    }

    /// Returns the scope of link-local peers.
    pub(super) const fn scope(&self) -> u32 {
        self.scope
    }

    /// Gathers the longest run that starts at frame `first` of the batch. The run has at most
    /// `frames_max` frames.
    ///
    /// Frames whose payload is in the batch are adjacent there. Any number of such frames is
    /// therefore one entry for the kernel.
    pub(super) fn gather(&mut self, batch: &TxBatch, first: usize, frames_max: usize) -> Run {
        self.vectors.clear();
        let segment_bytes = batch.frame(first).len();
        let mut run = Run { frames: 0, bytes: 0, segment_bytes };
        let mut continues = false;
        while run.frames < frames_max && first + run.frames < batch.len() {
            let frame = batch.frame(first + run.frames);
            let len = frame.len();
            let is_room = run.bytes + len <= MESSAGE_BYTES_MAX
                && self.vectors.len() + 2 <= self.vectors.capacity();
            if run.frames > 0 && (len > segment_bytes || !is_room) {
                break;
            }
            push_frame(&mut self.vectors, &mut continues, frame);
            run.frames += 1;
            run.bytes += len;
            if len < segment_bytes || len == 0 {
                break;
            }
        }
        run
    }

    /// Sends the run that was gathered last as one message.
    pub(super) fn send_run(&mut self, socket: BorrowedFd<'_>, run: Run) -> io::Result<()> {
        if self.is_connected
            && run.frames == 1
            && let [piece] = self.vectors.as_slice()
        {
            // SAFETY: the entry is header or payload bytes of the batch, which the caller borrows.
            // The kernel checks its reads of payload: unmapped memory gives `EFAULT`.
            let sent = unsafe { send_bytes(socket, piece) };
            return if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
        }
        let mut whole;
        let (vectors, count) = match self.put_together(run).transpose()? {
            Some(piece) => {
                whole = piece;
                (&raw mut whole, 1)
            }
            None => (self.vectors.as_mut_ptr(), self.vectors.len()),
        };
        let mut header = self.header(vectors, count);
        if run.frames > 1 {
            self.control.set(run.segment_bytes as u16);
            header.msg_control = self.control.bytes().as_ptr().cast_mut().cast();
            header.msg_controllen = self.control.bytes().len() as _;
        }
        // SAFETY: the name, the control data and the array of entries belong to `self`, and the
        // kernel does not write them. Either the entries are payload and header bytes of the batch,
        // which the caller borrows. Or they are one entry in a buffer of `self`. The kernel checks
        // its reads of payload: unmapped memory gives `EFAULT`.
        let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const header, SEND_FLAGS) };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Copies the entries of the run into one buffer, if a copy is faster and permitted.
    #[inline]
    fn put_together(&mut self, run: Run) -> Option<io::Result<iovec>> {
        let is_worth = Stage::is_worth(self.vectors.len(), run.segment_bytes);
        if is_worth { self.stage.copy(&self.vectors) } else { None }
    }

    /// Sends frames from `first` on, each as one message. Returns their number, at least 1.
    pub(super) fn send_each(
        &mut self,
        socket: BorrowedFd<'_>,
        batch: &TxBatch,
        first: usize,
        frames_max: usize,
    ) -> io::Result<usize> {
        self.vectors.clear();
        self.messages.clear();
        let vectors = self.vectors.as_mut_ptr();
        let end = batch.len().min(first + frames_max.min(MESSAGES_MAX));
        for index in first..end {
            let start = self.vectors.len();
            push_frame(&mut self.vectors, &mut false, batch.frame(index));
            // The vector never exceeds its capacity (two entries for each of 64 frames), so its
            // memory does not move.
            let header = self.header(vectors.wrapping_add(start), self.vectors.len() - start);
            self.messages.push(mmsghdr { msg_hdr: header, msg_len: 0 });
        }
        if let [only] = self.messages.as_slice() {
            // SAFETY: the name and the array of entries belong to `self`, and the kernel does not
            // write them. The entries are header and payload bytes of the batch, which the caller
            // borrows. The kernel checks its reads of payload: unmapped memory gives `EFAULT`.
            let sent =
                unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const only.msg_hdr, SEND_FLAGS) };
            return if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(1) };
        }
        // SAFETY: the name, the message headers and the array of entries belong to `self`. The
        // kernel writes only the `msg_len` of each message. The entries are header and payload
        // bytes of the batch, which the caller borrows. The kernel checks its reads of payload:
        // unmapped memory gives `EFAULT`.
        let sent = unsafe {
            libc::sendmmsg(
                socket.as_raw_fd(),
                self.messages.as_mut_ptr(),
                self.messages.len() as c_uint,
                SEND_FLAGS,
            )
        };
        if sent < 0 { Err(io::Error::last_os_error()) } else { Ok(sent as usize) }
    }

    fn header(&self, vectors: *mut iovec, count: usize) -> msghdr {
        // SAFETY: all-zero bytes are a valid `msghdr`.
        let mut header: msghdr = unsafe { zeroed() };
        if !self.is_connected {
            header.msg_name = self.name.as_ptr().cast_mut().cast();
            header.msg_namelen = self.name.len();
        }
        header.msg_iov = vectors;
        header.msg_iovlen = count as _;
        header.msg_control = ptr::null_mut();
        header
    }
}

/// Sends bytes without a message header. This is 5 % cheaper than `sendmsg`, because the kernel has
/// no message header to copy and check. The call avoids the C library's function, which is a
/// cancellation point and costs two atomic operations in a program with threads.
///
/// # Safety
/// The kernel checks its reads of the entry. The caller must ensure that these bytes may be sent.
unsafe fn send_bytes(socket: BorrowedFd<'_>, piece: &iovec) -> libc::c_long {
    let no_address: *const libc::sockaddr = ptr::null();
    let nothing: libc::c_ulong = 0;
    // SAFETY: unmapped memory gives `EFAULT`, and no address is passed.
    unsafe {
        libc::syscall(
            libc::SYS_sendto,
            socket.as_raw_fd(),
            piece.iov_base,
            piece.iov_len,
            SEND_FLAGS,
            no_address,
            nothing,
        )
    }
}

const SEND_FLAGS: libc::c_int = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;

#[inline]
fn push_frame(vectors: &mut Vec<iovec>, continues: &mut bool, frame: delivery::TxFrame<'_>) {
    match vectors.last_mut() {
        Some(last) if *continues => last.iov_len += frame.header.len(),
        _ => vectors.push(iovec {
            iov_base: frame.header.as_ptr().cast_mut().cast(),
            iov_len: frame.header.len(),
        }),
    }
    *continues = frame.payload.len == 0;
    if frame.payload.len > 0 {
        vectors.push(iovec {
            iov_base: frame.payload.start.cast_mut().cast(),
            iov_len: frame.payload.len as usize,
        });
    }
}

// SAFETY: the pointers belong to the last batch, and are used only while that batch is borrowed.
unsafe impl Send for Transmitter {}

#[cfg(test)]
mod tests {
    use mem::PayloadSlice;

    use super::*;

    const MEMORY: [u8; 2000] = [0; 2000];

    /// Returns a batch of frames. Each is given by its number of header bytes and of payload bytes.
    fn batch(frames: &[(usize, u32)]) -> TxBatch {
        let mut batch = TxBatch::new(256, 1 << 20);
        for &(header, payload) in frames {
            let len = batch.header_mut().len();
            batch.header_mut().resize(len + header, 0);
            batch.finish_frame(PayloadSlice::at(MEMORY.as_ptr(), payload));
        }
        batch
    }

    fn runs(frames: &[(usize, u32)], frames_max: usize) -> Vec<(usize, usize)> {
        let batch = batch(frames);
        let mut transmitter = Transmitter::new(Family::V4, 0);
        let mut runs = vec![];
        let mut first = 0;
        while first < batch.len() {
            let run = transmitter.gather(&batch, first, frames_max);
            let bytes: usize = transmitter.vectors.iter().map(|vector| vector.iov_len).sum();
            assert_eq!(bytes, run.bytes);
            runs.push((run.frames, transmitter.vectors.len()));
            first += run.frames;
        }
        runs
    }

    #[test]
    fn frames_with_inline_payload_have_one_sge() {
        assert_eq!(runs(&[(40, 0); 64], 64), [(64, 1)]);
        assert_eq!(runs(&[(40, 0); 128], 128), [(128, 1)]);
    }

    #[test]
    fn frames_with_external_payload_have_two_sges() {
        assert_eq!(runs(&[(32, 1440); 44], 64), [(44, 88)]);
    }

    #[test]
    fn a_run_ends_after_a_shorter_frame_and_before_a_longer_one() {
        assert_eq!(
            runs(&[(40, 0), (40, 0), (30, 0), (30, 0), (50, 0)], 64),
            [(3, 1), (1, 1), (1, 1)]
        );
    }

    #[test]
    fn frames_of_one_size_share_a_run_whatever_their_sges() {
        assert_eq!(runs(&[(40, 0), (40, 0), (30, 10), (40, 0)], 64), [(4, 3)]);
    }

    #[test]
    fn a_message_stays_below_the_largest_packet() {
        assert_eq!(runs(&[(32, 1440); 50], 64), [(44, 88), (6, 12)]);
        assert_eq!(runs(&[(40, 0); 130], 64), [(64, 1), (64, 1), (2, 1)]);
    }

    #[test]
    fn an_oversized_frame_is_a_run_of_its_own() {
        assert_eq!(runs(&[(70_000, 0), (40, 0)], 64), [(1, 1), (1, 1)]);
    }

    #[test]
    fn a_peer_of_another_family_is_refused_and_the_last_peer_is_kept() {
        let mut transmitter = Transmitter::new(Family::V4, 0);
        let v4 = PeerAddr::from(std::net::SocketAddr::from(([127, 0, 0, 1], 9)));
        let v6 = PeerAddr::from("[::1]:9".parse::<std::net::SocketAddr>().unwrap());
        assert!(!transmitter.set_peer(PeerAddr::default()));
        assert!(transmitter.set_peer(v4));
        assert!(!transmitter.set_peer(v6));
        assert!(transmitter.set_peer(v4));
        assert_eq!(transmitter.name.peer(), Some(v4));
    }
}
