//! Two processes with one endpoint each, connected over loopback. They execute commands of the
//! test. The test also measures and stops them.

mod late_timers;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use ethernot::{
    Buffer, Completion, CompletionKind, ConnectOptions, Connection, Endpoint, EngineConfig,
    OperationOptions, Polling, RemoteRegion, Rights, WaitError,
};
use nix::sys::signal::{Signal, kill};
use nix::time::{clock_getcpuclockid, clock_gettime};
use nix::unistd::Pid;

use crate::copy;

/// Limit of waits. It is far longer than any step of a test, and only limits the time of a failing
/// test.
pub(crate) const LIMIT: Duration = Duration::from_mins(1);

/// A process with an endpoint. Dropping this value kills it.
pub(crate) struct End {
    process: Child,
    commands: ChildStdin,
    answers: Receiver<String>,
}

/// Resources that the threads of a process have used.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Processor time of all threads.
    pub(crate) processor: Duration,
    /// Number of sleeps of all threads.
    pub(crate) sleeps: u64,
    /// Number of preemptions of all threads.
    pub(crate) preemptions: u64,
}

impl std::ops::Sub for Usage {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            processor: self.processor.saturating_sub(before.processor),
            // When a thread ends, the kernel drops its counts, so a difference could be negative.
            sleeps: self.sleeps.saturating_sub(before.sleeps),
            preemptions: self.preemptions.saturating_sub(before.preemptions),
        }
    }
}

impl End {
    /// Starts a process that is a copy of the test `name`. Its command begins with the words in
    /// `launcher`, for example a `taskset` command. The copy calls [`obey`] with `setting`.
    pub(crate) fn start(launcher: &[&str], name: &str, setting: &str) -> Self {
        let mut command = copy::command(launcher, name, setting);
        let mut process = command.stdin(Stdio::piped()).spawn().expect("a copy of this test");
        let commands = process.stdin.take().expect("a pipe");
        let lines = BufReader::new(process.stdout.take().expect("a pipe")).lines();
        let (sender, answers) = channel();
        thread::spawn(move || {
            for answer in lines.map_while(Result::ok).filter_map(|line| copy::said(&line)) {
                // Ignore the error: the receiver is gone if the test has failed.
                let _sent = sender.send(answer);
            }
        });
        Self { process, commands, answers }
    }

    /// Sends a command. The [answer](End::answer) arrives when the process has executed the
    /// command.
    pub(crate) fn begin(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("the process is there");
    }

    /// Waits for the answer to a command.
    ///
    /// # Panics
    /// Panics if there is no answer within [`LIMIT`].
    pub(crate) fn answer(&self) -> String {
        let answer = self.answers.recv_timeout(LIMIT);
        answer.unwrap_or_else(|error| panic!("no answer of process {}: {error}", self.process.id()))
    }

    pub(crate) fn run(&mut self, command: &str) -> String {
        self.begin(command);
        self.answer()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(self.pid(), signal).expect("a child of ours");
    }

    pub(crate) fn usage(&self) -> Usage {
        let clock = clock_getcpuclockid(self.pid()).expect("it is there");
        let processor = clock_gettime(clock).expect("it is there").into();
        let mut usage = Usage { processor, sleeps: 0, preemptions: 0 };
        let threads = fs::read_dir(format!("/proc/{}/task", self.process.id())).expect("procfs");
        for thread in threads {
            let path = thread.expect("procfs").path().join("status");
            // The file is missing if the thread has just ended.
            let status = fs::read_to_string(path).unwrap_or_default();
            let count = |name: &str| {
                let line = status.lines().find_map(|line| line.strip_prefix(name));
                line.map_or(0, |count| count.trim().parse().expect("a number"))
            };
            usage.sleeps += count("voluntary_ctxt_switches:");
            usage.preemptions += count("nonvoluntary_ctxt_switches:");
        }
        usage
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.process.id().cast_signed())
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // Both calls fail only if the process has already ended.
        let _killed = self.process.kill();
        let _ended = self.process.wait();
    }
}

/// Connects the first process to the second.
pub(crate) fn connect(ends: &mut [End; 2]) {
    let [client, server] = ends;
    let address = server.run("listen");
    server.begin("accept");
    client.run(&format!("connect {address}"));
    server.answer();
}

