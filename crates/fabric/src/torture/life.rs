//! The simulated applications of a run. They connect, post operations, poll completions, and handle
//! the end of connections.

use delivery::{Instant, LinkId};

use super::end::{End, Remote, Stage};
use super::run::{Frozen, Run, Wake, digest_of, next_look};
use crate::host::{
    Action, Cause, Completion, CompletionKind, ConnectionHandle, HostEngine, HostEvent, Refusal,
    RequestHandle,
};
use crate::oracle::{Finished, Violation};
use crate::trace::Kind;
use crate::world::{Application, World};
use wire_edge::PeerAddr;

impl<E: HostEngine> Application<E> for Run<'_, E> {
    fn on_wake(&mut self, world: &mut World<E>, token: u64) {
        self.free_wakes.push(token);
        match self.wakes[token as usize] {
            Wake::Look { pair, side, generation } => self.look(world, pair, side, generation),
            Wake::Connect { pair } => self.connect(world, pair),
            Wake::Strike(disaster) => self.strike(world, disaster),
            Wake::Unblock { host, link } => self.unblock(world, host, link),
            Wake::AddPath { host, link } => self.add_path(world, host, link),
            Wake::Reassess => self.reassess(world),
            Wake::Attach { host, link, is_renumbered } => {
                self.attach(world, host, link, is_renumbered);
            }
            Wake::Carrier { host, link, is_up } => self.set_carrier(world, host, link, is_up),
            Wake::Calm { host, link } => self.calm(world, host, link),
            Wake::Grant { pair, operations } => self.grant(world, pair, operations),
            Wake::Fail => self.fail(world),
            Wake::Attack => self.attack(world),
            Wake::Fill => self.fill(world),
            Wake::Narrow { hole } => self.narrow(world, hole),
            Wake::Datagrams { host, left } => self.send_datagrams(world, host, left),
        }
    }

    fn on_event(&mut self, world: &mut World<E>, host: usize, event: HostEvent) {
        match event {
            HostEvent::Requested { request, private_data } => {
                self.requested(world, host, request, &private_data);
            }
            HostEvent::Established(connection) => self.established(world, host, connection),
            HostEvent::Closed(connection, cause) => self.closed(world, host, connection, cause),
        }
    }

    fn on_turn(&mut self, world: &mut World<E>, host: usize) {
        // If no frame has arrived, memory has not changed since the last check. Most runs of the
        // engine handle no frame: they only let an application run.
        let frames = world.frames_handled(host);
        if frames == self.hosts[host].frames_seen {
            return;
        }
        self.hosts[host].frames_seen = frames;
        self.turns += 1;
        let entirely = self.turns.is_multiple_of(self.options.compare_interval_turns);
        for pair in 0..self.pairs.len() {
            for side in [0, 1] {
                // The memory that this side writes belongs to the other side's host.
                if self.pairs[pair].hosts[1 - side] != host {
                    continue;
                }
                if entirely {
                    self.compare(world, pair, side);
                } else if let Some(view) = self.target(world, pair, side)
                    && let Some(end) = &mut self.pairs[pair].ends[side]
                {
                    let outcome = end.model.probe(&view);
                    self.check_of(pair, outcome);
                }
            }
        }
        if entirely {
            self.check_host(world, host);
        }
    }
}

