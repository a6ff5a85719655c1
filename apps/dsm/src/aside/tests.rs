//! Tests the times on simulated hosts. The slowest host has a quarter of the speed of the host on
//! which the costs were first measured, and the fastest host has four times that speed.
//!
//! One processor runs a thread of the application and the progress thread of its rank. This is the
//! hard case, because each look of the progress thread delays the application.

use super::*;
use crate::driving::LOOK_AGAIN;
use crate::meeting::AWAKE;

/// Costs on a host, in nanoseconds.
#[derive(Clone, Copy, Debug)]
struct Host {
    /// Duration of any work, in quarters of its duration on the host of the first measurements.
    quarters: u64,
    /// Time from an event until a thread runs that slept until this event.
    wake_up: u64,
    /// Processor time that a thread needs to go to sleep and wake up.
    spent: u64,
    /// Time in which a page comes from a rank that is awake.
    fetch: u64,
}

fn hosts() -> [Host; 5] {
    [1, 2, 4, 8, 16].map(|quarters| {
        let host = Host { quarters, wake_up: 0, spent: 0, fetch: 0 };
        Host { wake_up: host.work(30), spent: host.work(15), fetch: host.work(20), ..host }
    })
}

impl Host {
    /// Returns the nanoseconds of work that takes `us` microseconds on the host of the first
    /// measurements.
    const fn work(&self, us: u64) -> u64 {
        us * 1000 * self.quarters / 4
    }
}

/// What the application does.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Waits in a call for this time.
    Wait(u64),
    /// Computes for this time, if it is not delayed.
    Compute(u64),
}

/// Returns `fetches` fetches with `gap` nanoseconds of work between them.
fn series(host: &Host, fetches: usize, gap: u64) -> Vec<Step> {
    let mut steps = [Step::Wait(host.fetch), Step::Compute(gap)].repeat(fetches);
    steps.pop();
    steps
}

/// A rank. All times are in nanoseconds.
struct Rank {
    times: Times,
    host: Host,
    now: u64,
    changes: u64,
    watched: Watched,
    /// Missing while the progress thread waits at the endpoint.
    aside: Option<Aside>,
    /// Processor time of the progress thread.
    taken: u64,
    /// For how long calls polled.
    polled: u64,
    /// When the progress thread last began to serve the machine.
    served: u64,
}

/// A progress thread that stands aside.
struct Aside {
    began: u64,
    next_look: u64,
}

impl Rank {
    fn new(times: Times, host: Host) -> Self {
        let watched = Watched::default();
        Self {
            times,
            host,
            now: 0,
            changes: 0,
            watched,
            aside: None,
            taken: 0,
            polled: 0,
            served: 0,
        }
    }

    fn run(&mut self, steps: &[Step]) {
        for step in steps {
            match *step {
                Step::Wait(time) => self.wait(time),
                Step::Compute(time) => self.now = self.look_until(self.now + time, false),
            }
        }
    }

    fn wait(&mut self, time: u64) {
        let in_driver = time.saturating_sub(nanoseconds(AWAKE));
        let sleeps = in_driver > 0 && !self.times.polls(Duration::from_nanos(in_driver));
        let most = nanoseconds(self.times.spin + AWAKE);
        self.polled += if sleeps { most } else { time };
        let late = if sleeps { self.host.wake_up } else { 0 };
        self.changes += 1;
        self.now = self.look_until(self.now + time + late, true);
        self.changes += 1;
        if self.aside.is_none() {
            // The frame for which the call waited has woken the progress thread.
            self.now += self.host.spent;
            self.taken += self.host.spent;
            self.aside = Some(Aside { began: self.now, next_look: self.now });
        }
    }

    /// Lets the progress thread look until the end of a step. Returns the end, which looks delay.
    fn look_until(&mut self, mut end: u64, is_driven: bool) -> u64 {
        let Host { wake_up, spent, .. } = self.host;
        while let Some(aside) = &mut self.aside
            && aside.next_look <= end
        {
            let look = aside.next_look;
            self.taken += spent;
            end = if is_driven { end.max(look + spent) } else { end + spent };
            if self.watched.needs_progress(self.changes, is_driven) {
                // It waits at the endpoint, which polls before it sleeps.
                self.served = look + spent;
                self.aside = None;
                self.taken += nanoseconds(AWAKE);
                return end + nanoseconds(AWAKE);
            }
            if look - aside.began >= nanoseconds(LOOK_AGAIN) {
                aside.began = look;
            }
            let pause = self.times.pause(Duration::from_nanos(look - aside.began));
            aside.next_look = look + spent + nanoseconds(pause) + wake_up;
        }
        end
    }
}

fn nanoseconds(time: Duration) -> u64 {
    time.as_nanos() as u64
}

