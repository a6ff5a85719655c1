//! Faults that were found from outside, of engine, verbs, the API, discovery and the simulator: that they
//! are mended and stay so. Each part has its rows under its name.

use super::{reproducible, tests};
use crate::acceptance::{Bound, Row};

pub(super) const ROWS: &[Row] = &[
    // The simulator.
    reproducible(
        "simulator: equal senders into a full buffer, mean share over 20 seeds off from equal",
        Bound::AtMost(5.0, "%"),
        "equal senders off a half",
        tests("interconnect", "--test=transport", "equal_senders_have_equal_shares"),
    ),
    reproducible(
        "simulator: networks on which two seeds have the same result, of 5",
        Bound::AtMost(0.0, "networks"),
        "equal results of two seeds",
        tests("interconnect", "--test=transport", "results_depend_on_the_seed"),
    ),
];
