//! Tests several workloads in one run.

use interconnect::configuration::{Configuration, Watch, parse_sweep};
use interconnect::records::RecordLimits;
use interconnect::simulation::{InTurns, Outcome};

fn configuration(text: &str) -> Configuration {
    Configuration::parse("a.toml", text).expect(text)
}

fn run(text: &str) -> Outcome {
    configuration(text).run().expect(text)
}

const NETWORK: &str = "[topology]\nkind = \"leaf_spine\"\nleaves = 4\nhosts = 4\nspines = 2\n";

const KINDS: [&str; 6] = [
    "kind = \"token_pass\"\nbytes = 3000\n",
    "kind = \"mesh\"\niterations = 3\n",
    "load_percent = 30\nsizes = \"exponential\"\nuntil_ps = \"200 us\"\n",
    "kind = \"flows\"\nflows = [[0, 5, 64000, 0], [3, 5, 64000, \"70 us\"]]\n",
    "kind = \"all_reduce\"\nbytes = 100_000\niterations = 2\nreduce_ps_per_byte = 20\n",
    "kind = \"barrier\"\nranks = 7\ncompute_ps = \"3 us\"\n",
];

#[test]
fn a_workload_listed_alone_equals_a_single_workload() {
    for kind in KINDS {
        let alone = run(&format!("{NETWORK}[workload]\n{kind}"));
        let listed = run(&format!("{NETWORK}[[workload]]\n{kind}"));
        assert_eq!(listed.hash, alone.hash, "{kind}");
        assert_eq!(listed.completed_ps, alone.completed_ps, "{kind}");
        let [own] = listed.workloads.as_slice() else { panic!("{kind}") };
        assert_eq!(own.delivered, alone.delivered, "{kind}");
        assert_eq!(own.latency, alone.latency, "{kind}");
        assert!(alone.workloads.is_empty());
    }
}

/// The network is idle when the second workload starts. Its times therefore equal the times of the
/// same workload alone, plus the start time.
#[test]
fn times_of_a_workload_count_from_its_start() {
    for kind in KINDS {
        let alone = run(&format!("{NETWORK}[workload]\n{kind}"));
        let later = run(&format!(
            "{NETWORK}[[workload]]\nkind = \"barrier\"\n[[workload]]\nstart_ps = \"5 ms\"\n{}",
            // In this run, the seed of the second workload differs from its seed in the run alone.
            // Random times would therefore differ, so the workload gets a pattern without random
            // numbers.
            kind.replace("load_percent = 30\nsizes = \"exponential\"", "pattern = \"shift\"")
        ));
        let [barrier, own] = later.workloads.as_slice() else { panic!("{kind}") };
        assert!(barrier.completed_ps < 5_000_000_000 && later.completed_ps > 5_000_000_000);
        assert_eq!(later.delivered, barrier.delivered + own.delivered, "{kind}");
        if !kind.starts_with("load") {
            assert_eq!(later.completed_ps, alone.completed_ps + 5_000_000_000, "{kind}");
            assert_eq!(own.latency, alone.latency, "{kind}");
        }
    }
}

#[test]
fn all_workload_kinds_together_agree_in_divided_and_recorded_runs() {
    let lists: Vec<String> = KINDS.iter().map(|kind| format!("[[workload]]\n{kind}")).collect();
    let whole = configuration(&format!("{NETWORK}{}", lists.join("")));
    let outcome = whole.run().expect("it ends");
    let sums = outcome.workloads.iter().fold((0, 0, 0), |(messages, bytes, count), own| {
        (messages + own.delivered, bytes + own.delivered_bytes, count + own.latency.count())
    });
    assert_eq!(sums, (outcome.delivered, outcome.delivered_bytes, outcome.latency.count()));
    let mut parts = whole.clone();
    parts.threads = 3;
    let divided = parts.run_watched(&InTurns, Watch::default()).expect("it ends");
    let watch = Watch { records: Some(RecordLimits::default()), ..Watch::default() };
    let recorded = whole.run_watched(&InTurns, watch).expect("it ends");
    for (place, own) in outcome.workloads.iter().enumerate() {
        assert!(own.delivered > 0);
        for other in [&divided, &recorded] {
            assert_eq!(other.hash, outcome.hash);
            let other = &other.workloads[place];
            assert_eq!(other.completed_ps, own.completed_ps);
            assert_eq!((other.delivered, other.latency), (own.delivered, own.latency));
        }
        let records = recorded.records.as_deref().expect("it was recorded");
        let of_it =
            records.messages.iter().filter(|message| usize::from(message.workload) == place);
        assert_eq!(of_it.count() as u64, own.delivered);
    }
    // Reading the effective configuration gives the same effective configuration.
    let again = configuration(&whole.effective);
    assert_eq!(again.effective, whole.effective);
    assert_eq!(again.run().expect("it ends").hash, outcome.hash);
}

