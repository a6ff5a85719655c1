//! The ports that ids of this process use, and the devices that ids can use.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use verbs::Error;

use super::manager::{Listener, Listening, ManagedDevice};
use super::port_space::PortSpace;

/// State that all ids of a process share: the devices, and the users of each port.
///
/// To claim a port, the process binds the UDP port with the same number. Therefore two processes of
/// a host never have the same port. When the process ends, the system frees the port.
#[derive(Debug)]
pub struct ManagedHost {
    devices: Vec<ManagedDevice>,
    claimed: Mutex<HashMap<SocketAddr, Claimed>>,
}

#[derive(Debug, Default)]
struct Claimed {
    /// Socket that reserves the port. `None` while an id listens at the port, because the wire (the
    /// transport) then holds the port.
    socket: Option<UdpSocket>,
    /// Port space of each id that uses the port.
    users: Vec<PortSpace>,
    /// Number of ids that listen at the port.
    listeners: usize,
}

impl ManagedHost {
    /// Creates a host with these devices.
    pub fn new(devices: Vec<ManagedDevice>) -> Arc<Self> {
        Arc::new(Self { devices, claimed: Mutex::default() })
    }

    /// Notifies the devices that the program waits for events in a way that the devices do not see.
    /// From now on, a thread of each device drives that device's engine.
    pub(crate) fn serve_alone(&self) {
        for managed in &self.devices {
            managed.device.provider().serve_alone();
        }
    }

    /// Returns the device that has an address. For a loopback address that no device has, returns
    /// the first device.
    pub(crate) fn device_of(&self, ip: IpAddr) -> Option<&ManagedDevice> {
        let known = self.device_with(ip);
        if known.is_none() && ip.is_loopback() {
            return self.devices.first();
        }
        known
    }

    /// Returns the device that has a link with this address.
    pub(crate) fn device_with(&self, ip: IpAddr) -> Option<&ManagedDevice> {
        self.devices.iter().find(|device| device.manager.has_address(ip))
    }

    /// Claims the port of `at`. Port 0 stands for any free port. If `is_shared` is true, other ids
    /// may have the port.
    pub(crate) fn claim(
        self: &Arc<Self>,
        at: SocketAddr,
        space: PortSpace,
        is_shared: bool,
    ) -> Result<Claim, Error> {
        let mut claimed = self.claimed();
        if let Some(known) = claimed.get_mut(&at) {
            if known.users.contains(&space) && !is_shared {
                let is_any = at.ip().is_unspecified();
                let errno = if is_any { Errno::EADDRNOTAVAIL } else { Errno::EADDRINUSE };
                return Err(refused("claiming a port", at, errno));
            }
            known.users.push(space);
            return Ok(Claim { host: Arc::clone(self), at, space });
        }
        let has_port = |known: &&SocketAddr| known.port() == at.port();
        let overlaps = at.ip().is_unspecified()
            || claimed.keys().filter(has_port).any(|known| known.ip().is_unspecified());
        let socket = bind(at).map_err(|error| match error {
            // If the port is in use, the kernel's connection manager distinguishes two cases
            // (`cma_check_port`): `EADDRINUSE` for an equal address, and `EADDRNOTAVAIL` for an
            // address that only overlaps.
            Error::System { what, number } if overlaps && number == Errno::EADDRINUSE as i32 => {
                Error::System { what, number: Errno::EADDRNOTAVAIL as i32 }
            }
            error => error,
        })?;
        let bound = socket.local_addr().map_err(|error| system("reading a port", at, &error))?;
        let at = SocketAddr::new(at.ip(), bound.port());
        let users = vec![space];
        claimed.insert(at, Claimed { socket: Some(socket), users, listeners: 0 });
        Ok(Claim { host: Arc::clone(self), at, space })
    }

