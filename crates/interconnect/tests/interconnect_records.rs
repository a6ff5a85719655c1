//! Tests the records of runs: records are complete, have no gaps, and do not affect the run.

use std::ops::ControlFlow;

use interconnect::configuration::{Configuration, Watch};
use interconnect::records::{NEVER_PS, PathError, RecordLimits, Records, StepKind};
use interconnect::simulation::{InTurns, Outcome, Progress};

const FABRICS: [&str; 7] = [
    "kind = \"ethernet\"",
    "kind = \"ethernet\"\ncut_through_bytes = 64\nhost_frame_interval_ps = 300000",
    "kind = \"wormhole\"",
    "kind = \"flit\"",
    "kind = \"flit\"\nport_rate_bps = 1000000000\nclock_ps = 30000\nmtu_bytes = 1500",
    "kind = \"loggp\"",
    "kind = \"fluid\"",
];

const WORKLOADS: [&str; 4] = [
    "kind = \"mesh\"\niterations = 4\nbytes = 5000",
    "kind = \"token_pass\"\nbytes = 20000\ndelay_ps = 700000\npasses = 40",
    "kind = \"open_load\"\ninterval_ps = 3000000\nuntil_ps = 60000000\nbytes = 3000",
    "kind = \"open_load\"\npattern = \"incast\"\ninterval_ps = 9000000\nuntil_ps = 60000000",
];

const HOSTS: [&str; 2] = ["", "send_ps = 900000\nreceive_ps = 1100000\nsend_ps_per_byte = 13"];

fn recorded(text: &str, limits: RecordLimits) -> (Outcome, Records) {
    let configuration = Configuration::parse("a.toml", text).expect("it is valid");
    let watch = Watch { records: Some(limits), ..Watch::default() };
    let mut outcome = configuration.run_watched(&InTurns, watch).expect("it ends");
    let plain = configuration.run().expect("it ends");
    assert_eq!((plain.hash, plain.events), (outcome.hash, outcome.events), "{text}");
    let records = *outcome.records.take().expect("it was recorded");
    (outcome, records)
}

#[test]
fn the_steps_of_the_critical_path_cover_the_whole_run() {
    for fabric in FABRICS {
        for workload in WORKLOADS {
            for host in HOSTS {
                let text = format!(
                    "[topology]\nkind = \"torus\"\nsizes = [4, 4]\nlanes = 2\n[fabric]\n{fabric}\n\
                     [workload]\n{workload}\n[host]\n{host}\n"
                );
                let (outcome, records) = recorded(&text, RecordLimits::default());
                let path = records.critical_path().expect("all was kept");
                assert_eq!(path.completed_ps, outcome.completed_ps, "{text}");
                let mut at_ps = 0;
                for step in &path.steps {
                    assert_eq!(step.from_ps, at_ps, "{text}{step:?}");
                    assert!(step.until_ps > at_ps);
                    at_ps = step.until_ps;
                }
                assert_eq!(at_ps, outcome.completed_ps, "{text}");
                let has_links = !fabric.contains("loggp") && !fabric.contains("fluid");
                assert_eq!(has_links, path.steps.iter().all(|step| step.kind != StepKind::Network));
                check_messages(&outcome, &records, &text);
                check_links(&records, &text);
            }
        }
    }
}

fn check_messages(outcome: &Outcome, records: &Records, text: &str) {
    assert_eq!(records.messages.len() as u64, outcome.delivered, "{text}");
    for message in &records.messages {
        assert!(message.posted_ps <= message.handed_ps, "{text}{message:?}");
        assert!(message.handed_ps < message.delivered_ps && message.delivered_ps != NEVER_PS);
        assert!(message.delivered_ps <= message.received_ps, "{text}{message:?}");
        if let Some(wait_ps) = records.link_wait_ps(message) {
            assert!(wait_ps <= message.delivered_ps - message.handed_ps, "{text}{message:?}");
        }
    }
}

fn check_links(records: &Records, text: &str) {
    for crossing in &records.crossings {
        assert!(crossing.ready_ps <= crossing.started_ps, "{text}{crossing:?}");
        assert!(crossing.started_ps <= crossing.sent_ps, "{text}{crossing:?}");
        assert!(crossing.sent_ps <= crossing.arrived_ps, "{text}{crossing:?}");
        assert!(crossing.busy_until_ps > crossing.started_ps, "{text}{crossing:?}");
    }
    let last_ps = records.messages.iter().map(|message| message.received_ps).max().unwrap_or(0);
    for link in &records.links {
        assert!(link.busy_ps <= last_ps, "{text}{link:?}");
        assert_eq!(link.packets > 0, link.busy_ps > 0, "{text}{link:?}");
    }
}

