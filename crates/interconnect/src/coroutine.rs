//! Runs programs of ranks that are asynchronous functions, with calls like those of MPI.
//!
//! ```
//! use interconnect::configuration::Configuration;
//! use interconnect::coroutine::{ANY, Coroutines, Rank};
//!
//! async fn program(mpi: Rank) {
//!     match mpi.number() {
//!         0 => {
//!             mpi.compute(1_000).await;
//!             mpi.send(1, 64, 7).await;
//!         }
//!         _ => assert_eq!(mpi.recv(ANY, 7).await.from, 0),
//!     }
//! }
//!
//! let cluster = Configuration::parse("cluster", "[topology]\nhosts = 2\n")?;
//! let outcome = cluster.run_workload(Coroutines::new(2, program), 2)?;
//! assert_eq!(outcome.delivered, 1);
//! # Ok::<(), interconnect::configuration::ConfigurationError>(())
//! ```
//!
//! [`Coroutines`] runs ordinary futures one after the other in virtual time. Code between two waits
//! takes no virtual time; [`Rank::compute`] takes the time of its argument. As in MPI, messages
//! from one rank to another are matched in the order of sending, even if the network reorders them.
//! Sends are eager: a send completes when the processor of the sending host has finished its part.
//! A message can carry a value, so that a program can base its decisions on received values.

mod diagnosis;
mod request;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use super::collective::{Collective, Reduction};
use super::matching::{self, Matching};
use super::slab::Slab;
use super::workload::{Action, Actions, NAMELESS, Origin, Received, Workload};
use request::{Request, Requests};

pub use request::{Receiving, Sending};

/// Source or tag of a receive that accepts any source or any tag.
pub const ANY: u32 = matching::ANY;

/// A message that was received.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Message {
    /// Rank that sent the message.
    pub from: u32,
    /// Tag that the sender chose.
    pub tag: u32,
    /// Length of the message, in bytes.
    pub bytes: u32,
    /// Number that the message carries; 0 if the sender gave none.
    pub value: f64,
}

/// How [`Rank::all_reduce`] combines numbers.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Operation {
    /// The sum of the numbers.
    Sum,
    /// The smallest of the numbers.
    Min,
    /// The largest of the numbers.
    Max,
}

/// Handle with which the program of a rank calls the simulator.
#[derive(Clone)]
pub struct Rank {
    number: u32,
    shared: Rc<RefCell<Shared>>,
}

/// A workload of ranks whose programs are asynchronous functions.
pub struct Coroutines {
    /// Program of each rank; `None` after it has ended.
    tasks: Vec<Option<Pin<Box<dyn Future<Output = ()>>>>>,
    running: usize,
    shared: Rc<RefCell<Shared>>,
}

/// State that ranks share with the executor.
struct Shared {
    now_ps: u64,
    /// Actions that the running rank requests.
    actions: Vec<Action>,
    /// Messages in flight. The tag of a simulated message is an index of this slab.
    flights: Slab<Flight>,
    ranks: Vec<State>,
}

#[derive(Clone, Copy, Debug)]
struct Flight {
    message: Message,
    /// Number of messages that the sender sent to this receiver earlier.
    number: u64,
    channel: Channel,
}

/// Kind of a message. Messages of programs never match those of collectives.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Channel {
    Program,
    Collective,
}

/// State of a rank.
#[derive(Default)]
struct State {
    requests: Requests,
    program: Matching<Message>,
    collective: Matching<Message>,
    /// Number of messages sent to each rank.
    sent: BTreeMap<u32, u64>,
    /// For each sender, how many of its messages were passed to matching. The messages of a sender
    /// are passed to matching in the order of sending.
    received: BTreeMap<u32, u64>,
    /// Messages that overtook an earlier message of the same sender in the network. The key is the
    /// sender and the message's number.
    early: BTreeMap<(u32, u64), Flight>,
    /// Number of steps that the rank has started in all collectives.
    steps: u32,
}

