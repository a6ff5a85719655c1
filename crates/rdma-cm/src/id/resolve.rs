//! Address resolution, binding and listening.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use nix::errno::Errno;
use verbs::Error;

use super::news::DeviceEar;
use super::{Id, Inner, State};
use crate::event::EventKind;
use crate::manager::{Listener, ManagedDevice};
use crate::ports::{source_of, unspecified};
use crate::status::status_of;

impl Id {
    /// Binds the id to an address. Port 0 stands for any free port. An unspecified address stands
    /// for all addresses of the host.
    ///
    /// # Errors
    /// Returns [`Error::System`] with one of these values:
    /// * `EADDRINUSE` if another id or process uses the address.
    /// * `EADDRNOTAVAIL` if the port is in use at an overlapping address. Two addresses overlap if
    ///   at least one of them is unspecified.
    /// * `ENODEV` if no device has the address.
    pub fn bind(&self, to: SocketAddr) -> Result<(), Error> {
        self.lock().check("binding", |state| state == State::Idle)?;
        // As in Linux, an id that is bound to a loopback address has no device, unless a link of the
        // device has that address. libfabric relies on this: if the id has a device, libfabric
        // listens at the loopback address alone, where other hosts do not reach it.
        let ip = to.ip().to_canonical();
        let known = self.host.device_with(ip, self.space);
        let is_of_host =
            ip.is_loopback() && known.is_none_or(|known| !known.manager.binds_loopback(ip));
        let device = self.device_at(ip)?.filter(|_| !is_of_host);
        let is_shared = self.lock().options.is_address_shared;
        let claim = self.host.claim(to, self.space, is_shared)?;
        let mut inner = self.lock();
        inner.check("binding", |state| state == State::Idle)?;
        inner.local = Some(with_port(to, claim.port()));
        inner.device = device;
        inner.claim = Some(claim);
        inner.state = State::Bound;
        Ok(())
    }

    /// Finds the device through which this host reaches another host.
    /// [`EventKind::AddressResolved`] or [`EventKind::AddressError`] reports the outcome.
    ///
    /// # Errors
    /// * Returns [`Error::Invalid`] if the state of the id does not allow this.
    /// * Returns [`Error::System`] with `ENODEV` if no device has the source address.
    pub fn resolve_address(&self, source: Option<SocketAddr>, to: SocketAddr) -> Result<(), Error> {
        let is_allowed = |state| matches!(state, State::Idle | State::Bound);
        self.lock().check("resolving an address", is_allowed)?;
        let is_bound = self.lock().state == State::Bound;
        if let Some(source) = source.filter(|source| !is_bound && !is_nothing(source)) {
            self.bind(source)?;
        }
        let found = self.find_way(to);
        let mut inner = self.lock();
        inner.check("resolving an address", is_allowed)?;
        let (kind, status) = match found {
            Ok((local, device)) => {
                inner.local = Some(local);
                inner.remote = Some(to);
                inner.device = Some(device);
                inner.state = State::AddressResolved;
                (EventKind::AddressResolved, 0)
            }
            Err(error) => (EventKind::AddressError, status_of(&error)),
        };
        drop(inner);
        self.report_kind(kind, status);
        Ok(())
    }

    /// Resolves the route to the peer. [`EventKind::RouteResolved`] reports the outcome.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the address is not resolved.
    pub fn resolve_route(&self) -> Result<(), Error> {
        let mut inner = self.lock();
        inner.check("resolving a route", |state| state == State::AddressResolved)?;
        inner.state = State::RouteResolved;
        drop(inner);
        self.report_kind(EventKind::RouteResolved, 0);
        Ok(())
    }

    /// Listens for requests. At most `backlog` requests wait until the program takes them; 0 stands
    /// for the maximum.
    ///
    /// # Errors
    /// Returns [`Error::System`] with `EADDRINUSE` if another id listens at the address.
    pub fn listen(&self, backlog: u32) -> Result<(), Error> {
        self.lock().check("listening", |state| matches!(state, State::Idle | State::Bound))?;
        if self.lock().state == State::Idle {
            self.bind(SocketAddr::new(unspecified(IpAddr::from([0; 4])), 0))?;
        }
        let listener_at = |device: &ManagedDevice| -> Arc<dyn Listener> {
            Arc::new(DeviceEar { id: self.this.clone(), device: device.clone() })
        };
        // Take the claim out of the id and release the id's lock. The wire (the transport) may call
        // the id before the wire's `listen` returns, and such a call takes this lock.
        let claim = {
            let mut inner = self.lock();
            let backlog = usize::try_from(backlog).unwrap_or(BACKLOG_MAX);
            inner.backlog = if backlog == 0 { BACKLOG_MAX } else { backlog.min(BACKLOG_MAX) };
            inner.state = State::Listening;
            inner.claim.take()
        };
        let Some(claim) = claim else {
            return Err(Error::Invalid("listening: the id has no port".into()));
        };
        let heard = claim.listen(listener_at);
        let mut inner = self.lock();
        let is_destroyed = inner.state == State::Destroyed;
        if !is_destroyed {
            inner.claim = Some(claim);
        }
        match heard {
            Ok(heard) if !is_destroyed => {
                inner.heard = Some(heard);
                Ok(())
            }
            Ok(_) => Err(Error::Invalid("listening: the id was destroyed".into())),
            Err(error) => {
                if !is_destroyed {
                    inner.state = State::Bound;
                }
                Err(error)
            }
        }
    }

    /// Returns the device that has an address. Returns `None` for an unspecified address, and an
    /// error if no device has the address.
    fn device_at(&self, ip: IpAddr) -> Result<Option<ManagedDevice>, Error> {
        if ip.is_unspecified() {
            return Ok(None);
        }
        match self.host.device_of(ip.to_canonical(), self.space) {
            Some(device) => Ok(Some(device.clone())),
            None => Err(Error::System {
                what: format!("no device has the address {ip}"),
                number: Errno::ENODEV as i32,
            }),
        }
    }

    /// Returns the local address and the device through which this host reaches another host.
    fn find_way(&self, to: SocketAddr) -> Result<(SocketAddr, ManagedDevice), Error> {
        let bound = {
            let Inner { local, device, .. } = &*self.lock();
            local.map(|local| (local, device.clone()))
        };
        if let Some((local, Some(device))) = bound {
            return Ok((local, device));
        }
        if to.ip().is_unspecified() {
            return Err(Error::Invalid("the destination address is unspecified".into()));
        }
        let source = source_of(to.ip())?;
        let Some(device) = self.device_at(source.ip())? else {
            return Err(Error::Invalid(format!("no local address reaches {to}")));
        };
        let port = bound.map_or(source.port(), |(local, _)| local.port());
        Ok((SocketAddr::new(source.ip(), port), device))
    }
}

/// Returns whether the address is unspecified and the port is 0.
fn is_nothing(source: &SocketAddr) -> bool {
    source.ip().is_unspecified() && source.port() == 0
}

fn with_port(address: SocketAddr, port: u16) -> SocketAddr {
    let mut address = address;
    address.set_port(port);
    address
}

/// Maximum number of requests that wait for the program at one listening id. The kernel has the
/// same limit in `/proc/sys/net/rdma_ucm/max_backlog`.
const BACKLOG_MAX: usize = 1024;
