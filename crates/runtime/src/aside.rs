//! For how long the progress thread leaves the links to an application that serves them itself.

/// The rule, without clock and threads.
///
/// An application that polls gains nothing from a second thread at the links: each frame would wake it for
/// nothing. One that polled and now waits for bytes in its memory, or computes, needs it. Nobody tells
/// which of the two it is, so it is learnt from looks: work that is found waiting at one quarters the
/// time until the next, an application that is found at the links doubles it. While the time is short,
/// an application that was at the links a moment ago does not count as being there any more: the thread
/// sleeps on the links then, and a frame for an application that waits for bytes is served as soon as the
/// thread has woken up.
#[derive(Debug)]
pub(crate) struct Aside {
    /// For how long it last stepped aside; 0 after work was found waiting again and again.
    ns: u64,
    /// How often in a row the application was at the links.
    polled_looks: u32,
    /// At the last look the application had not been at the links for long.
    is_quiet: bool,
}

/// What the thread does next.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Step {
    /// Looks again after so many nanoseconds.
    Aside(u64),
    /// Serves the links, then sleeps on them.
    Serve,
}

impl Aside {
    pub(crate) const fn new() -> Self {
        Self { ns: FIRST_NS, polled_looks: 0, is_quiet: true }
    }

    /// What to do when the application came to the links `polled_ns_ago`, last. While somebody `is_inside` the engine
    /// it does not matter when he came there: one turn may take longer than an application that polls is ever away.
    pub(crate) fn step(&mut self, is_inside: bool, polled_ns_ago: u64) -> Step {
        if is_inside || polled_ns_ago < self.away_ns() {
            Step::Aside(self.at_it())
        } else {
            self.polled_looks = 0;
            self.is_quiet = polled_ns_ago >= QUIET_NS;
            Step::Serve
        }
    }

    /// An application that was not at the links for so long is not at them any more.
    pub(crate) fn away_ns(&self) -> u64 {
        self.ns.clamp(SHORTEST_NS, AT_IT_NS)
    }

    /// The application is at the links: for how long to leave them to it.
    pub(crate) fn at_it(&mut self) -> u64 {
        self.polled_looks = self.polled_looks.saturating_add(1);
        let longest = if self.polled_looks > POLLED_LOOKS { LONGEST_POLLED_NS } else { LONGEST_NS };
        self.ns = (self.ns * 2).clamp(SHORTEST_NS, longest);
        self.ns
    }

    /// The links were served; whether work had waited there. It is nothing new that an application which
    /// does something else leaves work waiting.
    pub(crate) fn served(&mut self, found: bool) {
        if self.is_quiet {
            self.ns = self.ns.min(FIRST_NS);
        } else if found {
            self.ns /= 4;
        }
        if self.ns < SHORTEST_NS {
            self.ns = 0;
        }
    }

    /// A thread of the application sleeps on the links itself: for how long to leave them to it; `None`,
    /// when it has done so for long, until it calls.
    pub(crate) fn watched(&mut self) -> Option<u64> {
        if self.ns >= REST_NS {
            self.ns = FIRST_NS;
            return None;
        }
        self.ns = (self.ns * 2).clamp(FIRST_NS, REST_NS);
        Some(self.ns)
    }
}

/// The shortest time aside. A poll that finds nothing takes less on the slowest hosts, 8 µs: who polls
/// always counts as being at the links. Half of what it takes to wake up is not noticed beside that.
const SHORTEST_NS: u64 = 12_500;

/// Who has been at the links within this time still is, unless work was found waiting again and again:
/// several turns, or one that sends a large message.
const AT_IT_NS: u64 = 50_000;

/// The application counts as polling for this long after it did: longer than a turn that fills a
/// window of 1 MiB takes, about 200 µs.
pub(crate) const QUIET_NS: u64 = 400_000;

/// The time aside to begin with, and after an application that polled does something else.
const FIRST_NS: u64 = 50_000;

