//! Properties of an interface that only XDP needs.

use std::io;
use std::mem::{size_of, zeroed};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use crate::interface::{Interface, request_socket};

/// The queues and the program of an interface.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Device {
    /// The larger of the number of receive queues and the number of transmit queues.
    pub(super) queues: u32,
    /// Number of an XDP program that is attached to the interface.
    pub(super) program: Option<u32>,
    /// Whether the interface is one of a pair of virtual interfaces (veth).
    pub(super) is_veth: bool,
}

impl Device {
    /// Queries the kernel about `interface`.
    pub(super) fn of(interface: &Interface) -> io::Result<Self> {
        let socket = route_socket()?;
        let mut device = Self::default();
        let mut answer = vec![0; ANSWER_BYTES_MAX];
        for attribute in ask(socket.as_fd(), interface.index, &mut answer)? {
            device.note(&attribute);
        }
        // The attributes contain the driver's maximum number of queues. This call returns the
        // number in use.
        if let Some(queues) = channels(interface) {
            device.queues = queues;
        }
        device.queues = device.queues.max(1);
        Ok(device)
    }

    fn note(&mut self, attribute: &Attribute<'_>) {
        match attribute.kind {
            libc::IFLA_NUM_RX_QUEUES | libc::IFLA_NUM_TX_QUEUES => {
                self.queues = self.queues.max(attribute.number().unwrap_or(0));
            }
            IFLA_XDP => {
                let programs = attributes(attribute.value)
                    .filter(|part| PROGRAMS.contains(&part.kind))
                    .filter_map(|part| part.number());
                self.program = programs.into_iter().find(|&id| id != 0);
            }
            libc::IFLA_LINKINFO => {
                let mut parts = attributes(attribute.value);
                self.is_veth = parts.any(|part| part.kind == KIND && part.value.starts_with(VETH));
            }
            _ => {}
        }
    }
}

/// One attribute of a netlink message.
#[derive(Debug)]
struct Attribute<'a> {
    kind: u16,
    value: &'a [u8],
}

impl Attribute<'_> {
    fn number(&self) -> Option<u32> {
        self.value.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
    }
}

/// Iterates over the attributes in `bytes`. Stops at the first truncated attribute.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = Attribute<'_>> {
    std::iter::from_fn(move || {
        let head = bytes.first_chunk::<ATTRIBUTE_BYTES>()?;
        let [l0, l1, k0, k1] = *head;
        let length = usize::from(u16::from_ne_bytes([l0, l1]));
        let value = bytes.get(ATTRIBUTE_BYTES..length)?;
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or(&[]);
        Some(Attribute { kind: u16::from_ne_bytes([k0, k1]) & KIND_MASK, value })
    })
}

fn route_socket() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
    // SAFETY: the call takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Returns all attributes that the kernel reports for interface number `index`.
fn ask<'a>(
    socket: BorrowedFd<'_>,
    index: u32,
    answer: &'a mut [u8],
) -> io::Result<impl Iterator<Item = Attribute<'a>>> {
    #[repr(C)]
    struct Request {
        header: libc::nlmsghdr,
        interface: InterfaceMessage,
    }
    // SAFETY: all-zero bytes are a valid request.
    let mut request: Request = unsafe { zeroed() };
    request.header.nlmsg_len = size_of::<Request>() as u32;
    request.header.nlmsg_type = libc::RTM_GETLINK;
    request.header.nlmsg_flags = libc::NLM_F_REQUEST as u16;
    request.interface.index = index.cast_signed();
    // SAFETY: the request is a local variable of the length given.
    let sent = unsafe {
        libc::send(socket.as_raw_fd(), (&raw const request).cast(), size_of::<Request>(), 0)
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel writes at most the length of the slice.
    let received =
        unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    if received < 0 {
        return Err(io::Error::last_os_error());
    }
    let malformed = || io::Error::from(io::ErrorKind::InvalidData);
    let message = answer.get(..received as usize).ok_or_else(malformed)?;
    // The bytes of the header are: length 4, kind 2, flags 2, sequence 4, port 4.
    let kind = message.get(4..6).ok_or_else(malformed)?;
    if kind == (libc::NLMSG_ERROR as u16).to_ne_bytes() {
        let code = message.get(HEADER_BYTES..).and_then(<[u8]>::first_chunk);
        let code = i32::from_ne_bytes(*code.ok_or_else(malformed)?);
        return Err(io::Error::from_raw_os_error(-code));
    }
    let body = message.get(HEADER_BYTES + size_of::<InterfaceMessage>()..);
    Ok(attributes(body.ok_or_else(malformed)?))
}

