//! The streams in the connection table: posts their operations, and handles their completions and
//! messages.

use std::cmp::Reverse;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use delivery::Instant;
use engine::ConnectionHandle;
use runtime::{Posted, Rest};
use semantics::{Completion, CompletionKind};

use crate::migration::attempts::FIRST_WAIT_NS;
use crate::migration::machine::{Event, Phase};
use crate::rendezvous::connection_table::{ConnectionTable, EngineTurn, Timer};
use crate::rendezvous::group::{Context, Group, Write};
use crate::transport::state::Bit;
use crate::transport::stream::{HomeProgress, Misbehaved, Out};
use crate::wire::{Message, StreamNumber};

impl ConnectionTable {
    /// Posts operations of streams and groups. Stops after about `limit` operations.
    pub(crate) fn post(&mut self, turn: &mut EngineTurn<'_, '_>, limit: u32) -> Posted {
        self.take_completions(turn);
        turn.exchange.take_marked(&mut self.marked);
        let marked = std::mem::take(&mut self.marked);
        for number in &marked {
            self.enqueue(*number);
        }
        self.marked = marked;
        self.marked.clear();
        let (mut count, mut refused) = (0, Vec::new());
        while count < limit {
            let Some(handle) = self.round_robin.next_group() else { break };
            count += self.serve_group(turn, handle, &mut refused);
        }
        // Queue the streams that were marked while they were served. There may be no later event
        // that would queue them.
        self.take_late_marks(turn);
        let rest = if self.round_robin.is_empty() { Rest::Blocked } else { Rest::More };
        for handle in refused {
            self.round_robin.wake(handle);
        }
        Posted { count, rest }
    }

    fn take_late_marks(&mut self, turn: &mut EngineTurn<'_, '_>) {
        turn.exchange.take_marked(&mut self.marked);
        for number in std::mem::take(&mut self.marked) {
            match self.streams.get(number) {
                // The stream is not open yet. Its timer retries the switch marker.
                Some(entry) if !entry.stream.state.has(Bit::Open) => entry.doorbell.unmark(),
                _ => self.enqueue(number),
            }
        }
    }

    /// Queues a stream to be served.
    pub(super) fn enqueue(&mut self, number: StreamNumber) {
        let Some(entry) = self.streams.get_mut(number) else { return };
        if !entry.is_queued {
            entry.is_queued = true;
            self.round_robin.add(entry.group, number);
        }
    }

    /// Serves a group: posts its queued messages and some operations of one of its streams. Returns
    /// the number of operations posted.
    ///
    /// If the engine has no room, sets the group aside until one of its operations completes. If
    /// the group has no operation in flight, no completion of its own can wake it, because
    /// operations of other groups occupy the room. In that case adds the group to `refused`, and
    /// the next call retries it.
    fn serve_group(
        &mut self,
        turn: &mut EngineTurn<'_, '_>,
        handle: ConnectionHandle,
        refused: &mut Vec<ConnectionHandle>,
    ) -> u32 {
        let mut count = self.flush(turn, handle);
        let mut stalled = None;
        if !self.groups.get(handle).is_some_and(Group::is_held_up) {
            if let Some(number) = self.round_robin.next_stream(handle) {
                let (posted, is_stalled) = self.serve(turn, number);
                count += posted;
                stalled = is_stalled.then_some(number);
            }
            if stalled.is_none() {
                self.round_robin.put_back(handle);
                return count;
            }
        }
        if let Some(entry) = stalled.and_then(|number| self.streams.get_mut(number)) {
            entry.is_queued = true;
        }
        self.round_robin.set_aside(handle, stalled);
        let is_established = self.groups.get(handle).is_some_and(|group| group.is_established);
        if is_established && turn.engine.outstanding(handle) == 0 {
            refused.push(handle);
        }
        count
    }

