//! Flushes the posted work of a queue pair that the device has not carried out.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use work::{Completion, CompletionKind, CompletionStatus};

use super::modify::has_send_queue_error;
use super::{QueuePair, lock};
use crate::async_event::AsyncEventKind;
use crate::attributes::{QueuePairState as State, Strictness};
use crate::provider::Ending;
use crate::services::QueuePairType;
use crate::work_request::{CompletionOpcode, SendOpcode, WorkCompletion};

/// One of the two work queues of a queue pair.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Side {
    /// The queue of sends.
    Send,
    /// The queue of receives.
    Receive,
}

/// How the connection of a queue pair has ended, and which events the queue pair has raised.
#[derive(Debug, Default)]
pub(super) struct End {
    /// Whether the connection has ended. If so, the device adds no more completions of this queue
    /// pair.
    has_ended: AtomicBool,
    /// Whether the connection ended because the peer closed it or does not answer. If so, only
    /// those sends fail that the peer has not carried out.
    is_lost: AtomicBool,
    /// Number of the first send that was not carried out, plus one. 0 if no completion from the
    /// device has reported such a send.
    first_flushed: AtomicU64,
    /// The number of the send that has failed, if one has, and the status that its completion gets.
    failure: Mutex<Option<(u64, CompletionStatus)>>,
    /// Whether the queue pair is in the list of work to flush of a completion queue. There is one
    /// flag for each [`Side`].
    is_listed: [AtomicBool; 2],
    /// Whether the queue pair is in SQD or SQE and none of its sends is in flight.
    is_drained: AtomicBool,
    /// Whether the program has requested an event for the end of draining.
    wants_event: AtomicBool,
    /// Whether the queue pair has raised `LastReceiveReached` for its shared receive queue.
    has_reported_last: AtomicBool,
    /// Whether the queue pair has raised `CommunicationEstablished` for a message that arrived
    /// before RTS.
    has_reported_established: AtomicBool,
    /// Whether the queue pair has raised `QueuePairFatal` for an overrun completion queue.
    has_reported_overrun: AtomicBool,
}

impl End {
    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::SeqCst)
    }

    pub(super) fn set_over(&self) {
        self.has_ended.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_drained(&self) -> bool {
        self.is_drained.load(Ordering::SeqCst)
    }

    pub(super) fn begin_draining(&self, wants_event: bool) {
        self.is_drained.store(false, Ordering::SeqCst);
        self.wants_event.store(wants_event, Ordering::SeqCst);
    }

    pub(super) fn forget_draining(&self) {
        self.is_drained.store(false, Ordering::SeqCst);
        self.wants_event.store(false, Ordering::SeqCst);
    }

    pub(super) fn forget_failure(&self) {
        self.forget_draining();
        self.first_flushed.store(0, Ordering::SeqCst);
        *lock(&self.failure) = None;
    }

    pub(super) fn clear(&self) {
        self.forget_failure();
        self.has_ended.store(false, Ordering::SeqCst);
        self.is_lost.store(false, Ordering::SeqCst);
        self.has_reported_last.store(false, Ordering::SeqCst);
        self.has_reported_established.store(false, Ordering::SeqCst);
        self.has_reported_overrun.store(false, Ordering::SeqCst);
    }

    fn mark(&self, number: u64) {
        // Completions arrive in order, so the first number that is reported as flushed is the
        // lowest one.
        let unknown = self.first_flushed.load(Ordering::SeqCst) == 0;
        if unknown {
            self.first_flushed.store(number + 1, Ordering::SeqCst);
        }
    }
}

