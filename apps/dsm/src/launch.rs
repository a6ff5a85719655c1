//! Starts the ranks of a program on this host or others, forwards their output, and ends them
//! together.

mod ended;
mod error;
mod forward;
mod meeting_place;
mod ranks;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use dsm_protocol::NODES_MAX;

use crate::variables::{MEET, RANK, SIZE};
use forward::Line;
use ranks::{Input, Ranks};

use ended::Outcome;
pub use ended::{Ended, RankEnded};
pub use error::LaunchError;
pub use meeting_place::free_meeting_place;

/// A program that runs on several ranks.
///
/// ```
/// use std::sync::atomic::AtomicU32;
///
/// use dsm::launch::{Launch, Streams};
///
/// # fn main() -> Result<(), dsm::launch::LaunchError> {
/// let launch = Launch::new(2, "sh").arguments(["-c", "echo rank $ETHERNOT_DSM_RANK"]);
/// let (mut output, mut errors) = (Vec::new(), Vec::new());
/// let streams = Streams { output: &mut output, errors: &mut errors };
/// let ended = launch.run(streams, &AtomicU32::new(0))?;
/// assert_eq!(ended.exit_code(), 0);
/// assert!(String::from_utf8_lossy(&output).contains("[1] rank 1\n"));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Launch {
    size: usize,
    program: OsString,
    arguments: Vec<OsString>,
    variables: Vec<(OsString, OsString)>,
    hosts: Vec<String>,
    shell: Vec<OsString>,
    meet: Option<String>,
    has_input: bool,
}

/// Where the lines that ranks print go.
pub struct Streams<'a> {
    /// Gets the lines of standard output.
    pub output: &'a mut dyn Write,
    /// Gets the lines of standard error.
    pub errors: &'a mut dyn Write,
}

impl Launch {
    /// Describes a program on `size` ranks of this host, without arguments and input.
    pub fn new(size: usize, program: impl Into<OsString>) -> Self {
        Self {
            size,
            program: program.into(),
            arguments: Vec::new(),
            variables: Vec::new(),
            hosts: Vec::new(),
            shell: vec!["ssh".into()],
            meet: None,
            has_input: false,
        }
    }

    /// Adds arguments of the program.
    pub fn arguments(mut self, arguments: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(Into::into));
        self
    }

    /// Adds a variable to the environment of all ranks.
    pub fn variable(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Runs the ranks on these hosts: the first ranks on the first host, and so on. Each rank is
    /// started by [`Launch::shell`], with the folder of this process as its own, if that exists on
    /// its host. It has no input. If this process ends, it ends as well.
    pub fn hosts(mut self, hosts: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.hosts.extend(hosts.into_iter().map(Into::into));
        self
    }

    /// Sets the program that starts a command on a host, with its options; `ssh` by default. It gets
    /// the host and the command, as `ssh` does.
    pub fn shell(mut self, words: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        self.shell = words.into_iter().map(Into::into).collect();
        self
    }

    /// Sets the address at which rank 0 waits for the others. By default it is a free port of this
    /// host, or a port of the first of the hosts.
    pub fn meet(mut self, address: impl Into<String>) -> Self {
        self.meet = Some(address.into());
        self
    }

    /// Passes the standard input of this process to rank 0, if rank 0 runs on this host.
    pub fn with_input(mut self) -> Self {
        self.has_input = true;
        self
    }

    /// Runs the program. Copies each line that a rank prints, with the rank in front.
    ///
    /// If a rank fails, the others have [`GRACE`] to end by themselves, and are killed then. If
    /// `stops` is not 0 any more, the ranks get `SIGTERM`, and are killed after [`GRACE`], or if
    /// `stops` is larger than 1. When this method returns, no process of the ranks is left on this
    /// host: each rank leads a process group, which is killed at the end. If this process ends
    /// earlier, the kernel kills the ranks.
    ///
    /// # Errors
    /// [`LaunchError`] says why a rank cannot be started or served. No rank is left then.
    pub fn run(&self, streams: Streams<'_>, stops: &AtomicU32) -> Result<Ended, LaunchError> {
        if !(1..=NODES_MAX).contains(&self.size) {
            return Err(LaunchError::Size(self.size));
        }
        let began = Instant::now();
        let meet = match &self.meet {
            Some(meet) => meet.clone(),
            None => meeting_place::of(&self.hosts)?,
        };
        let (sender, lines) = mpsc::sync_channel(LINES_MAX);
        let mut ranks = Ranks::default();
        for rank in 0..self.size {
            let host = self.host_of(rank);
            let mut command = self.command(rank, host, &meet)?;
            // Each rank leads a group, so that its own children end with it.
            command.process_group(0);
            let input = match host {
                Some(_) => Input::HeldOpen,
                None if rank == 0 && self.has_input => Input::OfThisProcess,
                None => Input::None,
            };
            ranks
                .start(&mut command, input, &sender)
                .map_err(|source| self.not_started(host, source))?;
        }
        drop(sender);
        let outcome = serve(&mut ranks, &lines, streams, stops)?;
        Ok(Ended::new(outcome, |rank| self.host_of(rank).map(str::to_owned), began.elapsed()))
    }

    /// Returns the host of a rank, or `None` if this is this host.
    fn host_of(&self, rank: usize) -> Option<&str> {
        self.hosts.get(rank * self.hosts.len() / self.size).map(String::as_str)
    }

    fn command(&self, rank: usize, host: Option<&str>, meet: &str) -> Result<Command, LaunchError> {
        let own = [(RANK, rank.to_string()), (SIZE, self.size.to_string()), (MEET, meet.into())];
        let own = own.map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let variables = || own.iter().chain(&self.variables);
        let Some(host) = host else {
            let mut command = Command::new(&self.program);
            command.args(&self.arguments);
            command.envs(variables().map(|(name, value)| (name, value)));
            return Ok(command);
        };
        let (program, options) = self.shell.split_first().ok_or(LaunchError::NoShell)?;
        let words = [self.program.as_os_str()].into_iter();
        let words = words.chain(self.arguments.iter().map(OsString::as_os_str));
        let mut command = Command::new(program);
        command.args(options).arg(host).arg(remote_shell::command(variables(), words));
        Ok(command)
    }

    fn not_started(&self, host: Option<&str>, source: std::io::Error) -> LaunchError {
        let program: &OsStr = match (host, self.shell.first()) {
            (Some(_), Some(shell)) => shell,
            _ => &self.program,
        };
        LaunchError::Program { program: program.to_owned(), source }
    }
}

