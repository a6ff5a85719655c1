//! Programs that run with the project's libraries.

use std::fs;
use std::io::Read as _;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use testbed::namespace::are_possible;

use crate::libraries::Libraries;
use crate::network::{Network, Side, UNPRIVILEGED};

/// A program to run.
#[derive(Clone, Debug)]
pub struct Program {
    words: Vec<String>,
    environment: Vec<(String, String)>,
    by_root: bool,
    /// Whether an unprivileged user runs the program, also on loopback.
    is_unprivileged: bool,
    /// The libraries with which the program runs; `None` means the libraries that
    /// [`Libraries::built`] builds.
    libraries: Option<Libraries>,
}

impl Program {
    /// Describes a program by its name or path, and its arguments, separated by spaces.
    pub fn new(program: &str, arguments: &str) -> Self {
        let words = std::iter::once(program).chain(arguments.split_whitespace());
        let words = words.map(str::to_owned).collect();
        Self {
            words,
            environment: Vec::new(),
            by_root: false,
            is_unprivileged: false,
            libraries: None,
        }
    }

    /// Adds an argument. It may contain spaces.
    #[must_use]
    pub fn argument(mut self, argument: &impl ToString) -> Self {
        self.words.push(argument.to_string());
        self
    }

    /// Sets an environment variable of the program.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Runs the program as the user of the test, also in network namespaces. Some programs need
    /// this, because unprivileged users may not run them.
    #[must_use]
    pub const fn by_root(mut self) -> Self {
        self.by_root = true;
        self
    }

    /// Runs the program as an unprivileged user, also on loopback.
    #[must_use]
    pub const fn unprivileged(mut self) -> Self {
        self.is_unprivileged = true;
        self
    }

    /// Runs the program with these libraries instead of those that were built.
    #[must_use]
    pub fn over(mut self, libraries: &Libraries) -> Self {
        self.libraries = Some(libraries.clone());
        self
    }

    /// Returns the environment variables set so far.
    pub fn variables(&self) -> impl Iterator<Item = (&str, &str)> {
        self.environment.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Starts the program on a side of a network, with the libraries.
    ///
    /// # Panics
    /// Panics if the operating system cannot start it.
    pub fn start(&self, network: &Network, side: Side) -> Running {
        let libraries = self.libraries.as_ref().unwrap_or_else(|| Libraries::built());
        let mut variables =
            vec![("LD_LIBRARY_PATH".into(), libraries.folder().display().to_string())];
        if let Some(links) = network.links().filter(|_| self.has_links()) {
            variables.push(("ETHERNOT_LINKS".into(), links.into()));
        }
        variables.push(("LD_PRELOAD".into(), libraries.preload()));
        self.start_with(network, side, &variables)
    }

    /// Returns whether one of the program's devices has links. iWARP devices have none, and the
    /// libraries refuse links that no device uses.
    fn has_links(&self) -> bool {
        let mut devices = self.variables().filter(|(name, _)| *name == "ETHERNOT_DEVICE");
        let has_links = |device: &str| {
            !matches!(device.split_once('='), Some(("iwarp", _))) && device != "iwarp"
        };
        devices.all(|(_, devices)| devices.split(',').any(has_links))
    }

    /// Starts the program without the libraries.
    ///
    /// # Panics
    /// Panics if the operating system cannot start it.
    pub fn start_bare(&self, network: &Network, side: Side) -> Running {
        self.start_with(network, side, &[])
    }

    fn start_with(&self, network: &Network, side: Side, variables: &[(String, String)]) -> Running {
        let mut words = network.prefix(side, self.by_root);
        // `env` sets the variables for the program only, so that the commands before it run without
        // the libraries.
        words.push("env".into());
        words.extend(variables.iter().map(|(name, value)| format!("{name}={value}")));
        if self.is_unprivileged && matches!(network, Network::Loopback) && are_possible() {
            words.extend(UNPRIVILEGED.map(str::to_owned));
        }
        self.start_behind(words)
    }

    /// Returns the words of the command: `env` and the variables, if there are any, then the
    /// program and its arguments.
    pub fn words(&self) -> Vec<String> {
        let variables = self.environment.iter().map(|(name, value)| format!("{name}={value}"));
        let mut words: Vec<_> = variables.collect();
        if !words.is_empty() {
            words.insert(0, "env".into());
        }
        words.extend(self.words.iter().cloned());
        words
    }

    /// Starts the program with an empty standard input, and with `words` before the words of its
    /// command.
    pub(crate) fn start_behind(&self, words: Vec<String>) -> Running {
        self.start_reading(words, Stdio::null())
    }

    /// Starts the program like [`Self::start_behind`], with a standard input that has no bytes and
    /// does not end while the program runs.
    pub(crate) fn start_with_open_input(&self, words: Vec<String>) -> Running {
        self.start_reading(words, Stdio::piped())
    }

    fn start_reading(&self, mut words: Vec<String>, input: Stdio) -> Running {
        words.extend(self.words());
        let shown = self.words.join(" ");
        let (output, inherited) = UnixStream::pair().expect("a pair of sockets");
        output.shutdown(Shutdown::Write).expect("its own end");
        let error = inherited.try_clone().expect("a descriptor");
        let child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(input)
            .stdout(Stdio::from(std::os::fd::OwnedFd::from(inherited)))
            .stderr(Stdio::from(std::os::fd::OwnedFd::from(error)))
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{shown}: {error}"));
        let said = Arc::new(Mutex::new(Vec::new()));
        let text = Arc::clone(&said);
        let reader = thread::spawn(move || {
            let (mut output, mut part) = (output, [0; 4096]);
            // Read until the last process that has the other end of the pipe has ended. The read
            // then returns 0.
            while let Ok(bytes @ 1..) = output.read(&mut part) {
                text.lock().expect("no thread panics while holding it").extend(&part[..bytes]);
            }
        });
        Running { child: Some(child), reader: Some(reader), said, shown, started: Instant::now() }
    }

    /// Runs the program with the libraries and waits until it ends.
    pub fn run(&self, network: &Network, side: Side) -> Finished {
        self.start(network, side).finish()
    }

    /// Runs the program without the libraries and waits until it ends.
    pub fn run_bare(&self, network: &Network, side: Side) -> Finished {
        self.start_bare(network, side).finish()
    }

    /// Runs this program as the server, and `client` when the server listens on the TCP port
    /// `port`. Appends the server's address to the arguments of the client. Returns both results,
    /// the server's first.
    pub fn run_pair(&self, client: &Self, network: &Network, port: u16) -> [Finished; 2] {
        let mut server = self.start(network, Side::Server);
        server.wait_for_listener(port);
        let client = client.clone().argument(&network.server_address()).run(network, Side::Client);
        [server.finish_after(&client), client]
    }
}

/// A started program. Dropping this value kills the program's whole process group.
#[derive(Debug)]
pub struct Running {
    child: Option<Child>,
    reader: Option<thread::JoinHandle<()>>,
    said: Arc<Mutex<Vec<u8>>>,
    shown: String,
    started: Instant,
}

impl Running {
    /// Returns the process ID, which is also the process group ID.
    ///
    /// # Panics
    /// Panics if [`Self::finish`] was called before.
    pub fn id(&self) -> u32 {
        self.child.as_ref().expect("it was not waited for").id()
    }

