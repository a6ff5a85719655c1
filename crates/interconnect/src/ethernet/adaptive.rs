//! Routes that depend on load: flowlets, and detours around a busy shortest route.

use super::super::routing::Choice;
use super::super::statistics::mix;
use super::{DIRECT, Ethernet, EthernetConfiguration, UNDECIDED};

/// The flowlets of all switches.
#[derive(Clone, Debug)]
pub(super) struct Adaptive {
    /// [`FLOWLETS`] entries per switch, indexed by a hash of the flow. Empty if frames take
    /// detours.
    flowlets: Vec<Flowlet>,
}

/// The most recent flowlet of all flows that have the same hash.
#[derive(Clone, Copy, Debug)]
struct Flowlet {
    last_ps: u64,
    link: u32,
}

impl Adaptive {
    pub(super) fn new(configuration: &EthernetConfiguration, switches: u32) -> Self {
        let count = match configuration.choice {
            Choice::Flowlet { .. } => switches as usize * FLOWLETS,
            _ => 0,
        };
        Self { flowlets: vec![Flowlet { last_ps: 0, link: u32::MAX }; count] }
    }
}

impl Ethernet {
    /// Returns the port through which a frame leaves a switch, which depends on the load.
    pub(super) fn adapt(&mut self, now_ps: u64, at: (u32, u32), index: u32) -> u32 {
        match self.configuration.choice {
            Choice::Flowlet { gap_ps } => self.follow_flowlet(now_ps, at, index, gap_ps),
            _ => self.detour(now_ps, at, index),
        }
    }

    /// Returns the port of a flow's current flowlet. Frames in close succession use the same port.
    /// A pause longer than the gap ends the flowlet. The next frame then starts a flowlet on the
    /// least loaded port. After the pause, earlier frames are so far ahead that this frame cannot
    /// overtake them.
    fn follow_flowlet(&mut self, now_ps: u64, at: (u32, u32), index: u32, gap_ps: u64) -> u32 {
        let (switch, base) = at;
        let frame = *self.frames.get(index);
        let candidates = self.routes.candidates(switch, frame.destination);
        if let [only] = candidates {
            return base + *only;
        }
        let least = self.least_loaded(candidates, base);
        let hash = mix(u64::from(frame.flow), 2) as usize % FLOWLETS;
        let place = self.switch_place(switch, base) as usize * FLOWLETS + hash;
        let Some(adaptive) = &self.adaptive else { return base + least };
        let mut flowlet = adaptive.flowlets[place];
        // Another flow with the same hash can have written the entry. The port may then not be a
        // candidate of this flow.
        let has_ended = now_ps > flowlet.last_ps + gap_ps || !candidates.contains(&flowlet.link);
        if has_ended || self.is_down(base + flowlet.link) {
            flowlet.link = least;
        }
        flowlet.last_ps = now_ps;
        if let Some(adaptive) = &mut self.adaptive {
            adaptive.flowlets[place] = flowlet;
        }
        base + flowlet.link
    }

    /// Decides between the shortest route and a detour by universal globally adaptive load
    /// balancing. The first switch on the route decides, and considers only its own queues. The
    /// detour leads over a random switch. The frame takes the detour if the product of backlog and
    /// number of links is smaller for the detour than for the shortest route.
    fn detour(&mut self, now_ps: u64, at: (u32, u32), index: u32) -> u32 {
        let (switch, base) = at;
        let frame = *self.frames.get(index);
        let mut via = self.states[index as usize].via;
        if via == UNDECIDED {
            via = self.decide(now_ps, at, frame.destination, frame.flow);
        }
        if via != DIRECT && self.routes.is_local(switch, via) {
            via = DIRECT;
        }
        self.states[index as usize].via = via;
        let towards = if via == DIRECT { frame.destination } else { via };
        match self.routes.candidates(switch, towards) {
            [only] => base + *only,
            several => base + self.least_loaded(several, base),
        }
    }

    fn decide(&self, now_ps: u64, (switch, base): (u32, u32), to: u32, flow: u32) -> u32 {
        let hash = mix(u64::from(flow), 3) >> 32;
        let via = ((hash * u64::from(self.hosts)) >> 32) as u32;
        let is_no_detour =
            |host| self.routes.is_local(switch, host) || self.routes.is_same_switch(via, host);
        if is_no_detour(to) || self.routes.is_local(switch, via) {
            return DIRECT;
        }
        let backlog_ps = |host| {
            let link = self.least_loaded(self.routes.candidates(switch, host), base);
            self.drained_ps(base + link).saturating_sub(now_ps)
        };
        let (first, via_switch) = self.hops(switch, via);
        let (second, _) = self.hops(via_switch, to);
        let (direct, _) = self.hops(switch, to);
        if backlog_ps(to) * direct > backlog_ps(via) * (first + second) { via } else { DIRECT }
    }

    /// Returns the number of links from a switch to the switch of a host, and that host's switch.
    fn hops(&self, switch: u32, host: u32) -> (u64, u32) {
        let (mut at, mut hops) = (switch, 0);
        while let Some(&link) = self.routes.candidates(at, host).first() {
            let Some(next) = self.ends[link as usize].node().checked_sub(self.hosts) else { break };
            at = next;
            hops += 1;
        }
        (hops, at)
    }
}

/// Number of flowlet entries per switch, which use 16 KiB.
const FLOWLETS: usize = 1024;
