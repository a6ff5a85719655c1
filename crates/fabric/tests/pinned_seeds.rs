//! Seeds that found bugs. What a seed means changes with the harness; each bug has a test of its own
//! beside the code, and these runs cost next to nothing.

use fabric::torture::{self, Options};

#[test]
fn seeds_that_found_bugs_pass() {
    for (what, seeds) in PINNED {
        for &seed in *seeds {
            let report = torture::run(seed, &Options::default());
            assert!(report.failure.is_none(), "{what}: {report}");
        }
    }
}

const PINNED: &[(&str, &[u64])] = &[
    ("packet numbers of a link that was taken away and given back", &[81, 141, 512, 540, 1301]),
    ("an acknowledgement that waits for a full link", &[12, 29, 48, 151, 907, 1707]),
    ("links with frames of different sizes that wait for one another", &[4_625, 8_944]),
    ("the link of the handshake taken away before the target knew", &[33_746, 33_939]),
    ("a lost probe of the path MTU that was awaited for ever", &[28_699]),
    ("memory taken away while the answer of a read is not acknowledged", &[2_484]),
];
