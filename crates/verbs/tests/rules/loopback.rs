//! A device in memory. When a thread drives the device, the device carries out work between queue
//! pairs of the process.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use mem::{AccessError, MemoryAccess, MemoryTable, Rights, TableLimits, Target};
use verbs::{
    DeviceAttributes, Ending, Error, Gid, GidEntry, GidKind, OnDemandPaging, PortAttributes,
    PortState, Provider, QueuePair, QueuePairType, Registry, ScatterGather, SendOpcode, Services,
    Strictness, TakenSend, Transport, Vendor, Wire,
};
use wire_edge::RemoteKey;
use work::SharedReceives;
use work::{AccessFault, Completion, CompletionKind, OperationError, Owner, Push};

/// The loopback device.
pub(crate) struct Loopback {
    this: Weak<Self>,
    attributes: DeviceAttributes,
    registry: Arc<Registry>,
    memory: Arc<MemoryTable>,
    next_number: AtomicU32,
    /// Whether the device behaves as in a forked child.
    pub(crate) is_foreign: AtomicBool,
    /// Whether the wire (the transport) takes sends but does not complete them.
    pub(crate) holds: AtomicBool,
    /// Whether the device reports completions of armed queues only when a thread waits or a test
    /// calls `report`.
    pub(crate) reports_late: AtomicBool,
    /// Number of calls to `receives_posted`.
    pub(crate) receives_posted: AtomicU32,
    /// Number of calls to `wake`. The next field counts the calls to `serve_alone`.
    pub(crate) wakes: AtomicU32,
    pub(crate) left_alone: AtomicU32,
    /// Number of doorbells for sends.
    pub(crate) rings: AtomicU32,
    engine: Mutex<Engine>,
}

/// The part of the device that stands for the engine: the connections, and the completion queues
/// whose events are due.
#[derive(Default)]
struct Engine {
    ends: BTreeMap<u32, End>,
    lives: u32,
    fired: Vec<Arc<work::CompletionQueue>>,
}

/// One end of a connection, with its queue pair.
struct End {
    queue_pair: Arc<QueuePair>,
    owner: Option<Owner>,
    peer: Option<u32>,
    /// Sends that the wire (the transport) has taken but not completed. Each entry has the send's
    /// number and kind, and whether it is signalled.
    held: VecDeque<(u64, CompletionKind, bool)>,
    receives: VecDeque<(u64, Vec<ScatterGather>)>,
    is_connected: bool,
    wants_drain: bool,
}

struct LoopbackWire {
    device: Arc<Loopback>,
    number: u32,
}

impl Loopback {
    pub(crate) fn new() -> Arc<Self> {
        Self::with(|_| ())
    }

    /// Creates a device like one of iWARP: reliable connections only, without immediates and
    /// atomics, and one scatter/gather entry in a read. The connection manager alone connects, so
    /// that tests connect its queue pairs by [`Loopback::meet`].
    pub(crate) fn iwarp() -> Arc<Self> {
        Self::with(|attributes| {
            attributes.name = "loopiwarp0".into();
            attributes.services = Services::of(Transport::Iwarp);
            attributes.on_demand_paging = OnDemandPaging::Unsupported;
            attributes.message_bytes_max = 2048;
            attributes.read_pieces_max = 1;
            attributes.address_handles_max = 0;
            attributes.groups_max = 0;
        })
    }

