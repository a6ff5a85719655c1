//! The parts of a simulation on threads of their own.
//!
//! The simulator itself knows no threads: its parts exchange parcels, and who does them is not its
//! business. Here each has a thread. All do a window of virtual time, meet, hand over parcels, and
//! meet again.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex, PoisonError};
use std::thread;

use fabric::interconnect::ethernet::Parcel;
use fabric::interconnect::simulation::{Driver, Part, Stuck, Window};

/// Does each part on a thread.
#[derive(Debug)]
pub(crate) struct OnThreads;

impl Driver for OnThreads {
    fn drive(&self, parts: &mut [&mut dyn Part], window: Window) -> Result<(), Stuck> {
        let meeting = Meeting::new(parts.len(), window);
        let ends: Vec<Result<(), Stuck>> = thread::scope(|scope| {
            let meeting = &meeting;
            let workers: Vec<_> = parts
                .iter_mut()
                .enumerate()
                .map(|(own, part)| scope.spawn(move || meeting.work(own, &mut **part)))
                .collect();
            let join = |worker: thread::ScopedJoinHandle<'_, _>| match worker.join() {
                Ok(end) => end,
                Err(panic) => resume_unwind(panic),
            };
            workers.into_iter().map(join).collect()
        });
        ends.into_iter().collect()
    }
}

/// Where threads meet.
struct Meeting {
    window: Window,
    barrier: Barrier,
    /// Time of the next event of each part; [`FAILED`] of one that gave up.
    next_ps: Vec<AtomicU64>,
    /// Events of each part so far.
    events: Vec<AtomicU64>,
    /// What part a has for part b, at a · parts + b.
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
            parcels: (0..parts * parts).map(|_| Mutex::new(None)).collect(),
        }
    }

    /// Does a part to the end. A part that gives up, or panics, still comes to the meeting, where
    /// the others learn of it.
    fn work(&self, own: usize, part: &mut dyn Part) -> Result<(), Stuck> {
        let parts = self.next_ps.len();
        let others = || (0..parts).filter(move |&other| other != own);
        let mut end = Ok(Ok(()));
        loop {
            let next_ps = match end {
                Ok(Ok(())) => part.next_ps().unwrap_or(NOTHING),
                _ => FAILED,
            };
            self.next_ps[own].store(next_ps, Ordering::Relaxed);
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
            end = catch_unwind(AssertUnwindSafe(|| {
                self.events[own].store(part.run_before(end_ps)?, Ordering::Relaxed);
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

    fn slot(&self, from: usize, to: usize) -> std::sync::MutexGuard<'_, Option<Parcel>> {
        let slot = &self.parcels[from * self.next_ps.len() + to];
        slot.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const NOTHING: u64 = u64::MAX;
/// Far beyond the end of all runs.
const FAILED: u64 = u64::MAX - 1;

#[cfg(test)]
mod tests {
    use fabric::interconnect::configuration::{Configuration, Watch};

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

    /// A part that fails ends the run of all.
    #[test]
    fn a_part_that_gives_up_stops_the_others() {
        struct Quitter(u64);
        impl Part for Quitter {
            fn next_ps(&self) -> Option<u64> {
                Some(self.0)
            }
            fn run_before(&mut self, end_ps: u64) -> Result<u64, Stuck> {
                let is_over = end_ps > 100 && self.0 % 2 == 1;
                self.0 = (self.0 & 1) + (end_ps & !1);
                if is_over { Err(Stuck::Silent { messages: 7 }) } else { Ok(0) }
            }
            fn parcel(&mut self, _to: usize) -> Parcel {
                Parcel::default()
            }
            fn accept(&mut self, _from: usize, _parcel: Parcel) {}
        }
        let (mut a, mut b) = (Quitter(0), Quitter(1));
        let window = Window { lookahead_ps: 10, events: 1_000 };
        let end = OnThreads.drive(&mut [&mut a, &mut b], window);
        assert_eq!(end, Err(Stuck::Silent { messages: 7 }));
    }
}
