//! Options of a rank.

use std::fmt;
use std::time::Duration;

use page_faults::Method;

use crate::failure::RankFailure;

/// Handles the failure of a rank.
pub(crate) type OnFailure = Box<dyn Fn(&RankFailure) + Send + Sync>;

/// Options of [`Dsm::join`](crate::Dsm::join). What is not set comes from the environment: see
/// [`RANK`](crate::RANK), [`SIZE`](crate::SIZE), [`MEET`](crate::MEET) and
/// [`METHOD`](crate::METHOD). Without these, the process is the only rank.
#[must_use]
pub struct Options {
    pub(crate) rank_and_size: Option<(usize, usize)>,
    pub(crate) meet: Option<String>,
    pub(crate) region_bytes: u64,
    pub(crate) local_bytes: u64,
    pub(crate) threads: usize,
    pub(crate) method: Option<Method>,
    pub(crate) limit: Duration,
    pub(crate) on_failure: Option<OnFailure>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rank_and_size: None,
            meet: None,
            region_bytes: 256 << 20,
            local_bytes: 0,
            threads: 1,
            method: None,
            limit: Duration::from_secs(30),
            on_failure: None,
        }
    }
}

impl Options {
    /// Returns the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the rank of the process, and the number of ranks.
    pub fn rank(mut self, rank: usize, size: usize) -> Self {
        self.rank_and_size = Some((rank, size));
        self
    }

    /// Sets the address at which rank 0 waits for the others.
    pub fn meet(mut self, address: impl Into<String>) -> Self {
        self.meet = Some(address.into());
        self
    }

    /// Sets the size of the shared region in bytes: 256 MiB by default, at most 64 GiB. Memory is
    /// used only for pages that are touched, and 72 bytes for each page of 4 KiB. Equal on all ranks.
    pub fn region_bytes(mut self, bytes: u64) -> Self {
        self.region_bytes = bytes;
        self
    }

    /// Sets how many bytes each rank has for allocations that it makes alone: none by default. The
    /// region grows by this for each rank. Equal on all ranks.
    pub fn local_bytes(mut self, bytes: u64) -> Self {
        self.local_bytes = bytes;
        self
    }

    /// Sets the number of threads of this process that use the memory: 1 by default. Each of them
    /// must enter each barrier. Equal on all ranks.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads;
        self
    }

    /// Sets how writes are found. By default, the first method that works here.
    pub fn method(mut self, method: Method) -> Self {
        self.method = Some(method);
        self
    }

    /// Sets how long the ranks wait for each other at the start: 30 s by default.
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Sets what happens when a rank fails. By default the process prints the failure and ends with
    /// status 70. With this function, the process goes on when the function returns: all calls then
    /// fail with [`Error::Failed`](crate::Error::Failed), and an access to a page that is not
    /// present ends the process with `SIGBUS` or `SIGSEGV`.
    pub fn on_failure(mut self, handler: impl Fn(&RankFailure) + Send + Sync + 'static) -> Self {
        self.on_failure = Some(Box::new(handler));
        self
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Options")
            .field("rank_and_size", &self.rank_and_size)
            .field("meet", &self.meet)
            .field("region_bytes", &self.region_bytes)
            .finish_non_exhaustive()
    }
}
