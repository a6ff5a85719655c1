//! The UDP ports that ids of this process have claimed.
//!
//! To claim a port, the process binds the UDP port with the same number. Therefore two processes of
//! a host never have the same port. When the process ends, the system frees the port.

use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use link::give_way;
use nix::errno::Errno;
use rdma_cm::{Listening, PortClaim};
use verbs::Error;

/// The claimed ports. All devices of a process share them, and so do all port spaces: the devices
/// and the port spaces that claim an address use one socket.
#[derive(Debug, Default)]
pub(crate) struct ClaimedPorts {
    ports: Mutex<HashMap<SocketAddr, Claimed>>,
}

#[derive(Debug)]
struct Claimed {
    /// Socket that reserves the port. `None` while a device listens at the port, because the redirect
    /// ports of the device then hold the port.
    socket: Option<UdpSocket>,
    /// Number of claims of the port. Not 0.
    claims: usize,
    /// Number of devices and ids that listen at the port.
    listeners: usize,
}

impl ClaimedPorts {
    /// Claims a port. Port 0 stands for any free port.
    ///
    /// # Errors
    /// Returns [`Error::System`] with the error of binding a UDP socket to the address.
    pub(crate) fn claim(self: &Arc<Self>, at: SocketAddr) -> Result<Box<dyn PortClaim>, Error> {
        let mut ports = self.lock();
        if let Some(known) = ports.get_mut(&at) {
            known.claims += 1;
            return Ok(Box::new(Claim { ports: Arc::clone(self), at }));
        }
        let socket = bind(at)?;
        let bound = socket.local_addr().map_err(|error| system("reading", at, &error))?;
        let at = SocketAddr::new(at.ip(), bound.port());
        ports.insert(at, Claimed { socket: Some(socket), claims: 1, listeners: 0 });
        Ok(Box::new(Claim { ports: Arc::clone(self), at }))
    }

    /// Listens at a claimed port. `listen` opens the redirect ports of a device.
    ///
    /// # Errors
    /// * Returns [`Error::Invalid`] if the port is not claimed.
    /// * Returns the errors of `listen`.
    pub(crate) fn listen(
        self: &Arc<Self>,
        at: SocketAddr,
        listen: impl FnOnce() -> Result<Box<dyn Listening>, Error>,
    ) -> Result<Box<dyn Listening>, Error> {
        let mut ports = self.lock();
        let Some(known) = ports.get_mut(&at) else {
            return Err(Error::Invalid("the port was released".into()));
        };
        // Close the socket only after the redirect ports are open. If it was closed earlier, a peer
        // that connects at that moment would get the answer that no program listens.
        let given_way = known.socket.as_ref().map_or(Ok(()), give_way).map_err(Error::of_cause);
        let opened = given_way.and_then(|()| listen());
        known.socket = None;
        match opened {
            Ok(opened) => {
                known.listeners += 1;
                Ok(Box::new(Port { ports: Arc::clone(self), at, opened: Some(opened) }))
            }
            Err(error) => {
                known.reserve_unless_heard(at);
                Err(error)
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<SocketAddr, Claimed>> {
        self.ports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Claimed {
    /// Reserves the port with a new socket if no device listens at the port.
    fn reserve_unless_heard(&mut self, at: SocketAddr) {
        if self.listeners == 0 {
            self.socket = bind(at).ok();
        }
    }
}

/// A claim of a port. Dropping this value releases the port.
struct Claim {
    ports: Arc<ClaimedPorts>,
    at: SocketAddr,
}

impl PortClaim for Claim {
    fn address(&self) -> SocketAddr {
        self.at
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut ports = self.ports.lock();
        let Some(known) = ports.get_mut(&self.at) else { return };
        known.claims -= 1;
        if known.claims == 0 {
            ports.remove(&self.at);
        }
    }
}

/// A claimed port at which a device listens. Dropping this value stops the listening.
struct Port {
    ports: Arc<ClaimedPorts>,
    at: SocketAddr,
    /// The redirect ports of the device. `None` only during the drop.
    opened: Option<Box<dyn Listening>>,
}

impl Listening for Port {}

impl Drop for Port {
    fn drop(&mut self) {
        // Hold the lock while the device closes its redirect ports and this thread reserves the
        // port again. Otherwise another thread could claim the port in between.
        let mut ports = self.ports.lock();
        drop(self.opened.take());
        if let Some(known) = ports.get_mut(&self.at) {
            known.listeners -= 1;
            known.reserve_unless_heard(self.at);
        }
    }
}

fn bind(at: SocketAddr) -> Result<UdpSocket, Error> {
    UdpSocket::bind(at).map_err(|error| system("claiming", at, &error))
}

fn system(what: &str, at: SocketAddr, error: &std::io::Error) -> Error {
    let number = error.raw_os_error().unwrap_or(Errno::EIO as i32);
    Error::System { what: format!("{what} a port {at}"), number }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    struct Opened(#[expect(dead_code, reason = "held only to be dropped")] UdpSocket);

    impl Listening for Opened {}

    fn number<T>(result: Result<T, Error>) -> i32 {
        match result.err() {
            Some(Error::System { number, .. }) => number,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn claims_of_one_address_share_a_socket_until_the_last_is_dropped() {
        let ports = Arc::new(ClaimedPorts::default());
        let one = ports.claim((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        let at = one.address();
        assert_ne!(at.port(), 0);
        let other = ports.claim(at).expect("the same process");
        assert_eq!(other.address(), at);
        // Another process has its own ports.
        let stranger = Arc::new(ClaimedPorts::default());
        assert_eq!(number(stranger.claim(at)), Errno::EADDRINUSE as i32);
        drop(one);
        assert_eq!(number(stranger.claim(at)), Errno::EADDRINUSE as i32);
        drop(other);
        assert!(stranger.claim(at).is_ok());
    }

    #[test]
    fn a_port_stays_reserved_after_the_last_device_has_stopped_to_listen() {
        let ports = Arc::new(ClaimedPorts::default());
        let claim = ports.claim((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        let at = claim.address();
        let opens = || {
            // The socket that reserves the port still exists, and must give way.
            let socket = link::AuxiliarySocket::bind(at).map_err(Error::of_cause)?;
            assert_eq!(socket.local(), at);
            drop(socket);
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::of_cause)?;
            Ok(Box::new(Opened(socket)) as Box<dyn Listening>)
        };
        let heard = ports.listen(at, opens).expect("it listens");
        let also = ports.listen(at, || Ok(Box::new(Opened(bind(at)?)) as _)).expect("it listens");
        drop(heard);
        assert_eq!(number(bind(at)), Errno::EADDRINUSE as i32, "the other device listens");
        drop(also);
        assert_eq!(number(bind(at)), Errno::EADDRINUSE as i32, "the claim reserves it");
        drop(claim);
        assert!(bind(at).is_ok());
    }

    #[test]
    fn a_port_stays_reserved_if_listening_fails() {
        let ports = Arc::new(ClaimedPorts::default());
        let claim = ports.claim((Ipv4Addr::LOCALHOST, 0).into()).expect("a free port");
        let at = claim.address();
        let failed = ports.listen(at, || Err(Error::Invalid("on purpose".into())));
        assert!(matches!(failed, Err(Error::Invalid(_))));
        assert_eq!(number(bind(at)), Errno::EADDRINUSE as i32);
        drop(claim);
        assert!(matches!(ports.listen(at, || panic!("not called")), Err(Error::Invalid(_))));
    }
}