impl<E: HostEngine> Run<'_, E> {
    pub(super) fn connect_later(&mut self, world: &mut World<E>, pair: usize) {
        if self.pairs[pair].retry_scheduled || self.is_closing {
            return;
        }
        self.pairs[pair].retry_scheduled = true;
        let at = world.now().after_ns(self.random.between(1_000, RETRY_NS_MAX));
        self.wake_at(world, at, Wake::Connect { pair });
    }

    /// Makes the first side of a pair request a new connection.
    fn connect(&mut self, world: &mut World<E>, pair: usize) {
        let now = world.now();
        let [host, peer] = self.pairs[pair].hosts;
        self.pairs[pair].retry_scheduled = false;
        let ways = self.ways(world, host, peer);
        if world.is_paused(host) || ways.is_empty() {
            return self.connect_later(world, pair);
        }
        if let Some(end) = self.pairs[pair].ends[0].take() {
            self.discard(world, &end);
        }
        self.hush(world, host, false);
        let state = &mut self.pairs[pair];
        state.generation += 1;
        state.blocked_ns = 0;
        state.blocked_since = state.blocked_since.map(|_| now);
        state.begun_healed = self.healed;
        // When all faults have ended, a host that lied has restarted, so the pair can be trusted
        // again.
        state.is_distrusted &= !self.healed;
        if state.is_distrusted {
            state.distrusted_until = state.generation;
        }
        let generation = state.generation;
        world.engine_mut(host).turn_to(self.place(pair));
        let mut end = End::new(world, host, self.hosts[host].life, generation, &self.plan.traffic);
        self.pair_up(&mut end);
        end.gate = self.new_gate(end.target);
        end.counter_life = self.hosts[peer].life;
        let mut paths = ways;
        if self.plan.engine.asks_on_one_link && self.plan.churn.is_none() {
            let chosen = self.random.below(paths.len() as u64) as usize;
            paths = vec![paths[chosen]];
        }
        let private_data = Invitation { pair: pair as u32, generation }.encode();
        world.trace.record(now, Kind::Connecting, host as u32, u64::from(generation));
        match world.engine_mut(host).connect(now, &paths, &private_data) {
            Ok(connection) => {
                end.connection = connection;
                self.pairs[pair].ends[0] = Some(end);
            }
            Err(refusal) => self.refused(host, "a connection", refusal),
        }
        if self.plan.churn.is_some() {
            self.reassess(world);
        }
    }

    /// Returns the links and addresses over which a host requests a connection to another.
    fn ways(&self, world: &World<E>, host: usize, peer: usize) -> Vec<(LinkId, PeerAddr)> {
        if self.plan.churn.is_some() {
            return self.churn_ways(world, host, peer);
        }
        let links = 0..self.plan.links.len();
        links.map(|link| (LinkId(link as u8), self.plan.address(peer, link))).collect()
    }

    /// Discards the memory of an end that is no longer checked. Keeps the target, which may still
    /// be frozen memory: later checks require that its bytes never change.
    fn discard(&mut self, world: &mut World<E>, end: &End) {
        if end.life == self.hosts[end.host].life {
            let own = [end.local, end.inbox, end.cells];
            self.frozen.retain(|frozen| frozen.host != end.host || !own.contains(&frozen.region));
            let engine = world.engine_mut(end.host);
            for region in own {
                engine.discard(region);
            }
        }
    }

    /// Handles a peer's request for a connection.
    fn requested(
        &mut self,
        world: &mut World<E>,
        host: usize,
        request: RequestHandle,
        private_data: &[u8],
    ) {
        if self.take_strange_request(world, host, request, private_data) {
            return;
        }
        let now = world.now();
        let wanted = Invitation::decode(private_data).filter(|invitation| {
            self.pairs.get(invitation.pair as usize).is_some_and(|pair| {
                // The requester must still wait, and it must have sent the request after the last
                // restart of this host. The state for an earlier request was lost at the restart.
                let waits = pair.ends[0].as_ref().is_some_and(|end| {
                    end.life == self.hosts[end.host].life
                        && end.counter_life == self.hosts[host].life
                });
                let old = pair.ends[1].as_ref();
                pair.hosts[1] == host
                    && pair.generation == invitation.generation
                    && waits
                    && old.is_none_or(|end| end.generation < invitation.generation)
            })
        });
        let Some(Invitation { pair, generation }) = wanted else {
            // The request is an old one that the network replayed, or its requester has given up.
            return world.engine_mut(host).reject(now, request);
        };
        let pair = pair as usize;
        self.abandon(world, pair);
        world.engine_mut(host).turn_to(self.place(pair));
        let mut end = End::new(world, host, self.hosts[host].life, generation, &self.plan.traffic);
        self.pair_up(&mut end);
        end.gate = self.new_gate(end.target);
        end.counter_life = self.hosts[self.pairs[pair].hosts[0]].life;
        match world.engine_mut(host).accept(now, request) {
            Ok(connection) => {
                end.connection = connection;
                self.pairs[pair].ends[1] = Some(end);
            }
            // The requester may have ended the request before the host accepted it.
            Err(Refusal::Closed) => {}
            Err(refusal) => self.refused(host, "a granted request", refusal),
        }
    }

    /// Makes the second side close a connection that the first side has replaced by a new one.
    fn abandon(&mut self, world: &mut World<E>, pair: usize) {
        let now = world.now();
        let Some(end) = self.pairs[pair].ends[1].take() else { return };
        if end.stage != Stage::Closed && end.life == self.hosts[end.host].life {
            self.pairs[pair].let_go = end.generation;
            let engine = world.engine_mut(end.host);
            engine.close(now, end.connection);
            engine.deregister(now, end.target);
            self.freeze(world, end.host, end.target);
        }
        self.discard(world, &end);
    }

    fn established(&mut self, world: &mut World<E>, host: usize, connection: ConnectionHandle) {
        let now = world.now();
        let Some((pair, side)) = self.find(host, connection) else { return };
        world.trace.record(now, Kind::Established, host as u32, pair as u64);
        let Some(end) = &mut self.pairs[pair].ends[side] else { return };
        end.stage = Stage::Open;
        let generation = end.generation;
        self.note_progress(now, pair, side);
        self.hush(world, host, true);
        self.tally.connections += u64::from(side == 0);
        self.look_later(world, pair, side, generation, false);
    }

    fn look_later(
        &mut self,
        world: &mut World<E>,
        pair: usize,
        side: usize,
        generation: u32,
        idle: bool,
    ) {
        let at = next_look(self, pair, world.now(), idle);
        self.pairs[pair].looking[side] = generation;
        self.wake_at(world, at, Wake::Look { pair, side, generation });
    }

    /// Makes applications of a pair poll again if they had stopped polling.
    pub(super) fn call(&mut self, world: &mut World<E>, pair: usize) {
        for side in [0, 1] {
            if let Some(end) = &self.pairs[pair].ends[side]
                && end.stage == Stage::Open
                && self.pairs[pair].looking[side] != end.generation
            {
                self.look_later(world, pair, side, end.generation, false);
            }
        }
    }

    /// Handles the end of a connection. Checks that all completions of the connection have arrived,
    /// and that it had a reason to end.
    fn closed(
        &mut self,
        world: &mut World<E>,
        host: usize,
        connection: ConnectionHandle,
        cause: Cause,
    ) {
        let now = world.now();
        let detail = crate::trace::digest(format!("{cause:?}").as_bytes());
        world.trace.record(now, Kind::Closed, host as u32, detail);
        let Some((pair, side)) = self.find(host, connection) else {
            // The application has already closed this connection.
            while let Some(found) = world.poll_completion(host, connection) {
                if found.kind == CompletionKind::Receive {
                    self.take_shared_receive(host, &found);
                }
            }
            return world.engine_mut(host).release(connection);
        };
        self.excuse_long_outage(now, pair);
        self.compare(world, pair, 1 - side);
        self.take_completions(world, pair, side, usize::MAX);
        let outstanding =
            self.pairs[pair].ends[side].as_ref().map_or(0, |end| end.model.outstanding_signalled());
        if outstanding > 0 {
            self.check_of_end(pair, side, Err(Violation::NeverCompleted { pair, outstanding }));
        }
        if !self.may_end(now, pair, side, cause) {
            let cause = format!("{cause:?}");
            self.check_of_end(pair, side, Err(Violation::ConnectionLost { pair, cause }));
        }
        if self.plan.churn.is_none() {
            self.check_cause(pair, side, cause);
        }
        world.engine_mut(host).release(connection);
        let Some(end) = &mut self.pairs[pair].ends[side] else { return };
        end.stage = Stage::Closed;
        let target = end.target;
        world.engine_mut(host).close_windows(target);
        self.freeze(world, host, target);
        let generation = self.pairs[pair].ends[side].as_ref().map(|end| end.generation);
        if let Some(other) = &mut self.pairs[pair].ends[1 - side]
            && Some(other.generation) == generation
        {
            other.excused = true;
        }
        if side == 0 {
            self.connect_later(world, pair);
        }
    }

    /// Returns whether a connection has a reason to end on this side.
    fn may_end(&self, now: Instant, pair: usize, side: usize, cause: Cause) -> bool {
        let state = &self.pairs[pair];
        let Some(end) = &state.ends[side] else { return true };
        if state.may_end && !state.begun_healed {
            return true;
        }
        // An attempt to connect that began during faults may fail. If the peer has already
        // established its side of the connection, that side may fail, too.
        let attempt_failed = match (&state.ends[0], side) {
            (Some(first), 0) => first.stage == Stage::Connecting && !state.begun_healed,
            (Some(first), _) => {
                first.generation != end.generation
                    || first.stage != Stage::Open && !state.begun_healed
            }
            (None, _) => true,
        };
        // If the peer has restarted, or has closed the connection, it still answers. If there is a
        // path, such a peer must not be reported as unreachable.
        let answers = end.stage == Stage::Open && !state.lacked_path(now);
        let is_reported = !(cause == Cause::Unreachable && answers);
        (end.excused && is_reported) || attempt_failed
    }

    /// Records that the contents of this region must not change from now on.
    pub(super) fn freeze(
        &mut self,
        world: &mut World<E>,
        host: usize,
        region: crate::host::Region,
    ) {
        if self.frozen.iter().any(|frozen| (frozen.host, frozen.region) == (host, region)) {
            return;
        }
        let ends = || self.pairs.iter().flat_map(|pair| pair.ends.iter().flatten());
        let is_looked_at = |frozen: &Frozen| {
            let own = |end: &End| [end.target, end.local, end.inbox].contains(&frozen.region);
            ends().any(|end| end.host == frozen.host && own(end))
        };
        let old = self.frozen.iter().position(|frozen| !is_looked_at(frozen));
        if self.frozen.len() >= FROZEN_MAX
            && let Some(old) = old
        {
            let old = self.frozen.remove(old);
            world.engine_mut(old.host).discard(old.region);
        }
        let digest = digest_of(world.engine(host), region);
        self.frozen.push(Frozen { host, region, digest });
    }

    fn find(&self, host: usize, connection: ConnectionHandle) -> Option<(usize, usize)> {
        let life = self.hosts[host].life;
        self.pairs.iter().enumerate().find_map(|(number, pair)| {
            let side = pair.ends.iter().position(|end| {
                end.as_ref().is_some_and(|end| {
                    (end.host, end.life, end.connection) == (host, life, connection)
                        && end.stage != Stage::Closed
                })
            })?;
            Some((number, side))
        })
    }

    /// Handles a wake-up of the application on one side of a connection.
    fn look(&mut self, world: &mut World<E>, pair: usize, side: usize, generation: u32) {
        if self.pairs[pair].looking[side] == generation {
            self.pairs[pair].looking[side] = 0;
        }
        let Some(end) = &self.pairs[pair].ends[side] else { return };
        let host = end.host;
        if end.generation != generation
            || end.life != self.hosts[host].life
            || end.stage != Stage::Open
        {
            return;
        }
        if !world.is_paused(host) {
            let patience = self.random.pick(&[0, 1, 2, 8, 64]);
            self.take_completions(world, pair, side, patience);
            self.post_receives(world, pair, side);
            self.tend_gate(world, pair, side);
            self.post_some(world, pair, side);
            self.retarget(world, pair, side);
        }
        let Some(end) = &self.pairs[pair].ends[side] else { return };
        if end.generation != generation || end.stage != Stage::Open {
            return;
        }
        let idle = self.pairs[pair].remaining[side] == 0 && end.model.outstanding() == 0;
        // A soak has idle hours. Polls in these hours would take computing time and find nothing.
        if self.plan.churn.is_none() || self.unfinished(pair).is_some() {
            self.look_later(world, pair, side, generation, idle);
        }
    }

    fn post_receives(&mut self, world: &mut World<E>, pair: usize, side: usize) {
        if self.withholds_receives(pair, side) {
            return;
        }
        let ahead = self.random.between(0, u64::from(self.plan.traffic.receives)) as u32;
        let shares = self.shares_receives();
        let Some(end) = &mut self.pairs[pair].ends[side] else { return };
        let host = end.host;
        let outcome = if shares {
            self.post_shared_receives(world, host, ahead.max(1))
        } else {
            end.post_receives(world, &self.plan.traffic, ahead.max(1))
        };
        if let Err(refusal) = outcome
            && refusal != Refusal::Closed
        {
            self.refused(host, "a receive", refusal);
        }
    }

    fn post_some(&mut self, world: &mut World<E>, pair: usize, side: usize) {
        let wanted = self.random.between(1, 8);
        for _ in 0..wanted {
            let Some(remote) = self.remote(pair, side) else { return };
            let remaining = self.pairs[pair].remaining[side];
            let traffic = self.plan.traffic;
            let Some(end) = &mut self.pairs[pair].ends[side] else { return };
            let room = end.model.outstanding() < u64::from(traffic.depth);
            if !room || end.stage != Stage::Open {
                return;
            }
            let drawn = if remaining > 0 {
                end.draw(&mut self.random, &traffic, &remote)
            } else if self.healed && !end.probed {
                end.draw_probe(&remote)
            } else {
                return;
            };
            let Some(mut drawn) = drawn else { return };
            drawn.report_before_stall(end.model.outstanding(), traffic.depth);
            self.perhaps_invalidate(pair, side, &mut drawn);
            let rogue = remaining > 0
                && !self.healed
                && drawn.operation.action.writes()
                && self.random.chance_ppm(traffic.rogue_ppm);
            let former = self.former_key(pair, side, &drawn);
            let rogue = rogue || former.is_some();
            if rogue {
                let forbidden = former.or_else(|| self.forbidden(pair, side));
                drawn.make_rogue(forbidden);
            }
            let is_denied = self.judge(pair, side, &mut drawn);
            let action = drawn.operation.action;
            let Some(end) = &mut self.pairs[pair].ends[side] else { return };
            let host = end.host;
            match end.post(world, &mut self.random, drawn) {
                Ok(false) | Err(Refusal::Closed) => return,
                Ok(true) => {
                    self.note_posted(world, pair, side, rogue || is_denied);
                    self.note_ending(pair, side, action);
                }
                Err(refusal) => return self.refused(host, "an operation", refusal),
            }
        }
    }

    /// Sometimes replaces the memory to which this side writes; the memory is at the other side. No
    /// operation may be in flight. After the replacement, the old memory must not change.
    fn retarget(&mut self, world: &mut World<E>, pair: usize, side: usize) {
        let now = world.now();
        let place = self.place(pair);
        let chance = self.random.chance_ppm(self.plan.traffic.retarget_ppm);
        let [Some(first), Some(second)] = &mut self.pairs[pair].ends else { return };
        let (own, other) = if side == 0 { (first, second) } else { (second, first) };
        let quiet = own.model.outstanding() == 0
            && own.generation == other.generation
            && (own.stage, other.stage) == (Stage::Open, Stage::Open)
            // If an operation was flushed, its bytes can still arrive and change the old memory.
            && own.faults.is_empty()
            && other.gate.is_open()
            && other.life == self.hosts[other.host].life;
        if !chance || !quiet || own.model.next_number() == 0 {
            return;
        }
        let (host, old) = (other.host, other.target);
        world.engine_mut(host).turn_to(place);
        // No operation of this side is outstanding, so the target has performed all of them.
        let engine = world.engine_mut(host);
        other.target = engine.register(old.length_bytes);
        engine.deregister(now, old);
        own.model.retarget();
        let target = other.target;
        let gate = self.new_gate(target);
        if let Some(other) = &mut self.pairs[pair].ends[1 - side] {
            other.gate = gate;
        }
        self.freeze(world, host, old);
    }

    fn note_posted(&mut self, world: &mut World<E>, pair: usize, side: usize, rogue: bool) {
        let now = world.now();
        self.tally.operations += 1;
        let state = &mut self.pairs[pair];
        let probe = state.remaining[side] == 0;
        state.remaining[side] = state.remaining[side].saturating_sub(1);
        if rogue {
            state.had_rogue = state.generation;
            for end in state.ends.iter_mut().flatten() {
                end.excused = true;
            }
        }
        if let Some(end) = &mut state.ends[side] {
            end.probed |= probe;
            let number = end.model.next_number();
            world.trace.record(now, Kind::Posted, end.host as u32, number);
        }
    }

    /// Returns the remote memory that a side's operations use; `None` if the other side has none.
    fn remote(&self, pair: usize, side: usize) -> Option<Remote> {
        let ends = &self.pairs[pair].ends;
        let (own, other) = (ends[side].as_ref()?, ends[1 - side].as_ref()?);
        let counters = self.hosts[other.host].counters;
        let target = other.gate.names(other.target)?;
        (own.generation == other.generation).then_some(Remote {
            target,
            cells: other.cells,
            counters,
        })
    }

    fn take_completions(
        &mut self,
        world: &mut World<E>,
        pair: usize,
        side: usize,
        patience: usize,
    ) {
        for _ in 0..patience {
            let Some(end) = &self.pairs[pair].ends[side] else { return };
            let (host, connection) = (end.host, end.connection);
            let Some(completion) = world.poll_completion(host, connection) else {
                return;
            };
            let outcome = match completion.kind {
                CompletionKind::Receive | CompletionKind::Notification => {
                    self.take_delivery(world, pair, side, completion)
                }
                _ => {
                    self.note_progress(world.now(), pair, side);
                    self.take_completion(world, pair, side, completion)
                }
            };
            self.check_of(pair, outcome);
        }
    }

    /// Handles a completion of an operation that this side has posted.
    fn take_completion(
        &mut self,
        world: &mut World<E>,
        pair: usize,
        side: usize,
        completion: Completion,
    ) -> Result<(), Violation> {
        let now = world.now();
        let place = self.pairs[pair].hosts[side] as u32;
        let detail = completion.context << 1 | u64::from(completion.success);
        world.trace.record(now, Kind::Completed, place, detail);
        let view = self.target(world, pair, side);
        let Some(mut end) = self.pairs[pair].ends[side].take() else { return Ok(()) };
        let peer_host = self.pairs[pair].hosts[1 - side];
        let target = view.as_ref().map(|view| view as &dyn crate::oracle::TargetMemory);
        let is_denied = !(completion.success && end.hopeless.contains(&completion.context));
        let denied = Violation::NotDenied { number: completion.context };
        let peer = self.pairs[pair].ends[1 - side].as_ref();
        let peer_lost_inbox = match peer.filter(|peer| peer.generation == end.generation) {
            Some(peer) => peer.lost_inbox,
            // The peer has already discarded its end of this connection, so use the value that the
            // pair stores.
            None => self.pairs[pair].lost_memory == end.generation,
        };
        let fault = is_denied.then_some(()).ok_or(denied);
        let fault = fault.and_then(|()| Self::note_fault(&mut end, completion, peer_lost_inbox));
        let outcome = fault.and_then(|()| end.model.complete(completion, target));
        let outcome = outcome.and_then(|finished| {
            for finished in &finished {
                self.finish(world, &mut end, peer_host, finished, completion)?;
            }
            end.model.forget_completed();
            Ok(())
        });
        self.pairs[pair].ends[side] = Some(end);
        self.note_window(world, pair, side, completion);
        outcome
    }

    fn finish(
        &mut self,
        world: &World<E>,
        end: &mut End,
        peer: usize,
        finished: &Finished,
        completion: Completion,
    ) -> Result<(), Violation> {
        end.ring.release();
        if !completion.success {
            return Ok(());
        }
        self.tally.completed += 1;
        let posted = &finished.posted;
        let mut bytes = Vec::new();
        if posted.action.is_question() {
            bytes.resize(posted.length_bytes as usize, 0);
            world.engine(end.host).read_memory(end.local, posted.local_offset, &mut bytes);
        }
        if let (Action::FetchAdd { .. }, None) = (posted.action, posted.returns) {
            end.shared_outstanding = end.shared_outstanding.saturating_sub(1);
            return self.note_shared(end, peer, posted.offset, &bytes);
        }
        if self.plan.lenient { Ok(()) } else { end.model.check_result(finished, &bytes) }
    }

    /// Checks the value that an addition to a shared counter has found. No two additions may find
    /// the same value.
    fn note_shared(
        &mut self,
        end: &End,
        host: usize,
        offset: u32,
        bytes: &[u8],
    ) -> Result<(), Violation> {
        let found = bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        let counter = offset as usize / 8;
        let state = &mut self.hosts[host];
        if state.life == end.counter_life && !state.shared[counter].found.insert(found) {
            let what = format!("two additions found {found}");
            return Err(Violation::Counter { host, counter, what });
        }
        Ok(())
    }

    /// Handles the arrival of a message or notification from the other side.
    fn take_delivery(
        &mut self,
        world: &mut World<E>,
        pair: usize,
        side: usize,
        completion: Completion,
    ) -> Result<(), Violation> {
        let now = world.now();
        let shares = self.shares_receives();
        let Some(end) = &mut self.pairs[pair].ends[side] else { return Ok(()) };
        let host = end.host;
        let detail = u64::from(completion.length_bytes) << 1 | u64::from(completion.success);
        world.trace.record(now, Kind::Received, host as u32, detail);
        let inbox = end.inbox;
        let taken = if completion.kind == CompletionKind::Receive && shares {
            self.take_shared_receive(host, &completion)
        } else {
            end.take_receive(&completion, &self.plan.traffic).map(|slot| (inbox, slot))
        };
        let Some((inbox, slot)) = taken else {
            return Err(Violation::CompletionOrder { found: completion, expected: None });
        };
        if !completion.success {
            return Ok(());
        }
        let mut content = Vec::new();
        if completion.kind == CompletionKind::Receive {
            let length = completion.length_bytes.min(inbox.length_bytes - slot);
            content.resize(length as usize, 0);
            world.engine(host).read_memory(inbox, slot, &mut content);
        }
        self.tally.delivered += 1;
        let view = self.target(world, pair, 1 - side);
        let generation = self.pairs[pair].ends[side].as_ref().map(|end| end.generation);
        let Some(other) = &mut self.pairs[pair].ends[1 - side] else { return Ok(()) };
        if Some(other.generation) != generation {
            return Ok(());
        }
        let target = view.as_ref().map(|view| view as &dyn crate::oracle::TargetMemory);
        let outcome = other.model.deliver(completion, &content, target);
        self.note_invalidated(world, pair, side, completion);
        self.perhaps_leave(world, pair, side);
        outcome
    }

    pub(super) fn refused(&mut self, host: usize, what: &str, refusal: Refusal) {
        let what = format!("{what}: {refusal}");
        self.check(Err(Violation::Refused { host, what }));
    }
}

/// Private data of a request that the first side of a pair sends.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Invitation {
    pair: u32,
    generation: u32,
}

impl Invitation {
    fn encode(self) -> [u8; 8] {
        (u64::from(self.pair) << 32 | u64::from(self.generation)).to_le_bytes()
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let word = u64::from_le_bytes(bytes.try_into().ok()?);
        Some(Self { pair: (word >> 32) as u32, generation: word as u32 })
    }
}

/// Maximum time before a lost connection is requested again, in nanoseconds.
const RETRY_NS_MAX: u64 = 2_000_000;

/// Maximum number of regions that are observed after the end of their connection.
const FROZEN_MAX: usize = 16;
