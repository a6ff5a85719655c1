//! Connects the plain engine to the simulator's interface for engines.

use std::collections::VecDeque;

use delivery::{Instant, LinkCaps, LinkEvent, LinkId, RxFrame};
use wire_edge::PeerAddr;

use super::{
    ACCEPT, ATOMIC, BYE, Bug, DATA, DENIED, GUARD, HELLO, Head, Memory, PING, Pending, PlainEngine,
    READ, REJECT, RESET, SEND, State, WINDOW, WRITE, half, preamble,
};
use crate::host::{
    Action, Cause, Completion, ConnectionHandle, HostEngine, HostEvent, Operation, Refusal, Region,
    RequestHandle, Wire,
};

impl HostEngine for PlainEngine {
    fn attach_link(&mut self, _now: Instant, link: LinkId, caps: LinkCaps) {
        self.links.insert(link, caps.local);
        self.frame_bytes_max = self.frame_bytes_max.min(caps.frame_bytes_max);
    }

    fn detach_link(&mut self, link: LinkId) {
        self.links.remove(&link);
    }

    fn handle_frame(&mut self, now: Instant, link: LinkId, frame: RxFrame<'_>) {
        self.frames_handled += 1;
        let bytes = &*frame.bytes;
        let (Some(&kind), Some(to), Some(peer)) = (bytes.first(), half(bytes, 1), half(bytes, 5))
        else {
            return;
        };
        let rest = bytes.get(9..).unwrap_or_default();
        if kind == HELLO {
            return self.handle_hello(now, link, frame.from, peer, rest);
        }
        let state = self.connections.get(&to).map(|connection| (connection.state, connection.peer));
        match (state, kind) {
            (Some((State::Asking, _)), ACCEPT) => {
                if let Some(connection) = self.connections.get_mut(&to) {
                    connection.state = State::Open;
                    connection.peer = peer;
                    connection.heard_at = now;
                    connection.retries = 0;
                }
                self.events.push_back(HostEvent::Established(ConnectionHandle(u64::from(to))));
            }
            (Some((State::Asking, _)), REJECT) => self.end(to, Cause::Rejected),
            (Some((State::Open, known)), _) if known == peer => match kind {
                RESET => self.end(to, Cause::PeerRestarted),
                BYE => self.end(to, Cause::ClosedByPeer),
                DENIED => self.end(to, Cause::AccessDenied),
                DATA => {
                    if self.bug == Bug::FollowsAnybody
                        && let Some(connection) = self.connections.get_mut(&to)
                    {
                        connection.paths = vec![(link, frame.from)];
                        connection.path = 0;
                    }
                    if let (Some(sequence), Some(acked)) = (half(rest, 0), half(rest, 4)) {
                        self.handle_data(now, to, sequence, acked, &rest[8..]);
                    }
                }
                _ => {}
            },
            (Some((State::Ended, known)), DATA)
                if known == peer
                    && self.bug == Bug::WritesAfterEnd
                    && rest.len() > 8
                    && rest[8] == WRITE =>
            {
                self.perform(to, &rest[8..], false);
            }
            (None | Some((State::Ended, _)), DATA | ACCEPT) => {
                self.replies.push_back((link, frame.from, preamble(RESET, peer, to)));
            }
            _ => {}
        }
    }

    fn handle_timeout(&mut self, now: Instant) {
        let mut ended = Vec::new();
        for (&id, connection) in &mut self.connections {
            if connection.retry_at > now {
                continue;
            }
            let waits = connection.state == State::Asking
                || !connection.window.is_empty()
                || !connection.operations.is_empty();
            if !waits {
                connection.retry_at = Instant::NEVER;
                continue;
            }
            let fickle = self.bug == Bug::GivesUp && connection.retries > 2;
            if now.since_ns(connection.heard_at) > self.dead_peer_ns || fickle {
                ended.push(id);
                continue;
            }
            connection.retries += 1;
            connection.pings = connection.window.is_empty();
            connection.sent = connection.acked;
            connection.path = (connection.path + 1) % connection.paths.len().max(1);
            let backoff_ns = 2_000_000 << connection.retries.min(6);
            connection.retry_at = now.after_ns(backoff_ns);
            if connection.state == State::Asking
                && let Some(&(link, to)) = connection.paths.get(connection.path)
            {
                self.replies.push_back((link, to, connection.hello.clone()));
            }
        }
        for id in ended {
            self.end(id, Cause::Unreachable);
        }
    }

    fn handle_link_event(&mut self, _now: Instant, _link: LinkId, event: LinkEvent) {
        let LinkEvent::Refused(peer, _) = event else { return };
        if self.bug == Bug::BelievesNews {
            let leads_there = |connection: &super::Connection| {
                connection.paths.iter().any(|&(_, address)| address == peer)
            };
            let all = self.connections.iter();
            let ended: Vec<u32> =
                all.filter(|(_, one)| leads_there(one)).map(|(&id, _)| id).collect();
            for id in ended {
                self.end(id, Cause::Unreachable);
            }
        }
    }

