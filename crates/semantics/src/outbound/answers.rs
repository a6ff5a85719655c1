//! Answers of this side to the peer's reads and atomics.

use mem::Target;
use wire_edge::OperationNumber;

use super::{Carried, Outbound};
use crate::pools::Pools;
use crate::slab::NIL;

/// An answer of which some bytes are not acknowledged.
#[derive(Debug)]
pub(crate) struct Response {
    pub(super) connection: u32,
    /// Number of the peer's operation to which this is the answer.
    pub(super) number: OperationNumber,
    pub(super) next: u32,
    pub(super) content: Content,
    pub(super) length: u32,
    pub(super) sent: u32,
    acknowledged: u32,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Content {
    /// The answer to a read of length 0, which accesses no region.
    NoBytes,
    Read(Target),
    Atomic(u64),
}

impl Outbound {
    /// Queues the answer to read `number`. The caller has checked that a record is free.
    pub(crate) fn answer_read(
        &mut self,
        pools: &mut Pools,
        number: OperationNumber,
        target: Target,
        length: u32,
    ) {
        self.answer(pools, number, Content::Read(target), length);
    }

    /// Queues the answer to read `number`, which has length 0. The caller has checked that a record
    /// is free.
    pub(crate) fn answer_no_bytes(&mut self, pools: &mut Pools, number: OperationNumber) {
        self.answer(pools, number, Content::NoBytes, 0);
    }

    /// Queues the answer to atomic `number`. The caller has checked that a record is free.
    pub(crate) fn answer_atomic(&mut self, pools: &mut Pools, number: OperationNumber, value: u64) {
        self.answer(pools, number, Content::Atomic(value), 0);
    }

    pub(super) fn own_answer<'a>(
        &self,
        pools: &'a mut Pools,
        carried: &Carried,
    ) -> Option<&'a mut Response> {
        let response = pools.responses.get_mut(carried.slot)?;
        let own = response.connection == self.owner.index() && response.number == carried.number;
        own.then_some(response)
    }

    //= protocol.md: answer.5
    /// Adds the bytes of a fragment to the acknowledged bytes of its answer. When all bytes of the
    /// answer are acknowledged, frees the answer.
    ///
    /// At any time, each byte is in exactly one packet or one queued retransmission. Therefore each
    /// byte is added once, and no packet refers to a freed answer.
    pub(super) fn on_answer_acknowledged(&mut self, pools: &mut Pools, carried: Carried) {
        let Some(response) = self.own_answer(pools, &carried) else { return };
        response.acknowledged += u32::from(carried.length);
        if response.acknowledged < response.length {
            return;
        }
        let next = response.next;
        self.unlink_answer(pools, carried.slot, next);
        pools.responses.remove(carried.slot);
        self.answering -= 1;
    }

    //= protocol.md: fault.3
    /// Abandons the answer to the peer's request `from` and the answers to all later requests.
    /// After this call, no fragments of these answers are sent.
    pub fn abandon_answers(&mut self, pools: &mut Pools, from: OperationNumber) {
        let is_kept = |slot: u32| {
            pools.responses.get(slot).is_some_and(|answer| answer.number.since(from) < 0)
        };
        let cursor_stays = is_kept(self.answer_cursor);
        let (mut kept, mut next) = (NIL, self.answer_head);
        while is_kept(next) {
            (kept, next) = (next, pools.responses[next].next);
        }
        if kept == NIL {
            self.answer_head = NIL;
        } else {
            pools.responses[kept].next = NIL;
        }
        self.answer_tail = kept;
        if !cursor_stays {
            self.answer_cursor = NIL;
        }
        while next != NIL {
            let answer = pools.responses.remove(next);
            let unsent = u64::from(answer.length.max(1) - answer.sent);
            self.backlog_bytes = self.backlog_bytes.saturating_sub(unsent);
            self.answering -= 1;
            next = answer.next;
        }
    }

    pub(super) fn flush_answers(&mut self, pools: &mut Pools) {
        while self.answer_head != NIL {
            let response = pools.responses.remove(self.answer_head);
            self.answer_head = response.next;
        }
        self.answer_cursor = NIL;
        self.answer_tail = NIL;
        self.answering = 0;
    }

    //= protocol.md: length.6, answer.5
    fn answer(
        &mut self,
        pools: &mut Pools,
        number: OperationNumber,
        content: Content,
        length: u32,
    ) {
        let response = Response {
            connection: self.owner.index(),
            number,
            next: NIL,
            content,
            length,
            sent: 0,
            acknowledged: 0,
        };
        pools.answers_begun += 1;
        let slot = pools.responses.insert_growing(response);
        if self.answer_tail == NIL {
            self.answer_head = slot;
        } else {
            pools.responses[self.answer_tail].next = slot;
        }
        self.answer_tail = slot;
        if self.answer_cursor == NIL {
            self.answer_cursor = slot;
        }
        self.answering += 1;
        self.backlog_bytes += u64::from(length.max(1));
    }

    /// Removes an answer from the list. The search is short, because answers finish almost in
    /// order.
    fn unlink_answer(&mut self, pools: &mut Pools, slot: u32, next: u32) {
        if self.answer_head == slot {
            self.answer_head = next;
            if next == NIL {
                self.answer_tail = NIL;
            }
            return;
        }
        let mut before = self.answer_head;
        while before != NIL && pools.responses[before].next != slot {
            before = pools.responses[before].next;
        }
        assert!(before != NIL, "an acknowledged answer is in the list of its connection");
        pools.responses[before].next = next;
        if self.answer_tail == slot {
            self.answer_tail = before;
        }
    }
}
