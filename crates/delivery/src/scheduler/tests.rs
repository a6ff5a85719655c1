use core::fmt::Write as _;

use proptest::prelude::*;

use super::*;

/// The table has a row for each set of links and each transfer size, and a column for each way to
/// distribute frames of 1440 bytes.
#[test]
fn completion_times_are_those_of_the_snapshot() {
    let table = table();
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/scheduler/completion_times.txt");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(path, &table).unwrap();
    }
    let accepted = std::fs::read_to_string(path).unwrap();
    assert_eq!(table, accepted, "run with UPDATE_SNAPSHOTS=1 to accept");
}

#[test]
fn a_slow_second_link_helps_instead_of_hurting() {
    let links = [GIGABIT, TENTH];
    let alone = simulate(How::FirstOnly, &links, MEGABYTE).done_ns;
    let both = simulate(How::Earliest { error_percent: 0 }, &links, MEGABYTE).done_ns;
    let wrong = simulate(How::Earliest { error_percent: 30 }, &links, MEGABYTE).done_ns;
    let in_turn = simulate(How::InTurn, &links, MEGABYTE).done_ns;
    assert!(1_000 * both <= 925 * alone, "{both} of {alone} ns");
    assert!(1_000 * wrong <= 925 * alone, "{wrong} of {alone} ns with wrong estimates");
    assert!(in_turn >= 45 * alone / 10, "{in_turn} of {alone} ns");
}

#[test]
fn the_only_usable_link_gets_everything() {
    let mut views = [view(&GIGABIT), view(&TENTH)];
    views[0].usable = false;
    let mut state = SchedulerState::default();
    for backlog_bytes in [1, 1_500, 1 << 30] {
        for policy in [SchedulingPolicy::EarliestDelivery, SchedulingPolicy::RoundRobin] {
            let chosen = next(policy, backlog_bytes, NOW, &views, &mut state);
            assert_eq!(chosen, Next::Frame { link: 1 });
        }
    }
}

#[test]
fn no_link_gets_frames_without_a_backlog() {
    let views = [view(&GIGABIT), view(&TENTH)];
    for policy in [SchedulingPolicy::EarliestDelivery, SchedulingPolicy::RoundRobin] {
        let chosen = next(policy, 0, NOW, &views, &mut SchedulerState::default());
        assert_eq!(chosen, NOTHING);
    }
}

#[test]
fn a_small_operation_goes_to_the_link_that_delivers_it_first() {
    let mut views = [view(&TENTH), view(&GIGABIT)];
    assert_eq!(decide(100, &views), Next::Frame { link: 1 });
    views[1].idle_at = NOW.after_ns(1_000_000);
    assert_eq!(decide(100, &views), Next::Frame { link: 0 });
}

#[test]
fn a_better_link_with_a_closed_window_is_worth_waiting_for() {
    let mut views = [view(&GIGABIT), view(&TENTH)];
    views[0].window_left_bytes = 0;
    views[0].idle_at = NOW.after_ns(10_000);
    assert_eq!(decide(1_500, &views), NOTHING);
    // Link 1 sends if link 0 opens so late that link 1 delivers earlier.
    views[0].opens_at = NOW.after_ns(200_000);
    assert_eq!(decide(1_500, &views), Next::Frame { link: 1 });
}

#[test]
fn a_window_that_does_not_hold_a_frame_is_closed() {
    let mut views = [view(&GIGABIT); 2];
    (views[0].window_left_bytes, views[1].window_left_bytes) = (1_499, 1_500);
    views[1].idle_at = NOW.after_ns(5_000);
    assert_eq!(decide(1 << 20, &views), Next::Frame { link: 1 });
    assert_eq!(decide(1_499, &views), Next::Frame { link: 0 });
}

