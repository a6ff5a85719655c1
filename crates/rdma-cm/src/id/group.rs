//! Multicast groups of an id.

use std::net::SocketAddr;
use std::sync::Arc;

use verbs::{Error, Gid, QueuePair, QueuePairType};

use super::{Group, Id, QUEUE_KEY, State};
use crate::event::{DatagramDetails, Details, Event, EventKind};
use crate::status::status_of;

impl Id {
    /// Joins a multicast group. The event [`EventKind::MulticastJoin`] contains the destination for
    /// datagrams to the group, and `cookie`.
    ///
    /// If the id has a queue pair when the program reads this event, the queue pair joins the group
    /// and receives its datagrams. If `only_sends` is true, the queue pair does not join the group.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the address is not multicast, or if the id has no device.
    pub fn join(&self, group: SocketAddr, cookie: usize, only_sends: bool) -> Result<(), Error> {
        let ip = group.ip().to_canonical();
        if !ip.is_multicast() {
            return Err(Error::Invalid(format!("{ip} is not a multicast address")));
        }
        if self.service != QueuePairType::Datagram {
            return Err(Error::Invalid("only ids for datagrams are in groups".into()));
        }
        let Some(this) = self.this.upgrade() else {
            return Err(Error::Invalid("the id was destroyed".into()));
        };
        let details = {
            let mut inner = self.lock();
            inner.check("joining", |state| {
                matches!(state, State::Bound | State::AddressResolved | State::RouteResolved)
            })?;
            if inner.device.is_none() {
                return Err(Error::Invalid("the id has no device yet".into()));
            }
            if inner.groups.iter().any(|known| known.ip == ip) {
                return Err(Error::Busy(format!("the id is in group {ip}")));
            }
            if inner.groups.len() >= GROUPS_MAX {
                return Err(Error::NoRoom(format!("an id is in {GROUPS_MAX} groups at most")));
            }
            inner.groups.push(Group { ip, is_member: !only_sends, is_attached: false });
            let path = inner.path_to(Gid::of(ip));
            let queue_key = inner.own.queue_key.unwrap_or(QUEUE_KEY);
            DatagramDetails { path, number: GROUP_NUMBER, queue_key, cookie }
        };
        let event = Event::of(this, EventKind::MulticastJoin, 0);
        self.report(Event { details: Details::Datagrams(details), ..event });
        Ok(())
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    /// Returns [`Error::System`] with `EADDRNOTAVAIL` if the id has not joined the group.
    pub fn leave(&self, group: SocketAddr) -> Result<(), Error> {
        let ip = group.ip().to_canonical();
        let (left, queue_pair) = {
            let mut inner = self.lock();
            inner.check("leaving a group", |_| true)?;
            let place = inner.groups.iter().position(|known| known.ip == ip);
            let Some(place) = place else {
                return Err(Error::System {
                    what: format!("the id is not in group {ip}"),
                    number: nix::errno::Errno::EADDRNOTAVAIL as i32,
                });
            };
            (inner.groups.swap_remove(place), inner.queue_pair.clone())
        };
        left.leave(queue_pair.as_ref());
        Ok(())
    }

    /// Adds the queue pair to the group. Runs when the program reads the event
    /// [`EventKind::MulticastJoin`].
    pub(super) fn attach(&self, event: &mut Event) {
        let Details::Datagrams(details) = event.details else { return };
        let gid = details.path.gid;
        let Some(queue_pair) = self.queue_pair() else { return };
        let wants = |group: &&mut Group| group.ip == gid.address() && group.is_member;
        let is_wanted = self.lock().groups.iter_mut().any(|group| wants(&group));
        if !is_wanted {
            return;
        }
        let joined = queue_pair.set_membership(gid, true);
        let mut inner = self.lock();
        match joined {
            Ok(()) => {
                if let Some(group) = inner.groups.iter_mut().find(wants) {
                    group.is_attached = true;
                }
            }
            Err(error) => {
                inner.groups.retain(|group| group.ip != gid.address());
                event.kind = EventKind::MulticastError;
                event.status = status_of(&error);
            }
        }
    }
}

impl Group {
    pub(super) fn leave(self, queue_pair: Option<&Arc<QueuePair>>) {
        if let Some(queue_pair) = queue_pair.filter(|_| self.is_attached) {
            // This fails if the program itself has already removed the queue pair from the group,
            // or in a forked child.
            let _gone = queue_pair.set_membership(Gid::of(self.ip), false);
        }
    }
}

/// Destination queue pair number of multicast datagrams.
const GROUP_NUMBER: u32 = 0xff_ffff;

/// Maximum number of groups of an id.
const GROUPS_MAX: usize = 256;
