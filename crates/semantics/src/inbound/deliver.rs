//! Delivery: performs the operations of the peer in the order of their numbers. An operation is
//! performed when all its bytes have arrived.

use wire_edge::{AtomicOpcode, CloseReason, Flags, MessageNumber, RemoteKey};

use mem::{AccessError, MemoryAccess, Rights};

use super::operation::InKind;
use super::{Inbound, Surroundings, Verdict, violation};
use crate::close::close_reason_of;
use crate::pools::Pools;
use crate::slab::NIL;
use work::{Arrival, Completion, CompletionKind};

/// Reason why the next operation cannot be delivered now.
pub(super) enum Stop {
    Stalled,
    Fault(AccessError),
    Peer(CloseReason),
}

/// Data for the target's application that the requester sent with the operation.
#[derive(Clone, Copy)]
pub(super) struct Notice {
    pub(super) flags: Flags,
    pub(super) immediate: Option<u32>,
}

impl Notice {
    const fn is_solicited(self) -> bool {
        self.flags.contains(Flags::SOLICITED)
    }
}

impl From<AccessError> for Stop {
    fn from(error: AccessError) -> Self {
        Self::Fault(error)
    }
}

impl Inbound {
    //= protocol.md: operation.3
    /// Delivers operations in order, until the next operation is incomplete.
    pub(super) fn advance(&mut self, around: &mut Surroundings<'_, '_>) -> Verdict {
        let mut verdict = Verdict::Accepted;
        while self.head != NIL && !self.stalled {
            let slot = self.head;
            let operation = &mut around.pools.incoming[slot];
            let (number, kind) = (operation.number, operation.kind);
            if number != self.expected {
                break;
            }
            if operation.placed_early {
                operation.placed_early = false;
                self.placed_early -= 1;
            }
            match self.advance_one(around, slot) {
                Ok(true) => {
                    self.close_head(around.pools);
                    self.expected = number.next();
                    continue;
                }
                Ok(false) => {}
                Err(Stop::Stalled) => self.stalled = true,
                Err(Stop::Fault(error)) => verdict = self.fault(kind, error, number),
                Err(Stop::Peer(reason)) => verdict = violation(reason, number),
            }
            break;
        }
        verdict
    }

    //= protocol.md: notify.2
    /// Places the held bytes of the first undelivered operation that may be placed now. If the
    /// operation is complete, delivers it. Returns whether the operation was delivered.
    fn advance_one(&mut self, around: &mut Surroundings<'_, '_>, slot: u32) -> Result<bool, Stop> {
        let operation = &around.pools.incoming[slot];
        let complete = operation.is_complete(&around.pools.received[slot as usize]);
        let kind = operation.kind;
        let notice = Notice { flags: operation.flags, immediate: operation.immediate };
        let length = operation.total.unwrap_or(0);
        // A fenced operation places its held bytes when all earlier operations are delivered. If
        // the operation is strict, its tail still waits until its other bytes have arrived.
        let places = complete || operation.flags.contains(Flags::FENCE_BEFORE);
        if places && !operation.held.is_empty() {
            self.place_held(around.memory, around.pools, slot, complete)?;
        }
        if complete {
            self.deliver(around, kind, notice, length)?;
        }
        Ok(complete)
    }