#[test]
fn a_frame_waits_briefly_for_a_link_that_delivers_earlier() {
    let mut views = [view(&GIGABIT); 2];
    (views[0].window_left_bytes, views[0].opens_at) = (0, NOW.after_ns(20_000));
    (views[0].idle_at, views[1].idle_at) = (NOW.after_ns(80_001), NOW.after_ns(110_000));
    assert_eq!(decide(1 << 20, &views), Next::Wait { until: views[0].opens_at });
    let given = Next::Frame { link: 1 };
    // Link 1 does not wait in three cases: link 0 opens too late, link 1 would become idle before
    // that, or link 0 delivers no earlier.
    views[0].opens_at = NOW.after_ns(HOLD_NS + 1);
    assert_eq!(decide(1 << 20, &views), given);
    views[0].opens_at = NOW.after_ns(20_000);
    (views[0].idle_at, views[1].idle_at) = (NOW, NOW.after_ns(20_000 + RUN_DRY_NS));
    assert_eq!(decide(1 << 20, &views), given);
    (views[0].idle_at, views[1].idle_at) = (NOW.after_ns(110_000), NOW.after_ns(80_001));
    assert_eq!(decide(1 << 20, &views), given);
}

#[test]
fn a_link_with_its_full_share_gets_no_frame_and_does_not_count_as_closed() {
    let mut views = [view(&GIGABIT), view(&TENTH)];
    views[0].has_share = true;
    (views[0].window_left_bytes, views[0].opens_at) = (0, NOW.after_ns(1_000_000));
    assert_eq!(decide(1_500, &views), NOTHING, "the fast link has room with the next turn");
    assert_eq!(decide(1 << 20, &views), Next::Frame { link: 1 });
}

#[test]
fn a_backup_link_waits_until_no_other_is_usable() {
    let mut views = [view(&GIGABIT), view(&GIGABIT)];
    views[1].backup = true;
    views[0].idle_at = NOW.after_ns(1_000_000_000);
    assert_eq!(decide(1 << 20, &views), Next::Frame { link: 0 });
    views[0].window_left_bytes = 0;
    assert_eq!(decide(1 << 20, &views), NOTHING);
    views[0].usable = false;
    assert_eq!(decide(1 << 20, &views), Next::Frame { link: 1 });
}

#[test]
fn an_unmeasured_link_gets_a_first_share_but_no_small_operation() {
    let mut views = [view(&TEN_GIGABIT), view(&GIGABIT)];
    views[0].window_left_bytes = 0;
    views[1].rate_bytes_per_second = None;
    views[1].one_way_ns = 50_000_000;
    let mut state = SchedulerState::default();
    let mut ask = |backlog| next(SchedulingPolicy::default(), backlog, NOW, &views, &mut state);
    assert_eq!(ask(1_500), NOTHING);
    for _ in 0..UNMEASURED_FRAMES {
        assert_eq!(ask(30_000), Next::Frame { link: 1 });
    }
    assert_eq!(ask(30_000), NOTHING);
    state.forget(1);
    let again = next(SchedulingPolicy::default(), 30_000, NOW, &views, &mut state);
    assert_eq!(again, Next::Frame { link: 1 });
}

#[test]
fn a_link_unused_for_long_is_measured_again() {
    let mut views = [view(&GIGABIT), view(&GIGABIT)];
    views[0].window_left_bytes = 0;
    views[1].rate_bytes_per_second = Some(1_000);
    let mut state = SchedulerState::default();
    let mut ask = |now| {
        views[0].idle_at = now;
        next(SchedulingPolicy::default(), 30_000, now, &views, &mut state)
    };
    assert_eq!(ask(NOW), NOTHING);
    assert_eq!(ask(NOW.after_ns(REMEASURE_NS - 1)), NOTHING);
    let later = NOW.after_ns(REMEASURE_NS);
    assert_eq!(ask(later), Next::Frame { link: 1 });
    assert_eq!(ask(later.after_ns(1)), NOTHING);
}

#[test]
fn round_robin_skips_unusable_links_and_waits_for_the_next_usable_one() {
    let mut views = [view(&GIGABIT); 3];
    views[1].usable = false;
    let mut state = SchedulerState::default();
    let mut ask =
        |views: &[LinkView]| next(SchedulingPolicy::RoundRobin, 1 << 20, NOW, views, &mut state);
    for link in [0, 2, 0] {
        assert_eq!(ask(&views), Next::Frame { link });
    }
    views[2].window_left_bytes = 0;
    assert_eq!(ask(&views), NOTHING);
    views[2].window_left_bytes = 1_500;
    assert_eq!(ask(&views), Next::Frame { link: 2 });
}

