//! The groups of tests to run with a changed constant, the cheapest first.

/// A group of tests of one package.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rung {
    /// The package's folder below `crates`.
    pub(super) package: &'static str,
    /// Arguments of `cargo test` that choose targets of the package.
    pub(super) targets: &'static [&'static str],
    /// Whether the tests simulate hosts, links and time.
    pub(super) is_scenario: bool,
}

/// Returns the tests for the constants of a package, ordered by cost.
pub(super) fn ladder(package: &str) -> &'static [Rung] {
    match package {
        "delivery" => &DELIVERY,
        "engine" => &DELIVERY[1..],
        "semantics" => &SEMANTICS,
        _ => &RUNTIME,
    }
}

/// Tests that compare every frame with a recording. They fail after any change, so their failure
/// does not show that a test checks a constant.
pub(super) const RECORDS: [&str; 1] = ["transfers_take_exactly_what_the_snapshot_says"];

const fn own(package: &'static str) -> Rung {
    Rung { package, targets: &[], is_scenario: false }
}

const fn fabric(targets: &'static [&'static str]) -> Rung {
    Rung { package: "fabric", targets, is_scenario: true }
}

const TRANSFERS: Rung = fabric(&["--test=scenarios", "--test=streams", "--test=ping_pongs"]);
const LOADS: Rung = fabric(&["--test=loads", "--test=waiting", "--test=joining"]);
const POLICIES: Rung = fabric(&["--test=policies"]);
const TORTURE: Rung = fabric(&["--lib", "--test=pinned_seeds"]);

const DELIVERY: [Rung; 6] = [own("delivery"), own("engine"), TRANSFERS, LOADS, POLICIES, TORTURE];
const SEMANTICS: [Rung; 4] = [own("semantics"), own("engine"), TRANSFERS, TORTURE];
const RUNTIME: [Rung; 2] = [own("runtime"), own("ethernot")];
