//! The watchdog: reports a thread for which other threads wait, while it makes no call or waits at
//! another object, and a thread that waits for a lock.
//!
//! A thread that makes no call may spin on plain memory, in which it never sees a change of another
//! rank. To find out, the watchdog hides the pages that other ranks have changed since this rank last
//! acquired: it takes them out of the view. If the thread faults on one of them, it reads it. The
//! fault maps the page again, with the contents that it had.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::mem;
use std::time::{Duration, Instant};

use dsm_protocol::{Awaited, Obstacle, PageNumber, Rank, ThreadNumber};

use crate::core::{Core, State};
use crate::heap::REGION;
use crate::stalls::{Seen, Stage, StalePage, StallReport};

impl Core {
    /// Takes the next step of the watchdog. Returns what it has found.
    pub(crate) fn watch(&self, state: &mut State, now: Instant) -> Vec<StallReport> {
        let Some(limit) = self.watchdog.filter(|_| now >= state.watch.next_look) else {
            return Vec::new();
        };
        state.watch.next_look = now + (limit / 10).min(LOOK_AGAIN_MAX);
        let mut reports = self.watch_awaited(state, limit, now);
        reports.extend(self.watch_locks(state, limit));
        reports
    }

    /// Takes the next step for a thread for which others wait.
    fn watch_awaited(&self, state: &mut State, limit: Duration, now: Instant) -> Vec<StallReport> {
        let Some(awaited) = state.node.waits_for_this() else {
            state.watch.awaited_since = None;
            state.watch.stage = Stage::Quiet;
            return Vec::new();
        };
        let since = *state.watch.awaited_since.get_or_insert(now);
        let waits = now.duration_since(since);
        let is_late = waits >= limit;
        if is_late && let Some(report) = self.watch_objects(state, (awaited, waits), limit) {
            return vec![report];
        }
        match mem::take(&mut state.watch.stage) {
            Stage::Quiet if is_late && !stalled(state, awaited, limit, now).is_empty() => {
                state.node.inspect(&mut state.host);
                state.watch.stage = Stage::Inspects;
            }
            Stage::Quiet => {}
            Stage::Inspects => match state.node.inspected().cloned() {
                None => state.watch.stage = Stage::Inspects,
                Some(changed) => {
                    hide(state, &changed);
                    state.watch.stage = Stage::Hides { since: now, changed };
                }
            },
            Stage::Hides { since, changed } if now.duration_since(since) < HIDDEN => {
                state.watch.stage = Stage::Hides { since, changed };
            }
            Stage::Hides { since: hidden, changed } => {
                let threads = stalled(state, awaited, limit, now);
                let report =
                    |thread| self.report(state, (awaited, waits), thread, (hidden, &changed), now);
                return threads.into_iter().filter_map(report).collect();
            }
        }
        Vec::new()
    }

    /// Reports a thread that waits at an object for `limit`, while others wait in the barrier of all
    /// threads.
    fn watch_objects(
        &self,
        state: &mut State,
        (awaited, waits): (Awaited, Duration),
        limit: Duration,
    ) -> Option<StallReport> {
        if !matches!(awaited, Awaited::Barrier { .. }) {
            return None;
        }
        let waits_at = |thread: ThreadNumber| match late(state, thread, limit)? {
            (Obstacle::Object(object), own) => Some((thread.index(), object, own)),
            (Obstacle::Lock(_), _) => None,
        };
        let (thread, object, own) = (0..self.threads).map(ThreadNumber).find_map(waits_at)?;
        state.watch.threads.get_mut(thread)?.is_reported = true;
        let text = format!(
            "{}: {}, but thread {thread} has waited for the object {object:#x} for {own:.1?}; all \
             threads must come to the same barriers",
            self.name_of(self.rank),
            sentence(awaited, waits, self)
        );
        Some(StallReport { thread, page: None, text })
    }

    /// Reports a thread that has waited for a lock for `limit`, with the thread that holds the lock.
    /// Of threads that each wait for the other's lock, each is reported on its rank.
    fn watch_locks(&self, state: &mut State, limit: Duration) -> Option<StallReport> {
        let Some((thread, lock)) = state.watch.wanted else {
            let waits_for = |thread: ThreadNumber| match late(state, thread, limit)? {
                (Obstacle::Lock(lock), _) => Some((thread, lock)),
                (Obstacle::Object(_), _) => None,
            };
            let wanted = (0..self.threads).map(ThreadNumber).find_map(waits_for)?;
            state.watch.wanted = Some(wanted);
            state.node.search(&mut state.host, wanted.1);
            return None;
        };
        if state.node.is_searching() {
            return None;
        }
        state.watch.wanted = None;
        let (rank, holder) = state.node.found_holder()?;
        // The thread may have got the lock meanwhile.
        let (obstacle, waits) = late(state, thread, limit)?;
        if obstacle != Obstacle::Lock(lock) {
            return None;
        }
        let thread = thread.index();
        state.watch.threads.get_mut(thread)?.is_reported = true;
        let text = format!(
            "{}: thread {thread} has waited for the lock {lock:#x} for {waits:.1?}, which thread {} of \
             {} holds; release it there, or acquire locks in the same order on all ranks",
            self.name_of(self.rank),
            holder.0,
            self.name_of(rank.index())
        );
        Some(StallReport { thread, page: None, text })
    }

