//! The figure of a probe, or why there is none.

/// Why a command has no result.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Failure {
    /// The command could not do what was requested.
    CannotRun(String),
    /// The command ran, and its exit status reports a failure.
    Failed(String),
}

/// A figure, and the note that the table shows after it.
#[derive(Debug, PartialEq)]
pub(super) struct Found {
    pub(super) figure: f64,
    pub(super) note: String,
    /// The payload rate that this machine permits, as a share of the links' rate: the highest rate
    /// that the bare stream of frames or another policy reached in the same run. `None` if the run
    /// measured neither.
    pub(super) bare: Option<f64>,
}

impl Found {
    pub(super) fn plain(figure: f64) -> Self {
        Self { figure, note: String::new(), bare: None }
    }
}

/// The verdict of a row that meets its bound.
pub(super) const VERDICT_OK: &str = "ok";

/// Beginning of the verdict of a row that misses its bound.
pub(super) const VERDICT_SHORT: &str = "short";
