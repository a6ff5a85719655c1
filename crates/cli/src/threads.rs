//! Runs the parts of a simulation on threads.
//!
//! The simulator itself starts no threads. It divides a simulation into parts that exchange parcels
//! (messages between parts), and a driver runs the parts. This driver runs each part on its own
//! thread. All threads simulate the same window of virtual time, wait at a barrier, exchange
//! parcels, and wait at the barrier again.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;

use interconnect::ethernet::Parcel;
use interconnect::simulation::{Driver, Part, Progress, Stuck, WATCHED_EVENTS, Watcher, Window};

/// Runs each part on its own thread.
#[derive(Debug)]
pub(crate) struct OnThreads;

impl Driver for OnThreads {
    fn drive(
        &self,
        parts: &mut [&mut dyn Part],
        window: Window,
        watch: &mut Watcher<'_>,
    ) -> Result<(), Stuck> {
        let meeting = Meeting::new(parts.len(), window);
        let Some((first, others)) = parts.split_first_mut() else { return Ok(()) };
        let ends: Vec<Result<(), Stuck>> = thread::scope(|scope| {
            let meeting = &meeting;
            let workers: Vec<_> = others
                .iter_mut()
                .zip(1..)
                .map(|(part, own)| scope.spawn(move || meeting.work(own, &mut **part, None)))
                .collect();
            // This thread runs the first part, and reports the progress of all parts.
            let own = meeting.work(0, &mut **first, Some(watch));
            let join = |worker: thread::ScopedJoinHandle<'_, _>| match worker.join() {
                Ok(end) => end,
                Err(panic) => resume_unwind(panic),
            };
            std::iter::once(own).chain(workers.into_iter().map(join)).collect()
        });
        ends.into_iter().collect()
    }
}

/// The barrier of the threads, with the data that they exchange there.
struct Meeting {
    window: Window,
    barrier: Barrier,
    /// Time of each part's next event, in picoseconds; [`FAILED`] for a part that failed.
    next_ps: Vec<AtomicU64>,
    /// Number of each part's events so far.
    events: Vec<AtomicU64>,
    /// Progress of each part, updated from time to time.
    progress: Vec<Mutex<Progress>>,
    /// The parcel from part `a` to part `b`, at index `a · parts + b`.
    parcels: Vec<Mutex<Option<Parcel>>>,
}

impl Meeting {
    fn new(parts: usize, window: Window) -> Self {
        let zeros = || (0..parts).map(|_| AtomicU64::new(0)).collect();
        Self {
            window,
            barrier: Barrier::new(parts),
            next_ps: zeros(),
            events: zeros(),
            progress: (0..parts).map(|_| Mutex::new(START)).collect(),
            parcels: (0..parts * parts).map(|_| Mutex::new(None)).collect(),
        }
    }

    /// Runs a part to its end. If the part fails or panics, its thread still waits at the barrier,
    /// so that the other threads can see the failure and end.
    fn work(
        &self,
        own: usize,
        part: &mut dyn Part,
        mut watch: Option<&mut Watcher<'_>>,
    ) -> Result<(), Stuck> {
        let parts = self.next_ps.len();
        let others = || (0..parts).filter(move |&other| other != own);
        let mut end = Ok(Ok(()));
        let (mut check, mut count) = (WATCHED_EVENTS, 0);
        loop {
            let mut reported: Result<(), Stuck> = Ok(());
            let next_ps = match end {
                Ok(Ok(())) => part.next_ps().unwrap_or(NOTHING),
                _ => FAILED,
            };
            // Stores the time before the barrier. After the barrier, all threads therefore read
            // equal values and choose the same window.
            self.next_ps[own].store(next_ps, Ordering::Relaxed);
            self.events[own].store(count, Ordering::Relaxed);
            self.barrier.wait();
            let times = || self.next_ps.iter().map(|time| time.load(Ordering::Relaxed));
            let start_ps = times().min().unwrap_or(NOTHING);
            let events = self.events.iter().map(|count| count.load(Ordering::Relaxed)).sum();
            if start_ps == NOTHING || times().any(|time_ps| time_ps == FAILED) {
                break;
            }
            if events >= self.window.events {
                return Err(self.window.endless(events, start_ps));
            }
            let end_ps = start_ps.saturating_add(self.window.lookahead_ps);
            // All threads read equal counts of events, so they enter this branch in the same
            // windows.
            if events >= check {
                check = events + WATCHED_EVENTS;
                *lock(&self.progress[own]) = part.progress(start_ps);
                if let Some(watch) = &mut watch {
                    // A part that has not updated its progress yet counts with its previous
                    // progress.
                    let parts = self.progress.iter().map(|progress| *lock(progress));
                    reported = self.window.shares.whole(parts).report(watch);
                }
            }
            end = catch_unwind(AssertUnwindSafe(|| {
                // If the watcher has requested a stop, this part returns an error like a part that
                // failed.
                reported?;
                count = part.run_before(end_ps)?;
                Ok(())
            }));
            for to in others() {
                *self.slot(own, to) = Some(part.parcel(to));
            }
            self.barrier.wait();
            for from in others() {
                let parcel = self.slot(from, own).take();
                if let Some(parcel) = parcel {
                    part.accept(from, parcel);
                }
            }
        }
        end.unwrap_or_else(|panic| resume_unwind(panic))
    }