impl QueuePair {
    /// Translates a completion from the device. Returns the completion for the program, or `None`
    /// if the program receives none. If the program can now also receive completions that had to
    /// wait for this one, appends them to `more`. The caller holds the poll lock of the completion
    /// queue.
    #[inline]
    pub(crate) fn on_completion(
        &self,
        completion: &Completion,
        more: &mut VecDeque<WorkCompletion>,
    ) -> Option<WorkCompletion> {
        if completion.kind == CompletionKind::Receive {
            return self.on_receive_completion(completion);
        }
        let number = completion.context;
        if !self.sends.is_outstanding(number) {
            return None;
        }
        let status = completion.status();
        if self.service == QueuePairType::Datagram {
            return self.on_datagram_completion(number, status, more);
        }
        if is_mark(status) {
            self.end.mark(number);
            return None;
        }
        let id = self.sends.id(number);
        self.sends.retire_to(number + 1);
        if status != CompletionStatus::Success {
            self.on_send_failed();
        }
        Some(WorkCompletion {
            id,
            status,
            opcode: opcode_of(completion.kind),
            bytes: completion.bytes,
            queue_pair: self.number,
            ..WorkCompletion::NOTHING
        })
    }

    /// Handles the completion of a datagram. Datagrams on different links complete in any order,
    /// but the program must receive completions in the order of posting.
    fn on_datagram_completion(
        &self,
        number: u64,
        status: CompletionStatus,
        more: &mut VecDeque<WorkCompletion>,
    ) -> Option<WorkCompletion> {
        if is_mark(status) {
            return None;
        }
        self.sends.slot(number)?.outcome = Some(status);
        if status != CompletionStatus::Success {
            self.on_send_failed();
        }
        let mut first = None;
        loop {
            match (self.retire_datagram(), first) {
                (Retired::Nothing, _) => return first,
                (Retired::Quietly, _) => {}
                (Retired::Reported(completion), None) => first = Some(completion),
                (Retired::Reported(completion), Some(_)) => more.push_back(completion),
            }
        }
    }

    /// Retires the oldest send of a datagram queue pair if its status is known: the send no longer
    /// occupies a place in the send queue.
    fn retire_datagram(&self) -> Retired {
        let number = self.sends.retired();
        let slot = (number < self.sends.posted()).then(|| self.sends.slot(number)).flatten();
        let Some((status, is_wanted)) =
            slot.and_then(|slot| slot.outcome.map(|status| (status, slot.is_reported)))
        else {
            return Retired::Nothing;
        };
        let id = self.sends.id(number);
        self.sends.retire_to(number + 1);
        if status == CompletionStatus::Success && !is_wanted {
            if self.strictness() == Strictness::Strict {
                self.sends.hold_place();
            }
            return Retired::Quietly;
        }
        self.sends.release_places();
        let queue_pair = self.number;
        Retired::Reported(WorkCompletion { id, status, queue_pair, ..WorkCompletion::NOTHING })
    }

    fn on_receive_completion(&self, completion: &Completion) -> Option<WorkCompletion> {
        let status = completion.status();
        let number = completion.context;
        let id = if let Some(shared) = &self.shared {
            shared.retire(number)
        } else {
            if !self.receives.is_outstanding(number) || is_mark(status) {
                return None;
            }
            let id = self.receives.id(number);
            self.receives.retire_to(number + 1);
            id
        };
        let is_datagram = self.service == QueuePairType::Datagram;
        if status == CompletionStatus::Success {
            self.report_established();
        } else {
            self.fail();
            if is_datagram {
                // A connected queue pair flushes its sends when the connection ends. A datagram
                // queue pair has no connection, so the device drains the sends instead.
                self.with_wire(|wire| wire.drain());
            }
        }
        let opcode = if completion.is_of_write() {
            CompletionOpcode::ReceiveOfWrite
        } else {
            CompletionOpcode::Receive
        };
        let invalidated = completion.invalidated().filter(|_| !is_datagram);
        Some(WorkCompletion {
            id,
            status,
            opcode,
            bytes: completion.bytes,
            immediate: completion.immediate,
            invalidated: invalidated.map(|key| key.0),
            queue_pair: self.number,
            source: if is_datagram { completion.value as u32 } else { 0 },
            has_route_header: is_datagram,
            is_solicited: completion.solicited,
            at_ns: 0,
        })
    }

