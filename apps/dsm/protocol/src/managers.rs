//! Messages: locks that travel from node to node, and the objects that this node manages.
//!
//! Messages rather than one-sided operations, for three reasons. The objects are named by any
//! address, and a word of memory for each possible address does not fit. A lock goes from its
//! holder to the next node in one message, and stays with its holder unless another node wants it.
//! A condition variable must queue the waiter, and then release the lock, as one step.

use crate::clock::Clock;
use crate::error::{Failure, Fault, Misuse};
use crate::identity::{Rank, ThreadNumber};
use crate::lock_table::{Leave, LockStep};
use crate::memory::Host;
use crate::message::{Message, Objection, Question};
use crate::node::Node;
use crate::node_state::{AfterAcquire, AfterInterval, Stage};
use crate::objects::Refusal;
use crate::planted::{Planted, is_planted};
use crate::races::Changes;

impl Node {
    /// Handles a message of a node.
    pub(crate) fn handle_message(
        &mut self,
        host: &mut dyn Host,
        from: Rank,
        message: Message,
    ) -> Result<(), Fault> {
        match message {
            Message::LockRequest { lock, clock } => self.queue_lock(host, from, lock, &clock),
            Message::LockForward { lock, to, known } => {
                let step = self.locks.forwarded(lock, to, known).map_err(|_| Fault::Lock(lock))?;
                self.do_lock_step(host, lock, step);
                Ok(())
            }
            Message::LockGrant { lock, clock, notices } => {
                let thread = self.locks.arrived(lock).map_err(|_| Fault::Lock(lock))?;
                if notices.iter().any(|page| !self.pages.has(*page)) {
                    return Err(Fault::Message);
                }
                let notices = Some((from, notices.as_slice()));
                self.acquire(host, clock, notices, AfterAcquire::Finish(thread))
            }
            Message::Ask { object, thread, question, clock } => {
                self.answer(host, (from, thread), object, question, &clock)
            }
            Message::Answer { object, thread, clock } => {
                if from != self.manager(object) {
                    return Err(Fault::Answer(object));
                }
                self.handle_answer(host, thread, object, clock)
            }
            Message::Object { object, thread, objection } => {
                if from != self.manager(object) {
                    return Err(Fault::Answer(object));
                }
                let misuse = match objection {
                    Objection::OtherKind => Misuse::OtherKind(object),
                    Objection::OtherCount => Misuse::OtherCount(object),
                };
                if self.is_asking(thread, object) {
                    self.read_write_locks.remove(&(object, thread));
                    self.finish(thread, Err(misuse.into()));
                } else {
                    self.fail(host, Failure::Misuse(misuse));
                }
                Ok(())
            }
            Message::Changed { page, position, clock, words } => {
                self.detect(page, Changes { rank: from, position, clock, words })
            }
            Message::Dead { .. } => Ok(()),
            Message::Locate { lock, thread } => {
                let holder = self.holder(lock);
                self.send(host, from, &Message::Holder { lock, thread, holder });
                Ok(())
            }
            Message::Holder { lock, thread, holder } => {
                self.handle_holder(from, lock, thread, holder)
            }
        }
    }

    //= dsm-protocol.md: lock.1
    /// Appends a node to the queue of a lock that this node manages.
    fn queue_lock(
        &mut self,
        host: &mut dyn Host,
        from: Rank,
        lock: u64,
        clock: &Clock,
    ) -> Result<(), Fault> {
        if self.manager(lock) != self.me() {
            return Err(Fault::Lock(lock));
        }
        match self.objects.queue(lock, from) {
            Ok(None) => {
                let clock = Clock::zero(usize::from(self.config.nodes));
                let notices = Vec::new();
                self.send(host, from, &Message::LockGrant { lock, clock, notices });
            }
            Ok(Some(last)) => {
                let known = clock.of(last);
                self.send(host, last, &Message::LockForward { lock, to: from, known });
            }
            Err(Refusal::NotHeld) => return Err(Fault::Lock(lock)),
            Err(Refusal::Objection(objection)) => {
                let thread = ThreadNumber(0);
                self.send(host, from, &Message::Object { object: lock, thread, objection });
            }
        }
        Ok(())
    }

