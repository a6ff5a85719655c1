//! A simulated host that runs the real engine with real memory.

mod ports;
mod requests;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use delivery::{
    AckPolicy, CongestionAlgorithm, Instant, LinkCaps, LinkEvent, LinkId, LinkState, RxFrame,
    SchedulingPolicy, TxBatch,
};
use engine::{AcceptError, Closed, ConnectRequest, Emitted, Engine, EngineConfig, Event, Terms};
use mem::{
    Buffer, MemoryTable, PayloadSlice, ProtectionDomain, RegionId, RegisterError, Rights,
    TableLimits,
};
use semantics::{
    CompletionQueue, OperationError, OperationStatus, Piece, PieceList, PoolLimits, PostError,
    Queues, Receive, SharedReceives, StatusTable,
};
use wire_edge::{CloseReason, PeerAddr, RemoteKey};

use self::ports::Port;
use self::requests::{cut, flags_of, local_piece};
use crate::host::{
    Action, Cause, Completion, CompletionKind, Congestion, ConnectionHandle, Datagram, Fault,
    HostEngine, HostEvent, Operation, Refusal, Region, RequestHandle, Scheduling, Shape, Tuning,
    Wire,
};

/// An [`Engine`] with its memory. The pools of the engine are small, so that a host is cheap to
/// create.
#[derive(Debug)]
pub struct EdgeHost {
    engine: Engine,
    config: EngineConfig,
    memory: MemoryTable,
    /// The protection domain of each service.
    domains: Vec<ProtectionDomain>,
    /// Index of the selected service and of its domain. New registrations and connections use this
    /// service and domain.
    place: usize,
    shape: Shape,
    /// The completion queue that all connections share; `None` if each connection has its own.
    shared: Option<Arc<CompletionQueue>>,
    /// The receive queue that all connections share; `None` if each connection has its own.
    receives: Option<Arc<SharedReceives>>,
    status: Arc<StatusTable>,
    /// The regions, by number.
    regions: Vec<Memory>,
    /// Maps the address of a region's buffer in this process to the region's number.
    by_address: BTreeMap<u64, u32>,
    /// Maps the key of a memory window to the number of its region.
    windows: BTreeMap<u32, u32>,
    /// The datagram ports, by queue pair number.
    ports: BTreeMap<u32, Port>,
    /// The connections, by the number that the simulator uses for them.
    connections: BTreeMap<u64, Connection>,
    /// Maps an engine's handle to the simulator's number. The order of this map differs between
    /// runs, so the host only looks entries up and never iterates over the map.
    numbers: HashMap<engine::ConnectionHandle, u64>,
    next_number: u64,
    /// Payload of the frame that the host is passing to a driver.
    payload: Vec<u8>,
    /// Number of frames that drivers have accepted so far.
    frames: u64,
    /// The attached links with their addresses.
    engine_links: Vec<(LinkId, PeerAddr)>,
}

/// A buffer that contains guard bytes, the bytes of a region, and guard bytes again.
#[derive(Debug)]
struct Memory {
    /// `None` after the memory was freed.
    buffer: Option<Arc<Buffer>>,
    id: Option<RegionId>,
    length_bytes: u32,
}

#[derive(Debug)]
struct Connection {
    handle: engine::ConnectionHandle,
    queue: Arc<CompletionQueue>,
    /// Completions of this connection that the host took from a shared queue.
    taken: VecDeque<semantics::Completion>,
    /// The service at which the connection was requested.
    service: u32,
    /// Atomics whose results are not stored in memory yet, in the order of posting.
    atomics: VecDeque<PendingAtomic>,
}

/// An atomic whose result the host must still store in memory. The engine returns the result
/// through the operation's handle and completion, but the simulator expects the result in memory.
#[derive(Clone, Copy, Debug)]
struct PendingAtomic {
    context: u64,
    slot: u32,
    local: Region,
    local_offset: u32,
}

impl EdgeHost {
    /// Creates a host with the settings of `tuning`.
    pub fn new(tuning: &Tuning) -> Self {
        Self::shaped(configuration(tuning), tuning.entropy, tuning.shape)
    }

    /// Creates a host whose engine has this configuration and entropy.
    pub fn with_config(config: EngineConfig, entropy: [u8; 32]) -> Self {
        Self::shaped(config, entropy, Shape::default())
    }