/// Copies lines until all ranks have ended.
fn serve(
    ranks: &mut Ranks,
    lines: &mpsc::Receiver<Line>,
    mut streams: Streams<'_>,
    stops: &AtomicU32,
) -> Result<Outcome, LaunchError> {
    let mut last_lines = vec![None; ranks.len()];
    let mut kill_at = None;
    let mut is_stopped = false;
    let mut is_open = true;
    loop {
        if is_open {
            match lines.recv_timeout(PAUSE) {
                Ok(line) => streams.print(line, &mut last_lines)?,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => is_open = false,
            }
        } else {
            std::thread::sleep(PAUSE);
        }
        let has_failed = ranks.look().map_err(LaunchError::Wait)?;
        if has_failed && kill_at.is_none() {
            kill_at = Some(Instant::now() + GRACE);
        }
        let stops = stops.load(Ordering::Relaxed);
        if stops > 0 && !is_stopped {
            is_stopped = true;
            ranks.signal(libc::SIGTERM);
            kill_at = Some(Instant::now() + GRACE);
        }
        if let Some(statuses) = ranks.statuses() {
            ranks.end();
            // A process that has left its rank's group may hold the output open.
            while let Some(line) = is_open.then(|| lines.recv_timeout(LAST_WORDS).ok()).flatten() {
                streams.print(line, &mut last_lines)?;
            }
            let failed = ranks.first_failure();
            let last_words = failed.and_then(|rank| last_lines.get_mut(rank)?.take());
            return Ok(Outcome { statuses, failed, last_words, is_stopped });
        }
        if stops > 1 || kill_at.is_some_and(|time| Instant::now() > time) {
            kill_at = None;
            ranks.signal(libc::SIGKILL);
        }
    }
}

impl Streams<'_> {
    /// Copies a line, with the rank in front. Remembers it if it is one of standard error.
    fn print(&mut self, line: Line, last: &mut [Option<String>]) -> Result<(), LaunchError> {
        let Line { rank, is_error, bytes } = line;
        let mut text = format!("[{rank}] ").into_bytes();
        text.extend_from_slice(&bytes);
        text.push(b'\n');
        let stream = if is_error { &mut self.errors } else { &mut self.output };
        stream.write_all(&text).and_then(|()| stream.flush()).map_err(LaunchError::Output)?;
        if is_error && let Some(last) = last.get_mut(rank) {
            *last = Some(String::from_utf8_lossy(&bytes).trim_end().to_owned());
        }
        Ok(())
    }
}

impl std::fmt::Debug for Streams<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Streams").finish_non_exhaustive()
    }
}

/// How long the other ranks may take to end after a rank has failed, or after a request to stop.
pub const GRACE: Duration = Duration::from_secs(3);

/// Time between two looks for ranks that have ended.
const PAUSE: Duration = Duration::from_millis(10);

/// How long lines are awaited after all ranks have ended.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Lines of ranks that wait to be copied. A rank that prints more waits as well.
const LINES_MAX: usize = 1024;

#[cfg(test)]
mod tests;