    fn slot(&self, from: usize, to: usize) -> MutexGuard<'_, Option<Parcel>> {
        lock(&self.parcels[from * self.next_ps.len() + to])
    }
}

/// Locks a mutex. The lock succeeds even if another thread panicked while it held the mutex,
/// because the values are valid in this case, too.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

const START: Progress = Progress { share: None, now_ps: 0, events: 0, messages: 0 };

const NOTHING: u64 = u64::MAX;
/// The time that a failed part stores. It is later than the end of any run.
const FAILED: u64 = u64::MAX - 1;

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use interconnect::configuration::{Configuration, Watch};
    use interconnect::simulation::{InTurns, Shares};

    use super::*;

    fn run(threads: u32, more: &str) -> Result<u64, String> {
        let text = format!(
            "[topology]\nkind = \"leaf_spine\"\n[fabric]\nchoice = \"least_loaded\"\n{more}\n[run]\n\
             threads = {threads}\nevents = 1000000\n[workload]\nuntil_ps = 40000000\ninterval_ps = \
             2000000\n"
        );
        let configuration = Configuration::parse("a.toml", &text).expect("it is valid");
        let outcome = configuration
            .run_watched(&OnThreads, Watch::default())
            .map_err(|error| error.to_string())?;
        Ok(outcome.hash)
    }

    #[test]
    fn the_result_is_the_same_on_any_number_of_threads() {
        for more in ["", "shared_bytes = 30000", "lossless = [0]\npause_bytes = 3000"] {
            let hash = run(1, more).expect("it ends");
            for threads in [2, 3, 4] {
                assert_eq!(run(threads, more), Ok(hash), "{threads} threads, {more}");
            }
        }
    }

    /// A divided run reports its progress with any driver, and the reported share never decreases.
    #[test]
    fn a_divided_run_reports_its_progress() {
        let text = "[topology]\nkind = \"leaf_spine\"\n[run]\nthreads = 3\n[workload]\nuntil_ps = \
                    2_000_000_000\ninterval_ps = 2_000_000\n";
        let configuration = Configuration::parse("a.toml", text).expect("it is valid");
        let drivers: [&dyn Driver; 2] = [&OnThreads, &InTurns];
        for driver in drivers {
            let mut reports: Vec<Progress> = Vec::new();
            let mut progress = |progress| {
                reports.push(progress);
                ControlFlow::Continue(())
            };
            let watch = Watch { progress: Some(&mut progress), ..Watch::default() };
            let outcome = configuration.run_watched(driver, watch).expect("it ends");
            assert!(reports.len() > 2, "{reports:?}");
            for progress in &reports {
                assert!(
                    progress.events <= outcome.events
                        && progress.share.is_some_and(|share| share <= 1.0)
                );
            }
            let first = reports.first().and_then(|first| first.share);
            assert!(first < reports.last().and_then(|last| last.share), "{reports:?}");
            assert!(
                reports.is_sorted_by(|a, b| a.events <= b.events && a.share <= b.share),
                "{reports:?}"
            );
        }
    }

    /// The watcher of a run can stop it, even if its parts run on threads.
    #[test]
    fn a_divided_run_is_stopped_by_its_watcher() {
        let text = "[topology]\nkind = \"leaf_spine\"\n[run]\nthreads = 3\n[workload]\nuntil_ps = \
                    20_000_000_000\ninterval_ps = 2_000_000\n";
        let configuration = Configuration::parse("a.toml", text).expect("it is valid");
        let drivers: [&dyn Driver; 2] = [&OnThreads, &InTurns];
        for driver in drivers {
            let mut reports = 0;
            let mut progress = |_| {
                reports += 1;
                if reports == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            };
            let watch = Watch { progress: Some(&mut progress), ..Watch::default() };
            let error = configuration.run_watched(driver, watch).expect_err("it is stopped");
            assert!(error.to_string().starts_with("stopped after "), "{error}");
            assert_eq!(reports, 2);
        }
    }

    /// A part that fails ends the whole run.
    #[test]
    fn a_stuck_part_stops_the_others() {
        struct Quitter(u64);
        impl Part for Quitter {
            fn next_ps(&self) -> Option<u64> {
                Some(self.0)
            }
            fn run_before(&mut self, end_ps: u64) -> Result<u64, Stuck> {
                let has_ended = end_ps > 100 && self.0 % 2 == 1;
                self.0 = (self.0 & 1) + (end_ps & !1);
                if has_ended { Err(Stuck::Silent { messages: 7 }) } else { Ok(0) }
            }
            fn parcel(&mut self, _to: usize) -> Parcel {
                Parcel::default()
            }
            fn accept(&mut self, _from: usize, _parcel: Parcel) {}
            fn progress(&self, now_ps: u64) -> Progress {
                Progress { now_ps, ..START }
            }
        }
        let (mut a, mut b) = (Quitter(0), Quitter(1));
        let window = Window { lookahead_ps: 10, events: 1_000, shares: Shares::Sum };
        let end =
            OnThreads.drive(&mut [&mut a, &mut b], window, &mut |_| ControlFlow::Continue(()));
        assert_eq!(end, Err(Stuck::Silent { messages: 7 }));
    }
}
