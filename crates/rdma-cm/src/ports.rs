//! The ports that ids of this process use, and the devices that ids can use.

use std::collections::HashMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::errno::Errno;
use verbs::Error;

use super::manager::{Listener, Listening, ManagedDevice, PortClaim};
use super::port_space::PortSpace;

/// State that all ids of a process share: the devices, and the users of each port.
///
/// The managers of the devices claim ports, so that two processes of a host never have the same
/// port. The order of the devices is the order in which ids look for a device with an address.
#[derive(Debug)]
pub struct ManagedHost {
    devices: Vec<ManagedDevice>,
    claimed: Mutex<HashMap<Place, Claimed>>,
}

/// A claimed address, and the port space of the ids that use it.
type Place = (SocketAddr, PortSpace);

/// A port that ids use.
#[derive(Debug)]
struct Claimed {
    /// Claims of all devices at which ids with this address are.
    parts: Arc<[Part]>,
    /// Number of ids that use the port.
    users: usize,
}

/// The claim of one device.
struct Part {
    device: ManagedDevice,
    claim: Box<dyn PortClaim>,
}

impl ManagedHost {
    /// Creates a host with these devices. If several devices have an address, the first of them
    /// gets the ids that use the address.
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

    /// Returns the device for ids of `space` with an address. For a loopback address that no device
    /// has, returns the first device for such ids.
    pub(crate) fn device_of(&self, ip: IpAddr, space: PortSpace) -> Option<&ManagedDevice> {
        let known = self.device_with(ip, space);
        if known.is_none() && ip.is_loopback() {
            return self.devices_for(space).next();
        }
        known
    }

    /// Returns the first device for ids of `space` that has a link with this address.
    pub(crate) fn device_with(&self, ip: IpAddr, space: PortSpace) -> Option<&ManagedDevice> {
        self.devices_for(space).find(|device| device.manager.has_address(ip))
    }

    fn devices_for(&self, space: PortSpace) -> impl Iterator<Item = &ManagedDevice> {
        self.devices.iter().filter(move |device| device.manager.carries(space))
    }

    /// Claims the port of `at`. Port 0 stands for any free port. If `is_shared` is true, other ids
    /// may have the port.
    ///
    /// If the address is unspecified, claims the port at all devices, or at none.
    pub(crate) fn claim(
        self: &Arc<Self>,
        at: SocketAddr,
        space: PortSpace,
        is_shared: bool,
    ) -> Result<Claim, Error> {
        let mut claimed = self.claimed();
        let at = SocketAddr::new(at.ip().to_canonical(), at.port());
        if let Some(known) = claimed.get_mut(&(at, space)) {
            if !is_shared {
                let is_any = at.ip().is_unspecified();
                let errno = if is_any { Errno::EADDRNOTAVAIL } else { Errno::EADDRINUSE };
                return Err(refused("claiming a port", at, errno));
            }
            known.users += 1;
            return Ok(Claim { host: Arc::clone(self), at, space });
        }
        let devices: Vec<&ManagedDevice> = if at.ip().is_unspecified() {
            self.devices_for(space).collect()
        } else {
            self.device_of(at.ip(), space).into_iter().collect()
        };
        let has_port = |known: &&Place| known.0.port() == at.port();
        let overlaps = at.ip().is_unspecified()
            || claimed.keys().filter(has_port).any(|known| known.0.ip().is_unspecified());
        let parts = claim_at_all(&devices, at, space).map_err(|error| match error {
            // If the port is in use, the kernel's connection manager distinguishes two cases
            // (`cma_check_port`): `EADDRINUSE` for an equal address, and `EADDRNOTAVAIL` for an
            // address that only overlaps.
            Error::System { what, number } if overlaps && number == Errno::EADDRINUSE as i32 => {
                Error::System { what, number: Errno::EADDRNOTAVAIL as i32 }
            }
            error => error,
        })?;
        let Some(first) = parts.first() else {
            return Err(refused("claiming a port", at, Errno::ENODEV));
        };
        let at = SocketAddr::new(at.ip(), first.claim.address().port());
        claimed.insert((at, space), Claimed { parts: parts.into(), users: 1 });
        Ok(Claim { host: Arc::clone(self), at, space })
    }

    fn claimed(&self) -> MutexGuard<'_, HashMap<Place, Claimed>> {
        self.claimed.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Claims a port at all these devices, or at none. If the port is 0, tries ports until one is free
/// at all devices.
fn claim_at_all(
    devices: &[&ManagedDevice],
    at: SocketAddr,
    space: PortSpace,
) -> Result<Vec<Part>, Error> {
    let Some((first, others)) = devices.split_first() else { return Ok(Vec::new()) };
    // Keep the claims of ports that another device has refused. Otherwise the first device could
    // choose the same port again.
    let mut unusable = Vec::new();
    loop {
        let chosen = Part::claim(first, at, space)?;
        let everywhere = SocketAddr::new(at.ip(), chosen.claim.address().port());
        let claim = |device: &&ManagedDevice| Part::claim(device, everywhere, space);
        match others.iter().map(claim).collect::<Result<Vec<Part>, Error>>() {
            Ok(parts) => return Ok(std::iter::once(chosen).chain(parts).collect()),
            Err(error) => {
                if at.port() != 0 || !is_in_use(&error) || unusable.len() >= TRIES_MAX {
                    return Err(error);
                }
                unusable.push(chosen);
            }
        }
    }
}

impl Part {
    fn claim(device: &ManagedDevice, at: SocketAddr, space: PortSpace) -> Result<Self, Error> {
        let claim = device.manager.claim(at, space)?;
        Ok(Self { device: device.clone(), claim })
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let address = self.claim.address();
        f.debug_struct("Part").field("device", &self.device).field("address", &address).finish()
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

    /// Starts to listen for requests to the port, at each device that has claimed it, or at none.
    /// `listener_at` returns the listener for the requests of one device.
    pub(crate) fn listen(
        &self,
        listener_at: impl Fn(&ManagedDevice) -> Arc<dyn Listener>,
    ) -> Result<Heard, Error> {
        // Release the lock before the managers listen. The claim of this id keeps the port.
        let known =
            self.host.claimed().get(&(self.at, self.space)).map(|known| Arc::clone(&known.parts));
        let Some(parts) = known else {
            return Err(Error::Invalid("the port was released".into()));
        };
        let listen = |part: &Part| {
            let listener = listener_at(&part.device);
            part.device.manager.listen(&*part.claim, self.space, listener)
        };
        let parts = parts.iter().map(listen).collect::<Result<Vec<_>, _>>()?;
        Ok(Heard { _parts: parts })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = self.host.claimed();
        let place = (self.at, self.space);
        let Some(known) = claimed.get_mut(&place) else { return };
        known.users -= 1;
        if known.users == 0 {
            // The managers release the port while this thread holds the lock. So another thread
            // that claims the port does not find it in use.
            claimed.remove(&place);
        }
    }
}

/// A port at which an id listens. Dropping this value stops the listening.
pub(crate) struct Heard {
    _parts: Vec<Box<dyn Listening>>,
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

/// Returns whether a claim failed because the port is in use.
fn is_in_use(error: &Error) -> bool {
    let in_use = [Errno::EADDRINUSE as i32, Errno::EADDRNOTAVAIL as i32];
    matches!(error, Error::System { number, .. } if in_use.contains(number))
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

/// Maximum number of ports that are tried besides the first one, until a port is free at all
/// devices. If half of the ports of a device are in use, the tries fail with a probability of
/// 2^-65.
const TRIES_MAX: usize = 64;
