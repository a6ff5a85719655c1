//! Compares the transport of model hosts with theory: goodput with losses, queues and throughput of
//! DCTCP, queues of delay-based windows, and the rates of flows that use one link.

use interconnect::configuration::{Configuration, Watch};
use interconnect::records::RecordLimits;
use interconnect::simulation::{InTurns, Outcome};
use interconnect::workload::{Actions, Received, Workload};

/// Time of a full frame and its gap at 10 Gb/s.
const FRAME_PS: f64 = 1538.0 * 800.0;
/// Length of a full frame in buffers, which do not count the gap.
const FRAME_BYTES: u64 = 1526;

fn configuration(text: &str) -> Configuration {
    Configuration::parse("a.toml", text).expect("it is valid")
}

/// Returns the switch latency for which the round trip of a full frame and its acknowledgement is
/// `round_trip_ps`.
fn latency_ps(round_trip_ps: f64) -> u64 {
    // The round trip crosses two links in each direction, with 10 ns each.
    let links_ps = 2.0 * (1526.0 + 72.0) * 800.0 + 4.0 * 10_000.0;
    ((round_trip_ps - links_ps) / 2.0) as u64
}

/// Returns the fraction of a link's rate that a long message between two hosts gets, if frames are
/// lost at random.
fn efficiency(recovery: &str, window: u32, round_trip_frames: f64, loss_ppm: u32) -> f64 {
    let (frames, latency_ps) = (60_000, latency_ps(round_trip_frames * FRAME_PS));
    let bytes = frames * 1500;
    let text = format!(
        "[topology]\nhosts = 2\n[fabric]\nlatency_ps = {latency_ps}\njitter_percent = \
         0\n[host]\ntransport = \"{recovery}\"\nwindow_frames = {window}\nloss_ppm = {loss_ppm}\n[workload]\nkind = \
         \"broadcast\"\niterations = 1\nbytes = {bytes}\n"
    );
    let outcome = configuration(&text).run().expect("it ends");
    assert_eq!(outcome.delivered, 1);
    f64::from(frames) * FRAME_PS / outcome.completed_ps as f64
}

/// According to textbooks, go-back-N retransmits a window of frames for each loss.
#[test]
fn go_back_n_has_the_goodput_of_the_textbook() {
    for (window, loss_ppm) in [(9, 10_000), (33, 1_000), (33, 10_000), (33, 50_000)] {
        // The acknowledgement of the frame after a lost frame reveals the loss. When it arrives,
        // the sender has sent one window of frames, from the lost frame on, because the round trip
        // is one frame shorter than the window.
        let measured = efficiency("go_back_n", window, f64::from(window) - 1.0, loss_ppm);
        let loss = f64::from(loss_ppm) / 1e6;
        let theory = (1.0 - loss) / (1.0 - loss + loss * f64::from(window));
        let error = measured / theory - 1.0;
        println!("window {window}, loss {loss}: {measured:.4}, theory {theory:.4}, {error:+.4}");
        assert!(error.abs() < 0.03, "window {window}, loss {loss}: {measured}, theory {theory}");
    }
}

/// With selective repeat, the sender retransmits one frame for each loss.
#[test]
fn selective_repeat_retransmits_only_lost_frames() {
    for (loss_ppm, tolerance) in [(0, 0.005), (1_000, 0.01), (10_000, 0.02), (50_000, 0.06)] {
        let measured = efficiency("selective_repeat", 40, 32.0, loss_ppm);
        let theory = 1.0 - f64::from(loss_ppm) / 1e6;
        let error = measured / theory - 1.0;
        println!("loss {loss_ppm} ppm: {measured:.4}, theory {theory:.4}, {error:+.4}");
        // The tolerance is needed for lost acknowledgements: the sender can then retransmit a frame
        // that has arrived.
        assert!(error.abs() < tolerance, "loss {loss_ppm} ppm: {measured}, theory {theory}");
    }
}

/// If the window is smaller than the bandwidth-delay product, the sender transmits one window per
/// round trip.
#[test]
fn a_small_window_limits_throughput() {
    let measured = efficiency("selective_repeat", 8, 32.0, 0);
    assert!((measured / (8.0 / 32.0) - 1.0).abs() < 0.01, "{measured}");
}

