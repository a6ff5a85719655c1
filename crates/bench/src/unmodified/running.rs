//! A third-party program that runs in a host's namespace.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::sys::signal::{Signal, killpg};
use nix::sys::time::TimeVal;
use nix::unistd::{Pid, SysconfVar, sysconf};

use super::remote::Remote;
use crate::process::{ChildSpec, Role, SUBCOMMAND};
use testbed::cleanup;
use testbed::clock::{self, Stopwatch};

/// Why a program failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProgramError {
    /// The program is not installed.
    #[error("{program} is not installed; install it: sudo apt-get install -y {package}")]
    Missing {
        /// The program.
        program: &'static str,
        /// The Debian package that contains the program.
        package: &'static str,
    },
    /// The program could not be started, or its state could not be read.
    #[error("run {program}: {source}")]
    Io {
        /// The program.
        program: String,
        /// The error of the system call.
        source: io::Error,
    },
    /// The program did not listen in time, or ended before it listened.
    #[error("{program} did not listen on port {port} within {} s; its last output: {said}", LISTENS_WITHIN.as_secs())]
    NotListening {
        /// The program.
        program: String,
        /// The port on which the program should listen.
        port: u16,
        /// The last lines of the program's output.
        said: String,
    },
    /// The program did not print its ready text in time, or ended before it printed the text.
    #[error("{program} did not print {text:?} within {} s; its last output: {said}", LISTENS_WITHIN.as_secs())]
    NotReady {
        /// The program.
        program: String,
        /// The text that the program should print.
        text: String,
        /// The last lines of the program's output.
        said: String,
    },
    /// The program did not end in time.
    #[error("{program} did not end within {limit_seconds} s; its last output: {said}")]
    TooSlow {
        /// The program.
        program: String,
        /// The time limit, in seconds.
        limit_seconds: u64,
        /// The last lines of the program's output.
        said: String,
    },
    /// The program ended with an error.
    #[error("{program} ended with {status}; its last output: {said}")]
    Ended {
        /// The program.
        program: String,
        /// Exit status or signal of the program.
        status: String,
        /// The last lines of the program's output.
        said: String,
    },
    /// The program's output contains no result.
    #[error("{program} printed no result; its last line was {line:?}")]
    NoResult {
        /// The program.
        program: String,
        /// The last line of the program's output.
        line: String,
    },
}

/// The host and CPU on which a program runs.
#[derive(Debug, Clone, Copy)]
pub struct ProgramPlace<'a> {
    /// The executable of this program, which executes the third-party program in its namespace.
    pub own_program: &'a Path,
    /// The host.
    pub host: ProgramHost<'a>,
    /// The CPU that the program is restricted to.
    pub cpu: Option<usize>,
    /// The CPU of the progress threads of the program's device, if it differs from `cpu`.
    pub protocol_cpu: Option<usize>,
    /// Folder for the program's output.
    pub folder: &'a Path,
}

/// A host on which programs run.
#[derive(Debug, Clone, Copy)]
pub enum ProgramHost<'a> {
    /// A host that is a network namespace.
    Namespace(&'a str),
    /// This host, in the namespace of this process.
    This,
    /// Another host.
    Remote(&'a Remote),
}

/// A running program with all processes that it has started. Drop kills them.
#[derive(Debug)]
pub struct Running {
    name: String,
    child: Child,
    output: PathBuf,
    errors: PathBuf,
}

/// The results of a program that has ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Finished {
    /// The program's standard output.
    pub printed: String,
    /// CPU seconds, user and system, of the program and its children.
    pub cpu_seconds: f64,
}

impl Running {
    /// Starts the command line `words`. Error texts and output files contain `name`.
    ///
    /// # Errors
    /// Returns [`ProgramError`]; each variant names one cause.
    pub fn start(
        place: &ProgramPlace<'_>,
        name: &str,
        words: Vec<String>,
    ) -> Result<Self, ProgramError> {
        let failed = |source| ProgramError::Io { program: name.to_string(), source };
        let (namespace, words, input) = match place.host {
            ProgramHost::Namespace(name) => (Some(name.to_string()), words, Stdio::null()),
            ProgramHost::This => (None, words, Stdio::null()),
            // A program on another host ends when its input ends. The value of the child holds the
            // other end.
            ProgramHost::Remote(remote) => (None, remote.words(&words), Stdio::piped()),
        };
        let spec = ChildSpec {
            role: Role::Tool(words),
            namespace,
            cpu: place.cpu,
            parent: std::process::id(),
            links: Vec::new(),
        };
        let spec = serde_json::to_string(&spec).map_err(io::Error::from).map_err(failed)?;
        let output = place.folder.join(format!("{name}.out"));
        let errors = place.folder.join(format!("{name}.err"));
        let protocol_cpu = place.protocol_cpu.map(|cpu| (PROGRESS_PROCESSOR, cpu.to_string()));
        let child = Command::new(place.own_program)
            .envs(protocol_cpu)
            .arg(SUBCOMMAND)
            .arg(spec)
            .stdin(input)
            .stdout(File::create(&output).map_err(failed)?)
            .stderr(File::create(&errors).map_err(failed)?)
            // The program has its own process group. So this process can kill all processes of the
            // program together, and Ctrl-C signals only this process.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        cleanup::register_child(child.id());
        Ok(Self { name: name.to_string(), child, output, errors })
    }