    fn claimed(&self) -> MutexGuard<'_, HashMap<SocketAddr, Claimed>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A port that an id has claimed. Dropping this value releases the port.
#[derive(Debug)]
pub(crate) struct Claim {
    host: Arc<ManagedHost>,
    at: SocketAddr,
    space: PortSpace,
}

impl Claim {
    pub(crate) const fn port(&self) -> u16 {
        self.at.port()
    }

    /// Starts to listen for requests to the port, on each device that has the claimed address.
    pub(crate) fn listen(&self, listener: &Arc<dyn Listener>) -> Result<Heard, Error> {
        let ip = self.at.ip();
        let devices: Vec<&ManagedDevice> = if ip.is_unspecified() {
            self.host.devices.iter().collect()
        } else {
            self.host.device_of(ip).into_iter().collect()
        };
        if devices.is_empty() {
            return Err(refused("listening", self.at, Errno::ENODEV));
        }
        let mut claimed = self.host.claimed();
        let Some(known) = claimed.get_mut(&self.at) else {
            return Err(Error::Invalid("the port was released".into()));
        };
        let mut socket = known.socket.take();
        let listen = |device: &&ManagedDevice| {
            let listener = Arc::clone(listener);
            device.manager.listen(self.at, self.space, socket.take(), listener)
        };
        let listening = devices.iter().map(listen).collect::<Result<Vec<_>, _>>();
        match listening {
            Ok(parts) => {
                known.listeners += 1;
                Ok(Heard { host: Arc::clone(&self.host), at: self.at, parts })
            }
            Err(error) => {
                if known.listeners == 0 {
                    known.socket = bind(self.at).ok();
                }
                Err(error)
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = self.host.claimed();
        let Some(known) = claimed.get_mut(&self.at) else { return };
        if let Some(place) = known.users.iter().position(|user| *user == self.space) {
            known.users.swap_remove(place);
        }
        if known.users.is_empty() {
            claimed.remove(&self.at);
        }
    }
}

/// A port at which an id listens. Dropping this value stops the listening.
pub(crate) struct Heard {
    host: Arc<ManagedHost>,
    at: SocketAddr,
    parts: Vec<Box<dyn Listening>>,
}

impl Drop for Heard {
    fn drop(&mut self) {
        // Hold the lock while the wire (the transport) releases the port and this thread reserves
        // it again. Otherwise another thread could claim the port in between.
        let mut claimed = self.host.claimed();
        self.parts.clear();
        if let Some(known) = claimed.get_mut(&self.at) {
            known.listeners -= 1;
            if known.listeners == 0 {
                known.socket = bind(self.at).ok();
            }
        }
    }
}

/// Returns the source address for frames to another host, with a port that was free a moment ago.
pub(crate) fn source_of(to: IpAddr) -> Result<SocketAddr, Error> {
    let any = unspecified(to);
    let at = SocketAddr::new(to, DISCARD_PORT);
    let local = UdpSocket::bind((any, 0)).and_then(|socket| {
        socket.connect(at)?;
        socket.local_addr()
    });
    local.map_err(|error| system("finding the route to", at, &error))
}

/// Returns the unspecified address of the same family as `like`.
pub(crate) const fn unspecified(like: IpAddr) -> IpAddr {
    match like {
        IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    }
}

fn bind(at: SocketAddr) -> Result<UdpSocket, Error> {
    UdpSocket::bind(at).map_err(|error| system("claiming a port", at, &error))
}

fn system(what: &str, at: SocketAddr, error: &std::io::Error) -> Error {
    let number = error.raw_os_error().unwrap_or(Errno::EIO as i32);
    Error::System { what: format!("{what} {at}"), number }
}

fn refused(what: &str, at: SocketAddr, errno: Errno) -> Error {
    Error::System { what: format!("{what} {at}"), number: errno as i32 }
}

/// Destination port for connecting a UDP socket. The connection only selects the route, and the
/// socket sends no packet.
const DISCARD_PORT: u16 = 9;