    pub(crate) fn with(change: impl FnOnce(&mut DeviceAttributes)) -> Arc<Self> {
        let mut attributes = DeviceAttributes {
            name: "loop0".into(),
            node_guid: [1; 8],
            vendor: Vendor::NONE,
            services: Services::of(Transport::InfiniBand),
            on_demand_paging: OnDemandPaging::Supported,
            message_bytes_max: work::OPERATION_BYTES_MAX,
            queue_pairs_max: 64,
            work_requests_max: 16384,
            pieces_max: 32,
            read_pieces_max: 32,
            inline_max: 256,
            completion_queues_max: 64,
            completions_max: 1 << 20,
            regions_max: 64,
            windows_max: 8,
            region_bytes_max: 1 << 40,
            domains_max: 8,
            read_depth_max: 128,
            shared_queues_max: 8,
            shared_receives_max: 1024,
            address_handles_max: 8,
            groups_max: 8,
            strictness: Strictness::Lenient,
        };
        change(&mut attributes);
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            attributes,
            registry: Registry::new(),
            memory: Arc::new(MemoryTable::new(TableLimits::default(), [3, 4])),
            next_number: AtomicU32::new(0x100),
            is_foreign: AtomicBool::new(false),
            holds: AtomicBool::new(false),
            reports_late: AtomicBool::new(false),
            receives_posted: AtomicU32::new(0),
            wakes: AtomicU32::new(0),
            left_alone: AtomicU32::new(0),
            rings: AtomicU32::new(0),
            engine: Mutex::default(),
        })
    }

    fn inside<R>(&self, work: impl FnOnce(&Self, &mut Engine) -> R) -> R {
        let mut engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner);
        let result = work(self, &mut engine);
        self.leave(engine);
        result
    }

    fn leave(&self, mut engine: MutexGuard<'_, Engine>) {
        if self.reports_late.load(Ordering::SeqCst) {
            return;
        }
        let fired = std::mem::take(&mut engine.fired);
        drop(engine);
        self.registry.on_completions(&fired);
    }

    /// Connects two queue pairs in INIT, as a connection manager does.
    pub(crate) fn meet(&self, one: &QueuePair, other: &QueuePair) {
        self.inside(|_, engine| {
            for (own, peer) in [(one.number(), other.number()), (other.number(), one.number())] {
                let end = engine.ends.get_mut(&own).expect("an end");
                (end.peer, end.is_connected) = (Some(peer), true);
            }
        });
    }

    /// Raises the events for completions that were added while `reports_late` was set.
    pub(crate) fn report(&self) {
        self.reports_late.store(false, Ordering::SeqCst);
        self.inside(|_, _| ());
    }

    /// Completes all held sends of a queue pair successfully.
    pub(crate) fn release(&self, queue_pair: &QueuePair) {
        self.inside(|_, engine| {
            engine.complete_held(queue_pair.number(), usize::MAX, None);
            engine.report_drained(queue_pair.number());
        });
    }

    /// Completes the first `count` held sends successfully.
    pub(crate) fn carry(&self, queue_pair: &QueuePair, count: usize) {
        self.inside(|_, engine| engine.complete_held(queue_pair.number(), count, None));
    }

    /// Carries out the first `done` held sends of a queue pair, and then ends its connection.
    pub(crate) fn end(
        &self,
        queue_pair: &QueuePair,
        done: usize,
        ending: Ending,
        error: OperationError,
    ) {
        self.inside(|_, engine| {
            engine.complete_held(queue_pair.number(), done, None);
            engine.end(queue_pair.number(), ending, error);
        });
    }

    /// Returns the number of sends that the wire (the transport) has taken and not completed.
    pub(crate) fn held(&self, queue_pair: &QueuePair) -> usize {
        self.inside(|_, engine| {
            engine.ends.get(&queue_pair.number()).map_or(0, |end| end.held.len())
        })
    }

    /// Completes one send successfully, even out of order.
    pub(crate) fn complete(&self, queue_pair: &QueuePair, sequence: u64) {
        let number = queue_pair.number();
        self.inside(|_, engine| {
            engine.complete_send(number, sequence, CompletionKind::Send, 0, Ok(()));
        });
    }

    /// Delivers a message to the receive at `place` of a shared queue.
    pub(crate) fn deliver(&self, queue_pair: &QueuePair, place: u64, bytes: u32) {
        self.inside(|_, engine| {
            let number = queue_pair.number();
            let owner = engine.ends.get(&number).and_then(|end| end.owner).expect("an owner");
            let completion = Completion {
                context: place,
                owner,
                kind: CompletionKind::Receive,
                result: Ok(()),
                bytes,
                immediate: None,
                solicited: false,
                value: 0,
            };
            engine.push(number, &completion);
        });
    }

    pub(crate) fn is_in_use(&self) -> bool {
        self.inside(|_, engine| !engine.ends.is_empty())
    }
}

impl Provider for Loopback {
    fn attributes(&self) -> &DeviceAttributes {
        &self.attributes
    }

