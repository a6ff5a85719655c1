//! Connections that are queue pairs. Immediates consume receives, and operations use scatter/gather
//! lists. In some runs, operations in flight fail because their memory or key becomes invalid. In
//! some runs, applications close a connection immediately after a message or notification has
//! arrived.

use std::collections::BTreeMap;

use super::end::{End, RECEIVE_SLOTS, Stage, slot_bytes};
use super::plan::Plan;
use super::run::{HostState, Run};
use crate::host::{Completion, Fault, HostEngine, Refusal, Region, Shape};
use crate::oracle::Violation;
use crate::random::Random;
use crate::world::World;

/// Settings of a run with queue pairs, in addition to its plan.
#[derive(Clone, Copy, Debug)]
pub(crate) struct QueuePairs {
    /// Probability that an application closes its connection immediately after a delivery, in parts
    /// per million.
    farewell_ppm: u32,
    /// Whether all connections of a host share one receive queue.
    pub(super) shares_receives: bool,
    /// Probability that the peer accesses memory through a window, in parts per million.
    pub(super) windows_ppm: u32,
    /// Probability that an application, when it polls, deregisters memory that operations need; in
    /// parts per million.
    pub(super) strike_ppm: u32,
    /// Number of datagrams that each host sends to others.
    pub(super) datagrams: u32,
}

impl QueuePairs {
    /// Chooses random settings. Faults and immediates become more frequent than in other runs.
    pub(super) fn draw(seed: u64, plan: &mut Plan) -> Self {
        let mut random = Random::stream(seed, QUEUE_PAIRS_STREAM);
        let traffic = &mut plan.traffic;
        traffic.immediate_ppm = traffic.immediate_ppm.max(random.pick(&[0, 50_000, 300_000]));
        // In runs with hosts that lie or stop answering, all of the following settings are off.
        let is_sound = !plan.classes.watches_progress;
        if is_sound {
            traffic.rogue_ppm = traffic.rogue_ppm.max(random.pick(&[0, 5_000, 30_000]));
        }
        let farewell_ppm = if is_sound { random.pick(&[0, 10_000, 100_000]) } else { 0 };
        let shares_receives = is_sound && random.chance_ppm(500_000);
        let windows_ppm = if is_sound { random.pick(&[0, 500_000, 1_000_000]) } else { 0 };
        let strike_ppm = if is_sound { random.pick(&[0, 0, 2_000, 20_000]) } else { 0 };
        let datagrams = if is_sound { random.pick(&[0, 20, 200]) } else { 0 };
        Self { farewell_ppm, shares_receives, windows_ppm, strike_ppm, datagrams }
    }
}

/// Memory for messages that all connections of a host use.
#[derive(Debug)]
pub(super) struct SharedInbox {
    /// Number of restarts of the host before this memory was registered.
    life: u32,
    region: Region,
    /// Slots in use, by the context of their receive.
    posted: BTreeMap<u64, u32>,
    free: Vec<u32>,
    next_context: u64,
}

