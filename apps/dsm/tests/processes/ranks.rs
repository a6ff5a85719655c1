//! Ranks of an example as processes, which must end within a time.

use std::env;
use std::io::{BufRead, BufReader};
use std::net::UdpSocket;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use dsm::{MEET, METHOD, RANK, SIZE};
use testbed::namespace::{NamespaceError, are_possible};
use testbed::pair::NamespacePair;

/// Where a rank runs, and where ranks meet.
pub(crate) trait Place {
    /// Returns the command that starts the program at the place of a rank.
    fn command(&self, rank: usize, program: &Path) -> Command;

    /// Returns the address at which rank 0 waits.
    fn meet(&self) -> String;

    /// Returns how long ranks pause after they have met, so that their connections find all links.
    fn pause(&self) -> Duration {
        Duration::ZERO
    }
}

/// All ranks on this host, by its loopback interface and shared memory.
#[derive(Debug)]
pub(crate) struct Loopback;

impl Place for Loopback {
    fn command(&self, _: usize, program: &Path) -> Command {
        Command::new(program)
    }

    fn meet(&self) -> String {
        // The port is free again when the socket is dropped, and rank 0 takes it at once.
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a port is free");
        socket.local_addr().expect("the socket is bound").to_string()
    }
}

/// Two hosts, which are network namespaces. Ranks with even numbers run on the server.
#[derive(Debug)]
pub(crate) struct TwoHosts(NamespacePair);

impl TwoHosts {
    /// Makes the hosts, or prints why that is not possible.
    pub(crate) fn new(
        make: impl FnOnce() -> Result<NamespacePair, NamespaceError>,
    ) -> Option<Self> {
        if !are_possible() {
            println!("skipped: network namespaces need root");
            return None;
        }
        match make() {
            Ok(pair) => Some(Self(pair)),
            Err(error) => {
                println!("skipped: {error}");
                None
            }
        }
    }

    /// Returns the namespaces.
    pub(crate) const fn pair(&self) -> &NamespacePair {
        &self.0
    }
}

impl Place for TwoHosts {
    fn command(&self, rank: usize, program: &Path) -> Command {
        let host = if rank.is_multiple_of(2) { self.0.server() } else { self.0.client() };
        let mut command = Command::new("ip");
        command.args(["netns", "exec", host]).arg(program);
        command
    }

    fn meet(&self) -> String {
        let server = self.0.links().first().expect("there is a link").server;
        format!("{server}:{MEETING_PORT}")
    }

    fn pause(&self) -> Duration {
        Duration::from_millis(300)
    }
}

/// The port at which rank 0 waits, in its own namespace.
const MEETING_PORT: u16 = 7000;

/// The ranks of a program. Ranks that still run are killed when this value is dropped.
#[derive(Debug)]
pub(crate) struct Ranks {
    children: Vec<Child>,
    /// The rest of what rank 0 prints, once its first line was read.
    printed: Option<BufReader<ChildStdout>>,
}

impl Ranks {
    /// Starts `size` ranks of an example. `method` is a value of the variable [`METHOD`].
    pub(crate) fn start(
        place: &impl Place,
        example: &str,
        arguments: &[String],
        size: usize,
        method: &str,
    ) -> Self {
        let (program, meet) = (examples().join(example), place.meet());
        let mut ranks = Self { children: Vec::new(), printed: None };
        for rank in 0..size {
            let mut command = place.command(rank, &program);
            command.args(arguments).env(RANK, rank.to_string()).env(SIZE, size.to_string());
            command.env(MEET, &meet).env(METHOD, method);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            ranks.children.push(command.spawn().expect("the example is built"));
        }
        ranks
    }

    /// Returns the first line that rank 0 prints; it is empty if rank 0 ends before that.
    pub(crate) fn first_line(&mut self) -> String {
        let output = self.children.first_mut().and_then(|rank| rank.stdout.take());
        let mut line = String::new();
        if let Some(output) = output {
            let mut output = BufReader::new(output);
            // An error leaves the line empty.
            let _closed = output.read_line(&mut line);
            self.printed = Some(output);
        }
        line
    }

    /// Waits until all ranks have ended.
    ///
    /// # Errors
    /// What the ranks wrote to their standard errors, if one has failed or takes longer than
    /// `limit`.
    pub(crate) fn finish(mut self, limit: Duration) -> Result<Vec<Output>, String> {
        let deadline = Instant::now() + limit;
        let mut is_late = false;
        let runs = |rank: &mut Child| rank.try_wait().is_ok_and(|status| status.is_none());
        while self.children.iter_mut().any(runs) {
            if Instant::now() > deadline {
                is_late = true;
                self.kill();
            }
            thread::sleep(Duration::from_millis(2));
        }
        let children = std::mem::take(&mut self.children);
        let outputs: Vec<Output> = children
            .into_iter()
            .map(|rank| rank.wait_with_output().expect("the kernel reports how a process ended"))
            .collect();
        if !is_late && outputs.iter().all(|output| output.status.success()) {
            return Ok(outputs);
        }
        let late = is_late.then(|| format!("hangs for {limit:?}"));
        let of_ranks = outputs.iter().enumerate().map(|(rank, output)| {
            let error = String::from_utf8_lossy(&output.stderr);
            format!("rank {rank}, {}: {}", output.status, error.trim())
        });
        Err(late.into_iter().chain(of_ranks).collect::<Vec<_>>().join("\n"))
    }

    fn kill(&mut self) {
        for rank in &mut self.children {
            // This fails only if the process has ended already.
            let _ended = rank.kill();
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.kill();
        for rank in &mut self.children {
            let _ended = rank.wait();
        }
    }
}

/// Builds the examples, and returns their folder. In a guest, which has no compiler, the variable
/// [`EXAMPLES`] names the folder of examples that the host has built.
pub(crate) fn examples() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let build = || testbed::built::build("dsm", &["--examples"]).join("examples");
    BUILT.get_or_init(|| env::var_os(EXAMPLES).map_or_else(build, PathBuf::from)).clone()
}

/// The variable that names a folder of examples.
pub(crate) const EXAMPLES: &str = "EXAMPLES";
