//! Netlink requests to the kernel, and parsing of answers with every length checked.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libc::{c_int, socklen_t};

/// A netlink socket.
#[derive(Debug)]
pub(crate) struct Socket {
    fd: OwnedFd,
    sequence: u32,
}

impl Socket {
    /// Opens a socket of the routing family, subscribed to the events in `groups`, a bit mask of
    /// `RTMGRP_*`.
    pub(crate) fn route(groups: u32) -> io::Result<Self> {
        Self::open(libc::NETLINK_ROUTE, groups)
    }

    /// Opens a socket of the generic family.
    pub(crate) fn generic() -> io::Result<Self> {
        Self::open(libc::NETLINK_GENERIC, 0)
    }

    fn open(protocol: c_int, groups: u32) -> io::Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: takes no pointers.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, protocol) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and has no other owner.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        // SAFETY: all-zero bytes are a valid name: the kernel chooses the port.
        let mut name: libc::sockaddr_nl = unsafe { zeroed() };
        name.nl_family = libc::AF_NETLINK as u16;
        name.nl_groups = groups;
        let bytes = size_of::<libc::sockaddr_nl>() as socklen_t;
        // SAFETY: `name` outlives the call and has the length given.
        if unsafe { libc::bind(fd.as_raw_fd(), (&raw const name).cast(), bytes) } < 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { fd, sequence: 0 })
    }

    /// Sends a request, and calls `on_message` with the body of each message of the answer. The
    /// function adds `NLM_F_REQUEST` to `flags`. With `NLM_F_DUMP`, the answer has many messages.
    pub(crate) fn ask(
        &mut self,
        kind: u16,
        flags: c_int,
        body: &[u8],
        on_message: &mut dyn FnMut(&[u8]),
    ) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        let is_dump = flags & libc::NLM_F_DUMP == libc::NLM_F_DUMP;
        // The answer to a request without `NLM_F_DUMP` ends with an acknowledgement.
        let ends = if is_dump { 0 } else { libc::NLM_F_ACK };
        let flags = (libc::NLM_F_REQUEST | flags | ends) as u16;
        let mut request = Vec::with_capacity(HEADER_BYTES + body.len());
        request.extend_from_slice(&((HEADER_BYTES + body.len()) as u32).to_ne_bytes());
        request.extend_from_slice(&kind.to_ne_bytes());
        request.extend_from_slice(&flags.to_ne_bytes());
        request.extend_from_slice(&self.sequence.to_ne_bytes());
        request.extend_from_slice(&0_u32.to_ne_bytes());
        request.extend_from_slice(body);
        // SAFETY: `request` outlives the call and has the length given.
        let sent =
            unsafe { libc::send(self.fd.as_raw_fd(), request.as_ptr().cast(), request.len(), 0) };
        if sent < 0 {
            return Err(io::Error::last_os_error());
        }
        let mut buffer = vec![0; BUFFER_BYTES];
        loop {
            let bytes = self.receive(&mut buffer, 0)?;
            for message in messages(buffer.get(..bytes).unwrap_or_default()) {
                if message.sequence != self.sequence {
                    continue;
                }
                match c_int::from(message.kind) {
                    libc::NLMSG_DONE => return Ok(()),
                    libc::NLMSG_ERROR => return outcome(message.body),
                    _ => on_message(message.body),
                }
            }
        }
    }

    /// Discards queued events without parsing them. Returns whether there were any. Events that the
    /// kernel lost also count. Does not block.
    pub(crate) fn take_events(&self) -> io::Result<bool> {
        // One byte is enough, because the kernel truncates each message to the size of the buffer.
        let mut byte = [0];
        for taken in 0..EVENTS_MAX {
            match self.receive(&mut byte, libc::MSG_DONTWAIT) {
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(taken > 0),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn receive(&self, buffer: &mut [u8], flags: c_int) -> io::Result<usize> {
        loop {
            // SAFETY: `buffer` outlives the call and has the length given.
            let bytes = unsafe {
                libc::recv(self.fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags)
            };
            if bytes >= 0 {
                return Ok(bytes as usize);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A netlink message and its sequence number.
struct Numbered<'a> {
    kind: u16,
    sequence: u32,
    body: &'a [u8],
}

/// Iterates over the messages in received bytes. Stops at the first truncated message.
fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Numbered<'_>> {
    std::iter::from_fn(move || {
        let length = u32_at(bytes, 0)? as usize;
        let (kind, sequence) = (u16_at(bytes, 4)?, u32_at(bytes, 8)?);
        let body = bytes.get(HEADER_BYTES..length)?;
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
        Some(Numbered { kind, sequence, body })
    })
}

/// Returns the result in the body of an error message. Code 0 is an acknowledgement.
fn outcome(body: &[u8]) -> io::Result<()> {
    let code = u32_at(body, 0).unwrap_or_default().cast_signed();
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code.saturating_neg())) }
}

/// Iterates over the attributes in `bytes`; each is a type and its content. Stops at the first
/// truncated attribute.
pub(crate) fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (length, kind) = (usize::from(u16_at(bytes, 0)?), u16_at(bytes, 2)?);
        let content = bytes.get(ATTRIBUTE_HEADER_BYTES..length)?;
        bytes = bytes.get(aligned(length)..).unwrap_or_default();
        // Two bits of the type describe the layout of the content, so remove them.
        Some((kind & 0x3fff, content))
    })
}

