use core::fmt::Write as _;

use proptest::prelude::*;

use super::*;

/// One row per set of links and size, one column per way to spread 1440-byte frames over them.
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
            let decision = pick(policy, 1, backlog_bytes, NOW, &views, &mut state);
            let burst_bytes = backlog_bytes.min(1_500) as u32;
            assert_eq!(decision, Decision::Send { burst_bytes });
            let decision = pick(policy, 0, backlog_bytes, NOW, &views, &mut state);
            assert_eq!(decision, Decision::Wait);
        }
    }
}

#[test]
fn a_small_operation_goes_to_the_link_that_delivers_it_first() {
    let mut views = [view(&GIGABIT), view(&TENTH)];
    assert_eq!(decide(1, 100, &views), Decision::Wait);
    assert_eq!(decide(0, 100, &views), Decision::Send { burst_bytes: 100 });
    views[0].idle_at = NOW.after_ns(1_000_000);
    assert_eq!(decide(1, 100, &views), Decision::Send { burst_bytes: 100 });
    assert_eq!(decide(0, 100, &views), Decision::Wait);
}

#[test]
fn a_better_link_with_a_closed_window_is_worth_waiting_for() {
    let mut views = [view(&GIGABIT), view(&TENTH)];
    views[0].window_left_bytes = 0;
    views[0].idle_at = NOW.after_ns(10_000);
    assert_eq!(decide(1, 1_500, &views), Decision::Wait);
}

#[test]
fn a_better_link_that_stays_silent_is_not_waited_for() {
    let mut views = [view(&GIGABIT), view(&TENTH)];
    views[0].window_left_bytes = 0;
    views[0].idle_at = Instant(NOW.0 - 200_000);
    assert_eq!(decide(1, 1_500, &views), Decision::Send { burst_bytes: 1_500 });
}

#[test]
fn a_backup_link_waits_until_no_other_is_usable() {
    let mut views = [view(&GIGABIT), view(&GIGABIT)];
    views[1].backup = true;
    assert_eq!(decide(1, 1 << 20, &views), Decision::Wait);
    views[0].usable = false;
    assert_eq!(decide(1, 1 << 20, &views), Decision::Send { burst_bytes: 1_500 });
}

#[test]
fn a_burst_is_limited_by_time_by_the_window_and_by_the_backlog() {
    let mut views = [view(&TEN_GIGABIT), view(&TENTH)];
    assert_eq!(decide(0, 1 << 20, &views), Decision::Send { burst_bytes: 13 * 1_500 });
    assert_eq!(decide(0, 4_000, &views), Decision::Send { burst_bytes: 4_000 });
    views[0].window_left_bytes = 5_000;
    assert_eq!(decide(0, 1 << 20, &views), Decision::Send { burst_bytes: 4_500 });
    views[0].window_left_bytes = 1_499;
    assert_eq!(decide(0, 1 << 20, &views), Decision::Wait);
}

#[test]
fn a_link_without_a_rate_gets_a_first_share_and_no_small_operation() {
    let mut views = [view(&TEN_GIGABIT), view(&GIGABIT)];
    views[1].rate_bytes_per_second = None;
    views[1].one_way_ns = 50_000_000;
    let mut state = SchedulerState::default();
    let mut ask = |backlog| pick(SchedulingPolicy::default(), 1, backlog, NOW, &views, &mut state);
    assert_eq!(ask(1_500), Decision::Wait);
    for _ in 0..4 {
        assert_eq!(ask(30_000), Decision::Send { burst_bytes: 1_500 });
    }
    assert_eq!(ask(30_000), Decision::Wait);
    state.forget(1);
    let again = pick(SchedulingPolicy::default(), 1, 30_000, NOW, &views, &mut state);
    assert_eq!(again, Decision::Send { burst_bytes: 1_500 });
}

#[test]
fn a_link_that_got_nothing_for_long_is_measured_again() {
    let mut views = [view(&GIGABIT), view(&GIGABIT)];
    views[1].rate_bytes_per_second = Some(1_000);
    let mut state = SchedulerState::default();
    let mut ask = |now| pick(SchedulingPolicy::default(), 1, 30_000, now, &views, &mut state);
    assert_eq!(ask(NOW), Decision::Wait);
    assert_eq!(ask(NOW.after_ns(REMEASURE_NS - 1)), Decision::Wait);
    let later = NOW.after_ns(REMEASURE_NS);
    assert_eq!(ask(later), Decision::Send { burst_bytes: 1_500 });
    assert_eq!(ask(later.after_ns(1)), Decision::Wait);
}

#[test]
fn round_robin_skips_links_that_are_not_usable() {
    let mut views = [view(&GIGABIT); 3];
    views[1].usable = false;
    let mut state = SchedulerState::default();
    let mut turns = Vec::new();
    for candidate in [0, 1, 2, 2, 0, 0, 2] {
        let policy = SchedulingPolicy::RoundRobin;
        if pick(policy, candidate, 1 << 20, NOW, &views, &mut state) != Decision::Wait {
            turns.push(candidate);
        }
    }
    assert_eq!(turns, [0, 2, 0, 2]);
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
    let decisions = [0, 1, 2].map(|candidate| decide(candidate, 2_430, &views));
    assert!(decisions.iter().any(|decision| *decision != Decision::Wait), "{decisions:?}");
}