/// Returns the queue lengths of the link to host 0, in frames. A length is measured whenever a
/// frame arrives in the third quarter of a run.
fn queue(outcome: &Outcome) -> Vec<f64> {
    let records = outcome.records.as_ref().expect("it was recorded");
    let is_late = |ps: u64| ps > outcome.completed_ps / 2 && ps < outcome.completed_ps * 3 / 4;
    let to_target = |bytes: u32, link: u32| u64::from(bytes) == FRAME_BYTES && link == TO_TARGET;
    let crossings = records.crossings.iter();
    let late = crossings.filter(|it| to_target(it.bytes, it.link) && is_late(it.ready_ps));
    late.map(|it| (it.started_ps - it.ready_ps) as f64 / FRAME_PS).collect()
}

fn recorded(text: &str) -> Outcome {
    let watch = Watch { records: Some(RecordLimits::default()), ..Watch::default() };
    configuration(text).run_watched(&InTurns, watch).expect("it ends")
}

/// Returns the configuration of `count` flows of `bytes` bytes each to host 0. The switch latency
/// is chosen so that the round trip is `round_trip_ps`.
fn flows(round_trip_ps: f64, (count, bytes): (u32, u32), host: &str, fabric: &str) -> String {
    format!(
        "[topology]\nhosts = {}\n[fabric]\nlatency_ps = {}\n{fabric}[host]\ntransport = \
         \"selective_repeat\"\nwindow_frames = 4000\n{host}[workload]\nkind = \"incast\"\nbytes = \
         {bytes}\niterations = 1\n",
        count + 1,
        latency_ps(round_trip_ps),
    )
}

/// Compares queues with section 3.3 of Alizadeh and others, SIGCOMM 2010. K is the queue length
/// from which the switch marks frames, and C is the rate of the link. With N flows, the queue
/// oscillates between K + N and K + N − N (W + 1) α / 2. In this formula, W = (C RTT + K) / N, and
/// α follows from α² (1 − α/4) = (2 W + 1) / (W + 1)².
#[test]
fn the_dctcp_queue_matches_its_paper_and_the_link_is_full() {
    for (count, k) in [(2, 40.0), (2, 65.0), (4, 65.0)] {
        let marks = format!("ecn_max_bytes = {}\n", k as u64 * FRAME_BYTES);
        let bytes = 120_000_000 / count;
        let outcome =
            recorded(&flows(ROUND_TRIP_PS, (count, bytes), "congestion = \"dctcp\"\n", &marks));
        let flows = f64::from(count);
        let window = (ROUND_TRIP_PS / FRAME_PS + k) / flows;
        let alpha = (2.0 / window).sqrt();
        let most = k + flows;
        let least = most - flows * (window + 1.0) * alpha / 2.0;
        let mut queue = queue(&outcome);
        queue.sort_by(f64::total_cmp);
        let (low, high) = (queue[queue.len() / 100], queue[queue.len() * 99 / 100]);
        let mean = queue.iter().sum::<f64>() / queue.len() as f64;
        let share = f64::from(count * bytes) / 1500.0 * FRAME_PS / outcome.completed_ps as f64;
        let counts = outcome.transport.expect("there is one");
        println!(
            "{count} flows, K = {k}: {low:.1} to {high:.1}, mean {mean:.1}; theory {least:.1} to {most:.1}; \
             used {share:.4}; {counts:?}"
        );
        assert!((high - most).abs() < 0.15 * most, "{high} of {most}");
        assert!((low - least).abs() < 0.15 * most, "{low} of {least}");
        assert!(share > 0.99, "{share}");
        assert_eq!((outcome.dropped, counts.timeouts), (0, 0));
    }
}

/// Delay-based windows keep round trips at the target. The queue is therefore the target minus the
/// round trip of the idle network.
#[test]
fn the_queue_of_a_delay_window_is_near_its_target() {
    for (count, excess_ps) in [(2, 30_000_000.0), (2, 60_000_000.0), (4, 60_000_000.0)] {
        let target_ps = (ROUND_TRIP_PS + excess_ps) as u64;
        let host = format!("congestion = \"delay\"\ntarget_delay_ps = {target_ps}\n");
        let bytes = 120_000_000 / count;
        let outcome = recorded(&flows(ROUND_TRIP_PS, (count, bytes), &host, ""));
        let queue = queue(&outcome);
        let mean_ps = queue.iter().sum::<f64>() / queue.len() as f64 * FRAME_PS;
        let share = f64::from(count * bytes) / 1500.0 * FRAME_PS / outcome.completed_ps as f64;
        println!("{count} flows, {excess_ps}: {mean_ps}, used {share:.4}");
        assert!((mean_ps / excess_ps - 1.0).abs() < 0.15, "{mean_ps} of {excess_ps}");
        assert!(share > 0.97, "{share}");
    }
}

