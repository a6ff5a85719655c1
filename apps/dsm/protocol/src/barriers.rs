//! The barrier of all threads: dissemination in `log2(nodes)` rounds, without a manager.

use crate::barrier_state::{Phase, Slot};
use crate::clock::Clock;
use crate::config::Coherence;
use crate::error::{Failure, Fault, Misuse};
use crate::identity::{Rank, ThreadNumber};
use crate::layout::{Layout, SLOT_WORDS};
use crate::memory::Host;
use crate::node::Node;
use crate::node_state::{AfterAcquire, AfterInterval, Pending, Stage};
use crate::page_table::State;
use crate::planted::{Planted, is_planted};
use crate::transport::{Area, Operation};

/// The first byte of the notification of a barrier slot.
const NOTIFICATION: u32 = 0xb1;

impl Node {
    /// Returns the number of rounds: the least `r` for which `2^r` is not below the number of nodes.
    fn rounds(&self) -> u32 {
        let rounds = u32::from(self.config.nodes).next_power_of_two().ilog2();
        rounds - u32::from(is_planted(Planted::LeavesRoundOut) && rounds > 0)
    }

    /// Handles a thread that arrives at the barrier of all threads.
    pub(crate) fn arrive(
        &mut self,
        host: &mut dyn Host,
        thread: ThreadNumber,
        address: u64,
        count: u32,
    ) -> Result<(), Failure> {
        if !self.barrier.waiting.is_empty() && self.barrier.address != address {
            self.finish(thread, Err(Misuse::OtherCount(address).into()));
            return Ok(());
        }
        self.barrier.address = address;
        self.barrier.count = u64::from(count);
        self.barrier.waiting.push(thread);
        self.set_stage(thread, Stage::Barrier);
        if self.barrier.waiting.len() == self.threads.len() {
            self.barrier.phase = Phase::Draining;
        }
        self.advance_barrier(host)
    }

    //= dsm-protocol.md: barrier.1
    /// Does what the barrier waits for, if it can be done now. Called after each arrival.
    pub(crate) fn advance_barrier(&mut self, host: &mut dyn Host) -> Result<(), Failure> {
        loop {
            match self.barrier.phase {
                Phase::Draining if self.fetches.is_empty() => {
                    self.barrier.phase = Phase::Flushing;
                    self.end_interval(host, AfterInterval::EnterBarrier);
                }
                Phase::Rounds | Phase::RoundsOfMoves => {
                    if !self.do_round(host)? {
                        return Ok(());
                    }
                }
                _ => return Ok(()),
            }
        }
    }

    /// Begins the rounds: the interval has ended.
    pub(crate) fn enter_barrier(&mut self, host: &mut dyn Host) {
        let movers = self.write_moves(host);
        self.begin_rounds(Phase::Rounds, movers);
    }

    pub(crate) fn begin_rounds(&mut self, phase: Phase, movers: u64) {
        let barrier = &mut self.barrier;
        barrier.phase = phase;
        barrier.round = 0;
        barrier.is_sent = false;
        barrier.movers = movers;
        barrier.clock = self.clock.clone();
    }

    //= dsm-protocol.md: barrier.2
    /// Takes one step of the rounds. Returns whether there was one to take.
    fn do_round(&mut self, host: &mut dyn Host) -> Result<bool, Failure> {
        let (round, sequence) = (self.barrier.round, self.barrier.sequence);
        if round >= self.rounds() {
            self.barrier.phase = match self.barrier.phase {
                Phase::RoundsOfMoves => Phase::Moving,
                _ => Phase::Applying,
            };
            if self.barrier.phase == Phase::Moving {
                self.end_moves(host);
            } else {
                let clock = self.barrier.clock.clone();
                // Each slot's clock was checked, so this node is at no fault.
                let rank = self.me();
                self.acquire(host, clock, None, AfterAcquire::EndBarrier)
                    .map_err(|fault| Failure::Protocol { rank, fault })?;
            }
            return Ok(true);
        }
        if !self.barrier.is_sent {
            self.barrier.is_sent = true;
            self.write_slot(host, round, sequence);
        }
        let Some(slot) = self.barrier.slots.remove(&(sequence, round)) else { return Ok(false) };
        if slot.address != self.barrier.address || slot.count != self.barrier.count {
            let fault = Fault::Barrier { address: slot.address, count: slot.count };
            return Err(Failure::Protocol { rank: slot.from, fault });
        }
        self.barrier.clock.merge(&slot.clock);
        self.barrier.movers |= slot.movers;
        self.barrier.round += 1;
        self.barrier.is_sent = false;
        Ok(true)
    }