    /// Waits until a process listens on `port` in the program's namespace.
    ///
    /// # Errors
    /// Returns [`ProgramError`]; each variant names one cause.
    pub fn await_listening(&mut self, port: u16) -> Result<(), ProgramError> {
        let started = Stopwatch::start();
        while !started.has_passed(LISTENS_WITHIN) {
            if listens(self.child.id(), port) {
                return Ok(());
            }
            if self.has_ended() {
                break;
            }
            pause();
        }
        Err(ProgramError::NotListening {
            program: self.name.clone(),
            port,
            said: self.last_words(),
        })
    }

    /// Waits until the program has printed `text`.
    ///
    /// # Errors
    /// Returns [`ProgramError`]; each variant names one cause.
    pub fn await_printed(&mut self, text: &str) -> Result<(), ProgramError> {
        let started = Stopwatch::start();
        while !started.has_passed(LISTENS_WITHIN) {
            if self.printed().is_ok_and(|printed| printed.contains(text)) {
                return Ok(());
            }
            if self.has_ended() {
                break;
            }
            pause();
        }
        Err(ProgramError::NotReady {
            program: self.name.clone(),
            text: text.to_string(),
            said: self.last_words(),
        })
    }

    /// Waits at most `limit` for the end of the program.
    ///
    /// # Errors
    /// Returns [`ProgramError`]; each variant names one cause.
    pub fn finish(self, limit: Duration) -> Result<Finished, ProgramError> {
        self.finish_unless(limit, |_| false)
    }

    /// Waits at most `limit` for the end of a program whose result ends with `text`. If the program
    /// is still running when the time `parting` has passed since it printed `text`, kills the
    /// program and uses its result.
    ///
    /// # Errors
    /// Returns [`ProgramError`]; each variant names one cause.
    pub fn finish_after(
        self,
        text: &str,
        parting: Duration,
        limit: Duration,
    ) -> Result<Finished, ProgramError> {
        let (mut length, mut done) = (0, None);
        self.finish_unless(limit, |running| {
            let now = fs::metadata(&running.output).map_or(0, |file| file.len());
            if done.is_none() && now != length {
                length = now;
                let is_done = running.printed().is_ok_and(|printed| printed.contains(text));
                done = is_done.then(Stopwatch::start);
            }
            done.as_ref().is_some_and(|watch: &Stopwatch| watch.has_passed(parting))
        })
    }

    /// Waits at most `limit` for the end of the program, or until `has_result` returns true.
    fn finish_unless(
        mut self,
        limit: Duration,
        mut has_result: impl FnMut(&Self) -> bool,
    ) -> Result<Finished, ProgramError> {
        let failed = |name: &str, source| ProgramError::Io { program: name.to_string(), source };
        let before = seconds_of_children();
        let started = Stopwatch::start();
        let status = loop {
            match self.child.try_wait().map_err(|error| failed(&self.name, error))? {
                Some(status) => break Some(status),
                None if has_result(&self) => break None,
                None if started.has_passed(limit) => {
                    return Err(ProgramError::TooSlow {
                        program: self.name.clone(),
                        limit_seconds: limit.as_secs(),
                        said: self.last_words(),
                    });
                }
                None => pause(),
            }
        };
        let cpu_seconds = seconds_of_children() - before;
        if let Some(status) = status.filter(|status| !status.success()) {
            return Err(ProgramError::Ended {
                program: self.name.clone(),
                status: status.to_string(),
                said: self.last_words(),
            });
        }
        let printed = self.printed().map_err(|error| failed(&self.name, error))?;
        Ok(Finished { printed, cpu_seconds })
    }

    /// Returns the CPU seconds, user and system, that the program's processes have used so far.
    /// Includes the children for which they have waited.
    pub fn cpu_seconds(&self) -> f64 {
        let ticks: u64 = numbers("/proc").filter_map(|pid| group_ticks(pid, self.child.id())).sum();
        ticks as f64 / ticks_per_second()
    }

    /// Signals the program to end, and kills it after a second. The library in the program writes
    /// its counters when it receives the signal.
    pub fn end(mut self) {
        // This call and the call below fail only if the program has already ended.
        let _ = killpg(self.group(), Signal::SIGTERM);
        let started = Stopwatch::start();
        while !self.has_ended() && !started.has_passed(ENDS_WITHIN) {
            pause();
        }
    }

