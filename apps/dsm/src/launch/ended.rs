//! How the ranks of a program ended.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::time::Duration;

/// How the processes of the ranks ended, by rank.
pub(super) struct Outcome {
    pub(super) statuses: Vec<ExitStatus>,
    /// The rank that failed first.
    pub(super) failed: Option<usize>,
    /// The last line of its standard error.
    pub(super) last_words: Option<String>,
    pub(super) is_stopped: bool,
}

/// How one rank ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct RankEnded {
    /// The rank.
    pub rank: usize,
    /// Its host; `None` if this is the host of the launcher.
    pub host: Option<String>,
    /// The status of its process, or of the program that started it on its host.
    pub status: ExitStatus,
}

/// How the ranks ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ended {
    /// All ranks.
    pub ranks: Vec<RankEnded>,
    /// The rank that failed first, and what happened to it. Ranks that have ended because another
    /// one failed count only if no other rank has failed.
    pub failure: Option<(usize, String)>,
    /// Whether the ranks ended by request.
    pub is_stopped: bool,
    /// Time from the start of the first rank to the end of the last.
    pub duration: Duration,
}

impl Ended {
    pub(super) fn new(
        outcome: Outcome,
        host_of: impl Fn(usize) -> Option<String>,
        duration: Duration,
    ) -> Self {
        let Outcome { statuses, failed, last_words, is_stopped } = outcome;
        let ranks: Vec<_> = statuses
            .into_iter()
            .enumerate()
            .map(|(rank, status)| RankEnded { rank, host: host_of(rank), status })
            .collect();
        let failure = failed.and_then(|rank| Some((rank, ranks.get(rank)?.describe(last_words))));
        Self { ranks, failure, is_stopped, duration }
    }

    /// Returns the exit code that a launcher ends with: that of the rank that failed first, 128 and
    /// the number of the signal if a signal has killed it, or 0 if no rank has failed.
    pub fn exit_code(&self) -> u8 {
        let failed = self.failure.as_ref().and_then(|(rank, _)| self.ranks.get(*rank));
        failed.map_or(0, |rank| match (rank.status.code(), rank.status.signal()) {
            (Some(code), _) => code as u8,
            (None, Some(signal)) => 128_u8.wrapping_add(signal as u8),
            (None, None) => 1,
        })
    }
}

impl RankEnded {
    /// Returns what happened to a rank that failed.
    fn describe(&self, last_words: Option<String>) -> String {
        let what = match (self.status.code(), self.status.signal()) {
            (Some(code), _) => format!("ended with status {code}"),
            (None, Some(signal)) => format!("was killed by signal {signal}{}", name(signal)),
            (None, None) => "ended".into(),
        };
        let what = match self.status.signal() {
            Some(libc::SIGBUS | libc::SIGSEGV) => format!("{what}; {HANDLERS}"),
            _ => what,
        };
        match (&self.host, self.status.code(), last_words) {
            // This status is `ssh`'s own.
            (Some(host), Some(SHELL_FAILED), Some(words)) if !words.is_empty() => {
                format!("was not started on host {host}, or lost its connection: {words}")
            }
            (Some(host), Some(SHELL_FAILED), _) => {
                format!("was not started on host {host}, or lost its connection")
            }
            (Some(host), _, _) => format!("on host {host} {what}"),
            (None, _, _) => what,
        }
    }
}

/// Returns the name of a signal that ends programs, in brackets.
fn name(signal: i32) -> &'static str {
    match signal {
        libc::SIGABRT => " (SIGABRT)",
        libc::SIGBUS => " (SIGBUS)",
        libc::SIGFPE => " (SIGFPE)",
        libc::SIGILL => " (SIGILL)",
        libc::SIGINT => " (SIGINT)",
        libc::SIGKILL => " (SIGKILL)",
        libc::SIGPIPE => " (SIGPIPE)",
        libc::SIGSEGV => " (SIGSEGV)",
        libc::SIGTERM => " (SIGTERM)",
        _ => "",
    }
}

/// What may have happened to a rank that a memory fault has killed, besides an error in the program.
const HANDLERS: &str =
    "if the program handles this signal, it must install its handler before it joins";

/// Exit status of `ssh` if it has failed itself.
const SHELL_FAILED: i32 = 255;