    //= dsm-protocol.md: barrier.3
    fn write_slot(&mut self, host: &mut dyn Host, round: u32, sequence: u64) {
        let barrier = &self.barrier;
        let mut bytes = Vec::new();
        for word in [sequence, barrier.address, barrier.count, barrier.movers] {
            bytes.extend_from_slice(&word.to_le_bytes());
        }
        barrier.clock.encode(&mut bytes);
        let to = Rank(((self.me().index() + (1 << round)) % usize::from(self.config.nodes)) as u8);
        let write = Operation::Write {
            area: Area::Control,
            address: Layout::barrier_slot(round, sequence),
            bytes: &bytes,
            notification: Some(NOTIFICATION << 24 | round << 16 | sequence as u32 & 0xffff),
        };
        self.post(host, to, false, Pending::None, write);
    }

    //= dsm-protocol.md: barrier.4
    /// Reads a slot that a peer has written. The peer may be one series of rounds ahead.
    pub(crate) fn handle_barrier_slot(
        &mut self,
        host: &mut dyn Host,
        from: Rank,
        notification: u32,
    ) -> Result<(), Fault> {
        let malformed = Fault::Notification(notification);
        let (kind, round) = (notification >> 24, notification >> 16 & 0xff);
        let ahead = (notification as u16).wrapping_sub(self.barrier.sequence as u16);
        let nodes = usize::from(self.config.nodes);
        if kind != NOTIFICATION || round >= self.rounds() || ahead > 1 {
            return Err(malformed);
        }
        if (from.index() + (1 << round)) % nodes != self.me().index() {
            return Err(malformed);
        }
        let sequence = self.barrier.sequence + u64::from(ahead);
        let base = Layout::barrier_slot(round, sequence);
        let word = |index: usize| host.load(base + 8 * index as u64);
        let mut clock = Clock::zero(nodes);
        for rank in 0..self.config.nodes {
            clock.raise(Rank(rank), word(SLOT_WORDS + usize::from(rank)));
        }
        let slot = Slot { from, address: word(1), count: word(2), movers: word(3), clock };
        let is_known = slot.movers.checked_shr(nodes as u32).unwrap_or(0) == 0;
        if word(0) != sequence || !is_known || slot.clock.of(self.me()) > self.clock.of(self.me()) {
            return Err(malformed);
        }
        self.barrier.slots.insert((sequence, round), slot);
        Ok(())
    }

    /// Ends the rounds: all nodes have arrived and their notices are applied.
    pub(crate) fn end_rounds(&mut self, host: &mut dyn Host) {
        self.barrier.sequence += 1;
        if self.barrier.movers == 0 {
            self.leave_barrier(host);
        } else {
            self.read_moves(host);
        }
    }

    /// Lets the threads go on.
    pub(crate) fn leave_barrier(&mut self, host: &mut dyn Host) {
        self.barrier.phase = Phase::Gathering;
        self.profile.end_barrier();
        for thread in std::mem::take(&mut self.barrier.waiting) {
            self.finish(thread, Ok(0));
        }
        // Only notices show that no other node writes a page.
        let has_notices = self.config.coherence == Coherence::Notices;
        let barriers = if has_notices { self.config.migrate_after } else { 0 };
        let written = self.barrier.history.end_barrier(barriers);
        for page in written {
            self.request_move(page, self.me());
        }
        if self.config.history {
            let pages = &self.pages;
            let predicted =
                self.barrier.history.predict(|page| pages.get(page).state == State::Absent);
            for page in predicted {
                self.prefetch(host, page);
            }
        }
    }
}
