//! The processes that measure: how they are started, and what they do.
//!
//! Both are the program itself with the hidden subcommand [`SUBCOMMAND`] and a [`ChildSpec`] as
//! its argument. They enter their network namespace themselves, first of all, and die with the
//! process that has started them.

use std::fs::File;
use std::io::{self, BufReader};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use nix::sched::{CloneFlags, setns};
use nix::sys::prctl;
use nix::sys::signal::Signal;
use nix::unistd::getppid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::busy;
use crate::cleanup;
use crate::client::{Client, SampleRequest};
use crate::clock::{self, Stopwatch};
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

/// What a child process is to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChildSpec {
    /// Server or client.
    pub role: Role,
    /// Name of the network namespace to enter.
    pub namespace: Option<String>,
    /// CPU to run on.
    pub cpu: Option<usize>,
    /// Process whose death ends this one.
    pub parent: u32,
    /// Names of the links that a server uses; empty: by address.
    #[serde(default)]
    pub links: Vec<String>,
}

/// The two kinds of child processes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Role {
    /// Serves on this address; reports the port by [`Line::Listening`].
    Server(SocketAddr),
    /// Takes samples against this server.
    Client {
        /// The server's control address.
        server: SocketAddr,
        /// Whether the server runs on this host.
        shares_host: bool,
    },
    /// Keeps processors busy with so many threads until its input ends.
    Busy(u32),
    /// Becomes another program.
    Tool(Vec<String>),
    /// Gathers the reports of hosts, and prints a summary.
    Gatherer(gatherer::Task),
    /// Serves what [`Role::SocketsClient`] asks for, with ordinary sockets.
    SocketsServer(Serving),
    /// Connects, exchanges messages and closes, with ordinary sockets.
    SocketsClient(Task),
}

/// A line that a child writes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Line {
    /// The server is ready.
    Listening(SocketAddr),
    /// The client is ready.
    Ready {
        /// The client's host.
        client: Machine,
        /// The server's host.
        server: Machine,
        /// Names of the server's transports.
        server_transports: Vec<String>,
    },
    /// The busy threads spin.
    Spinning,
    /// The run that counts begins.
    Counting,
    /// The answer to a [`SampleRequest`].
    Sample(Sample),
    /// A process with ordinary sockets has connected, warmed up, and waits to be let go.
    Warm,
    /// What a client with ordinary sockets has done since it was let go.
    Done(Outcome),
    /// CPU seconds that a server with ordinary sockets has used so far.
    CpuSeconds(f64),
    /// The child could not do what it was asked for.
    Failed(String),
}

/// Why a child process is of no use.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProcessError {
    /// It could not be started.
    #[error("start {} as the benchmark's {role}: {source}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// Server or client.
        role: &'static str,
        /// What the operating system said.
        source: io::Error,
    },
    /// It said that it failed.
    #[error("{role}: {message}")]
    Failed {
        /// Server or client.
        role: &'static str,
        /// What it said.
        message: String,
    },
    /// It went away or spoke nonsense.
    #[error("the benchmark's {role} process is gone: {source}")]
    Gone {
        /// Server or client.
        role: &'static str,
        /// What was seen last.
        source: ControlError,
    },
    /// It said something else than it should.
    #[error("the benchmark's {role} process said {got}")]
    Unexpected {
        /// Server or client.
        role: &'static str,
        /// What it said.
        got: String,
    },
}

/// A running child process. Dropping it ends it.
#[derive(Debug)]
pub struct ChildProcess {
    role: &'static str,
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl ChildProcess {
    /// Starts `program` as `spec` says.
    ///
    /// # Errors
    /// [`ProcessError`], one variant for each cause.
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
            // Ctrl-C goes to the parent alone, which ends its children in order.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        cleanup::register_child(child.id());
        let input = child.stdin.take();
        let output = child.stdout.take().map(BufReader::new);
        let output = output.ok_or_else(|| failed(io::Error::other("its output is not piped")))?;
        Ok(Self { role, child, input, output })
    }

    /// Sends a line.
    ///
    /// # Errors
    /// [`ProcessError`], one variant for each cause.
    pub fn send<T: Serialize>(&mut self, message: &T) -> Result<(), ProcessError> {
        let input = self.input.as_mut().ok_or(io::Error::other("its input is closed"));
        input.and_then(|input| write_line(input, message)).map_err(|source| {
            let source = ControlError::Io { attempt: "write to it", source };
            ProcessError::Gone { role: self.role, source }
        })
    }

