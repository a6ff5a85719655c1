//! A wrapper that breaks guarantees of the engine inside it. The harness must detect each broken
//! guarantee. The wrapper plants faults in mechanisms that the plain engine does not have.

mod patches;

use std::collections::{BTreeSet, HashMap, VecDeque};

use delivery::{Instant, LinkCaps, LinkEvent, LinkId, RxFrame};
use wire_edge::{Control, Flags, Handshake, HandshakeFrame, Header, PeerAddr, control_messages};

use crate::host::{
    Action, Cause, Completion, CompletionKind, ConnectionHandle, Datagram, Fault, HostEngine,
    HostEvent, Operation, Refusal, Region, RequestHandle, Wire,
};

/// The kind of fault that the wrapper plants.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Bend {
    /// If two operations are posted together, the engine gets them in the wrong order.
    ReordersPosts,
    /// A Reset is accepted with any epoch and packet number.
    BelievesResets,
    /// If a connection has been accepted but not confirmed, the next request has to wait.
    HoldsListener,
    /// All services share one protection domain.
    IgnoresDomains,
    /// A denied access is reported as a protocol violation.
    ConfusesCauses,
    /// A denied operation is reported as flushed.
    ConfusesFaults,
    /// For each connection that has ended, one record stays in use.
    LeaksAtClose,
    /// Each time seven timers have expired, the engine requests no timer until the next frame
    /// arrives.
    ForgetsTimers,
    /// The acknowledgement section of a Close is ignored.
    ForgetsDeliveries,
    /// If an operation is denied, earlier operations are flushed with it.
    FlushesBefore,
    /// A write with an immediate produces a notification instead of consuming a receive.
    NotifiesOfWrites,
    /// Every fourth shared receive is accepted from the application, but never used.
    LosesReceives,
    /// If a message is received into several scatter/gather entries, its first two bytes are
    /// swapped.
    MixesPieces,
    /// In one of eight writes and sends of more than one byte, the first byte of the payload is
    /// replaced by 0.
    SkipsPieces,
    /// If the key of a window for one connection is invalidated, the key stays valid.
    KeepsWindows,
    /// If a window is replaced, its former key stays valid.
    KeepsFormerKeys,
    /// If a message should invalidate a key, the key stays valid.
    ForgetsInvalidations,
    /// Other connections can use the key of a window for one connection.
    OpensToAll,
    /// Deregistered memory can still be accessed.
    KeepsRegions,
    /// Datagrams with a wrong key are accepted.
    IgnoresKeys,
    /// One of four datagrams is sent twice.
    RepeatsDatagrams,
    /// No connection has operation records reserved for it. The first connection that posts
    /// operations takes all free records.
    LendsAllRecords,
    /// The last word of each frame of a patch is not placed.
    SkipsLastWords,
    /// The words of an old frame of a patch are placed again.
    RepeatsPatches,
    /// The words of a patch are placed under any key.
    PatchesUnderAnyKey,
    /// The address of the area moves with the offset of the frame, as in a write.
    MovesPatches,
    /// Bit 31 − i of a bitmap stands for word i.
    MirrorsBitmaps,
    /// The first two words of a frame are placed in each other's place.
    ExchangesWords,
    /// A word of a block that no bit names is filled with zeros.
    FillsGaps,
    /// A patch is placed when it arrives, even if it has a fence.
    IgnoresPatchFences,
    /// The lowest bit of the immediate of a patch is flipped.
    AltersPatchImmediates,
    /// A swap adds its operand.
    AddsInSwaps,
}