proptest! {
    /// Otherwise a backlog could wait for ever.
    #[test]
    fn some_open_link_always_gets_data_unless_a_closed_one_is_expected(
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
        let mut state = SchedulerState::default();
        let mut sent = false;
        for candidate in 0..=views.len() {
            let asked = pick(
                policy, candidate, backlog_bytes, Instant(now), &views, &mut state,
            );
            if let Decision::Send { burst_bytes } = asked {
                sent = true;
                let burst_bytes = u64::from(burst_bytes);
                prop_assert!(burst_bytes >= unit_bytes(&views[candidate]));
                prop_assert!(burst_bytes <= backlog_bytes);
                prop_assert!(burst_bytes <= views[candidate].window_left_bytes);
                prop_assert!(views[candidate].usable);
                break;
            }
        }
        let all_open = views.iter().all(|view| view.window_left_bytes >= unit_bytes(view));
        let any_usable = views.iter().any(|view| view.usable);
        prop_assert!(sent || !all_open || !any_usable);
    }
}

fn any_view() -> impl Strategy<Value = LinkView> {
    let time = || prop_oneof![0_u64..10_000_000, any::<u64>()];
    let rate = prop::option::of(prop_oneof![1_000_u64..12_500_000_000, any::<u64>()]);
    let window = prop_oneof![0_u64..20_000, Just(u64::MAX)];
    let frame = prop_oneof![256_u32..9_000, any::<u32>()];
    (rate, time(), time(), window, frame, any::<bool>(), any::<bool>()).prop_map(
        |(
            rate_bytes_per_second,
            one_way_ns,
            idle_at,
            window_left_bytes,
            frame_bytes,
            usable,
            backup,
        )| {
            let idle_at = Instant(idle_at);
            LinkView {
                rate_bytes_per_second,
                one_way_ns,
                idle_at,
                window_left_bytes,
                opens_at: Instant::NEVER,
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

/// A link as it is, not as it is estimated.
#[derive(Clone, Copy)]
struct Path {
    rate: u64,
    one_way_ns: u64,
}

struct Run {
    done_ns: u64,
    late_permille: usize,
}

/// Sends `bytes` in virtual time. A link is asked while less than a few µs are queued on it; its
/// idle time is estimated from the wrong rate too.
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
    let mut left = bytes.div_ceil(1_440);
    let mut sent = 0_u64;
    let mut arrivals = Vec::new();
    let mut now = NOW.0;
    while left > 0 {
        let mut progressed = false;
        // Estimates change with every acknowledgement, not between two questions of one turn.
        let percents: Vec<u64> =
            paths.iter().map(|_| random_percent(error_percent, &mut random)).collect();
        for candidate in 0..paths.len() {
            if idle_ns[candidate] > now + QUEUE_NS || left == 0 {
                continue;
            }
            let views: Vec<LinkView> = (0..paths.len())
                .map(|link| estimated(&paths[link], idle_ns[link], now, percents[link]))
                .map(|view| LinkView { frame_bytes: FRAME as u32, ..view })
                .collect();
            let backlog = left * FRAME;
            let now = Instant(now);
            match pick(policy, candidate, backlog, now, &views, &mut state) {
                Decision::Wait => {}
                Decision::Send { burst_bytes } => {
                    let path = paths[candidate];
                    progressed = true;
                    for _ in 0..u64::from(burst_bytes) / FRAME {
                        let start = idle_ns[candidate].max(now.0);
                        idle_ns[candidate] = start + FRAME * 1_000_000_000 / path.rate;
                        arrivals.push((idle_ns[candidate] + path.one_way_ns, sent));
                        sent += 1;
                        left -= 1;
                    }
                }
            }
        }
        if !progressed {
            let next = idle_ns.iter().map(|idle| idle - QUEUE_NS).filter(|&at| at > now).min();
            now = next.expect("some link is busy, else the best link would have got data");
        }
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
    LinkView {
        rate_bytes_per_second: Some(path.rate * percent / 100),
        idle_at: Instant(now + busy_ns),
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
        frame_bytes: 1_500,
        usable: true,
        backup: false,
    }
}

fn decide(candidate: usize, backlog_bytes: u64, views: &[LinkView]) -> Decision {
    let mut state = SchedulerState::default();
    pick(SchedulingPolicy::default(), candidate, backlog_bytes, NOW, views, &mut state)
}

const NOW: Instant = Instant(1_000_000_000);
const FRAME: u64 = 1_440 + 66;
const MEGABYTE: u64 = 1 << 20;
const QUEUE_NS: u64 = 5_000;
const GIGABIT: Path = Path { rate: 125_000_000, one_way_ns: 20_000 };
const TENTH: Path = Path { rate: 12_500_000, one_way_ns: 20_000 };
const FAR: Path = Path { rate: 125_000_000, one_way_ns: 2_000_000 };
const TEN_GIGABIT: Path = Path { rate: 1_250_000_000, one_way_ns: 10_000 };
