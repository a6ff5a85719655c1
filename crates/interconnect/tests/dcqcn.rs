//! Tests DCQCN between hosts: fair rates, queue lengths between the marking thresholds, few losses,
//! and equal results in divided runs.

use interconnect::configuration::{Configuration, Watch};
use interconnect::records::RecordLimits;
use interconnect::simulation::{InTurns, Outcome};

fn run(text: &str, watch: Watch) -> Outcome {
    let configuration = Configuration::parse("a.toml", text).unwrap_or_else(|e| panic!("{e}"));
    configuration.run_watched(&InTurns, watch).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// Returns a configuration with flows to host 0 of a star. For queue lengths from 5 kB to 200 kB,
/// the switch marks at most 1 % of the frames.
fn text(flows: &str, (hosts, seed): (u32, u64), fabric: &str, host: &str) -> String {
    format!(
        "[topology]\nhosts = {hosts}\n[fabric]\nhost_rate_bps = \"40 Gb/s\"\nlatency_ps = \"1 us\"\n{fabric}\
         [host]\ntransport = \"selective_repeat\"\nwindow_frames = 512\n{host}[workload]\nkind = \"flows\"\nflows = \
         {flows}\n[run]\nseed = {seed}\n"
    )
}

const MARKS: &str = "ecn_min_bytes = \"5 kB\"\necn_max_bytes = \"200 kB\"\necn_max_percent = 1\n";
const DCQCN: &str = "congestion = \"dcqcn\"\n";
/// The link from the switch to host 0.
const TO_TARGET: u32 = 1;

/// Returns the fractions of the target's link that two flows get. They are measured in the last
/// third of the time before the first flow ends.
fn late_shares(flows: &str, seed: u64) -> [f64; 2] {
    let limits = RecordLimits { crossings: 4_000_000, ..RecordLimits::default() };
    let watch = Watch { records: Some(limits), ..Watch::default() };
    let outcome = run(&text(flows, (3, seed), MARKS, DCQCN), watch);
    let records = outcome.records.expect("it was recorded");
    let ends = records.messages.iter().map(|message| message.delivered_ps);
    let end_ps = ends.min().expect("there are two");
    let late = records
        .crossings
        .iter()
        .filter(|it| it.link == TO_TARGET && (end_ps / 3 * 2..end_ps).contains(&it.started_ps));
    let mut bytes = [0.0; 2];
    late.for_each(|it| bytes[it.message as usize] += f64::from(it.bytes));
    bytes.map(|own| own / (bytes[0] + bytes[1]))
}

#[test]
fn two_senders_converge_to_fair_shares() {
    for start in ["0", "\"1 ms\""] {
        let flows = format!("[[1, 0, \"50 MB\", 0], [2, 0, \"50 MB\", {start}]]");
        let shares: Vec<[f64; 2]> = (1..=SEEDS).map(|seed| late_shares(&flows, seed)).collect();
        let mean = shares.iter().map(|shares| shares[0]).sum::<f64>() / SEEDS as f64;
        let index = |shares: &[f64; 2]| 0.5 / (shares[0].powi(2) + shares[1].powi(2));
        let worst = shares.iter().map(index).fold(1.0, f64::min);
        let usual = shares.iter().map(index).sum::<f64>() / SEEDS as f64;
        println!(
            "the second from {start}: the first has {mean:.3}, index {usual:.3}, least {worst:.3}"
        );
        assert!((mean - 0.5).abs() < 0.04, "{mean}: {shares:.3?}");
        // At most one frame of a hundred is marked. Therefore one flow gets a notification before
        // the other, and the rates are not exactly equal.
        assert!(usual > 0.97 && worst > 0.8, "{usual} {worst}: {shares:.3?}");
    }
}

/// Returns the queue lengths of the link to host 0, in bytes, in ascending order. A length is
/// measured at each arrival of a frame of more than 1000 bytes, from one half to nine tenths of the
/// run. It is the number of bytes that the link carries at 40 Gb/s while the frame waits.
fn queue(outcome: &Outcome) -> Vec<f64> {
    let records = outcome.records.as_ref().expect("it was recorded");
    let late = records.crossings.iter().filter(|it| {
        it.link == TO_TARGET
            && it.bytes > 1_000
            && (outcome.completed_ps / 2..outcome.completed_ps * 9 / 10).contains(&it.ready_ps)
    });
    let mut waits: Vec<f64> =
        late.map(|it| (it.started_ps - it.ready_ps) as f64 * 40e9 / 8e12).collect();
    waits.sort_by(f64::total_cmp);
    waits
}

#[test]
fn an_incast_keeps_its_queue_between_the_thresholds_and_loses_little() {
    let flows: Vec<String> = (1..9).map(|host| format!("[{host}, 0, \"20 MB\", 0]")).collect();
    let flows = format!("[{}]", flows.join(", "));
    let fabric = format!("buffer_bytes = \"600 kB\"\n{MARKS}");
    let recorded = |host: &str, seed: u64| {
        let limits = RecordLimits { crossings: 4_000_000, ..RecordLimits::default() };
        let watch = Watch { records: Some(limits), ..Watch::default() };
        run(&text(&flows, (9, seed), &fabric, host), watch)
    };
    for seed in 1..=3 {
        let outcome = recorded(DCQCN, seed);
        let queue = queue(&outcome);
        let at = |percent: usize| queue[queue.len() * percent / 100];
        let counts = outcome.transport.expect("there is one");
        let without = run(&text(&flows, (9, seed), &fabric, ""), Watch::default());
        println!(
            "queue {:.0} {:.0} {:.0}, lost {} and {} without, {} notifications, mean rate {:.2} Gb/s",
            at(5),
            at(50),
            at(95),
            outcome.dropped,
            without.dropped,
            counts.notifications,
            counts.rate_bps().unwrap_or_default() / 1e9
        );
        assert_eq!((outcome.delivered, without.delivered), (8, 8));
        assert!((5e3..200e3).contains(&at(50)), "{}", at(50));
        assert!(at(95) < 250e3, "{}", at(95));
        assert!(outcome.dropped * 50 < without.dropped, "{} {}", outcome.dropped, without.dropped);
        // Eight flows share the link.
        let rate = counts.rate_bps().expect("connections have rates");
        assert!((4e9..8e9).contains(&rate), "{rate}");
    }
}

/// Runs several networks and kinds of loss recovery, both undivided and divided.
#[test]
fn messages_arrive_and_parts_agree() {
    for (fabric, host) in [
        ("ecn_max_bytes = 8000\n", "transport = \"go_back_n\"\n"),
        (
            "ecn_max_bytes = 8000\nclasses = 3\nclass_by = \"size\"\n",
            "transport = \"selective_repeat\"\n",
        ),
        (
            "ecn_min_bytes = 2000\necn_max_bytes = 20_000\nbuffer_bytes = 30_000\nchoice = \"spray\"\n",
            "transport = \"selective_repeat\"\nloss_threshold_frames = 8\nloss_ppm = 20_000\ndcqcn_min_bps = \"1 Gb/s\"\n",
        ),
        (
            "ecn_max_bytes = 8000\nlossless = [0]\npause_bytes = 20_000\n",
            "transport = \"go_back_n\"\n",
        ),
    ] {
        let run = |threads: u32| {
            let text = format!(
                "[topology]\nkind = \"leaf_spine\"\nhosts = 4\n[fabric]\n{fabric}[host]\ncongestion = \
                 \"dcqcn\"\n{host}[workload]\nsizes = \"exponential\"\nbytes = 20_000\npattern = \
                 \"hotspot\"\nload_percent = 60\nuntil_ps = \"500 us\"\n[run]\nthreads = {threads}\n"
            );
            run(&text, Watch::default())
        };
        let whole = run(1);
        let counts = whole.transport.expect("there is one");
        assert_eq!(whole.left, 0, "{fabric}{host}");
        assert!(counts.notifications > 0, "{fabric}{host}");
        for threads in [2, 3] {
            let divided = run(threads);
            assert_eq!(divided.hash, whole.hash, "{fabric}{host}");
            assert_eq!(divided.transport, whole.transport, "{fabric}{host}");
        }
    }
}

const SEEDS: u64 = 20;