#[test]
fn links_with_frames_of_different_sizes_do_not_wait_for_one_another() {
    let link = |rate_bytes_per_second, one_way_ns, frame_bytes| LinkView {
        rate_bytes_per_second: Some(rate_bytes_per_second),
        one_way_ns,
        frame_bytes,
        ..view(&GIGABIT)
    };
    let views = [
        link(11_977_013, 6_945, 8_972),
        link(18_279_810, 58_932, 1_232),
        link(10_577_705, 4_365, 8_972),
    ];
    assert!(matches!(decide(2_430, &views), Next::Frame { .. }));
}

proptest! {
    /// If the scheduler gave no data to any open link, a backlog could wait for ever. The test also
    /// checks, for any input, that a link gets a frame only if it may carry data and has room.
    #[test]
    fn an_open_link_gets_data_unless_a_closed_one_is_expected_to_open(
        views in prop::collection::vec(any_view(), 1..16),
        backlog_bytes in prop_oneof![1_u64..5_000, any::<u64>()],
        now in any::<u64>(),
        policy in prop_oneof![
            Just(SchedulingPolicy::EarliestDelivery),
            Just(SchedulingPolicy::RoundRobin),
        ],
    ) {
        let unit_bytes =
            |view: &LinkView| backlog_bytes.min(u64::from(view.frame_bytes.max(1)));
        let is_open = |view: &LinkView| {
            !view.has_share && view.window_left_bytes >= unit_bytes(view)
        };
        let mut state = SchedulerState::default();
        match next(policy, backlog_bytes, Instant(now), &views, &mut state) {
            Next::Frame { link } => {
                prop_assert!(is_open(&views[link]) && views[link].usable);
                let may_use_backups = views.iter().all(|view| !view.usable || view.backup);
                prop_assert!(!views[link].backup || may_use_backups);
            }
            Next::Wait { .. } => {
                let all_open = views.iter().all(is_open);
                let any_usable = views.iter().any(|view| view.usable);
                prop_assert!(!all_open || !any_usable);
            }
        }
    }

    /// A link with room gets no frame only in two cases:
    /// * By the estimates, the other links deliver the whole backlog before this link would deliver
    ///   one frame. In this test, estimated rates and queues are wrong by a factor of 1/4 to 4.
    ///   Therefore the other links really need at most sixteen times as long as this link needs for
    ///   the frame.
    /// * This link waits for a link that opens within `HOLD_NS`, and does not become idle before
    ///   that.
    #[test]
    fn an_open_link_idles_only_if_the_others_finish_the_backlog_sooner(
        links in prop::collection::vec(any_link(), 2..6),
        frames in prop_oneof![1_u64..8, 1_u64..2_000],
    ) {
        let backlog_bytes = frames * FRAME;
        let (truth, views): (Vec<_>, Vec<_>) = links.into_iter().unzip();
        let mut state = measured(&views);
        let policy = SchedulingPolicy::EarliestDelivery;
        let chosen = next(policy, backlog_bytes, NOW, &views, &mut state);
        if let Next::Wait { until } = chosen {
            for index in (0..views.len()).filter(|&index| is_open(&views[index], backlog_bytes)) {
                let held_ns = views[index].idle_at.since_ns(until);
                if until < Instant::NEVER && held_ns > RUN_DRY_NS {
                    prop_assert!(until.since_ns(NOW) <= HOLD_NS);
                    continue;
                }
                let frame_ns = |views: &[LinkView]| first_frame_ns(&views[index], backlog_bytes);
                let others_ns = |views: &[LinkView]| {
                    others_deliver_ns(views, index, backlog_bytes)
                };
                prop_assert!(others_ns(&views) <= frame_ns(&views) + ROUNDED_NS);
                prop_assert!(others_ns(&truth) <= 16 * frame_ns(&truth) + ROUNDED_NS);
            }
        }
    }

    /// Marks one link as having sent its share of the turn, the most bytes that it may send in one
    /// turn. After that, the state of its window must not affect the choice between the other
    /// links.
    #[test]
    fn a_link_with_its_full_share_does_not_affect_the_choice_of_another(
        links in prop::collection::vec(any_link(), 2..6),
        frames in 1_u64..2_000,
        window_left_bytes in prop_oneof![Just(0), Just(u64::MAX)],
        opens_at in prop_oneof![Just(Instant::NEVER), (0_u64..1_000_000).prop_map(|ns| NOW.after_ns(ns))],
    ) {
        let mut views: Vec<_> = links.into_iter().map(|(_, view)| view).collect();
        views[0] = LinkView { has_share: true, window_left_bytes: u64::MAX, opens_at: NOW, ..views[0] };
        let policy = SchedulingPolicy::EarliestDelivery;
        let with_room = next(policy, frames * FRAME, NOW, &views, &mut measured(&views));
        prop_assert_ne!(with_room, Next::Frame { link: 0 });
        views[0] = LinkView { window_left_bytes, opens_at, ..views[0] };
        let otherwise = next(policy, frames * FRAME, NOW, &views, &mut measured(&views));
        prop_assert_eq!(with_room, otherwise);
    }
}