/// At most this long nobody serves the links after the application has stopped polling: half of the
/// shortest probe timeout, so that peers do not suspect a loss. 2000 looks a second of 2 µs each
/// are 0.4 % of a processor.
const LONGEST_NS: u64 = 500_000;

/// An application that was found polling so often, 13 ms or more, is left alone for longer: an
/// application that polls and computes in turn is not found so. A thread that wakes up every half
/// millisecond costs a processor that is polled on 4 % with what it takes out of the caches; and where
/// threads of a process change more often than every 3 ms, Linux 6.18 leaves other processes and its own
/// threads without a processor for seconds.
const POLLED_LOOKS: u32 = 32;
const LONGEST_POLLED_NS: u64 = 4_000_000;

/// When a thread of the application sleeps on the links for this long, the progress thread rests
/// until it is called. 16 ms and the ten looks before make rests rare enough that calls cost nothing.
const REST_NS: u64 = 16_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    /// What things take on a host, in nanoseconds.
    #[derive(Clone, Copy, Debug)]
    struct Costs {
        poll: u64,
        turn: u64,
        /// From a frame or a timer to the thread that sleeps until then.
        wakeup: u64,
        /// From a post to the answer of the peer.
        answer: u64,
    }

    /// Hosts from four times as fast as the one measured to four times as slow.
    fn hosts() -> [Costs; 5] {
        [1, 2, 4, 8, 16].map(|quarters| {
            let of = |ns: u64| ns * quarters / 4;
            Costs { poll: of(2_000), turn: of(3_000), wakeup: of(25_000), answer: of(6_000) }
        })
    }

    /// The thread beside an application that polls for `total_ns`; when it looked. Each look comes
    /// right before the application's next.
    fn beside_poller(aside: &mut Aside, costs: Costs, total_ns: u64) -> Vec<u64> {
        let (mut now, mut looks) = (0, Vec::new());
        while now < total_ns {
            looks.push(now);
            match aside.step(false, costs.poll - 1) {
                Step::Aside(ns) => now += ns + costs.wakeup,
                Step::Serve => panic!("it gets in the way of an application that polls: {costs:?}"),
            }
        }
        looks
    }

    /// The thread beside an application that posts, and waits in its memory for what the peer writes
    /// there as an answer, round after round: how long each answer waited.
    fn beside_spinner(aside: &mut Aside, costs: Costs, rounds: u32) -> Vec<u64> {
        let (mut now, mut posted_at, mut waits) = (0, 0, Vec::new());
        for _ in 0..rounds {
            let arrives_at = posted_at + costs.answer;
            loop {
                match aside.step(false, now - posted_at) {
                    Step::Aside(ns) => now += ns + costs.wakeup,
                    Step::Serve if now < arrives_at => {
                        aside.served(false);
                        now = arrives_at + costs.wakeup;
                    }
                    Step::Serve => break,
                }
            }
            aside.served(true);
            now += costs.turn;
            waits.push(now - arrives_at);
            posted_at = now;
        }
        waits
    }

    #[test]
    fn who_polls_is_left_alone_on_every_host() {
        for costs in hosts() {
            let mut aside = Aside::new();
            let looks = beside_poller(&mut aside, costs, 1_000_000_000);
            assert!(looks.len() < 300, "{} looks a second: {costs:?}", looks.len());
            let soon = looks.iter().filter(|&&at| at < 10_000_000).count();
            assert!(soon < 40, "{soon} looks in the first 10 ms: {costs:?}");
        }
    }

    /// On the slowest of the hosts it takes 40 µs.
    #[test]
    fn who_sends_large_messages_between_polls_is_left_alone() {
        for costs in hosts() {
            let costs = Costs { poll: 5 * costs.poll, ..costs };
            let looks = beside_poller(&mut Aside::new(), costs, 1_000_000_000);
            assert!(looks.len() < 300, "{} looks a second: {costs:?}", looks.len());
        }
    }

    /// Frames of 64 small writes at once, and those of a window of 1 MiB.
    #[test]
    fn who_takes_long_turns_is_left_alone() {
        for (costs, turn) in
            hosts().into_iter().flat_map(|costs| [(costs, 70_000), (costs, 300_000)])
        {
            let mut aside = Aside::new();
            let (mut now, mut looks, mut served) = (0_u64, 0, 0);
            while now < 1_000_000_000 {
                looks += 1;
                // It posts for a moment between two turns.
                let since_turn_began = now % (turn + 500);
                let is_inside = since_turn_began < turn;
                match aside.step(is_inside, since_turn_began) {
                    Step::Aside(ns) => now += ns + costs.wakeup,
                    // It cannot get in.
                    Step::Serve if is_inside => now += aside.at_it() + costs.wakeup,
                    Step::Serve => {
                        served += 1;
                        aside.served(true);
                        now += costs.turn;
                    }
                }
            }
            assert!(looks < 700 && served < 20, "{looks} looks, {served} times: {costs:?}");
        }
    }

    #[test]
    fn who_left_the_links_some_turns_ago_is_served_at_the_next_look() {
        for costs in hosts() {
            let mut aside = Aside::new();
            beside_poller(&mut aside, costs, 100_000_000);
            assert_eq!(aside.step(false, 100_000), Step::Serve, "{costs:?}");
        }
    }

    #[test]
    fn who_did_something_else_for_long_and_polls_again_is_not_taken_for_one_who_waits_in_memory() {
        let mut aside = Aside::new();
        for _ in 0..1000 {
            assert_eq!(aside.step(false, u64::MAX), Step::Serve);
            aside.served(true);
        }
        assert_eq!(aside.step(false, 40_000), Step::Aside(2 * FIRST_NS));
    }

    #[test]
    fn who_polled_for_long_and_then_waits_in_memory_is_soon_served_as_fast_as_the_thread_wakes_up()
    {
        for costs in hosts() {
            let mut aside = Aside::new();
            beside_poller(&mut aside, costs, 100_000_000);
            let waits = beside_spinner(&mut aside, costs, 200);
            let (learning, learnt) = waits.split_at(20);
            let lost_ns: u64 = learning.iter().sum();
            assert!(lost_ns < 4 * LONGEST_POLLED_NS, "{lost_ns} ns until it is learnt: {costs:?}");
            let slowest = learnt.iter().max().copied().unwrap_or_default();
            let bound = 2 * costs.wakeup + SHORTEST_NS + 2 * costs.turn;
            assert!(slowest <= bound, "{slowest} ns, more than {bound}: {costs:?}");
        }
    }

    #[test]
    fn who_polls_again_after_waiting_in_memory_is_left_alone_again() {
        for costs in hosts() {
            let mut aside = Aside::new();
            beside_spinner(&mut aside, costs, 200);
            let looks = beside_poller(&mut aside, costs, 1_000_000_000);
            assert!(looks.len() < 300, "{} looks a second: {costs:?}", looks.len());
        }
    }

    #[test]
    fn who_polls_and_computes_in_turn_is_never_left_for_longer_than_half_a_probe_timeout() {
        for costs in hosts() {
            let mut aside = Aside::new();
            // Polls and computes for 5 ms each; peers ask meanwhile.
            let (mut now, mut longest) = (0_u64, 0);
            while now < 1_000_000_000 {
                let into_period = now % 10_000_000;
                let polled_ns_ago = into_period.saturating_sub(5_000_000) + now % costs.poll;
                match aside.step(false, polled_ns_ago) {
                    Step::Aside(ns) => {
                        longest = longest.max(ns);
                        now += ns + costs.wakeup;
                    }
                    Step::Serve => {
                        aside.served(true);
                        now += costs.turn + 100_000 + costs.wakeup;
                    }
                }
            }
            assert!(longest <= LONGEST_NS, "{longest}: {costs:?}");
        }
    }

    #[test]
    fn beside_a_thread_that_sleeps_on_the_links_it_rests_after_ten_looks() {
        let mut aside = Aside::new();
        let looks = std::iter::from_fn(|| aside.watched()).count();
        assert!((5..=10).contains(&looks), "{looks}");
        assert!(aside.watched().is_some(), "called, it looks again");
    }
}
