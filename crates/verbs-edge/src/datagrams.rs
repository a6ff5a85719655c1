//! Datagram queue pairs. The engine has a datagram port for each of them.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use delivery::Instant;
use engine::{DatagramError, DatagramPort, Engine, OutgoingDatagram, PortRequest};
use mem::{MemoryAccess, ProtectionDomain, Rights};
use runtime::{Posted, Rest, SourceDoorbell, WorkSource};
use semantics::{OperationError, PIECES_MAX, Piece, PieceList};
use verbs::{
    AddressVector, Ending, Error, Gid, QueuePair, QueuePairState, Registry, SendOpcode,
    TakenReceive, TakenSend, Wire,
};
use wire_edge::QueuePairNumber;
use work::CompletionStatus;

use super::draining::Draining;
use super::failure::forked;
use super::instance::Instance;
use super::limits::WINDOW;
use super::ways::Ways;
use super::work::{locate, locate_all, total};

/// Creates the wire (the transport) of a datagram queue pair.
pub(crate) fn wire(
    instance: &Arc<Instance>,
    queue_pair: &Arc<QueuePair>,
) -> Result<Box<dyn Wire>, Error> {
    let source = Arc::new(DatagramSource {
        queue_pair: Arc::clone(queue_pair),
        domain: queue_pair.domain()?,
        doorbell: SourceDoorbell::new(),
        registry: Arc::clone(instance.registry()),
        ways: instance.ways().clone(),
        payload_max: instance.places().port().active_mtu,
        port: Mutex::new(None),
        key: AtomicU32::new(0),
        draining: Draining::default(),
    });
    let rung = Arc::clone(&source);
    let instance = Arc::clone(instance);
    Ok(Box::new(DatagramWire { instance, source, rung, groups: Mutex::default() }))
}

/// The source from which the engine pulls the work of a datagram queue pair.
struct DatagramSource {
    queue_pair: Arc<QueuePair>,
    domain: ProtectionDomain,
    doorbell: SourceDoorbell,
    registry: Arc<Registry>,
    ways: Ways,
    /// Maximum payload of a datagram in bytes. The device's port reports the same value.
    payload_max: u32,
    /// The engine's datagram port; `None` before RTR and after the port is closed. Only threads
    /// inside the engine change this field.
    port: Mutex<Option<DatagramPort>>,
    /// The queue pair's own queue key.
    key: AtomicU32,
    /// Whether the queue pair waits until no send is in flight.
    draining: Draining,
}

/// Outcome of handing a work request to the engine.
enum Outcome {
    /// The engine has the request, which will complete.
    Posted,
    /// The engine has no room for the request now.
    NoRoom,
    /// The request fails with this status.
    Failed(CompletionStatus),
    /// The port no longer works. If it is still open, the caller must close it with this ending.
    Over(Ending),
}

impl DatagramSource {
    /// Opens the port. From now on, the queue pair can receive datagrams.
    fn open(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
    ) -> Result<DatagramPort, Error> {
        let queue_pair = &self.queue_pair;
        let queues = queue_pair.queues();
        let number = QueuePairNumber::new(queue_pair.number());
        let key = queue_pair.attributes().queue_key;
        self.key.store(key, Ordering::Relaxed);
        let opened = engine.open_datagram_port(PortRequest {
            number: number.ok_or_else(|| Error::Invalid("a number beyond 24 bits".into()))?,
            key,
            send: queues.send,
            receive: queues.receive,
            receives_max: queue_pair.limits().receives,
            shared_receives: queue_pair.shared_receives().cloned(),
        });
        let port = opened.map_err(Error::of_cause)?;
        self.registry.own(port.owner(), queue_pair);
        *self.port() = Some(port);
        // Post all receives, even if there are many, because datagrams may arrive as soon as the
        // port is open.
        while self.post(engine, memory, now, PULLED_AT_ONCE).rest == Rest::More {}
        Ok(port)
    }

    fn port(&self) -> MutexGuard<'_, Option<DatagramPort>> {
        self.port.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the port and returns it, so that the caller can close it. Posted receives stay in
    /// the queue pair's ring, from which the library flushes them. The engine must not report them,
    /// because the completion queue may lack room for all of them.
    fn take_port(&self, engine: &mut Engine) -> Option<DatagramPort> {
        let port = self.port().take()?;
        // This cannot fail, because only the caller of `take_port` closes the port.
        let _open = engine.forget_datagram_receives(port);
        Some(port)
    }