    fn shaped(config: EngineConfig, entropy: [u8; 32], shape: Shape) -> Self {
        let status = Arc::new(StatusTable::new(STATUS_SLOTS));
        let word = |at: usize| {
            let bytes = entropy.get(at..).and_then(<[u8]>::first_chunk);
            bytes.map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        let limits =
            TableLimits::default().regions_max(REGIONS_MAX).domains_max(shape.places.max(1));
        // Invert the bytes here, because the engine derives its other secrets from the same bytes.
        // The memory table must not use the same secret.
        let memory = MemoryTable::new(limits, [!word(0), !word(8)]);
        let queue = || Arc::new(CompletionQueue::new(SHARED_COMPLETIONS_MAX));
        let receives = || Arc::new(SharedReceives::new(SHARED_RECEIVES));
        let engine = Engine::new(config.clone(), entropy, Arc::clone(&status));
        Self {
            engine: engine.expect("the settings of a simulated host are within their limits"),
            config,
            domains: (0..shape.places.max(1)).map(|_| memory.allocate_domain()).collect(),
            place: 0,
            shape,
            shared: shape.shares_queue.then(queue),
            receives: shape.shares_receives.then(receives),
            memory,
            status,
            regions: Vec::new(),
            by_address: BTreeMap::new(),
            windows: BTreeMap::new(),
            ports: BTreeMap::new(),
            connections: BTreeMap::new(),
            numbers: HashMap::new(),
            next_number: 0,
            payload: Vec::new(),
            frames: 0,
            engine_links: Vec::new(),
        }
    }

    /// Returns the engine for inspection.
    pub const fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the engine's handle of a connection; `None` if the connection does not exist.
    pub fn engine_handle(&self, connection: ConnectionHandle) -> Option<engine::ConnectionHandle> {
        self.connections.get(&connection.0).map(|connection| connection.handle)
    }

    /// Polls the engine once for frames to send. Passes each frame to `wire`, with its index in its
    /// batch. `wire` returns whether the driver accepted the frame. Returns whether more frames
    /// wait, and the number of accepted frames.
    pub(crate) fn transmit(&mut self, now: Instant, wire: &mut BatchWire<'_>) -> (bool, usize) {
        let access = self.memory.access();
        let (regions, by_address, payload) = (&self.regions, &self.by_address, &mut self.payload);
        let Shape { doubts_one_in, forgets_doubts, .. } = self.shape;
        let frames = &mut self.frames;
        let mut taken = 0;
        let mut emit = |link: LinkId, batch: &TxBatch| {
            for index in 0..batch.len() {
                let frame = batch.frame(index);
                copy_payload(regions, by_address, frame.payload, payload);
                if !wire(link, batch.to(), index, &[frame.header, payload]) {
                    return Emitted::Taken(index);
                }
                taken += 1;
                *frames += 1;
                if doubts_one_in != 0 && frames.is_multiple_of(u64::from(doubts_one_in)) {
                    let doubtful = u32::from(!forgets_doubts) as usize;
                    return match doubtful {
                        0 => Emitted::Taken(index),
                        doubtful => Emitted::Doubtful { taken: index, doubtful },
                    };
                }
            }
            Emitted::Taken(batch.len())
        };
        let more = self.engine.poll_transmit(now, &access, &mut emit);
        (more, taken)
    }

    /// Makes the engine send pending acknowledgements when it runs next.
    pub(crate) fn hasten_acknowledgements(&mut self) {
        self.engine.hasten_acknowledgements();
    }

    fn number_of(&mut self, handle: engine::ConnectionHandle) -> u64 {
        *self.numbers.entry(handle).or_insert_with(|| {
            self.next_number += 1;
            self.next_number
        })
    }

    fn adopt(
        &mut self,
        handle: engine::ConnectionHandle,
        queue: Arc<CompletionQueue>,
        service: u32,
    ) -> u64 {
        let number = self.number_of(handle);
        let (atomics, taken) = (VecDeque::new(), VecDeque::new());
        self.connections.insert(number, Connection { handle, queue, taken, service, atomics });
        number
    }

    /// Returns the completion queue that a new connection uses.
    fn queue(&self) -> Arc<CompletionQueue> {
        let own = || Arc::new(CompletionQueue::new(COMPLETIONS_MAX));
        self.shared.clone().unwrap_or_else(own)
    }

    /// Returns the queues of a new connection. Both directions of the connection report their
    /// completions to `queue`.
    fn queues(&self, queue: &Arc<CompletionQueue>) -> Queues {
        if self.shape.is_of_queue_pairs {
            return Queues::of_queue_pair(Arc::clone(queue), Arc::clone(queue));
        }
        Arc::clone(queue).into()
    }

    fn terms(&self) -> Terms {
        Terms::default()
            .queue_pair(self.shape.is_of_queue_pairs)
            .shared_receives(self.receives.clone())
    }

    /// Returns whether the operation or receive with this context uses a scatter/gather list.
    const fn is_list(&self, context: u64) -> bool {
        self.shape.is_of_queue_pairs && context % 2 == 1
    }

    /// Returns the protection domain that new registrations and connections use.
    fn domain(&self) -> ProtectionDomain {
        self.domains.get(self.place).copied().unwrap_or(ProtectionDomain::NONE)
    }

    /// Moves completions from the shared queue to their connections. The caller must call this
    /// before the engine reuses the index of a connection; otherwise a completion could reach the
    /// wrong connection.
    fn sort_completions(&mut self) {
        let Some(shared) = &self.shared else { return };
        while let Some(found) = shared.poll() {
            let mut all = self.connections.values_mut().rev();
            let owner = all.find(|connection| connection.handle.owner() == found.owner);
            let owner = owner.expect("a completion belongs to a connection that is known");
            owner.taken.push_back(found);
        }
    }

    /// Opens and closes connections before the run, so that their slot of the connection table has
    /// been reused many times.
    fn wear(&mut self, now: Instant) {
        let link = self.engine_links.first().copied();
        for _ in 0..self.shape.worn_connections {
            let Some((link, peer)) = link else { return };
            let request = ConnectRequest {
                paths: vec![(link, peer)],
                service: 0,
                private_data: Vec::new(),
                domain: self.domain(),
                queues: self.queue().into(),
                terms: Terms::default(),
            };
            let made = self.engine.connect(now, request);
            let closed = made.map(|handle| self.engine.close(now, handle, &[]));
            assert!(matches!(closed, Ok(Ok(()))), "an idle engine has room for a connection");
            while self.engine.poll_event().is_some() {}
        }
        self.shape.worn_connections = 0;
    }

    fn buffer(&self, region: Region) -> Option<Arc<Buffer>> {
        self.regions.get(region.number as usize)?.buffer.clone()
    }

    fn region_id(&self, region: Region) -> Option<RegionId> {
        self.regions.get(region.number as usize).and_then(|memory| memory.id)
    }

    /// Stores the results of all atomics up to `context` in memory.
    fn store_results(&mut self, connection: u64, context: u64) {
        let Some(state) = self.connections.get_mut(&connection) else { return };
        while let Some(atomic) = state.atomics.pop_front_if(|atomic| atomic.context <= context) {
            if let OperationStatus::Done { value } = self.status.status(atomic.slot)
                && let Some(memory) = self.regions.get(atomic.local.number as usize)
                && let Some(buffer) = &memory.buffer
            {
                let at = GUARD_BYTES + u64::from(atomic.local_offset);
                buffer.write(at, &value.to_le_bytes());
            }
            self.status.release(atomic.slot);
        }
    }
}

impl HostEngine for EdgeHost {
    fn attach_link(&mut self, _now: Instant, link: LinkId, caps: LinkCaps) {
        self.engine_links.push((link, caps.local));
        let attached = self.engine.attach_link(link, caps);
        assert_eq!(attached, Ok(()), "the simulator's links are as the protocol asks");
    }

