//! The calls of threads.

use crate::call::{AtomicOperation, Call};
use crate::clock::Clock;
use crate::diff::PAGE_BYTES;
use crate::error::{Failure, Misuse};
use crate::identity::{PageNumber, ThreadNumber};
use crate::lock_table::LockStep;
use crate::memory::Host;
use crate::message::{Message, Question};
use crate::node::Node;
use crate::node_state::{AfterInterval, Need, Pending, Stage};
use crate::planted::{Planted, is_planted};
use crate::transport::Operation;

impl Node {
    /// Begins a call of a thread. [`Node::take`] returns the result once the call has ended, which
    /// may be at once.
    ///
    /// # Errors
    /// [`Misuse`] if the call is not permitted. Then nothing has happened. If no thread of this node
    /// holds the lock that the call releases, the error is its result instead, because it names the
    /// node that holds the lock.
    pub fn start(
        &mut self,
        host: &mut dyn Host,
        thread: ThreadNumber,
        call: Call,
    ) -> Result<(), Misuse> {
        match self.threads.get(thread.index()) {
            None => return Err(Misuse::NoThread(thread.0)),
            Some(Stage::Idle) => {}
            Some(_) => return Err(Misuse::Busy(thread.0)),
        }
        let unheld = match self.check(thread, call) {
            Err(Misuse::NotHeld(lock)) if self.config.nodes > 1 => Some(lock),
            checked => checked.map(|()| None)?,
        };
        if let Some(started) = self.started.get_mut(thread.index()) {
            *started = host.now();
        }
        if let Some(failure) = self.failure() {
            self.finish(thread, Err(failure.into()));
        } else if let Some(lock) = unheld {
            self.refuse_release(host, thread, lock);
        } else if let Err(failure) = self.begin(host, thread, call) {
            self.set_stage(thread, Stage::Fault);
            self.fail(host, failure);
        }
        self.flush_run(host);
        Ok(())
    }

    /// Checks the arguments of a call.
    fn check(&self, thread: ThreadNumber, call: Call) -> Result<(), Misuse> {
        match call {
            Call::Lock(lock) if self.locks.is_held(lock, thread) => Err(Misuse::HeldAlready(lock)),
            Call::Unlock(lock) | Call::Wait { lock, .. } if !self.locks.is_held(lock, thread) => {
                Err(not_held(lock, self.locks.holder(lock)))
            }
            Call::ReadWriteUnlock(lock) if !self.read_write_locks.contains_key(&(lock, thread)) => {
                Err(not_held(lock, self.read_write_holder(lock)))
            }
            Call::ReadLock(lock) | Call::WriteLock(lock)
                if self.read_write_locks.contains_key(&(lock, thread)) =>
            {
                Err(Misuse::HeldAlready(lock))
            }
            Call::Barrier { count, .. } if count == 0 || count > self.all_threads() => {
                Err(Misuse::Count { count, threads: self.all_threads() })
            }
            Call::Atomic { address, .. } => {
                if address % 8 != 0 {
                    return Err(Misuse::Unaligned(address));
                }
                let page = u32::try_from(address / PAGE_BYTES as u64).unwrap_or(u32::MAX);
                self.check_page(PageNumber(page))
            }
            Call::Prefetch { first, count } | Call::Claim { first, count, .. } => {
                self.check_range(first, count)
            }
            Call::Pin { first, count, .. } => {
                self.check_range(first, count)?;
                let mut pages = (first.0..first.0 + count).map(PageNumber);
                match pages.find(|page| self.pages.get(*page).pins == u16::MAX) {
                    Some(page) => Err(Misuse::TooManyPins(page)),
                    None => Ok(()),
                }
            }
            Call::Unpin { first, count } => {
                self.check_range(first, count)?;
                let mut pages = (first.0..first.0 + count).map(PageNumber);
                match pages.find(|page| self.pages.get(*page).pins == 0) {
                    Some(page) => Err(Misuse::NotPinned(page)),
                    None => Ok(()),
                }
            }
            Call::Migrate { to, .. } if to.0 >= self.config.nodes => Err(Misuse::NoRank(to)),
            Call::ReadFault(page) | Call::WriteFault(page) | Call::Migrate { page, .. } => {
                self.check_page(page)
            }
            _ => Ok(()),
        }
    }

    /// Returns the number of threads of all nodes.
    fn all_threads(&self) -> u32 {
        u32::from(self.config.nodes) * u32::from(self.config.threads)
    }

    fn check_page(&self, page: PageNumber) -> Result<(), Misuse> {
        if self.pages.has(page) { Ok(()) } else { Err(Misuse::NoPage(page)) }
    }

