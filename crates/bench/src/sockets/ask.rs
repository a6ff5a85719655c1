//! The client that uses ordinary sockets. It connects, warms up, and starts to measure when it
//! receives its start signal.

use std::collections::VecDeque;
use std::io::{self, BufRead};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread;
use std::time::Duration;

use super::wire::Wire;
use super::work::{Action, Exchange, Outcome, StreamOutcome, Task, Wanted};
use crate::cpu;
use crate::process::{Line, print_line};
use crate::transport::Latencies;
use testbed::clock::Stopwatch;

/// Runs the client process. A line on standard input is the start signal. The process ends after
/// its connections are closed and its input has ended.
pub(crate) fn run(task: &Task) -> Result<(), String> {
    let watch = Watch::start(task)?;
    let watch = &watch;
    let (warm, is_warm) = channel();
    let (done, outcomes) = channel();
    let streams = thread::scope(|scope| {
        let mut starts = Vec::new();
        for _ in 0..task.streams {
            let (start, started) = channel::<()>();
            starts.push(start);
            let (warm, done) = (warm.clone(), done.clone());
            scope.spawn(move || {
                let outcome = stream(task, watch, &warm, &started);
                // Ignore the error: sending fails only if the receiver no longer waits.
                let _ = done.send(outcome.map_err(|error| error.to_string()));
            });
        }
        drop((warm, done));
        measure(&starts, &is_warm, &outcomes)
    })?;
    print_line(&Line::Done(streams))?;
    // Waits until the input, or the parent, ends.
    let _ = io::stdin().lock().lines().next();
    Ok(())
}

/// Starts all threads at the same time, after all threads have warmed up and the parent has sent
/// the start signal.
fn measure(
    starts: &[Sender<()>],
    is_warm: &Receiver<()>,
    outcomes: &Receiver<Result<StreamOutcome, String>>,
) -> Result<Outcome, String> {
    let failure = || match outcomes.try_recv() {
        Ok(Err(message)) => message,
        _ => "a connection could not be made".to_string(),
    };
    for _ in 0..starts.len() {
        is_warm.recv().map_err(|_| failure())?;
    }
    print_line(&Line::Warm)?;
    if io::stdin().lock().lines().next().is_none() {
        return Err("the parent process has ended".to_string());
    }
    let cpu_seconds = || cpu::process_seconds().map_err(|error| format!("read CPU time: {error}"));
    let before = cpu_seconds()?;
    for start in starts {
        start.send(()).map_err(|_| failure())?;
    }
    let streams = outcomes.iter().take(starts.len()).collect::<Result<Vec<_>, _>>()?;
    Ok(Outcome { streams, cpu_seconds: cpu_seconds()? - before })
}

/// Runs one connection from its set-up to its end. For [`Action::Connect`], runs one connection
/// after another.
fn stream(
    task: &Task,
    watch: &Watch,
    warm: &Sender<()>,
    started: &Receiver<()>,
) -> io::Result<StreamOutcome> {
    if task.action == Action::Connect {
        return connections(task, warm, started);
    }
    let wire = Wire::new(TcpStream::connect(task.server)?, task.style)?;
    let mut client = Client { wire, message: vec![1; task.message_bytes as usize] };
    let warm_up = Duration::from_secs_f64((task.seconds * WARM_UP_SHARE).max(WARM_UP_SECONDS_MIN));
    let way_of_a_byte = client.way_of_a_byte(warm_up / 2)?;
    let rate = client.rate(task.action, warm_up / 2)?;
    let count = task.iterations.unwrap_or((rate * task.seconds).ceil().max(1.0) as u64);
    watch.extend(count as f64 / rate);
    wait(warm, started)?;
    let until = Duration::from_secs_f64(task.seconds);
    match task.action {
        Action::PingPong => client.ping_pong(Some(count), until),
        Action::PingPongUntil => client.ping_pong(None, until),
        Action::Send => client.send(count, way_of_a_byte),
        Action::SendUntil => client.send_until(until, way_of_a_byte),
        Action::ReceiveUntil => client.receive_until(until),
        Action::Connect => connections(task, warm, started),
    }
}

fn wait(warm: &Sender<()>, started: &Receiver<()>) -> io::Result<()> {
    let gone = || io::Error::other("the parent process has ended");
    warm.send(()).map_err(|_| gone())?;
    started.recv().map_err(|_| gone())
}

struct Client {
    wire: Wire,
    message: Vec<u8>,
}

impl Client {
    fn ask(&mut self, exchange: Exchange, message_bytes: u64, count: u64) -> io::Result<()> {
        self.wire.write_all(&Wanted { exchange, message_bytes, count }.encoded())
    }

    fn bytes(&self) -> u64 {
        self.message.len() as u64
    }

