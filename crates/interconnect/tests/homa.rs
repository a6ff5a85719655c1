//! Tests Homa between hosts: a long message hardly delays short ones, no message starves, lost
//! packets are retransmitted, and the link is fully used.

use std::fmt::Write as _;
use std::ops::ControlFlow;

use fabric::Random;
use interconnect::configuration::{Configuration, Watch};
use interconnect::records::{RecordLimits, Records};
use interconnect::simulation::{InTurns, Outcome};
use proptest::prelude::*;

fn configuration(text: &str) -> Configuration {
    Configuration::parse("a.toml", text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn run(text: &str) -> Outcome {
    let outcome = configuration(text).run_watched(&InTurns, Watch::default());
    outcome.unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn recorded(configuration: &Configuration) -> (Outcome, Records) {
    let watch = Watch { records: Some(RecordLimits::default()), ..Watch::default() };
    let mut outcome = configuration.run_watched(&InTurns, watch).expect("it ends");
    let records = *outcome.records.take().expect("it was recorded");
    (outcome, records)
}

const HOMA: &str = "transport = \"homa\"\n";
const SENDERS: &str = "transport = \"selective_repeat\"\nwindow_frames = 64\n";

/// Returns the number of frame classes that a transport needs.
fn classes(host: &str) -> u32 {
    if host == HOMA { 8 } else { 1 }
}

/// Returns flows to host 0: a message of 10 MB from the first sender, and short messages at random
/// times from the other senders.
fn beside_a_long_one(seed: u64) -> String {
    let mut random = Random::new(seed);
    let mut flows = String::from("[1, 0, \"10 MB\", 0]");
    for source in 2..10 {
        for _ in 0..20 {
            let (bytes, start_ps) = (1 + random.below(1_400), 7_000_000_000);
            let _ = write!(flows, ", [{source}, 0, {bytes}, {}]", random.below(start_ps));
        }
    }
    flows
}

/// Returns the mean slowdown of the short messages, and the time of the long message in µs.
fn slowdown(host: &str, seed: u64) -> (f64, f64) {
    let text = format!(
        "[topology]\nhosts = 10\n[fabric]\nclasses = {}\n[host]\n{host}[workload]\nkind = \
         \"flows\"\nflows = [{}]\n[run]\nseed = {seed}\n",
        classes(host),
        beside_a_long_one(seed)
    );
    let configuration = configuration(&text);
    let (_, records) = recorded(&configuration);
    let slowdowns = configuration.slowdowns(&records, &mut |_| ControlFlow::Continue(()));
    let slowdowns = slowdowns.expect("they end");
    let messages = (0..).zip(&records.messages);
    let short = messages.filter(|(_, message)| message.bytes < 2_000);
    let found: Vec<f64> =
        short.filter_map(|(place, message)| slowdowns.slowdown(place, message)).collect();
    assert_eq!(found.len(), 160);
    let long = records.messages.iter().find(|message| message.bytes > 2_000).expect("there is one");
    (found.iter().sum::<f64>() / 160.0, long.delivered_ps as f64 / 1e6)
}

#[test]
fn short_messages_beside_a_long_one_have_less_slowdown_than_with_windows() {
    for seed in 1..=20 {
        let ((homa, long), (windows, other)) = (slowdown(HOMA, seed), slowdown(SENDERS, seed));
        println!(
            "seed {seed}: {homa:.2} and {windows:.2}, the long one {long:.0} and {other:.0} us"
        );
        assert!(homa < 2.0, "seed {seed}: {homa}");
        assert!(homa * 4.0 < windows, "seed {seed}: {homa}, {windows}");
        // Homa delays the long message by less than a tenth.
        assert!(long < other * 1.1, "seed {seed}: {long}, {other}");
    }
}

/// A single message uses the full link, at any distance.
#[test]
fn grants_keep_the_link_full() {
    for topology in [
        "hosts = 3\n",
        "kind = \"fat_tree\"\nradix = 4\n[fabric]\nlatency_ps = \"3 us\"\n",
        "kind = \"leaf_spine\"\n[fabric]\nhost_rate_bps = \"100 Gb/s\"\npropagation_ps = \"2 us\"\nmtu_bytes = 4096\n",
    ] {
        let text = format!(
            "[topology]\n{topology}[host]\n{HOMA}[workload]\nkind = \"broadcast\"\nranks = 2\nbytes = \
             \"20 MB\"\niterations = 1\n"
        );
        let outcome = run(&text);
        let plain = run(&text.replace(HOMA, ""));
        let share = plain.completed_ps as f64 / outcome.completed_ps as f64;
        println!("{topology:?}: {share:.3}, {:?}", outcome.transport);
        assert!(share > 0.95, "{topology}: {share}");
    }
}

/// A fraction of the link is reserved for the oldest message. The longest message is the oldest. It
/// gets this fraction although shorter messages need the whole link. Without the reservation, it
/// would wait until the shorter messages have ended.
#[test]
fn the_longest_message_does_not_starve() {
    let delivered_ps = |oldest: u32| {
        let mut flows = String::from("[1, 0, \"2 MB\", 0]");
        for source in 2..6 {
            for at in 0..60 {
                let _ = write!(flows, ", [{source}, 0, 200_000, \"{} us\"]", at * 500);
            }
        }
        let text = format!(
            "[topology]\nhosts = 6\n[fabric]\nclasses = 8\n[host]\n{HOMA}overcommitment = \
             2\noldest_percent = {oldest}\n[workload]\nkind = \"flows\"\nflows = [{flows}]\n"
        );
        let (outcome, records) = recorded(&configuration(&text));
        assert_eq!((outcome.left, outcome.delivered), (0, 241));
        let message = |is_long: bool| {
            let of =
                records.messages.iter().filter(|message| (message.bytes > 1_000_000) == is_long);
            of.map(|message| message.delivered_ps).max().expect("there are some")
        };
        (message(true), message(false))
    };
    // The short messages have 48 MB together, which take 39 ms. The long message has 2 MB, which a
    // tenth of the link carries in 16 ms.
    let ((with, _), (without, others)) = (delivered_ps(10), delivered_ps(0));
    println!("{with} with a share, {without} without, others until {others}");
    assert!(with < others / 4 * 3, "{with} {others}");
    assert!(without >= others, "{without} {others}");
}

/// Many senders send at the same time. The queue stays short, because it contains only frames that
/// need no grant, and granted frames of only a few messages.
#[test]
fn an_incast_has_a_short_queue() {
    let run = |host: &str| {
        // Neither transport uses marks. The results list only ports with marks or losses, so the
        // switch marks frames to make the results list its ports.
        let outcome = run(&format!(
            "[topology]\nhosts = 33\n[fabric]\nclasses = {}\necn_max_bytes = 1000\n[host]\n\
             {host}[workload]\nkind = \"incast\"\nbytes = \"200 kB\"\niterations = 3\n",
            classes(host)
        ));
        assert_eq!(outcome.delivered, 96);
        let port = outcome.ports.iter().find(|port| port.name == "s0->h0").expect("it marks");
        (outcome.completed_ps, port.queue_bytes_max)
    };
    let ((homa_ps, homa_bytes), (windows_ps, windows_bytes)) = (run(HOMA), run(SENDERS));
    println!("{homa_ps} and {windows_ps} ps; queues of {homa_bytes} and {windows_bytes} bytes");
    assert!(homa_ps < windows_ps / 100 * 103, "{homa_ps} {windows_ps}");
    assert!(homa_bytes * 4 < windows_bytes, "{homa_bytes} {windows_bytes}");
}

#[test]
fn grants_and_requests_are_counted_and_windows_are_not() {
    let text = format!(
        "[topology]\nhosts = 4\n[fabric]\nclasses = 4\n[host]\n{HOMA}loss_ppm = 10_000\ntimeout_ps = \"50 \
         us\"\n[workload]\nkind = \"all_to_all\"\nbytes = 100_000\niterations = 2\n"
    );
    let counts = run(&text).transport.expect("there is one");
    assert!(counts.is_receiver_driven && counts.grants > 0 && counts.resends > 0);
    assert_eq!((counts.connections, counts.window_frames() as u32), (12, 0));
    assert!(counts.retransmitted_frames > 0 && counts.frames_lost_at_random > 0);
    assert_eq!(counts.acknowledgements, 24);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]

    /// Each message arrives once, no matter which packets are lost. Divided runs have the same
    /// results as undivided runs.
    #[test]
    fn all_messages_arrive_whatever_is_lost(
        seed in 0..1_u64 << 60,
        loss_ppm in prop::sample::select(vec![0, 1_000, 20_000, 200_000]),
        which in 0..4_usize,
        classes in 1..=8_u32,
        overcommitment in 1..5_u32,
        rtt_bytes in 1..40_000_u32,
    ) {
        let network = [
            "",
            "buffer_bytes = 9000\n",
            "shared_bytes = 40_000\nchoice = \"spray\"\n",
            "lossless = [0]\npause_bytes = 9000\ncut_through_bytes = 64\n",
        ][which];
        let run_on = |threads: u32| {
            run(&format!(
                "[topology]\nkind = \"leaf_spine\"\nleaves = 3\nhosts = 3\nspines = 2\n[fabric]\nclasses \
                 = {classes}\n{network}[host]\n{HOMA}timeout_ps = \"100 us\"\nloss_ppm = \
                 {loss_ppm}\novercommitment = {overcommitment}\nrtt_bytes = {rtt_bytes}\n[workload]\nsizes \
                 = \"bimodal\"\nbytes = 700\nlarge_bytes = 60_000\nload_percent = 70\nuntil_ps = \"200 \
                 us\"\n[run]\nseed = {seed}\nthreads = {threads}\n"
            ))
        };
        let whole = run_on(1);
        let counts = whole.transport.expect("there is one");
        prop_assert_eq!(whole.left, 0);
        prop_assert!(whole.delivered > 20);
        prop_assert!(counts.payload_bytes >= whole.delivered_bytes);
        if loss_ppm == 0 && which == 0 {
            prop_assert!(counts.payload_bytes == whole.delivered_bytes || counts.timeouts > 0);
        }
        for threads in [1, 2, 3] {
            let again = run_on(threads);
            prop_assert_eq!(again.hash, whole.hash, "{} parts", threads);
            prop_assert_eq!(again.transport, whole.transport, "{} parts", threads);
        }
    }
}
