//! Tests hosts with the real engine on simulated Ethernets.

use std::cell::RefCell;
use std::rc::Rc;

use interconnect::configuration::{Configuration, Watch};
use interconnect::edge::{Counts, Tap, TappedFrame};
use interconnect::simulation::{InTurns, Outcome};

/// Runs a configuration twice and returns its results. Checks that the hashes are equal and that no
/// guarantee was violated.
fn run(text: &str) -> (Outcome, Counts) {
    let configuration = Configuration::parse("test.toml", text).expect("it is valid");
    let again = Configuration::parse("again.toml", &configuration.effective).expect("it is valid");
    let first = configuration.run().expect("it ends, with all promises kept");
    let second = again.run().expect("it ends, with all promises kept");
    assert_eq!(first.hash, second.hash);
    let counts = first.engines.clone().expect("hosts have engines");
    assert_eq!(Some(&counts), second.engines.as_ref());
    (first, *counts)
}

/// Returns the cluster of the paper: 16 nodes on two rails of 1 Gb/s, with an all-to-all exchange.
fn multiedge(more: &str) -> String {
    format!(
        "[topology]\nkind = \"star\"\nhosts = 16\n[fabric]\nhost_rate_bps = 1_000_000_000\n\
         [workload]\nkind = \"all_to_all\"\nalgorithm = \"at_once\"\nbytes = 100_000\niterations = 2\n{more}"
    )
}

#[test]
fn two_rails_carry_an_exchange_of_all_with_all() {
    let (outcome, counts) = run(&multiedge("[host]\nkind = \"edge\"\nrails = 2\n"));
    assert_eq!(outcome.delivered, 2 * 16 * 15);
    assert_eq!(counts.connections, 120);
    assert_eq!(counts.frames_lost_in_network + counts.frames_lost_at_hosts, 0);
    for rail in &counts.rails {
        assert!(rail.data_frames_sent > counts.links().data_frames_sent / 3, "{counts:?}");
    }
}

/// Runs both kinds of driver: without segmentation offload (like raw frames) and with it (like
/// UDP). Some sending rules depend on the kind of driver.
#[test]
fn offloading_drivers_get_different_batches_and_carry_the_same_data() {
    let runs = [false, true].map(|offloads| {
        let host = "[host]\nkind = \"edge\"\nrails = 2\nloss_ppm = 1_000\n";
        run(&multiedge(&format!("{host}offloads = {offloads}\n")))
    });
    let [(plain, plain_counts), (offloading, offloading_counts)] = &runs;
    assert_eq!((plain.delivered, offloading.delivered), (480, 480));
    assert_ne!(plain.hash, offloading.hash, "the engine does not ask what the driver does");
    for counts in [plain_counts, offloading_counts] {
        let sent = counts.links().data_frames_sent;
        assert!(counts.rails.iter().all(|rail| rail.data_frames_sent > sent / 3), "{counts:?}");
    }
}

#[test]
fn lost_frames_are_retransmitted() {
    let (outcome, counts) =
        run(&multiedge("[host]\nkind = \"edge\"\nrails = 2\nloss_ppm = 10_000\n"));
    assert_eq!(outcome.delivered, 2 * 16 * 15);
    assert!(counts.frames_lost_at_random > 100, "{counts:?}");
    assert!(counts.links().retransmissions >= counts.frames_lost_at_random / 2, "{counts:?}");
}

#[test]
fn a_rail_that_is_cut_and_restored_loses_no_data() {
    let outage = "[[outage]]\nrail = 1\nplace = \"h3\"\nfrom_ps = 5_000_000_000\n\
                  until_ps = 15_000_000_000\n";
    for silent in [false, true] {
        let host = "[host]\nkind = \"edge\"\nrails = 2\n";
        let text = multiedge(&format!("{host}{outage}is_silent = {silent}\n"));
        let (outcome, counts) = run(&text);
        assert_eq!(outcome.delivered, 2 * 16 * 15);
        assert!(counts.frames_lost_in_network > 0, "{counts:?}");
        assert!(outcome.completed_ps > 15_000_000_000, "the rail came back: {outcome:?}");
    }
}

#[test]
fn traffic_avoids_a_failed_switch_over_the_other_rail() {
    let text = "[topology]\nkind = \"leaf_spine\"\nleaves = 4\nhosts = 4\nspines = 2\n[fabric]\n\
                host_rate_bps = 1_000_000_000\n[workload]\nkind = \"all_to_all\"\nalgorithm = \"at_once\"\nbytes = 50_000\n\
                iterations = 3\n[host]\nkind = \"edge\"\nrails = 2\n";
    for switch in ["s1", "s4"] {
        let outage = format!(
            "[[outage]]\nrail = 0\nplace = \"{switch}\"\nfrom_ps = 2_000_000_000\n\
             until_ps = 12_000_000_000\n"
        );
        let (outcome, counts) = run(&format!("{text}{outage}"));
        assert_eq!(outcome.delivered, 3 * 16 * 15);
        assert!(counts.frames_lost_in_network > 0, "{switch}: {counts:?}");
    }
}

