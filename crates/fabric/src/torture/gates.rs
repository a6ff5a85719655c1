//! Gates: the keys with which peers access the memory that they may write. A gate uses the key of a
//! region or of a window. The owner binds and invalidates windows during the run. This module also
//! deregisters memory while operations are outstanding.

use super::end::{Drawn, End, Stage};
use super::queue_pairs::QueuePairs;
use super::run::Run;
use crate::host::{Action, Completion, CompletionKind, HostEngine, Refusal, Region};
use crate::trace::Kind;
use crate::world::World;

/// The key with which the peer accesses an end's target, and the state of this key.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gate {
    kind: GateKind,
    stage: GateStage,
    key: u32,
    address: u64,
    /// The key that the peer used before the current one.
    former: Option<u32>,
    /// Whether a key of this gate has become invalid or soon becomes invalid.
    has_ended: bool,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum GateKind {
    /// The gate uses the key of the region.
    Region,
    /// The gate uses the key of a window for this connection (type 2).
    ForOne,
    /// The gate uses the key of a window for all connections of the service (type 1).
    ForAll,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum GateStage {
    /// The gate does not have a key yet.
    New,
    /// The key becomes valid when this operation of the owner completes.
    Opening(u64),
    Open,
    /// This operation of the owner makes the key invalid.
    Ending(u64),
    /// This operation of the owner replaces the key with another key. Contains the operation's
    /// number and the new key.
    Changing(u64, u32),
    /// A message of the peer invalidates the key. The message is in flight.
    Invalidated,
    /// The key is invalid.
    Shut,
}

/// What may happen to an operation of the peer. This depends on the state of the key (gate) with
/// which the peer accesses the memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Passage {
    Free,
    /// The operation may be denied or succeed.
    Doubtful,
    /// The operation must be denied, but the target may perform a part of it before the denial.
    Late,
    /// The operation must be denied, and the target may not perform any part of it.
    Denied,
}

impl Gate {
    /// Returns a gate (an access for the peer) that uses the key of the region itself.
    pub(super) const fn of_region(target: Region) -> Self {
        let Region { key, address, .. } = target;
        Self {
            kind: GateKind::Region,
            stage: GateStage::Open,
            key,
            address,
            former: None,
            has_ended: false,
        }
    }

    /// Returns the target with the key and address that the peer must use; `None` if the peer has
    /// no key yet.
    pub(super) fn names(&self, target: Region) -> Option<Region> {
        let is_named = !matches!(self.stage, GateStage::New | GateStage::Opening(_));
        is_named.then_some(Region { key: self.key, address: self.address, ..target })
    }

    /// Returns whether the peer's key for the target is valid. Only then may the target's memory be
    /// replaced.
    pub(super) fn is_open(&self) -> bool {
        self.stage == GateStage::Open
    }

    /// Returns the target with the former key and address of the peer's access; `None` if there is
    /// no former key.
    fn was_named(&self, target: Region) -> Option<Region> {
        let key = self.former?;
        Some(Region { key, address: address_of(key), ..target })
    }

    /// Returns whether a key for the peer's access has become invalid, so that operations in flight
    /// may be denied. If the connection has ended at the peer, operations can be denied even if the
    /// result is false.
    pub(super) const fn may_deny(&self) -> bool {
        self.has_ended
    }

    /// Returns whether only this connection can use the key.
    pub(super) fn is_of_one(&self) -> bool {
        self.kind == GateKind::ForOne && self.is_open()
    }

    /// Returns whether a window that the peer uses for access has the key. If so, no other window
    /// may get the same key.
    fn holds(&self, key: u32) -> bool {
        let is_held = self.kind == GateKind::ForOne
            && !matches!(self.stage, GateStage::New | GateStage::Shut);
        is_held && self.key == key
    }

    /// Returns what may happen to an operation that the peer posts now.
    pub(super) fn passage(&self, drawn: &Drawn) -> Passage {
        let operation = &drawn.operation;
        let needs_key = operation.length_bytes > 0 || operation.action == Action::SendInvalidate;
        if !operation.action.is_under_key() || !needs_key {
            return Passage::Free;
        }
        match self.stage {
            GateStage::New | GateStage::Opening(_) | GateStage::Open => Passage::Free,
            GateStage::Ending(_) | GateStage::Changing(..) => Passage::Doubtful,
            GateStage::Shut => Passage::Denied,
            GateStage::Invalidated => {
                let flags = operation.flags;
                let waits = flags.strict || flags.fence_before || operation.action != Action::Write;
                if waits { Passage::Late } else { Passage::Doubtful }
            }
        }
    }
}

