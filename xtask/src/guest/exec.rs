//! Runs a command in a running guest.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::answer::{self, Answer, Part};
use super::error::GuestError;
use super::machine;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The command's exit status.
    Status(u8),
    /// The command was killed, because it ran for longer than its limit.
    TimedOut,
}

/// Time that a guest may take to start and to accept a command. It starts in 4 seconds on an idle
/// host; tests run beside builds.
const START: Duration = Duration::from_mins(4);

/// Time that the agent may take to report the end of a command that it kills. The agent waits two
/// seconds between its signals.
const KILLING: Duration = Duration::from_secs(20);

/// Runs a command in the guest whose folder this is. Copies the command's output to this process's
/// output as it arrives. Waits until the guest has started, if it is just starting.
///
/// # Errors
///
/// [`GuestError::Lost`] if the guest ends or does not answer.
pub(crate) fn exec(folder: &Path, command: &str, limit: Duration) -> Result<Ending, GuestError> {
    let mut session = Session::open(folder)?;
    let name = answer::name_from(random()?);
    session.send(&answer::request(&name, command))?;
    let mut answer = Answer::to(name);
    let mut deadline = Instant::now() + START;
    let mut state = State::Waiting;
    loop {
        while let Some(part) = answer.poll_part() {
            match part {
                Part::Started => {
                    state = State::Running;
                    deadline = Instant::now() + limit;
                }
                Part::Output(bytes) => copy(&mut std::io::stdout(), &bytes)?,
                Part::Errors(bytes) => copy(&mut std::io::stderr(), &bytes)?,
                Part::Status(_) if state == State::Killed => return Ok(Ending::TimedOut),
                Part::Status(status) => return Ok(Ending::Status(status)),
            }
        }
        match session.receive(deadline)? {
            Some(bytes) => answer.handle_bytes(bytes),
            None if state == State::Running => {
                state = State::Killed;
                deadline = Instant::now() + KILLING;
                session.send(answer::KILL)?;
            }
            None if state == State::Killed => return Err(session.lost("it does not answer")),
            None => return Err(session.lost("it accepts no command")),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The agent has not yet started the command.
    Waiting,
    Running,
    /// The limit has passed.
    Killed,
}

/// A connection with a port of the guest.
struct Session {
    folder: PathBuf,
    stream: UnixStream,
    buffer: Box<[u8]>,
    /// Keeps other processes from this port. qemu would let them wait until this one is closed.
    _lock: File,
}

impl Session {
    fn open(folder: &Path) -> Result<Self, GuestError> {
        let directory = File::open(folder).map_err(GuestError::read(folder))?;
        let deadline = Instant::now() + START;
        loop {
            for index in 0..machine::PORTS {
                let lock_path = folder.join(format!("{}.lock", machine::port(index)));
                let lock = File::create(&lock_path).map_err(GuestError::write(&lock_path))?;
                if lock.try_lock().is_err() {
                    continue;
                }
                // The path through /proc is short, whatever the folder's path is: a path of a
                // Unix socket has at most 107 bytes.
                let short =
                    format!("/proc/self/fd/{}/{}", directory.as_raw_fd(), machine::port(index));
                if let Ok(stream) = UnixStream::connect(short) {
                    let (folder, buffer) = (folder.into(), vec![0; 1 << 16].into());
                    return Ok(Self { folder, stream, buffer, _lock: lock });
                }
                return Err(lost(folder, "it has ended"));
            }
            if Instant::now() > deadline {
                return Err(lost(folder, "all its ports are in use"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), GuestError> {
        self.stream.write_all(bytes).map_err(|_| self.lost("it has ended"))
    }

    /// Returns bytes that arrived, or `None` after the deadline.
    fn receive(&mut self, deadline: Instant) -> Result<Option<&[u8]>, GuestError> {
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            let result = self
                .stream
                .set_read_timeout(Some(left))
                .and_then(|()| self.stream.read(&mut self.buffer));
            match result {
                Ok(0) => return Err(self.lost("it has ended")),
                Ok(count) => return Ok(self.buffer.get(..count)),
                Err(cause)
                    if matches!(
                        cause.kind(),
                        ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted
                    ) => {}
                Err(cause) => return Err(self.lost(&cause.to_string())),
            }
        }
    }

    fn lost(&self, what: &str) -> GuestError {
        lost(&self.folder, what)
    }
}

fn lost(folder: &Path, what: &str) -> GuestError {
    GuestError::Lost { what: what.into(), console: super::running::last_words(folder) }
}

fn copy(to: &mut dyn Write, bytes: &[u8]) -> Result<(), GuestError> {
    let result = to.write_all(bytes).and_then(|()| to.flush());
    result.map_err(|cause| GuestError::Write { path: "the output".into(), cause })
}

fn random() -> Result<[u8; 8], GuestError> {
    let path = Path::new("/dev/urandom");
    let mut bytes = [0; 8];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut bytes));
    read.map(|()| bytes).map_err(GuestError::read(path))
}