#[test]
fn order_is_kept_where_requested() {
    for (protocol, order) in
        [("edge", "fenced"), ("edge", "strict"), ("multiedge", "relaxed"), ("multiedge", "strict")]
    {
        let host = format!(
            "[host]\nkind = \"edge\"\nrails = 2\nloss_ppm = 2_000\nprotocol = \"{protocol}\"\n\
             order = \"{order}\"\noperation_bytes = 10_000\nwindow = 5\n"
        );
        let (outcome, counts) = run(&multiedge(&host));
        assert_eq!((outcome.delivered, counts.operations), (480, 4_800), "{protocol}, {order}");
    }
}

/// Runs a uniform load on hosts that connect on demand. Hosts have processor costs, and switch
/// queues overflow.
#[test]
fn hosts_with_processing_costs_survive_bursts_and_full_queues() {
    let costs = "[host]\nkind = \"edge\"\nframe_send_ps = 300_000\nframe_receive_ps = 500_000\n\
                 post_ps = 200_000\ncompletion_ps = 100_000\nreceive_queue_frames = 64\n";
    let text = format!(
        "[topology]\nhosts = 12\n[fabric]\nbuffer_bytes = 60_000\n[workload]\nkind = \"open_load\"\n\
         bytes = 20_000\nuntil_ps = 3_000_000_000\ninterval_ps = 40_000_000\n{costs}"
    );
    let (outcome, _) = run(&text);
    assert!(outcome.delivered > 800, "{outcome:?}");
    let incast = format!(
        "[topology]\nhosts = 12\n[fabric]\nbuffer_bytes = 60_000\n[workload]\nkind = \"incast\"\n\
         bytes = 200_000\niterations = 2\n{costs}"
    );
    let (outcome, counts) = run(&incast);
    assert_eq!(outcome.delivered, 22);
    assert!(counts.frames_lost_in_network + counts.frames_lost_at_hosts > 0, "{counts:?}");
}

#[test]
fn impossible_edge_settings_are_refused() {
    let refused = |text: &str| {
        let error = match Configuration::parse("a.toml", text) {
            Ok(configuration) => configuration.run().expect_err("it cannot be"),
            Err(error) => error,
        };
        error.to_string()
    };
    let host = "[host]\nkind = \"edge\"\n";
    assert!(refused("[host]\nkind = \"edge\"\nrail = 2\n").contains("`rails`"));
    assert!(refused(&format!("{host}rails = 9\n")).contains("rails"));
    let flits = refused(&format!("[fabric]\nkind = \"flit\"\n{host}"));
    assert!(flits.contains("ethernet"), "{flits}");
    let outage = refused("[[outage]]\nplace = \"s0\"\n");
    assert!(outage.contains("[host] kind"), "{outage}");
    let nowhere = refused(&format!("{host}[[outage]]\nplace = \"s9\"\n"));
    assert!(nowhere.contains("s9"), "{nowhere}");
    let unknown = refused(&format!("{host}[[outage]]\nplase = \"s0\"\n"));
    assert!(unknown.contains("`place`"), "{unknown}");
    let small = refused(&format!("{host}[fabric]\nmtu_bytes = 200\n"));
    assert!(small.contains("mtu_bytes"), "{small}");
}

#[test]
fn the_example_configurations_match_their_descriptions() {
    let (outcome, counts) = run(include_str!("../../../examples/simulator/multiedge.toml"));
    assert_eq!((outcome.delivered, counts.connections), (4 * 240, 120));
    let thousand = include_str!("../../../examples/simulator/thousand.toml");
    let configuration = Configuration::parse("thousand.toml", thousand).expect("it is valid");
    assert_eq!(configuration.topology.hosts(), 1024);
    assert!(configuration.edge.is_some_and(|edge| edge.outages.len() == 1));
}

/// Runs the paper's cluster twice: with payloads of real bytes, and with payloads that have only
/// lengths.
fn bytes_and_ghosts(more: &str) -> [(Outcome, Counts); 2] {
    let text = |payload| {
        multiedge(&format!(
            "[host]\nkind = \"edge\"\nrails = 2\noperation_bytes = 16_384\npayload = \"{payload}\"\n{more}"
        ))
    };
    [run(&text("bytes")), run(&text("ghost"))]
}

