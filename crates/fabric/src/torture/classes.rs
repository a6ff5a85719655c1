//! Classes of scenario that a seed selects in addition to its plan. Each class has its own random
//! stream, so that seeds keep the plans that they had before classes existed.

use super::faulty::FaultyPeer;
use super::full::FullDrivers;
use super::holes::Hole;
use super::plan::Plan;
use super::strangers::StrangersPlan;
use super::unlike::Unlike;
use super::wrap::Wrap;
use crate::channel::Faults;
use crate::random::Random;
use crate::world::Turns;

/// The classes that a run has in addition to its plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classes {
    /// Attackers without a host, which forge frames.
    pub(crate) strangers: Option<StrangersPlan>,
    /// One more host, which misbehaves.
    pub(crate) faulty: Option<FaultyPeer>,
    /// Drivers are sometimes full.
    pub(crate) full: Option<FullDrivers>,
    /// During the run, paths start to drop frames that exceed some length.
    pub(crate) holes: Vec<Hole>,
    /// Sequence numbers start near the end of their range.
    pub(crate) wrap: Option<Wrap>,
    /// The ends have different settings.
    pub(crate) unlike: Option<Unlike>,
    /// Hosts run their engines only at intervals.
    pub(crate) turns: Option<Turns>,
    /// With the value N, the driver cannot say for every Nth frame whether the frame has left.
    pub(crate) doubts_one_in: Option<u32>,
    /// Links are memory that hosts share. Each peer has its own ring, which can become full.
    pub(crate) shares_memory: bool,
    /// Pairs of sound hosts must make progress even during faults.
    pub(crate) watches_progress: bool,
}

impl Classes {
    /// Selects the classes of a seed, and adapts the seed's plan to them. Half of all seeds have no
    /// class; a seed of either half can also have doubtful frames.
    pub(crate) fn draw(seed: u64, plan: &mut Plan) {
        let mut random = Random::stream(seed, DOUBTS_STREAM);
        if random.chance_ppm(100_000) {
            plan.classes.doubts_one_in = Some(random.pick(&[3, 20, 200]));
        }
        let mut random = Random::stream(seed, CLASSES_STREAM);
        if plan.lenient || random.chance_ppm(500_000) {
            return;
        }
        let count = random.pick(&[1, 1, 2]);
        for _ in 0..count {
            let mut random = Random::stream(seed, random.next_u64());
            match random.below(KINDS) {
                0 => plan.classes.strangers = Some(StrangersPlan::draw(&mut random, plan)),
                1 | 2 => FaultyPeer::draw(&mut random, plan),
                3 => plan.classes.full = Some(FullDrivers::draw(&mut random)),
                4 => Hole::draw(&mut random, plan),
                5 => plan.classes.wrap = Some(Wrap::draw(&mut random)),
                6 => plan.classes.unlike = Some(Unlike::draw(&mut random, plan)),
                _ => plan.classes.turns = Some(Turns::draw(&mut random)),
            }
        }
    }

    /// Returns the names of all selected classes, for reports.
    pub(crate) fn names(&self) -> Vec<&'static str> {
        let mut names = Vec::new();
        names.extend(self.strangers.as_ref().map(|_| "strangers"));
        names.extend(self.faulty.as_ref().map(|faulty| faulty.kind.name()));
        names.extend(self.full.map(|_| "full drivers"));
        names.extend(self.holes.first().map(|_| "narrow paths"));
        names.extend(self.wrap.map(|_| "numbers that wrap"));
        names.extend(self.unlike.as_ref().map(|_| "unlike ends"));
        names.extend(self.turns.map(|_| "rare turns"));
        names.extend(self.doubts_one_in.map(|_| "frames in doubt"));
        names
    }
}

/// Limits the random faults of a plan so that pairs of sound hosts always make progress. There are
/// few losses and no disasters, and operations take at most some milliseconds on any link.
pub(super) fn calm(random: &mut Random, plan: &mut Plan) {
    plan.faults = Faults { loss_ppm: random.pick(&[0, 0, 1_000, 10_000]), ..Faults::default() };
    plan.disasters.clear();
    plan.safety_ns = CALM_NS;
    plan.traffic.length_bytes_max = plan.traffic.length_bytes_max.min(8_192);
    plan.traffic.operations = plan.traffic.operations.min(40);
    plan.traffic.rogue_ppm = 0;
    plan.traffic.sleep_ns_max = plan.traffic.sleep_ns_max.min(500_000);
    plan.classes.watches_progress = true;
}

const KINDS: u64 = 8;

/// Duration of faults that must not affect other pairs, in nanoseconds. It is longer than the
/// longest time without progress that the checks allow, so that the checks notice an affected pair.
/// It is shorter than the time after which a host regards a silent peer as dead.
pub(super) const CALM_NS: u64 = 2_500_000_000;

const CLASSES_STREAM: u64 = 0x636c_6173;

const DOUBTS_STREAM: u64 = 0x646f_7562;