    fn poll_transmit(&mut self, now: Instant, wire: &mut Wire<'_>) {
        if self.bug == Bug::FallsSilent && now.0 > 1_000_000 {
            return;
        }
        let mut kept = VecDeque::new();
        while let Some((reply_link, to, bytes)) = self.replies.pop_front() {
            if !wire(reply_link, to, &[&bytes]) {
                kept.push_back((reply_link, to, bytes));
            }
        }
        self.replies = kept;
        let stops = self.bug == Bug::StopsAtFullDriver;
        let too_soon = self.bug == Bug::CompletesTooSoon;
        let mut sent_operations = Vec::new();
        for (&id, connection) in &mut self.connections {
            if connection.state != State::Open {
                continue;
            }
            let Some(&(path, to)) = connection.paths.get(connection.path) else { continue };
            let header = |sequence: u32, expected: u32, peer: u32| {
                let mut header = preamble(DATA, peer, id);
                header.extend_from_slice(&sequence.to_le_bytes());
                header.extend_from_slice(&expected.to_le_bytes());
                header
            };
            while connection.sent - connection.acked < WINDOW
                && let Some((body, ends)) =
                    connection.window.get((connection.sent - connection.acked) as usize)
            {
                if !wire(
                    path,
                    to,
                    &[&header(connection.sent, connection.expected, connection.peer), body],
                ) {
                    if stops {
                        return;
                    }
                    break;
                }
                if connection.retry_at == Instant::NEVER {
                    connection.retry_at = now.after_ns(2_000_000);
                    connection.heard_at = now;
                }
                if let Some(number) = *ends
                    && too_soon
                {
                    sent_operations.push((id, number));
                }
                connection.sent += 1;
                connection.owes_ack = false;
            }
            if self.bug == Bug::RepeatsEachTurn
                && connection.acked < connection.sent
                && now.since_ns(connection.heard_at) > 3_000_000
            {
                connection.unanswered += 1;
                connection.pings = true;
            }
            if connection.pings
                && wire(
                    path,
                    to,
                    &[&header(connection.sent, connection.expected, connection.peer), &[PING]],
                )
            {
                connection.pings = false;
            }
            if connection.owes_ack
                && wire(path, to, &[&header(connection.sent, connection.expected, connection.peer)])
            {
                connection.owes_ack = false;
            }
        }
        for (id, number) in sent_operations {
            if let Some(connection) = self.connections.get_mut(&id) {
                connection.finish(number, None);
            }
            self.report(id);
        }
    }

    fn poll_timeout(&self) -> Instant {
        self.connections
            .values()
            .map(|connection| connection.retry_at)
            .min()
            .unwrap_or(Instant::NEVER)
    }

    fn poll_event(&mut self) -> Option<HostEvent> {
        self.events.pop_front()
    }

    fn turn_to(&mut self, place: u32) {
        self.place = place;
    }

    fn listen(&mut self, _now: Instant) {}

