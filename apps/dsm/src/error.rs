//! Errors of the crate.

use std::fmt;
use std::io;
use std::ops::Range;
use std::time::Duration;

use page_faults::{NotInForce, ViewError};
use thiserror::Error;

use crate::failure::RankFailure;
use crate::misuse::MisusedCall;

/// Why a call of the crate failed.
///
/// Its `Debug` form is its text and the causes that the text does not contain, because a program
/// whose `main` returns the error prints this form.
#[derive(Error)]
#[non_exhaustive]
pub enum Error {
    /// A variable of the environment has no number.
    #[error(
        "{name}={value} is not a number; start the program by `ethernot dsm run -n 4 -- PROGRAM`, or set {name}"
    )]
    Variable {
        /// The variable.
        name: &'static str,
        /// Its value; empty if it is not set.
        value: String,
    },
    /// The environment names no method.
    #[error("{name}={0} names no method; use asynchronous, synchronous or mprotect", name = crate::variables::METHOD)]
    Method(String),
    /// The rank is not below the number of ranks.
    #[error("rank {rank} of {size} ranks: ranks are 0 to {last}, and there are at most {most} ranks", last = size.saturating_sub(1), most = dsm_protocol::NODES_MAX)]
    Rank {
        /// The rank.
        rank: usize,
        /// The number of ranks.
        size: usize,
    },
    /// Several ranks, but no address at which they meet.
    #[error("no address at which the ranks meet; set {name} on all ranks to an address of the host of rank 0, such as 10.0.0.1:7000", name = crate::variables::MEET)]
    NoMeetingPlace,
    /// The region has no bytes, or too many.
    #[error(
        "a region of {0} bytes; choose 1 byte to 64 GiB with `Options::region_bytes`, including `Options::local_bytes` of each rank"
    )]
    Region(u64),
    /// The number of threads is out of range.
    #[error(
        "{0} threads; choose 1 to 65535 with `Options::threads` or {name}",
        name = crate::variables::THREADS
    )]
    Threads(usize),
    /// More threads use the memory than the options say.
    #[error(
        "more than {0} threads of the process use the memory; raise `Options::threads` on all ranks"
    )]
    TooManyThreads(u16),
    /// The process has joined before.
    #[error("the process has joined already; a process can join once")]
    Joined,
    /// The region cannot be mapped or watched.
    #[error("map the shared region: {0}")]
    View(#[from] ViewError),
    /// The network does not work.
    #[error("{step}: {source}")]
    Network {
        /// What failed.
        step: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The progress thread did not start.
    #[error("start the progress thread: {0}; raise the limit of processes (`ulimit -u`)")]
    Thread(io::Error),
    /// A rank refused this one.
    #[error("rank {rank} refuses this rank: {reason}")]
    Refused {
        /// The rank that refuses.
        rank: usize,
        /// Why.
        reason: String,
    },
    /// Not all ranks came.
    #[error(
        "{} did not come within {limit:?}{}; check that all {size} ranks were started, and that they reach {meet}",
        listed(.ranks), .cause.as_ref().map(|cause| format!(" ({cause})")).unwrap_or_default()
    )]
    Missing {
        /// The ranks that are missing.
        ranks: Vec<usize>,
        /// The number of ranks.
        size: usize,
        /// The address of rank 0.
        meet: String,
        /// The limit.
        limit: Duration,
        /// Why the last attempt to connect failed, if there was one.
        cause: Option<String>,
    },
    /// The process is a child of one that has joined.
    #[error(
        "a forked child used the shared memory; fork before the process joins, or let the child start another program"
    )]
    Forked,
    /// Accesses to the memory would not reach the library.
    #[error(
        "accesses to the shared memory do not work: {0} (a process claims faults when it joins)"
    )]
    Handler(#[from] NotInForce),
    /// The region has no room.
    #[error(
        "{wanted} bytes do not fit into the {left} bytes that are left of the region; raise `{option}` on all ranks"
    )]
    NoRoom {
        /// Bytes that were asked for.
        wanted: u64,
        /// Bytes that are left.
        left: u64,
        /// The option that makes room.
        option: &'static str,
    },
    /// There is no such allocation.
    #[error("{0}")]
    Allocation(String),
    /// The addresses are not in the region.
    #[error(
        "the addresses {start:#x} to {end:#x} are not in the shared region, which is {first:#x} to {last:#x}; use memory that `Dsm::alloc` has returned",
        start = addresses.start, end = addresses.end, first = region.start, last = region.end
    )]
    Outside {
        /// The addresses.
        addresses: Range<usize>,
        /// The region.
        region: Range<usize>,
    },
    /// The call is not permitted. It has changed nothing.
    #[error(transparent)]
    Misuse(#[from] MisusedCall),
    /// A rank has failed, and the shared memory with it.
    #[error(transparent)]
    Failed(#[from] RankFailure),
}

impl fmt::Debug for Error {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_with_causes(self, formatter)
    }
}

/// Writes the text of an error, and the causes that the text does not contain.
pub(crate) fn write_with_causes(
    error: &dyn std::error::Error,
    formatter: &mut fmt::Formatter<'_>,
) -> fmt::Result {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let further = error.to_string();
        if !text.contains(&further) {
            text = format!("{text}: {further}");
        }
        cause = error.source();
    }
    formatter.write_str(&text)
}

/// Returns ranks as text: `rank 3`, or `ranks 1, 3`.
fn listed(ranks: &[usize]) -> String {
    let names: Vec<_> = ranks.iter().map(usize::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, names.join(", "))
}

impl Error {
    /// Returns the error of a step that uses the network.
    pub(crate) fn network<E>(step: impl Into<String>) -> impl FnOnce(E) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let step = step.into();
        move |source| Self::Network { step, source: source.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error whose text does not contain its cause.
    #[derive(Debug, Error)]
    #[error("the socket is closed")]
    struct Socket(#[source] io::Error);

    #[test]
    fn the_debug_form_is_the_text_with_each_cause_once() {
        let limit = Duration::from_secs(30);
        let (ranks, meet) = (vec![1], "127.0.0.1:7000".to_owned());
        let missing = Error::Missing { ranks, size: 2, meet, limit, cause: None };
        assert_eq!(format!("{missing:?}"), missing.to_string());
        assert!(format!("{missing:?}").starts_with("rank 1 did not come within 30s; check"));
        let cause = Socket(io::Error::other("no route"));
        let error = Error::network("connect to rank 1")(cause);
        assert_eq!(format!("{error:?}"), "connect to rank 1: the socket is closed: no route");
    }
}
