//! The child processes of a benchmark: how they start and what they run.
//!
//! Each child runs this program with the hidden subcommand [`SUBCOMMAND`] and a [`ChildSpec`] as
//! its argument. The child first enters its network namespace. When the parent ends, the kernel
//! kills the child.

use std::io::{self, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::getppid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use testbed::clock::{self, Stopwatch};
use testbed::{cleanup, namespace};

use crate::busy;
use crate::client::{Client, SampleRequest};
use crate::control::{ControlError, read_line, write_line};
use crate::cpu;
use crate::machine::Machine;
use crate::results::Sample;
use crate::server;
use crate::sockets;
use crate::sockets::work::{Outcome, Serving, Task};
use crate::unmodified::gatherer;
use crate::yardsticks;

/// Name of the hidden subcommand that the program must pass to [`run_child`].
pub const SUBCOMMAND: &str = "bench-process";

/// The task and surroundings of a child process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChildSpec {
    /// The task of the child process.
    pub role: Role,
    /// Name of the network namespace to enter.
    pub namespace: Option<String>,
    /// CPU to which the child is restricted, counted from 0.
    pub cpu: Option<usize>,
    /// Process id of the parent. The child ends when the parent ends.
    pub parent: u32,
    /// Names of the server's links. If empty, the server's transports use the address by which the
    /// client reaches the host.
    #[serde(default)]
    pub links: Vec<String>,
}

/// The kinds of child processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Serves on this address, and reports the port with [`Line::Listening`].
    Server(SocketAddr),
    /// Takes samples against this server.
    Client {
        /// The server's control address.
        server: SocketAddr,
        /// Whether the server runs on this host.
        shares_host: bool,
    },
    /// Keeps processors busy with this number of threads until its standard input is closed.
    Busy(u32),
    /// Replaces the child process by another program, with these words as its command line.
    Tool(Vec<String>),
    /// Gathers the reports of hosts, and prints a summary.
    Gatherer(gatherer::Task),
    /// Serves the requests of [`Role::SocketsClient`] over ordinary sockets.
    SocketsServer(Serving),
    /// Connects, exchanges messages and closes, over ordinary sockets.
    SocketsClient(Task),
}

/// A line on a child's standard output.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    /// The server listens on this address.
    Listening(SocketAddr),
    /// The client has connected to the server.
    Ready {
        /// The client's host.
        client: Machine,
        /// The server's host.
        server: Machine,
        /// Names of the server's transports.
        server_transports: Vec<String>,
    },
    /// The busy threads have started to spin.
    Spinning,
    /// The recorded phase begins.
    Counting,
    /// The answer to a [`SampleRequest`].
    Sample(Sample),
    /// A process with ordinary sockets has connected and warmed up, and waits for its start signal.
    Warm,
    /// The results of a client with ordinary sockets since its start signal.
    Done(Outcome),
    /// CPU seconds of a server with ordinary sockets so far.
    CpuSeconds(f64),
    /// The child's task failed with this error.
    Failed(String),
}

/// Why a child process failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// The child could not be started.
    #[error("start {} as the benchmark's {role}: {source}", program.display())]
    Start {
        /// The executable that could not be started.
        program: PathBuf,
        /// The kind of child.
        role: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
    /// The child reported an error.
    #[error("{role}: {message}")]
    Failed {
        /// The kind of child.
        role: &'static str,
        /// The child's error text.
        message: String,
    },
    /// The child closed its pipe, or sent a malformed line.
    #[error("the benchmark's {role} process ended, or its pipe failed: {source}")]
    Gone {
        /// The kind of child.
        role: &'static str,
        /// The error of the pipe.
        source: ControlError,
    },
    /// The child sent an unexpected line.
    #[error("unexpected line from the benchmark's {role} process: {got}")]
    Unexpected {
        /// The kind of child.
        role: &'static str,
        /// The line that the child sent.
        got: String,
    },
}

/// A running child process. Drop kills it.
#[derive(Debug)]
pub struct ChildProcess {
    role: &'static str,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl ChildProcess {
    /// Starts `program` as a child with the task in `spec`.
    ///
    /// # Errors
    /// Returns [`ProcessError`]; each variant names one cause.
    pub fn start(program: &Path, spec: &ChildSpec) -> Result<Self, ProcessError> {
        let role = match spec.role {
            Role::Server(_) => "server",
            Role::Client { .. } => "client",
            Role::Busy(_) => "busy threads'",
            Role::Tool(_) => "tool",
            Role::Gatherer(_) => "gatherer",
            Role::SocketsServer(_) => "sockets server",
            Role::SocketsClient(_) => "sockets client",
        };
        let failed = |source| ProcessError::Start { program: program.to_path_buf(), role, source };
        let argument = serde_json::to_string(spec).map_err(io::Error::from).map_err(failed)?;
        let mut child = Command::new(program)
            .arg(SUBCOMMAND)
            .arg(argument)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // The child has its own process group, so Ctrl-C does not signal the child. Instead,
            // the parent ends its children in the right order.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        cleanup::register_child(child.id());
        let input = child.stdin.take();
        let output = child.stdout.take().map(BufReader::new);
        let output =
            output.ok_or_else(|| failed(io::Error::other("the process has no output pipe")))?;
        Ok(Self { role, child, input, output })
    }

    /// Writes a line to the child's standard input.
    ///
    /// # Errors
    /// Returns [`ProcessError`]; each variant names one cause.
    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<(), ProcessError> {
        let input =
            self.input.as_mut().ok_or(io::Error::other("the input of the process is closed"));
        input.and_then(|input| write_line(input, message)).map_err(|source| {
            let source = ControlError::Io { attempt: "write to it", source };
            ProcessError::Gone { role: self.role, source }
        })
    }

