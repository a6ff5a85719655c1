//! Starts the ranks of an example as processes of this host.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use dsm::launch::free_meeting_place;
use dsm::{MEET, METHOD, RANK, SIZE};

/// Returns the folder of the examples, which are built.
pub(crate) fn examples() -> PathBuf {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| testbed::built::build("dsm", &["--examples"]).join("examples")).clone()
}

/// A program that is started on several ranks.
pub(crate) struct Ranks {
    example: &'static str,
    arguments: Vec<String>,
    size: usize,
    variables: Vec<(&'static str, String)>,
    meet: String,
}

/// A rank that has ended.
pub(crate) struct Ended {
    pub(crate) output: Output,
    /// When it ended.
    pub(crate) at: Instant,
}

impl Ranks {
    pub(crate) fn of(example: &'static str, size: usize) -> Self {
        let meet = free_meeting_place().unwrap();
        Self { example, arguments: Vec::new(), size, variables: Vec::new(), meet }
    }

    pub(crate) fn argument(mut self, argument: &str) -> Self {
        self.arguments.push(argument.into());
        self
    }

    pub(crate) fn method(self, method: &str) -> Self {
        self.variable(METHOD, method)
    }

    pub(crate) fn variable(mut self, name: &'static str, value: &str) -> Self {
        self.variables.push((name, value.into()));
        self
    }

    /// Returns the command of a rank.
    pub(crate) fn command(&self, rank: usize) -> Command {
        let mut command = Command::new(examples().join(self.example));
        command.args(&self.arguments).env(RANK, rank.to_string());
        command.env(SIZE, self.size.to_string()).env(MEET, &self.meet);
        command.envs(self.variables.iter().map(|(name, value)| (name, OsStr::new(value))));
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs all ranks.
    pub(crate) fn run(&self) -> Vec<Ended> {
        let command = |rank| self.command(rank);
        finish((0..self.size).map(command).collect())
    }
}

/// Runs these commands at the same time, and kills those that do not end.
pub(crate) fn finish(commands: Vec<Command>) -> Vec<Ended> {
    let start = |mut command: Command| command.spawn().expect("the example is built");
    let ranks: Vec<Child> = commands.into_iter().map(start).collect();
    let wait = |mut rank: Child| {
        thread::spawn(move || {
            let at = watch(&mut rank);
            Ended { output: rank.wait_with_output().unwrap(), at }
        })
    };
    let waits: Vec<_> = ranks.into_iter().map(wait).collect();
    waits.into_iter().map(|wait| wait.join().unwrap()).collect()
}

/// Waits for the end of a process, and kills it if it does not come. Returns when it came.
fn watch(rank: &mut Child) -> Instant {
    let began = Instant::now();
    while rank.try_wait().unwrap().is_none() {
        if began.elapsed() > HANGS_AFTER {
            rank.kill().unwrap();
        }
        thread::sleep(Duration::from_millis(5));
    }
    Instant::now()
}

impl Ended {
    pub(crate) fn status(&self) -> ExitStatus {
        self.output.status
    }

    /// Returns what the rank printed on standard output.
    pub(crate) fn printed(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    /// Returns what the rank printed on standard error.
    pub(crate) fn errors(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }
}

/// A rank that runs longer hangs. Machines under load need seconds.
const HANGS_AFTER: Duration = Duration::from_secs(100);