/// Returns the number of queues in use, if the driver reports this number.
fn channels(interface: &Interface) -> Option<u32> {
    let socket = request_socket().ok()?;
    let mut channels = Channels { command: GET_CHANNELS, ..Channels::default() };
    // SAFETY: all-zero bytes are a valid request.
    let mut request: libc::ifreq = unsafe { zeroed() };
    // SAFETY: the name is terminated and has the size of the field.
    request.ifr_name = unsafe { interface.name.as_ptr().cast::<[libc::c_char; 16]>().read() };
    request.ifr_ifru.ifru_data = (&raw mut channels).cast();
    // SAFETY: the kernel reads and writes `request` and, at the address in it, `channels`, which
    // has the expected layout.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), SIOCETHTOOL as _, &raw mut request) };
    let queues = channels.combined + channels.receive.max(channels.transmit);
    (result == 0 && queues > 0).then_some(queues)
}

/// `struct ifinfomsg` of `linux/rtnetlink.h`.
#[repr(C)]
struct InterfaceMessage {
    family: u8,
    padding: u8,
    kind: u16,
    index: i32,
    flags: u32,
    change: u32,
}

/// `struct ethtool_channels` of `linux/ethtool.h`.
#[derive(Default)]
#[repr(C)]
struct Channels {
    command: u32,
    receive_max: u32,
    transmit_max: u32,
    other_max: u32,
    combined_max: u32,
    receive: u32,
    transmit: u32,
    other: u32,
    combined: u32,
}

const HEADER_BYTES: usize = size_of::<libc::nlmsghdr>();
const ATTRIBUTE_BYTES: usize = 4;
/// Mask of the attribute type, without the bits that describe the encoding of the value.
const KIND_MASK: u16 = 0x3fff;
/// Size of the answer buffer. The kernel reports fewer bytes about an interface.
const ANSWER_BYTES_MAX: usize = 32 << 10;
const GET_CHANNELS: u32 = 0x3c;
const SIOCETHTOOL: u32 = 0x8946;
/// The attribute about XDP programs, from `linux/if_link.h`. `PROGRAMS` are the attributes inside
/// it that contain the number of the program in each mode.
const IFLA_XDP: u16 = 43;
/// The type of a virtual interface, within `IFLA_LINKINFO`.
const KIND: u16 = 1;
const VETH: &[u8] = b"veth\0";
const PROGRAMS: [u16; 4] = [4, 5, 6, 7];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_a_queue() {
        let device = Device::of(&Interface::named("lo").unwrap()).unwrap();
        assert!(device.queues >= 1);
    }

    #[test]
    fn an_interface_that_is_gone_is_an_error() {
        let mut gone = Interface::named("lo").unwrap();
        gone.index = i32::MAX as u32;
        assert_eq!(Device::of(&gone).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }

    #[test]
    fn attributes_end_where_one_is_cut_short() {
        let bytes = [8, 0, 4, 0, 9, 0, 0, 0, 5, 0, 1, 0x80, 7, 0, 0, 0, 12, 0, 2, 0, 1];
        let read: Vec<_> = attributes(&bytes).map(|a| (a.kind, a.value.to_vec())).collect();
        assert_eq!(read, [(4, vec![9, 0, 0, 0]), (1, vec![7])]);
        for length in 0..4 {
            assert_eq!(attributes(&[length, 0, 1, 0]).count(), 0);
        }
    }
}