    /// Raises an event for the first message from the peer if the program has not yet moved the
    /// queue pair to RTS.
    #[inline]
    fn report_established(&self) {
        if self.state() == State::ReadyToReceive
            && self.service != QueuePairType::Datagram
            && !self.end.has_reported_established.swap(true, Ordering::SeqCst)
        {
            self.raise(AsyncEventKind::CommunicationEstablished);
        }
    }

    /// Handles a send whose completion has an error.
    #[cold]
    fn on_send_failed(&self) {
        if has_send_queue_error(self.service) {
            self.end.begin_draining(false);
            if self.enter_if(State::ReadyToSend, State::SendQueueError) {
                self.with_wire(|wire| wire.drain());
            }
        } else {
            self.fail();
        }
    }

    /// Fails the send with this number, which is the oldest untaken send, because the device cannot
    /// carry it out.
    pub(super) fn fail_send(&self, number: u64, status: CompletionStatus) {
        if has_send_queue_error(self.service) {
            self.sends.take_to(number + 1);
            self.end.begin_draining(false);
            self.enter_if(State::ReadyToSend, State::SendQueueError);
        } else {
            *lock(&self.end.failure) = Some((number, status));
            self.end.mark(number);
            self.sends.take_to(number + 1);
            self.fail();
            self.flush_if_over();
        }
    }

    /// Moves the queue pair to ERR. Has no effect in RESET and ERR.
    fn fail(&self) {
        for from in [
            State::Init,
            State::ReadyToReceive,
            State::ReadyToSend,
            State::SendQueueDrained,
            State::SendQueueError,
        ] {
            self.enter_if(from, State::Error);
        }
    }

