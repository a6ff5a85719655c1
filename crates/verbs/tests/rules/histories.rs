//! Random histories, in which a program, its wire (the transport that carries the work) and the
//! peer act in any order. In each history, posted work must complete exactly once, in order, and
//! with the right status.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;
use verbs::{
    AddressVector, CompletionStatus, Ending, QueuePair, QueuePairState, QueuePairType, SendRequest,
    WorkCompletion,
};
use work::OperationError;

use crate::{Host, attributes, connect, go, receive, send, unsignalled};

/// An action of the program, the wire (the transport) or the peer.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// The program posts a send. If the value is true, the send is signalled.
    Send(bool),
    /// The program posts a receive.
    Receive,
    /// The wire (the transport) takes posted work.
    Drive,
    /// The wire (the transport) carries out this number of the sends that it has taken.
    Carry(usize),
    /// The wire (the transport) carries out this number of the sends that it has taken. Then the
    /// connection ends for this reason.
    End(usize, Ending),
    /// The program polls for at most this number of completions.
    Poll(usize),
    /// The program queries the state of the queue pair.
    Query,
    /// The program moves the queue pair to ERR.
    Fail,
    /// The program resets the queue pair and connects it again.
    Reset,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ending = prop_oneof![
        Just(Ending::ByPeer),
        Just(Ending::Unreachable),
        Just(Ending::Flushed),
        Just(Ending::OperationFailed),
        Just(Ending::DeviceFailed)
    ];
    let step = prop_oneof![
        8 => any::<bool>().prop_map(Step::Send),
        4 => Just(Step::Receive),
        4 => Just(Step::Drive),
        4 => (0..4_usize).prop_map(Step::Carry),
        1 => ((0..4_usize), ending).prop_map(|(done, ending)| Step::End(done, ending)),
        6 => (1..4_usize).prop_map(Step::Poll),
        1 => Just(Step::Query),
        1 => Just(Step::Fail),
        1 => Just(Step::Reset),
    ];
    prop::collection::vec(step, 0..60)
}

/// A send in the model.
#[derive(Clone, Copy, Debug)]
struct Posted {
    id: u64,
    is_signalled: bool,
    is_carried: bool,
}

/// Performs steps with two queue pairs, and compares the completions with a model of the posted
/// work.
struct Model {
    host: Host,
    one: Arc<QueuePair>,
    other: Arc<QueuePair>,
    next_id: u64,
    /// Posted sends for which the program has received no completion.
    sends: Vec<Posted>,
    /// Identifiers of posted receives that have not completed.
    receives: Vec<u64>,
    /// Whether a send that was not carried out has already completed with an error.
    has_failed: bool,
}

