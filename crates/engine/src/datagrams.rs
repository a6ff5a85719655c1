//! Datagram ports: posted receives, arriving datagrams, and datagrams that wait to be sent.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use delivery::{EndpointCounters, Instant, LINKS_MAX, LinkId};
use mem::{AccessError, MemoryAccess, Payload, PayloadSlice, RegionId, Rights};
use semantics::{
    Completion, CompletionKind, CompletionQueue, OperationError, Piece, PieceList, Pools,
    SharedReceives, Unfit,
};
use wire_edge::{
    DATAGRAM_HEADER_BYTES, Datagram, PeerAddr, QueuePairNumber, datagram_payload_max, route_header,
};

use crate::datagram_port::{DatagramError, DatagramPort, OutgoingDatagram, PortRequest};
use crate::kept::{Kept, Said, Store};
use crate::links::{Links, is_full_alone};
use crate::new_frame::{Emit, Emitted};
use crate::scratch::{BATCH_BYTES_MAX, Scratch};

/// The datagram ports of an endpoint, and the datagrams that wait for their links.
///
/// If no port has the number and key of an arriving datagram, the datagram costs only one look-up.
/// Otherwise the datagram consumes at most one posted receive of the port.
#[derive(Debug, Default)]
pub(crate) struct Datagrams {
    ports: HashMap<QueuePairNumber, Port>,
    /// The numbers of the ports in each group. The key of the map is the address of the group,
    /// without a UDP port.
    groups: HashMap<PeerAddr, Vec<QueuePairNumber>>,
    memberships: usize,
    /// Datagrams to send: a queue for each link, in the order in which they were posted. Because
    /// each link has its own queue, a full link does not delay datagrams of other links.
    waiting: [VecDeque<Waiting>; LINKS_MAX],
    waiting_count: usize,
    /// Buffers of earlier datagrams, for reuse. Without these buffers, every datagram that waits
    /// would need an allocation.
    spare: Vec<Vec<u8>>,
    /// Number of ports opened so far.
    lives: u32,
    store: Store,
}

#[derive(Debug)]
struct Port {
    name: DatagramPort,
    key: u32,
    send: Arc<CompletionQueue>,
    receive: Arc<CompletionQueue>,
    receives: Receives,
    /// Number of datagrams that this port has posted and that still wait for their links.
    waiting: u32,
    /// Datagrams for this port that wait for a receive, oldest first.
    kept: VecDeque<Kept>,
    kept_bytes: usize,
}

/// The receives of a port.
#[derive(Debug)]
enum Receives {
    Own(OwnReceives),
    /// A shared queue of receives. Other ports and connections also take receives from it.
    Shared(Arc<SharedReceives>),
}

/// Receives that were posted at one port, for datagrams of this port only.
#[derive(Debug)]
struct OwnReceives {
    posted: VecDeque<Posted>,
    /// The scatter/gather entries of all receives in `posted`, in the same order.
    pieces: VecDeque<Piece>,
    posted_max: u32,
}

/// A posted receive.
#[derive(Clone, Copy, Debug)]
struct Posted {
    context: u64,
    length: u32,
    /// Number of entries of this receive in `OwnReceives::pieces`.
    pieces: u32,
}

/// A datagram that waits for its link.
#[derive(Debug)]
struct Waiting {
    to: PeerAddr,
    /// The header, followed by the payload if it was copied.
    frame: Vec<u8>,
    /// The payload, if it was not copied.
    outside: Option<Piece>,
    length: u32,
    port: DatagramPort,
    context: u64,
    signalled: bool,
}

impl Waiting {
    fn len(&self) -> usize {
        self.frame.len() + self.outside.map_or(0, |piece| piece.length as usize)
    }
}

/// State that datagrams and connections use together.
pub(crate) struct Around<'a> {
    pub(crate) pools: &'a mut Pools,
    pub(crate) counters: &'a mut EndpointCounters,
    pub(crate) links: &'a mut Links,
    pub(crate) scratch: &'a mut Scratch,
    pub(crate) now: Instant,
}

/// The source and destination address of a datagram.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub(crate) from: PeerAddr,
    pub(crate) to: PeerAddr,
}

