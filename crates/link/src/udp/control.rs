//! Control messages, in which the kernel reports details about a datagram.

use std::mem::{align_of, size_of};

use libc::{c_int, cmsghdr};

/// The kernel's report about one received message.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Ancillary {
    /// Size of each coalesced frame except the last, in bytes; 0 if the message is one frame.
    pub(super) segment_bytes: u32,
    /// Receive time on the wall clock in nanoseconds since 1970, if the kernel reported one.
    pub(super) wall_ns: Option<u64>,
    /// True if the network marked congestion.
    pub(super) congestion_experienced: bool,
    /// Number of frames that the kernel has dropped on this socket, modulo 2^32, if reported.
    pub(super) drops: Option<u32>,
}

/// A report from the error queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct ErrorReport {
    /// The reported `errno`.
    pub(super) errno: c_int,
    /// True if this host rejected the datagram, and false if the network rejected it.
    pub(super) is_local: bool,
    /// If `errno` is `EMSGSIZE`: size of the largest IP packet that passes, in bytes.
    pub(super) info: u32,
}

/// Size of the buffer for control messages, in bytes. It has room for one control message of each
/// requested kind.
///
/// With headers, the kinds take: timestamp 32 bytes, type of service 24, traffic class 24, segment
/// size 24, drop count 24. The sum is 128 bytes. An error report takes 60 bytes, rounded up to 64.
pub(super) const CONTROL_BYTES: usize = 128;

/// A buffer for control messages, aligned as the kernel requires.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(super) struct ControlBuffer(pub(super) [u8; CONTROL_BYTES]);

impl Default for ControlBuffer {
    fn default() -> Self {
        Self([0; CONTROL_BYTES])
    }
}

impl Ancillary {
    /// Parses the control messages of a received message. Ignores unknown control messages.
    pub(super) fn parse(control: &[u8]) -> Self {
        let mut ancillary = Self::default();
        for message in messages(control) {
            match (message.level, message.kind) {
                (libc::SOL_UDP, libc::UDP_GRO) => {
                    ancillary.segment_bytes = message.integer().unwrap_or(0);
                }
                (libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS) => {
                    ancillary.wall_ns = message.timespec_ns();
                }
                // The value is one byte (IPv4) or an integer (IPv6). Only the two ECN bits are
                // used.
                (libc::IPPROTO_IP, libc::IP_TOS) => {
                    ancillary.congestion_experienced |=
                        message.data.first().is_some_and(|tos| tos & ECN_MASK == ECN_CE);
                }
                (libc::IPPROTO_IPV6, libc::IPV6_TCLASS) => {
                    ancillary.congestion_experienced |=
                        message.integer().is_some_and(|class| class as u8 & ECN_MASK == ECN_CE);
                }
                (libc::SOL_SOCKET, libc::SO_RXQ_OVFL) => ancillary.drops = message.integer(),
                _ => {}
            }
        }
        ancillary
    }
}

impl ErrorReport {
    /// Parses the control messages of a message from the error queue.
    pub(super) fn parse(control: &[u8]) -> Option<Self> {
        messages(control).find_map(|message| match (message.level, message.kind) {
            (libc::IPPROTO_IP, libc::IP_RECVERR) | (libc::IPPROTO_IPV6, libc::IPV6_RECVERR) => {
                let d = message.data.get(..size_of::<libc::sock_extended_err>())?;
                Some(Self {
                    errno: c_int::from_ne_bytes(*d.first_chunk()?),
                    is_local: *d.get(4)? == libc::SO_EE_ORIGIN_LOCAL,
                    info: u32::from_ne_bytes(*d.get(8..)?.first_chunk()?),
                })
            }
            _ => None,
        })
    }
}

/// Control data of a sent message: its segment size.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub(super) struct SegmentControl([u8; SEGMENT_CONTROL_BYTES]);

/// `CMSG_SPACE` of the 16-bit segment size.
const SEGMENT_CONTROL_BYTES: usize = HEADER_BYTES + align(size_of::<u16>());

impl SegmentControl {
    /// Creates control data with a segment size of 0; [`SegmentControl::set`] changes it.
    pub(super) fn new() -> Self {
        let mut buffer = [0; SEGMENT_CONTROL_BYTES];
        put_header(&mut buffer, HEADER_BYTES + size_of::<u16>(), libc::SOL_UDP, libc::UDP_SEGMENT);
        Self(buffer)
    }

    /// Sets the segment size, in bytes.
    pub(super) fn set(&mut self, segment_bytes: u16) {
        self.0[HEADER_BYTES..HEADER_BYTES + 2].copy_from_slice(&segment_bytes.to_ne_bytes());
    }

    /// Returns the bytes for the kernel to read.
    pub(super) const fn bytes(&self) -> &[u8] {
        &self.0
    }
}

struct Message<'a> {
    level: c_int,
    kind: c_int,
    data: &'a [u8],
}