    /// Closes the port after a failure, and reports `ending` to the queue pair. If a group has no
    /// more members on this host after that, the runtime leaves the group the next time that any
    /// port joins or leaves a group.
    #[cold]
    fn end(&self, engine: &mut Engine, ending: Ending) {
        if let Some(port) = self.take_port(engine) {
            let _open = engine.close_datagram_port(port);
            self.queue_pair.on_ended(ending);
        }
    }

    /// Posts receives to the engine. Returns false if the port was closed.
    fn pull_receives(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        port: DatagramPort,
        limit: u32,
        posted: &mut Posted,
    ) -> bool {
        for _ in 0..limit {
            let Some(receive) = self.queue_pair.next_receive() else { return true };
            let outcome = post_receive(engine, memory, port, self.domain, &receive);
            drop(receive);
            match outcome {
                Outcome::Posted => {}
                Outcome::NoRoom | Outcome::Failed(_) => {
                    posted.rest = Rest::Blocked;
                    return true;
                }
                Outcome::Over(ending) => {
                    self.end(engine, ending);
                    return false;
                }
            }
            self.queue_pair.receive_taken();
            posted.count += 1;
        }
        posted.rest = Rest::More;
        true
    }

    fn pull_sends(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        port: DatagramPort,
        limit: u32,
        posted: &mut Posted,
    ) {
        let window = WINDOW.saturating_sub(engine.waiting_datagrams_of(port));
        for _ in 0..window.min(limit) {
            let Some(send) = self.queue_pair.next_send() else { return };
            let outcome = self.post_send(engine, memory, port, &send);
            match outcome {
                Outcome::Posted => {}
                Outcome::NoRoom => return posted.rest = Rest::Blocked,
                // A send that must fail waits until the engine has sent all earlier sends.
                // Otherwise the failure would flush the earlier sends.
                Outcome::Failed(_) if engine.waiting_datagrams_of(port) > 0 => {
                    return posted.rest = Rest::Blocked;
                }
                Outcome::Failed(status) => {
                    self.queue_pair.send_failed(send, status);
                    return self.queue_pair.on_drained();
                }
                Outcome::Over(ending) => {
                    drop(send);
                    return self.end(engine, ending);
                }
            }
            drop(send);
            self.queue_pair.send_taken();
            posted.count += 1;
        }
        if self.queue_pair.next_send().is_some() && posted.rest == Rest::Nothing {
            posted.rest = Rest::Blocked;
        }
    }

    fn post_send(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        port: DatagramPort,
        send: &TakenSend<'_>,
    ) -> Outcome {
        let Some(datagram) = self.outgoing(send) else {
            return Outcome::Failed(CompletionStatus::LocalQueuePairOperation);
        };
        let length = send.inline().map_or_else(|| total(send.pieces()), |inline| inline.length);
        if length > self.payload_max {
            return Outcome::Failed(CompletionStatus::LocalLength);
        }
        let mut room = [Piece::NOTHING; PIECES_MAX];
        let pieces = match (send.inline(), send.pieces()) {
            (Some(inline), _) => {
                let (region, offset, length) = (inline.region, inline.offset, inline.length);
                room[0] = Piece { region, offset, length };
                Ok(&room[..1])
            }
            (None, [only]) => locate(memory, self.domain, only, Rights::NONE).map(|piece| {
                room[0] = piece;
                &room[..1]
            }),
            (None, pieces) => locate_all(memory, self.domain, pieces, Rights::NONE, &mut room),
        };
        let list =
            pieces.and_then(|pieces| PieceList::new(pieces).map_err(|_| OperationError::NotPosted));
        match list {
            Ok(list) => match engine.post_datagram(memory, port, &datagram, list) {
                Ok(()) => Outcome::Posted,
                Err(error) => outcome_of(error),
            },
            Err(OperationError::LocalAccess) => Outcome::Failed(CompletionStatus::LocalProtection),
            Err(_) => Outcome::Failed(CompletionStatus::LocalQueuePairOperation),
        }
    }