    /// Returns the program's standard output so far.
    fn printed(&self) -> io::Result<String> {
        let mut bytes = Vec::new();
        File::open(&self.output)?.take(PRINTED_BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Returns the last lines of standard error or, if that is empty, of standard output.
    fn last_words(&self) -> String {
        [&self.errors, &self.output]
            .into_iter()
            .filter_map(|path| fs::read(path).ok())
            .map(|bytes| last_lines(&String::from_utf8_lossy(&bytes)))
            .find(|text| !text.is_empty())
            .unwrap_or_else(|| "nothing".to_string())
    }

    fn has_ended(&mut self) -> bool {
        self.child.try_wait().is_ok_and(|status| status.is_some())
    }

    fn group(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Kill the group even if its leader has ended, because a process group exists until its
        // last process ends.
        let _ = killpg(self.group(), Signal::SIGKILL);
        let _ = self.child.wait();
        cleanup::forget_child(self.child.id());
    }
}

/// Finds the executable of an installed program in `PATH` or in the system's folders for servers.
///
/// # Errors
/// Returns [`ProgramError`]; each variant names one cause.
pub fn find(program: &'static str, package: &'static str) -> Result<String, ProgramError> {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&folders)
        .chain(["/usr/sbin", "/usr/local/sbin", "/sbin"].map(PathBuf::from));
    let mut files = folders.map(|folder| folder.join(program));
    let found = files.find(|file| file.is_file());
    found.map(|file| file.display().to_string()).ok_or(ProgramError::Missing { program, package })
}

fn last_lines(text: &str) -> String {
    let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    lines[lines.len().saturating_sub(WORDS_LINES)..].join("; ")
}

/// Returns whether a process listens on TCP port `port` in the namespace of process `pid`.
fn listens(pid: u32, port: u16) -> bool {
    let is_listening = |line: &str| {
        let mut fields = line.split_whitespace().skip(1);
        let (local, state) = (fields.next(), fields.nth(1));
        let local_port = local.and_then(|local| local.rsplit_once(':')).map(|(_, port)| port);
        state == Some(LISTENING) && local_port == Some(&format!("{port:04X}"))
    };
    ["tcp", "tcp6"].into_iter().any(|table| {
        let text = fs::read_to_string(format!("/proc/{pid}/net/{table}")).unwrap_or_default();
        text.lines().any(is_listening)
    })
}

/// Returns the names in `folder` that are numbers.
fn numbers(folder: &str) -> impl Iterator<Item = u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Returns the clock ticks of process `pid` and of the children for which it has waited, if the
/// process is in process group `group`.
fn group_ticks(pid: u32, group: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    ticks_of(&stat, group)
}

/// Parses the text of `/proc/PID/stat`. Field 5 is the group. Fields 14 to 17 are user and system
/// time of the process and of its children.
fn ticks_of(stat: &str, group: u32) -> Option<u64> {
    // The second field, the process name, may contain spaces and parentheses.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<&str> = fields.split(' ').collect();
    if fields.get(2)?.parse::<u32>().ok()? != group {
        return None;
    }
    fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum()
}

fn ticks_per_second() -> f64 {
    sysconf(SysconfVar::CLK_TCK).ok().flatten().map_or(100.0, |ticks| ticks as f64)
}

/// Returns the CPU seconds of all children for which this process has waited.
fn seconds_of_children() -> f64 {
    let seconds = |value: TimeVal| value.tv_sec() as f64 + value.tv_usec() as f64 / 1e6;
    getrusage(UsageWho::RUSAGE_CHILDREN)
        .map_or(0.0, |usage| seconds(usage.user_time()) + seconds(usage.system_time()))
}

fn pause() {
    clock::sleep_until(clock::monotonic_ns() + PAUSE.as_nanos() as u64);
}

/// The variable that pins the progress threads of a device.
const PROGRESS_PROCESSOR: &str = "ETHERNOT_PROGRESS_PROCESSOR";

/// Interval between two checks of a program. It is long enough that the checks do not slow down the
/// program.
const PAUSE: Duration = Duration::from_millis(10);

/// Time limit for a server to listen. A server needs a fraction of a second unless the machine is
/// overloaded.
const LISTENS_WITHIN: Duration = Duration::from_secs(15);

/// Time limit for a program to end after the signal.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// Code of the listening state in `/proc/net/tcp`.
const LISTENING: &str = "0A";

/// Highest number of bytes that are read from a program's output. Results are shorter.
const PRINTED_BYTES_MAX: u64 = 16 << 20;

/// Number of output lines in an error.
const WORDS_LINES: usize = 3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_time_of_the_process_group_is_counted() {
        let stat = "7 (a) b) S 1 5 5 0 -1 4194560 1 2 3 4 10 20 30 40 20 0 1 0 99";
        assert_eq!(ticks_of(stat, 5), Some(100));
        assert_eq!(ticks_of(stat, 6), None);
        assert_eq!(ticks_of("nonsense", 5), None);
    }

    #[test]
    fn the_end_of_a_programs_output_is_reported() {
        assert_eq!(last_lines("a\nb\n\nc\nd\n"), "b; c; d");
        assert_eq!(last_lines(""), "");
    }

    #[test]
    fn a_missing_program_is_reported_with_its_package() {
        let error = find("no-such-program-of-ours", "a-package").unwrap_err().to_string();
        assert!(error.contains("apt-get install -y a-package"), "{error}");
    }
}