/// Runs in a copy of a test: executes commands until its input ends. `setting` is `ADAPTIVE`,
/// `NEVER` or `ALWAYS`, and may be followed by `LATE`.
pub(crate) fn obey(setting: &str) {
    let (setting, is_late) = match setting.split_once(' ') {
        Some((setting, "LATE")) => (setting, true),
        _ => (setting, false),
    };
    if is_late {
        late_timers::have_late_timers().expect("Linux has filters of system calls");
    }
    let polling = match setting {
        "ADAPTIVE" => Polling::ADAPTIVE,
        "NEVER" => Polling::NEVER,
        "ALWAYS" => Polling::ALWAYS,
        other => panic!("no such setting: {other}"),
    };
    // A connection must survive even the longest stall of a busy machine.
    let engine = EngineConfig::default().silence_budget_ns(LIMIT.as_nanos() as u64);
    let builder = Endpoint::builder().bind("127.0.0.1:0").engine(engine).polling(polling);
    let endpoint = builder.build().expect("an endpoint on loopback");
    let rights = Rights::LOCAL_WRITE.union(Rights::REMOTE_WRITE);
    let region = endpoint.register(Buffer::new(BYTES), rights).expect("memory is registered");
    let (mut listener, mut connected) = (None, None::<(Connection, RemoteRegion)>);
    for line in std::io::stdin().lines().map_while(Result::ok) {
        let words: Vec<_> = line.split(' ').collect();
        match (&*words, &connected) {
            (["listen"], _) => {
                listener = Some(endpoint.listen(0).expect("the service is free"));
                let address = endpoint.local_addresses().expect("not forked")[0];
                copy::say(&address.to_string());
            }
            (["accept"], _) => {
                let listener = listener.as_ref().expect("it listens");
                let request = listener.accept(Some(LIMIT)).expect("a request");
                let remote = RemoteRegion::from_bytes(request.private_data()).expect("a region");
                let accepted = request.accept(&region.remote().to_bytes());
                connected = Some((accepted.expect("the peer is there"), remote));
                copy::say("accepted");
            }
            (["connect", address], _) => {
                let own = region.remote().to_bytes();
                let options = ConnectOptions::new().limit(Some(LIMIT)).private_data(own);
                let connection = endpoint.connect_with(*address, options).expect("it accepts");
                let remote = RemoteRegion::from_bytes(&connection.peer_data()).expect("a region");
                connected = Some((connection, remote));
                copy::say("connected");
            }
            (["echo", style], Some((connection, remote))) => {
                let next = Next { connection, polls: *style == "polling" };
                copy::say(&echo(&next, remote).to_string());
            }
            (["ping", style, ms], Some((connection, remote))) => {
                let next = Next { connection, polls: *style == "polling" };
                copy::say(&ping(&next, remote, ms.parse().expect("milliseconds")).to_string());
            }
            (["write", style, ms], Some((connection, remote))) => {
                let next = Next { connection, polls: *style == "polling" };
                let until =
                    Instant::now() + Duration::from_millis(ms.parse().expect("milliseconds"));
                let write = || {
                    let options = OperationOptions::SIGNALLED;
                    let write = connection.write(&region, 0, remote, 0, WRITE_BYTES, options);
                    drop(write.expect("it is posted"));
                };
                copy::say(&stream(&next, until, write).to_string());
            }
            (["silence", style, ms], Some((connection, _))) => {
                let limit = Duration::from_millis(ms.parse().expect("milliseconds"));
                hear_nothing(&Next { connection, polls: *style == "polling" }, limit);
                copy::say("silence");
            }
            (other, _) => panic!("no such command: {other:?}"),
        }
    }
}

/// The way in which a thread waits for its next completion: by polling, or in a call that blocks.
struct Next<'a> {
    connection: &'a Connection,
    polls: bool,
}

impl Next<'_> {
    fn next(&self) -> Completion {
        if !self.polls {
            return self.connection.wait_completion(Some(LIMIT)).expect("it comes");
        }
        loop {
            if let Some(completion) = self.connection.poll().expect("not forked") {
                return completion;
            }
        }
    }

    fn notify(&self, remote: &RemoteRegion, immediate: u32) {
        let options = OperationOptions::NOTIFY.immediate(Some(immediate));
        let write = self.connection.write_bytes(b"x", remote, 0, options);
        drop(write.expect("it is posted"));
    }

    fn notified(&self) -> Option<u32> {
        let completion = self.next();
        assert_eq!(completion.kind, CompletionKind::Notification);
        completion.immediate
    }
}

/// Answers questions up to and including the last one. Returns the number of questions.
fn echo(next: &Next<'_>, remote: &RemoteRegion) -> u32 {
    let mut answered = 0;
    loop {
        let number = next.notified().expect("a number");
        next.notify(remote, number);
        answered += 1;
        if number == LAST {
            return answered;
        }
    }
}

/// Asks questions for `ms` milliseconds, and at least [`OPERATIONS_MIN`] questions. Returns the
/// number of questions.
fn ping(next: &Next<'_>, remote: &RemoteRegion, ms: u64) -> u32 {
    let until = Instant::now() + Duration::from_millis(ms);
    let mut asked = 0;
    loop {
        asked += 1;
        let is_last = asked >= OPERATIONS_MIN && Instant::now() >= until;
        let number = if is_last { LAST } else { asked };
        next.notify(remote, number);
        assert_eq!(next.notified(), Some(number));
        if is_last {
            return asked;
        }
    }
}

/// Writes until `until`, and at least [`OPERATIONS_MIN`] times. Keeps several writes in flight.
/// Returns the number of writes.
fn stream(next: &Next<'_>, until: Instant, write: impl Fn()) -> u32 {
    let (mut posted, mut completed) = (0, 0);
    loop {
        let goes_on = posted < OPERATIONS_MIN || Instant::now() < until;
        while goes_on && posted - completed < IN_FLIGHT {
            write();
            posted += 1;
        }
        if posted == completed {
            return posted;
        }
        assert_eq!(next.next().result, Ok(()));
        completed += 1;
    }
}

/// Waits for `limit`, and panics if a completion arrives in this time.
fn hear_nothing(next: &Next<'_>, limit: Duration) {
    if !next.polls {
        let heard = next.connection.wait_completion(Some(limit));
        assert_eq!(heard, Err(WaitError::TimedOut { limit }));
        return;
    }
    let until = Instant::now() + limit;
    while Instant::now() < until {
        assert_eq!(next.connection.poll(), Ok(None));
    }
}

/// Number of operations that shows progress. It is small, because each operation may take several
/// time slices of the kernel.
const OPERATIONS_MIN: u32 = 10;

/// Number of writes that a stream keeps in flight.
const IN_FLIGHT: u32 = 8;

const WRITE_BYTES: u64 = 64 << 10;

const BYTES: u64 = WRITE_BYTES;

/// The immediate that marks the last question.
const LAST: u32 = u32::MAX;