    fn check_range(&self, first: PageNumber, count: u32) -> Result<(), Misuse> {
        match first.0.checked_add(count) {
            Some(end) if end <= self.config.pages => Ok(()),
            _ => Err(Misuse::NoPage(PageNumber(first.0.saturating_add(count)))),
        }
    }

    fn begin(
        &mut self,
        host: &mut dyn Host,
        thread: ThreadNumber,
        call: Call,
    ) -> Result<(), Failure> {
        match call {
            Call::ReadFault(page) => self.fault(host, thread, page, Need::Read),
            Call::WriteFault(page) => self.fault(host, thread, page, Need::Write),
            Call::Lock(lock) => {
                self.set_stage(thread, Stage::Lock);
                let step = self.locks.lock(lock, thread);
                self.do_lock_step(host, lock, step);
            }
            Call::Unlock(lock) => self.unlock(host, thread, lock),
            Call::ReadLock(lock) => {
                self.read_write_locks.insert((lock, thread), false);
                self.ask(host, thread, lock, Question::Share);
            }
            Call::WriteLock(lock) => {
                self.read_write_locks.insert((lock, thread), true);
                self.ask(host, thread, lock, Question::Exclude);
            }
            Call::ReadWriteUnlock(lock) => {
                let is_writer = self.read_write_locks.remove(&(lock, thread)) == Some(true);
                let question = if is_writer { Question::Unexclude } else { Question::Unshare };
                self.ask_at_end(host, thread, lock, question);
            }
            Call::Barrier { address, count } => {
                if count == self.all_threads() {
                    return self.arrive(host, thread, address, count);
                }
                self.ask_at_end(host, thread, address, Question::Arrive(count));
            }
            Call::Wait { condition, lock } => {
                self.ask(host, thread, condition, Question::Enqueue);
                self.set_stage(thread, Stage::Queue { condition, lock });
            }
            Call::Signal(condition) => self.notify(host, thread, condition, Question::Signal),
            Call::Broadcast(condition) => {
                self.notify(host, thread, condition, Question::Broadcast);
            }
            Call::Take(semaphore) => self.ask(host, thread, semaphore, Question::Take),
            Call::Give { semaphore, count } => {
                self.ask_at_end(host, thread, semaphore, Question::Give(count));
            }
            Call::Await(event) => self.ask(host, thread, event, Question::Await),
            Call::Set(event) => self.ask_at_end(host, thread, event, Question::Set),
            Call::Clear(event) => self.notify(host, thread, event, Question::Clear),
            Call::Atomic { address, operation } => {
                self.set_stage(thread, Stage::Home { address, operation });
                if self.need(host, page_of(address), thread, Need::Home) {
                    self.post_atomic(host, thread, address, operation);
                }
            }
            Call::Release => {
                self.set_stage(thread, Stage::Flush);
                self.end_interval(host, AfterInterval::Finish(thread));
            }
            Call::Acquire => {
                let rank = self.me();
                return self
                    .read_positions(host, thread)
                    .map_err(|fault| Failure::Protocol { rank, fault });
            }
            Call::Prefetch { first, count } => {
                self.prefetch_range(host, first.0..first.0.saturating_add(count));
                self.finish(thread, Ok(0));
            }
            Call::Pin { first, count, is_written } => {
                let end = PageNumber(first.0.saturating_add(count));
                self.set_stage(thread, Stage::Pin { next: first, end, is_written });
                self.continue_pin(host, thread);
            }
            Call::Unpin { first, count } => {
                for page in (first.0..first.0.saturating_add(count)).map(PageNumber) {
                    let found = self.pages.at(page);
                    found.pins = found.pins.saturating_sub(1);
                }
                self.finish(thread, Ok(0));
            }
            //= dsm-protocol.md: home.4
            Call::Claim { first, count, step } => {
                self.set_stage(thread, Stage::Claim(1));
                let pages = (first.0..first.0.saturating_add(count)).step_by(step.max(1) as usize);
                for page in pages.map(PageNumber) {
                    if !self.need(host, page, thread, Need::Home)
                        && let Some(Stage::Claim(outstanding)) =
                            self.threads.get_mut(thread.index())
                    {
                        *outstanding += 1;
                    }
                }
                self.count_down_claim(thread);
            }
            Call::Migrate { page, to } => {
                self.request_move(page, to);
                self.finish(thread, Ok(0));
            }
        }
        Ok(())
    }

    fn fault(&mut self, host: &mut dyn Host, thread: ThreadNumber, page: PageNumber, need: Need) {
        self.set_stage(thread, Stage::Fault);
        if need == Need::Read {
            self.read_ahead(host, page, thread);
        }
        if self.need(host, page, thread, need) {
            self.finish(thread, Ok(0));
        }
    }