/// What programs need of the times.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Demand {
    /// Fetches that follow each other take at most 1.3 times as long as without any sleep.
    Fetches,
    /// A call that waits for work of a millisecond polls for at most half of that time.
    Rest,
    /// If the application computes between fetches for as long as three of them take, the program
    /// takes at most twice as long as without the progress thread.
    Gaps,
    /// While fetches follow each other, the progress thread takes at most 15 % of a processor.
    Looks,
    /// After up to four fetches, peers are served within 500 µs.
    SoonAfterFew,
    /// After up to 60 fetches, peers are served within half of the time of these and 500 µs.
    SoonAfterSome,
    /// After any number of fetches, peers are served within 1.5 ms.
    SoonAfterMany,
}

const DEMANDS: [Demand; 7] = [
    Demand::Fetches,
    Demand::Rest,
    Demand::Gaps,
    Demand::Looks,
    Demand::SoonAfterFew,
    Demand::SoonAfterSome,
    Demand::SoonAfterMany,
];

impl Demand {
    fn is_met(self, times: Times, host: Host) -> bool {
        let ran = |steps: &[Step]| {
            let mut rank = Rank::new(times, host);
            rank.run(steps);
            rank
        };
        let close = |fetches| series(&host, fetches, host.work(2));
        // Returns whether peers are served in time after these numbers of fetches.
        let is_soon = |mut fetches: std::ops::Range<usize>, most: fn(u64) -> u64| {
            fetches.all(|fetches| {
                let mut rank = ran(&close(fetches));
                let end = rank.now;
                rank.run(&[Step::Compute(50_000_000)]);
                assert!(rank.served > end, "the progress thread serves in the end");
                rank.served - end <= most(end)
            })
        };
        match self {
            Self::Fetches => ran(&close(1000)).now * 10 <= duration(&close(1000)) * 13,
            Self::Rest => {
                let wait = host.work(1000);
                2 * ran(&[Step::Wait(wait)]).polled <= wait
            }
            Self::Gaps => {
                let steps = series(&host, 200, 3 * host.fetch);
                ran(&steps).now <= 2 * duration(&steps)
            }
            Self::Looks => {
                let rank = ran(&close(1000));
                rank.taken * 100 <= rank.now * 15
            }
            Self::SoonAfterFew => is_soon(1..5, |_| 500_000),
            Self::SoonAfterSome => is_soon(5..61, |series| series / 2 + 500_000),
            Self::SoonAfterMany => is_soon(500..540, |_| 1_500_000),
        }
    }
}

/// Returns how long steps take if nothing delays them.
fn duration(steps: &[Step]) -> u64 {
    steps
        .iter()
        .map(|step| match *step {
            Step::Wait(time) | Step::Compute(time) => time,
        })
        .sum()
}

/// Returns the demands that these times do not meet on each host.
fn unmet(times: Times) -> Vec<Demand> {
    let is_unmet = |demand: &Demand| hosts().iter().any(|host| !demand.is_met(times, *host));
    DEMANDS.into_iter().filter(is_unmet).collect()
}

const CHOSEN: Times = Times::CHOSEN;

#[test]
fn the_chosen_times_meet_all_demands_on_every_host() {
    assert_eq!(unmet(CHOSEN), []);
}

#[test]
fn without_the_spin_or_with_another_magnitude_a_demand_is_unmet() {
    for spin in [Duration::ZERO, CHOSEN.spin / 16] {
        assert!(unmet(Times { spin, ..CHOSEN }).contains(&Demand::Fetches), "{spin:?}");
    }
    let longer = Times { spin: CHOSEN.spin * 16, ..CHOSEN };
    assert!(unmet(longer).contains(&Demand::Rest));
}

#[test]
fn without_the_shortest_pause_or_with_another_magnitude_a_demand_is_unmet() {
    for pause_min in [Duration::ZERO, CHOSEN.pause_min / 16] {
        assert!(unmet(Times { pause_min, ..CHOSEN }).contains(&Demand::Gaps), "{pause_min:?}");
    }
    let longer = Times { pause_min: CHOSEN.pause_min * 16, ..CHOSEN };
    assert!(unmet(longer).contains(&Demand::SoonAfterFew));
}

#[test]
fn without_the_longest_pause_or_with_another_magnitude_a_demand_is_unmet() {
    for pause_max in [Duration::MAX, CHOSEN.pause_max * 16] {
        let unmet = unmet(Times { pause_max, ..CHOSEN });
        assert!(unmet.contains(&Demand::SoonAfterMany), "{pause_max:?}");
    }
    let shorter = Times { pause_max: CHOSEN.pause_max / 16, ..CHOSEN };
    assert!(unmet(shorter).contains(&Demand::Looks));
}

#[test]
fn without_the_divisor_or_with_another_magnitude_a_demand_is_unmet() {
    let undivided = Times { pause_divisor: 1, ..CHOSEN };
    assert!(unmet(undivided).contains(&Demand::SoonAfterSome));
    let rarely_longer = Times { pause_divisor: CHOSEN.pause_divisor * 16, ..CHOSEN };
    assert!(unmet(rarely_longer).contains(&Demand::Looks));
}
