//! Structure of the workspace: import cycles, constants and call paths. Also checks that the code
//! is as fast as at an earlier commit, and that no run of the torture (random faults in the
//! simulator) fails.

use super::engine_structure::{in_flight_against, one_way_against, ping_pong_against};
use super::faults::{perftest_against, torture_of_pairs, torture_of_transfers};
use super::{as_quick, sources};
use crate::acceptance::structure::Count;
use crate::acceptance::{Bound, Probe, Row};

pub(super) const ROWS: &[Row] = &[
    sources(
        "files that import each other in a circle, the largest circle of each crate",
        Bound::AtMost(0.0, "files"),
        Count::Circles,
    ),
    sources(
        "constants that decide behaviour (told)",
        Bound::AtMost(1000.0, "constants"),
        Count::Constants,
    ),
    Row {
        name: "`ethernot sim policies`, every point: own rules against the better of two simple rules",
        bound: Bound::AtLeast(0.97, "x"),
        bound_quick: None,
        probe: Probe::Policies {
            arguments: &["sim", "policies", "{quick:--quick|--seeds=3}", "--json", "{json}"],
        },
    },
    Row {
        name: "same, over drivers that offload",
        bound: Bound::AtLeast(0.97, "x"),
        bound_quick: None,
        probe: Probe::Policies {
            arguments: &[
                "sim",
                "policies",
                "--offloads",
                "{quick:--quick|--seeds=3}",
                "--json",
                "{json}",
            ],
        },
    },
    sources(
        "functions from `ibv_post_send` to `sendmsg`",
        Bound::AtMost(40.0, "functions"),
        Count::Hops { table: 2 },
    ),
    ping_pong_against(SLOWER_MOST),
    one_way_against(SLOWER_MOST),
    in_flight_against(SLOWER_MOST),
    as_quick(
        "ib_write_lat 8 B against another commit",
        perftest_against("speed of ib_write_lat against another commit"),
    ),
    as_quick(
        "ib_write_bw 1 MiB against another commit",
        perftest_against("speed of ib_write_bw of 1 MiB against another commit"),
    ),
    torture_of_transfers(),
    torture_of_pairs(),
    // This row is last, because it takes hours.
    sources(
        "constants that nothing notices, in a copy of the sources with a neutral value for each",
        Bound::AtMost(0.0, "constants"),
        Count::ConstantsUnnoticed,
    ),
];

/// Highest permitted ratio of the time of an operation to its time at the earlier commit.
const SLOWER_MOST: f64 = 1.02;