    fn check(&self) -> Result<(), Error> {
        if self.is_foreign.load(Ordering::SeqCst) {
            return Err(Error::NoDevice("in a child".into()));
        }
        Ok(())
    }

    fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    fn port(&self) -> PortAttributes {
        PortAttributes { state: PortState::Active, active_mtu: 4096, gids: 1, rate: None }
    }

    fn path_mtu(&self) -> u32 {
        self.port().active_mtu
    }

    fn gids(&self) -> Vec<GidEntry> {
        let (gid, kind) = match self.attributes.transport() {
            Transport::InfiniBand => (own_gid(), GidKind::RoceV2),
            Transport::Iwarp => (Gid::of_station([2, 0, 0, 0, 0, 1]), GidKind::Station),
        };
        vec![GidEntry { gid, kind, index: 0, interface: 1 }]
    }

    fn memory(&self) -> Result<Arc<MemoryTable>, Error> {
        Ok(Arc::clone(&self.memory))
    }

    fn reserve_number(&self, _service: QueuePairType) -> Result<u32, Error> {
        Ok(self.next_number.fetch_add(1, Ordering::SeqCst))
    }

    fn release_number(&self, _number: u32) {}

    fn wire(&self, queue_pair: &Arc<QueuePair>) -> Result<Box<dyn Wire>, Error> {
        let number = queue_pair.number();
        let end = End {
            queue_pair: Arc::clone(queue_pair),
            owner: None,
            peer: None,
            held: VecDeque::new(),
            receives: VecDeque::new(),
            is_connected: false,
            wants_drain: false,
        };
        self.inside(|_, engine| engine.ends.insert(number, end));
        let device = self.this.upgrade().expect("it is there while it is called");
        Ok(Box::new(LoopbackWire { device, number }))
    }

    fn receives_posted(&self, _receives: &Arc<SharedReceives>) {
        self.receives_posted.fetch_add(1, Ordering::SeqCst);
    }

    fn arm_limit(&self, receives: &Arc<SharedReceives>, limit: u32) -> Result<bool, Error> {
        Ok(receives.arm_limit(limit))
    }

    fn drive(&self) {
        if let Ok(mut engine) = self.engine.try_lock() {
            engine.turn(self);
            self.leave(engine);
        }
    }

    fn send_deferred(&self) {}

    fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
    }

    fn serve_alone(&self) {
        self.left_alone.fetch_add(1, Ordering::SeqCst);
    }

    fn wait(&self, ready: &mut dyn FnMut() -> bool) {
        while !ready() {
            self.report();
            self.drive();
            std::thread::yield_now();
        }
    }
}

pub(crate) fn own_gid() -> Gid {
    Gid::of("127.0.0.1".parse().expect("an address"))
}

impl Engine {
    fn turn(&mut self, device: &Loopback) {
        let numbers: Vec<u32> = self.ends.keys().copied().collect();
        for number in numbers {
            self.take_receives(number);
            while self.take_send(device, number) {}
        }
    }

    fn take_receives(&mut self, number: u32) {
        let Some(end) = self.ends.get_mut(&number) else { return };
        while let Some(receive) = end.queue_pair.next_receive() {
            let (sequence, pieces) = (receive.sequence(), receive.pieces().to_vec());
            drop(receive);
            end.receives.push_back((sequence, pieces));
            end.queue_pair.receive_taken();
        }
    }

    fn take_send(&mut self, device: &Loopback, number: u32) -> bool {
        let Some(end) = self.ends.get(&number).filter(|end| end.is_connected) else { return false };
        let (queue_pair, peer) = (Arc::clone(&end.queue_pair), end.peer);
        let Some(taken) = queue_pair.next_send() else { return false };
        let access = device.memory.access();
        let (sequence, kind) = (taken.sequence(), kind_of(&taken.opcode()));
        let is_signalled = taken.flags().signalled;
        if device.holds.load(Ordering::SeqCst) {
            drop(taken);
            queue_pair.send_taken();
            let end = self.ends.get_mut(&number).expect("it was there");
            end.held.push_back((sequence, kind, is_signalled));
            return true;
        }
        let result = self.carry_out(&access, &queue_pair, peer, &taken);
        let bytes = bytes_of(&taken);
        drop(taken);
        if result == Err(Refusal::NotReady) {
            return false;
        }
        queue_pair.send_taken();
        match result {
            Ok(()) if !is_signalled => {}
            Ok(()) => self.complete_send(number, sequence, kind, bytes, Ok(())),
            Err(Refusal::Fails(error)) => {
                self.complete_send(number, sequence, kind, 0, Err(error));
                if queue_pair.service() != QueuePairType::Datagram {
                    self.end(number, Ending::OperationFailed, OperationError::Flushed);
                }
            }
            Err(Refusal::NotReady) => unreachable!("looked at above"),
        }
        true
    }