/// Returns a state in which every link has just got data, so that no link is due for a measurement.
fn measured(views: &[LinkView]) -> SchedulerState {
    let mut state = SchedulerState::default();
    state.given_at[..views.len()].fill(NOW);
    state
}

/// Returns the time at which a link would have delivered a frame, or the whole backlog if it is
/// smaller, in nanoseconds after `NOW`.
fn first_frame_ns(view: &LinkView, backlog_bytes: u64) -> u64 {
    let bytes = u64::from(view.frame_bytes).min(backlog_bytes);
    starts_ns(view, backlog_bytes) + bytes * 1_000_000_000 / rate_of(view)
}

/// Returns the time at which bytes begin to arrive over a link, in nanoseconds after `NOW`.
fn starts_ns(view: &LinkView, backlog_bytes: u64) -> u64 {
    let is_closed = !is_open(view, backlog_bytes) && view.opens_at < Instant::NEVER;
    let opens_ns = if is_closed { view.opens_at.since_ns(NOW) } else { 0 };
    view.idle_at.since_ns(NOW).max(opens_ns) + view.one_way_ns
}

/// Returns the time at which all links except `but` together have delivered `bytes` bytes, and at
/// least one of them has delivered a whole frame, in nanoseconds after `NOW`. Finds the time by
/// bisection.
fn others_deliver_ns(views: &[LinkView], but: usize, bytes: u64) -> u64 {
    let others = || views.iter().enumerate().filter(|&(index, _)| index != but);
    let is_delivered = |ns: u64| {
        let sum = others().map(|(_, view)| {
            let sending_ns = ns.saturating_sub(starts_ns(view, bytes));
            u128::from(sending_ns) * u128::from(rate_of(view)) / 1_000_000_000
        });
        sum.sum::<u128>() >= u128::from(bytes)
            && others().any(|(_, view)| ns >= first_frame_ns(view, bytes))
    };
    let (mut not_yet, mut enough) = (0, 1 << 50);
    while enough - not_yet > 1 {
        let between = u64::midpoint(not_yet, enough);
        if is_delivered(between) {
            enough = between;
        } else {
            not_yet = between;
        }
    }
    enough
}

fn rate_of(view: &LinkView) -> u64 {
    view.rate_bytes_per_second.unwrap_or(1).max(1)
}

/// Generates a link twice: with its true values and with estimates. In the estimates, the rate and
/// the waiting time in the queue are wrong by a factor of 1/4 to 4.
fn any_link() -> impl Strategy<Value = (LinkView, LinkView)> {
    let opens = prop_oneof![Just(None), (0_u64..100_000).prop_map(Some)];
    let window = prop_oneof![Just(0_u64), Just(u64::MAX)];
    (
        100_000_u64..1_250_000_000,
        1_000_u64..2_000_000,
        0_u64..1_000_000,
        window,
        opens,
        250_u64..=4_000,
    )
        .prop_map(|(rate, one_way_ns, queue_ns, window_left_bytes, opens, permille)| {
            let link = |rate: u64, queue_ns: u64| LinkView {
                rate_bytes_per_second: Some(rate),
                one_way_ns,
                idle_at: NOW.after_ns(queue_ns),
                window_left_bytes,
                opens_at: opens.map_or(Instant::NEVER, |ns| NOW.after_ns(ns)),
                frame_bytes: FRAME as u32,
                ..view(&GIGABIT)
            };
            (link(rate, queue_ns), link(rate * permille / 1_000, queue_ns * 1_000 / permille))
        })
}

