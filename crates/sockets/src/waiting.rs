//! How calls of programs wait.

/// Why a wait beside descriptors of the program is over.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Waited {
    /// What was waited for has come.
    Ready,
    /// One of the program's descriptors is ready, as its `revents` says.
    Others,
    /// The time is over.
    TimedOut,
}