    fn carry_out(
        &mut self,
        access: &MemoryAccess<'_>,
        from: &QueuePair,
        peer: Option<u32>,
        taken: &TakenSend<'_>,
    ) -> Result<(), Refusal> {
        let domain = from.domain().expect("a domain");
        let peer = taken.to().map(|to| to.destination).or(peer);
        let own = self.ends.get(&from.number()).and_then(|end| end.owner).expect("an owner");
        let local = |want| locate(access, domain, taken.pieces(), want);
        let opcode = taken.opcode();
        let is_solicited = taken.flags().solicited;
        match opcode {
            SendOpcode::Write { address, key, immediate } => {
                let bytes = gather(access, domain, taken)?;
                self.write(access, peer, (address, key), &bytes)?;
                if immediate.is_some() {
                    self.receive(
                        access,
                        peer,
                        from,
                        &[],
                        bytes.len(),
                        (immediate, is_solicited),
                        Completion::OF_WRITE,
                    )?;
                }
                Ok(())
            }
            SendOpcode::Read { address, key } => {
                let sink = local(Rights::LOCAL_WRITE)?;
                let length = sink.iter().map(Target::len).sum();
                let target =
                    self.remote(access, peer, (address, key), length, Rights::REMOTE_READ)?;
                let mut at = 0;
                for sink in sink {
                    let mut bytes = vec![0; sink.len() as usize];
                    access.copy_from(&target, at, &mut bytes).map_err(|_| fault())?;
                    access.place(&sink, 0, &bytes[..]).map_err(|_| local_fault())?;
                    at += sink.len();
                }
                Ok(())
            }
            SendOpcode::Send { immediate } => {
                let bytes = gather(access, domain, taken)?;
                self.receive(access, peer, from, &bytes, bytes.len(), (immediate, is_solicited), 0)
            }
            SendOpcode::SendInvalidate { key } => {
                let bytes = gather(access, domain, taken)?;
                let owner = peer.and_then(|peer| self.ends.get(&peer)?.owner).expect("a peer");
                access.invalidate(domain, owner.bits(), RemoteKey(key)).map_err(|_| fault())?;
                self.receive(
                    access,
                    peer,
                    from,
                    &bytes,
                    bytes.len(),
                    (None, is_solicited),
                    key.into(),
                )
            }
            SendOpcode::FetchAdd { address, key, operand } => {
                let sink = local(Rights::LOCAL_WRITE)?;
                let target = self.remote(access, peer, (address, key), 8, Rights::REMOTE_ATOMIC)?;
                let before = access.fetch_add(&target, operand).map_err(|_| fault())?;
                access.write_value(&sink[0], before).map_err(|_| local_fault())
            }
            SendOpcode::CompareSwap { address, key, compare, swap } => {
                let sink = local(Rights::LOCAL_WRITE)?;
                let target = self.remote(access, peer, (address, key), 8, Rights::REMOTE_ATOMIC)?;
                let before = access.compare_swap(&target, compare, swap).map_err(|_| fault())?;
                access.write_value(&sink[0], before).map_err(|_| local_fault())
            }
            SendOpcode::BindWindow { .. } => bind(access, domain, own, &opcode),
            SendOpcode::LocalInvalidate { key } => access
                .invalidate(domain, own.bits(), RemoteKey(key))
                .map(|_| ())
                .map_err(|_| Refusal::Fails(OperationError::WindowBind)),
        }
    }

