//! Path-MTU black holes: paths that, during a run, start to drop frames that exceed some length,
//! without a report.

use delivery::Instant;

use super::plan::Plan;
use super::run::{Run, Wake};
use crate::host::HostEngine;
use crate::random::Random;
use crate::world::World;

/// One direction of a path that, during the run, starts to drop frames longer than
/// `frame_bytes_max`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hole {
    pub(crate) host: usize,
    pub(crate) link: usize,
    pub(crate) frame_bytes_max: u16,
    /// Time at which the path starts to drop longer frames, in nanoseconds.
    pub(crate) at_ns: u64,
}

impl Hole {
    pub(super) fn draw(random: &mut Random, plan: &mut Plan) {
        let most = random.between(1, (plan.hosts * plan.links.len()) as u64);
        for _ in 0..most {
            plan.classes.holes.push(Self {
                host: random.below(plan.hosts as u64) as usize,
                link: random.below(plan.links.len() as u64) as usize,
                frame_bytes_max: random.pick(&[1_232, 1_233, 1_280, 1_400, 4_000]),
                at_ns: random.below(plan.safety_ns),
            });
        }
    }
}

impl<E: HostEngine> Run<'_, E> {
    pub(super) fn schedule_holes(&mut self, world: &mut World<E>) {
        for index in 0..self.plan.classes.holes.len() {
            let at = Instant(self.plan.classes.holes[index].at_ns);
            self.wake_at(world, at, Wake::Narrow { hole: index });
        }
    }

    /// Makes a path drop frames longer than `frame_bytes_max` without a report.
    pub(super) fn narrow(&self, world: &mut World<E>, hole: usize) {
        let Hole { host, link, frame_bytes_max, .. } = self.plan.classes.holes[hole];
        world.network.set_path_bytes_max(self.port(host, link), frame_bytes_max);
    }
}