/// Appends an attribute.
pub(crate) fn put_attribute(to: &mut Vec<u8>, kind: u16, content: &[u8]) {
    let length = (ATTRIBUTE_HEADER_BYTES + content.len()) as u16;
    to.extend_from_slice(&length.to_ne_bytes());
    to.extend_from_slice(&kind.to_ne_bytes());
    to.extend_from_slice(content);
    to.resize(aligned(to.len()), 0);
}

/// Returns the number at `offset`, in host byte order.
pub(crate) fn u32_at(bytes: &[u8], offset: usize) -> Option<u32> {
    bytes.get(offset..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
}

/// Returns the number at `offset`, in host byte order.
pub(crate) fn u16_at(bytes: &[u8], offset: usize) -> Option<u16> {
    bytes.get(offset..)?.first_chunk().map(|bytes| u16::from_ne_bytes(*bytes))
}

/// Returns the text of a zero-terminated string.
pub(crate) fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(bytes.get(..end).unwrap_or_default()).into_owned()
}

const fn aligned(length: usize) -> usize {
    length.next_multiple_of(4)
}

/// Size of `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;

/// Size of `struct nlattr`.
const ATTRIBUTE_HEADER_BYTES: usize = 4;

/// Maximum number of events discarded per call. If there are more, the socket stays readable.
const EVENTS_MAX: usize = 64;

/// Size of the receive buffer: the kernel sends at most 32 KiB in one message of a dump.
const BUFFER_BYTES: usize = 32 << 10;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parsed_attributes_equal_written_attributes(
            given in proptest::collection::vec(
                (0_u16..0x3fff, proptest::collection::vec(any::<u8>(), 0..20)), 0..6),
        ) {
            let mut bytes = Vec::new();
            for (kind, content) in &given {
                put_attribute(&mut bytes, *kind, content);
            }
            let found: Vec<_> = attributes(&bytes).map(|(k, c)| (k, c.to_vec())).collect();
            prop_assert_eq!(found, given);
        }

        #[test]
        fn any_bytes_are_parsed_without_panic(
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            for message in messages(&bytes) {
                prop_assert!(message.body.len() <= bytes.len());
                attributes(message.body).for_each(drop);
            }
            attributes(&bytes).for_each(drop);
        }
    }

    #[test]
    fn parsing_stops_at_a_truncated_attribute() {
        let bytes = [8, 0, 4, 0, 9, 0, 0, 0, 5, 0, 1, 0x80, 7, 0, 0, 0, 12, 0, 2, 0, 1];
        let read: Vec<_> = attributes(&bytes).map(|(kind, value)| (kind, value.to_vec())).collect();
        assert_eq!(read, [(4, vec![9, 0, 0, 0]), (1, vec![7])]);
        for length in 0..4 {
            assert_eq!(attributes(&[length, 0, 1, 0]).count(), 0);
        }
    }

    #[test]
    fn an_acknowledgement_is_no_error_and_an_error_names_its_number() {
        assert!(outcome(&[0; 20]).is_ok());
        let refused = outcome(&(-libc::EPERM).to_ne_bytes());
        assert_eq!(refused.unwrap_err().raw_os_error(), Some(libc::EPERM));
    }
}