    /// Posts queued messages of a group. Returns the number of messages posted.
    fn flush(&mut self, turn: &mut EngineTurn<'_, '_>, handle: ConnectionHandle) -> u32 {
        let Some(group) = self.groups.get_mut(handle) else { return 0 };
        let count = group.flush(turn.engine, turn.memory);
        turn.exchange.in_flight.fetch_add(count, Ordering::Relaxed);
        count
    }

    /// Sends a message to the peer of a group.
    pub(super) fn send(
        &mut self,
        turn: &mut EngineTurn<'_, '_>,
        handle: ConnectionHandle,
        message: Message,
        context: Context,
    ) {
        let Some(group) = self.groups.get_mut(handle) else { return };
        let posted = group.send(turn.engine, turn.memory, message, context);
        turn.exchange.in_flight.fetch_add(posted, Ordering::Relaxed);
        if !group.is_held_up() {
            return;
        }
        let checked = group.check_outbox();
        self.round_robin.add_group(handle);
        if let Err(why) = checked {
            self.condemn(turn, handle, &why);
        }
    }

    /// Posts some operations of a stream. Returns their number, and true if the engine had no room
    /// for more.
    fn serve(&mut self, turn: &mut EngineTurn<'_, '_>, number: StreamNumber) -> (u32, bool) {
        let Some(entry) = self.streams.get_mut(number) else { return (0, false) };
        entry.is_queued = false;
        entry.doorbell.unmark();
        if !entry.stream.state.has(Bit::Open) {
            // TCP may now have room for the switch marker, or the peer's marker may have arrived.
            let (id, is_lost) = (entry.connection.token(), entry.stream.state.has(Bit::GroupLost));
            if is_lost {
                self.look_for_marker(turn, id);
            }
            self.write_marker(turn, id);
            self.settle(turn, number);
            return (0, false);
        }
        let (handle, open) = (entry.group, entry.open);
        let has_come = match entry.stream.go_home() {
            HomeProgress::Waits => true,
            HomeProgress::InCall => false,
            HomeProgress::Arrived => entry.connection.come_home(),
        };
        if !has_come {
            self.wake_stream(number, turn.now.after_ns(FIRST_WAIT_NS));
        }
        let mut count = 0;
        while count < POSTS_PER_TURN {
            let Some(entry) = self.streams.get(number) else { return (count, false) };
            let Some(out) = entry.stream.next(turn.now) else {
                self.settle(turn, number);
                return (count, false);
            };
            // The peer's end of the stream is not known, so no operation can be posted.
            let Some((to, ring)) = open else { continue };
            match out {
                Out::Data { at, length, to: offset } => {
                    let Some(group) = self.groups.get(handle) else {
                        entry.stream.not_posted(out);
                        return (count, false);
                    };
                    let (region, start) = entry.rings.send;
                    let from = (region, start + u64::from(at));
                    let write = Write { from, length, ring, to: offset, number, peer: to };
                    let is_posted = !group.is_held_up()
                        && group.write(turn.engine, turn.memory, &write).is_ok();
                    if !is_posted {
                        entry.stream.not_posted(out);
                        return (count, true);
                    }
                    turn.exchange.in_flight.fetch_add(1, Ordering::Relaxed);
                }
                Out::Credit(_) | Out::End(_) | Out::Reset | Out::Home => {
                    let context = match out {
                        Out::Credit(_) | Out::Home => Context::Message,
                        _ => Context::Last(number),
                    };
                    if let Some(message) = message_of(out, to) {
                        self.send(turn, handle, message, context);
                    }
                }
            }
            count += 1;
        }
        self.enqueue(number);
        (count, false)
    }