/// An engine in a wrapper that plants a fault.
#[derive(Debug)]
pub(crate) struct Bent<E> {
    engine: E,
    bend: Bend,
    /// An operation that the wrapper holds back until the application posts the next operation.
    held: Option<(ConnectionHandle, Operation)>,
    /// Connection id, epoch and packet number of the most recently sent frames, the newest last.
    sent: VecDeque<(u32, u16, u32)>,
    requests: VecDeque<HostEvent>,
    unconfirmed: BTreeSet<u64>,
    ended: u64,
    timeouts: u64,
    /// Number of shared receives posted.
    receives: u64,
    /// Region and offset of each receive, by the receive's context.
    places: HashMap<u64, (Region, u32)>,
    /// Number of outstanding operations at the time `counted_at`.
    operations: u64,
    counted_at: Instant,
    /// Completions that the wrapper has polled from the engine, but that the application has not
    /// polled yet.
    ahead: VecDeque<(ConnectionHandle, Completion)>,
    /// State of the faults in patches.
    patches: patches::Patches,
}

impl<E: HostEngine> Bent<E> {
    pub(crate) fn new(engine: E, bend: Bend) -> Self {
        Self {
            engine,
            bend,
            held: None,
            sent: VecDeque::new(),
            requests: VecDeque::new(),
            unconfirmed: BTreeSet::new(),
            ended: 0,
            timeouts: 0,
            receives: 0,
            places: HashMap::new(),
            operations: 0,
            counted_at: Instant::NEVER,
            ahead: VecDeque::new(),
            patches: patches::Patches::default(),
        }
    }

    /// Removes the acknowledgement section from a frame with a Close; returns `None` for other
    /// frames.
    fn without_deliveries(bytes: &[u8]) -> Option<Vec<u8>> {
        let frame = wire_edge::decode(bytes).ok()?;
        let is_close = |message| matches!(message, Ok(Control::Close { .. }));
        if frame.header != Header::Control
            || frame.acks.is_none()
            || !control_messages(frame.payload).any(is_close)
        {
            return None;
        }
        let mut out = bytes.to_vec();
        out.drain(COMMON_BYTES..bytes.len() - frame.payload.len());
        if let Some(flags) = out.get_mut(FLAGS_AT) {
            *flags &= !Flags::ACK.bits();
        }
        // The removed bytes are replaced by padding, so that the frame keeps its length.
        out.resize(bytes.len(), 0);
        Some(out)
    }

    /// Returns the oldest completion that the application has not polled.
    fn next_completion(&mut self, connection: ConnectionHandle) -> Option<Completion> {
        let is_own = |(other, _): &(ConnectionHandle, Completion)| *other == connection;
        match self.ahead.iter().position(is_own) {
            Some(index) => self.ahead.remove(index).map(|(_, found)| found),
            None => self.engine.poll_completion(connection),
        }
    }

    /// Returns the operation that the wrapper posts instead of an operation on keys or memory.
    fn bent(&mut self, operation: &Operation) -> Operation {
        let mut bent = *operation;
        // No operation uses this key.
        let unused = operation.key ^ 0x0100_0000;
        match (self.bend, operation.action) {
            (Bend::KeepsWindows, Action::Invalidate) => {
                bent.action = Action::Bind { replaced: Some(unused), is_for_all: false };
                bent.key = unused;
            }
            (Bend::KeepsFormerKeys, Action::Bind { is_for_all, .. }) => {
                bent.action = Action::Bind { replaced: None, is_for_all };
            }
            (Bend::ForgetsInvalidations, Action::SendInvalidate) => bent.action = Action::Send,
            (Bend::OpensToAll, Action::Bind { replaced, .. }) => {
                bent.action = Action::Bind { replaced, is_for_all: true };
            }
            (Bend::SkipsPieces, Action::Write | Action::Send)
                if operation.context % 8 == 7 && operation.length_bytes > 1 =>
            {
                self.engine.write_memory(operation.local, operation.local_offset, &[0]);
            }
            _ => {}
        }
        bent
    }

    /// Swaps the first two bytes of a message that was received into several entries.
    fn mix(&mut self, found: &Completion) {
        let Some(&(region, offset)) = self.places.get(&found.context) else { return };
        let mut bytes = [0; 2];
        self.engine.read_memory(region, offset, &mut bytes);
        bytes.swap(0, 1);
        self.engine.write_memory(region, offset, &bytes);
    }