    fn write(
        &self,
        access: &MemoryAccess<'_>,
        peer: Option<u32>,
        to: (u64, u32),
        bytes: &[u8],
    ) -> Result<(), Refusal> {
        if bytes.is_empty() {
            return Ok(());
        }
        let target = self.remote(access, peer, to, bytes.len() as u64, Rights::REMOTE_WRITE)?;
        access.place_tail(&target, 0, bytes).map_err(|_| fault())
    }

    fn remote(
        &self,
        access: &MemoryAccess<'_>,
        peer: Option<u32>,
        (address, key): (u64, u32),
        length: u64,
        want: Rights,
    ) -> Result<Target, Refusal> {
        let end = peer.and_then(|peer| self.ends.get(&peer)).expect("a peer");
        let domain = end.queue_pair.domain().expect("a domain");
        let owner = end.owner.expect("an owner").bits();
        let target = access.resolve_for(domain, owner, RemoteKey(key), address, length, want);
        target.map_err(|error| {
            let right = matches!(error, AccessError::Permission { .. });
            let fault = if right { AccessFault::Right } else { AccessFault::Key };
            Refusal::Fails(OperationError::RemoteAccess(fault))
        })
    }

    /// Places a message in the peer's next receive, and completes the receive.
    #[expect(clippy::too_many_arguments, reason = "all that a message is")]
    fn receive(
        &mut self,
        access: &MemoryAccess<'_>,
        peer: Option<u32>,
        from: &QueuePair,
        bytes: &[u8],
        length: usize,
        (immediate, is_solicited): (Option<u32>, bool),
        value: u64,
    ) -> Result<(), Refusal> {
        let number = peer.expect("a peer");
        self.take_receives(number);
        let end = self.ends.get_mut(&number).expect("a peer");
        let is_datagram = end.queue_pair.service() == QueuePairType::Datagram;
        let domain = end.queue_pair.domain().expect("a domain");
        let Some((context, pieces)) = end.receives.pop_front() else {
            return if is_datagram { Ok(()) } else { Err(Refusal::NotReady) };
        };
        let header: &[u8] = if is_datagram { &[0; 40] } else { &[] };
        let all = [header, bytes].concat();
        let room: usize = pieces.iter().map(|piece| piece.length as usize).sum();
        let mut result = Ok(());
        if room < all.len() {
            result = Err(OperationError::MessageTooLong);
        } else if place(access, domain, &pieces, &all).is_err() {
            result = Err(OperationError::LocalAccess);
        }
        let value = if is_datagram { from.number().into() } else { value };
        let completion = Completion {
            context,
            owner: end.owner.expect("an owner"),
            kind: CompletionKind::Receive,
            result,
            bytes: (header.len() + length) as u32,
            immediate,
            solicited: is_solicited,
            value,
        };
        self.push(number, &completion);
        if result.is_ok() {
            return Ok(());
        }
        self.end(number, Ending::OperationFailed, OperationError::Flushed);
        Err(Refusal::Fails(OperationError::RemoteInvalidRequest))
    }

    fn complete_send(
        &mut self,
        number: u32,
        context: u64,
        kind: CompletionKind,
        bytes: u32,
        result: Result<(), OperationError>,
    ) {
        let owner = self.ends.get(&number).and_then(|end| end.owner).expect("an owner");
        let completion = Completion {
            context,
            owner,
            kind,
            result,
            bytes,
            immediate: None,
            solicited: false,
            value: 0,
        };
        self.push(number, &completion);
    }

    fn complete_held(&mut self, number: u32, count: usize, error: Option<OperationError>) {
        for _ in 0..count {
            let Some(end) = self.ends.get_mut(&number) else { return };
            let Some((sequence, kind, is_signalled)) = end.held.pop_front() else { return };
            if is_signalled || error.is_some() {
                self.complete_send(number, sequence, kind, 0, error.map_or(Ok(()), Err));
            }
        }
    }

    fn report_drained(&mut self, number: u32) {
        let Some(end) = self.ends.get_mut(&number) else { return };
        if end.held.is_empty() && std::mem::take(&mut end.wants_drain) {
            end.queue_pair.on_drained();
        }
    }

