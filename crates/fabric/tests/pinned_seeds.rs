//! Seeds that have found bugs. After a change of the harness, a seed gives another run. Each bug
//! therefore also has its own test next to the code. Running these seeds in addition costs almost
//! nothing.

use fabric::torture::{self, Options};

#[test]
fn seeds_that_found_bugs_pass() {
    for (what, seeds) in PINNED {
        for &seed in *seeds {
            // These seeds were recorded before the option `classes` existed.
            let options = Options { classes: false, ..Options::default() };
            let report = torture::run(seed, &options);
            assert!(report.failure.is_none(), "{what}: {report}");
        }
    }
}

#[test]
fn seeds_of_classes_that_found_bugs_pass() {
    for (what, seeds) in PINNED_CLASSES {
        for &seed in *seeds {
            let report = torture::run(seed, &Options::default());
            assert!(report.failure.is_none(), "{what}: {report}");
        }
    }
}

#[test]
fn seeds_of_queue_pairs_that_found_bugs_pass() {
    let options = Options { queue_pairs: true, ..Options::default() };
    for (what, seeds) in PINNED_QUEUE_PAIRS {
        for &seed in *seeds {
            let report = torture::run(seed, &options);
            assert!(report.failure.is_none(), "{what}: {report}");
        }
    }
}

#[test]
fn soaks_that_found_bugs_pass() {
    for &(what, seed, hours) in SOAKS {
        let options = Options { twice: false, ..Options::default() };
        let found = torture::soak(seed, hours, &options, &mut |_| true);
        assert!(found.report.failure.is_none(), "{what}: {}", found.report);
    }
}

/// Seeds that have found bugs in runs with queue pairs.
const PINNED_QUEUE_PAIRS: &[(&str, &[u64])] = &[
    ("reads before a denied operation that were not answered", &[76, 144, 393]),
    ("an operation in turn that waited behind others for which the peer had no room", &[2_418]),
    (
        "an operation in turn that waited while probes repeated others that the peer refused",
        &[10_760],
    ),
    ("a Close that waited although one with another reason had ended all", &[20_019]),
    ("the oracle's: an operation whose own memory was gone when the peer denied it", &[41_930]),
    ("a write whose key had ended, and of which a newer one had hidden all", &[55_331]),
    ("acknowledgements that no frame carried, as the memory of the first was gone", &[393, 689]),
    ("datagrams that drivers were in doubt about and that were sent again", &[58, 162, 175]),
    (
        "the oracle's: operations of pairs that wait for receives, which take none from others",
        &[911, 977, 1_440, 1_992],
    ),
    (
        "the oracle's: an operation that waits to fail for its own memory while the peer closes",
        &[16_107],
    ),
];

/// Soaks, each with its seed and its length in hours. These soaks once ended with a link or an
/// address that only one end knew.
const SOAKS: &[(&str, u64, f64)] = &[
    ("an index by which the two ends meant different links", 0, 3.1),
    ("a link that the responder alone had", 12, 1.4),
    ("links that neither end announced to the other any more", 27, 1.3),
    ("one of three links, which neither end announced to the other any more", 28, 1.0),
];

const PINNED: &[(&str, &[u64])] = &[
    ("packet numbers of a link that was taken away and given back", &[81, 141, 512, 540, 1301]),
    ("an acknowledgement that waits for a full link", &[12, 29, 48, 151, 907, 1707]),
    ("links with frames of different sizes that wait for one another", &[4_625, 8_944]),
    ("the link of the handshake taken away before the target knew", &[33_746, 33_939]),
    ("a lost probe of the path MTU that was awaited for ever", &[28_699]),
    (
        "a peer that restarted while all pairs of links were without an answer",
        &[7_700_005_048, 7_700_016_072, 91_000_006_357],
    ),
    ("memory taken away while the answer of a read is not acknowledged", &[2_484]),
];

/// Seeds that have found bugs in runs with [`Options::classes`]. In such a run, a seed also selects
/// classes of scenario, for example attackers that forge frames, or drivers that are sometimes
/// full.
const PINNED_CLASSES: &[(&str, &[u64])] = &[
    ("set-up that waits for a full link while its timer is due", &[82, 1_267]),
    ("operations that end because the peer denied another", &[247, 912]),
    ("an address that a lying peer names as its own", &[1_888]),
    ("a stranger's request that is looked at when strangers are gone", &[1_000_002_987]),
];
