//! Any bytes as a trace in GOAL, text or binary: no panic, and what is accepted can be written in the
//! binary form and read again.
use interconnect::goal::Goal;

/// Does so.
pub(crate) fn run(bytes: &[u8]) {
    let Ok(goal) = Goal::read("trace", bytes) else { return };
    let encoded = goal.encode();
    let again = Goal::decode("trace", &encoded).expect("it was encoded");
    assert_eq!(again.encode(), encoded);
}