/// A workload in which one host sends from the start and another host starts to send later. From
/// that time on, both use the same link.
struct Late;

impl Workload for Late {
    fn start(&mut self, rank: u32, actions: &mut Actions) {
        match rank {
            1 => actions.send(0, LONG_BYTES, 0),
            2 => actions.wake_at(LATE_PS, 0),
            _ => {}
        }
    }

    fn on_wake(&mut self, _rank: u32, _tag: u32, actions: &mut Actions) {
        actions.send(0, LONG_BYTES / 4, 0);
    }

    fn on_received(&mut self, _rank: u32, _received: Received, _actions: &mut Actions) {}

    fn is_finished(&self) -> bool {
        true
    }
}

/// Returns the fraction of the link that the later flow gets after the rates have converged, and
/// Jain's fairness index of both flows.
fn share_of_second(host: &str, fabric: &str) -> (f64, f64) {
    let text = flows(SHORT_PS, (2, 1), host, fabric);
    let watch = Watch { records: Some(RecordLimits::default()), ..Watch::default() };
    let outcome = configuration(&text).run_workload_watched(Late, 3, watch).expect("it ends");
    let records = outcome.records.expect("it was recorded");
    // The window of a new flow grows by one frame per round trip. The first half of the flow's
    // duration is therefore not measured.
    let second = &records.messages[1];
    let half_ps = u64::midpoint(second.posted_ps, second.delivered_ps);
    let is_shared = |ps: u64| (half_ps..second.delivered_ps).contains(&ps);
    let crossings = records.crossings.iter().filter(|it| {
        it.link == TO_TARGET && u64::from(it.bytes) == FRAME_BYTES && is_shared(it.started_ps)
    });
    let mut counts = [0.0_f64; 2];
    crossings.for_each(|crossing| counts[crossing.message as usize] += 1.0);
    let [first, second] = counts;
    let index = (first + second).powi(2) / (2.0 * (first.powi(2) + second.powi(2)));
    println!("{host:?}: the second has {:.3}, index {index:.4}", second / (first + second));
    (second / (first + second), index)
}

#[test]
fn two_flows_with_dctcp_share_a_link_fairly() {
    let marks = format!("ecn_max_bytes = {}\n", 20 * FRAME_BYTES);
    let (share, index) = share_of_second("congestion = \"dctcp\"\n", &marks);
    assert!(index > 0.99, "{share}");
}

/// If the round-trip targets of two flows are equal, the slower flow stays slower. If a smaller
/// window has a larger target, the rates of the flows converge.
#[test]
fn two_flows_by_delay_share_a_link_fairly_if_targets_are_scaled() {
    let target = format!("congestion = \"delay\"\ntarget_delay_ps = {}\n", 2 * SHORT_PS as u64);
    let (alike, index) = share_of_second(&(target.clone() + "target_scaling_ps = \"60 us\"\n"), "");
    assert!(index > 0.99, "{alike}");
    let (apart, _) = share_of_second(&target, "");
    assert!(apart < alike, "{apart} {alike}");
}