    /// Returns the number of outstanding operations of all connections. Counts them only once at
    /// each virtual time.
    fn operations(&mut self, now: Instant) -> u64 {
        if self.counted_at != now {
            self.counted_at = now;
            self.operations = 0;
            let operations = &mut self.operations;
            self.engine.occupancy(&mut |name, used, _| {
                if name == "operations" {
                    *operations = used;
                }
            });
        }
        self.operations
    }

    const fn forgets_timer(&self) -> bool {
        matches!(self.bend, Bend::ForgetsTimers) && self.timeouts % 8 == 7
    }

    /// Posts the operation that the wrapper has held back.
    fn hand_over(&mut self, now: Instant) {
        if let Some((connection, operation)) = self.held.take() {
            // The application already regards the operation as posted, so the wrapper ignores a
            // refusal.
            let _ = self.engine.post(now, connection, &operation);
        }
    }

    /// Returns a valid Reset that replaces an invalid one.
    fn right_reset(&self, bytes: &[u8]) -> Option<Vec<u8>> {
        let frame = wire_edge::decode_handshake(bytes).ok()?;
        let Handshake::Reset { .. } = frame.body else { return None };
        let known = self.sent.iter().rev().find(|(id, ..)| *id == frame.source.0)?;
        let body = Handshake::Reset { epoch: wire_edge::Epoch(known.1), packet: known.2 };
        let mut out = vec![0; wire_edge::HANDSHAKE_BYTES_MAX];
        let length = HandshakeFrame { body, ..frame }.encode(&mut out);
        out.truncate(length);
        Some(out)
    }

    /// Records those fields of a sent frame that a valid Reset would have.
    fn remember(sent: &mut VecDeque<(u32, u16, u32)>, pieces: &[&[u8]]) {
        let Some(prefix) = wire_edge::decode(&pieces.concat()).ok().map(|frame| frame.prefix)
        else {
            return;
        };
        sent.push_back((prefix.connection.0, prefix.epoch.0, prefix.packet));
        if sent.len() > 64 {
            sent.pop_front();
        }
    }
}

impl<E: HostEngine> HostEngine for Bent<E> {
    fn attach_link(&mut self, now: Instant, link: LinkId, caps: LinkCaps) {
        self.engine.attach_link(now, link, caps);
    }

    fn detach_link(&mut self, link: LinkId) {
        self.engine.detach_link(link);
    }

    fn handle_frame(&mut self, now: Instant, link: LinkId, frame: RxFrame<'_>) {
        self.timeouts += u64::from(self.forgets_timer());
        let right = match self.bend {
            Bend::BelievesResets => self.right_reset(frame.bytes),
            Bend::ForgetsDeliveries => Self::without_deliveries(frame.bytes),
            _ => None,
        };
        let right = right.or_else(|| self.bent_patch(frame.bytes));
        let before = self.before_patch(frame.bytes);
        match right {
            Some(mut bytes) => {
                self.engine.handle_frame(now, link, RxFrame { bytes: &mut bytes, ..frame });
            }
            None => self.engine.handle_frame(now, link, frame),
        }
        self.after_patch(&before);
    }

    fn handle_timeout(&mut self, now: Instant) {
        self.timeouts += 1;
        self.engine.handle_timeout(now);
    }

    fn handle_link_event(&mut self, now: Instant, link: LinkId, event: LinkEvent) {
        self.engine.handle_link_event(now, link, event);
    }

    fn poll_transmit(&mut self, now: Instant, wire: &mut Wire<'_>) {
        self.hand_over(now);
        let (engine, sent) = (&mut self.engine, &mut self.sent);
        if self.bend != Bend::BelievesResets {
            return engine.poll_transmit(now, wire);
        }
        engine.poll_transmit(now, &mut |link, to, pieces| {
            Self::remember(sent, pieces);
            wire(link, to, pieces)
        });
    }