#[test]
fn every_fabric_and_engine_carries_several_workloads() {
    for network in [
        "[fabric]\nkind = \"wormhole\"\n",
        "[fabric]\nkind = \"flit\"\n",
        "[fabric]\nkind = \"fluid\"\n",
        "[fabric]\nkind = \"loggp\"\n[host]\nsend_ps = 500\n",
        "[host]\nkind = \"edge\"\n",
        "[host]\ntransport = \"go_back_n\"\n[fabric]\nbuffer_bytes = 20000\n",
    ] {
        let outcome = run(&format!(
            "{network}[[workload]]\nkind = \"barrier\"\niterations = 1\n[[workload]]\nstart_ps = \
             1000\nkind = \"flows\"\nflows = [[0, 5, 9000, 0]]\n"
        ));
        let delivered: Vec<u64> = outcome.workloads.iter().map(|own| own.delivered).collect();
        assert_eq!(delivered, [16 * 4, 1], "{network}");
    }
}

#[test]
fn switches_serve_the_class_of_a_workload_first() {
    let mean_us = |class_by: &str| {
        let outcome = run(&format!(
            "[fabric]\nclasses = 2\nclass_by = \"{class_by}\"\n[[workload]]\nclass = 1\nkind = \
             \"incast\"\nbytes = 100_000\niterations = 1\n[[workload]]\npattern = \
             \"incast\"\ninterval_ps = \"300 us\"\nuntil_ps = \"1 ms\"\nbytes = 1000\n"
        ));
        [&outcome.workloads[0], &outcome.workloads[1]].map(|own| own.latency.mean_us())
    };
    let ([large, small], [large_first, small_first]) = (mean_us("workload"), mean_us("tag"));
    assert!(small * 10.0 < small_first, "{small} us, without classes {small_first} us");
    assert!(large >= large_first, "{large} us, without classes {large_first} us");
}

#[test]
fn open_loads_with_equal_settings_post_at_different_times() {
    let load = "[[workload]]\nload_percent = 10\n";
    let watch = Watch { records: Some(RecordLimits::default()), ..Watch::default() };
    let outcome = configuration(&format!("{load}{load}")).run_watched(&InTurns, watch);
    let records = outcome.expect("it ends").records.expect("it was recorded");
    let times = |place: u8| {
        let own = records.messages.iter().filter(move |message| message.workload == place);
        own.take(20).map(|message| message.posted_ps).collect::<Vec<u64>>()
    };
    assert_ne!(times(0), times(1));
}

#[test]
fn impossible_workloads_are_reported_with_line_and_remedy() {
    for (text, expected) in [
        (
            "[[workload]]\nkind = \"ring\"\n[[workload]]\nclass = 9\n",
            "a.toml:4: class in [workload] is 9, but must be a whole number from 0 to 7; 7 would do",
        ),
        (
            "[[workload]]\nkind = \"ring\"\n[[workload]]\nkind = \"rings\"\n",
            "a.toml:4: kind in [workload] is \"rings\", but must be one of token_pass, mesh, open_load, \
             flows, ring, all_to_all, incast, all_reduce, broadcast, barrier; \"ring\" would do",
        ),
        (
            "[workload]\nclass = 1\n",
            "a.toml:2: unknown key `class` in [workload]; it needs [[workload]]",
        ),
        (
            "workload = []\n",
            "a.toml:1: workload outside of all sections is [], but must be a section: [workload], or \
             several: [[workload]]",
        ),
        (
            "[[workload]]\nkind = \"flows\"\n",
            "a.toml: flows in [workload] is [], but must be a list of at least one flow; [[0, 1, 1500, 0]] \
             or flows_file = \"web.flows\" would do",
        ),
        (
            "[[workload]]\nkind = \"ring\"\n[sweep.workload]\nbytes = [1, 2]\n",
            "a.toml: bytes in [sweep.workload] is 1, but must be of a single section: [workload], not \
             [[workload]]",
        ),
        (
            "[host]\nkind = \"edge\"\n[fabric]\nclasses = 2\nclass_by = \"workload\"\n",
            "a.toml:5: class_by in [fabric] is \"workload\", but must be source or size with [host] kind = \
             \"edge\"",
        ),
    ] {
        let read = parse_sweep("a.toml", text, &|_| Err("no such file".to_owned()));
        assert_eq!(read.expect_err(text).to_string(), expected);
    }
    // The network does not retransmit lost frames, and the mesh waits for its messages.
    let error = configuration(
        "[fabric]\nbuffer_bytes = 3000\n[[workload]]\nload_percent = 10\n[[workload]]\nkind = \"incast\"\n",
    );
    let error = error.run().expect_err("it waits").to_string();
    assert!(error.contains("packets were lost, and the workload waits"), "{error}");
}