impl Model {
    fn new() -> Self {
        let host = Host::new();
        let (one, other) = host.pair();
        host.device.holds.store(true, Ordering::SeqCst);
        let (sends, receives) = (Vec::new(), Vec::new());
        Self { host, one, other, next_id: 0, sends, receives, has_failed: false }
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Send(is_signalled) => self.send(is_signalled),
            Step::Receive => {
                let id = self.new_id();
                if self.one.post_receive(&[receive(id, &[])]).is_ok() {
                    self.receives.push(id);
                }
            }
            Step::Drive => {
                let mut none = [];
                let found = self.host.queue.poll(&mut none);
                assert_eq!(found, Ok(0));
            }
            Step::Carry(count) => self.carry(count),
            Step::End(count, ending) => {
                self.carry(count);
                self.host.device.end(&self.one, 0, ending, OperationError::EndedByPeer);
            }
            Step::Poll(count) => {
                let mut some = vec![WorkCompletion::NOTHING; count];
                let found = self.host.queue.poll(&mut some).expect("it can be polled");
                some.truncate(found);
                for completion in some {
                    self.check(completion);
                }
            }
            Step::Query => {
                self.one.query().expect("what it is like");
            }
            Step::Fail => go(&self.one, QueuePairState::Error, 0),
            Step::Reset => {
                for queue_pair in [&self.one, &self.other] {
                    go(queue_pair, QueuePairState::Reset, 0);
                }
                connect(&self.one, &self.other);
                (self.sends, self.receives, self.has_failed) = (Vec::new(), Vec::new(), false);
            }
        }
    }

    fn new_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    fn send(&mut self, is_signalled: bool) {
        let id = self.new_id();
        let request = if is_signalled { send(id, &[]) } else { unsignalled(id, &[]) };
        if self.one.post_send(&[request]).is_ok() {
            self.sends.push(Posted { id, is_signalled, is_carried: false });
        }
    }

    fn carry(&mut self, count: usize) {
        let count = count.min(self.host.device.held(&self.one));
        self.host.device.carry(&self.one, count);
        self.sends
            .iter_mut()
            .filter(|posted| !posted.is_carried)
            .take(count)
            .for_each(|posted| posted.is_carried = true);
    }

    fn check(&mut self, completion: WorkCompletion) {
        assert_eq!(completion.queue_pair, self.one.number());
        if self.receives.first() == Some(&completion.id) {
            assert_eq!(completion.status, CompletionStatus::Flushed);
            self.receives.remove(0);
            return;
        }
        let at = self.sends.iter().position(|posted| posted.id == completion.id);
        let at = at.unwrap_or_else(|| {
            panic!("{completion:?} matches no posted send; remaining receives: {:?}", self.receives)
        });
        for quiet in self.sends.drain(..at) {
            assert!(
                quiet.is_carried && !quiet.is_signalled,
                "{quiet:?} has no completion, although it was signalled or not carried out"
            );
        }
        let posted = self.sends.remove(0);
        match completion.status {
            CompletionStatus::Success => assert!(posted.is_carried && posted.is_signalled),
            CompletionStatus::TransportRetryExceeded => {
                assert!(!posted.is_carried && !self.has_failed);
                self.has_failed = true;
            }
            CompletionStatus::Flushed => {
                assert!(!posted.is_carried, "{posted:?} was flushed, although it was carried out");
                self.has_failed = true;
            }
            status => panic!("{status:?}"),
        }
    }

    /// Checks that a final transition to ERR flushes all remaining work.
    fn end(mut self) {
        self.step(Step::Fail);
        for _ in 0..20 {
            self.step(Step::Poll(3));
        }
        assert_eq!(self.receives, Vec::<u64>::new());
        assert!(self.sends.iter().all(|posted| posted.is_carried && !posted.is_signalled));
        for queue_pair in [&self.one, &self.other] {
            queue_pair.destroy().expect("nothing uses it");
        }
        self.host.queue.destroy().expect("nothing uses it");
    }
}

proptest! {
    #[test]
    fn posted_work_is_reported_once_in_order_with_its_result(steps in steps()) {
        let mut model = Model::new();
        for step in steps {
            model.step(step);
        }
        model.end();
    }
}

/// Polls until all threads together have polled `wanted` completions. Returns those that this
/// thread has polled.
fn poll_until(host: &Host, count: &AtomicU64, wanted: u64) -> Vec<(u64, CompletionStatus)> {
    let mut all = Vec::new();
    while count.load(Ordering::SeqCst) < wanted {
        let mut some = [WorkCompletion::NOTHING; 4];
        let found = host.queue.poll(&mut some).expect("it can be polled");
        count.fetch_add(found as u64, Ordering::SeqCst);
        all.extend(some[..found].iter().map(|completion| (completion.id, completion.status)));
    }
    all
}