    fn detach_link(&mut self, link: LinkId) {
        self.engine.detach_link(link);
    }

    fn handle_frame(&mut self, now: Instant, link: LinkId, frame: RxFrame<'_>) {
        self.engine.handle_frame(now, &self.memory.access(), link, frame);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.engine.handle_timeout(now, &self.memory.access());
    }

    fn handle_link_event(&mut self, now: Instant, link: LinkId, event: LinkEvent) {
        self.engine.handle_link_event(now, link, event);
    }

    fn poll_transmit(&mut self, now: Instant, wire: &mut Wire<'_>) {
        loop {
            let (more, taken) =
                self.transmit(now, &mut |link, to, _place, pieces| wire(link, to, pieces));
            // If no driver accepted a frame, the other frames wait until a driver has room.
            if !more || taken == 0 {
                break;
            }
        }
    }

    fn poll_transmit_briefly(&mut self, now: Instant, wire: &mut Wire<'_>) -> bool {
        self.transmit(now, &mut |link, to, _place, pieces| wire(link, to, pieces)).0
    }

    fn poll_timeout(&self) -> Instant {
        self.engine.poll_timeout()
    }

    fn poll_event(&mut self) -> Option<HostEvent> {
        self.sort_completions();
        loop {
            match self.engine.poll_event()? {
                Event::Requested { connection, private_data, service, .. } => {
                    let request = RequestHandle(self.number_of(connection));
                    let queue = self.queue();
                    self.adopt(connection, queue, service);
                    return Some(HostEvent::Requested { request, private_data });
                }
                Event::Established { connection, .. } => {
                    let number = self.number_of(connection);
                    return Some(HostEvent::Established(ConnectionHandle(number)));
                }
                Event::Closed { connection, reason, .. } => {
                    let number = self.number_of(connection);
                    return Some(HostEvent::Closed(ConnectionHandle(number), cause_of(reason)));
                }
                _ => {}
            }
        }
    }