    /// Waits for a line; an error if it is [`Line::Failed`].
    ///
    /// # Errors
    /// [`ProcessError`], one variant for each cause.
    pub fn receive(&mut self) -> Result<Line, ProcessError> {
        match read_line(&mut self.output) {
            Ok(Line::Failed(message)) => Err(ProcessError::Failed { role: self.role, message }),
            Ok(line) => Ok(line),
            Err(source) => Err(ProcessError::Gone { role: self.role, source }),
        }
    }

    /// Closes its input, at which it ends, and waits until it has; ends it after `limit`.
    ///
    /// # Errors
    /// [`ProcessError`], one variant for each cause.
    pub fn finish(mut self, limit: Duration) -> Result<(), ProcessError> {
        self.input = None;
        let gone = |source| ProcessError::Gone {
            role: self.role,
            source: ControlError::Io { attempt: "wait for its end", source },
        };
        let waited = Stopwatch::start();
        loop {
            match self.child.try_wait().map_err(gone)? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => {
                    let message = format!("it has ended with {status}");
                    return Err(ProcessError::Failed { role: self.role, message });
                }
                None if waited.has_passed(limit) => {
                    let message = format!("it has not ended within {} s", limit.as_secs_f64());
                    return Err(ProcessError::Failed { role: self.role, message });
                }
                None => clock::sleep_until(clock::monotonic_ns() + LOOK_NS),
            }
        }
    }

    /// Returns its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the error of a line that does not fit.
    pub fn unexpected(&self, line: &Line) -> ProcessError {
        ProcessError::Unexpected { role: self.role, got: format!("{line:?}") }
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        // Both only fail for a child that has ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
        cleanup::forget_child(self.child.id());
    }
}

/// Runs a child process from start to end. Errors go to the parent as [`Line::Failed`]; returns true if there were
/// none.
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
            // A parent that is gone needs no explanation.
            let _ = print_line(&Line::Failed(message));
            false
        }
    }
}

/// Ties this process to its parent, its namespace and its CPU.
fn enter(spec: &ChildSpec) -> Result<(), String> {
    prctl::set_pdeathsig(Signal::SIGKILL)
        .map_err(|errno| format!("ask to be ended with the parent process: {errno}"))?;
    if getppid().as_raw().cast_unsigned() != spec.parent {
        return Err("the parent process has ended already".to_string());
    }
    if let Some(name) = &spec.namespace {
        let path = Path::new(NAMESPACE_DIRECTORY).join(name);
        let file = File::open(&path)
            .map_err(|error| format!("open network namespace {}: {error}", path.display()))?;
        setns(file, CloneFlags::CLONE_NEWNET).map_err(|errno| {
            format!("enter network namespace {name}: {errno}; this needs CAP_SYS_ADMIN")
        })?;
    }
    if let Some(cpu) = spec.cpu {
        cpu::pin_to(cpu).map_err(|error| {
            format!("restrict the process to CPU {cpu}: {error}; try --no-pinning")
        })?;
    }
    Ok(())
}

fn run_server(address: SocketAddr, links: &[String]) -> Result<(), String> {
    let listener = TcpListener::bind(address)
        .map_err(|error| format!("listen on {address} for the client: {error}"))?;
    let address = listener
        .local_addr()
        .map_err(|error| format!("read the address that the client is to use: {error}"))?;
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
            // A parent that is gone ends this process anyway.
            let _ = print_line(&Line::Counting);
        };
        let sample = client.sample(&request, on_start).map_err(|error| error.to_string())?;
        print_line(&Line::Sample(sample))?;
    }
}

fn parse<T: DeserializeOwned>(spec: &str) -> Result<T, String> {
    serde_json::from_str(spec).map_err(|error| {
        format!(
            "{SUBCOMMAND} is for the program's own use; its argument is no specification: {error}"
        )
    })
}

pub(crate) fn print_line(line: &Line) -> Result<(), String> {
    write_line(&mut io::stdout().lock(), line)
        .map_err(|error| format!("write to the parent process: {error}"))
}

/// How often a child that is to end is looked at: 1 ms.
const LOOK_NS: u64 = 1_000_000;

/// Where `ip netns` keeps the namespaces that have names.
pub const NAMESPACE_DIRECTORY: &str = "/run/netns";