#[test]
fn concurrent_posting_and_polling_yields_each_completion_once() {
    const EACH: u64 = 300;
    let host = Host::new();
    let (one, other) = host.pair();
    let count = AtomicU64::new(0);
    let results = std::thread::scope(|scope| {
        for thread in 0..3 {
            let (one, other) = (&one, &other);
            scope.spawn(move || {
                for id in thread * EACH..(thread + 1) * EACH {
                    while other.post_receive(&[receive(10_000 + id, &[])]).is_err() {
                        std::thread::yield_now();
                    }
                    while one.post_send(&[send(id, &[])]).is_err() {
                        std::thread::yield_now();
                    }
                }
            });
        }
        let second = scope.spawn(|| poll_until(&host, &count, 6 * EACH));
        let mut all = poll_until(&host, &count, 6 * EACH);
        all.extend(second.join().expect("no panic"));
        all
    });
    let mut ids: Vec<u64> = results.iter().map(|(id, _)| *id).collect();
    ids.sort_unstable();
    let expected = (0..3 * EACH).chain(10_000..10_000 + 3 * EACH);
    assert!(ids.into_iter().eq(expected));
    assert!(results.iter().all(|(_, status)| *status == CompletionStatus::Success));
}

/// An action on a datagram queue pair.
#[derive(Clone, Copy, Debug)]
enum DatagramStep {
    /// The program posts a datagram. If the value is true, the datagram is signalled.
    Send(bool),
    /// The wire (the transport) takes all posted datagrams.
    Drive,
    /// The wire (the transport) sends one of the datagrams that it has taken. The value selects the
    /// datagram.
    Leave(usize),
    /// The program polls for at most this number of completions.
    Poll(usize),
}

fn datagram_steps() -> impl Strategy<Value = Vec<DatagramStep>> {
    let step = prop_oneof![
        4 => any::<bool>().prop_map(DatagramStep::Send),
        2 => Just(DatagramStep::Drive),
        4 => (0..4_usize).prop_map(DatagramStep::Leave),
        3 => (1..4_usize).prop_map(DatagramStep::Poll),
    ];
    prop::collection::vec(step, 0..60)
}

proptest! {
    #[test]
    fn datagrams_sent_in_any_order_complete_in_posting_order(steps in datagram_steps()) {
        let host = Host::new();
        let one = host.queue_pair(QueuePairType::Datagram);
        for state in
            [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend]
        {
            go(&one, state, 0);
        }
        host.device.holds.store(true, Ordering::SeqCst);
        let to = AddressVector { to: attributes(0).path, destination: 1, queue_key: 0 };
        // For each datagram: whether it is signalled, and whether the wire (the transport) has sent
        // it.
        let mut posted: Vec<(bool, bool)> = Vec::new();
        let (mut taken, mut results) = (0, Vec::new());
        let poll = |count: usize, results: &mut Vec<(u64, CompletionStatus)>| {
            let mut some = vec![WorkCompletion::NOTHING; count];
            let found = host.queue.poll(&mut some).expect("it can be polled");
            results.extend(some[..found].iter().map(|results| (results.id, results.status)));
        };
        for step in steps {
            match step {
                DatagramStep::Send(is_signalled) => {
                    let id = posted.len() as u64;
                    let usual = if is_signalled { send(id, &[]) } else { unsignalled(id, &[]) };
                    if one.post_send(&[SendRequest { to: Some(to), ..usual }]).is_ok() {
                        posted.push((is_signalled, false));
                    }
                }
                DatagramStep::Drive => {
                    poll(0, &mut results);
                    taken = posted.len();
                }
                DatagramStep::Leave(which) => {
                    let waits = |number: &usize| !posted[*number].1;
                    if let Some(number) = (0..taken).filter(waits).nth(which) {
                        posted[number].1 = true;
                        host.device.complete(&one, number as u64);
                    }
                }
                DatagramStep::Poll(count) => poll(count, &mut results),
            }
        }
        go(&one, QueuePairState::Error, 0);
        for _ in 0..20 {
            poll(3, &mut results);
        }
        let expected = (0..).zip(&posted).filter_map(|(id, (is_signalled, has_left))| {
            match (is_signalled, has_left) {
                (_, false) => Some((id, CompletionStatus::Flushed)),
                (true, true) => Some((id, CompletionStatus::Success)),
                (false, true) => None,
            }
        });
        prop_assert_eq!(results, expected.collect::<Vec<_>>());
    }
}