    //= protocol.md: answer.1, answer.14, notify.1
    /// Performs an operation whose bytes are all placed.
    pub(super) fn deliver(
        &mut self,
        around: &mut Surroundings<'_, '_>,
        kind: InKind,
        notice: Notice,
        length: u32,
    ) -> Result<(), Stop> {
        match kind {
            InKind::Write { base, .. } | InKind::Patch { address: base, .. } => {
                if notice.immediate.is_none() {
                    return Ok(());
                }
                if self.queue_pair {
                    let message = self.next_message;
                    let value = Completion::OF_WRITE;
                    return self.consume(around.pools, message, notice, length, value);
                }
                let notification = Completion {
                    context: 0,
                    owner: self.owner,
                    kind: CompletionKind::Notification,
                    result: Ok(()),
                    bytes: length,
                    immediate: notice.immediate,
                    solicited: notice.is_solicited(),
                    value: base,
                };
                if self.outlet.offer(&mut around.pools.notices, &notification) {
                    Ok(())
                } else {
                    Err(Stop::Stalled)
                }
            }
            InKind::Send { message, ends_key: false } => {
                self.consume(around.pools, message, notice, length, 0)
            }
            InKind::Send { message, ends_key: true } => {
                let key = self.end_key(around.memory, notice.immediate)?;
                let notice = Notice { immediate: None, ..notice };
                self.consume(around.pools, message, notice, length, u64::from(key.0))
            }
            InKind::Read { key, address, length } => {
                if !self.may_answer(around) {
                    return Err(Stop::Stalled);
                }
                if length == 0 {
                    around.outbound.answer_no_bytes(around.pools, self.expected);
                    return Ok(());
                }
                let wanted = u64::from(length);
                let target =
                    self.reach(around.memory, key, address, wanted, Rights::REMOTE_READ)?;
                around.outbound.answer_read(around.pools, self.expected, target, length);
                Ok(())
            }
            InKind::Atomic { opcode, key, address, operand, compare } => {
                if !self.may_answer(around) {
                    return Err(Stop::Stalled);
                }
                let target = self.reach(around.memory, key, address, 8, Rights::REMOTE_ATOMIC)?;
                let value = match opcode {
                    AtomicOpcode::FetchAdd => around.memory.fetch_add(&target, operand)?,
                    AtomicOpcode::CompareSwap => {
                        around.memory.compare_swap(&target, compare, operand)?
                    }
                    AtomicOpcode::Swap => around.memory.swap(&target, operand)?,
                };
                around.outbound.answer_atomic(around.pools, self.expected, value);
                Ok(())
            }
        }
    }

    //= protocol.md: invalidate.1, invalidate.2
    /// Invalidates the memory window whose key a message names. The message is the first
    /// undelivered operation.
    #[cold]
    fn end_key(&self, memory: &MemoryAccess<'_>, key: Option<u32>) -> Result<RemoteKey, Stop> {
        let key = RemoteKey(key.ok_or(Stop::Peer(CloseReason::ProtocolViolation))?);
        match memory.invalidate(self.domain, self.owner.bits(), key) {
            Ok(_) => Ok(key),
            Err(error) => Err(Stop::Peer(close_reason_of(error))),
        }
    }

    //= protocol.md: message.1, consume.1, consume.2, shared.4
    /// Completes the receive of `message`.
    fn consume(
        &mut self,
        pools: &mut Pools,
        message: MessageNumber,
        notice: Notice,
        length: u32,
        value: u64,
    ) -> Result<(), Stop> {
        let receive = match self.receives.as_mut().and_then(|receives| receives.pop(message)) {
            Some(receive) => receive,
            None => self.receive_in_turn(pools, message)?,
        };
        pools.forget(receive.destination);
        pools.note_room(self.owner);
        self.next_message = message.next();
        if receive.status != NIL {
            pools.arrive(receive.status, Arrival { bytes: length, immediate: notice.immediate });
            return Ok(());
        }
        let completion = Completion {
            context: receive.context,
            owner: self.owner,
            kind: CompletionKind::Receive,
            result: Ok(()),
            bytes: length,
            immediate: notice.immediate,
            solicited: notice.is_solicited(),
            value,
        };
        self.outlet.complete(&mut pools.notices, &completion);
        Ok(())
    }

    //= protocol.md: answer.6
    /// Returns whether this side may begin another answer. The first answer of a connection is
    /// always allowed. Otherwise peers that never acknowledge answers could block other
    /// connections.
    fn may_answer(&self, around: &Surroundings<'_, '_>) -> bool {
        let own = around.outbound.answering();
        own < u32::from(self.limits.read_depth)
            && (own == 0 || Pools::grants_another(own, around.pools.responses.room()))
    }
}
