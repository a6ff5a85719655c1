//! Tests properties that all fidelities of the interconnect simulator have.

use interconnect::configuration::{Configuration, Fidelity, Watch};
use interconnect::records::{LinkRecord, RecordLimits};
use interconnect::simulation::InTurns;

/// Networks with several equal routes.
const TOPOLOGIES: [&str; 10] = [
    "kind = \"leaf_spine\"\nleaves = 4\nhosts = 4\nspines = 2",
    "kind = \"leaf_spine\"\nleaves = 8\nhosts = 4\nspines = 4",
    "kind = \"leaf_spine\"\nleaves = 3\nhosts = 7\nspines = 5",
    "kind = \"leaf_spine\"\nleaves = 4\nhosts = 4\nspines = 2\ntrunks = 3",
    "kind = \"fat_tree\"\nradix = 4",
    "kind = \"fat_tree\"\nradix = 6",
    "kind = \"cascade\"\nswitches = 3\nhosts = 5\ntrunks = 4",
    "kind = \"torus\"\nsizes = [4, 4]\nhosts = 1\nlanes = 2",
    "kind = \"hyperx\"\nsizes = [3, 3]\nhosts = 2\nlanes = 2",
    "kind = \"mesh\"\nsizes = [3, 4]\nhosts = 2\nlanes = 3",
];

/// Returns the number of one-frame messages that cross each link.
fn flows(configuration: &Configuration) -> Vec<u64> {
    let watch = Watch { records: Some(RecordLimits::default()), ..Watch::default() };
    let outcome = configuration.run_watched(&InTurns, watch).expect("it ends");
    let records = outcome.records.expect("it is recorded");
    records.links.iter().map(|link: &LinkRecord| link.packets).collect()
}

#[test]
fn packets_and_fluids_use_the_same_links() {
    let mut equal = 0;
    for (seed, topology) in (1..).zip(TOPOLOGIES) {
        for choice in ["per_flow", "per_source"] {
            let text = format!(
                "[topology]\n{topology}\n[fabric]\nkind = \"ethernet\"\nchoice = \"{choice}\"\n\
                 [workload]\nkind = \"all_to_all\"\nbytes = 1000\niterations = 1\n[run]\nseed = {seed}\n"
            );
            let packets = Configuration::parse("a.toml", &text).expect("it is valid");
            let idle = packets.idle_network().expect("it runs");
            let fluids = packets.at_fidelity(Fidelity::Fluid, &idle);
            let counts = flows(&packets);
            assert!(counts.iter().sum::<u64>() > 0);
            assert_eq!(counts, flows(&fluids), "{topology} {choice}");
            equal += 1;
        }
    }
    println!("figure: equal flows: {equal}");
}

/// Flows choose their links by a hash. This hash must depend on the seed, because otherwise the
/// same flows would share a link in all runs.
#[test]
fn the_seed_decides_which_flows_share_a_link() {
    let spread = |seed: u32| {
        let text = format!(
            "[topology]\n{}\n[workload]\nkind = \"all_to_all\"\nbytes = 1000\niterations = \
             1\n[run]\nseed = {seed}\n",
            TOPOLOGIES[1]
        );
        flows(&Configuration::parse("a.toml", &text).expect("it is valid"))
    };
    assert_eq!(spread(1), spread(1));
    assert_ne!(spread(1), spread(2));
}