impl Rank {
    /// Returns the number of this rank, from 0.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> u32 {
        self.shared.borrow().ranks.len() as u32
    }

    /// Returns the time, in picoseconds since the start of the run.
    pub fn now_ps(&self) -> u64 {
        self.shared.borrow().now_ps
    }

    /// Occupies the processor for `time_ns` nanoseconds. If the processor has other work, the time
    /// begins when this work ends.
    pub async fn compute(&self, time_ns: u64) {
        self.begin_computing(time_ns.saturating_mul(1_000)).await;
    }

    /// Sends a message, and waits until the processor has finished the send.
    ///
    /// # Panics
    /// Panics if there is no rank `to`, or the tag is [`ANY`].
    pub async fn send(&self, to: u32, bytes: u32, tag: u32) {
        self.isend(to, bytes, tag).await;
    }

    /// Sends a message as [`Self::send`] does. The message carries the number `value`.
    ///
    /// # Panics
    /// Panics if there is no rank `to`, or the tag is [`ANY`].
    pub async fn send_value(&self, to: u32, bytes: u32, tag: u32, value: f64) {
        self.begin_sending(Channel::Program, to, Message { from: 0, tag, bytes, value }).await;
    }

    /// Receives a message with this source and tag, and waits for it. Source and tag can be
    /// [`ANY`].
    ///
    /// # Panics
    /// Panics if there is no rank `source`.
    pub async fn recv(&self, source: u32, tag: u32) -> Message {
        self.irecv(source, tag).await
    }

    /// Starts to send a message. The program can await the returned request, but need not.
    ///
    /// # Panics
    /// Panics if there is no rank `to`, or the tag is [`ANY`].
    pub fn isend(&self, to: u32, bytes: u32, tag: u32) -> Sending {
        let value = 0.0;
        self.begin_sending(Channel::Program, to, Message { from: 0, tag, bytes, value })
    }

    /// Posts a receive, which the program can await later. If the program drops the returned
    /// request before the message arrives, the receive still consumes the message.
    ///
    /// # Panics
    /// Panics if there is no rank `source`.
    pub fn irecv(&self, source: u32, tag: u32) -> Receiving {
        self.begin_receiving(Channel::Program, source, tag)
    }

    /// Waits for all requests. Returns their results in the order of `requests`.
    pub async fn wait_all<F: Future>(
        &self,
        requests: impl IntoIterator<Item = F>,
    ) -> Vec<F::Output> {
        let mut results = Vec::new();
        for request in requests {
            results.push(request.await);
        }
        results
    }

    /// Waits until all ranks have called this function.
    pub async fn barrier(&self) {
        self.collective(Collective::Barrier { bytes: 1 }).await;
    }

    /// Combines `value` of all ranks, and returns the result to each rank. Uses recursive doubling
    /// with messages of `bytes` bytes, at least 1.
    pub async fn all_reduce(&self, bytes: u32, value: f64, operation: Operation) -> f64 {
        let (bytes, reduction) = (bytes.max(1), Reduction::RecursiveDoubling);
        self.step_through(Collective::AllReduce { bytes, reduction }, value, operation).await
    }

    /// Sends `value` of the rank `root` to all ranks, in messages of `bytes` bytes. Returns this
    /// value at every rank.
    pub async fn broadcast(&self, root: u32, bytes: u32, value: f64) -> f64 {
        self.step_through(Collective::Broadcast { bytes, root }, value, Operation::Sum).await
    }

    /// Performs the given collective. Its messages carry no value for the program. All ranks must
    /// call the same collectives in the same order.
    pub async fn collective(&self, collective: Collective) {
        self.step_through(collective, 0.0, Operation::Sum).await;
    }

    async fn step_through(
        &self,
        collective: Collective,
        mut value: f64,
        operation: Operation,
    ) -> f64 {
        let ranks = self.ranks();
        let steps = collective.steps(ranks);
        let first = {
            let state = &mut self.shared.borrow_mut().ranks[self.number as usize];
            let first = state.steps;
            // The tag must never be `ANY`.
            state.steps = first.wrapping_add(steps) % ANY;
            first
        };
        for number in 0..steps {
            let step = collective.step(ranks, self.number, number);
            let tag = first.wrapping_add(number) % ANY;
            let message = Message { from: 0, tag, bytes: step.bytes, value };
            let peers = step.to.of(ranks, self.number);
            let sends: Vec<Sending> =
                peers.map(|to| self.begin_sending(Channel::Collective, to, message)).collect();
            for from in step.from.of(ranks, self.number) {
                let got = self.begin_receiving(Channel::Collective, from, tag).await.value;
                value = match step.reduced_bytes {
                    0 => got,
                    _ => operation.apply(value, got),
                };
            }
            self.wait_all(sends).await;
        }
        value
    }

    fn begin_computing(&self, time_ps: u64) -> Sending {
        let mut shared = self.shared.borrow_mut();
        let slot = shared.ranks[self.number as usize].requests.begin();
        shared.actions.push(Action::Compute { time_ps, tag: slot });
        drop(shared);
        Sending(Request::new(self, slot))
    }

    fn begin_sending(&self, channel: Channel, to: u32, message: Message) -> Sending {
        assert!(to < self.ranks(), "there is no rank {to}, only 0 to {}", self.ranks() - 1);
        assert_ne!(message.tag, ANY, "a message has one tag");
        let mut shared = self.shared.borrow_mut();
        let sent = shared.ranks[self.number as usize].sent.entry(to).or_default();
        let number = *sent;
        *sent += 1;
        let message = Message { from: self.number, ..message };
        let tag = shared.flights.insert(Flight { message, number, channel });
        let (bytes, origin) = (message.bytes, Origin::default());
        shared.actions.push(Action::Send { to, bytes, tag, name: NAMELESS, origin });
        drop(shared);
        // The send is complete when this computation of length 0 ends, because the processor starts
        // the computation only after the send.
        self.begin_computing(0)
    }

    fn begin_receiving(&self, channel: Channel, source: u32, tag: u32) -> Receiving {
        let ranks = self.ranks();
        assert!(
            source == ANY || source < ranks,
            "there is no rank {source}, only 0 to {}",
            ranks - 1
        );
        let mut shared = self.shared.borrow_mut();
        let state = &mut shared.ranks[self.number as usize];
        let slot = state.requests.begin();
        if let Some(message) = state.matching(channel).receive(source, tag, slot) {
            state.requests.end(slot, message);
        }
        drop(shared);
        Receiving(Request::new(self, slot))
    }
}