    /// Waits for a line. If the line is [`Line::Failed`], returns an error.
    ///
    /// # Errors
    /// Returns [`ProcessError`]; each variant names one cause.
    pub fn receive(&mut self) -> Result<Line, ProcessError> {
        match read_line(&mut self.output) {
            Ok(Line::Failed(message)) => Err(ProcessError::Failed { role: self.role, message }),
            Ok(line) => Ok(line),
            Err(source) => Err(ProcessError::Gone { role: self.role, source }),
        }
    }

    /// Closes the child's standard input, which makes the child end. Waits for the end, and kills
    /// the child after `limit`.
    ///
    /// # Errors
    /// Returns [`ProcessError`]; each variant names one cause.
    pub fn finish(mut self, limit: Duration) -> Result<(), ProcessError> {
        self.input = None;
        let gone = |source| ProcessError::Gone {
            role: self.role,
            source: ControlError::Io { attempt: "wait for the end of the process", source },
        };
        let waited = Stopwatch::start();
        loop {
            match self.child.try_wait().map_err(gone)? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    let message = format!("the process ended with {status}");
                    return Err(ProcessError::Failed { role: self.role, message });
                }
                None if waited.has_passed(limit) => {
                    let message =
                        format!("the process did not end within {} s", limit.as_secs_f64());
                    return Err(ProcessError::Failed { role: self.role, message });
                }
                None => clock::sleep_until(clock::monotonic_ns() + LOOK_NS),
            }
        }
    }

    /// Returns the child's process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the error for a line of the wrong kind.
    pub fn unexpected(&self, line: &Line) -> ProcessError {
        ProcessError::Unexpected { role: self.role, got: format!("{line:?}") }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Both calls fail only if the child has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        cleanup::forget_child(self.child.id());
    }
}

/// Runs a child process from start to end. Reports an error to the parent as [`Line::Failed`].
/// Returns whether the child succeeded.
pub fn run_child(spec: &str) -> bool {
    let outcome = parse(spec).and_then(|spec: ChildSpec| {
        enter(&spec)?;
        match spec.role {
            Role::Server(address) => run_server(address, &spec.links),
            Role::Client { server, shares_host } => run_client(server, shares_host),
            Role::Busy(threads) => busy::run(threads),
            Role::Tool(words) => {
                Err(format!("start {words:?}: {}", yardsticks::become_tool(&words)))
            }
            Role::Gatherer(task) => gatherer::run(&task),
            Role::SocketsServer(serving) => sockets::serve::run(serving),
            Role::SocketsClient(task) => sockets::ask::run(&task),
        }
    });
    match outcome {
        Ok(()) => true,
        Err(message) => {
            // Writing fails only if the parent has ended.
            let _ = print_line(&Line::Failed(message));
            false
        }
    }
}

/// Makes this process end with its parent, enter its namespace if `spec` names one, and run on its
/// CPU if `spec` names one.
fn enter(spec: &ChildSpec) -> Result<(), String> {
    prctl::set_pdeathsig(Signal::SIGKILL)
        .map_err(|errno| format!("request to be killed when the parent process ends: {errno}"))?;
    if getppid().as_raw().cast_unsigned() != spec.parent {
        return Err("the parent process has already ended".to_string());
    }
    if let Some(name) = &spec.namespace {
        namespace::enter(name)?;
    }
    if let Some(cpu) = spec.cpu {
        cpu::pin_to(cpu)
            .map_err(|error| format!("pin the process to CPU {cpu}: {error}; try --no-pinning"))?;
    }
    Ok(())
}

fn run_server(address: SocketAddr, links: &[String]) -> Result<(), String> {
    let listener = TcpListener::bind(address)
        .map_err(|error| format!("listen on {address} for the client: {error}"))?;
    let address = listener
        .local_addr()
        .map_err(|error| format!("read the address to which the client connects: {error}"))?;
    print_line(&Line::Listening(address))?;
    server::serve(&listener, links, |_, _| ()).map_err(|error| error.to_string())
}

fn run_client(server: SocketAddr, shares_host: bool) -> Result<(), String> {
    let mut client = Client::connect(server, shares_host).map_err(|error| error.to_string())?;
    print_line(&Line::Ready {
        client: Machine::this(),
        server: client.server().clone(),
        server_transports: client.server_transports().to_vec(),
    })?;
    let mut input = io::stdin().lock();
    loop {
        let request: SampleRequest = match read_line(&mut input) {
            Ok(request) => request,
            Err(ControlError::Closed) => return Ok(()),
            Err(error) => return Err(error.to_string()),
        };
        let on_start = &mut || {
            // Ignore the error: printing fails only if the parent has ended, and then the kernel
            // kills this process.
            let _ = print_line(&Line::Counting);
        };
        let sample = client.sample(&request, on_start).map_err(|error| error.to_string())?;
        print_line(&Line::Sample(sample))?;
    }
}

fn parse<T: DeserializeOwned>(spec: &str) -> Result<T, String> {
    serde_json::from_str(spec).map_err(|error| {
        format!(
            "only ethernot itself may start {SUBCOMMAND}; its argument is not a valid \
             specification: {error}"
        )
    })
}

pub(crate) fn print_line(line: &Line) -> Result<(), String> {
    write_line(&mut io::stdout().lock(), line)
        .map_err(|error| format!("write to the parent process: {error}"))
}

/// Interval at which the parent checks whether a child has ended: 1 ms.
const LOOK_NS: u64 = 1_000_000;
