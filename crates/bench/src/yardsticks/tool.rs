//! Runs client and server of a third-party program in the hosts' namespaces.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use super::Hosts;
use crate::process::{ChildSpec, Role, SUBCOMMAND};
use testbed::cleanup;
use testbed::clock::{self, Stopwatch};

/// Why a third-party program has no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ToolError {
    /// The program is not installed.
    #[error("{tool} is not installed; it is in the Debian package {package}")]
    Missing {
        /// The program.
        tool: &'static str,
        /// The Debian package that contains the program.
        package: &'static str,
    },
    /// The program could not be started, or its output could not be read.
    #[error("run {tool}: {source}")]
    Io {
        /// The program.
        tool: &'static str,
        /// The error of the system call.
        source: io::Error,
    },
    /// The program's output contains no result.
    #[error("{tool} printed no latency; its last line was {line:?}")]
    NoResult {
        /// The program.
        tool: &'static str,
        /// The last line of the program's output.
        line: String,
    },
}

/// The client and the server of a third-party program.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tool {
    pub(super) name: &'static str,
    pub(super) package: &'static str,
    pub(super) server: fn(address: &str) -> Vec<String>,
    pub(super) client: fn(address: &str) -> Vec<String>,
    /// Parses the median in nanoseconds from the client's output.
    pub(super) parse: fn(&str) -> Option<f64>,
}

impl Tool {
    /// Starts the server, runs the client until it has a result, and ends the server.
    pub(super) fn run(&self, hosts: &Hosts<'_>) -> Result<f64, ToolError> {
        let failed = |source| ToolError::Io { tool: self.name, source };
        if !is_installed(self.name) {
            return Err(ToolError::Missing { tool: self.name, package: self.package });
        }
        let address = hosts.address.to_string();
        let [client_cpu, server_cpu] = hosts.pinned_to.map_or([None; 2], |cpus| cpus.map(Some));
        let serve = || {
            let server = start(hosts, hosts.server, server_cpu, (self.server)(&address));
            server.map(Running).map_err(failed)
        };
        let mut server = serve()?;
        let started = Stopwatch::start();
        let mut last = String::new();
        // There is no method that shows for all programs whether the server listens. So the client
        // is started again until it succeeds. Some servers end with their first client, even if
        // this client had no result. Such a server is started again, too.
        while !started.has_passed(TRIED_FOR) {
            if server.has_ended() {
                server = serve()?;
            }
            let client = start(hosts, hosts.client, client_cpu, (self.client)(&address));
            let mut client = Running(client.map_err(failed)?);
            let printed = client.output().map_err(failed)?;
            if let Some(latency_ns) = (self.parse)(&printed) {
                return Ok(latency_ns);
            }
            let lines = printed.lines().rfind(|line| !line.trim().is_empty());
            last = lines.unwrap_or("nothing").trim().to_string();
            clock::sleep_until(clock::monotonic_ns() + PAUSE.as_nanos() as u64);
        }
        Err(ToolError::NoResult { tool: self.name, line: last })
    }
}

/// Replaces this process by the program in `words`.
pub fn become_tool(words: &[String]) -> io::Error {
    let Some((program, arguments)) = words.split_first() else {
        return io::Error::from(io::ErrorKind::InvalidInput);
    };
    Command::new(program)
        .args(arguments)
        .env("UCX_TLS", "tcp")
        .env("UCX_WARN_UNUSED_ENV_VARS", "n")
        .exec()
}

fn is_installed(tool: &str) -> bool {
    let directories = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&directories).any(|directory| directory.join(tool).is_file())
}

fn start(
    hosts: &Hosts<'_>,
    namespace: &str,
    cpu: Option<usize>,
    words: Vec<String>,
) -> io::Result<Child> {
    // UCX searches `/sys` for interfaces. `ip netns exec` mounts the `/sys` of the namespace.
    // Without this mount, `/sys` would show the interfaces of the host.
    let words = ["ip", "netns", "exec", namespace].map(str::to_string).into_iter().chain(words);
    let spec = ChildSpec {
        role: Role::Tool(words.collect()),
        namespace: None,
        cpu,
        parent: std::process::id(),
        links: Vec::new(),
    };
    let child = Command::new(hosts.program)
        .arg(SUBCOMMAND)
        .arg(serde_json::to_string(&spec)?)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .process_group(0)
        .spawn()?;
    cleanup::register_child(child.id());
    Ok(child)
}

/// A running program. Drop kills it.
struct Running(Child);

impl Running {
    fn has_ended(&mut self) -> bool {
        self.0.try_wait().is_ok_and(|status| status.is_some())
    }

    /// Returns all output of the program until its end.
    fn output(&mut self) -> io::Result<String> {
        let mut printed = Vec::new();
        if let Some(output) = &mut self.0.stdout {
            output.read_to_end(&mut printed)?;
        }
        Ok(String::from_utf8_lossy(&printed).into_owned())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both calls fail only if the child has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
        cleanup::forget_child(self.0.id());
    }
}

/// Pause between two attempts of the client.
const PAUSE: Duration = Duration::from_millis(100);

/// Time limit for the attempts. A server listens within a fraction of a second.
const TRIED_FOR: Duration = Duration::from_secs(10);