    /// Waits until a program in the network namespace of this program listens on the TCP port
    /// `port`, or until this program has ended.
    ///
    /// # Panics
    /// Panics if that takes longer than five minutes.
    pub fn wait_for_listener(&mut self, port: u16) {
        self.wait_for_port(port, "tcp", "0A");
    }

    /// Waits until a program in the network namespace of this program has bound the UDP port
    /// `port`, or until this program has ended.
    ///
    /// # Panics
    /// Panics if that takes longer than five minutes.
    pub fn wait_for_datagrams(&mut self, port: u16) {
        self.wait_for_port(port, "udp", "07");
    }

    /// Waits until the program listens on a port of the connection manager, or has ended.
    ///
    /// # Panics
    /// Panics if that takes longer than five minutes.
    pub fn wait_for_manager_port(&mut self, port: u16) {
        self.wait_for_port(port, "udp", "07");
        // Also wait until the device has a slot, which is a range of queue-pair numbers. The device
        // listens only after it has a slot.
        self.wait_until("does not listen", Self::has_slot);
    }

    /// Waits until the program has printed `wanted`, or has ended.
    ///
    /// # Panics
    /// Panics if that takes longer than five minutes.
    pub fn wait_for_output(&mut self, wanted: &str) {
        self.wait_until("does not say what is waited for", |running| running.has_said(wanted));
    }

    /// Returns whether the program has printed `wanted`.
    ///
    /// # Panics
    /// Panics if the thread that reads the output has panicked.
    pub fn has_said(&self, wanted: &str) -> bool {
        let said = self.said.lock().expect("no thread panics while holding it");
        String::from_utf8_lossy(&said).contains(wanted)
    }

    fn wait_for_port(&mut self, port: u16, protocol: &str, state: &str) {
        self.wait_until("does not listen", |running| {
            running.sockets(protocol).any(|(at, is)| at == port && is == state)
        });
    }

    /// Returns whether a device has a slot (a range of queue-pair numbers) in the program's network
    /// namespace: whether the UDP port of a slot is bound there.
    fn has_slot(&self) -> bool {
        self.sockets("udp").any(|(at, _)| at >= 0xf000)
    }