fn any_view() -> impl Strategy<Value = LinkView> {
    let time = || prop_oneof![0_u64..10_000_000, any::<u64>()];
    let rate = prop::option::of(prop_oneof![1_000_u64..12_500_000_000, any::<u64>()]);
    let window = prop_oneof![0_u64..20_000, Just(u64::MAX)];
    let frame = prop_oneof![256_u32..9_000, any::<u32>()];
    (rate, time(), time(), window, frame, any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
        |(
            rate_bytes_per_second,
            one_way_ns,
            idle_at,
            window_left_bytes,
            frame_bytes,
            usable,
            backup,
            has_share,
        )| {
            let idle_at = Instant(idle_at);
            LinkView {
                rate_bytes_per_second,
                one_way_ns,
                idle_at,
                window_left_bytes,
                opens_at: Instant::NEVER,
                has_share,
                frame_bytes,
                usable,
                backup,
            }
        },
    )
}

fn table() -> String {
    let sets: [(&str, &[Path]); 6] = [
        ("1G/20us + 1G/20us", &[GIGABIT, GIGABIT]),
        ("1G/20us + 100M/20us", &[GIGABIT, TENTH]),
        ("1G/20us + 1G/2ms", &[GIGABIT, FAR]),
        ("10G/10us + 1G/50us", &[TEN_GIGABIT, Path { rate: 125_000_000, one_way_ns: 50_000 }]),
        ("1G + 1G + 100M/100us", &[GIGABIT, GIGABIT, Path { one_way_ns: 100_000, ..TENTH }]),
        ("1G/20us + 1M/20us", &[GIGABIT, Path { rate: 125_000, one_way_ns: 20_000 }]),
    ];
    let columns = [
        ("first only", How::FirstOnly),
        ("in turn", How::InTurn),
        ("earliest", How::Earliest { error_percent: 0 }),
        ("earliest ±30 %", How::Earliest { error_percent: 30 }),
    ];
    let mut table = String::from(
        "Time until the last of the frames (1440 bytes, 66 of overhead) has arrived, in µs, and the\n\
         share of frames that arrive after a later one. Rates are given wrongly at random in the\n\
         last column.\n\n",
    );
    write!(table, "{:22}{:>8}", "links", "bytes").unwrap();
    for (name, _) in columns {
        write!(table, " |{name:>18}").unwrap();
    }
    table.push('\n');
    for (name, paths) in sets {
        for bytes in [1_440, 65_536, MEGABYTE] {
            write!(table, "{name:22}{bytes:>8}").unwrap();
            for (_, how) in columns {
                let Run { done_ns, late_permille } = simulate(how, paths, bytes);
                let (micros, percent) = (done_ns / 1_000, late_permille as f64 / 10.0);
                write!(table, " |{micros:>10} {percent:>5.1} %").unwrap();
            }
            table.push('\n');
        }
    }
    table
}

#[derive(Clone, Copy)]
enum How {
    FirstOnly,
    InTurn,
    Earliest { error_percent: u64 },
}

/// The true properties of a link.
#[derive(Clone, Copy)]
struct Path {
    rate: u64,
    one_way_ns: u64,
}

struct Run {
    done_ns: u64,
    late_permille: usize,
}