    /// Returns the one-way time of one byte, in seconds. Measures exchanges of one byte for the
    /// time `limit`. The result is also the time that the answer at the end of a stream takes.
    fn way_of_a_byte(&mut self, limit: Duration) -> io::Result<f64> {
        let (mut rounds, mut byte) = (0_u64, [1]);
        let clock = Stopwatch::start();
        while rounds < ROUNDS_MIN || !clock.has_passed(limit) {
            self.ask(Exchange::Echo, 1, ROUNDS)?;
            for _ in 0..ROUNDS {
                self.wire.write_all(&byte)?;
                self.wire.read_answer(&mut byte)?;
            }
            rounds += ROUNDS;
        }
        Ok(clock.elapsed_seconds() / rounds as f64 / 2.0)
    }

    /// Returns the operations per second. Measures exchanges of growing length until an exchange
    /// takes at least a third of `limit`. This also warms up the connection for actions that run
    /// for a time, and not for a fixed number of operations.
    fn rate(&mut self, action: Action, limit: Duration) -> io::Result<f64> {
        let mut count = 1;
        loop {
            let clock = Stopwatch::start();
            match action {
                Action::PingPong | Action::PingPongUntil => {
                    self.ping_pong(Some(count), limit)?;
                }
                Action::Send | Action::SendUntil => {
                    self.send(count, 0.0)?;
                }
                Action::ReceiveUntil => {
                    self.ask(Exchange::Give, self.bytes(), count)?;
                    for _ in 0..count {
                        self.wire.read_answer(&mut self.message)?;
                    }
                }
                Action::Connect => {}
            }
            let seconds = clock.elapsed_seconds();
            if clock.has_passed(limit / 3) {
                return Ok(count as f64 / seconds);
            }
            count *= 2;
        }
    }

    /// Runs `count` round trips. If `count` is `None`, runs round trips until `until` has passed.
    fn ping_pong(&mut self, count: Option<u64>, until: Duration) -> io::Result<StreamOutcome> {
        let mut latencies = Latencies::new();
        self.ask(Exchange::Echo, self.bytes(), count.unwrap_or(Wanted::ENDLESS))?;
        let (clock, mut rounds) = (Stopwatch::start(), 0);
        while count.map_or_else(|| !clock.has_passed(until), |count| rounds < count) {
            let round = Stopwatch::start();
            self.wire.write_all(&self.message)?;
            self.wire.read_answer(&mut self.message)?;
            latencies.record_ns(round.elapsed_ns() / 2);
            rounds += 1;
        }
        Ok(StreamOutcome {
            operations: rounds,
            bytes: rounds * self.bytes() * 2,
            seconds: clock.elapsed_seconds(),
            latency_ns: latencies.summary(),
            first_answer_ns: None,
        })
    }

    /// Sends `count` messages. The measured time ends when the answer to the last message arrives.
    /// The answer's one-way time is subtracted.
    fn send(&mut self, count: u64, way_of_a_byte: f64) -> io::Result<StreamOutcome> {
        self.ask(Exchange::Take, self.bytes(), count)?;
        let clock = Stopwatch::start();
        for _ in 0..count {
            self.wire.write_all(&self.message)?;
        }
        self.answered(clock, count, way_of_a_byte)
    }

    /// Sends messages until `until` has passed, and then ends the stream. When the server reads the
    /// end of the stream, it answers with one byte.
    fn send_until(&mut self, until: Duration, way_of_a_byte: f64) -> io::Result<StreamOutcome> {
        self.ask(Exchange::Take, self.bytes(), Wanted::ENDLESS)?;
        let (clock, mut count) = (Stopwatch::start(), 0);
        while !clock.has_passed(until) {
            self.wire.write_all(&self.message)?;
            count += 1;
        }
        self.wire.stream().shutdown(Shutdown::Write)?;
        self.answered(clock, count, way_of_a_byte)
    }

    fn answered(&mut self, clock: Stopwatch, count: u64, way: f64) -> io::Result<StreamOutcome> {
        self.wire.read_answer(&mut [0])?;
        let seconds = clock.elapsed_seconds();
        Ok(StreamOutcome {
            operations: count,
            bytes: count * self.bytes(),
            // Limit the subtracted time, because it is too long if the machine was busy while the
            // one-way time was measured.
            seconds: seconds - way.min(seconds / 2.0),
            latency_ns: None,
            first_answer_ns: None,
        })
    }