impl Datagrams {
    /// Returns whether no datagram waits to be sent.
    #[inline]
    pub(crate) const fn is_empty(&self) -> bool {
        self.waiting_count == 0
    }

    /// Returns the number of datagrams that wait to be sent.
    #[inline]
    pub(crate) const fn waiting(&self) -> usize {
        self.waiting_count
    }

    /// Returns how many datagrams of a port wait to be sent; 0 if the port is closed.
    #[inline]
    pub(crate) fn waiting_of(&self, port: DatagramPort) -> u32 {
        let open = self.ports.get(&port.number).filter(|open| open.name == port);
        open.map_or(0, |open| open.waiting)
    }

    /// Calls `visit` with the region of each receive posted at a port, and of each datagram that
    /// waits to be sent.
    pub(crate) fn visit_regions(&self, visit: &mut dyn FnMut(RegionId)) {
        for port in self.ports.values() {
            if let Receives::Own(own) = &port.receives {
                own.pieces.iter().for_each(|piece| visit(piece.region));
            }
        }
        for waiting in self.waiting.iter().flatten() {
            waiting.outside.iter().for_each(|piece| visit(piece.region));
        }
    }

    pub(crate) fn open(&mut self, request: PortRequest) -> Result<DatagramPort, DatagramError> {
        let PortRequest { number, key, send, receive, receives_max, shared_receives } = request;
        if number == QueuePairNumber::GROUP {
            return Err(DatagramError::NumberOfGroup);
        }
        if self.ports.contains_key(&number) {
            return Err(DatagramError::NumberInUse(number));
        }
        if self.ports.len() >= PORTS_MAX {
            return Err(DatagramError::NoPortLeft(PORTS_MAX));
        }
        self.lives = self.lives.wrapping_add(1);
        let name = DatagramPort { number, life: self.lives };
        let receives = match shared_receives {
            Some(queue) => Receives::Shared(queue),
            None => Receives::Own(OwnReceives::new(receives_max)),
        };
        let (kept, kept_bytes) = (VecDeque::new(), 0);
        let port = Port { name, key, send, receive, receives, waiting: 0, kept, kept_bytes };
        self.ports.insert(number, port);
        Ok(name)
    }

    /// Closes a port. The posted receives and datagrams of the port complete as flushed. Receives
    /// of a shared queue stay in that queue.
    pub(crate) fn close(
        &mut self,
        pools: &mut Pools,
        counters: &mut EndpointCounters,
        port: DatagramPort,
    ) -> Result<(), DatagramError> {
        self.port(port)?;
        let Some(mut open) = self.ports.remove(&port.number) else { return Ok(()) };
        open.drop_kept(counters, &mut self.store, |_| true);
        let flushed = Err(OperationError::Flushed);
        let posted = match open.receives {
            Receives::Own(own) => own.posted,
            Receives::Shared(_) => VecDeque::new(),
        };
        for posted in posted {
            pools.push(&open.receive, &open.name.received(posted.context, flushed));
        }
        for queue in &mut self.waiting {
            let (gone, left) = queue.drain(..).partition(|waiting| waiting.port == port);
            *queue = left;
            let gone: VecDeque<Waiting> = gone;
            self.waiting_count -= gone.len();
            for waiting in gone {
                pools.push(&open.send, &waiting.completion(flushed));
            }
        }
        for group in self.groups.keys().copied().collect::<Vec<_>>() {
            self.remove(port.number, group);
        }
        Ok(())
    }

    /// Sets the queue key of a port. The port then accepts only datagrams with this key.
    pub(crate) fn set_key(&mut self, port: DatagramPort, key: u32) -> Result<(), DatagramError> {
        self.port(port)?.key = key;
        Ok(())
    }

    /// Adds a port to a group. Has no effect if the port is in the group already.
    pub(crate) fn join(
        &mut self,
        port: DatagramPort,
        group: PeerAddr,
    ) -> Result<(), DatagramError> {
        self.port(port)?;
        if !group.is_group() {
            return Err(DatagramError::NotGroup(group));
        }
        if self.memberships >= MEMBERSHIPS_MAX {
            return Err(DatagramError::NoGroupLeft(MEMBERSHIPS_MAX));
        }
        let members = self.groups.entry(group.host()).or_default();
        if !members.contains(&port.number) {
            members.push(port.number);
            self.memberships += 1;
        }
        Ok(())
    }