impl Message<'_> {
    fn integer(&self) -> Option<u32> {
        Some(u32::from_ne_bytes(*self.data.first_chunk()?))
    }

    fn timespec_ns(&self) -> Option<u64> {
        let data = self.data.get(..size_of::<libc::timespec>())?;
        // SAFETY: the slice has the length of a `timespec`, for which every bit pattern is valid.
        let time: libc::timespec =
            unsafe { data.as_ptr().cast::<libc::timespec>().read_unaligned() };
        let seconds = u64::try_from(time.tv_sec).ok().filter(|&seconds| seconds > 0)?;
        seconds.checked_mul(1_000_000_000)?.checked_add(u64::try_from(time.tv_nsec).ok()?)
    }
}

/// Iterates over the control messages in `control`. Stops at the first malformed message.
fn messages(control: &[u8]) -> impl Iterator<Item = Message<'_>> {
    let mut rest = control;
    core::iter::from_fn(move || {
        let bytes = rest.get(..size_of::<cmsghdr>())?;
        // SAFETY: the slice has the length of a `cmsghdr`, for which every bit pattern is valid.
        let header: cmsghdr = unsafe { bytes.as_ptr().cast::<cmsghdr>().read_unaligned() };
        let len = header.cmsg_len as usize;
        let data = rest.get(HEADER_BYTES..len)?;
        rest = rest.get(align(len)..).unwrap_or_default();
        Some(Message { level: header.cmsg_level, kind: header.cmsg_type, data })
    })
}

fn put_header(buffer: &mut [u8], len: usize, level: c_int, kind: c_int) {
    assert!(buffer.len() >= size_of::<cmsghdr>());
    // SAFETY: all-zero bytes are a valid `cmsghdr`.
    let mut header: cmsghdr = unsafe { core::mem::zeroed() };
    header.cmsg_len = len as _;
    header.cmsg_level = level;
    header.cmsg_type = kind;
    // SAFETY: the buffer is at least as long as a `cmsghdr`, as checked above.
    unsafe { buffer.as_mut_ptr().cast::<cmsghdr>().write_unaligned(header) };
}

const fn align(len: usize) -> usize {
    len.next_multiple_of(align_of::<usize>())
}

const HEADER_BYTES: usize = align(size_of::<cmsghdr>());
const ECN_MASK: u8 = 0b11;
const ECN_CE: u8 = 0b11;
/// "ECN-capable transport (0)", RFC 3168: the codepoint of every sent frame.
pub(super) const ECN_CAPABLE: c_int = 0b10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn message(level: c_int, kind: c_int, data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0; align(HEADER_BYTES + data.len())];
        put_header(&mut bytes, HEADER_BYTES + data.len(), level, kind);
        bytes[HEADER_BYTES..HEADER_BYTES + data.len()].copy_from_slice(data);
        bytes
    }

    #[test]
    fn all_control_messages_of_the_kernel_are_parsed() {
        let mut control = message(libc::SOL_UDP, libc::UDP_GRO, &1472u32.to_ne_bytes());
        let mut time = 5u64.to_ne_bytes().to_vec();
        time.extend_from_slice(&7u64.to_ne_bytes());
        control.extend(message(libc::SOL_SOCKET, libc::SCM_TIMESTAMPNS, &time));
        control.extend(message(libc::IPPROTO_IP, libc::IP_TOS, &[3]));
        control.extend(message(libc::SOL_SOCKET, libc::SO_RXQ_OVFL, &9u32.to_ne_bytes()));
        control.extend(message(libc::IPPROTO_IPV6, libc::IPV6_TCLASS, &2u32.to_ne_bytes()));
        assert!(control.len() <= CONTROL_BYTES);
        assert_eq!(
            Ancillary::parse(&control),
            Ancillary {
                segment_bytes: 1472,
                wall_ns: Some(5_000_000_007),
                congestion_experienced: true,
                drops: Some(9),
            }
        );
    }

    #[test]
    fn an_ecn_capable_packet_is_not_marked_as_congested() {
        let control = message(libc::IPPROTO_IP, libc::IP_TOS, &[2]);
        assert!(!Ancillary::parse(&control).congestion_experienced);
    }

    #[test]
    fn error_report_names_errno_origin_and_mtu() {
        let mut data = (libc::EMSGSIZE as u32).to_ne_bytes().to_vec();
        data.extend_from_slice(&[1, 0, 0, 0]);
        data.extend_from_slice(&1400u32.to_ne_bytes());
        data.extend_from_slice(&[0; 4 + 16]);
        let control = message(libc::IPPROTO_IP, libc::IP_RECVERR, &data);
        let report = ErrorReport::parse(&control).unwrap();
        assert_eq!(report, ErrorReport { errno: libc::EMSGSIZE, is_local: true, info: 1400 });
    }

    #[test]
    fn segment_size_reaches_the_kernel_as_sixteen_bits() {
        let mut control = SegmentControl::new();
        control.set(1472);
        let message = messages(control.bytes()).next().unwrap();
        assert_eq!((message.level, message.kind), (libc::SOL_UDP, libc::UDP_SEGMENT));
        assert_eq!(message.data, 1472u16.to_ne_bytes());
    }

    proptest! {
        #[test]
        fn no_control_data_panics(control in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Ancillary::parse(&control);
            let _ = ErrorReport::parse(&control);
        }
    }
}