    /// Does what a change of a lock asks for.
    pub(crate) fn do_lock_step(&mut self, host: &mut dyn Host, lock: u64, step: LockStep) {
        match step {
            LockStep::None => {}
            LockStep::Request => {
                let manager = self.manager(lock);
                let clock = self.clock.clone();
                self.send(host, manager, &Message::LockRequest { lock, clock });
            }
            LockStep::Granted(thread) => self.finish(thread, Ok(0)),
            LockStep::HandOver if is_planted(Planted::HandsOverEarly) => self.hand_over(host, lock),
            LockStep::HandOver => self.end_interval(host, AfterInterval::HandOver(lock)),
        }
    }

    //= dsm-protocol.md: lock.4
    /// Passes a lock to the next node. The interval has ended.
    pub(crate) fn hand_over(&mut self, host: &mut dyn Host, lock: u64) {
        let Some(Leave { to, known, is_wanted }) = self.locks.pass_on(lock) else { return };
        self.counters.handovers += 1;
        let clock = self.clock.clone();
        let notices = self.last_notices(host, known);
        self.send(host, to, &Message::LockGrant { lock, clock, notices });
        if is_wanted {
            self.do_lock_step(host, lock, LockStep::Request);
        }
    }

    /// Handles a question about an object that this node manages.
    fn answer(
        &mut self,
        host: &mut dyn Host,
        waiter: (Rank, ThreadNumber),
        object: u64,
        question: Question,
        clock: &Clock,
    ) -> Result<(), Fault> {
        let mut woken = Vec::new();
        match self.objects.ask(object, waiter, question, clock, &mut woken) {
            Ok(clock) => {
                let clock = clock.clone();
                for (rank, thread) in woken {
                    let answer = Message::Answer { object, thread, clock: clock.clone() };
                    self.send(host, rank, &answer);
                }
            }
            Err(Refusal::NotHeld) => return Err(Fault::Release(object)),
            Err(Refusal::Objection(objection)) => {
                let (rank, thread) = waiter;
                self.send(host, rank, &Message::Object { object, thread, objection });
            }
        }
        Ok(())
    }

    pub(crate) fn is_asking(&self, thread: ThreadNumber, object: u64) -> bool {
        match self.threads.get(thread.index()) {
            Some(Stage::Object(asked)) => *asked == object,
            Some(Stage::Queue { condition, .. } | Stage::Sleep { condition, .. }) => {
                *condition == object
            }
            _ => false,
        }
    }

    //= dsm-protocol.md: condition.1
    /// Handles the answer to a thread's question. A thread that waits at a condition variable gets
    /// two: it is queued, and it is woken.
    fn handle_answer(
        &mut self,
        host: &mut dyn Host,
        thread: ThreadNumber,
        object: u64,
        clock: Clock,
    ) -> Result<(), Fault> {
        if !self.is_asking(thread, object) {
            return Err(Fault::Answer(object));
        }
        match self.threads.get(thread.index()) {
            Some(&Stage::Queue { condition, lock }) => {
                self.set_stage(thread, Stage::Sleep { condition, lock });
                let step = self.locks.unlock(lock, thread).map_err(|_| Fault::Lock(lock))?;
                self.do_lock_step(host, lock, step);
                Ok(())
            }
            Some(&Stage::Sleep { lock, .. }) => {
                self.set_stage(thread, Stage::Lock);
                let step = self.locks.lock(lock, thread);
                self.do_lock_step(host, lock, step);
                Ok(())
            }
            _ => self.acquire(host, clock, None, AfterAcquire::Finish(thread)),
        }
    }
}