    pub(crate) fn leave(
        &mut self,
        port: DatagramPort,
        group: PeerAddr,
    ) -> Result<(), DatagramError> {
        self.port(port)?;
        self.remove(port.number, group.host());
        Ok(())
    }

    /// Returns whether any port is in the group.
    pub(crate) fn has_group(&self, group: PeerAddr) -> bool {
        self.groups.contains_key(&group.host())
    }

    fn remove(&mut self, number: QueuePairNumber, group: PeerAddr) {
        let Some(members) = self.groups.get_mut(&group) else { return };
        let before = members.len();
        members.retain(|&member| member != number);
        self.memberships -= before - members.len();
        if members.is_empty() {
            self.groups.remove(&group);
        }
    }

    #[inline]
    fn port(&mut self, name: DatagramPort) -> Result<&mut Port, DatagramError> {
        let port = self.ports.get_mut(&name.number).filter(|port| port.name == name);
        port.ok_or(DatagramError::Closed)
    }

    /// Returns the receives of a port. Returns an error if the port takes its receives from a
    /// shared queue, or if there is no room for one more receive.
    fn own_receives(&mut self, port: DatagramPort) -> Result<&mut OwnReceives, DatagramError> {
        let port = self.port(port)?;
        if port.receive.is_overrun() {
            return Err(DatagramError::Overrun);
        }
        let Receives::Own(own) = &mut port.receives else {
            return Err(DatagramError::ReceivesShared);
        };
        own.check_room()?;
        Ok(own)
    }

    /// Posts a buffer for one datagram, including the route header before the payload.
    pub(crate) fn post_receive(
        &mut self,
        memory: &MemoryAccess<'_>,
        around: &mut Around<'_>,
        port: DatagramPort,
        list: PieceList<'_>,
        context: u64,
    ) -> Result<(), DatagramError> {
        let own = self.own_receives(port)?;
        for piece in list.cut(0, list.length()) {
            let length = u64::from(piece.length);
            memory.resolve_local(piece.region, piece.offset, length, Rights::LOCAL_WRITE)?;
        }
        own.add(list.cut(0, list.length()), list.length(), context);
        let Self { ports, store, .. } = self;
        if store.is_used()
            && let Some(port) = ports.get_mut(&port.number)
        {
            port.deliver_kept(memory, around, store);
        }
        Ok(())
    }

    /// Posts a receive whose memory does not exist. The receive fails when a datagram consumes it.
    pub(crate) fn post_failed_receive(
        &mut self,
        port: DatagramPort,
        length: u32,
        context: u64,
    ) -> Result<(), DatagramError> {
        let own = self.own_receives(port)?;
        own.add([Piece { length, ..Piece::NOTHING }], length, context);
        Ok(())
    }

    /// Removes the posted receives of a port. They do not complete.
    pub(crate) fn forget_receives(
        &mut self,
        counters: &mut EndpointCounters,
        port: DatagramPort,
    ) -> Result<(), DatagramError> {
        self.port(port)?;
        let Self { ports, store, .. } = self;
        let Some(port) = ports.get_mut(&port.number) else { return Ok(()) };
        // Drop the datagrams that wait for receives, because no more receives will be posted.
        port.drop_kept(counters, store, |_| true);
        if let Receives::Own(own) = &mut port.receives {
            own.posted.clear();
            own.pieces.clear();
        }
        Ok(())
    }

