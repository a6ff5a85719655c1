//! Parses arbitrary bytes as a trace in GOAL, text or binary. Parsing must not panic, and an
//! accepted trace must survive writing and reading in the binary format.
use interconnect::goal::Goal;

/// Runs this fuzz target on one input.
pub(crate) fn run(bytes: &[u8]) {
    let Ok(goal) = Goal::read("trace", bytes) else { return };
    let encoded = goal.encode();
    let again = Goal::decode("trace", &encoded).expect("it was encoded");
    assert_eq!(again.encode(), encoded);
}