    fn poll_timeout(&self) -> Instant {
        if self.forgets_timer() { Instant::NEVER } else { self.engine.poll_timeout() }
    }

    fn poll_event(&mut self) -> Option<HostEvent> {
        if self.bend == Bend::HoldsListener
            && self.unconfirmed.is_empty()
            && let Some(request) = self.requests.pop_front()
        {
            return Some(request);
        }
        loop {
            let event = self.engine.poll_event()?;
            match event {
                HostEvent::Requested { .. }
                    if self.bend == Bend::HoldsListener && !self.unconfirmed.is_empty() =>
                {
                    self.requests.push_back(event);
                }
                HostEvent::Established(connection) => {
                    self.unconfirmed.remove(&connection.0);
                    return Some(event);
                }
                HostEvent::Closed(connection, cause) => {
                    self.unconfirmed.remove(&connection.0);
                    self.ended += 1;
                    let is_confused =
                        self.bend == Bend::ConfusesCauses && cause == Cause::AccessDenied;
                    let cause = if is_confused { Cause::Violation } else { cause };
                    return Some(HostEvent::Closed(connection, cause));
                }
                other @ HostEvent::Requested { .. } => return Some(other),
            }
        }
    }

    fn turn_to(&mut self, place: u32) {
        if self.bend != Bend::IgnoresDomains {
            self.engine.turn_to(place);
        }
    }

    fn listen(&mut self, now: Instant) {
        self.engine.listen(now);
    }

    fn connect(
        &mut self,
        now: Instant,
        paths: &[(LinkId, PeerAddr)],
        private_data: &[u8],
    ) -> Result<ConnectionHandle, Refusal> {
        self.engine.connect(now, paths, private_data)
    }

    fn accept(
        &mut self,
        now: Instant,
        request: RequestHandle,
    ) -> Result<ConnectionHandle, Refusal> {
        let connection = self.engine.accept(now, request)?;
        self.unconfirmed.insert(connection.0);
        Ok(connection)
    }

    fn reject(&mut self, now: Instant, request: RequestHandle) {
        self.engine.reject(now, request);
    }

    fn close(&mut self, now: Instant, connection: ConnectionHandle) {
        self.engine.close(now, connection);
    }

    fn remove_path(&mut self, connection: ConnectionHandle, link: LinkId) {
        self.engine.remove_path(connection, link);
    }

    fn add_path(
        &mut self,
        now: Instant,
        connection: ConnectionHandle,
        link: LinkId,
        peer: PeerAddr,
    ) {
        self.engine.add_path(now, connection, link, peer);
    }

    fn post(
        &mut self,
        now: Instant,
        connection: ConnectionHandle,
        operation: &Operation,
    ) -> Result<(), Refusal> {
        if self.bend == Bend::LendsAllRecords {
            if self.operations(now) >= RECORDS {
                return Err(Refusal::Full);
            }
            self.operations += 1;
        }
        if self.bend != Bend::ReordersPosts {
            let operation = self.bent(operation);
            return self.engine.post(now, connection, &operation);
        }
        match self.held.take() {
            None => {
                self.held = Some((connection, *operation));
                Ok(())
            }
            Some((other, earlier)) => {
                let outcome = self.engine.post(now, connection, operation);
                self.held = Some((other, earlier));
                self.hand_over(now);
                outcome
            }
        }
    }

    fn post_receive(
        &mut self,
        now: Instant,
        connection: ConnectionHandle,
        region: Region,
        offset: u32,
        length_bytes: u32,
        context: u64,
    ) -> Result<(), Refusal> {
        self.places.insert(context, (region, offset));
        self.engine.post_receive(now, connection, region, offset, length_bytes, context)
    }

    fn post_shared_receive(
        &mut self,
        now: Instant,
        region: Region,
        offset: u32,
        length_bytes: u32,
        context: u64,
    ) -> Result<(), Refusal> {
        self.receives += 1;
        if self.bend == Bend::LosesReceives && self.receives.is_multiple_of(4) {
            return Ok(());
        }
        self.places.insert(context, (region, offset));
        self.engine.post_shared_receive(now, region, offset, length_bytes, context)
    }

