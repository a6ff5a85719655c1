//! State of the host's interfaces, and the events that report changes.

mod retry;
mod watch;

use std::fmt;
use std::fs;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use libc::c_int;
use wire_edge::ENVELOPE_BYTES;

use crate::ethernet::Station;

pub(crate) use self::watch::{ASK_NS, RETRY_NS, Watch};

/// The state of an interface when it was queried.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Interface {
    /// The interface's name, for the interface requests of a socket.
    pub(crate) name: InterfaceName,
    /// The kernel's number for the interface. If an interface is deleted and created again under
    /// the same name, the number changes.
    pub index: u32,
    /// Largest packet that the interface carries, in bytes without the Ethernet header.
    pub mtu_bytes: u32,
    /// The station address, for Ethernet and loopback interfaces.
    pub station: Option<Station>,
    /// True if this is a loopback interface. The MTU of a loopback interface is also the MTU of
    /// every path through it.
    pub is_loopback: bool,
    /// True if the administrator has set the interface up.
    pub is_up: bool,
    /// True if the interface is up and has a carrier.
    pub is_running: bool,
}

impl Interface {
    /// Finds the interface called `name`.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::InvalidInput`] if `name` cannot be an interface's name; `ENODEV` if
    /// no interface has this name.
    pub fn named(name: &str) -> io::Result<Self> {
        let name = InterfaceName::new(name.as_bytes()).ok_or(io::ErrorKind::InvalidInput)?;
        Self::query(request_socket()?.as_fd(), name)
    }

    /// Returns the names of all interfaces, sorted.
    pub fn names() -> Vec<String> {
        let entries = fs::read_dir("/sys/class/net").into_iter().flatten().flatten();
        let mut names: Vec<String> = entries
            .filter(|entry| entry.path().is_dir())
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect();
        names.sort_unstable();
        names
    }

    /// Returns the name of the interface.
    pub fn name(&self) -> String {
        self.name.to_string()
    }

    /// Returns the nominal rate of a real device in bits per second. Returns `None` for a virtual
    /// interface, because such an interface reports a meaningless rate.
    pub fn rate(&self) -> Option<u64> {
        let folder = format!("/sys/class/net/{}", self.name);
        fs::metadata(format!("{folder}/device")).ok()?;
        let megabits: i64 =
            fs::read_to_string(format!("{folder}/speed")).ok()?.trim().parse().ok()?;
        u64::try_from(megabits).ok().filter(|&megabits| megabits > 0)?.checked_mul(1_000_000)
    }

    /// Returns the size in bytes of the largest edge frame that the interface carries on raw
    /// Ethernet, limited to `most`.
    pub(crate) fn raw_frame_bytes(&self, most: u16) -> u16 {
        let carried = self.mtu_bytes.saturating_sub(ENVELOPE_BYTES as u32);
        u16::try_from(carried).unwrap_or(u16::MAX).min(most)
    }

    /// Returns the interface's current state. If the interface is gone, returns its last state, but
    /// with `is_running` false. The link continues with this state, because an interface of this
    /// name may appear again.
    pub(crate) fn refreshed(&self, socket: BorrowedFd<'_>) -> Self {
        Self::query(socket, self.name).unwrap_or_else(|_| Self {
            is_running: false,
            is_up: false,
            ..self.clone()
        })
    }