impl<E: HostEngine> Run<'_, E> {
    /// Adds the settings for queue pairs to the shape of a host.
    pub(super) const fn paired(&self, shape: Shape) -> Shape {
        let shares_receives = self.shares_receives();
        Shape { is_of_queue_pairs: self.plan.queue_pairs.is_some(), shares_receives, ..shape }
    }

    pub(super) const fn shares_receives(&self) -> bool {
        matches!(self.plan.queue_pairs, Some(QueuePairs { shares_receives: true, .. }))
    }

    /// Posts receives for all connections of a host until `ahead` receives are outstanding.
    pub(super) fn post_shared_receives(
        &mut self,
        world: &mut World<E>,
        host: usize,
        ahead: u32,
    ) -> Result<(), Refusal> {
        // Datagrams consume these receives too.
        self.collect_datagrams(world, host);
        let (now, length) = (world.now(), slot_bytes(&self.plan.traffic));
        let HostState { life, inbox, .. } = &mut self.hosts[host];
        if inbox.as_ref().is_none_or(|inbox| inbox.life != *life) {
            *inbox = Some(SharedInbox {
                life: *life,
                region: world.engine_mut(host).register(RECEIVE_SLOTS * length),
                posted: BTreeMap::new(),
                free: (0..RECEIVE_SLOTS).collect(),
                next_context: 0,
            });
        }
        let Some(inbox) = inbox else { return Ok(()) };
        while inbox.posted.len() < ahead as usize
            && let Some(slot) = inbox.free.pop()
        {
            let context = inbox.next_context;
            let engine = world.engine_mut(host);
            let at = slot * length;
            match engine.post_shared_receive(now, inbox.region, at, length, context) {
                Ok(()) => {}
                Err(refusal) => {
                    inbox.free.push(slot);
                    return if refusal == Refusal::Full { Ok(()) } else { Err(refusal) };
                }
            }
            inbox.posted.insert(context, slot);
            inbox.next_context += 1;
        }
        Ok(())
    }

    /// Removes the receive that `found` completes, and returns its memory and offset. The receive
    /// can belong to any connection of the host. Returns `None` if no such receive was posted.
    pub(super) fn take_shared_receive(
        &mut self,
        host: usize,
        found: &Completion,
    ) -> Option<(Region, u32)> {
        let length = slot_bytes(&self.plan.traffic);
        let inbox = self.hosts[host].inbox.as_mut()?;
        let slot = inbox.posted.remove(&found.context)?;
        inbox.free.push(slot);
        Some((inbox.region, slot * length))
    }

    /// Prepares the model of an end for queue pairs.
    pub(super) const fn pair_up(&self, end: &mut End) {
        if self.plan.queue_pairs.is_some() {
            end.model.consume_receives();
        }
    }

    /// Checks a failed operation of a queue pair:
    ///
    /// * If an operation is denied, all operations before it must succeed.
    /// * If the peer's application has received an operation, this operation must not fail because
    ///   the peer closes the connection.
    pub(super) fn check_order(end: &End, number: u64, fault: Fault) -> Result<(), Violation> {
        let is_first = end.faults.is_empty();
        let is_own = matches!(fault, Fault::AccessDenied | Fault::LocalAccess | Fault::PeerFailed);
        let is_late = is_own && !is_first;
        // If the peer's application has received an operation, this operation must not fail because
        // the peer closes the connection. The rule does not apply if this operation or an earlier
        // one waits for an answer with data.
        let is_lost = matches!(fault, Fault::ClosedByPeer | Fault::EndedByPeer)
            && is_first
            && end.model.is_surely_delivered(number);
        if is_late || is_lost {
            return Err(Violation::WrongFault { number, fault, cause: None });
        }
        Ok(())
    }

    /// Sometimes makes an application close its connection immediately after a delivery. The
    /// operations that the application has received must still succeed at the other side.
    pub(super) fn perhaps_leave(&mut self, world: &mut World<E>, pair: usize, side: usize) {
        let Some(QueuePairs { farewell_ppm, .. }) = self.plan.queue_pairs else { return };
        if self.healed || !self.chance.chance_ppm(farewell_ppm) {
            return;
        }
        self.leave(world, pair, side);
    }

    /// Makes an application close its connection immediately.
    pub(super) fn leave(&mut self, world: &mut World<E>, pair: usize, side: usize) {
        let now = world.now();
        let state = &mut self.pairs[pair];
        let Some(end) = &mut state.ends[side] else { return };
        if end.stage != Stage::Open {
            return;
        }
        state.let_go = end.generation;
        end.excused = true;
        let (host, connection, generation) = (end.host, end.connection, end.generation);
        if let Some(other) = state.ends[1 - side].as_mut()
            && other.generation == generation
        {
            other.excused = true;
        }
        world.engine_mut(host).close(now, connection);
    }
}

const QUEUE_PAIRS_STREAM: u64 = 0x7175_6575_6570;