    fn poll_completion(&mut self, connection: ConnectionHandle) -> Option<Completion> {
        let mut found = self.next_completion(connection)?;
        if self.bend == Bend::FlushesBefore
            && found.success
            && found.kind == CompletionKind::Write
            && let Some(next) = self.next_completion(connection)
        {
            self.ahead.push_back((connection, next));
            if next.fault == Some(Fault::AccessDenied) {
                (found.success, found.fault) = (false, Some(Fault::EndedByPeer));
            }
        }
        if self.bend == Bend::MixesPieces
            && (found.kind, found.success) == (CompletionKind::Receive, true)
            && found.context % 2 == 1
            && found.length_bytes > 1
        {
            self.mix(&found);
        }
        if self.bend == Bend::NotifiesOfWrites
            && found.kind == CompletionKind::Receive
            && found.immediate.is_some()
        {
            found.kind = CompletionKind::Notification;
        }
        let is_confused =
            self.bend == Bend::ConfusesFaults && found.fault == Some(Fault::AccessDenied);
        let fault = if is_confused { Some(Fault::EndedByPeer) } else { found.fault };
        Some(Completion { fault, ..found })
    }

    fn open_port(&mut self, number: u32, key: u32) {
        self.engine.open_port(number, key);
    }

    fn post_datagram(&mut self, number: u32, datagram: &Datagram) -> Result<(), Refusal> {
        let mut datagram = *datagram;
        if self.bend == Bend::IgnoresKeys {
            // Valid keys are even.
            datagram.key &= !1;
        }
        if self.bend == Bend::RepeatsDatagrams && datagram.context.is_multiple_of(4) {
            let first = Datagram { signalled: false, ..datagram };
            self.engine.post_datagram(number, &first)?;
        }
        self.engine.post_datagram(number, &datagram)
    }

    fn post_datagram_receive(
        &mut self,
        number: u32,
        place: (Region, u32, u32),
        context: u64,
    ) -> Result<(), Refusal> {
        self.engine.post_datagram_receive(number, place, context)
    }

    fn poll_datagrams(&mut self, number: u32) -> Option<(Completion, u32)> {
        self.engine.poll_datagrams(number)
    }

    fn release(&mut self, connection: ConnectionHandle) {
        self.engine.release(connection);
    }

    fn register(&mut self, length_bytes: u32) -> Region {
        let region = self.engine.register(length_bytes);
        self.patches.register(region);
        region
    }

    fn close_windows(&mut self, region: Region) {
        self.engine.close_windows(region);
    }

    fn deregister(&mut self, now: Instant, region: Region) {
        if self.bend != Bend::KeepsRegions {
            self.engine.deregister(now, region);
        }
    }

    fn discard(&mut self, region: Region) {
        self.patches.discard(region);
        self.engine.discard(region);
    }

    fn read_memory(&self, region: Region, offset: u32, into: &mut [u8]) {
        self.engine.read_memory(region, offset, into);
    }

    fn write_memory(&mut self, region: Region, offset: u32, bytes: &[u8]) {
        self.engine.write_memory(region, offset, bytes);
    }

    fn guards_are_intact(&self) -> bool {
        self.engine.guards_are_intact()
    }

    fn occupancy(&self, report: &mut dyn FnMut(&'static str, u64, u64)) {
        self.engine.occupancy(report);
        if self.bend == Bend::LeaksAtClose {
            report("records of ended connections", self.ended, u64::MAX);
        }
    }
}

/// Length of the common header of all connection frames, in bytes.
const COMMON_BYTES: usize = 12;

/// Number of records of a host with small pools.
const RECORDS: u64 = 12;

/// Offset of the flags in the common header.
const FLAGS_AT: usize = 1;