/// All messages arrive once, no matter how the network treats frames. A divided run has the same
/// result.
#[test]
fn all_messages_arrive_over_every_network() {
    let networks = [
        "choice = \"spray\"\n",
        "choice = \"least_loaded\"\ncut_through_bytes = 64\n",
        "choice = \"flowlet\"\nhost_frame_interval_ps = 400_000\n",
        "choice = \"ugal\"\nnic_frame_interval_ps = 2_000_000\nnic_rate_bps = 9_000_000_000\n",
        "classes = 3\nclass_by = \"size\"\nlossless = [0, 2]\npause_bytes = 9000\n",
        "shared_bytes = 40_000\necn_min_bytes = 2000\necn_max_bytes = 9000\nclasses = 2\nclass_by = \"source\"\n",
    ];
    let hosts = [
        "transport = \"go_back_n\"\n",
        "transport = \"selective_repeat\"\nloss_threshold_frames = 4\n",
        "transport = \"selective_repeat\"\ncongestion = \"delay\"\nloss_ppm = 20_000\n",
        "transport = \"go_back_n\"\ncongestion = \"delay\"\nwindow_frames = 2\nloss_ppm = 200_000\n",
        "transport = \"selective_repeat\"\nwindow_frames = 9\nloss_ppm = 200_000\ntimeout_ps = \"50 us\"\n",
    ];
    for network in networks {
        for host in hosts {
            let run = |threads: u32| {
                let text = format!(
                    "[topology]\nkind = \"leaf_spine\"\nhosts = 4\n[fabric]\nbuffer_bytes = 9000\n\
                     {network}[host]\n{host}[workload]\nsizes = \"exponential\"\nbytes = \
                     9000\nload_percent = 90\nuntil_ps = 200_000_000\n[run]\nthreads = {threads}\n"
                );
                configuration(&text).run_watched(&InTurns, Watch::default()).expect("it ends")
            };
            let (whole, divided) = (run(1), run(3));
            let counts = whole.transport.expect("there is one");
            assert_eq!(whole.left, 0, "{network}{host}");
            assert!(whole.delivered > 100, "{network}{host}: {}", whole.delivered);
            assert!(counts.payload_bytes >= whole.delivered_bytes, "{network}{host}");
            assert_eq!(divided.hash, whole.hash, "{network}{host}");
            assert_eq!(divided.transport, whole.transport, "{network}{host}");
        }
    }
}

/// Returns the rate of each sender of an incast to host 0, in order of their numbers, for one seed.
/// A rate is the reciprocal of the mean latency of the sender's messages.
fn rates(topology: &str, fabric: &str, host: &str, workload: &str, seed: u64) -> Vec<f64> {
    let text = format!(
        "[topology]\n{topology}[fabric]\n{fabric}[host]\n{host}[workload]\nkind = \
         \"incast\"\n{workload}[run]\nseed = {seed}\n"
    );
    let outcome = recorded(&text);
    let messages = outcome.records.expect("it was recorded").messages;
    let senders = messages.iter().map(|message| message.source).max().expect("there are some");
    let rate = |sender| {
        let own = messages.iter().filter(|message| message.source == sender);
        let latencies = own.map(|message| (message.delivered_ps - message.posted_ps) as f64);
        let (count, sum) = latencies.fold((0.0, 0.0), |(count, sum), ps| (count + 1.0, sum + ps));
        count / sum
    };
    (1..=senders).map(rate).collect()
}

/// Returns the part of the total rate that the first half of the senders gets: the mean over all
/// seeds, and the value for each seed.
fn shares_of_first_half(run: impl Fn(u64) -> Vec<f64>) -> (f64, Vec<f64>) {
    let share = |seed| {
        let rates = run(seed);
        let (first, second) = rates.split_at(rates.len() / 2);
        let (first, second) = (first.iter().sum::<f64>(), second.iter().sum::<f64>());
        first / (first + second)
    };
    let shares: Vec<f64> = (1..=SEEDS).map(share).collect();
    (shares.iter().sum::<f64>() / SEEDS as f64, shares)
}

/// Without jitter, the buffer space that a departing frame frees would always go to a frame of the
/// same sender.
#[test]
fn equal_senders_have_equal_shares_of_a_full_buffer() {
    let pairs = [
        ("transport = \"go_back_n\"\nwindow_frames = 128\n", 2),
        ("transport = \"selective_repeat\"\nwindow_frames = 256\n", 2),
        ("transport = \"selective_repeat\"\nwindow_frames = 64\n", 8),
        ("transport = \"selective_repeat\"\ncongestion = \"delay\"\nwindow_frames = 256\n", 2),
        ("kind = \"edge\"\n", 2),
    ];
    let fabric = "host_rate_bps = \"100 Gb/s\"\nbuffer_bytes = \"100 kB\"\n";
    for (host, senders) in pairs {
        let topology = format!("hosts = {}\n", senders + 1);
        let workload = "bytes = \"2 MiB\"\niterations = 1\n";
        let (mean, shares) =
            shares_of_first_half(|seed| rates(&topology, fabric, host, workload, seed));
        println!("{host:?}, {senders} senders: {mean:.4}; {shares:.3?}");
        // `xtask acceptance faults` reads this line.
        println!("figure: equal senders off a half: {:.3}", (mean / 0.5 - 1.0).abs() * 100.0);
        assert!((mean - 0.5).abs() < 0.025, "{host}: {mean}, {shares:?}");
        let differs = |share: &f64| (share - shares[0]).abs() > 1e-6;
        assert!(shares.iter().any(differs), "{host}: {shares:?}");
    }
}