    fn push(&mut self, number: u32, completion: &Completion) {
        let Some(end) = self.ends.get(&number) else { return };
        let queues = end.queue_pair.queues();
        let is_receive = completion.kind == CompletionKind::Receive;
        let queue = if is_receive { queues.receive } else { queues.send };
        match queue.push(completion) {
            Push::Added => {}
            Push::Fired => self.fired.push(queue),
            Push::NoRoom => {
                let queue_pair = Arc::clone(&end.queue_pair);
                if let Some(end) = self.ends.get_mut(&number) {
                    end.is_connected = false;
                }
                self.fired.push(queue);
                queue_pair.on_ended(Ending::Overrun);
            }
        }
    }

    /// Ends the connection of the queue pair `number` for the reason `ending`. The work that was
    /// not carried out completes with `error`.
    fn end(&mut self, number: u32, ending: Ending, error: OperationError) {
        let Some(end) = self.ends.get_mut(&number) else { return };
        if !std::mem::take(&mut end.is_connected) {
            return;
        }
        let (queue_pair, peer) = (Arc::clone(&end.queue_pair), end.peer.take());
        self.flush(number, error);
        queue_pair.on_ended(ending);
        if let Some(peer) = peer.filter(|peer| *peer != number) {
            self.end(peer, Ending::ByPeer, OperationError::ClosedByPeer);
        }
    }

    fn flush(&mut self, number: u32, error: OperationError) {
        self.complete_held(number, usize::MAX, Some(error));
        let Some(end) = self.ends.get_mut(&number) else { return };
        let owner = end.owner.unwrap_or_default();
        let receives = std::mem::take(&mut end.receives);
        for (context, _) in receives {
            let completion = Completion {
                context,
                owner,
                kind: CompletionKind::Receive,
                result: Err(error),
                bytes: 0,
                immediate: None,
                solicited: false,
                value: 0,
            };
            self.push(number, &completion);
        }
    }
}

impl Wire for LoopbackWire {
    fn open(&self) -> Result<(), Error> {
        self.device.inside(|device, engine| {
            engine.lives += 1;
            let life = engine.lives;
            let end = engine.ends.get_mut(&self.number).expect("an end");
            let owner = Owner::new(self.number, life);
            end.owner = Some(owner);
            device.registry.own(owner, &end.queue_pair);
            end.is_connected = end.queue_pair.service() == QueuePairType::Datagram;
        });
        Ok(())
    }

    fn connect(&self) -> Result<(), Error> {
        self.device.inside(|_, engine| {
            let end = engine.ends.get_mut(&self.number).expect("an end");
            let wanted = end.queue_pair.attributes().destination;
            end.peer = Some(wanted);
            let is_wanted = |end: &End| end.peer == Some(self.number);
            if engine.ends.get(&wanted).is_some_and(is_wanted) {
                for number in [self.number, wanted] {
                    if let Some(end) = engine.ends.get_mut(&number) {
                        end.is_connected = true;
                    }
                }
            }
        });
        Ok(())
    }

    fn update(&self) -> Result<(), Error> {
        Ok(())
    }

    fn ring(&self) {
        self.device.rings.fetch_add(1, Ordering::SeqCst);
    }

    fn receives(&self) {}

    fn drain(&self) {
        self.device.inside(|_, engine| {
            if let Some(end) = engine.ends.get_mut(&self.number) {
                end.wants_drain = true;
            }
            engine.report_drained(self.number);
        });
    }

    fn send_out(&self) {}

    fn close(&self) {
        self.device.inside(|_, engine| {
            engine.flush(self.number, OperationError::Flushed);
            let Some(end) = engine.ends.get_mut(&self.number) else { return };
            end.is_connected = false;
            if let Some(peer) = end.peer.take().filter(|peer| *peer != self.number) {
                engine.end(peer, Ending::ByPeer, OperationError::ClosedByPeer);
            }
        });
    }

    fn set_membership(&self, _group: Gid, _is_member: bool) -> Result<(), Error> {
        Ok(())
    }
}

impl Drop for LoopbackWire {
    fn drop(&mut self) {
        let end = self.device.inside(|_, engine| engine.ends.remove(&self.number));
        drop(end);
    }
}