    //= protocol.md: datagram.2
    /// Posts a datagram with the bytes of a scatter/gather list. Copies a payload that is short or
    /// has several entries. Any other payload stays in its region until the link gets the datagram.
    pub(crate) fn post(
        &mut self,
        memory: &MemoryAccess<'_>,
        links: &Links,
        port: DatagramPort,
        datagram: &OutgoingDatagram,
        list: PieceList<'_>,
    ) -> Result<(), DatagramError> {
        let (link, length) = (datagram.link, list.length());
        if self.port(port)?.send.is_overrun() {
            return Err(DatagramError::Overrun);
        }
        let unknown = DatagramError::UnknownLink(link.0);
        let payload_max = datagram_payload_max(links.caps(link).ok_or(unknown)?.frame_bytes_max);
        if length > u32::from(payload_max) {
            return Err(DatagramError::TooLong { length, payload_max });
        }
        if self.waiting_count >= WAITING_MAX {
            return Err(DatagramError::TooManyWaiting(WAITING_MAX));
        }
        let OutgoingDatagram { to, destination, key, immediate, solicited, .. } = *datagram;
        let source = port.number;
        let header = Datagram { destination, source, key, immediate, solicited };
        let mut frame = self.spare.pop().unwrap_or_default();
        frame.clear();
        frame.extend_from_slice(&header.encode());
        let outside = match append(memory, &mut frame, list) {
            Ok(outside) => outside,
            Err(error) => {
                self.spare.push(frame);
                return Err(error.into());
            }
        };
        let OutgoingDatagram { context, signalled, .. } = *datagram;
        let waiting = Waiting { to, frame, outside, length, port, context, signalled };
        let queue = self.waiting.get_mut(usize::from(link.0)).ok_or(unknown)?;
        queue.push_back(waiting);
        self.waiting_count += 1;
        self.port(port)?.waiting += 1;
        Ok(())
    }

    /// Passes the waiting datagrams to the links, in batches. Returns whether some datagrams must
    /// still wait because a link is full.
    pub(crate) fn transmit(
        &mut self,
        memory: &MemoryAccess<'_>,
        around: &mut Around<'_>,
        emit: Emit<'_>,
    ) -> bool {
        let Around { pools, counters, links, scratch, .. } = around;
        for index in 0..LINKS_MAX {
            let link = LinkId(index as u8);
            while let Some(to) = self.front(index).map(|waiting| waiting.to) {
                if links.is_full(link, to) && !is_full_alone(to) {
                    break;
                }
                let segments = links.caps(link).map_or(1, |caps| usize::from(caps.segments));
                let filled = self.fill(memory, scratch, index, to, segments);
                if filled == 0 {
                    self.done(pools, index, Err(OperationError::LocalAccess));
                    continue;
                }
                let (taken, is_unmapped) = match scratch.emit(links, link, emit) {
                    Emitted::Taken(taken) => (taken, false),
                    // Do not send a doubtful datagram a second time, because it may have left the
                    // host, and a receiver cannot distinguish a copy from a second datagram.
                    Emitted::Doubtful { taken, doubtful } => (taken + doubtful, false),
                    Emitted::PayloadUnmapped(taken) => (taken, true),
                };
                counters.datagrams_sent += taken as u64;
                (0..taken).for_each(|_| self.done(pools, index, Ok(())));
                if is_unmapped {
                    self.done(pools, index, Err(OperationError::LocalAccess));
                } else if taken < filled && is_full_alone(to) {
                    // Drop the datagrams that the link did not accept. Otherwise a peer that does
                    // not read would block datagrams to other peers.
                    counters.datagrams_not_sent += (filled - taken) as u64;
                    (taken..filled).for_each(|_| self.done(pools, index, Ok(())));
                }
            }
        }
        !self.is_empty()
    }

    fn front(&self, index: usize) -> Option<&Waiting> {
        self.waiting.get(index)?.front()
    }

    /// Puts datagrams for one peer into a batch, at most as many as the link accepts in one call.
    /// Returns the number of datagrams. Returns 0 if the payload of the first datagram does not
    /// exist any more.
    fn fill(
        &self,
        memory: &MemoryAccess<'_>,
        scratch: &mut Scratch,
        index: usize,
        to: PeerAddr,
        segments: usize,
    ) -> usize {
        scratch.begin(to);
        let segments = segments.clamp(1, scratch.room().max(1));
        let mut bytes = 0;
        for waiting in self.waiting.get(index).into_iter().flatten().take(segments) {
            bytes += waiting.len();
            if waiting.to != to || bytes > BATCH_BYTES_MAX as usize {
                break;
            }
            let outside = match waiting.outside {
                None => PayloadSlice::EMPTY,
                Some(Piece { region, offset, length }) => {
                    let Ok(slice) = memory.source(region, offset, length) else { break };
                    slice
                }
            };
            scratch.push_datagram(&waiting.frame, outside);
        }
        scratch.len()
    }