    /// Queries the kernel for the state of the interface called `name`.
    pub(crate) fn query(socket: BorrowedFd<'_>, name: InterfaceName) -> io::Result<Self> {
        // SAFETY: all-zero bytes are a valid `ifreq`.
        let mut request: libc::ifreq = unsafe { zeroed() };
        request.ifr_name = name.0;
        interface_request(socket, libc::SIOCGIFINDEX, &mut request)?;
        // SAFETY: this request writes the member for the index.
        let index: c_int = unsafe { request.ifr_ifru.ifru_ifindex };
        interface_request(socket, libc::SIOCGIFMTU, &mut request)?;
        // SAFETY: this request writes the member for the MTU.
        let mtu: c_int = unsafe { request.ifr_ifru.ifru_mtu };
        interface_request(socket, libc::SIOCGIFFLAGS, &mut request)?;
        // SAFETY: this request writes the member for the flags.
        let flags = c_int::from(unsafe { request.ifr_ifru.ifru_flags });
        let station = interface_request(socket, libc::SIOCGIFHWADDR, &mut request).ok();
        // SAFETY: this request writes the member for the address.
        let station = station.and_then(|()| station_of(unsafe { &request.ifr_ifru.ifru_hwaddr }));
        let running = libc::IFF_UP | libc::IFF_RUNNING;
        Ok(Self {
            name,
            index: u32::try_from(index).unwrap_or(0),
            mtu_bytes: u32::try_from(mtu).unwrap_or(0),
            station,
            is_loopback: flags & libc::IFF_LOOPBACK != 0,
            is_up: flags & libc::IFF_UP != 0,
            is_running: flags & running == running,
        })
    }
}

/// An interface's name as the kernel stores it, zero-terminated.
#[derive(Clone, Copy, Eq, PartialEq)]
pub(crate) struct InterfaceName([libc::c_char; libc::IFNAMSIZ]);

impl InterfaceName {
    /// Returns the name without its `:alias`, because an interface request could treat a name with
    /// an alias as another interface. Returns `None` if no interface can have this name.
    pub(crate) fn new(name: &[u8]) -> Option<Self> {
        let plain = name.split(|&byte| byte == b':').next()?;
        let is_possible = !plain.is_empty()
            && plain.len() < libc::IFNAMSIZ
            && !plain.contains(&0)
            && !plain.contains(&b'/');
        let mut bytes = [0; libc::IFNAMSIZ];
        for (to, &from) in bytes.iter_mut().zip(plain) {
            *to = libc::c_char::from_ne_bytes([from]);
        }
        is_possible.then_some(Self(bytes))
    }

    /// Returns the zero-terminated string.
    pub(crate) const fn as_ptr(&self) -> *const libc::c_char {
        self.0.as_ptr()
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes: Vec<u8> =
            self.0.iter().take_while(|&&c| c != 0).map(|c| c.to_ne_bytes()[0]).collect();
        f.write_str(&String::from_utf8_lossy(&bytes))
    }
}

impl fmt::Debug for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Opens a socket for interface requests. Its family is `AF_UNIX`, which every host supports.
pub(crate) fn request_socket() -> io::Result<OwnedFd> {
    // SAFETY: `socket` takes no pointers.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn station_of(address: &libc::sockaddr) -> Option<Station> {
    let has_station = [libc::ARPHRD_ETHER, libc::ARPHRD_LOOPBACK].contains(&address.sa_family);
    let station = address.sa_data.first_chunk::<6>()?.map(|byte| byte.to_ne_bytes()[0]);
    has_station.then_some(station)
}

fn interface_request(
    socket: BorrowedFd<'_>,
    number: libc::c_ulong,
    request: &mut libc::ifreq,
) -> io::Result<()> {
    // SAFETY: `request` outlives the call, and the kernel writes no more than an `ifreq`.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), number as _, ptr::from_mut(request)) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_an_interface_with_the_station_zero() {
        let loopback = Interface::named("lo").unwrap();
        assert!(loopback.is_loopback && loopback.index > 0);
        assert_eq!(loopback.station, Some([0; 6]));
        assert_eq!(loopback.name(), "lo");
        assert!(Interface::names().contains(&"lo".to_string()));
    }

    #[test]
    fn unknown_interface_names_are_refused() {
        for name in ["", "a-name-far-too-long", "a/b", "nul\0nul"] {
            let error = Interface::named(name).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}");
        }
        let error = Interface::named("no-such").unwrap_err();
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
    }
}