/// The first of two hosts sends 3000 bytes at 10 Gb/s through a switch. The expected times were
/// computed by hand.
#[test]
fn a_hand_computed_critical_path_is_found() {
    let text = "[topology]\nhosts = 2\n[fabric]\nlatency_ps = 400000\npropagation_ps = 5000\n\
                [workload]\nkind = \"token_pass\"\nbytes = 3000\npasses = 1\n[host]\nsend_ps = \
                1000\nreceive_ps = 2000\n";
    let (outcome, records) = recorded(text, RecordLimits::default());
    let path = records.critical_path().expect("all was kept");
    let time_of = |kind| {
        let found = path.by_kind().into_iter().find(|(found, _)| *found == kind);
        found.map_or(0, |(_, share)| share.total_ps)
    };
    let frame_ps = 1526 * 800;
    let gap_ps = 12 * 800;
    assert_eq!(time_of(StepKind::Send), 1_000);
    assert_eq!(time_of(StepKind::Receive), 2_000);
    assert_eq!(time_of(StepKind::Serialisation), frame_ps + gap_ps + frame_ps + frame_ps);
    assert_eq!(time_of(StepKind::Latency), 5_000 + 400_000 + 5_000);
    assert_eq!(time_of(StepKind::LinkWait), 0, "it waits for nothing else");
    assert_eq!(outcome.completed_ps, path.completed_ps);
    let by_link = path.by_link();
    assert_eq!(by_link.len(), 2);
    assert_eq!(records.links[by_link[0].0 as usize].bytes, 2 * 1526);
}

#[test]
fn the_link_that_delayed_the_run_is_named() {
    let text = "[topology]\nkind = \"leaf_spine\"\nleaves = 2\nhosts = 8\nspines = 1\n[workload]\n\
                pattern = \"shift\"\ninterval_ps = 3000000\nuntil_ps = 500000000\n";
    let configuration = Configuration::parse("a.toml", text).expect("it is valid");
    let (outcome, records) = recorded(text, RecordLimits::default());
    let path = records.critical_path().expect("all was kept");
    let late = path.by_link()[0].0;
    let name = configuration.topology.link_name(late);
    assert!(name == "s0->s2" || name == "s1->s2", "{name}: both trunks get 3 times their rate");
    assert!(path.by_link()[0].1.wait_ps > outcome.completed_ps / 4, "{path:?}");
    let mut saturated: Vec<String> = records
        .saturated_links()
        .iter()
        .map(|found| configuration.topology.link_name(found.link))
        .collect();
    saturated.sort();
    assert_eq!(saturated, ["s0->s2", "s1->s2"]);
    assert!(outcome.backlog.growth().is_none_or(|growth| growth.late > growth.early * 1.5));
}

#[test]
fn a_fully_carried_load_saturates_no_link() {
    let text = "[topology]\nkind = \"leaf_spine\"\nleaves = 2\nhosts = 8\nspines = 4\ntrunks = 2\n\
                [fabric]\nchoice = \"least_loaded\"\n[workload]\ninterval_ps = 2000000\nuntil_ps = 2000000000\n";
    let (outcome, records) = recorded(text, RecordLimits::default());
    assert_eq!(records.saturated_links(), Vec::new());
    assert_eq!(outcome.backlog.growth(), None);
}

#[test]
fn omitted_records_are_reported() {
    let text = "[workload]\nkind = \"mesh\"\n";
    let few = RecordLimits { messages: 100, crossings: 1_000_000 };
    let (outcome, records) = recorded(text, few);
    assert_eq!(records.messages.len(), 100);
    assert_eq!(records.left_out.messages, outcome.delivered - 100);
    assert!(matches!(records.critical_path(), Err(PathError::LeftOut { .. })));
    let (_, records) = recorded(text, RecordLimits { messages: 1_000_000, crossings: 100 });
    assert_eq!(records.crossings.len(), 100);
    assert!(matches!(records.critical_path(), Err(PathError::LeftOut { .. })));
    let (_, whole) = recorded(text, RecordLimits::default());
    let sums = |records: &Records| records.links.iter().map(|link| link.bytes).sum::<u64>();
    assert_eq!(sums(&records), sums(&whole), "links are counted whatever is kept");
}

/// The progress callback can stop a run.
#[test]
fn a_run_is_stopped_by_its_watcher() {
    for workload in WORKLOADS {
        let text = format!("[topology]\nhosts = 64\n[workload]\n{workload}\n");
        let configuration = Configuration::parse("a.toml", &text).expect("it is valid");
        let mut reported = Vec::new();
        let mut progress = |progress: Progress| {
            reported.push(progress.events);
            ControlFlow::Break(())
        };
        let watch = Watch { progress: Some(&mut progress), ..Watch::default() };
        let Err(error) = configuration.run_watched(&InTurns, watch) else {
            assert!(
                reported.is_empty(),
                "the run ended although its watcher stopped it: {reported:?}"
            );
            continue;
        };
        let [events] = reported[..] else {
            panic!("the watcher was not called exactly once: {reported:?}")
        };
        assert!(
            error.to_string().starts_with(&format!("stopped after {events} events")),
            "{error}"
        );
    }
}

/// The progress rises from almost 0 to 1.
#[test]
fn progress_grows() {
    for workload in WORKLOADS {
        let text = format!("[topology]\nhosts = 64\n[workload]\n{workload}\n");
        let configuration = Configuration::parse("a.toml", &text).expect("it is valid");
        let mut shares = Vec::new();
        let mut progress = |report: Progress| {
            shares.extend(report.share);
            ControlFlow::Continue(())
        };
        let watch = Watch { progress: Some(&mut progress), ..Watch::default() };
        configuration.run_watched(&InTurns, watch).expect("it ends");
        assert!(shares.is_sorted(), "{shares:?}");
        assert!(shares.iter().all(|share| (0.0..=1.0).contains(share)), "{shares:?}");
    }
}
