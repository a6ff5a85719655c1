//! Random delays of frames at switches, derived from the seed.
//!
//! Without jitter, two hosts that send at equal rates stay synchronised. If a buffer is full, each
//! departing frame then frees space for the same host, and the other host loses every frame (phase
//! effects: Floyd and Jacobson, "On traffic phase effects in packet-switched gateways", 1992,
//! section 3.2). A random delay of up to one service time per frame prevents this effect.
//!
//! Each frame is delayed when it reaches a switch. Delays at the sending host would leave gaps on
//! the host's link and so reduce its rate. Delays at the switch do not reduce the rate of a link.
//! They also change which of two hosts reaches the queue first if the links of both hosts are
//! always busy. Frames of the same link stay in order.

use fabric::Random;

use super::{Ethernet, EthernetConfiguration};

/// Random delays of frames on the links of a network.
#[derive(Clone, Debug)]
pub(super) struct Jitter {
    percent: u64,
    /// Serialisation time of a byte on the slowest link, in 1/256 ps.
    byte_time: u64,
    links: Vec<Late>,
}

/// Delay state of a link.
#[derive(Clone, Debug)]
struct Late {
    random: Random,
    /// Time when the switch handled the last frame of this link, in picoseconds.
    latest_ps: u64,
}

impl Jitter {
    /// Creates the jitter of a network whose slowest link takes `byte_time` per byte. Networks with
    /// equal seeds and different `rail` get different delays.
    pub(super) fn new(
        configuration: &EthernetConfiguration,
        byte_time: u32,
        (rail, ports): (u8, u32),
    ) -> Self {
        let stream = |port| u64::from(rail) << 32 | u64::from(port);
        let late =
            |port| Late { random: Random::stream(configuration.salt, stream(port)), latest_ps: 0 };
        Self {
            percent: configuration.jitter_percent.into(),
            byte_time: byte_time.into(),
            links: (0..ports).map(late).collect(),
        }
    }

    /// Returns the time at which a switch handles a frame that arrives at `arrived_ps`. The switch
    /// handles the frames of a link in the order of arrival.
    fn delay(&mut self, link: u32, bytes: u32, arrived_ps: u64) -> u64 {
        let most_ps = ((u64::from(bytes) * self.byte_time) >> 8) * self.percent / 100;
        let link = &mut self.links[link as usize];
        // Each time is later by at least 1 than the time of the frame before. With equal times, the
        // event wheel could change the order of two frames.
        link.latest_ps = (arrived_ps + link.random.below(most_ps)).max(link.latest_ps + 1);
        link.latest_ps
    }
}

impl Ethernet {
    /// Returns the time at which a frame of `bytes` bytes reaches the end of a link. Without
    /// jitter, the frame would reach it at `arrived_ps`.
    #[inline]
    pub(super) fn jittered_ps(&mut self, link: u32, bytes: u32, arrived_ps: u64) -> u64 {
        match &mut self.jitter {
            Some(jitter) if self.ends[link as usize].node() >= self.hosts => {
                jitter.delay(link, bytes, arrived_ps)
            }
            _ => arrived_ps,
        }
    }

    /// Sets the rail. Networks with equal seeds and different rails have different jitter. The run
    /// must not have started.
    pub fn set_rail(&mut self, rail: u8) {
        self.rail = rail;
        self.reset_jitter();
    }

    /// Resets the jitter to its state at the start of the run.
    pub(super) fn reset_jitter(&mut self) {
        let ports = self.ports.len() as u32;
        let (_, slowest) = self.byte_time_bounds();
        let jitter = || Jitter::new(&self.configuration, slowest, (self.rail, ports));
        self.jitter = (self.configuration.jitter_percent > 0).then(|| Box::new(jitter()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the delays of frames on the link `link`, in a network of two links. The frames have
    /// 1000 bytes and take 8 µs each at 1 Gb/s.
    fn delays(salt: u64, rail: u8, link: u32) -> Vec<u64> {
        let configuration = EthernetConfiguration {
            jitter_percent: 50,
            salt,
            ..EthernetConfiguration::with_rate(1_000_000_000)
        };
        let mut jitter =
            Jitter::new(&configuration, super::super::byte_time(1_000_000_000), (rail, 2));
        (1..=1_000).map(|at| jitter.delay(link, 1_000, at * 8_000_000) - at * 8_000_000).collect()
    }

    #[test]
    fn jitter_stays_below_its_share_and_averages_half_of_it() {
        let delays = delays(1, 0, 1);
        assert!(delays.iter().all(|&delay| delay < 4_000_000), "{:?}", delays.iter().max());
        let mean = delays.iter().sum::<u64>() / 1_000;
        assert!((1_900_000..2_100_000).contains(&mean), "{mean}");
    }

    #[test]
    fn links_rails_and_seeds_have_independent_jitter() {
        let first = delays(1, 0, 0);
        assert_eq!(delays(1, 0, 0), first);
        for other in [delays(1, 0, 1), delays(1, 1, 0), delays(2, 0, 0)] {
            assert_ne!(other, first);
        }
    }

    #[test]
    fn frames_of_a_link_stay_in_order() {
        let configuration = EthernetConfiguration {
            jitter_percent: 10_000,
            ..EthernetConfiguration::with_rate(1_000_000_000)
        };
        let mut jitter =
            Jitter::new(&configuration, super::super::byte_time(1_000_000_000), (0, 1));
        let arrivals: Vec<u64> = (0..1_000).map(|at| jitter.delay(0, 64, at * 500_000)).collect();
        assert!(arrivals.is_sorted_by(|a, b| a < b));
    }
}
