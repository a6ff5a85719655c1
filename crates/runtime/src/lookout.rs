//! For how long a thread that serves peers looks on for more before it sleeps.

use delivery::Instant;

/// The rule of [`Polling::ADAPTIVE`](crate::Polling::ADAPTIVE), without clock and threads.
///
/// Who sleeps when work comes keeps a peer waiting for as long as a wake-up takes, and spends processor time on going to
/// sleep and waking up. Who looks on instead spends processor time, too. A nanosecond of one is taken to be worth one of
/// the other. So looking on for longer than a sleep costs never pays, and whoever looks on for just so long never spends
/// more than twice what he would spend if he knew the future (A. Karlin, K. Li, M. Manasse, S. Owicki: Empirical studies of competitive spinning, SOSP 1991). When the
/// next work came, so far, tells more: the time to look on is that for which both together would have cost least.
/// So peers that ask again at once are served by who looks on, and those that come rarely cost nothing.
///
/// A processor that others want is not kept from them for that. The thread offers it while it looks on, and if others
/// keep it for longer than a sleep costs, it sleeps at once: for as long as it was away when that happens once, as a host
/// may stand still for a moment, and for twice as long each time that it happens soon again, up to [`REPENT`] times.
#[derive(Debug)]
pub(crate) struct Lookout {
    wake_ups: WakeUps,
    /// How often work came within the first, second, and so on part of the time that a sleep costs, counted from
    /// the work before; and last, how often it came later.
    came: [u32; PARTS + 1],
    limit_ns: u64,
    /// Processors are short until then.
    short_until: Instant,
    /// For how many times as long as it was away, the last time.
    repented: u64,
}

impl Lookout {
    /// `cost_ns` is what a sleep is taken to cost until some were measured.
    pub(crate) fn new(cost_ns: u64) -> Self {
        let mut came = [0; PARTS + 1];
        // Before anything is known it looks on for as long as a sleep costs.
        if let Some(latest) = came.get_mut(PARTS - 1) {
            *latest = 1;
        }
        let assumed = WakeUp { late_ns: cost_ns, spent_ns: 0 };
        let wake_ups = WakeUps { latest: [assumed; WAKE_UPS], count: 0, usual: assumed };
        Self { wake_ups, came, limit_ns: cost_ns, short_until: Instant(0), repented: 0 }
    }

    /// A thread slept until a time.
    pub(crate) fn on_wake_up(&mut self, now: Instant, wake_up: WakeUp) {
        // It may have waited for a processor, which is another matter.
        if now >= self.short_until {
            self.wake_ups.add(wake_up);
            self.decide();
        }
    }

    /// Work was found, so long after the work before.
    pub(crate) fn on_work(&mut self, after_ns: u64, has_slept: bool) {
        let WakeUp { late_ns, spent_ns } = self.wake_ups.usual;
        // It had come when the thread began to wake up.
        let after_ns = if has_slept { after_ns.saturating_sub(late_ns) } else { after_ns };
        let part = after_ns.saturating_mul(PARTS as u64) / (late_ns + spent_ns).max(1);
        let part = usize::try_from(part).map_or(PARTS, |part| part.min(PARTS));
        if let Some(count) = self.came.get_mut(part) {
            *count += 1;
        }
        if self.came.iter().sum::<u32>() > REMEMBERED {
            self.came.iter_mut().for_each(|count| *count /= 2);
        }
        self.decide();
    }

    /// The thread offered its processor to others while it looked on, and has been away for so long.
    pub(crate) fn on_offer(&mut self, now: Instant, away_ns: u64) {
        let WakeUp { late_ns, spent_ns } = self.wake_ups.usual;
        // To a thread that gives it back sooner than this one could have woken up it was offered in time.
        if away_ns > late_ns + spent_ns {
            let is_soon = now.since_ns(self.short_until) < away_ns.saturating_mul(REPENT);
            self.repented = if is_soon { (self.repented * 2).clamp(1, REPENT) } else { 1 };
            self.short_until = now.after_ns(away_ns.saturating_mul(self.repented));
        }
    }

    /// For how long to look on, unless processors are short.
    pub(crate) fn limit_ns(&self) -> u64 {
        self.limit_ns
    }

    /// When processors are no longer short.
    pub(crate) fn short_until(&self) -> Instant {
        self.short_until
    }

