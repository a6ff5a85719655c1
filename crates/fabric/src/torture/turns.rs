//! Engines that run late. Their drivers handle inputs only at intervals, so that many frames wait
//! when an engine runs. The drivers send a few frames in each call. They call the engine again only
//! if the engine has asked for another call.

use super::run::Run;
use crate::host::HostEngine;
use crate::random::Random;
use crate::world::Turns;
use crate::world::World;

impl Turns {
    pub(super) fn draw(random: &mut Random) -> Self {
        Self {
            every_ns: random.pick(&[1_000, 20_000, 200_000, 2_000_000]),
            timer_late_ns_max: random.pick(&[0, 50_000, 1_000_000, 10_000_000]),
            sends_briefly: random.chance_ppm(700_000),
        }
    }
}

impl<E: HostEngine> Run<'_, E> {
    /// Makes hosts run their engines only at the intervals of the plan, if the plan has intervals.
    pub(super) fn set_turns(&self, world: &mut World<E>) {
        let Some(turns) = self.plan.classes.turns else { return };
        for host in 0..self.plan.hosts {
            world.set_turns(host, turns, Random::stream(self.seed, TURNS_STREAM + host as u64));
        }
    }
}

const TURNS_STREAM: u64 = 0x7475_726e_0000;