/// Sends `bytes` bytes in virtual time. A link has room while less than a few µs of data are queued
/// on it. The scheduler gets wrong rates, and idle times that follow from the wrong rates.
fn simulate(how: How, paths: &[Path], bytes: u64) -> Run {
    let (policy, error_percent) = match how {
        How::InTurn => (SchedulingPolicy::RoundRobin, 0),
        How::Earliest { error_percent } => (SchedulingPolicy::EarliestDelivery, error_percent),
        How::FirstOnly => (SchedulingPolicy::EarliestDelivery, 0),
    };
    let paths = if matches!(how, How::FirstOnly) { &paths[..1] } else { paths };
    let mut state = SchedulerState::default();
    let mut idle_ns = vec![NOW.0; paths.len()];
    let mut random = 1_u64;
    let frames = bytes.div_ceil(1_440);
    let mut sent = 0;
    let mut arrivals = Vec::new();
    let mut now = NOW.0;
    while sent < frames {
        // Estimates change with each acknowledgement, but not between two decisions of one turn.
        let percents: Vec<u64> =
            paths.iter().map(|_| random_percent(error_percent, &mut random)).collect();
        loop {
            let views: Vec<LinkView> = (0..paths.len())
                .map(|link| estimated(&paths[link], idle_ns[link], now, percents[link]))
                .collect();
            let backlog = (frames - sent) * FRAME;
            let chosen = next(policy, backlog, Instant(now), &views, &mut state);
            let Next::Frame { link } = chosen else { break };
            idle_ns[link] = idle_ns[link].max(now) + FRAME * 1_000_000_000 / paths[link].rate;
            arrivals.push((idle_ns[link] + paths[link].one_way_ns, sent));
            sent += 1;
        }
        let opens = idle_ns.iter().map(|idle| idle - QUEUE_NS).filter(|&at| at > now).min();
        assert!(
            opens.is_some() || sent == frames,
            "some link is busy, else one would have got data"
        );
        now = opens.unwrap_or(now);
    }
    arrivals.sort_unstable();
    let mut highest = 0;
    let late = arrivals
        .iter()
        .filter(|(_, frame)| {
            highest = highest.max(*frame);
            *frame < highest
        })
        .count();
    let done_ns = arrivals.last().map_or(0, |(at, _)| at - NOW.0);
    Run { done_ns, late_permille: late * 1_000 / arrivals.len() }
}

fn random_percent(error_percent: u64, random: &mut u64) -> u64 {
    *random =
        random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    100 - error_percent + (*random >> 33) % (2 * error_percent + 1)
}

fn estimated(path: &Path, idle_ns: u64, now: u64, percent: u64) -> LinkView {
    let busy_ns = idle_ns.saturating_sub(now) * 100 / percent;
    let has_room = idle_ns <= now + QUEUE_NS;
    LinkView {
        rate_bytes_per_second: Some(path.rate * percent / 100),
        idle_at: Instant(now + busy_ns),
        window_left_bytes: if has_room { u64::MAX } else { 0 },
        frame_bytes: FRAME as u32,
        ..view(path)
    }
}

fn view(path: &Path) -> LinkView {
    LinkView {
        rate_bytes_per_second: Some(path.rate),
        one_way_ns: path.one_way_ns,
        idle_at: NOW,
        window_left_bytes: u64::MAX,
        opens_at: Instant::NEVER,
        has_share: false,
        frame_bytes: 1_500,
        usable: true,
        backup: false,
    }
}

/// Returns the choice of a scheduler that has made no decisions before.
fn decide(backlog_bytes: u64, views: &[LinkView]) -> Next {
    next(SchedulingPolicy::default(), backlog_bytes, NOW, views, &mut SchedulerState::default())
}

const NOTHING: Next = Next::Wait { until: Instant::NEVER };

/// Upper bound of the sum of rounding errors of divisions over some links, in nanoseconds.
const ROUNDED_NS: u64 = 32;

const NOW: Instant = Instant(1_000_000_000);
const FRAME: u64 = 1_440 + 66;
const MEGABYTE: u64 = 1 << 20;
const QUEUE_NS: u64 = 5_000;
const GIGABIT: Path = Path { rate: 125_000_000, one_way_ns: 20_000 };
const TENTH: Path = Path { rate: 12_500_000, one_way_ns: 20_000 };
const FAR: Path = Path { rate: 125_000_000, one_way_ns: 2_000_000 };
const TEN_GIGABIT: Path = Path { rate: 1_250_000_000, one_way_ns: 10_000 };