    fn turn_to(&mut self, place: u32) {
        self.place = place as usize;
    }

    fn listen(&mut self, now: Instant) {
        for service in 0..self.shape.places.max(1) {
            self.engine.listen(service);
        }
        self.wear(now);
    }

    fn connect(
        &mut self,
        now: Instant,
        paths: &[(LinkId, PeerAddr)],
        private_data: &[u8],
    ) -> Result<ConnectionHandle, Refusal> {
        let queue = self.queue();
        let service = self.place as u32;
        let request = ConnectRequest {
            paths: paths.to_vec(),
            service,
            private_data: private_data.to_vec(),
            domain: self.domain(),
            queues: self.queues(&queue),
            terms: self.terms(),
        };
        let handle = self.engine.connect(now, request).map_err(|_| Refusal::Invalid)?;
        Ok(ConnectionHandle(self.adopt(handle, queue, service)))
    }

    fn accept(
        &mut self,
        now: Instant,
        request: RequestHandle,
    ) -> Result<ConnectionHandle, Refusal> {
        let connection = self.connections.get(&request.0).ok_or(Refusal::Closed)?;
        let queue = Arc::clone(&connection.queue);
        if connection.service as usize != self.place {
            return Err(Refusal::Invalid);
        }
        let (queues, terms) = (self.queues(&queue), self.terms());
        match self.engine.accept_under(now, connection.handle, self.domain(), queues, &terms, &[]) {
            Ok(()) => Ok(ConnectionHandle(request.0)),
            Err(AcceptError::Gone) => Err(Refusal::Closed),
            Err(_) => Err(Refusal::Invalid),
        }
    }

    fn reject(&mut self, _now: Instant, request: RequestHandle) {
        if let Some(connection) = self.connections.remove(&request.0) {
            // Rejecting fails if the request no longer exists, which does not matter.
            let _ = self.engine.reject(connection.handle, &[]);
            self.numbers.remove(&connection.handle);
        }
    }

    fn close(&mut self, now: Instant, connection: ConnectionHandle) {
        if let Some(connection) = self.connections.get(&connection.0) {
            // Closing fails if the connection has ended already, which does not matter.
            let _ = self.engine.close(now, connection.handle, &[]);
        }
    }

    fn remove_path(&mut self, connection: ConnectionHandle, link: LinkId) {
        let Some(handle) = self.engine_handle(connection) else { return };
        let Some(info) = self.engine.info(handle) else { return };
        if let Some(path) = info.paths.iter().find(|path| path.link == link) {
            // If this is the last link, removing fails, and the connection keeps the link.
            let _ = self.engine.remove_path(handle, path.index);
        }
    }

    fn add_path(
        &mut self,
        now: Instant,
        connection: ConnectionHandle,
        link: LinkId,
        peer: PeerAddr,
    ) {
        let Some(handle) = self.engine_handle(connection) else { return };
        let Some(info) = self.engine.info(handle) else { return };
        let works = |path: &engine::PathInfo| path.link == link && path.state == LinkState::Up;
        if !info.paths.iter().any(works) {
            // Adding fails if all indices are in use or the connection is not established.
            let _ = self.engine.add_path(now, handle, link, peer);
        }
    }

    fn links_up(&self, connection: ConnectionHandle) -> Option<(usize, usize)> {
        let info = self.engine.info(self.engine_handle(connection)?)?;
        let is_up = |path: &&engine::PathInfo| path.state == LinkState::Up;
        Some((info.paths.iter().filter(is_up).count(), info.paths.len()))
    }

    fn frame_bytes(&self, connection: ConnectionHandle) -> Option<u16> {
        let info = self.engine.info(self.engine_handle(connection)?)?;
        let up = info.paths.iter().filter(|path| path.state == LinkState::Up);
        up.map(|path| path.frame_bytes).min()
    }

    fn describe_links(&self, connection: ConnectionHandle) -> String {
        let info = self.engine_handle(connection).and_then(|handle| self.engine.info(handle));
        let one = |path: &engine::PathInfo| {
            let (index, link, state) = (path.index, path.link.0, path.state);
            let (counters, flying) = (path.counters, path.in_flight_bytes);
            let (received, sent, lost) =
                (counters.frames_received, counters.data_frames_sent, counters.packets_lost);
            format!(
                "index {index}: link {link} to {}, {state:?}, {received} frames received, {sent} with data sent, {lost} \
                 lost, {flying} of {} bytes in flight",
                path.peer, path.window_bytes
            )
        };
        let mut all: Vec<String> = info.iter().flat_map(|info| &info.paths).map(one).collect();
        all.push(format!("{:?}", self.engine.pool_use()));
        all.join("; ")
    }

