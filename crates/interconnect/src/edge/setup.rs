//! Makes connections between hosts, on demand or before a run starts.

use delivery::{Instant, LinkId, LinkState};
use engine::{ConnectRequest, ConnectionHandle, Terms};
use std::sync::Arc;

use super::super::simulation::{Context, Fabric};
use super::host::{self, SERVICE, instant};
use super::{Counts, EdgeError, EdgeFabric, NEVER_PS, Pair, Stream};

impl EdgeFabric {
    /// Returns the index of the pair that two hosts form, and whether the pair is new. Adds the
    /// pair if needed.
    pub(super) fn pair(&mut self, a: u32, b: u32) -> (u32, bool) {
        let hosts = [a.min(b), a.max(b)];
        let next = self.pairs.len() as u32;
        let pair = *self.pairs_by_hosts.entry((hosts[0], hosts[1])).or_insert(next);
        if pair < next {
            return (pair, false);
        }
        self.pairs.push(Pair { hosts, handles: [None; 2], is_established: [false; 2] });
        for destination in [hosts[1], hosts[0]] {
            self.open_operations.add_stream(destination);
            self.streams.push(Stream::default());
        }
        (pair, true)
    }

    /// Makes the lower host of a pair send a connection request to the higher host.
    pub(super) fn connect(&mut self, context: &mut Context, pair: u32) {
        let [lower, higher] = self.pairs[pair as usize].hosts;
        let now_ps = context.wheel.now_ps();
        let host = &mut self.hosts[lower as usize];
        let rails = 0..self.configuration.rails;
        let request = ConnectRequest {
            paths: rails.map(|rail| (LinkId(rail), host::address(higher, rail))).collect(),
            service: SERVICE,
            private_data: pair.to_le_bytes().to_vec(),
            domain: host.domain,
            queues: Arc::clone(&self.queue).into(),
            terms: Terms::default(),
        };
        match host.engine.connect(instant(self.base_ns, now_ps), request) {
            Ok(handle) => {
                host.know(handle.index(), pair);
                self.pairs[pair as usize].handles[0] = Some(handle);
                let at_ps = host.free_ps.max(now_ps);
                self.schedule_turn(context, lower, at_ps);
            }
            Err(error) => {
                self.open_operations
                    .violate(format!("host {lower} cannot connect to {higher}: {error}"));
            }
        }
    }

    /// Accepts a peer's connection request. The private data of the request contains the number of
    /// the pair.
    pub(super) fn accept(
        &mut self,
        number: u32,
        now: Instant,
        handle: ConnectionHandle,
        private_data: &[u8],
    ) {
        let pair = private_data.first_chunk().map_or(u32::MAX, |bytes| u32::from_le_bytes(*bytes));
        let host = &mut self.hosts[number as usize];
        let queue = Arc::clone(&self.queue);
        let accepted = host.engine.accept(now, handle, host.domain, queue, &[]);
        match (accepted, self.pairs.get_mut(pair as usize)) {
            (Ok(()), Some(known)) => {
                known.handles[1] = Some(handle);
                host.know(handle.index(), pair);
            }
            (outcome, _) => {
                self.open_operations
                    .violate(format!("host {number}, request for pair {pair}: {outcome:?}"));
            }
        }
    }

    /// Handles a connection that a host's engine has reported as established.
    pub(super) fn on_established(&mut self, context: &mut Context, number: u32, index: u32) {
        let host = &mut self.hosts[number as usize];
        let pair = host.pairs[index as usize];
        let known = &mut self.pairs[pair as usize];
        let end = usize::from(known.hosts[1] == number);
        known.is_established[end] = true;
        let stream = 2 * pair + end as u32;
        if !self.streams[stream as usize].waiting.is_empty() {
            host.block(&mut self.streams, stream);
            let at_ps = host.free_ps.max(context.wheel.now_ps());
            self.schedule_turn(context, number, at_ps);
        }
    }

    /// Connects pairs on all rails before the run starts. Setting up connections takes no time of
    /// the run. Does nothing if the configuration connects on demand.
    ///
    /// # Errors
    /// Returns [`EdgeError`]; each variant names one cause.
    pub fn connect_ahead(&mut self, pairs: &[(u32, u32)]) -> Result<(), EdgeError> {
        if !self.configuration.connects_ahead || pairs.is_empty() {
            return Ok(());
        }
        let mut context = Context::new(self.slot_ps());
        // Engine timers run only while a message is pending, so the set-up counts as a pending
        // message.
        self.open_messages = 1;
        for &(a, b) in pairs {
            if a != b
                && let (pair, true) = self.pair(a, b)
            {
                self.connect(&mut context, pair);
            }
        }
        self.set_up(&mut context)?;
        self.open_messages = 0;
        self.rest();
        self.counts = Counts::default();
        self.base_ns += context.wheel.now_ps() / 1_000 + 1;
        for rail in &mut self.rails {
            rail.restart();
        }
        self.suspended.clear();
        for (number, host) in self.hosts.iter_mut().enumerate() {
            (host.free_ps, host.interrupt_ps) = (0, 0);
            (host.timer_ps, host.turn_ps) = (NEVER_PS, NEVER_PS);
            host.is_suspended = true;
            self.suspended.push(number as u32);
        }
        Ok(())
    }

    /// Runs the simulation until the configured connections are established and idle.
    fn set_up(&mut self, context: &mut Context) -> Result<(), EdgeError> {
        let mut ready = 0;
        let mut until_ps = SETUP_MAX_PS;
        loop {
            let is_quiet = self.frames.in_flight() == 0;
            while is_quiet && ready < self.pairs.len() && self.is_ready(ready) {
                ready += 1;
            }
            let is_made = ready == self.pairs.len();
            if is_made && is_quiet {
                until_ps = until_ps.min(context.wheel.now_ps() + SETTLING_PS);
                if self.hosts.iter().all(|host| host.engine.is_idle()) {
                    return Ok(());
                }
            }
            match context.wheel.pop() {
                Some(event) if event.time_ps < until_ps || is_made && !is_quiet => {
                    self.handle(context, event);
                }
                _ if is_made => return Ok(()),
                _ => {
                    let [from, to] = self.pairs[ready].hosts;
                    let rails = self.configuration.rails;
                    return Err(EdgeError::NotConnected { from, to, rails });
                }
            }
        }
    }

    /// Returns whether the connection of a pair works on all rails.
    fn is_ready(&self, pair: usize) -> bool {
        let Pair { hosts, handles, is_established } = self.pairs[pair];
        is_established == [true; 2]
            && hosts.iter().zip(handles).all(|(&host, handle)| {
                let engine = &self.hosts[host as usize].engine;
                let info = handle.and_then(|handle| engine.info(handle));
                info.is_some_and(|info| {
                    let up = info.paths.iter().filter(|path| path.state == LinkState::Up);
                    up.count() == usize::from(self.configuration.rails)
                })
            })
    }
}

/// Maximum time to establish connections, in picoseconds: one minute.
const SETUP_MAX_PS: u64 = 60_000_000_000_000;

/// Time after which new connections are idle, in picoseconds. Connections send pending
/// acknowledgements within half of this time.
const SETTLING_PS: u64 = 2_000_000_000;
