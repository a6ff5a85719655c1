//! Options of a rank.

use std::fmt;
use std::time::Duration;

use page_faults::Method;

use crate::failure::RankFailure;
use crate::races::RaceReport;
use crate::stalls::StallReport;

/// Handles the failure of a rank.
pub(crate) type OnFailure = Box<dyn Fn(&RankFailure) + Send + Sync>;

/// Handles a race.
pub(crate) type OnRace = Box<dyn Fn(&RaceReport) + Send + Sync>;

/// Handles a stall.
pub(crate) type OnStall = Box<dyn Fn(&StallReport) + Send + Sync>;

/// Options of [`Dsm::join`](crate::Dsm::join). What is not set comes from the environment: see
/// [`RANK`](crate::RANK), [`SIZE`](crate::SIZE), [`MEET`](crate::MEET),
/// [`METHOD`](crate::METHOD) and [`THREADS`](crate::THREADS). Without these, the process is the only rank.
#[must_use]
pub struct Options {
    pub(crate) rank_and_size: Option<(usize, usize)>,
    pub(crate) meet: Option<String>,
    pub(crate) region_bytes: u64,
    pub(crate) local_bytes: u64,
    pub(crate) threads: Option<usize>,
    pub(crate) method: Option<Method>,
    pub(crate) limit: Duration,
    pub(crate) on_failure: Option<OnFailure>,
    pub(crate) races: bool,
    pub(crate) on_race: Option<OnRace>,
    pub(crate) watchdog: Option<Duration>,
    pub(crate) on_stall: Option<OnStall>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rank_and_size: None,
            meet: None,
            region_bytes: 256 << 20,
            local_bytes: 0,
            threads: None,
            method: None,
            limit: Duration::from_secs(30),
            on_failure: None,
            races: false,
            on_race: None,
            watchdog: Some(Duration::from_secs(10)),
            on_stall: None,
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

    /// Sets the number of threads of this process that use the memory: by default, what the variable
    /// [`THREADS`](crate::THREADS) says, or 1. Each of them must enter each barrier. Equal on all
    /// ranks.
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = Some(threads);
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
    /// present ends the process with `SIGBUS` or `SIGSEGV`. If a call needs memory that the program
    /// has unmapped, the process ends with status 70, and this function is not called.
    pub fn on_failure(mut self, handler: impl Fn(&RankFailure) + Send + Sync + 'static) -> Self {
        self.on_failure = Some(Box::new(handler));
        self
    }

    /// Detects races: two ranks that change the same word of four bytes, without a lock, a barrier or
    /// another object between them that orders the changes. Reports each on standard error of the
    /// rank that finds it. A report is never wrong. The detector does not find races of threads of
    /// one rank, and none of a read with a write. Equal on all ranks; the variable
    /// [`RACES`](crate::RACES) does the same.
    ///
    /// The detector needs a second copy of each page, and a message for each page that an interval
    /// has changed. It does not work with [`Method::Asynchronous`].
    pub fn detect_races(mut self) -> Self {
        self.races = true;
        self
    }

    /// Sets how long a thread may make no call while others wait for it in a barrier or for a lock,
    /// until the watchdog reports it on standard error: 10 s by default. The report says whether the
    /// thread reads a page that another rank has changed: plain memory shows no changes of other
    /// ranks. The watchdog also reports a thread that has waited for a lock for so long, with the rank
    /// and the thread that hold it. `None` switches the watchdog off.
    pub fn watchdog(mut self, limit: Option<Duration>) -> Self {
        self.watchdog = limit;
        self
    }

    /// Sets what happens when the watchdog finds a stall, instead of a report on standard error.
    pub fn on_stall(mut self, handler: impl Fn(&StallReport) + Send + Sync + 'static) -> Self {
        self.on_stall = Some(Box::new(handler));
        self
    }

    /// Sets what happens when this rank finds a race, instead of a report on standard error.
    pub fn on_race(mut self, handler: impl Fn(&RaceReport) + Send + Sync + 'static) -> Self {
        self.on_race = Some(Box::new(handler));
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