    fn post(
        &mut self,
        _now: Instant,
        connection: ConnectionHandle,
        operation: &Operation,
    ) -> Result<(), Refusal> {
        let is_list = self.is_list(operation.context);
        let state = self.connections.get(&connection.0).ok_or(Refusal::Closed)?;
        let region = self.region_id(operation.local);
        let request = self.request(state, operation, region.unwrap_or(RegionId::NONE));
        let (flags, handle) = (flags_of(operation), state.handle);
        let (length, context) = (operation.length_bytes, operation.context);
        let mut posted = semantics::Operation {
            request,
            length,
            flags,
            immediate: operation.immediate,
            context,
            status: None,
        };
        if region.is_none() {
            return self.post_failed(handle, &posted);
        }
        if let Action::Bind { .. } = operation.action {
            self.windows.insert(operation.key, operation.local.number);
        }
        if operation.action.is_atomic() && !self.shape.is_of_queue_pairs {
            posted.status = Some(self.status.acquire().ok_or(Refusal::Full)?);
        }
        let slot = posted.status;
        let state = self.connections.get_mut(&connection.0).ok_or(Refusal::Closed)?;
        let access = self.memory.access();
        let outcome = match local_piece(&posted) {
            Some(whole) if is_list => {
                let pieces = cut(whole, operation.context);
                let list = PieceList::new(&pieces).map_err(|_| Refusal::Invalid)?;
                self.engine.post_list(&access, handle, &posted, list)
            }
            _ => self.engine.post(&access, handle, &posted),
        };
        match (outcome, slot) {
            (Ok(_), Some(slot)) => state.atomics.push_back(PendingAtomic {
                context: operation.context,
                slot,
                local: operation.local,
                local_offset: operation.local_offset,
            }),
            (Ok(_), None) => {}
            (Err(error), slot) => {
                if let Some(slot) = slot {
                    self.status.cancel(slot);
                    self.status.release(slot);
                }
                return Err(refusal_of(&error));
            }
        }
        Ok(())
    }

    fn post_receive(
        &mut self,
        _now: Instant,
        connection: ConnectionHandle,
        region: Region,
        offset: u32,
        length_bytes: u32,
        context: u64,
    ) -> Result<(), Refusal> {
        let id = self.region_id(region).ok_or(Refusal::Invalid)?;
        let state = self.connections.get(&connection.0).ok_or(Refusal::Closed)?;
        let (access, offset) = (self.memory.access(), u64::from(offset));
        let outcome = if self.is_list(context) {
            let pieces = cut(Piece { region: id, offset, length: length_bytes }, context);
            let list = PieceList::new(&pieces).map_err(|_| Refusal::Invalid)?;
            self.engine.post_receive_list(&access, state.handle, list, context)
        } else {
            let receive = Receive { region: id, offset, length: length_bytes, context };
            self.engine.post_receive(&access, state.handle, receive)
        };
        outcome.map_err(|error| refusal_of(&error))
    }

    fn post_shared_receive(
        &mut self,
        now: Instant,
        region: Region,
        offset: u32,
        length_bytes: u32,
        context: u64,
    ) -> Result<(), Refusal> {
        let id = self.region_id(region).ok_or(Refusal::Invalid)?;
        let receives = self.receives.as_ref().ok_or(Refusal::Invalid)?;
        let whole = Piece { region: id, offset: u64::from(offset), length: length_bytes };
        let posted = if self.is_list(context) {
            let pieces = cut(whole, context);
            let list = PieceList::new(&pieces).map_err(|_| Refusal::Invalid)?;
            receives.post_list(list, context)
        } else {
            let Piece { region, offset, length } = whole;
            receives.post(Receive { region, offset, length, context })
        };
        if posted.map_err(|error| refusal_of(&error))? {
            self.engine.on_receives_posted(now, &self.memory.access(), receives);
        }
        Ok(())
    }

    fn poll_completion(&mut self, connection: ConnectionHandle) -> Option<Completion> {
        let found = if self.shared.is_some() {
            self.sort_completions();
            self.connections.get_mut(&connection.0)?.taken.pop_front()?
        } else {
            self.connections.get(&connection.0)?.queue.poll()?
        };
        let completion = completion_of(&found);
        if !matches!(completion.kind, CompletionKind::Receive | CompletionKind::Notification) {
            self.store_results(connection.0, found.context);
        }
        Some(completion)
    }

    fn open_port(&mut self, number: u32, key: u32) {
        self.open(number, key);
    }