    /// Returns the destination and the parameters of a send. Returns `None` if there is no route.
    fn outgoing(&self, send: &TakenSend<'_>) -> Option<OutgoingDatagram> {
        let AddressVector { to, destination, queue_key } = send.to()?;
        let destination = QueuePairNumber::new(destination & NUMBER_MASK)?;
        let (link, to) = self.ways.to(to.source_index.into(), to.gid, destination)?;
        let is_own_key = queue_key >> 31 != 0;
        let flags = send.flags();
        let immediate = match send.opcode() {
            SendOpcode::Send { immediate } => immediate,
            _ => None,
        };
        Some(OutgoingDatagram {
            link,
            to,
            destination,
            key: if is_own_key { self.key.load(Ordering::Relaxed) } else { queue_key },
            immediate,
            solicited: flags.solicited,
            signalled: flags.signalled,
            context: send.sequence(),
        })
    }
}

impl WorkSource for DatagramSource {
    fn doorbell(&self) -> &SourceDoorbell {
        &self.doorbell
    }

    fn is_idle(&self) -> bool {
        self.queue_pair.is_idle()
    }

    fn is_urgent(&self) -> bool {
        self.queue_pair.has_first_send()
    }

    fn post(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        now: Instant,
        limit: u32,
    ) -> Posted {
        engine.note_time(now);
        let mut posted = Posted { count: 0, rest: Rest::Nothing };
        let port = *self.port();
        if let Some(port) = port {
            if self.queue_pair.state() == QueuePairState::Error {
                // The queue pair entered ERR because a receive has failed.
                self.end(engine, Ending::OperationFailed);
                return posted;
            }
            if self.pull_receives(engine, memory, port, limit, &mut posted) {
                self.pull_sends(engine, memory, port, limit, &mut posted);
            }
        }
        let is_outstanding = || port.is_some_and(|port| engine.waiting_datagrams_of(port) > 0);
        self.draining.look(&self.queue_pair, &mut posted, is_outstanding);
        posted
    }
}

/// Posts the oldest receive of a queue pair. Does not check whether the receive's memory is
/// registered. If it is not registered, the receive fails when a datagram arrives for it.
fn post_receive(
    engine: &mut Engine,
    memory: &MemoryAccess<'_>,
    port: DatagramPort,
    domain: ProtectionDomain,
    receive: &TakenReceive<'_>,
) -> Outcome {
    let (pieces, context) = (receive.pieces(), receive.sequence());
    let mut room = [Piece::NOTHING; PIECES_MAX];
    let found = locate_all(memory, domain, pieces, Rights::LOCAL_WRITE, &mut room);
    let posted = match found.ok().and_then(|found| PieceList::new(found).ok()) {
        Some(list) => engine.post_datagram_receive_list(memory, port, list, context),
        None => engine.post_failed_datagram_receive(port, total(pieces), context),
    };
    let posted = posted.or_else(|error| match error {
        DatagramError::LocalAccess(_) => {
            engine.post_failed_datagram_receive(port, total(pieces), context)
        }
        error => Err(error),
    });
    posted.map_or_else(outcome_of, |()| Outcome::Posted)
}

fn outcome_of(error: DatagramError) -> Outcome {
    match error {
        DatagramError::LocalAccess(_) => Outcome::Failed(CompletionStatus::LocalProtection),
        DatagramError::TooLong { .. } => Outcome::Failed(CompletionStatus::LocalLength),
        DatagramError::UnknownLink(_) => Outcome::Failed(CompletionStatus::LocalQueuePairOperation),
        DatagramError::Overrun => Outcome::Over(Ending::Overrun),
        DatagramError::Closed => Outcome::Over(Ending::OperationFailed),
        _ => Outcome::NoRoom,
    }
}

/// The wire (the transport) of a datagram queue pair.
struct DatagramWire {
    instance: Arc<Instance>,
    source: Arc<DatagramSource>,
    /// The same object as `source`, but with the type that the runtime requires.
    rung: Arc<dyn WorkSource>,
    /// Groups that the queue pair has joined. A queue pair can join groups even before it can
    /// receive. A thread holds this lock while it makes the queue pair join or leave a group.
    groups: Mutex<Vec<Gid>>,
}

impl DatagramWire {
    /// Rings the doorbell. Does nothing in a forked child.
    fn look(&self) {
        let _forked = self.instance.runtime().ring(&self.rung);
    }

