//! Tests graphs with cable settings. Graphs must have the same results as built-in topologies.
//! Every flow must end, and each byte must arrive once. Times must depend on the rates and lengths
//! of cables.

use std::fmt::Write as _;
use std::ops::ControlFlow;

use fabric::Random;
use interconnect::configuration::{Configuration, Watch};
use interconnect::records::RecordLimits;
use interconnect::simulation::{InTurns, Outcome};
use interconnect::topology::{LinkKind, Topology};
use proptest::prelude::*;

fn configuration(text: &str) -> Configuration {
    Configuration::parse("a.toml", text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

fn run(text: &str) -> Outcome {
    let configuration = configuration(text);
    configuration.run_watched(&InTurns, Watch::default()).unwrap_or_else(|e| panic!("{e}\n{text}"))
}

/// Returns a topology as a graph whose cables all have settings.
fn as_graph(topology: &Topology, settings: impl Fn(LinkKind) -> &'static str) -> String {
    let mut text = format!(
        "[topology]\nkind = \"graph\"\nhosts = {}\nswitches = {}\n",
        topology.hosts(),
        topology.switches()
    );
    for link in topology.links().iter().step_by(2) {
        let (a, b) = (topology.node_name(link.from), topology.node_name(link.to));
        let _ = writeln!(text, "[[topology.cables]]\nends = [\"{a}\", \"{b}\"]");
        text.push_str(settings(link.kind));
    }
    text
}

const WORKLOADS: [&str; 5] = [
    "kind = \"open_load\"\nsizes = \"exponential\"\nbytes = 4000\nload_percent = 70\nuntil_ps = \"100 us\"\n",
    "kind = \"all_to_all\"\nbytes = 9000\niterations = 2\n",
    "kind = \"incast\"\nbytes = 20_000\niterations = 2\n",
    "kind = \"mesh\"\nbytes = 3000\niterations = 3\n",
    "kind = \"flows\"\nflows = [[0, 3, 50_000, 0], [1, 3, 50_000, \"1 us\"], [3, 0, 100, 0]]\n",
];

/// Pairs of settings: keys of `[fabric]`, and keys of `[host]` with a transport that fits them.
const HOSTS: [(&str, &str); 7] = [
    ("", ""),
    ("buffer_bytes = 9000\n", "transport = \"go_back_n\"\nloss_ppm = 2000\n"),
    ("shared_bytes = 40_000\n", "transport = \"selective_repeat\"\ncongestion = \"delay\"\n"),
    ("ecn_max_bytes = 9000\n", "transport = \"selective_repeat\"\ncongestion = \"dctcp\"\n"),
    ("ecn_max_bytes = 9000\n", "transport = \"go_back_n\"\ncongestion = \"dcqcn\"\n"),
    ("classes = 4\n", "transport = \"homa\"\nloss_ppm = 2000\ntimeout_ps = \"100 us\"\n"),
    ("lossless = [0]\npause_bytes = 9000\n", ""),
];

/// Builds the same graph twice. In the first graph, the fabric has other default settings, and each
/// cable has its own settings. In the second graph, all cables use the default settings.
#[test]
fn a_graph_that_equals_a_built_in_topology_has_its_figures() {
    let topologies = [
        ("kind = \"star\"\nhosts = 6\n", Topology::star(6)),
        (
            "kind = \"leaf_spine\"\nleaves = 3\nhosts = 2\nspines = 2\ntrunks = 2\n",
            Topology::leaf_spine(3, 2, 2, 2),
        ),
        ("kind = \"fat_tree\"\nradix = 4\n", Topology::fat_tree(4)),
    ];
    let rates =
        "host_rate_bps = \"10 Gb/s\"\ntrunk_rate_bps = \"4 Gb/s\"\npropagation_ps = \"70 ns\"\n";
    let wrong = "host_rate_bps = \"1 Gb/s\"\npropagation_ps = \"3 us\"\n";
    let own = |kind| match kind {
        LinkKind::Host => "rate_bps = \"10 Gb/s\"\npropagation_ps = \"70 ns\"\n",
        LinkKind::Switch { .. } => "rate_bps = \"4 Gb/s\"\npropagation_ps = \"70 ns\"\n",
    };
    for (built_in, topology) in topologies {
        let topology = topology.expect("a topology");
        let plain = as_graph(&topology, |_| "");
        let with_own = as_graph(&topology, own);
        for workload in WORKLOADS {
            for (fabric, host) in HOSTS {
                for more in ["", "cut_through_bytes = 64\n", "choice = \"least_loaded\"\n"] {
                    let rest =
                        format!("[workload]\n{workload}[host]\n{host}[fabric]\n{fabric}{more}");
                    let expected = run(&format!("[topology]\n{built_in}{rest}{rates}"));
                    for outcome in [
                        run(&format!("{plain}{rest}{rates}")),
                        run(&format!("{with_own}{rest}{wrong}")),
                    ] {
                        assert_eq!(outcome.hash, expected.hash, "{built_in}{rest}");
                        assert_eq!(outcome.completed_ps, expected.completed_ps);
                        assert_eq!(outcome.transport, expected.transport);
                        assert_eq!(outcome.dropped, expected.dropped);
                    }
                }
            }
        }
    }
}

/// The percentage of an open load refers to the rate of the slowest host cable, or of the target's
/// cable if there is a target.
#[test]
fn the_load_percentage_refers_to_the_rate_of_the_host_cable() {
    let load = |pattern: &str, rate: &str| {
        let text = format!(
            "[topology]\nkind = \"graph\"\nhosts = 3\n[[topology.cables]]\nends = [\"h0\", \
             \"s0\"]\nrate_bps = \"{rate}\"\n[[topology.cables]]\nends = [\"h1\", \"s0\"]\n[[topology.cables]]\n\
             ends = [\"h2\", \"s0\"]\n[workload]\npattern = \"{pattern}\"\nload_percent = 50\nuntil_ps = \"2 \
             ms\"\n"
        );
        run(&text).delivered as f64
    };
    let (whole, half) = (load("uniform", "10 Gb/s"), load("uniform", "5 Gb/s"));
    assert!((half / whole - 0.5).abs() < 0.05, "{half} of {whole}");
    assert!((load("uniform", "40 Gb/s") - whole).abs() < f64::EPSILON);
    let (whole, more) = (load("incast", "10 Gb/s"), load("incast", "20 Gb/s"));
    assert!((more / whole - 2.0).abs() < 0.1, "{more} of {whole}");
}

/// A frame of 1000 bytes on the wire crosses cables of 10, 1 and 100 Gb/s. Their delays are 100,
/// 200 and 300 ns.
#[test]
fn each_cable_has_its_own_latency() {
    let topology = "[topology]\nkind = \"graph\"\nhosts = [\"a\", \"b\"]\nswitches = [\"s\", \"t\"]\ncables = [\n\
                    { ends = [\"a\", \"s\"], rate_bps = \"10 Gb/s\", propagation_ps = \"100 ns\" },\n\
                    { ends = [\"t\", \"s\"], rate_bps = \"1 Gb/s\", propagation_ps = \"200 ns\" },\n\
                    { ends = [\"b\", \"t\"], rate_bps = \"100 Gb/s\", propagation_ps = \"300 ns\" },\n]\n";
    let rest = "[fabric]\nlatency_ps = 0\noverhead_bytes = 26\n[workload]\nkind = \"flows\"\nflows = [[0, 1, 974, 0]]\n";
    let crossed_ps = 800_000 + 8_000_000 + 80_000 + 600_000;
    for queues in ["", "ecn_max_bytes = 5000\n"] {
        let rest = rest.replace("overhead", &format!("{queues}overhead"));
        assert_eq!(run(&format!("{topology}{rest}")).completed_ps, crossed_ps, "{queues}");
    }
    // In a further run, the frame travels in the opposite direction. After that, the frame travels
    // in the first direction again, through switches that cut through. A switch must not send a
    // byte before the slow cable has delivered this byte.
    let back = rest.replace("[[0, 1,", "[[1, 0,");
    assert_eq!(run(&format!("{topology}{back}")).completed_ps, crossed_ps);
    let text =
        format!("{topology}{}", rest.replace("overhead", "cut_through_bytes = 64\noverhead"));
    // Switch s starts to forward the frame after 64 bytes. Switch t forwards faster than the slow
    // cable delivers, so it must finish after the last byte has arrived.
    let late_ps = 64 * 800 + 8_000_000 + 80_000 + 600_000;
    assert!(run(&text).completed_ps <= late_ps, "{}", run(&text).completed_ps);
    let watch = Watch { records: Some(RecordLimits::default()), ..Watch::default() };
    let outcome = configuration(&format!("{topology}{rest}")).run_watched(&InTurns, watch);
    let records = outcome.expect("it ends").records.expect("it was recorded");
    let busy: Vec<u64> = records.links.iter().map(|link| link.busy_ps).collect();
    assert_eq!([busy[0], busy[3], busy[5]], [800_000, 8_000_000, 80_000]);
}

/// A cable's buffer limit applies only to the output port that sends on this cable.
#[test]
fn a_cable_has_its_own_buffer() {
    let dropped = |buffers: [&str; 2], queues: &str| {
        let cable = |host: u32, more: &str| {
            format!("[[topology.cables]]\nends = [\"h{host}\", \"s0\"]\n{more}")
        };
        let text = format!(
            "[topology]\nkind = \"graph\"\nhosts = 4\n{}{}{}{}[fabric]\n{queues}[workload]\nkind = \
             \"flows\"\nflows = [[2, 0, 30_000, 0], [3, 0, 30_000, 0], [2, 1, 30_000, 0], [3, 1, 30_000, \
             0]]\n",
            cable(0, buffers[0]),
            cable(1, buffers[1]),
            cable(2, ""),
            cable(3, "")
        );
        let outcome = run(&text);
        outcome.ports.iter().map(|port| (port.name.clone(), port.dropped > 0)).collect::<Vec<_>>()
    };
    let at = |name: &str| vec![(name.to_owned(), true)];
    for queues in ["", "classes = 2\n"] {
        assert_eq!(dropped(["", ""], queues), []);
        assert_eq!(dropped(["buffer_bytes = \"4 kB\"\n", ""], queues), at("s0->h0"));
        assert_eq!(dropped(["", "buffer_bytes = \"4 kB\"\n"], queues), at("s0->h1"));
        let limit = format!("{queues}buffer_bytes = \"4 kB\"\n");
        assert_eq!(dropped(["buffer_bytes = 0\n", ""], &limit), at("s0->h1"));
    }
}

/// A lossless class loses no frames even if cables differ, because the headroom is computed for
/// each cable.
#[test]
fn pause_headroom_covers_frames_in_flight_on_long_and_fast_cables() {
    let text = "[topology]\nkind = \"graph\"\nhosts = 3\nswitches = 2\ncables = [\n\
                { ends = [\"h0\", \"s0\"], rate_bps = \"1 Gb/s\" },\n\
                { ends = [\"h1\", \"s1\"], rate_bps = \"100 Gb/s\", propagation_ps = \"20 us\" },\n\
                { ends = [\"h2\", \"s1\"], rate_bps = \"40 Gb/s\" },\n\
                { ends = [\"s0\", \"s1\"], rate_bps = \"25 Gb/s\", propagation_ps = \"50 us\" },\n]\n\
                [fabric]\nlossless = [0]\npause_bytes = \"20 kB\"\n[workload]\nkind = \"incast\"\nbytes = \
                500_000\niterations = 2\n";
    let outcome = run(text);
    assert_eq!((outcome.dropped, outcome.delivered), (0, 4));
    assert!(outcome.ports.iter().any(|port| port.pauses > 0));
}

#[test]
fn fluids_and_engines_respect_the_rates_of_cables() {
    let text = |rate: &str, rest: &str| {
        format!(
            "[topology]\nkind = \"graph\"\ncables = [{{ ends = [\"h0\", \"s0\"] }}, {{ ends = [\"h1\", \
             \"s0\"], rate_bps = \"{rate}\" }}]\n{rest}[workload]\nkind = \"flows\"\nflows = [[0, 1, \
             \"4 MiB\", 0]]\n"
        )
    };
    // The ratio of the times at 2 Gb/s and 10 Gb/s is lower for engines, because engines start with
    // small windows.
    for (rest, least) in
        [("[fabric]\nkind = \"fluid\"\n", 4.9), ("[host]\nkind = \"edge\"\n", 3.0), ("", 4.9)]
    {
        let time = |rate: &str| run(&text(rate, rest)).completed_ps as f64;
        let ratio = time("2 Gb/s") / time("10 Gb/s");
        assert!((least..5.1).contains(&ratio), "{rest}: {ratio}");
    }
}

/// Two equal routes use different cables. The hosts of a message determine its route, and therefore
/// its ideal time.
#[test]
fn single_messages_on_a_graph_have_no_slowdown() {
    let mut text = String::from("[topology]\nkind = \"graph\"\nhosts = 8\nswitches = 4\n");
    for host in 0..8 {
        let (switch, rate) = (host % 2, 1 + host);
        let _ = writeln!(
            text,
            "[[topology.cables]]\nends = [\"h{host}\", \"s{switch}\"]\nrate_bps = \"{rate} Gb/s\""
        );
    }
    for (a, b, rate) in [(0, 2, 1), (2, 1, 40), (0, 3, 25), (3, 1, 25)] {
        let _ = writeln!(
            text,
            "[[topology.cables]]\nends = [\"s{a}\", \"s{b}\"]\nrate_bps = \"{rate} \
             Gb/s\"\npropagation_ps = \"{rate} us\"\nbuffer_bytes = 4000"
        );
    }
    let flows: Vec<String> = (0..56)
        .map(|flow| {
            let (source, by) = (flow % 8, 1 + flow / 8);
            format!("[{source}, {}, 1400, \"{} ms\"]", (source + by) % 8, 1 + flow)
        })
        .collect();
    let _ = writeln!(text, "[workload]\nkind = \"flows\"\nflows = [{}]", flows.join(", "));
    let configuration = configuration(&text);
    let watch = Watch { records: Some(RecordLimits::default()), ..Watch::default() };
    let outcome = configuration.run_watched(&InTurns, watch).expect("it ends");
    let records = outcome.records.expect("it was recorded");
    let slowdowns = configuration.slowdowns(&records, &mut |_| ControlFlow::Continue(()));
    let slowdowns = slowdowns.expect("they end");
    let ends = [slowdowns.quantile(0.0), slowdowns.quantile(1.0)];
    assert_eq!(slowdowns.count(), 56);
    assert!(ends.iter().all(|end| (end - 1.0).abs() < 1e-9), "{ends:?}");
}

/// Returns a random connected graph: a tree of switches with some further cables, and hosts at
/// random switches.
fn random_graph(seed: u64) -> (String, u32) {
    let mut random = Random::new(seed);
    let (hosts, switches) = (2 + random.below(7) as u32, 1 + random.below(6) as u32);
    let mut text =
        format!("[topology]\nkind = \"graph\"\nhosts = {hosts}\nswitches = {switches}\n");
    let mut cables = Vec::new();
    for host in 0..hosts {
        cables.push((format!("h{host}"), random.below(switches.into())));
    }
    for switch in 1..switches {
        cables.push((format!("s{switch}"), random.below(switch.into())));
    }
    for _ in 0..random.below(4) {
        let (a, b) = (random.below(switches.into()), random.below(switches.into()));
        if a != b {
            cables.push((format!("s{a}"), b));
        }
    }
    for place in (1..cables.len()).rev() {
        cables.swap(place, random.below(place as u64 + 1) as usize);
    }
    for (end, switch) in cables {
        let _ = writeln!(text, "[[topology.cables]]\nends = [\"{end}\", \"s{switch}\"]");
        if random.below(3) > 0 {
            let _ = writeln!(text, "rate_bps = {}", 1_000_000_000 * (1 + random.below(100)));
        }
        if random.below(3) > 0 {
            let _ = writeln!(text, "propagation_ps = {}", random.below(5_000_000));
        }
        if random.below(4) == 0 {
            let _ = writeln!(text, "buffer_bytes = {}", 6_000 + random.below(50_000));
        }
    }
    (text, hosts)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// On any graph, every flow ends, each byte arrives once, equal seeds have equal results, and
    /// divided runs equal undivided runs.
    #[test]
    fn every_flow_over_a_random_graph_ends_and_repeats(
        seed: u64,
        host in 1_usize..6,
        which in 0..3_u32,
    ) {
        let (topology, hosts) = random_graph(seed);
        let (fabric, host) = HOSTS[host];
        let fabric = fabric.replace("buffer_bytes = 9000", "buffer_bytes = 20_000");
        let workload = match which {
            0 => "kind = \"all_to_all\"\nbytes = 7000\niterations = 1\n",
            1 => "kind = \"incast\"\nbytes = 30_000\niterations = 1\n",
            _ => "kind = \"open_load\"\nsizes = \"exponential\"\nload_percent = 60\nuntil_ps = \"50 us\"\n",
        };
        let text = |threads: u32, seed: u64| format!(
            "{topology}[fabric]\n{fabric}[host]\n{host}[workload]\n{workload}[run]\nseed = \
             {seed}\nthreads = {threads}\n",
        );
        let seed = seed >> 2;
        let whole = run(&text(1, seed));
        prop_assert_eq!(whole.left, 0);
        let (hosts, bytes) = (u64::from(hosts), whole.delivered_bytes);
        match which {
            0 => prop_assert_eq!(bytes, hosts * (hosts - 1) * 7_000),
            1 => prop_assert_eq!(bytes, (hosts - 1) * 30_000),
            _ => {}
        }
        prop_assert!(whole.transport.is_some_and(|counts| counts.payload_bytes >= bytes));
        for threads in [1, 2, 3] {
            let again = run(&text(threads, seed));
            prop_assert_eq!(again.hash, whole.hash);
            prop_assert_eq!(again.transport, whole.transport);
        }
        let configuration = configuration(&text(1, seed));
        let again = Configuration::parse("b.toml", &configuration.effective).expect("it reads back");
        prop_assert_eq!(&again.effective, &configuration.effective);
        prop_assert_eq!(again.run().expect("it ends").hash, whole.hash);
    }
}
