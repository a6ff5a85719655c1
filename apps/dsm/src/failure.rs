//! The failure of a rank, which ends the program on all ranks.

use std::fmt;

use dsm_protocol::{Failure, Fault, Reason};
use thiserror::Error;

/// Why the shared memory does not work any more.
#[derive(Clone, Debug, Error, Eq, PartialEq)]
#[error("rank {rank} ({place}) {reason}")]
pub struct RankFailure {
    rank: usize,
    place: String,
    reason: String,
}

impl RankFailure {
    /// Returns the rank that failed.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// Returns the process and host of that rank, such as `process 4711 on node7`.
    pub fn place(&self) -> &str {
        &self.place
    }

    /// Returns what happened, such as `has died: its process has ended`.
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Describes what ended the machine of rank `me`. `place` returns where a rank runs.
    pub(crate) fn new(failure: Failure, me: usize, place: impl Fn(usize) -> String) -> Self {
        let (rank, reason) = match failure {
            Failure::Died { rank, reason } => {
                let how = match reason {
                    Reason::Closed => "its process has ended, or left without `finalize`",
                    Reason::Silent => "its host does not answer",
                    Reason::Failed => "it has failed, and its own output says why",
                };
                (rank.index(), format!("has died: {how}"))
            }
            Failure::Protocol { rank, fault: Fault::Barrier { address: FINAL_BARRIER, .. } } => (
                rank.index(),
                "has called `finalize`, and this rank waits at a barrier; all ranks must make the same \
                 barriers"
                    .into(),
            ),
            Failure::Protocol { rank, fault: Fault::Barrier { .. } } => (
                rank.index(),
                "waits at another barrier than this rank; all ranks must make the same allocations \
                 and barriers in the same order"
                    .into(),
            ),
            Failure::Protocol { rank, fault: Fault::Refused } => (
                rank.index(),
                "has refused an operation: its own output may say why; otherwise, all ranks must run \
                 the same program with the same options"
                    .into(),
            ),
            Failure::Protocol { rank, fault } => {
                let remedy = "all ranks must run the same program with the same options";
                (rank.index(), format!("broke the protocol: {fault}; {remedy}"))
            }
            Failure::Misuse(misuse) => (me, format!("misused an object: {misuse}")),
        };
        Self { rank, place: place(rank), reason }
    }

    /// Describes a failure of this rank itself.
    pub(crate) fn own(rank: usize, place: String, reason: String) -> Self {
        Self { rank, place, reason }
    }
}

/// Returns the reason of a rank that cannot use its memory.
pub(crate) fn without_memory(cause: &impl fmt::Display) -> String {
    format!("cannot use its memory: {cause}")
}

/// The address of the barrier at which ranks leave, outside of the region. No other barrier has it,
/// so a rank that leaves too early is noticed.
pub(crate) const FINAL_BARRIER: u64 = 8;

/// Exit status of a process that ends because a rank has failed.
pub(crate) const STATUS_FAILED: i32 = 70;