    fn post_datagram(&mut self, number: u32, datagram: &Datagram) -> Result<(), Refusal> {
        self.post_from(number, datagram)
    }

    fn post_datagram_receive(
        &mut self,
        number: u32,
        place: (Region, u32, u32),
        context: u64,
    ) -> Result<(), Refusal> {
        self.post_receive_at(number, place, context)
    }

    fn poll_datagrams(&mut self, number: u32) -> Option<(Completion, u32)> {
        self.poll_port(number)
    }

    fn release(&mut self, connection: ConnectionHandle) {
        self.store_results(connection.0, u64::MAX);
        if let Some(connection) = self.connections.remove(&connection.0) {
            self.numbers.remove(&connection.handle);
        }
    }

    fn is_idle(&self) -> bool {
        self.engine.is_idle()
    }

    fn register(&mut self, length_bytes: u32) -> Region {
        let number = self.regions.len() as u32;
        let end = GUARD_BYTES + u64::from(length_bytes);
        let buffer = Buffer::new(end + GUARD_BYTES);
        for at in [0, end] {
            buffer.write(at, &[GUARD; GUARD_BYTES as usize]);
        }
        // The address of a buffer in this process differs between runs. If peers saw it, runs with
        // the same seed would differ.
        let address = REMOTE_START + (u64::from(number) << 32);
        let registered = self.memory.register_part(
            self.domain(),
            Arc::clone(&buffer),
            GUARD_BYTES..end,
            address,
            Rights::ALL,
        );
        let (id, key) = match registered {
            Ok(region) => (Some(region.id), region.key.0),
            Err(error) => {
                assert!(matches!(error, RegisterError::TableFull { .. }), "register: {error}");
                (None, 0)
            }
        };
        self.by_address.insert(buffer.address(), number);
        self.regions.push(Memory { buffer: Some(buffer), id, length_bytes });
        Region { number, key, address, length_bytes }
    }

    fn close_windows(&mut self, region: Region) {
        let of_region = |_: &u32, number: &mut u32| *number == region.number;
        for (key, _) in self.windows.extract_if(.., of_region) {
            self.memory.unbind(RemoteKey(key));
        }
    }

    fn deregister(&mut self, _now: Instant, region: Region) {
        self.close_windows(region);
        let memory = self.regions.get_mut(region.number as usize);
        if let Some(id) = memory.and_then(|memory| memory.id.take()) {
            let outcome = self.memory.deregister(id);
            assert_eq!(outcome, Ok(()), "the region was registered");
        }
    }

    fn discard(&mut self, region: Region) {
        self.close_windows(region);
        let Some(memory) = self.regions.get_mut(region.number as usize) else { return };
        if let Some(id) = memory.id.take() {
            let outcome = self.memory.deregister(id);
            assert_eq!(outcome, Ok(()), "the region was registered");
        }
        if let Some(buffer) = memory.buffer.take() {
            self.by_address.remove(&buffer.address());
        }
    }

    fn read_memory(&self, region: Region, offset: u32, into: &mut [u8]) {
        let memory = self.regions.get(region.number as usize);
        if let Some(buffer) = memory.and_then(|memory| memory.buffer.as_ref()) {
            buffer.read(GUARD_BYTES + u64::from(offset), into);
        }
    }

    fn write_memory(&mut self, region: Region, offset: u32, bytes: &[u8]) {
        if let Some(buffer) = self.buffer(region) {
            buffer.write(GUARD_BYTES + u64::from(offset), bytes);
        }
    }

    fn guards_are_intact(&self) -> bool {
        self.regions.iter().all(|memory| {
            let Some(buffer) = &memory.buffer else { return true };
            [0, GUARD_BYTES + u64::from(memory.length_bytes)].iter().all(|&at| {
                let mut guard = [0; GUARD_BYTES as usize];
                buffer.read(at, &mut guard);
                guard == [GUARD; GUARD_BYTES as usize]
            })
        })
    }

