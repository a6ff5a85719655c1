//! Parses arbitrary bytes as a trace in GOAL, in the text format or the binary format. Parsing must
//! not panic. Writing an accepted trace in the binary format and parsing it must give the same
//! trace.
use interconnect::goal::Goal;

/// Runs this fuzz target on one input.
pub(crate) fn run(bytes: &[u8]) {
    let Ok(goal) = Goal::read("trace", bytes) else { return };
    let encoded = goal.encode();
    let again = Goal::decode("trace", &encoded).expect("it was encoded");
    assert_eq!(again.encode(), encoded);
}