    fn connect(
        &mut self,
        now: Instant,
        paths: &[(LinkId, PeerAddr)],
        private_data: &[u8],
    ) -> Result<ConnectionHandle, Refusal> {
        let id = self.add(now, State::Asking, 0, paths.to_vec());
        let mut hello = preamble(HELLO, 0, id);
        hello.push(paths.len() as u8);
        for (link, address) in paths {
            // The peer answers on the link that the Hello names, to this host's address.
            hello.push(link.0);
            hello.extend_from_slice(&self.links.get(link).unwrap_or(address).0);
        }
        hello.extend_from_slice(private_data);
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.hello = hello;
        }
        Ok(ConnectionHandle(u64::from(id)))
    }

    fn accept(
        &mut self,
        _now: Instant,
        request: RequestHandle,
    ) -> Result<ConnectionHandle, Refusal> {
        let id = request.0 as u32;
        let connection = self.connections.get_mut(&id).ok_or(Refusal::Closed)?;
        connection.state = State::Open;
        connection.place = self.place;
        let handle = ConnectionHandle(request.0);
        self.send_control(id, ACCEPT);
        self.events.push_back(HostEvent::Established(handle));
        Ok(handle)
    }

    fn reject(&mut self, _now: Instant, request: RequestHandle) {
        self.send_control(request.0 as u32, REJECT);
        self.connections.remove(&(request.0 as u32));
    }

    fn close(&mut self, _now: Instant, connection: ConnectionHandle) {
        self.send_control(connection.0 as u32, BYE);
        self.end(connection.0 as u32, Cause::ClosedHere);
    }

    fn remove_path(&mut self, _connection: ConnectionHandle, _link: LinkId) {}

    fn add_path(
        &mut self,
        _now: Instant,
        _connection: ConnectionHandle,
        _link: LinkId,
        _peer: PeerAddr,
    ) {
    }

    fn post(
        &mut self,
        now: Instant,
        connection: ConnectionHandle,
        operation: &Operation,
    ) -> Result<(), Refusal> {
        let mut content = vec![0; operation.length_bytes as usize];
        self.read_memory(operation.local, operation.local_offset, &mut content);
        let id = connection.0 as u32;
        let connection = self.connections.get_mut(&id).ok_or(Refusal::Closed)?;
        if connection.state != State::Open {
            return Err(Refusal::Closed);
        }
        if connection.operations.len() > 64 {
            return Err(Refusal::Full);
        }
        let number = connection.next_operation;
        connection.next_operation += 1;
        let mut head = Head {
            kind: WRITE,
            key: operation.key,
            address: operation.address,
            total: operation.length_bytes,
            has_immediate: operation.immediate.is_some(),
            immediate: operation.immediate.unwrap_or(0),
            last: false,
        };
        let operands =
            |operand: u64, compare: u64| [operand.to_le_bytes(), compare.to_le_bytes()].concat();
        match operation.action {
            Action::Write | Action::Patch => {}
            Action::Send => (head.kind, head.address) = (SEND, 0),
            Action::Read => {
                head.kind = READ;
                content.clear();
            }
            Action::FetchAdd { operand } => {
                head.kind = ATOMIC;
                content = operands(operand, 0);
            }
            Action::CompareSwap { compare, swap } => {
                (head.kind, head.immediate) = (ATOMIC, 1);
                content = operands(swap, compare);
            }
            Action::Swap { value } => {
                (head.kind, head.immediate) = (ATOMIC, 2);
                content = operands(value, 0);
            }
            Action::SendInvalidate | Action::Bind { .. } | Action::Invalidate => {
                return Err(Refusal::Invalid);
            }
        }
        if operation.action == Action::Patch {
            connection.queue_words(head, &content, number);
        } else {
            connection.queue(head, &content, Some(number));
        }
        connection.operations.push_back(Pending {
            number,
            operation: *operation,
            done: false,
            result_bytes: 0,
        });
        if connection.retry_at == Instant::NEVER {
            connection.retry_at = now.after_ns(2_000_000);
            connection.heard_at = now;
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
        let connection = self.connections.get_mut(&(connection.0 as u32)).ok_or(Refusal::Closed)?;
        connection.receives.push_back((region, offset, length_bytes, context));
        Ok(())
    }

    fn poll_completion(&mut self, connection: ConnectionHandle) -> Option<Completion> {
        self.connections.get_mut(&(connection.0 as u32))?.completions.pop_front()
    }

    fn release(&mut self, _connection: ConnectionHandle) {}

    fn register(&mut self, length_bytes: u32) -> Region {
        let number = self.next_region;
        self.next_region += 1;
        let key = self.random.next_u64() as u32;
        let bytes = vec![0; length_bytes as usize + 2 * GUARD];
        self.regions.insert(number, Memory { key, live: true, place: self.place, bytes });
        Region { number, key, address: u64::from(number) << 32, length_bytes }
    }

    fn deregister(&mut self, _now: Instant, region: Region) {
        if let Some(memory) = self.regions.get_mut(&region.number) {
            memory.live = false;
        }
    }

    fn discard(&mut self, region: Region) {
        if let Some(memory) = self.regions.get_mut(&region.number) {
            memory.live = false;
        }
    }

    fn read_memory(&self, region: Region, offset: u32, into: &mut [u8]) {
        let start = GUARD + offset as usize;
        into.copy_from_slice(&self.regions[&region.number].bytes[start..start + into.len()]);
    }

    fn write_memory(&mut self, region: Region, offset: u32, bytes: &[u8]) {
        let start = GUARD + offset as usize;
        if let Some(memory) = self.regions.get_mut(&region.number) {
            // A corrupted frame can have a wrong length. Without this limit, the range could exceed
            // the region.
            let end = (start + bytes.len()).min(memory.bytes.len() - GUARD);
            let start = start.min(end);
            memory.bytes[start..end].copy_from_slice(&bytes[..end - start]);
        }
    }

    fn guards_are_intact(&self) -> bool {
        self.regions.values().all(|memory| {
            let end = memory.bytes.len() - GUARD;
            memory.bytes[..GUARD].iter().chain(&memory.bytes[end..]).all(|&byte| byte == 0)
        })
    }

    fn occupancy(&self, report: &mut dyn FnMut(&'static str, u64, u64)) {
        let limit = if self.bug == Bug::Hoards { 4 } else { 65 };
        for connection in self.connections.values() {
            report("operations", connection.operations.len() as u64, limit);
            if connection.state == State::Open {
                report("unanswered questions", connection.unanswered, UNANSWERED_MAX);
            }
        }
    }
}

/// Maximum number of pings to a silent peer within five seconds. Some pings follow each other after
/// two milliseconds.
const UNANSWERED_MAX: u64 = 1_000;
