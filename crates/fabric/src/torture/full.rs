//! Drivers that refuse all frames for some time, and then report that they have room again.

use delivery::Instant;

use super::run::{Run, Wake};
use crate::host::HostEngine;
use crate::random::Random;
use crate::world::World;

/// Periods in which a driver is full. At most one driver is full at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FullDrivers {
    /// Maximum time between the end of a period and the start of the next, in nanoseconds.
    pub(crate) pause_ns_max: u64,
    /// Maximum length of a period, in nanoseconds.
    pub(crate) for_ns_max: u64,
    /// Probability that a driver is full for only one peer, in parts per million.
    pub(crate) one_peer_ppm: u32,
}

impl FullDrivers {
    pub(super) fn draw(random: &mut Random) -> Self {
        // Drivers are full for at most half of the time.
        let for_ns_max = random.pick(&[20_000, 2_000_000, 50_000_000]);
        Self {
            pause_ns_max: for_ns_max * random.pick(&[1, 2, 10]),
            for_ns_max,
            one_peer_ppm: random.pick(&[0, 500_000, 1_000_000]),
        }
    }
}

impl<E: HostEngine> Run<'_, E> {
    pub(super) fn schedule_full_drivers(&mut self, world: &mut World<E>) {
        if self.plan.classes.full.is_some() {
            self.wake_at(world, Instant(1_000), Wake::Fill);
        }
    }

    /// Makes a driver full for some time, and schedules the next period.
    pub(super) fn fill(&mut self, world: &mut World<E>) {
        let Some(plan) = self.plan.classes.full else { return };
        if self.healed {
            return;
        }
        let random = &mut self.chance;
        let until = world.now().after_ns(random.between(1, plan.for_ns_max));
        let again_at = until.after_ns(random.between(1_000, plan.pause_ns_max));
        let (first, second) = random.pick(&self.plan.pairs);
        let (host, peer) =
            if random.chance_ppm(500_000) { (first, second) } else { (second, first) };
        let link = random.below(self.plan.links.len() as u64) as usize;
        let is_for_one = random.chance_ppm(plan.one_peer_ppm);
        let peer = is_for_one.then(|| world.network.caps(self.port(peer, link)).local);
        world.network.set_full(self.port(host, link), peer, until);
        self.wake_at(world, again_at, Wake::Fill);
    }
}

/// Makes the drivers of all other hosts full for frames to `host`, which does not read.
pub(super) fn fill_for<E: HostEngine>(run: &Run<'_, E>, world: &mut World<E>, host: usize) {
    let until = Instant(run.plan.safety_ns);
    for other in (0..run.plan.hosts).filter(|&other| other != host) {
        for link in 0..run.plan.links.len() {
            let peer = world.network.caps(run.port(host, link)).local;
            world.network.set_full(run.port(other, link), Some(peer), until);
        }
    }
}