    pub(super) fn enter_if(&self, from: State, to: State) -> bool {
        let (from, to) = (from as u8, to as u8);
        self.state.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Makes a transition that the program asked for. Has no effect if the state is no longer
    /// `from`, because the queue pair has failed in the meantime.
    pub(super) fn enter_unless_failed(&self, from: State, to: State) {
        self.enter_if(from, to);
    }

    /// Handles the end of the queue pair's connection, which the device has reported.
    pub(super) fn end_connection(&self, ending: Ending) {
        if self.state() == State::Reset {
            return;
        }
        if matches!(ending, Ending::ByPeer | Ending::Unreachable) {
            self.end.is_lost.store(true, Ordering::SeqCst);
            self.end.set_over();
            self.on_lost();
            return;
        }
        self.fail();
        self.end.set_over();
        match ending {
            Ending::PeerMisbehaved => self.raise(AsyncEventKind::RequestError),
            Ending::AccessRefused => self.raise(AsyncEventKind::AccessError),
            Ending::Overrun => {
                for queue in [&self.send_queue, &self.receive_queue] {
                    queue.report_if_overrun();
                }
                self.report_overrun();
            }
            Ending::DeviceFailed => self.raise(AsyncEventKind::QueuePairFatal),
            Ending::ByPeer | Ending::Unreachable | Ending::Flushed | Ending::OperationFailed => {}
        }
        self.begin_flush();
    }

    /// Moves the queue pair to ERR, because one of its completion queues has overrun. The caller
    /// must be outside the engine.
    pub(crate) fn fail_by_overrun(&self) {
        if matches!(self.state(), State::Reset | State::Error) {
            return;
        }
        self.fail();
        self.report_overrun();
        // The lock is not free in two cases. Another thread may be in a call that modifies the
        // queue pair, or this thread may be in such a call, and the call has caused the overrun. In
        // both cases, that call closes the connection itself, or finds the queue pair in ERR.
        let Ok(_one_at_a_time) = self.modifying.try_lock() else { return };
        if self.state() == State::Error && !self.end.has_ended() {
            self.close_in_error();
            self.begin_flush();
        }
    }

    fn report_overrun(&self) {
        if !self.end.has_reported_overrun.swap(true, Ordering::SeqCst) {
            self.raise(AsyncEventKind::QueuePairFatal);
        }
    }

    /// Handles the loss of the peer. The loss is an error only if at least one send was not carried
    /// out by the peer. This can be decided only after all completions were dequeued, so the queue
    /// pair is added to the lists of its completion queues. When the program polls one of these
    /// queues, the queue decides.
    fn on_lost(&self) {
        if self.state() == State::Error {
            self.begin_flush();
        } else if self.sends.posted() > self.sends.retired() {
            self.list(Side::Send, true);
            self.list(Side::Receive, false);
        }
    }

    /// Begins to flush all posted work if the state allows this. The state allows it in SQE, and in
    /// ERR after the connection has ended.
    pub(super) fn flush_if_over(&self) {
        if self.end.has_ended() || self.state() == State::SendQueueError {
            self.begin_flush();
        }
    }

    /// Adds the queue pair to the lists of its completion queues. When the program polls, these
    /// queues flush all work that is not complete.
    pub(super) fn begin_flush(&self) {
        if self.sends.posted() > self.sends.retired() {
            self.list(Side::Send, true);
        }
        if self.receives.posted() > self.receives.retired() {
            self.list(Side::Receive, true);
        }
        if self.shared.is_some()
            && self.state() == State::Error
            && !self.end.has_reported_last.swap(true, Ordering::SeqCst)
        {
            self.raise(AsyncEventKind::LastReceiveReached);
        }
    }

    /// Adds the queue pair to its completion queue's list of work to flush. If `fires` is true,
    /// also raises the completion event.
    pub(super) fn list(&self, side: Side, fires: bool) {
        let queue = self.queue_of(side);
        if !self.end.is_listed[side as usize].swap(true, Ordering::SeqCst)
            && let Some(this) = self.this.upgrade()
        {
            queue.add_flushing(this, side);
        }
        if fires {
            queue.fire();
        }
    }

    pub(super) const fn queue_of(
        &self,
        side: Side,
    ) -> &std::sync::Arc<crate::completion_queue::CompletionQueue> {
        match side {
            Side::Send => &self.send_queue,
            Side::Receive => &self.receive_queue,
        }
    }

    /// Handles the removal of the queue pair from a completion queue's list.
    pub(crate) fn on_unlisted(&self, side: Side) {
        self.end.is_listed[side as usize].store(false, Ordering::SeqCst);
        let (ring_posted, ring_retired) = match side {
            Side::Send => (self.sends.posted(), self.sends.retired()),
            Side::Receive => (self.receives.posted(), self.receives.retired()),
        };
        // If a thread posted work before the flag was cleared, that thread found the queue pair
        // listed and did not list it again. List the queue pair here, so that this work is flushed.
        let is_due = self.can_flush(side) || side == Side::Send && self.is_unsettled();
        if ring_posted > ring_retired && is_due {
            self.list(side, false);
        }
    }

    fn can_flush(&self, side: Side) -> bool {
        match self.state() {
            State::Error => self.end.has_ended(),
            // Sends in flight must complete before other sends are flushed.
            State::SendQueueError => side == Side::Send && self.end.is_drained(),
            _ => false,
        }
    }

    /// Flushes work: writes its completions to `out`, oldest first, and returns the number of
    /// completions written. The caller holds the poll lock of the completion queue. This queue pair
    /// was listed, and after that the caller found no completion from the device in that queue.
    pub(crate) fn flush(&self, side: Side, out: &mut [WorkCompletion]) -> usize {
        if !self.can_flush(side) {
            return 0;
        }
        match side {
            Side::Send => self.flush_sends(out),
            Side::Receive => self.flush_receives(out),
        }
    }

    /// Returns the number of completions that a flush would write. The caller holds the poll lock
    /// of the completion queue.
    pub(crate) fn flushable(&self, side: Side) -> usize {
        if !self.can_flush(side) {
            return 0;
        }
        let count = match side {
            Side::Receive => self.receives.posted() - self.receives.retired(),
            Side::Send if self.service == QueuePairType::Datagram => {
                let is_for_program = |number: &u64| {
                    let slot = self.sends.slot(*number);
                    slot.is_some_and(|slot| {
                        slot.outcome != Some(CompletionStatus::Success) || slot.is_reported
                    })
                };
                (self.sends.retired()..self.sends.posted()).filter(is_for_program).count() as u64
            }
            Side::Send => {
                let first = self.first_flushed().max(self.sends.retired());
                self.sends.posted().saturating_sub(first)
            }
        };
        count as usize
    }

    /// Returns whether the program receives this completion from the device.
    pub(crate) fn is_for_program(&self, completion: &Completion) -> bool {
        let status = completion.status();
        if completion.kind == CompletionKind::Receive {
            return self.shared.is_some() || !is_mark(status);
        }
        if is_mark(status) {
            return false;
        }
        let is_reported =
            || self.sends.slot(completion.context).is_some_and(|slot| slot.is_reported);
        self.service != QueuePairType::Datagram
            || status != CompletionStatus::Success
            || is_reported()
    }

    fn flush_sends(&self, out: &mut [WorkCompletion]) -> usize {
        if self.service == QueuePairType::Datagram {
            return self.flush_datagrams(out);
        }
        let failure = *lock(&self.end.failure);
        let start = self.first_flushed();
        if start > self.sends.retired() {
            self.sends.retire_to(start);
        }
        let mut count = 0;
        for place in out {
            let number = self.sends.retired();
            if number >= self.sends.posted() {
                break;
            }
            let status = match failure {
                Some((failed, status)) if failed == number => status,
                _ => CompletionStatus::Flushed,
            };
            let opcode = self
                .sends
                .slot(number)
                .map_or(CompletionOpcode::Send, |slot| of_send(&slot.opcode));
            let id = self.sends.id(number);
            *place = WorkCompletion {
                id,
                status,
                opcode,
                queue_pair: self.number,
                ..WorkCompletion::NOTHING
            };
            self.sends.retire_to(number + 1);
            if self.sends.taken() <= number {
                self.sends.take_to(number + 1);
            }
            count += 1;
        }
        count
    }

    fn flush_datagrams(&self, out: &mut [WorkCompletion]) -> usize {
        let mut count = 0;
        while let Some(place) = out.get_mut(count) {
            let number = self.sends.retired();
            if number >= self.sends.posted() {
                break;
            }
            *place = match self.retire_datagram() {
                Retired::Reported(completion) => completion,
                Retired::Quietly => continue,
                Retired::Nothing => {
                    let (id, status) = (self.sends.id(number), CompletionStatus::Flushed);
                    self.sends.retire_to(number + 1);
                    self.sends.release_places();
                    self.sends.take_to(self.sends.taken().max(number + 1));
                    let queue_pair = self.number;
                    WorkCompletion { id, status, queue_pair, ..WorkCompletion::NOTHING }
                }
            };
            count += 1;
        }
        count
    }

    fn flush_receives(&self, out: &mut [WorkCompletion]) -> usize {
        let mut count = 0;
        for place in out {
            let number = self.receives.retired();
            if number >= self.receives.posted() {
                break;
            }
            *place = WorkCompletion {
                id: self.receives.id(number),
                status: CompletionStatus::Flushed,
                opcode: CompletionOpcode::Receive,
                queue_pair: self.number,
                ..WorkCompletion::NOTHING
            };
            self.receives.retire_to(number + 1);
            count += 1;
        }
        count
    }

    /// Returns the number of the first send that was not carried out. If no completion has reported
    /// such a send, this is the first send that the device has not taken, because all taken sends
    /// were carried out.
    fn first_flushed(&self) -> u64 {
        match self.end.first_flushed.load(Ordering::SeqCst) {
            0 => self.sends.taken(),
            more => more - 1,
        }
    }

    /// Returns whether the peer was lost, and it is not yet decided which sends the peer has
    /// carried out.
    pub(crate) fn is_unsettled(&self) -> bool {
        let is_open = matches!(self.state(), State::ReadyToSend | State::SendQueueDrained);
        is_open && self.end.is_lost.load(Ordering::SeqCst)
    }

    /// If the peer was lost, decides which sends it has carried out. If another thread is polling
    /// the completion queue of sends, this function decides nothing, and a later call decides.
    pub(super) fn settle(&self) {
        if self.is_unsettled() {
            self.send_queue.settle(self);
        }
    }

    /// If at least one send was not carried out by the lost peer, fails the oldest of these sends.
    /// The caller holds the poll lock of the completion queue of sends, and has dequeued all
    /// completions of sends.
    pub(crate) fn decide(&self) {
        let mut failure = lock(&self.end.failure);
        if !self.is_unsettled() {
            return;
        }
        let start = self.first_flushed();
        self.sends.retire_to(start.max(self.sends.retired()));
        if start >= self.sends.posted() {
            return;
        }
        *failure = Some((start, CompletionStatus::TransportRetryExceeded));
        drop(failure);
        self.fail();
        self.begin_flush();
    }

    /// Ends draining in SQD or SQE, because no send is in flight any more.
    pub(super) fn end_draining(&self) {
        self.end.is_drained.store(true, Ordering::SeqCst);
        match self.state() {
            State::SendQueueDrained if self.end.wants_event.swap(false, Ordering::SeqCst) => {
                self.raise(AsyncEventKind::SendQueueDrained);
            }
            State::SendQueueError => self.begin_flush(),
            _ => {}
        }
    }

    /// Drops all posted work, and reports no completions for it. The caller has closed the `Wire`,
    /// and no other thread can post.
    pub(super) fn purge(&self) {
        self.send_queue.purge(self);
        if !std::sync::Arc::ptr_eq(&self.send_queue, &self.receive_queue) {
            self.receive_queue.purge(self);
        }
        for listed in &self.end.is_listed {
            listed.store(false, Ordering::SeqCst);
        }
        self.sends.clear();
        self.receives.clear();
    }
}

/// Outcome of an attempt to retire the oldest send of a datagram queue pair.
enum Retired {
    /// No send was retired: the oldest send has no status yet, or there is no send.
    Nothing,
    /// The send was retired without a completion, because the program did not ask for one.
    Quietly,
    /// The send was retired with this completion for the program.
    Reported(WorkCompletion),
}

/// Returns whether a completion from the device with this status only marks where flushed work
/// begins. The device reports such a status for work that it did not carry out because the
/// connection had ended. The program does not receive such a completion.
const fn is_mark(status: CompletionStatus) -> bool {
    matches!(
        status,
        CompletionStatus::Flushed
            | CompletionStatus::TransportRetryExceeded
            | CompletionStatus::General
    )
}

const fn opcode_of(kind: CompletionKind) -> CompletionOpcode {
    match kind {
        // A queue pair posts no patches.
        CompletionKind::Write | CompletionKind::Patch => CompletionOpcode::Write,
        CompletionKind::Read => CompletionOpcode::Read,
        CompletionKind::FetchAdd => CompletionOpcode::FetchAdd,
        // A queue pair posts no swaps.
        CompletionKind::CompareSwap | CompletionKind::Swap => CompletionOpcode::CompareSwap,
        CompletionKind::BindWindow => CompletionOpcode::BindWindow,
        CompletionKind::Invalidate => CompletionOpcode::LocalInvalidate,
        CompletionKind::Receive => CompletionOpcode::Receive,
        CompletionKind::Send | CompletionKind::Notification => CompletionOpcode::Send,
    }
}

const fn of_send(opcode: &SendOpcode) -> CompletionOpcode {
    match opcode {
        SendOpcode::Write { .. } => CompletionOpcode::Write,
        SendOpcode::Read { .. } => CompletionOpcode::Read,
        SendOpcode::Send { .. } | SendOpcode::SendInvalidate { .. } => CompletionOpcode::Send,
        SendOpcode::FetchAdd { .. } => CompletionOpcode::FetchAdd,
        SendOpcode::CompareSwap { .. } => CompletionOpcode::CompareSwap,
        SendOpcode::BindWindow { .. } => CompletionOpcode::BindWindow,
        SendOpcode::LocalInvalidate { .. } => CompletionOpcode::LocalInvalidate,
    }
}
