//! The processes of the ranks.

use std::io::{self, IsTerminal};
use std::mem::MaybeUninit;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::SyncSender;
use std::thread;

use super::forward::{Line, forward};
use crate::failure::STATUS_FAILED;

/// The standard input of a rank.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Input {
    None,
    /// That of this process.
    OfThisProcess,
    /// Has no bytes, and ends with this process.
    HeldOpen,
}

/// The processes of the ranks. They and all processes of their groups are killed when this value is
/// dropped.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    processes: Vec<Process>,
    /// The rank that failed first. A rank that ended because another one failed gives way to one
    /// that has a cause of its own.
    failed: Option<(usize, ExitStatus)>,
}

/// A process that leads a group. It is waited for at the end only: until then, no other process can
/// have the number of its group.
#[derive(Debug)]
struct Process {
    child: Child,
    _input: Option<ChildStdin>,
    status: Option<ExitStatus>,
}

impl Ranks {
    /// Starts the next rank, and threads that send its lines.
    pub(super) fn start(
        &mut self,
        command: &mut Command,
        input: Input,
        lines: &SyncSender<Line>,
    ) -> io::Result<()> {
        let rank = self.processes.len();
        end_with_this_process(command);
        let is_copied = input == Input::OfThisProcess && io::stdin().is_terminal();
        command.stdin(match input {
            // The terminal is for the group of this process only.
            Input::OfThisProcess if is_copied && is_in_background() => Stdio::null(),
            Input::OfThisProcess if !is_copied => Stdio::inherit(),
            Input::OfThisProcess | Input::HeldOpen => Stdio::piped(),
            Input::None => Stdio::null(),
        });
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
        if let Some(stream) = child.stdout.take() {
            let lines = lines.clone();
            thread::spawn(move || forward(rank, false, stream, &lines));
        }
        if let Some(stream) = child.stderr.take() {
            let lines = lines.clone();
            thread::spawn(move || forward(rank, true, stream, &lines));
        }
        let mut input = child.stdin.take();
        if is_copied && let Some(mut input) = input.take() {
            // The thread ends with the input, or with this process.
            thread::spawn(move || io::copy(&mut io::stdin(), &mut input));
        }
        self.processes.push(Process { child, _input: input, status: None });
        Ok(())
    }

    pub(super) fn len(&self) -> usize {
        self.processes.len()
    }

    /// Looks for ranks that have ended. Returns whether a rank has failed.
    pub(super) fn look(&mut self) -> io::Result<bool> {
        for (rank, process) in self.processes.iter_mut().enumerate() {
            if process.status.is_some() {
                continue;
            }
            process.status = status_of(&process.child)?;
            let Some(status) = process.status.filter(|status| !status.success()) else { continue };
            let is_consequence = |status: ExitStatus| status.code() == Some(STATUS_FAILED);
            let gives_way = |(_, first)| is_consequence(first) && !is_consequence(status);
            if self.failed.is_none_or(gives_way) {
                self.failed = Some((rank, status));
            }
        }
        Ok(self.failed.is_some())
    }

    /// Returns the rank that failed first.
    pub(super) fn first_failure(&self) -> Option<usize> {
        self.failed.map(|(rank, _)| rank)
    }

    /// Returns the statuses of the ranks, if all have ended.
    pub(super) fn statuses(&self) -> Option<Vec<ExitStatus>> {
        self.processes.iter().map(|process| process.status).collect()
    }

    /// Sends a signal to the groups of all ranks.
    pub(super) fn signal(&self, signal: i32) {
        for process in &self.processes {
            let group = -process.child.id().cast_signed();
            // SAFETY: the call takes numbers only. It fails only if no process is left.
            unsafe { libc::kill(group, signal) };
        }
    }

    /// Kills all processes, and waits for the ranks.
    pub(super) fn end(&mut self) {
        self.signal(libc::SIGKILL);
        for mut process in self.processes.drain(..) {
            // This fails only if another part of the program has waited for all its children.
            let _ended = process.child.wait();
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the status of a process that has ended. The process stays a child to wait for.
fn status_of(child: &Child) -> io::Result<Option<ExitStatus>> {
    let mut info = MaybeUninit::<libc::siginfo_t>::zeroed();
    let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
    // SAFETY: the place is large enough. Zeros are a valid value, which means that the process runs.
    let info = unsafe {
        if libc::waitid(libc::P_PID, child.id(), info.as_mut_ptr(), options) != 0 {
            return Err(io::Error::last_os_error());
        }
        info.assume_init()
    };
    // SAFETY: `waitid` has filled the fields of an ended child, or left zeros.
    let (process, status) = unsafe { (info.si_pid(), info.si_status()) };
    Ok((process != 0).then(|| match info.si_code {
        libc::CLD_EXITED => ExitStatus::from_raw((status & 0xff) << 8),
        _ => ExitStatus::from_raw(status),
    }))
}

/// Lets the kernel kill a process when the thread that has started it ends.
fn end_with_this_process(command: &mut Command) {
    let parent = std::process::id().cast_signed();
    // SAFETY: the calls in the new process are async-signal-safe and take numbers only.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have ended before.
            if libc::getppid() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
}

/// Returns whether the terminal stops this process if it reads.
fn is_in_background() -> bool {
    // SAFETY: the calls take and return numbers.
    unsafe { libc::tcgetpgrp(libc::STDIN_FILENO) != libc::getpgrp() }
}