    /// Whether to look on now, so long after the last work.
    pub(crate) fn looks_on(&self, now: Instant, idle_ns: u64) -> bool {
        idle_ns < self.limit_ns && now >= self.short_until
    }

    /// Chooses the time after which sleeping costs least by what came so far: half a part on average for what
    /// comes within one, and for what comes later all the time that was looked on and a sleep.
    fn decide(&mut self) {
        let mut later: u32 = self.came.iter().sum();
        let (mut found, mut parts, mut best) = (0, 0, u32::MAX);
        for (part, &count) in (0_u32..).zip(&self.came) {
            let cost = found + later * 2 * (part + PARTS as u32);
            // Of equals the longest: what has not come so late yet may do so.
            if cost <= best {
                (best, parts) = (cost, part);
            }
            found += count * (2 * part + 1);
            later -= count;
        }
        let WakeUp { late_ns, spent_ns } = self.wake_ups.usual;
        self.limit_ns = (late_ns + spent_ns) * u64::from(parts) / PARTS as u64;
    }
}

/// What a sleep until a time cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WakeUp {
    /// How much later the thread ran.
    pub(crate) late_ns: u64,
    /// Processor time that it spent on going to sleep and waking up.
    pub(crate) spent_ns: u64,
}

/// What sleeps cost on this host.
#[derive(Debug)]
struct WakeUps {
    latest: [WakeUp; WAKE_UPS],
    count: usize,
    /// One that nobody disturbs: the quarter that was quickest took at most so long.
    usual: WakeUp,
}

impl WakeUps {
    fn add(&mut self, wake_up: WakeUp) {
        if self.count == 0 {
            self.latest = [wake_up; WAKE_UPS];
        }
        if let Some(slot) = self.latest.get_mut(self.count % WAKE_UPS) {
            *slot = wake_up;
        }
        self.count += 1;
        let quarter = |of: fn(&WakeUp) -> u64| {
            let mut sorted = self.latest.each_ref().map(of);
            sorted.sort_unstable();
            sorted.get(WAKE_UPS / 4).copied().unwrap_or_default()
        };
        self.usual = WakeUp {
            late_ns: quarter(|wake_up| wake_up.late_ns),
            spent_ns: quarter(|wake_up| wake_up.spent_ns),
        };
    }
}

/// Parts into which what a sleep costs is divided: the time to look on is found to within one.
const PARTS: usize = 8;

/// What came before the last so many arrivals, or half as many, is forgotten: a peer that begins to ask again at once
/// is believed after about so many times.
const REMEMBERED: u32 = 64;

/// Wake-ups that are measured when a progress thread begins, and remembered.
pub(crate) const WAKE_UPS: usize = 8;

