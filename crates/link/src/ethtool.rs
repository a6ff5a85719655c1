//! Properties that the driver of an interface reports.

use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use crate::netlink::{Socket, attributes, put_attribute, text, u16_at, u32_at};

/// Number of queues of an interface that are in use, by kind.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Channels {
    /// Queues that receive only.
    pub receive: u32,
    /// Queues that transmit only.
    pub transmit: u32,
    /// Queues that receive and transmit.
    pub combined: u32,
}

impl Channels {
    /// Returns the number of pairs of a receive queue and a transmit queue. Queues without a
    /// partner count as pairs.
    pub(crate) fn pairs(self) -> u32 {
        self.combined + self.receive.max(self.transmit)
    }

    /// Returns the number of queues that receive. `AF_XDP` sockets bind to these queues.
    pub const fn receiving(self) -> u32 {
        self.receive + self.combined
    }
}

/// A socket for ethtool requests to drivers.
#[derive(Debug)]
pub(crate) struct Asker {
    socket: OwnedFd,
}

impl Asker {
    pub(crate) fn open() -> io::Result<Self> {
        let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
        // SAFETY: takes no pointers.
        let mut fd = unsafe { libc::socket(libc::AF_INET, kind, 0) };
        if fd < 0 {
            // SAFETY: takes no pointers.
            fd = unsafe { libc::socket(libc::AF_INET6, kind, 0) };
        }
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nothing else has it.
        Ok(Self { socket: unsafe { OwnedFd::from_raw_fd(fd) } })
    }

    /// Returns the name of the driver of interface `name`.
    pub(crate) fn driver(&self, name: &[u8]) -> Option<String> {
        let mut info = [0; DRIVER_INFO_BYTES];
        self.ask(name, GET_DRIVER_INFO, &mut info).then_some(())?;
        info.get(4..36).map(text).filter(|name| !name.is_empty())
    }

    /// Returns the queues in use of interface `name`.
    pub(crate) fn channels(&self, name: &[u8]) -> Option<Channels> {
        let mut channels = [0; CHANNELS_BYTES];
        self.ask(name, GET_CHANNELS, &mut channels).then_some(())?;
        let at = |offset| u32_at(&channels, offset).unwrap_or(0);
        Some(Channels { receive: at(20), transmit: at(24), combined: at(32) })
    }

    /// Returns the nominal rate of interface `name`, in bits per second.
    pub(crate) fn rate(&self, name: &[u8]) -> Option<u64> {
        let mut settings = [0; SETTINGS_BYTES];
        self.ask(name, GET_SETTINGS, &mut settings).then_some(())?;
        let low = u64::from(u16_at(&settings, 12).unwrap_or(0));
        let high = u64::from(u16_at(&settings, 28).unwrap_or(0));
        let megabits = high << 16 | low;
        let is_known = !matches!(megabits, 0 | 0xffff | 0xffff_ffff);
        is_known.then_some(megabits * 1_000_000)
    }

    /// Asks the driver of interface `name` to fill `answer`, a structure of ethtool. Returns false
    /// if the driver does not support the request.
    fn ask(&self, name: &[u8], command: u32, answer: &mut [u8]) -> bool {
        if let Some(head) = answer.first_chunk_mut() {
            *head = command.to_ne_bytes();
        }
        // SAFETY: all-zero bytes are a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { zeroed() };
        for (to, &from) in request.ifr_name.iter_mut().take(libc::IFNAMSIZ - 1).zip(name) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        request.ifr_ifru.ifru_data = answer.as_mut_ptr().cast();
        // SAFETY: `request` and `answer` outlive the call. `answer` has the size of the structure
        // that the command fills; none of these structures has variable length.
        let result = unsafe {
            libc::ioctl(self.socket.as_raw_fd(), SIOCETHTOOL, ptr::from_mut(&mut request))
        };
        result >= 0
    }
}

/// Queries for the XDP features of drivers (generic netlink family `netdev`, Linux 6.3).
#[derive(Debug)]
pub(crate) struct XdpFeatures {
    socket: Socket,
    family: u16,
}

impl XdpFeatures {
    /// Opens a socket for queries of XDP features. Returns `None` if the kernel does not have the
    /// family `netdev`.
    pub(crate) fn open() -> Option<Self> {
        let mut socket = Socket::generic().ok()?;
        // `struct genlmsghdr`: command, version, two bytes reserved.
        let mut body = vec![CTRL_GET_FAMILY, 1, 0, 0];
        put_attribute(&mut body, CTRL_FAMILY_NAME, b"netdev\0");
        let mut family = None;
        let asked = socket.ask(libc::GENL_ID_CTRL as u16, 0, &body, &mut |answer: &[u8]| {
            for (kind, content) in attributes(answer.get(4..).unwrap_or_default()) {
                if kind == CTRL_FAMILY_ID {
                    family = u16_at(content, 0);
                }
            }
        });
        asked.ok()?;
        Some(Self { socket, family: family? })
    }

    /// Returns the features of an interface as bits of `netdev_xdp_act`, or `None` if the kernel
    /// does not report them.
    pub(crate) fn of(&mut self, index: u32) -> Option<u64> {
        let mut body = vec![NETDEV_GET, 1, 0, 0];
        put_attribute(&mut body, NETDEV_IFINDEX, &index.to_ne_bytes());
        let mut features = None;
        let asked = self.socket.ask(self.family, 0, &body, &mut |answer: &[u8]| {
            for (kind, content) in attributes(answer.get(4..).unwrap_or_default()) {
                if kind == NETDEV_XDP_FEATURES {
                    features = content.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes));
                }
            }
        });
        asked.ok()?;
        features
    }
}

const SIOCETHTOOL: libc::Ioctl = 0x8946;

/// Commands of `linux/ethtool.h`, each with the size of the structure that it fills:
/// `struct ethtool_drvinfo`, `ethtool_channels`, `ethtool_cmd`.
const GET_DRIVER_INFO: u32 = 0x03;
const DRIVER_INFO_BYTES: usize = 196;
const GET_CHANNELS: u32 = 0x3c;
const CHANNELS_BYTES: usize = 36;
const GET_SETTINGS: u32 = 0x01;
const SETTINGS_BYTES: usize = 44;

/// Numbers of `linux/genetlink.h` and `linux/netdev.h`.
const CTRL_GET_FAMILY: u8 = 3;
const CTRL_FAMILY_ID: u16 = 1;
const CTRL_FAMILY_NAME: u16 = 2;
const NETDEV_GET: u8 = 1;
const NETDEV_IFINDEX: u16 = 1;
const NETDEV_XDP_FEATURES: u16 = 3;