    /// Removes a stream if the stream has ended. Called after a stream was notified or served.
    fn settle(&mut self, turn: &mut EngineTurn<'_, '_>, number: StreamNumber) {
        let Some(entry) = self.streams.get_mut(number) else { return };
        // Before the peer has answered Join, the peer may still move its direction and write to the
        // ring.
        let is_answered =
            entry.open.is_some() || entry.stream.state.has_any(&[Bit::Lost, Bit::GroupLost]);
        if is_answered && entry.stream.has_ended() {
            if entry.stream.retire() {
                return self.forget_stream(number);
            }
            self.wake_stream(number, turn.now.after_ns(FIRST_WAIT_NS));
        }
    }

    /// Makes sure that the stream is served at `due` or earlier.
    fn wake_stream(&mut self, number: StreamNumber, due: Instant) {
        let Some(entry) = self.streams.get_mut(number) else { return };
        if due < entry.timer {
            entry.timer = due;
            self.timers.push(Reverse((due, Timer::Stream(number.0))));
        }
    }

    /// Removes a stream that has ended on this side. Called only when the peer can no longer write
    /// to the receive ring of the stream.
    pub(super) fn forget_stream(&mut self, number: StreamNumber) {
        let Some(entry) = self.streams.remove(number) else { return };
        if let Some(group) = self.groups.get_mut(entry.group) {
            self.deferred.extend(group.remove_stream(number, &entry.rings));
        }
    }

    /// Handles the loss of the group of a stream. If the peer has violated the protocol
    /// (`is_condemned`), the stream breaks. Otherwise the stream returns to TCP.
    pub(super) fn lose_stream(
        &mut self,
        turn: &mut EngineTurn<'_, '_>,
        number: StreamNumber,
        is_condemned: bool,
    ) {
        let Some(entry) = self.streams.get(number) else { return };
        let (stream, connection) = (Arc::clone(&entry.stream), Arc::clone(&entry.connection));
        if !stream.state.has(Bit::Open) {
            stream.on_group_lost_early();
            let is_answered = connection.phase() == Phase::Switching;
            let event =
                if is_condemned && !is_answered { Event::Forgotten } else { Event::GroupLost };
            self.step(turn, connection.token(), event);
            let may_open = matches!(connection.phase(), Phase::Switching | Phase::Unanswered);
            if !may_open && !stream.state.has(Bit::Open) {
                return self.forget_stream(number);
            }
            if is_condemned {
                stream.on_lost();
            }
        } else if is_condemned {
            stream.on_lost();
        } else {
            stream.on_group_lost();
        }
        self.enqueue(number);
    }

    pub(super) fn on_stream_due(&mut self, number: StreamNumber) {
        let Some(entry) = self.streams.get_mut(number) else { return };
        entry.timer = Instant::NEVER;
        self.enqueue(number);
    }

    /// Handles all completions in the queue, and notifies the streams to which they belong.
    pub(super) fn take_completions(&mut self, turn: &mut EngineTurn<'_, '_>) {
        while let Some(completion) = self.queue.poll() {
            self.has_changed = true;
            let handle = ConnectionHandle::of(completion.owner);
            match completion.kind {
                CompletionKind::Notification => {
                    if let Err(error) = self.on_arrived(handle, &completion) {
                        self.condemn(turn, handle, &error);
                    }
                }
                CompletionKind::Receive => self.on_received(turn, handle, &completion),
                _ => self.on_done(turn, handle, &completion),
            }
        }
    }

    /// Handles a notification: the peer has written data to a ring.
    fn on_arrived(
        &mut self,
        handle: ConnectionHandle,
        completion: &Completion,
    ) -> Result<(), Misbehaved> {
        let number = StreamNumber(completion.immediate.unwrap_or_default());
        // The stream may be unknown, because data can be in flight when a stream is reset.
        let Some(entry) = self.streams.of_group(handle, number) else { return Ok(()) };
        let ring = entry.rings.receive;
        let length = completion.bytes;
        let at = completion.value.wrapping_sub(ring.address);
        let ends = at.checked_add(length.into());
        if ends.is_none_or(|ends| ends > ring.bytes.into()) {
            return Err(Misbehaved::Data { at: u32::MAX, length });
        }
        entry.stream.on_arrived(at as u32, length)?;
        self.enqueue(number);
        Ok(())
    }