/// A thread that is kept from its processor again and again sleeps without looking on for so many times as long as it was
/// away: to find out whether processors are still short costs peers one or two hundredths of the time.
pub(crate) const REPENT: u64 = 64;

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// What things take on a host, in nanoseconds.
    #[derive(Clone, Copy, Debug)]
    pub(crate) struct Costs {
        pub(crate) wake_up: u64,
        /// Processor time of going to sleep and waking up.
        pub(crate) spent: u64,
        /// From an answer to the next question of a peer that asks again at once, or after a thought.
        again: u64,
        serve: u64,
    }

    /// Hosts from four times as fast as the one measured to four times as slow.
    pub(crate) fn hosts() -> [Costs; 5] {
        [1, 2, 4, 8, 16].map(|quarters| {
            let of = |ns: u64| ns * quarters / 4;
            Costs { wake_up: of(30_000), spent: of(15_000), again: of(13_000), serve: of(3_000) }
        })
    }

    fn on(costs: Costs) -> Lookout {
        // What is assumed before is wrong on most hosts.
        let mut lookout = Lookout::new(10_000);
        for _ in 0..WAKE_UPS {
            let wake_up = WakeUp { late_ns: costs.wake_up, spent_ns: costs.spent };
            lookout.on_wake_up(Instant(1), wake_up);
        }
        lookout
    }

    /// How a rule decides for how long to look on.
    pub(crate) trait Rule {
        fn limit_ns(&self) -> u64;
        fn found(&mut self, _after_ns: u64, _has_slept: bool) {}
    }

    impl Rule for Lookout {
        fn limit_ns(&self) -> u64 {
            self.limit_ns()
        }

        fn found(&mut self, after_ns: u64, has_slept: bool) {
            self.on_work(after_ns, has_slept);
        }
    }

    /// What the rule was before: a time that suits one host.
    pub(crate) struct Fixed(pub(crate) u64);

    impl Rule for Fixed {
        fn limit_ns(&self) -> u64 {
            self.0
        }
    }

    /// What serving cost.
    #[derive(Debug, Default)]
    struct Bill {
        /// Questions that had to wake the thread.
        slept: u64,
        looked_on_ns: u64,
        total_ns: u64,
    }

    /// Questions that come so long after the answers before.
    fn serve(rule: &mut impl Rule, costs: Costs, gaps: impl Iterator<Item = u64>) -> Bill {
        let mut bill = Bill::default();
        for gap in gaps {
            let limit = rule.limit_ns();
            let has_slept = gap >= limit;
            bill.looked_on_ns += gap.min(limit);
            bill.slept += u64::from(has_slept);
            let late = if has_slept { costs.wake_up } else { 0 };
            rule.found(gap + late, has_slept);
            bill.total_ns += gap + late + costs.serve;
        }
        bill
    }

    /// Whether it serves a peer that asks again at once, and spends less than 3 % of a processor on one that does so
    /// forty times more rarely.
    pub(crate) fn suits(mut rule: impl Rule, costs: Costs) -> bool {
        serve(&mut rule, costs, std::iter::repeat_n(costs.again, 200));
        let busy = serve(&mut rule, costs, std::iter::repeat_n(costs.again, 10_000));
        let rarely = || std::iter::repeat_n(40 * costs.again, 10_000);
        let rare = serve(&mut rule, costs, rarely());
        busy.slept < 50 && rare.looked_on_ns * 100 < rare.total_ns * 3
    }

    #[test]
    fn peers_that_ask_at_once_are_served_awake_and_rare_ones_cost_nothing_on_every_host() {
        for costs in hosts() {
            assert!(suits(on(costs), costs), "{costs:?}");
        }
    }

    #[test]
    fn no_fixed_time_suits_every_host() {
        for us in [0, 5, 10, 20, 50, 100, 200] {
            let failures = hosts().into_iter().filter(|&costs| !suits(Fixed(us * 1000), costs));
            assert_ne!(failures.count(), 0, "{us} us");
        }
    }

    #[test]
    fn a_peer_that_begins_to_ask_at_once_is_believed_soon() {
        for costs in hosts() {
            let mut lookout = on(costs);
            serve(&mut lookout, costs, std::iter::repeat_n(100 * costs.wake_up, 1000));
            let learning = serve(&mut lookout, costs, std::iter::repeat_n(costs.again, 1000));
            assert!(learning.slept <= u64::from(REMEMBERED), "{learning:?}: {costs:?}");
        }
    }

    /// Each question in a hundred comes late, as the peer has other things to do.
    #[test]
    fn pauses_of_a_peer_do_not_undo_what_was_learnt() {
        for costs in hosts() {
            let mut lookout = on(costs);
            let gaps = (0..10_000).map(|n| {
                if n % 100 == 99 {
                    1000 * costs.again
                } else {
                    costs.again + n % 7 * costs.again / 7
                }
            });
            let bill = serve(&mut lookout, costs, gaps);
            assert!(bill.slept < 110, "{bill:?}: {costs:?}");
        }
    }

    /// Each fiftieth question comes later than the others, but not as late as a sleep would be worth it.
    #[test]
    fn questions_that_are_rarely_a_little_late_find_it_awake() {
        for costs in hosts() {
            let mut lookout = on(costs);
            let gaps =
                (0..10_000).map(|n| if n % 50 == 49 { costs.again * 5 / 2 } else { costs.again });
            let bill = serve(&mut lookout, costs, gaps);
            assert!(bill.slept < 10, "{bill:?}: {costs:?}");
        }
    }

    /// Whatever comes, it spends at most twice what would have been right afterwards, and a few per cent while
    /// it learns: gaps of every distribution that a multiplication by an odd number makes.
    #[test]
    fn waiting_and_looking_on_cost_at_most_twice_what_they_had_to() {
        for costs in hosts() {
            for (scale, seed) in
                [1, 2, 4, 8, 16].into_iter().flat_map(|s| [(s, 3), (s, 11), (s, 27)])
            {
                let mut lookout = on(costs);
                let gaps = || {
                    (0..10_000_u64).map(move |n| {
                        let mixed = (n * n + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
                        mixed % (costs.wake_up * scale / 4)
                    })
                };
                let bill = serve(&mut lookout, costs, gaps());
                let sleep = costs.wake_up + costs.spent;
                let cost = bill.looked_on_ns + bill.slept * sleep;
                let least: u64 = gaps().map(|gap| gap.min(sleep)).sum();
                assert!(
                    cost * 100 <= least * 210,
                    "{cost} ns, {least} at least: {scale}, {costs:?}"
                );
            }
        }
    }

    #[test]
    fn an_idle_endpoint_takes_no_processor() {
        for costs in hosts() {
            let lookout = on(costs);
            assert!(!lookout.looks_on(Instant(1_000_000_000), costs.wake_up + costs.spent));
        }
    }

    /// One processor for the thread and a neighbour that computes: each offer of the processor costs a time slice.
    #[test]
    fn where_processors_are_short_it_does_not_look_on_and_rarely_tries() {
        for costs in hosts() {
            let mut lookout = on(costs);
            let (slice, mut now, mut away) = (3_000_000, Instant(1), 0);
            while now.0 < 10_000_000_000 {
                now = now.after_ns(costs.again + costs.wake_up);
                lookout.on_work(costs.again + costs.wake_up, true);
                now = now.after_ns(costs.serve);
                if lookout.looks_on(now, 0) {
                    now = now.after_ns(slice);
                    away += slice;
                    lookout.on_offer(now, slice);
                }
            }
            assert!(away * 50 < now.0, "away for {away} of {} ns: {costs:?}", now.0);
            assert!(lookout.looks_on(now.after_ns(slice * REPENT), 0), "the neighbour has gone");
        }
    }

    /// The host was suspended, say, or whoever shares its processors with others gave it none for a moment.
    #[test]
    fn who_was_kept_from_the_processor_once_looks_on_again_soon() {
        for costs in hosts() {
            for stall in [100 * costs.wake_up, 100_000_000, 3_600_000_000_000] {
                let mut lookout = on(costs);
                let mut now = Instant(stall);
                for _ in 0..3 {
                    lookout.on_offer(now, stall);
                    assert!(!lookout.looks_on(now, 0), "{stall}, {costs:?}");
                    now = now.after_ns(stall);
                    assert!(lookout.looks_on(now, 0), "it still sleeps: {stall}, {costs:?}");
                    // Until it happens again, it looks on for long.
                    now = now.after_ns(stall * REPENT);
                }
            }
        }
    }

    /// Others take the processor for as long at every tenth offer, and the rest of the time it looks on.
    #[test]
    fn who_is_kept_from_the_processor_now_and_then_loses_little_time() {
        for costs in hosts() {
            for slice in [1_000_000, 3_000_000, 24_000_000, 100_000_000] {
                let mut lookout = on(costs);
                let (mut now, mut away, mut offers) = (Instant(1), 0, 0_u64);
                while now.0 < 100_000_000_000 {
                    now = now.after_ns(costs.again + costs.serve);
                    if lookout.looks_on(now, 0) {
                        offers += 1;
                        let kept = if offers.is_multiple_of(10) { slice } else { costs.serve };
                        now = now.after_ns(kept);
                        away += if kept == slice { slice } else { 0 };
                        lookout.on_offer(now, kept);
                    }
                }
                assert!(away * 30 < now.0, "{away} of {} ns: {slice}, {costs:?}", now.0);
            }
        }
    }

    /// Another thread of the process comes by now and then, as a timer has it, and is soon done.
    #[test]
    fn who_takes_an_offered_processor_for_a_moment_does_not_make_processors_short() {
        for costs in hosts() {
            let mut lookout = on(costs);
            lookout.on_offer(Instant(1), costs.serve);
            assert!(lookout.looks_on(Instant(2), 0), "{costs:?}");
            lookout.on_offer(Instant(3), 100 * costs.serve);
            assert!(!lookout.looks_on(Instant(4), 0), "{costs:?}");
        }
    }

    /// Half of them waited for a processor.
    #[test]
    fn wake_ups_that_others_delayed_do_not_count() {
        let mut lookout = Lookout::new(1);
        for late_ns in [30_000, 3_000_000, 32_000, 8_000_000, 29_000, 31_000, 3_000_000, 4_000_000]
        {
            lookout.on_wake_up(Instant(1), WakeUp { late_ns, spent_ns: 5_000 });
        }
        assert!((29_000..=32_000).contains(&lookout.wake_ups.usual.late_ns));
    }
}