#[test]
fn hosts_with_real_bytes_behave_like_hosts_with_ghost_memory() {
    let more = ["", "loss_ppm = 5_000\n", "order = \"strict\"\nloss_ppm = 5_000\n"];
    for more in more {
        let [(bytes, with_bytes), (ghost, with_ghosts)] = bytes_and_ghosts(more);
        assert_eq!(bytes.delivered, 2 * 16 * 15);
        assert_eq!(bytes.hash, ghost.hash, "{more}");
        assert_eq!((bytes.completed_ps, bytes.events), (ghost.completed_ps, ghost.events));
        let Counts { bytes_placed_again, .. } = with_bytes;
        // Bytes that are placed more than once are counted only for payloads without real bytes.
        assert_eq!(with_bytes, Counts { bytes_placed_again, ..with_ghosts });
    }
}

#[test]
fn real_bytes_beyond_the_memory_limit_are_refused() {
    let text =
        multiedge("[host]\nkind = \"edge\"\npayload = \"bytes\"\noperation_bytes = 1_000_000\n");
    let configuration = Configuration::parse("test.toml", &text).expect("it is valid");
    let error = configuration.run().expect_err("7.7 GB").to_string();
    assert!(error.contains("needs 7680000000 bytes") && error.contains("240 pairs"), "{error}");
}

/// Runs four hosts that send to one host over a switch with congestion marks. The switch's buffer
/// can hold all frames that the hosts send before they learn of the first mark.
fn incast(more: &str) -> (Outcome, Counts) {
    run(&format!(
        "[topology]\nkind = \"star\"\nhosts = 5\n[fabric]\nshared_bytes = 400_000\n\
         ecn_max_bytes = 30_000\n[workload]\nkind = \"incast\"\n\
         bytes = 3_000_000\niterations = 1\n[host]\nkind = \"edge\"\n{more}"
    ))
}

fn longest_queue(outcome: &Outcome) -> u64 {
    outcome.ports.iter().map(|port| port.queue_bytes_max).max().unwrap_or(0)
}

#[test]
fn engines_with_congestion_marks_keep_queues_short_and_lose_nothing() {
    let (blind, without) = incast("");
    assert!(without.frames_lost_in_network > 0 && without.frames_marked == 0, "{without:?}");
    let (seeing, with) = incast("ecn = true\n");
    assert_eq!(seeing.delivered, blind.delivered);
    assert!(with.frames_marked > 0, "{with:?}");
    assert_eq!(with.frames_lost_in_network, 0, "{with:?}");
    assert!(
        longest_queue(&seeing) < longest_queue(&blind),
        "{} {}",
        longest_queue(&seeing),
        longest_queue(&blind)
    );
}

/// A frame that the tap got: time, host, rail, whether the host sent it, length in bytes.
type Heard = (u64, u32, u8, bool, usize);

/// A tap that records the frames it gets.
#[derive(Debug)]
struct Listener {
    host: u32,
    heard: Rc<RefCell<Vec<Heard>>>,
}

impl Tap for Listener {
    fn wants(&self, host: u32) -> bool {
        host == self.host
    }

    fn on_frame(&mut self, frame: &TappedFrame<'_>) {
        let &TappedFrame { at_ps, host, rail, is_sent, bytes, .. } = frame;
        self.heard.borrow_mut().push((at_ps, host, rail, is_sent, bytes.len()));
    }
}

#[test]
fn a_tap_gets_all_frames_of_its_host_and_changes_nothing() {
    let text = multiedge("[host]\nkind = \"edge\"\nrails = 2\n");
    let configuration = Configuration::parse("test.toml", &text).expect("it is valid");
    let heard = Rc::default();
    let tap = Listener { host: 3, heard: Rc::clone(&heard) };
    let watch = Watch { tap: Some(Box::new(tap)), ..Watch::default() };
    let tapped = configuration.run_watched(&InTurns, watch).expect("it ends");
    assert_eq!(tapped.hash, configuration.run().expect("it ends").hash);
    let heard = heard.borrow();
    assert!(heard.iter().all(|frame| frame.1 == 3 && (20..=1_488).contains(&frame.4)));
    for (rail, is_sent) in [(0, true), (0, false), (1, true), (1, false)] {
        let on_way = heard.iter().filter(|frame| (frame.2, frame.3) == (rail, is_sent));
        let times: Vec<u64> = on_way.map(|frame| frame.0).collect();
        assert!(times.len() > 500 && times.is_sorted(), "{} on rail {rail}", times.len());
    }
}

#[test]
fn hosts_without_engines_have_no_frames_to_capture() {
    let configuration = Configuration::parse("test.toml", &multiedge("")).expect("it is valid");
    let tap = Listener { host: 0, heard: Rc::default() };
    let watch = Watch { tap: Some(Box::new(tap)), ..Watch::default() };
    let error = configuration.run_watched(&InTurns, watch).expect_err("no engine").to_string();
    assert!(error.contains("kind = \"edge\""), "{error}");
}
