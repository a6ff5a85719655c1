//! Tests of programs that sleep until a completion arrives.

mod ends;

use std::sync::Arc;
use std::thread;

use ends::{End, Program, loopback};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use verbs::{
    Arm, CompletionChannel, CompletionStatus, Error, QueuePairInit, QueuePairLimits,
    QueuePairState, QueuePairType, ReceiveRequest, WorkCompletion,
};

/// A queue pair with a channel for completion events.
struct Sleeper {
    program: Program,
    end: End,
    channel: Arc<CompletionChannel>,
}

impl Sleeper {
    fn new(psn: u32) -> Self {
        let program = Program::new(&loopback());
        let channel = program.context.create_channel().expect("a channel");
        let queue = program.context.create_completion_queue(64, Some(&channel)).expect("a queue");
        let limits = QueuePairLimits {
            sends: 16,
            receives: 16,
            send_pieces: 1,
            receive_pieces: 1,
            inline: 0,
        };
        let init = QueuePairInit {
            service: QueuePairType::Reliable,
            send_queue: Arc::clone(&queue),
            receive_queue: Arc::clone(&queue),
            shared_queue: None,
            limits,
            signals_all: false,
        };
        let queue_pair = program.domain.create_queue_pair(&init).expect("a queue pair");
        let gid = program.context.query_gid(1, 0).expect("the first GID").gid;
        let end = End { queue_pair, queue, gid, index: 0, psn };
        Self { program, end, channel }
    }

    fn pair() -> [Self; 2] {
        let (one, other) = (Self::new(1), Self::new(2));
        one.end.connect(other.end.name());
        other.end.connect(one.end.name());
        [one, other]
    }

    fn arm(&self) {
        self.end.queue.arm(Arm::Next).expect("it is armed");
    }

    /// Sleeps in the library call that returns the event.
    fn sleep_in_call(&self) {
        self.channel.get().expect("an event").acknowledge_events(1);
    }

    /// Sleeps on the descriptor, as an event loop does.
    fn sleep_on_descriptor(&self) {
        loop {
            match self.channel.get() {
                Ok(queue) => return queue.acknowledge_events(1),
                Err(error) => assert_eq!(error, Error::Again),
            }
            let mut wanted = [PollFd::new(self.channel.descriptor(), PollFlags::POLLIN)];
            poll(&mut wanted, PollTimeout::NONE).expect("no signal");
        }
    }

    /// Sleeps until a completion arrives, and returns the completion.
    fn next(&self, sleep: fn(&Self)) -> WorkCompletion {
        loop {
            let mut next = [WorkCompletion::NOTHING];
            if self.end.queue.poll(&mut next) == Ok(1) {
                return next[0];
            }
            self.arm();
            if self.end.queue.poll(&mut next) == Ok(1) {
                return next[0];
            }
            sleep(self);
        }
    }

    /// Exchanges [`ROUNDS`] messages in each direction. If `begins` is true, this end sends first.
    fn exchange(&self, begins: bool, sleep: fn(&Self)) {
        for round in 0..ROUNDS {
            self.end.receive(1, &[self.program.piece(0, 8)]);
            if begins || round > 0 {
                self.end.send(2, self.program.piece(64, 8));
            }
            let wanted = if begins || round > 0 { 2 } else { 1 };
            for _ in 0..wanted {
                assert_eq!(self.next(sleep).status, CompletionStatus::Success);
            }
        }
        if !begins {
            self.end.send(2, self.program.piece(64, 8));
            assert_eq!(self.next(sleep).status, CompletionStatus::Success);
        }
    }
}

/// Number of messages in each direction.
const ROUNDS: u32 = 100;

#[test]
fn threads_sleeping_in_the_call_answer_each_other() {
    let [one, other] = Sleeper::pair();
    thread::scope(|scope| {
        scope.spawn(|| one.exchange(true, Sleeper::sleep_in_call));
        scope.spawn(|| other.exchange(false, Sleeper::sleep_in_call));
    });
}

#[test]
fn threads_sleeping_on_the_descriptor_answer_each_other() {
    let [one, other] = Sleeper::pair();
    for sleeper in [&one, &other] {
        fcntl(sleeper.channel.descriptor(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).expect("a flag");
    }
    thread::scope(|scope| {
        scope.spawn(|| one.exchange(true, Sleeper::sleep_on_descriptor));
        scope.spawn(|| other.exchange(false, Sleeper::sleep_on_descriptor));
    });
}

#[test]
fn a_sleeping_thread_is_woken_when_another_thread_flushes_its_work() {
    let [one, _other] = Sleeper::pair();
    one.end.receive(1, &[]);
    thread::scope(|scope| {
        let sleeping = scope.spawn(|| one.next(Sleeper::sleep_in_call));
        one.end.go(QueuePairState::Error);
        let completion = sleeping.join().expect("no panic");
        assert_eq!((completion.id, completion.status), (1, CompletionStatus::Flushed));
    });
}

#[test]
fn a_sleeping_thread_is_woken_by_local_events() {
    let [one, _other] = Sleeper::pair();
    one.end.go(QueuePairState::Error);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..u64::from(ROUNDS) {
                assert_eq!(one.next(Sleeper::sleep_in_call).id, round);
            }
        });
        for round in 0..u64::from(ROUNDS) {
            while one
                .end
                .queue_pair
                .post_receive(&[ReceiveRequest { id: round, pieces: &[] }])
                .is_err()
            {
                thread::yield_now();
            }
            // Yield the processor, so that the peer mostly sleeps before the next message is sent.
            for _ in 0..100 {
                thread::yield_now();
            }
        }
    });
}