impl Operation {
    fn apply(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Sum => a + b,
            Self::Min => a.min(b),
            Self::Max => a.max(b),
        }
    }
}

impl State {
    fn matching(&mut self, channel: Channel) -> &mut Matching<Message> {
        match channel {
            Channel::Program => &mut self.program,
            Channel::Collective => &mut self.collective,
        }
    }

    /// Handles the arrival of a message. Passes this message, and the messages that waited for it,
    /// to matching in the order of sending.
    fn arrive(&mut self, flight: Flight) {
        let from = flight.message.from;
        let next = self.received.get(&from).copied().unwrap_or_default();
        if flight.number != next {
            self.early.insert((from, flight.number), flight);
            return;
        }
        let mut current = Some(flight);
        let mut number = next;
        while let Some(Flight { message, channel, .. }) = current {
            let matched = self.matching(channel).arrive(from, message.tag, message);
            if let Some((slot, message)) = matched {
                self.requests.end(slot, message);
            }
            number += 1;
            current = self.early.remove(&(from, number));
        }
        self.received.insert(from, number);
    }
}

impl Coroutines {
    /// Creates `ranks` ranks that all run `program`.
    pub fn new<P, F>(ranks: u32, program: P) -> Self
    where
        P: Fn(Rank) -> F,
        F: Future<Output = ()> + 'static,
    {
        let shared = Rc::new(RefCell::new(Shared {
            now_ps: 0,
            actions: Vec::new(),
            flights: Slab::new(),
            ranks: (0..ranks).map(|_| State::default()).collect(),
        }));
        let task = |number| {
            let future: Pin<Box<dyn Future<Output = ()>>> =
                Box::pin(program(Rank { number, shared: Rc::clone(&shared) }));
            Some(future)
        };
        let tasks: Vec<_> = (0..ranks).map(task).collect();
        Self { running: tasks.len(), tasks, shared }
    }

    /// Runs a rank until it waits.
    fn resume(&mut self, rank: u32, actions: &mut Actions) {
        let Some(slot) = self.tasks.get_mut(rank as usize) else { return };
        let Some(task) = slot else { return };
        // Wakers are not needed, because the executor polls a rank whenever the simulation notifies
        // it.
        let mut context = Context::from_waker(Waker::noop());
        if task.as_mut().poll(&mut context) == Poll::Ready(()) {
            *slot = None;
            self.running -= 1;
        }
        actions.list.append(&mut self.shared.borrow_mut().actions);
    }
}

impl Workload for Coroutines {
    fn start(&mut self, rank: u32, actions: &mut Actions) {
        self.resume(rank, actions);
    }

    fn on_wake(&mut self, rank: u32, tag: u32, actions: &mut Actions) {
        let mut shared = self.shared.borrow_mut();
        shared.now_ps = actions.now_ps;
        shared.ranks[rank as usize].requests.end_without_message(tag);
        drop(shared);
        self.resume(rank, actions);
    }

    fn on_received(&mut self, rank: u32, received: Received, actions: &mut Actions) {
        let mut shared = self.shared.borrow_mut();
        shared.now_ps = actions.now_ps;
        let flight = shared.flights.remove(received.tag);
        shared.ranks[rank as usize].arrive(flight);
        drop(shared);
        self.resume(rank, actions);
    }

    fn is_finished(&self) -> bool {
        self.running == 0
    }

    fn awaits(&self) -> String {
        let has_ended: Vec<bool> = self.tasks.iter().map(Option::is_none).collect();
        diagnosis::diagnose(&self.shared.borrow().ranks, &has_ended)
    }
}

#[cfg(test)]
mod tests;