    /// Receives messages until `until` has passed.
    fn receive_until(&mut self, until: Duration) -> io::Result<StreamOutcome> {
        self.ask(Exchange::Give, self.bytes(), Wanted::ENDLESS)?;
        let mut buffer = vec![0; self.message.len().max(RECEIVE_BYTES)];
        let (clock, mut bytes) = (Stopwatch::start(), 0);
        while !clock.has_passed(until) {
            match self.wire.read(&mut buffer)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                more => bytes += more as u64,
            }
        }
        Ok(StreamOutcome {
            operations: bytes / self.bytes(),
            bytes,
            seconds: clock.elapsed_seconds(),
            latency_ns: None,
            first_answer_ns: None,
        })
    }
}

/// Opens connections for the time in `task`. The last [`OPEN_MAX`] connections stay open while the
/// next ones are opened, because real programs also have several open connections.
fn connections(
    task: &Task,
    warm: &Sender<()>,
    started: &Receiver<()>,
) -> io::Result<StreamOutcome> {
    let mut open = VecDeque::new();
    let mut connect = |calls: &mut Latencies, answers: &mut Latencies| -> io::Result<()> {
        let clock = Stopwatch::start();
        let stream = TcpStream::connect(task.server)?;
        calls.record_ns(clock.elapsed_ns());
        let wire = Wire::new(stream, task.style)?;
        let mut client = Client { wire, message: Vec::new() };
        client.ask(Exchange::Echo, 1, 1)?;
        client.wire.write_all(&[1])?;
        client.wire.read_answer(&mut [0])?;
        answers.record_ns(clock.elapsed_ns());
        open.push_back(client);
        if open.len() > OPEN_MAX {
            open.pop_front();
        }
        Ok(())
    };
    let (mut calls, mut answers) = (Latencies::new(), Latencies::new());
    for _ in 0..OPEN_MAX {
        connect(&mut calls, &mut answers)?;
    }
    wait(warm, started)?;
    calls.clear();
    answers.clear();
    let until = Duration::from_secs_f64(task.seconds);
    let (clock, mut made) = (Stopwatch::start(), 0);
    while made < CONNECTIONS_MAX && !clock.has_passed(until) {
        connect(&mut calls, &mut answers)?;
        made += 1;
    }
    Ok(StreamOutcome {
        operations: made,
        bytes: made * 2,
        seconds: clock.elapsed_seconds(),
        latency_ns: calls.summary(),
        first_answer_ns: answers.summary(),
    })
}

/// Ends the process if it takes too long, because blocking sockets have no time limit.
struct Watch(Sender<Duration>);

impl Watch {
    fn start(task: &Task) -> Result<Self, String> {
        let mut limit = Duration::from_secs_f64(task.seconds) + PATIENCE;
        let (extend, limits) = channel();
        let watch = move || {
            loop {
                match limits.recv_timeout(limit) {
                    Ok(longer) => limit = limit.max(longer),
                    // The owner has dropped the sender, which ends the watch.
                    Err(RecvTimeoutError::Disconnected) => return,
                    Err(RecvTimeoutError::Timeout) => break,
                }
            }
            let seconds = limit.as_secs();
            // Writing fails only if the parent has ended.
            let _ = print_line(&Line::Failed(format!("no result within {seconds} s")));
            std::process::exit(1);
        };
        let thread = thread::Builder::new().name("watch".to_string()).spawn(watch);
        thread.map_err(|error| format!("start a thread: {error}"))?;
        Ok(Self(extend))
    }

    /// Extends the limit to [`SLOWER`] times `seconds` from now, plus [`PATIENCE`]. `seconds` is
    /// the time that the next operations are expected to take.
    fn extend(&self, seconds: f64) {
        let limit = Duration::try_from_secs_f64(seconds * SLOWER).unwrap_or(Duration::MAX);
        // Sending cannot fail, because the thread receives as long as this value exists.
        let _ = self.0.send(limit.saturating_add(PATIENCE));
    }
}

/// Length of a warm-up relative to the recorded part, as in other tests, and the shortest length of
/// a warm-up in seconds. During the warm-up, the library moves connections to the edge.
const WARM_UP_SHARE: f64 = 0.4;
const WARM_UP_SECONDS_MIN: f64 = 0.06;

/// Number of exchanges of one byte in one request, and the smallest number of exchanges in one
/// measurement of the one-way time.
const ROUNDS: u64 = 8;
const ROUNDS_MIN: u64 = 64;

/// Number of connections that stay open while others are made.
const OPEN_MAX: usize = 16;

/// Highest number of connections in a sample. The port of a closed connection stays unusable for a
/// minute. There are about 28,000 ports, and 16 samples of this size use half of them.
const CONNECTIONS_MAX: u64 = 800;

/// Size of the receive buffer, in bytes: the same as at the server.
const RECEIVE_BYTES: usize = 256 << 10;

/// Factor by which a busy machine may be slower after the warm-up than during the warm-up.
const SLOWER: f64 = 8.0;

/// Additional time limit, much longer than connecting and warming up take.
const PATIENCE: Duration = Duration::from_secs(20);