    fn groups(&self) -> MutexGuard<'_, Vec<Gid>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Joins a group on every interface.
    fn join(&self, port: DatagramPort, group: Gid) -> Result<(), Error> {
        let runtime = self.instance.runtime();
        let ip = group.address();
        for link in self.links_to(ip)? {
            if let Err(error) = runtime.join_group(port, link, ip) {
                // Leave the group on all links, to restore the state from before this call.
                let _open = runtime.leave_group(port, ip);
                return Err(Error::of_cause(error));
            }
        }
        Ok(())
    }

    fn links_to(&self, group: IpAddr) -> Result<Vec<delivery::LinkId>, Error> {
        let links = self.source.ways.links_to_group(group);
        if links.is_empty() {
            let what = format!("the device has no address of the family of group {group}");
            return Err(Error::Invalid(what));
        }
        Ok(links)
    }
}

impl Wire for DatagramWire {
    fn open(&self) -> Result<(), Error> {
        self.instance.check()
    }

    fn connect(&self) -> Result<(), Error> {
        let source = Arc::clone(&self.source);
        let open = move |engine: &mut Engine, memory: &MemoryAccess<'_>, now| {
            source.open(engine, memory, now)
        };
        let port = self.instance.runtime().control(open).map_err(forked)??;
        let joined = self.groups().iter().try_for_each(|group| self.join(port, *group));
        joined.inspect_err(|_| self.close())
    }

    fn update(&self) -> Result<(), Error> {
        let source = Arc::clone(&self.source);
        let set = move |engine: &mut Engine, _: &MemoryAccess<'_>, _| {
            let key = source.queue_pair.attributes().queue_key;
            source.key.store(key, Ordering::Relaxed);
            let port = *source.port();
            if let Some(port) = port {
                // This cannot fail, because only the caller of `take_port` closes the port.
                let _open = engine.set_datagram_key(port, key);
            }
        };
        self.instance.runtime().control(set).map_err(forked)
    }

    fn ring(&self) {
        self.look();
    }

    fn receives(&self) {
        self.look();
    }

    fn drain(&self) {
        self.source.draining.begin();
        self.look();
    }

    fn send_out(&self) {
        // Ignore the error, because a forked child sends nothing.
        let _forked = self.instance.runtime().send_out(&self.rung);
    }

    fn close(&self) {
        let source = Arc::clone(&self.source);
        let runtime = self.instance.runtime();
        let taken = runtime.control(move |engine: &mut Engine, _, _| source.take_port(engine));
        // Ignore an error, because a forked child has nothing to close.
        if let Ok(Some(port)) = taken {
            let _open = runtime.close_datagram_port(port);
        }
        self.source.draining.give_up();
    }

    fn set_membership(&self, group: Gid, is_member: bool) -> Result<(), Error> {
        let mut groups = self.groups();
        let at = groups.iter().position(|known| *known == group);
        let port = *self.source.port();
        match (is_member, at) {
            (true, Some(_)) => {}
            (true, None) => {
                if groups.len() >= GROUPS_MAX {
                    return Err(Error::NoRoom(format!(
                        "the queue pair is already in {GROUPS_MAX} groups, which is the maximum"
                    )));
                }
                self.links_to(group.address())?;
                port.map_or(Ok(()), |port| self.join(port, group))?;
                groups.push(group);
            }
            (false, None) => {
                return Err(Error::Invalid("the queue pair is not in this group".into()));
            }
            (false, Some(at)) => {
                groups.swap_remove(at);
                if let Some(port) = port {
                    self.instance
                        .runtime()
                        .leave_group(port, group.address())
                        .map_err(Error::of_cause)?;
                }
            }
        }
        Ok(())
    }
}

/// Maximum number of groups of a queue pair. It equals the maximum number of multicast sockets of
/// an endpoint.
const GROUPS_MAX: usize = crate::limits::GROUPS_MAX as usize;

/// Mask for queue pair numbers. Programs may set the byte above the 24 bits of the number.
const NUMBER_MASK: u32 = 0xff_ffff;

/// Maximum number of work requests that the engine pulls at once when a queue pair enters RTR.
const PULLED_AT_ONCE: u32 = 1024;