    /// Returns a rank with its process and host.
    fn name_of(&self, rank: usize) -> String {
        format!("rank {rank} ({})", self.places.get(rank).map_or("", String::as_str))
    }

    fn report(
        &self,
        state: &mut State,
        (awaited, waits): (Awaited, Duration),
        thread: usize,
        (hidden, changed): (Instant, &BTreeMap<PageNumber, Rank>),
        now: Instant,
    ) -> Option<StallReport> {
        let seen = state.watch.threads.get_mut(thread)?;
        seen.is_reported = true;
        let fault = seen.fault;
        let stale = fault.filter(|(_, time)| *time >= hidden);
        let stale = stale.and_then(|(page, _)| Some((page, *changed.get(&page)?)));
        let mut text = format!("{}: {}", self.name_of(self.rank), sentence(awaited, waits, self));
        // Writing to a string cannot fail. So below.
        let _ = write!(text, ", but thread {thread}, which {}", activity(seen.task));
        let _ = match seen.left {
            Some(left) => {
                write!(text, ", has made no call for {:.1?}", now.duration_since(left))
            }
            None => write!(text, ", has made no call"),
        };
        let _ = match (stale, fault) {
            (Some((page, writer)), _) => write!(
                text,
                ". It reads {}, which rank {} has changed; plain memory shows no changes of other \
                 ranks: wait for an event or a barrier, or use atomics",
                self.name(page),
                writer.index()
            ),
            (None, Some((page, time))) => write!(
                text,
                ". It last faulted on {}, {:.1?} ago",
                self.name(page),
                now.duration_since(time)
            ),
            (None, None) => write!(text, ". It has not faulted on any page"),
        };
        let page = stale.map(|(page, writer)| StalePage {
            address: REGION + page.index() * 4096,
            writer: writer.index(),
        });
        Some(StallReport { thread, page, text })
    }

    /// Describes a page.
    fn name(&self, page: PageNumber) -> String {
        let mut text = format!("the page at {:#x}", REGION + page.index() * 4096);
        if let Some(made) = self.heap.of_page(page).first() {
            let _ = write!(text, " (allocated at {})", made.place);
        }
        text
    }
}

/// Returns the threads for which others wait, and that have made no call for `limit`.
fn stalled(state: &State, awaited: Awaited, limit: Duration, now: Instant) -> Vec<usize> {
    let is_stalled = |(index, seen): &(usize, &Seen)| {
        let number = ThreadNumber(*index as u16);
        let is_awaited = match awaited {
            Awaited::Barrier { .. } => true,
            Awaited::Lock { holder, .. } => holder == number,
        };
        let is_idle = seen.left.is_none_or(|left| now.duration_since(left) >= limit);
        let is_inside = state.node.waits_since(number).is_some();
        is_awaited && is_idle && !is_inside && !seen.is_reported
    };
    let threads = state.watch.threads.iter().enumerate();
    threads.filter(is_stalled).map(|(index, _)| index).collect()
}

/// Returns what a thread waits for, and how long, if it has waited for `limit` and is not reported.
fn late(state: &State, thread: ThreadNumber, limit: Duration) -> Option<(Obstacle, Duration)> {
    let obstacle = state.node.obstacle_of(thread)?;
    let since = state.node.waits_since(thread)?;
    let waits = Duration::from_nanos(state.host.network.now().saturating_sub(since));
    let is_reported = state.watch.threads.get(thread.index())?.is_reported;
    (waits >= limit && !is_reported).then_some((obstacle, waits))
}

/// Takes pages out of the view that threads of this rank only read.
fn hide(state: &mut State, pages: &BTreeMap<PageNumber, Rank>) {
    state.node.note_writes(&mut state.host);
    for page in pages.keys().copied().filter(|page| state.node.is_only_read(*page)) {
        state.host.memory.hide(page);
    }
}

fn sentence(awaited: Awaited, waits: Duration, core: &Core) -> String {
    let waiter = |rank: Rank| match rank.index() {
        own if own == core.rank => "another thread of this rank".to_owned(),
        other => format!("rank {other}"),
    };
    match awaited {
        Awaited::Barrier { rank } => {
            format!("{} has waited in a barrier for {waits:.1?}", waiter(rank))
        }
        Awaited::Lock { lock, rank, .. } => {
            format!("{} has waited for the lock {lock:#x} for {waits:.1?}", waiter(rank))
        }
    }
}

/// Returns what a thread does, as the kernel sees it.
fn activity(task: libc::pid_t) -> &'static str {
    if task == 0 {
        return "has never used the memory";
    }
    let stat = fs::read_to_string(format!("/proc/self/task/{task}/stat")).unwrap_or_default();
    // The name of the thread, in brackets, may contain anything.
    match stat.rsplit(") ").next().and_then(|rest| rest.chars().next()) {
        Some('R') => "is running",
        Some('S' | 'D') => "sleeps in a system call",
        Some('T' | 't') => "is stopped",
        _ => "has ended",
    }
}

/// How long pages are hidden. A thread that spins faults within microseconds.
const HIDDEN: Duration = Duration::from_millis(100);

/// Time between two looks, at most.
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(200);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_what_a_thread_does() {
        // SAFETY: as in `meet`.
        let own = unsafe { libc::gettid() };
        assert_eq!(activity(own), "is running");
        assert_eq!(activity(0), "has never used the memory");
        assert_eq!(activity(libc::pid_t::MAX), "has ended");
    }
}
