//! Hosts with busy processors. An engine runs only while its thread has a processor. The thread can
//! lose the processor both inside and outside the engine.

use super::run::Run;
use crate::host::HostEngine;
use crate::random::Random;
use crate::scheduler::Settings;
use crate::world::Load;
use crate::world::World;

impl Load {
    /// Chooses a random host with this number of busy threads per processor.
    fn draw(random: &mut Random, load: usize) -> Self {
        let processors = random.pick(&[1, 2, 2, 4]);
        let settings = Settings::usual(processors).scaled(random.pick(&[1, 2, 4, 8, 16]));
        // Random slice lengths make the slices of the two hosts drift apart.
        let slice_ns = random.between(1_000_000, 5_000_000);
        let step_ns_max = random.pick(&[1_000, 20_000, 200_000]);
        Self { processors: Settings { slice_ns, ..settings }, busy: load * processors, step_ns_max }
    }
}

impl<E: HostEngine> Run<'_, E> {
    /// If the options say so, makes hosts share their processors with other threads.
    pub(super) fn set_load(&self, world: &mut World<E>) {
        let Some(load) = self.options.load else { return };
        for host in 0..self.plan.hosts {
            let mut random = Random::stream(self.seed, LOAD_STREAM + host as u64);
            let load = Load::draw(&mut random, usize::from(load));
            world.set_load(host, load, random);
        }
    }
}

const LOAD_STREAM: u64 = 0x6c6f_6164_0000;
