//! Which classes of scenario a seed draws beside its plan. Each has a stream of its own, so that what
//! the plan of a seed was before there were classes it is still.

use super::faulty::FaultyPeer;
use super::full::FullDrivers;
use super::holes::Hole;
use super::plan::Plan;
use super::strangers::StrangersPlan;
use super::unlike::Unlike;
use super::wrap::Wrap;
use crate::world::Turns;
use crate::{Faults, Random};

/// What a run has beyond its plan.
#[derive(Clone, Debug, Default)]
pub(crate) struct Classes {
    /// Somebody who is no host forges frames.
    pub(crate) strangers: Option<StrangersPlan>,
    /// One more host that does not do its part.
    pub(crate) faulty: Option<FaultyPeer>,
    /// Drivers that are full for a while.
    pub(crate) full: Option<FullDrivers>,
    /// Paths that come to carry smaller frames.
    pub(crate) holes: Vec<Hole>,
    /// Numbers near the end of their range.
    pub(crate) wrap: Option<Wrap>,
    /// Ends that are made differently.
    pub(crate) unlike: Option<Unlike>,
    /// Hosts that look only now and then.
    pub(crate) turns: Option<Turns>,
    /// Of so many frames, drivers do not know of one whether it left.
    pub(crate) doubts_one_in: Option<u32>,
    /// Links are memory that hosts share: each peer has a ring of its own, which may be full.
    pub(crate) shares_memory: bool,
    /// Pairs of sound hosts must get on while faults last.
    pub(crate) watches_progress: bool,
}

impl Classes {
    /// Draws the classes of a seed and makes its plan fit them. Half of all seeds have none.
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

    /// The names of all classes drawn, for a reader.
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

/// Leaves so little to chance that pairs of sound hosts get on without a pause: a few losses, no
/// disaster, operations that pass any link in some milliseconds.
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

/// How long faults last that others must not feel: longer than the longest pause that counts as
/// progress, shorter than the silence after which a peer is dead.
pub(super) const CALM_NS: u64 = 2_500_000_000;

const CLASSES_STREAM: u64 = 0x636c_6173;

const DOUBTS_STREAM: u64 = 0x646f_7562;