/// Why a send cannot be carried out.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Refusal {
    Fails(OperationError),
    NotReady,
}

fn fault() -> Refusal {
    Refusal::Fails(OperationError::RemoteAccess(AccessFault::Range))
}

fn local_fault() -> Refusal {
    Refusal::Fails(OperationError::LocalAccess)
}

fn kind_of(opcode: &SendOpcode) -> CompletionKind {
    match opcode {
        SendOpcode::Write { .. } => CompletionKind::Write,
        SendOpcode::Read { .. } => CompletionKind::Read,
        SendOpcode::Send { .. } | SendOpcode::SendInvalidate { .. } => CompletionKind::Send,
        SendOpcode::FetchAdd { .. } => CompletionKind::FetchAdd,
        SendOpcode::CompareSwap { .. } => CompletionKind::CompareSwap,
        SendOpcode::BindWindow { .. } => CompletionKind::BindWindow,
        SendOpcode::LocalInvalidate { .. } => CompletionKind::Invalidate,
    }
}

fn bytes_of(taken: &TakenSend<'_>) -> u32 {
    let pieces = taken.pieces().iter().map(|piece| piece.length).sum();
    taken.inline().map_or(pieces, |inline| inline.length)
}

fn locate(
    access: &MemoryAccess<'_>,
    domain: mem::ProtectionDomain,
    pieces: &[ScatterGather],
    want: Rights,
) -> Result<Vec<Target>, Refusal> {
    let locate = |piece: &ScatterGather| {
        let (key, length) = (RemoteKey(piece.key), piece.length.into());
        access.resolve(domain, key, piece.address, length, want).map_err(|_| local_fault())
    };
    pieces.iter().filter(|piece| piece.length > 0).map(locate).collect()
}

fn gather(
    access: &MemoryAccess<'_>,
    domain: mem::ProtectionDomain,
    taken: &TakenSend<'_>,
) -> Result<Vec<u8>, Refusal> {
    if let Some(inline) = taken.inline() {
        let mut bytes = vec![0; inline.length as usize];
        let copied = access.copy_out(inline.region, inline.offset, &mut bytes);
        return copied.map(|()| bytes).map_err(|_| local_fault());
    }
    let mut all = Vec::new();
    for target in locate(access, domain, taken.pieces(), Rights::NONE)? {
        let mut bytes = vec![0; target.len() as usize];
        access.copy_from(&target, 0, &mut bytes).map_err(|_| local_fault())?;
        all.append(&mut bytes);
    }
    Ok(all)
}

fn place(
    access: &MemoryAccess<'_>,
    domain: mem::ProtectionDomain,
    pieces: &[ScatterGather],
    bytes: &[u8],
) -> Result<(), Refusal> {
    let mut rest = bytes;
    for target in locate(access, domain, pieces, Rights::LOCAL_WRITE)? {
        let (now, later) = rest.split_at(rest.len().min(target.len() as usize));
        access.place(&target, 0, now).map_err(|_| local_fault())?;
        rest = later;
    }
    Ok(())
}

fn bind(
    access: &MemoryAccess<'_>,
    domain: mem::ProtectionDomain,
    own: Owner,
    opcode: &SendOpcode,
) -> Result<(), Refusal> {
    let SendOpcode::BindWindow { kind, replaced, key, region_key, address, length, access: flags } =
        *opcode
    else {
        unreachable!("only bindings come here")
    };
    access.table().unbind(RemoteKey(replaced));
    if length == 0 {
        return Ok(());
    }
    let failed = Refusal::Fails(OperationError::WindowBind);
    let region_key = RemoteKey(region_key);
    let target =
        access.resolve(domain, region_key, address, length, Rights::NONE).map_err(|_| failed)?;
    let region = access.region(target.region()).map_err(|_| failed)?;
    let window = mem::Window {
        region: region.id,
        offset: address - region.start,
        len: length,
        remote_start: address,
        rights: verbs::AccessFlags(flags).rights(),
        reach: match kind {
            verbs::WindowType::One => mem::Reach::Domain,
            verbs::WindowType::Two => mem::Reach::Connection(own.bits()),
        },
    };
    access.table().bind(RemoteKey(key), window).map_err(|_| failed)
}