    /// Releases a lock. The thread goes on at once: the interval ends in the background if another
    /// node waits, and the lock leaves after that. The race detector needs shorter intervals.
    fn unlock(&mut self, host: &mut dyn Host, thread: ThreadNumber, lock: u64) {
        let step = self.locks.unlock(lock, thread).unwrap_or(LockStep::None);
        if self.config.races {
            self.set_stage(thread, Stage::Flush);
            self.end_interval(host, AfterInterval::Finish(thread));
        } else {
            self.finish(thread, Ok(0));
        }
        self.do_lock_step(host, lock, step);
    }

    /// Asks an object, and waits for the answer.
    fn ask(&mut self, host: &mut dyn Host, thread: ThreadNumber, object: u64, question: Question) {
        self.set_stage(thread, Stage::Object(object));
        let clock = Clock::zero(usize::from(self.config.nodes));
        let to = self.manager(object);
        self.send(host, to, &Message::Ask { object, thread, question, clock });
    }

    /// Changes an object that publishes nothing, and goes on.
    fn notify(
        &mut self,
        host: &mut dyn Host,
        thread: ThreadNumber,
        object: u64,
        question: Question,
    ) {
        self.ask(host, thread, object, question);
        self.finish(thread, Ok(0));
    }

    //= dsm-protocol.md: interval.3
    /// Asks an object once the interval has ended.
    fn ask_at_end(
        &mut self,
        host: &mut dyn Host,
        thread: ThreadNumber,
        object: u64,
        question: Question,
    ) {
        self.set_stage(thread, Stage::Flush);
        self.end_interval(host, AfterInterval::Ask { thread, object, question });
    }

    //= dsm-protocol.md: pin.1
    /// Pins the pages of a thread's call, until one must be fetched.
    pub(crate) fn continue_pin(&mut self, host: &mut dyn Host, thread: ThreadNumber) {
        while let Some(&Stage::Pin { next, end, is_written }) = self.threads.get(thread.index()) {
            if next == end {
                self.finish(thread, Ok(0));
                return;
            }
            let need = if is_written { Need::Write } else { Need::Read };
            if !self.need(host, next, thread, need) {
                return;
            }
            let found = self.pages.at(next);
            found.pins = found.pins.saturating_add(1);
            self.set_stage(thread, Stage::Pin { next: PageNumber(next.0 + 1), end, is_written });
        }
    }

    /// Notes that the home of one more page of a thread's call is known.
    pub(crate) fn count_down_claim(&mut self, thread: ThreadNumber) {
        if let Some(Stage::Claim(outstanding)) = self.threads.get_mut(thread.index()) {
            *outstanding = outstanding.saturating_sub(1);
            if *outstanding == 0 {
                self.finish(thread, Ok(0));
            }
        }
    }

    //= dsm-protocol.md: atomic.1
    /// Posts an atomic to the home of its page.
    pub(crate) fn post_atomic(
        &mut self,
        host: &mut dyn Host,
        thread: ThreadNumber,
        address: u64,
        operation: AtomicOperation,
    ) {
        let page = page_of(address);
        let Some(home) = self.pages.get(page).home else { return };
        let area = self.area();
        let operation = match operation {
            AtomicOperation::FetchAdd(operand) => Operation::FetchAdd { area, address, operand },
            AtomicOperation::CompareSwap { expected, desired } => {
                Operation::CompareSwap { area, address, expected, desired }
            }
            AtomicOperation::Swap(operand) => Operation::Swap { area, address, operand },
        };
        self.set_stage(thread, Stage::Atomic);
        self.post(host, home, false, Pending::Atomic { thread, page }, operation);
    }

    //= dsm-protocol.md: atomic.2
    /// Handles the result of an atomic: copies of the page lack its change.
    pub(crate) fn handle_atomic(
        &mut self,
        host: &mut dyn Host,
        thread: ThreadNumber,
        page: PageNumber,
        former: u64,
    ) {
        if !is_planted(Planted::HidesAtomic) {
            self.interval.touched.push(page);
            self.invalidate(host, page, None);
        }
        self.finish(thread, Ok(former));
    }
}

/// Returns the misuse of a thread that releases a lock which it does not hold.
fn not_held(lock: u64, holder: Option<ThreadNumber>) -> Misuse {
    match holder {
        Some(ThreadNumber(thread)) => Misuse::HeldBy { lock, thread },
        None => Misuse::NotHeld(lock),
    }
}

/// Returns the page of a byte of the region.
const fn page_of(address: u64) -> PageNumber {
    PageNumber((address / PAGE_BYTES as u64) as u32)
}