    fn occupancy(&self, report: &mut dyn FnMut(&'static str, u64, u64)) {
        let (used, limits) = (self.engine.pool_use(), &self.config.pools);
        let mut one = |name, used: u32, limit: u32| report(name, u64::from(used), u64::from(limit));
        let connections = self.engine.connection_count();
        // The shared limits do not include the records that each connection is guaranteed: some
        // operations, and one record of each other kind. If the peer of a queue pair has no receive
        // posted, the operations of the queue pair do not count against the shared pool (pool.6),
        // and other queue pairs can use the whole pool. Therefore the limit of operations counts
        // the pool once for each queue pair.
        let pools = if self.shape.is_of_queue_pairs { connections.max(1) } else { 1 };
        let operations = pools * limits.operations + connections * semantics::OPERATION_SHARE;
        one("operations", used.operations, operations);
        one("incoming operations", used.incoming, limits.incoming + connections);
        one("responses", used.responses, limits.responses + connections);
        one("reads", used.reads, limits.reads);
        one("retransmissions", used.retransmissions, limits.retransmissions);
        one("order pool blocks", used.order_blocks, limits.order_blocks);
        one("connections", connections, self.config.connections_max);
        for connection in self.connections.values() {
            let paths =
                self.engine.info(connection.handle).map_or_else(Vec::new, |info| info.paths);
            let most = paths.iter().map(|path| u64::from(path.packets)).max().unwrap_or(0);
            let limit = u64::from(self.config.packets_max) + UNCOUNTED_PACKETS;
            report("packets of a link", most, limit);
        }
    }
}

/// Passes a frame to the driver of a link: link, address of the peer, index of the frame in its
/// batch, and bytes. Returns whether the driver accepted the frame.
pub(crate) type BatchWire<'a> = dyn FnMut(LinkId, PeerAddr, usize, &[&[u8]]) -> bool + 'a;

/// Copies a payload from its region to `out`. Panics if the payload is not within one region,
/// because this would be a bug of the engine.
fn copy_payload(
    regions: &[Memory],
    by_address: &BTreeMap<u64, u32>,
    payload: PayloadSlice<'_>,
    out: &mut Vec<u8>,
) {
    out.clear();
    if payload.len == 0 {
        return;
    }
    let address = payload.start.addr() as u64;
    let owner = by_address.range(..=address).next_back();
    let memory = owner.and_then(|(start, &number)| Some((start, regions.get(number as usize)?)));
    let Some((start, memory)) = memory else {
        panic!("{} bytes to send at {address:#x} lie in no region", payload.len);
    };
    let offset = address - start;
    let end = GUARD_BYTES + u64::from(memory.length_bytes);
    let inside = offset >= GUARD_BYTES && offset + u64::from(payload.len) <= end;
    assert!(inside, "{} bytes to send at {offset} leave their region", payload.len);
    out.resize(payload.len as usize, 0);
    if let Some(buffer) = &memory.buffer {
        buffer.read(offset, out);
    }
}

fn configuration(tuning: &Tuning) -> EngineConfig {
    let own = own_configuration(tuning);
    if !tuning.shape.is_multiedge {
        return own;
    }
    let rules = EngineConfig::multiedge();
    own.acknowledgement(rules.acknowledgement)
        .asking(rules.asking)
        .congestion(rules.congestion)
        .probe_timeout_min_ns(rules.probe_timeout_min_ns)
        .scheduling(rules.scheduling)
}

fn own_configuration(tuning: &Tuning) -> EngineConfig {
    EngineConfig::default()
        .connections_max(1_024)
        .requests_max(64)
        .links_max(8)
        .pools(
            PoolLimits::default()
                .operations(512 / tuning.pool_divisor)
                .incoming(512 / tuning.pool_divisor)
                .responses(128 / tuning.pool_divisor)
                .reads(64 / tuning.pool_divisor)
                .retransmissions(8_192)
                .order_blocks(512 / tuning.pool_divisor),
        )
        .operation_window(tuning.operation_window)
        .read_depth(tuning.read_depth)
        .order_pool_bytes(tuning.order_pool_bytes)
        .receives_max(64)
        .acknowledgement(AckPolicy::default().ack_delay_ns(tuning.ack_delay_max_ns))
        .congestion(match tuning.congestion {
            Congestion::Fixed { window_bytes } => {
                CongestionAlgorithm::Fixed { frames: (window_bytes / FULL_FRAME_BYTES).max(2) }
            }
            Congestion::Aimd => CongestionAlgorithm::Aimd,
            Congestion::Delay => CongestionAlgorithm::Delay { target_ns: DELAY_TARGET_NS },
        })
        .silence_budget_ns(tuning.dead_peer_ns)
        .scheduling(match tuning.scheduling {
            Scheduling::EarliestDelivery => SchedulingPolicy::EarliestDelivery,
            Scheduling::RoundRobin => SchedulingPolicy::RoundRobin,
        })
        .active_connections(4)
        .packets_max(match tuning.shape.packets_max {
            0 => 2_048,
            most => most,
        })
        .numbers_from(tuning.shape.numbers_from)
}

fn completion_of(found: &semantics::Completion) -> Completion {
    let kind = match found.kind {
        semantics::CompletionKind::Write => CompletionKind::Write,
        semantics::CompletionKind::Read => CompletionKind::Read,
        semantics::CompletionKind::Patch => CompletionKind::Patch,
        semantics::CompletionKind::FetchAdd
        | semantics::CompletionKind::CompareSwap
        | semantics::CompletionKind::Swap => CompletionKind::Atomic,
        semantics::CompletionKind::Send => CompletionKind::Send,
        semantics::CompletionKind::Receive => CompletionKind::Receive,
        semantics::CompletionKind::Notification => CompletionKind::Notification,
        semantics::CompletionKind::BindWindow | semantics::CompletionKind::Invalidate => {
            CompletionKind::Window
        }
    };
    Completion {
        kind,
        context: found.context,
        success: found.result.is_ok(),
        length_bytes: found.bytes,
        immediate: found.immediate,
        invalidated: found.invalidated().map(|key| key.0),
        fault: found.result.err().map(fault_of),
    }
}

const fn cause_of(reason: Closed) -> Cause {
    match reason {
        Closed::Here => Cause::ClosedHere,
        Closed::ByPeer => Cause::ClosedByPeer,
        Closed::PeerRefused(CloseReason::LocalMemoryGone) | Closed::LocalMemory => {
            Cause::MemoryGone
        }
        Closed::OperationFailed => Cause::OperationFailed,
        Closed::PeerRefused(reason) | Closed::PeerMisbehaved(reason) => match reason {
            CloseReason::UnknownKey
            | CloseReason::OutOfRange
            | CloseReason::RightMissing
            | CloseReason::Misaligned => Cause::AccessDenied,
            CloseReason::ProtocolViolation => Cause::Violation,
            CloseReason::PeerRestarted => Cause::PeerRestarted,
            CloseReason::MessageTooLong => Cause::Other(MESSAGE_TOO_LONG),
            _ => Cause::Other(OTHER_REASON),
        },
        Closed::Rejected(_) | Closed::Version { .. } => Cause::Rejected,
        Closed::Unreachable { .. } | Closed::Refused(_) => Cause::Unreachable,
        Closed::PeerRestarted => Cause::PeerRestarted,
        _ => Cause::Other(OTHER_REASON),
    }
}

const fn fault_of(error: OperationError) -> Fault {
    match error {
        OperationError::Flushed => Fault::Flushed,
        OperationError::ClosedByPeer => Fault::ClosedByPeer,
        OperationError::EndedByPeer => Fault::EndedByPeer,
        OperationError::RemoteAccess(_) => Fault::AccessDenied,
        OperationError::Unreachable => Fault::Unreachable,
        OperationError::PeerRestarted => Fault::PeerRestarted,
        OperationError::ProtocolViolation => Fault::Violation,
        OperationError::LocalAccess => Fault::LocalAccess,
        OperationError::RemoteOperation => Fault::PeerFailed,
        _ => Fault::Other,
    }
}

const fn refusal_of(error: &PostError) -> Refusal {
    match error {
        PostError::CompletionQueueFull(_)
        | PostError::NoOperationLeft(_)
        | PostError::ReceiveQueueFull(_) => Refusal::Full,
        PostError::NotConnected => Refusal::Closed,
        _ => Refusal::Invalid,
    }
}

/// Number in [`Cause::Other`] for a message that was too long for its receive.
const MESSAGE_TOO_LONG: u16 = 1;
const OTHER_REASON: u16 = 2;

/// Number of guard bytes on each side of a region. A multiple of 8 keeps the alignment of the
/// buffers.
const GUARD_BYTES: u64 = 64;
const GUARD: u8 = 0xa5;

/// Address at which peers see the first region. Each region has 4 GiB of address space.
const REMOTE_START: u64 = 0x10_0000_0000;

/// Maximum number of regions: four for each attempt to connect. A run makes at most some hundreds
/// of attempts.
const REGIONS_MAX: u32 = 1 << 16;

/// Number of slots in which the engine stores the results of atomics. A connection has at most 64
/// operations in flight, and all of them can be atomics.
const STATUS_SLOTS: u32 = 512;

/// Capacity of a connection's completion queue: 64 operations, 16 receives and a few notifications.
/// Further completions wait in the engine.
const COMPLETIONS_MAX: usize = 84;

/// Capacity of the shared receive queue. It is small, so that the queue is sometimes full.
const SHARED_RECEIVES: usize = 24;

/// Capacity of the completion queue that all connections of a host share: `COMPLETIONS_MAX` for
/// each of eight connections.
const SHARED_COMPLETIONS_MAX: usize = 8 * COMPLETIONS_MAX;

/// Maximum number of packets that the window does not limit: probes, eight control frames, and 64
/// packets that the sender remembers as lost.
const UNCOUNTED_PACKETS: u64 = 128;

const FULL_FRAME_BYTES: u32 = 1_472;
const DELAY_TARGET_NS: u32 = 50_000;