    /// Returns the ports that are bound in the program's network namespace. Each port has its state
    /// in the form that the kernel prints.
    fn sockets(&self, protocol: &str) -> impl Iterator<Item = (u16, String)> + use<> {
        let table = format!("/proc/{}/net/{protocol}", self.id());
        let tables = [format!("{table}6"), table];
        let text: String =
            tables.iter().filter_map(|table| fs::read_to_string(table).ok()).collect();
        let socket = |line: &str| {
            let mut words = line.split_whitespace().skip(1);
            let (_, port) = words.next()?.rsplit_once(':')?;
            Some((u16::from_str_radix(port, 16).ok()?, words.nth(1)?.to_owned()))
        };
        let sockets: Vec<_> = text.lines().filter_map(socket).collect();
        sockets.into_iter()
    }

    /// Waits until `is_so` returns true, or the program has ended. If this takes too long, panics
    /// with the text `what`.
    ///
    /// # Panics
    /// Panics if the wait takes longer than five minutes.
    pub fn wait_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        while !is_so(self) {
            if self.has_ended() {
                return;
            }
            assert!(self.started.elapsed() < LIMIT, "{}: {what}", self.shown);
            thread::sleep(LOOK);
        }
    }

    fn has_ended(&mut self) -> bool {
        self.child
            .as_mut()
            .is_none_or(|child| child.try_wait().is_ok_and(|status| status.is_some()))
    }

    /// Sends the signal with this name to the program's process group.
    pub fn signal(&self, name: &str) {
        let group = format!("-{}", self.id());
        let kill = Command::new("kill").args([&format!("-{name}"), "--", &group]).output();
        // Ignore errors: the process may have ended already.
        drop(kill);
    }

    /// Sends SIGTERM and waits until the program ends.
    pub fn stop(self) -> Finished {
        self.signal("TERM");
        self.finish()
    }

    /// Waits until the program ends. If the program runs longer than five minutes, kills it and
    /// counts it as failed.
    pub fn finish(self) -> Finished {
        self.finish_within(LIMIT)
    }

    /// Waits until a server ends whose client has ended. If the client has failed, the server gets
    /// less time, because it may wait for another client.
    pub fn finish_after(self, client: &Finished) -> Finished {
        let limit = if client.is_success() { LIMIT } else { self.started.elapsed() + PARTING };
        self.finish_within(limit)
    }

    /// Waits until the program ends. If the program runs longer than `limit`, kills it and counts
    /// it as failed.
    ///
    /// # Panics
    /// Panics if the output of the program cannot be read.
    pub fn finish_within(mut self, limit: Duration) -> Finished {
        while !self.has_ended() && self.started.elapsed() < limit {
            thread::sleep(LOOK);
        }
        let is_late = !self.has_ended();
        let took = self.started.elapsed();
        self.kill();
        let mut child = self.child.take().expect("it is waited for once");
        let status = child.wait().expect("a child can be waited for");
        let reader = self.reader.take().expect("it is read once");
        reader.join().expect("reading does not panic");
        let said =
            std::mem::take(&mut *self.said.lock().expect("no thread panics while holding it"));
        let output = String::from_utf8_lossy(&said).into_owned();
        Finished { shown: std::mem::take(&mut self.shown), status, is_late, output, took }
    }

    fn kill(&self) {
        if self.child.is_some() {
            self.signal("KILL");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
        if let Some(mut child) = self.child.take() {
            let _ = child.wait();
        }
    }
}

/// The result of a program that has ended.
#[derive(Debug)]
pub struct Finished {
    shown: String,
    /// The exit status.
    pub status: ExitStatus,
    /// True if the test killed the program because it took too long.
    pub is_late: bool,
    /// The program's standard output and standard error.
    pub output: String,
    /// How long the program ran.
    pub took: Duration,
}

impl Finished {
    /// Returns whether the program exited with status 0 and was not killed.
    pub fn is_success(&self) -> bool {
        self.status.success() && !self.is_late
    }

    /// Returns the output.
    ///
    /// # Panics
    /// Panics if the program failed.
    #[track_caller]
    pub fn expect_success(&self) -> &str {
        assert!(self.is_success(), "{self}");
        &self.output
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let late = if self.is_late { ", killed as it took too long" } else { "" };
        write!(
            f,
            "`{}`: {}{late}, after {:?}:\n{}",
            self.shown, self.status, self.took, self.output
        )
    }
}

/// Checks that server and client both succeeded.
///
/// # Panics
/// Panics if the server or the client failed. The message contains the output of both.
#[track_caller]
pub fn expect_both(ended: &[Finished; 2]) {
    let [server, client] = ended;
    assert!(server.is_success() && client.is_success(), "server {server}\nclient {client}");
}

/// Longest run of a program; long enough for a busy machine.
const LIMIT: Duration = Duration::from_mins(5);

/// Time that a server has to end by itself after its client has failed. Then the test kills it.
const PARTING: Duration = Duration::from_secs(2);

/// Time between two checks of a process.
const LOOK: Duration = Duration::from_millis(5);