    /// Removes the first datagram that waits for a link, and completes the datagram with `result`.
    fn done(&mut self, pools: &mut Pools, index: usize, result: Result<(), OperationError>) {
        let Some(waiting) = self.waiting.get_mut(index).and_then(VecDeque::pop_front) else {
            return;
        };
        self.waiting_count -= 1;
        if let Ok(port) = self.port(waiting.port) {
            port.waiting -= 1;
            if waiting.signalled || result.is_err() {
                pools.push(&port.send, &waiting.completion(result));
            }
        }
        self.spare.push(waiting.frame);
    }

    //= protocol.md: datagram.3, datagram.5
    /// Handles a datagram that arrived for a port.
    #[inline]
    pub(crate) fn receive(
        &mut self,
        memory: &MemoryAccess<'_>,
        around: &mut Around<'_>,
        route: Route,
        (datagram, payload): (&Datagram, Payload<'_>),
    ) {
        let Self { ports, store, .. } = self;
        let Some(port) = ports.get_mut(&datagram.destination) else {
            around.counters.datagrams_unknown += 1;
            return;
        };
        port.receive(memory, around, store, route, (datagram, payload));
    }

    /// Delivers kept datagrams after receives were posted to a shared queue.
    pub(crate) fn on_receives_posted(
        &mut self,
        memory: &MemoryAccess<'_>,
        around: &mut Around<'_>,
        receives: &SharedReceives,
    ) {
        let Self { ports, store, .. } = self;
        if !store.is_used() {
            return;
        }
        for port in ports.values_mut().filter(|port| !port.kept.is_empty()) {
            if matches!(&port.receives, Receives::Shared(queue) if std::ptr::eq(Arc::as_ptr(queue), receives))
            {
                port.deliver_kept(memory, around, store);
            }
        }
    }

    //= protocol.md: datagram.6
    /// Handles a datagram that was sent to a group.
    pub(crate) fn receive_of_group(
        &mut self,
        memory: &MemoryAccess<'_>,
        around: &mut Around<'_>,
        route: Route,
        (datagram, payload): (&Datagram, Payload<'_>),
    ) {
        let members = self.groups.get(&route.to.host());
        let Some(members) = members.filter(|_| datagram.destination == QueuePairNumber::GROUP)
        else {
            around.counters.datagrams_unknown += 1;
            return;
        };
        for member in members {
            if let Some(port) = self.ports.get_mut(member) {
                port.receive(memory, around, &mut self.store, route, (datagram, payload));
            }
        }
    }
}

impl Port {
    //= protocol.md: datagram.3, datagram.4, datagram.9
    fn receive(
        &mut self,
        memory: &MemoryAccess<'_>,
        around: &mut Around<'_>,
        store: &mut Store,
        route: Route,
        (datagram, payload): (&Datagram, Payload<'_>),
    ) {
        if datagram.key != self.key {
            around.counters.datagrams_wrong_key += 1;
            return;
        }
        if !self.kept.is_empty() {
            self.deliver_kept(memory, around, store);
        }
        // The cast loses nothing, because no link carries a frame of more than 65 507 bytes.
        let header = route_header(route.from, route.to, payload.len() as u16);
        let parts = [header.as_slice().into(), payload];
        let said = Said {
            source: datagram.source,
            immediate: datagram.immediate,
            solicited: datagram.solicited,
        };
        // Datagrams that already wait for a receive are delivered before this datagram.
        if self.kept.is_empty() && self.deliver(memory, around, said, parts) {
            return;
        }
        let is_overrun = self.receive.is_overrun();
        let room = (!is_overrun).then_some(self.kept_bytes);
        let Some(kept) = room.and_then(|used| store.keep(used, around.now, said, parts)) else {
            around.counters.datagrams_without_receive += 1;
            return;
        };
        around.counters.datagrams_kept += 1;
        self.kept_bytes += kept.cost();
        let is_first = self.kept.is_empty();
        self.kept.push_back(kept);
        if let Receives::Shared(queue) = &self.receives
            && is_first
            && queue.begin_wanting()
        {
            self.deliver_kept(memory, around, store);
        }
    }

    /// Puts a datagram into the oldest receive. Returns false if there is no receive. Drops and
    /// counts a datagram that does not fit into the receive.
    fn deliver(
        &mut self,
        memory: &MemoryAccess<'_>,
        around: &mut Around<'_>,
        said: Said,
        parts: [Payload<'_>; 2],
    ) -> bool {
        let Around { pools, counters, .. } = around;
        if self.receive.is_overrun() {
            return false;
        }
        let bytes = parts[0].len() + parts[1].len();
        let placed = match &mut self.receives {
            Receives::Own(own) => own.fill(memory, bytes, parts),
            Receives::Shared(queue) => pools.fill_shared(queue, bytes, |context, pieces| {
                (context, scatter(memory, pieces.iter(), parts))
            }),
        };
        let (context, result) = match placed {
            Ok((context, placed)) => (context, placed.map_err(|_| OperationError::LocalAccess)),
            Err(Unfit::NoReceive) => return false,
            Err(Unfit::TooShort) => {
                counters.datagrams_too_long += 1;
                return true;
            }
        };
        counters.datagrams_received += 1;
        let completion = Completion {
            bytes: if result.is_ok() { bytes as u32 } else { 0 },
            immediate: said.immediate,
            solicited: said.solicited,
            value: said.source.get().into(),
            ..self.name.received(context, result)
        };
        pools.push(&self.receive, &completion);
        true
    }

    /// Puts waiting datagrams into receives, until there is no receive or no waiting datagram left.
    #[cold]
    fn deliver_kept(
        &mut self,
        memory: &MemoryAccess<'_>,
        around: &mut Around<'_>,
        store: &mut Store,
    ) {
        let now = around.now;
        self.drop_kept(around.counters, store, |kept| kept.is_old(now));
        while let Some(kept) = self.kept.pop_front() {
            let parts = [kept.bytes.as_slice().into(), Payload::EMPTY];
            if !self.deliver(memory, around, kept.said, parts) {
                self.kept.push_front(kept);
                return;
            }
            self.let_go(store, kept);
        }
    }

    /// Drops waiting datagrams, oldest first, while `is_dropped` returns true.
    fn drop_kept(
        &mut self,
        counters: &mut EndpointCounters,
        store: &mut Store,
        is_dropped: impl Fn(&Kept) -> bool,
    ) {
        while let Some(kept) = self.kept.pop_front_if(|kept| is_dropped(kept)) {
            counters.datagrams_without_receive += 1;
            self.let_go(store, kept);
        }
    }

    /// Releases the memory of a datagram that waited for a receive. The caller has removed the
    /// datagram from the front of the queue.
    fn let_go(&mut self, store: &mut Store, kept: Kept) {
        self.kept_bytes -= kept.cost();
        store.remove(kept);
        if let Receives::Shared(queue) = &self.receives
            && self.kept.is_empty()
        {
            queue.end_wanting();
        }
    }
}

impl OwnReceives {
    const fn new(posted_max: u32) -> Self {
        Self { posted: VecDeque::new(), pieces: VecDeque::new(), posted_max }
    }

    fn check_room(&self) -> Result<(), DatagramError> {
        if self.posted.len() >= self.posted_max as usize {
            return Err(DatagramError::ReceiveQueueFull(self.posted_max));
        }
        Ok(())
    }

    fn add(&mut self, pieces: impl IntoIterator<Item = Piece>, length: u32, context: u64) {
        let before = self.pieces.len();
        self.pieces.extend(pieces);
        let pieces = (self.pieces.len() - before) as u32;
        self.posted.push_back(Posted { context, length, pieces });
    }

    /// Places a datagram of `bytes` bytes in the oldest receive, and consumes the receive. Returns
    /// the context of the receive and the result of the placement.
    fn fill(
        &mut self,
        memory: &MemoryAccess<'_>,
        bytes: usize,
        parts: [Payload<'_>; 2],
    ) -> Result<(u64, Result<(), AccessError>), Unfit> {
        let &Posted { context, length, pieces } = self.posted.front().ok_or(Unfit::NoReceive)?;
        if bytes > length as usize {
            return Err(Unfit::TooShort);
        }
        let placed = scatter(memory, self.pieces.iter().take(pieces as usize), parts);
        self.posted.pop_front();
        self.pieces.drain(..pieces as usize);
        Ok((context, placed))
    }
}

impl DatagramPort {
    /// Returns the completion of a receive, with the fields that come from the datagram. All other
    /// fields have default values.
    const fn received(self, context: u64, result: Result<(), OperationError>) -> Completion {
        Completion {
            context,
            owner: self.owner(),
            kind: CompletionKind::Receive,
            result,
            bytes: 0,
            immediate: None,
            solicited: false,
            value: 0,
        }
    }
}

impl Waiting {
    const fn completion(&self, result: Result<(), OperationError>) -> Completion {
        Completion {
            kind: CompletionKind::Send,
            bytes: self.length,
            ..self.port.received(self.context, result)
        }
    }
}

/// Appends the bytes of a scatter/gather list to a frame. If the list is one large entry, copies
/// nothing and returns that entry.
fn append(
    memory: &MemoryAccess<'_>,
    frame: &mut Vec<u8>,
    list: PieceList<'_>,
) -> Result<Option<Piece>, AccessError> {
    let mut pieces = list.cut(0, list.length());
    if let (Some(only), None) = (pieces.next(), pieces.next())
        && only.length > COPIED_BYTES_MAX
    {
        memory.source(only.region, only.offset, only.length)?;
        return Ok(Some(only));
    }
    for piece in list.cut(0, list.length()) {
        let at = frame.len();
        frame.resize(at + piece.length as usize, 0);
        memory.copy_out(piece.region, piece.offset, &mut frame[at..])?;
    }
    Ok(None)
}

/// Places `parts`, in order, in the memory of `pieces`. The caller has checked that the memory has
/// room for all parts.
fn scatter<'a>(
    memory: &MemoryAccess<'_>,
    pieces: impl Iterator<Item = &'a Piece>,
    parts: [Payload<'_>; 2],
) -> Result<(), AccessError> {
    let mut parts = parts.into_iter();
    let mut part = parts.next().unwrap_or(Payload::EMPTY);
    for piece in pieces {
        let mut used = 0;
        while used < piece.length {
            while part.is_empty() {
                let Some(next) = parts.next() else { return Ok(()) };
                part = next;
            }
            let len = part.len().min((piece.length - used) as usize);
            let offset = piece.offset + u64::from(used);
            let target =
                memory.resolve_local(piece.region, offset, len as u64, Rights::LOCAL_WRITE)?;
            memory.place(&target, 0, part.slice(0..len))?;
            part = part.slice(len..part.len());
            used += len as u32;
        }
    }
    Ok(())
}

/// Checks that a buffer of 320 bytes has room for a datagram header and a copied payload.
const _: () = assert!(DATAGRAM_HEADER_BYTES + COPIED_BYTES_MAX as usize <= 320);

/// Maximum length of a payload that `post` copies behind the header, in bytes. For such a short
/// payload, a separate range of memory costs the kernel more than the copy costs.
const COPIED_BYTES_MAX: u32 = 256;

/// Maximum number of ports of an endpoint. These are 16 slots ([`QueuePairNumber::slot`]) of 4096
/// numbers each.
const PORTS_MAX: usize = 1 << 16;

/// Maximum number of memberships of all groups together. 1024 memberships take 8 KiB. The engine
/// handles each datagram to a group once for each member.
const MEMBERSHIPS_MAX: usize = 1024;

/// Maximum number of datagrams that wait for their links. A program may post this many datagrams at
/// once. Each datagram takes 96 bytes, and up to 4 KiB if `post` gathers its payload from several
/// entries. All datagrams together take at most 4 MiB.
const WAITING_MAX: usize = 1024;