/// An action of an application on the memory of its own connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Act {
    EndKey,
    Deregister,
    LoseLocal,
    LoseInbox,
}

impl<E: HostEngine> Run<'_, E> {
    /// Chooses at random by which key the peer accesses the target of an end: the key of the region
    /// or of a window.
    pub(super) fn new_gate(&mut self, target: Region) -> Gate {
        let Some(QueuePairs { windows_ppm, .. }) = self.plan.queue_pairs else {
            return Gate::of_region(target);
        };
        if !self.gates.chance_ppm(windows_ppm) {
            return Gate::of_region(target);
        }
        let kind = self.gates.pick(&[GateKind::ForOne, GateKind::ForOne, GateKind::ForAll]);
        Gate { kind, stage: GateStage::New, key: 0, address: 0, former: None, has_ended: false }
    }

    /// Gives the peer access to the target of an end, if the peer has no access. Sometimes also
    /// invalidates a key, or deregisters memory that operations need.
    pub(super) fn tend_gate(&mut self, world: &mut World<E>, pair: usize, side: usize) {
        let Some(QueuePairs { strike_ppm, .. }) = self.plan.queue_pairs else { return };
        let Some(end) = self.open_end(pair, side) else { return };
        if self.healed && end.lost_inbox {
            // The memory of this end's receives was deregistered, so the peer's messages may never
            // find a receive. Close the connection, because otherwise the peer could wait forever.
            return self.leave(world, pair, side);
        }
        let (gate, host) = (end.gate, end.host);
        if gate.stage == GateStage::New {
            let Some(key) = self.free_key(host, gate.kind) else { return };
            let bind = Action::Bind { replaced: None, is_for_all: gate.kind == GateKind::ForAll };
            if let Some(number) = self.post_own(world, pair, side, bind, key)
                && let Some(end) = &mut self.pairs[pair].ends[side]
            {
                let stage = GateStage::Opening(number);
                end.gate = Gate { stage, key, address: address_of(key), ..gate };
            }
        } else if gate.stage == GateStage::Open && !self.healed && self.gates.chance_ppm(strike_ppm)
        {
            let acts = [Act::EndKey, Act::EndKey, Act::Deregister, Act::LoseLocal, Act::LoseInbox];
            let act = self.gates.pick(&acts);
            self.strike_memory(world, pair, side, act);
        }
    }

    fn strike_memory(&mut self, world: &mut World<E>, pair: usize, side: usize, act: Act) {
        let now = world.now();
        let shares = self.shares_receives();
        let Some(end) = self.open_end(pair, side) else { return };
        let (gate, host, target, local, inbox) =
            (end.gate, end.host, end.target, end.local, end.inbox);
        world.trace.record(now, Kind::Altered, STRUCK + act as u32, host as u64);
        match (act, gate.kind) {
            (Act::EndKey, GateKind::ForOne) => {
                if let Some(number) = self.post_own(world, pair, side, Action::Invalidate, gate.key)
                {
                    self.set_gate(pair, side, GateStage::Ending(number));
                }
            }
            (Act::EndKey, GateKind::ForAll) => {
                let Some(key) = self.free_key(host, gate.kind) else { return };
                let bind = Action::Bind { replaced: Some(gate.key), is_for_all: true };
                if let Some(number) = self.post_own(world, pair, side, bind, key) {
                    self.set_gate(pair, side, GateStage::Changing(number, key));
                }
            }
            (Act::EndKey, GateKind::Region) | (Act::Deregister, _) => {
                self.compare(world, pair, 1 - side);
                world.engine_mut(host).deregister(now, target);
                self.set_gate(pair, side, GateStage::Shut);
                self.freeze(world, host, target);
            }
            (Act::LoseLocal, _) => {
                world.engine_mut(host).deregister(now, local);
                self.lose_memory(pair, side).lost_local = true;
                self.freeze(world, host, local);
            }
            (Act::LoseInbox, _) if !shares => {
                world.engine_mut(host).deregister(now, inbox);
                self.lose_memory(pair, side).lost_inbox = true;
                self.freeze(world, host, inbox);
            }
            (Act::LoseInbox, _) => {}
        }
    }

    /// Handles a completion of this side's own bind or invalidation.
    pub(super) fn note_window(
        &mut self,
        world: &mut World<E>,
        pair: usize,
        side: usize,
        found: Completion,
    ) {
        let Some(end) = &mut self.pairs[pair].ends[side] else { return };
        if found.kind != CompletionKind::Window || !found.success {
            return;
        }
        let number = found.context;
        match end.gate.stage {
            GateStage::Opening(opening) if opening == number => end.gate.stage = GateStage::Open,
            GateStage::Changing(changing, key) if changing == number => {
                let (stage, former) = (GateStage::Open, Some(end.gate.key));
                end.gate = Gate { stage, key, address: address_of(key), former, ..end.gate };
            }
            GateStage::Ending(ending) if ending == number => self.shut(world, pair, side),
            _ => {}
        }
    }

    /// Handles the arrival of a peer's message that has invalidated a key.
    pub(super) fn note_invalidated(
        &mut self,
        world: &mut World<E>,
        pair: usize,
        side: usize,
        found: Completion,
    ) {
        let Some(end) = &self.pairs[pair].ends[side] else { return };
        if found.success && found.invalidated == Some(end.gate.key) {
            self.shut(world, pair, side);
        }
    }

    /// Returns regions of the other side's host, each with a window key that this side must not
    /// use. These keys are the keys of other connections, and the former key of this connection.
    pub(super) fn wrong_windows(&self, pair: usize, side: usize) -> Vec<Region> {
        let host = self.pairs[pair].hosts[1 - side];
        let others = (0..self.pairs.len()).flat_map(|other| [0, 1].map(|side| (other, side)));
        let others = others.filter(|&other| other != (pair, 1 - side));
        let ends = others.filter_map(|(pair, side)| self.open_end(pair, side));
        let ends = ends.filter(|end| (end.host, end.life) == (host, self.hosts[host].life));
        let windows = ends.filter(|end| end.gate.is_of_one());
        let windows = windows.filter_map(|end| end.gate.names(end.target));
        let own = self.open_end(pair, 1 - side);
        windows.chain(own.and_then(|end| end.gate.was_named(end.target))).collect()
    }

    /// Sometimes returns the target with its former key. The operation then behaves like that of an
    /// application that does not know the new key yet.
    pub(super) fn former_key(&mut self, pair: usize, side: usize, drawn: &Drawn) -> Option<Region> {
        let other = self.open_end(pair, 1 - side)?;
        let region = other.gate.was_named(other.target)?;
        let is_write = drawn.operation.action == Action::Write && !self.healed;
        (is_write && self.gates.chance_ppm(FORMER_PPM)).then_some(region)
    }

    /// Sometimes turns a message into one that invalidates a key: the key with which the message's
    /// sender accesses the other side's memory.
    pub(super) fn perhaps_invalidate(&mut self, pair: usize, side: usize, drawn: &mut Drawn) {
        let Some(QueuePairs { strike_ppm, .. }) = self.plan.queue_pairs else { return };
        let Some(other) = self.open_end(pair, 1 - side) else { return };
        let (gate, is_send) = (other.gate, drawn.operation.action == Action::Send);
        let may_end = gate.is_of_one() || gate.stage == GateStage::Shut;
        if is_send && may_end && !self.healed && self.gates.chance_ppm(strike_ppm * 4) {
            drawn.end_key(gate.key);
        }
    }

    /// Records in an operation whether it may succeed or be denied. Returns whether it may be
    /// denied.
    pub(super) fn judge(&self, pair: usize, side: usize, drawn: &mut Drawn) -> bool {
        let passage = self.open_end(pair, 1 - side).map(|other| other.gate.passage(drawn));
        let passage = passage.filter(|_| !drawn.is_rogue()).unwrap_or(Passage::Free);
        drawn.pass(passage);
        if self.open_end(pair, side).is_some_and(|end| end.lost_local) {
            drawn.make_hopeless(true);
        }
        passage != Passage::Free
    }

    /// Records that this side has posted an operation that invalidates the other side's key.
    pub(super) fn note_ending(&mut self, pair: usize, side: usize, action: Action) {
        let other = self.open_end(pair, 1 - side);
        if action == Action::SendInvalidate && other.is_some_and(|other| other.gate.is_open()) {
            // The peer performs earlier operations before this one, so they can still use the key.
            if let Some(other) = &mut self.pairs[pair].ends[1 - side] {
                (other.gate.stage, other.gate.has_ended) = (GateStage::Invalidated, true);
            }
            self.excuse_denials(pair);
        }
    }

    /// Records that, from now on, the peer may deny operations of this connection.
    pub(super) fn excuse_denials(&mut self, pair: usize) {
        let state = &mut self.pairs[pair];
        state.had_rogue = state.generation;
        for end in state.ends.iter_mut().flatten() {
            end.excused = true;
        }
    }

    fn open_end(&self, pair: usize, side: usize) -> Option<&End> {
        let end = self.pairs[pair].ends[side].as_ref()?;
        (end.stage == Stage::Open && end.generation == self.pairs[pair].generation).then_some(end)
    }

    /// Records that the key for the peer's access becomes invalid. From now on, operations in
    /// flight may be denied.
    fn set_gate(&mut self, pair: usize, side: usize, stage: GateStage) {
        let [first, second] = &mut self.pairs[pair].ends;
        let (own, other) = if side == 0 { (first, second) } else { (second, first) };
        let Some(own) = own else { return };
        (own.gate.stage, own.gate.has_ended) = (stage, true);
        if let Some(other) = other.as_mut().filter(|other| other.generation == own.generation) {
            other.rogues.extend(other.model.outstanding_under_key());
        }
        self.excuse_denials(pair);
    }

    fn shut(&mut self, world: &mut World<E>, pair: usize, side: usize) {
        self.compare(world, pair, 1 - side);
        let Some(end) = &mut self.pairs[pair].ends[side] else { return };
        end.gate.stage = GateStage::Shut;
        let (host, target) = (end.host, end.target);
        self.freeze(world, host, target);
    }

    /// Records that this side lost memory: the memory was deregistered, but operations or receives
    /// of this side need it. Returns this side's end.
    fn lose_memory(&mut self, pair: usize, side: usize) -> &mut End {
        let state = &mut self.pairs[pair];
        state.lost_memory = state.generation;
        for end in state.ends.iter_mut().flatten() {
            end.excused = true;
        }
        let Some(end) = &mut state.ends[side] else { unreachable!("the side is open") };
        end
    }

    /// Posts an operation on windows. Returns its number. Returns `None` if there is no room for it
    /// now.
    fn post_own(
        &mut self,
        world: &mut World<E>,
        pair: usize,
        side: usize,
        action: Action,
        key: u32,
    ) -> Option<u64> {
        let now = world.now();
        let end = self.pairs[pair].ends[side].as_mut()?;
        let (host, number) = (end.host, end.model.next_number());
        let drawn = end.draw_own(action, key, address_of(key))?;
        match end.post(world, &mut self.random, drawn) {
            Ok(true) => {
                world.trace.record(now, Kind::Posted, host as u32, number);
                Some(number)
            }
            Ok(false) | Err(Refusal::Closed) => None,
            Err(refusal) => {
                self.refused(host, "work about windows", refusal);
                None
            }
        }
    }

    /// Returns a key that no window of a host has. There are only few possible keys for windows of
    /// one connection, so keys are often reused.
    fn free_key(&mut self, host: usize, kind: GateKind) -> Option<u32> {
        if kind == GateKind::ForAll {
            self.next_key += 1;
            return Some(KEYS_FOR_ALL + self.next_key);
        }
        let key = KEYS_FOR_ONE + self.gates.below(KEYS) as u32;
        let life = self.hosts[host].life;
        let mut ends = self.pairs.iter().flat_map(|pair| pair.ends.iter().flatten());
        let is_held = ends.any(|end| {
            (end.host, end.life) == (host, life)
                && end.stage != Stage::Closed
                && end.gate.holds(key)
        });
        (!is_held).then_some(key)
    }
}

/// Returns the address at which the peer sees the start of a window.
const fn address_of(key: u32) -> u64 {
    (key as u64) << 32
}

/// Number of keys for windows of one connection. At most ten keys are in use at the same time.
const KEYS: u64 = 16;
const KEYS_FOR_ONE: u32 = 0x7700_0000;
const KEYS_FOR_ALL: u32 = 0x7800_0000;

/// Probability that an application writes with a window's former key, in parts per million.
const FORMER_PPM: u32 = 100_000;

/// Value of `TraceEntry::place` in the trace events for the first variant of `Act`. The other
/// variants have the next values.
const STRUCK: u32 = 200;