/// Two trunks that are always busy send to a third trunk of equal rate. Each of the two must get
/// half of this rate.
#[test]
fn equal_trunks_have_equal_shares_of_a_full_buffer() {
    let topology = "kind = \"leaf_spine\"\nleaves = 3\nhosts = 4\nspines = 1\n";
    let fabric = "buffer_bytes = \"60 kB\"\n";
    let host = "transport = \"selective_repeat\"\nwindow_frames = 64\n";
    let workload = "bytes = \"300 kB\"\niterations = 1\n";
    let (mean, shares) = shares_of_first_half(|seed| {
        // Hosts 1 to 3 are attached to the same leaf as the target. Their frames cross no trunk, so
        // these hosts are skipped.
        rates(topology, fabric, host, workload, seed).split_off(3)
    });
    println!("{mean:.4}; {shares:.3?}");
    assert!((mean - 0.5).abs() < 0.025, "{mean}, {shares:?}");
}

/// Results depend only on the seed, not on the number of threads.
#[test]
fn results_depend_on_the_seed_and_not_on_threads() {
    let run = |host: &str, fabric: &str, seed: u64, threads: u32| {
        let text = format!(
            "[topology]\nkind = \"leaf_spine\"\nhosts = 4\nspines = 1\n[fabric]\nbuffer_bytes = \
             20000\n{fabric}[host]\n{host}[workload]\nkind = \"incast\"\nbytes = \
             30000\niterations = 3\n[run]\nseed = {seed}\nthreads = {threads}\n"
        );
        configuration(&text).run_watched(&InTurns, Watch::default()).expect("it ends").hash
    };
    let mut equal = Vec::new();
    for (host, fabric, parts) in [
        ("transport = \"go_back_n\"\n", "", 4),
        ("transport = \"selective_repeat\"\n", "classes = 2\n", 3),
        ("transport = \"selective_repeat\"\n", "cut_through_bytes = 64\n", 2),
        (
            "transport = \"selective_repeat\"\ncongestion = \"dctcp\"\n",
            "jitter_percent = 0\necn_min_bytes = 2000\necn_max_bytes = 15_000\n",
            4,
        ),
        ("kind = \"edge\"\nrails = 2\n", "", 1),
    ] {
        let first = run(host, fabric, 1, 1);
        assert_eq!(run(host, fabric, 1, 1), first, "{host}{fabric}");
        assert_eq!(run(host, fabric, 1, parts), first, "{host}{fabric}");
        if run(host, fabric, 2, 1) == first {
            equal.push(format!("{host}{fabric}"));
        }
    }
    // `xtask acceptance faults` reads this line.
    println!("figure: equal results of two seeds: {}", equal.len());
    assert!(equal.is_empty(), "{equal:?}");
}

/// On the critical path, the time for which a message waits for a window counts as time in the
/// transport, not as transmission time of its frames.
#[test]
fn the_critical_path_attributes_window_waits_to_the_transport() {
    let text = "[topology]\nhosts = 2\n[fabric]\nlatency_ps = \"20 us\"\n[host]\ntransport = \
                \"go_back_n\"\nwindow_frames = 2\n[workload]\nkind = \"broadcast\"\nbytes = \
                30_000\niterations = 1\n";
    let outcome = recorded(text);
    let path = outcome.records.expect("it was recorded").critical_path().expect("all was kept");
    let (kind, share) = path.by_kind()[0];
    assert_eq!(kind, interconnect::records::StepKind::Engine);
    // The message has twenty frames, and the window has two. Nine of the ten pairs of frames wait
    // for a round trip of about 43 µs.
    assert!(share.total_ps > 350_000_000, "{share:?}");
}

const SEEDS: u64 = 20;
/// Round trip as in the DCTCP paper, in picoseconds: the time of 81 frames.
const ROUND_TRIP_PS: f64 = 100_000_000.0;
/// Round trip in picoseconds. With this round trip, a new flow reaches its fair rate after about a
/// hundred round trips.
const SHORT_PS: f64 = 20_000_000.0;
/// The link from the switch to host 0 of a star.
const TO_TARGET: u32 = 1;
const LONG_BYTES: u32 = 200_000_000;
const LATE_PS: u64 = 20_000_000_000;