    /// Handles the completion of an operation.
    fn on_done(
        &mut self,
        turn: &mut EngineTurn<'_, '_>,
        handle: ConnectionHandle,
        completion: &Completion,
    ) {
        turn.exchange.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.round_robin.wake(handle);
        let number = match Context::of_bits(completion.context) {
            Context::Data(number) | Context::Last(number) => number,
            Context::Message | Context::ReceiveBuffer(_) => return,
        };
        // A failed operation ends the group, and the end of the group notifies the streams.
        if completion.result.is_err() {
            return;
        }
        let Some(entry) = self.streams.of_group(handle, number) else { return };
        if completion.kind == CompletionKind::Write {
            entry.stream.on_acknowledged(completion.bytes);
        } else {
            entry.stream.on_end_acknowledged();
        }
        self.enqueue(number);
    }

    //= sockets-protocol.md: message.2, message.4
    /// Handles the completion of a receive buffer. The buffer contains a message.
    fn on_received(
        &mut self,
        turn: &mut EngineTurn<'_, '_>,
        handle: ConnectionHandle,
        completion: &Completion,
    ) {
        let Context::ReceiveBuffer(buffer) = Context::of_bits(completion.context) else { return };
        let Some(group) = self.groups.get(handle) else { return };
        if completion.result.is_err() {
            return;
        }
        let (bytes, length) = group.read_message(buffer, completion.bytes);
        group.post_receive_buffer(turn.engine, turn.memory, buffer);
        let message = Message::decode(bytes.get(..length).unwrap_or_default());
        match message {
            Ok(message) => {
                if let Err(error) = self.on_message(turn, handle, message) {
                    self.condemn(turn, handle, &error);
                }
            }
            Err(error) => self.condemn(turn, handle, &error),
        }
    }

    fn on_message(
        &mut self,
        turn: &mut EngineTurn<'_, '_>,
        handle: ConnectionHandle,
        message: Message,
    ) -> Result<(), Misbehaved> {
        let number = match message {
            Message::Join { token, end } => {
                self.on_join(turn, handle, token, end);
                return Ok(());
            }
            Message::Joined { to, end } => {
                self.on_joined(turn, handle, to, end);
                return Ok(());
            }
            Message::Refused { to, refusal } => {
                self.on_refused(turn, handle, to, refusal);
                return Ok(());
            }
            Message::Credit { to, .. }
            | Message::End { to, .. }
            | Message::Reset { to }
            | Message::Home { to } => to,
        };
        // The stream may be unknown, because messages can be in flight when a stream is reset.
        let Some(entry) = self.streams.of_group(handle, number) else { return Ok(()) };
        match message {
            Message::Credit { consumed, .. } => entry.stream.on_credit(consumed)?,
            Message::End { bytes, .. } => entry.stream.on_end(bytes)?,
            Message::Home { .. } => entry.stream.on_peer_home(),
            _ if entry.open.is_none() => self.on_answer(turn, number, Event::Forgotten),
            _ => entry.stream.on_reset(),
        }
        self.enqueue(number);
        Ok(())
    }
}

/// Returns the message for the peer's stream `to`. Returns `None` for data, because the engine
/// transfers data by remote writes.
const fn message_of(out: Out, to: StreamNumber) -> Option<Message> {
    match out {
        Out::Data { .. } => None,
        Out::Credit(consumed) => Some(Message::Credit { to, consumed }),
        Out::End(bytes) => Some(Message::End { to, bytes }),
        Out::Reset => Some(Message::Reset { to }),
        Out::Home => Some(Message::Home { to }),
    }
}

/// Maximum number of operations that one stream posts before other streams are served. Four
/// operations of 64 KiB fill a ring.
const POSTS_PER_TURN: u32 = 4;
