//! Starts the ranks of a program on this host, forwards their output, and ends them together.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::UdpSocket;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use crate::variables::{MEET, RANK, SIZE};

/// A program that runs on several ranks of this host.
#[derive(Clone, Debug)]
pub struct Launch {
    /// Number of ranks.
    pub size: usize,
    /// The program.
    pub program: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// How the ranks ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Ended {
    /// The exit status of each rank.
    pub statuses: Vec<ExitStatus>,
    /// The rank that failed first, and what happened to it.
    pub failure: Option<(usize, String)>,
}

impl Launch {
    /// Runs the program. Copies each line that a rank prints to `output`, with the rank in front.
    /// If a rank fails, the others have [`GRACE`] to end by themselves, and are killed then.
    ///
    /// # Errors
    /// The program cannot be started, or `output` cannot be written. No rank is left then.
    pub fn run(&self, output: &mut dyn Write) -> io::Result<Ended> {
        // The port is free again when the socket is dropped, and rank 0 takes it at once.
        let meet = UdpSocket::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let mut ranks = Ranks(Vec::new());
        let (sender, lines) = mpsc::channel();
        for rank in 0..self.size {
            let mut command = Command::new(&self.program);
            command.args(&self.arguments).env(RANK, rank.to_string());
            command.env(SIZE, self.size.to_string()).env(MEET, &meet);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn()?;
            let streams = [
                child.stdout.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>),
                child.stderr.take().map(|stream| Box::new(stream) as Box<dyn Read + Send>),
            ];
            for stream in streams.into_iter().flatten() {
                let sender = sender.clone();
                thread::spawn(move || forward(rank, stream, &sender));
            }
            ranks.0.push(child);
        }
        drop(sender);
        ranks.wait(&lines, output)
    }
}

/// Sends each line of a stream.
fn forward(rank: usize, stream: impl Read, lines: &mpsc::Sender<(usize, Vec<u8>)>) {
    for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
        if lines.send((rank, line)).is_err() {
            return;
        }
    }
}

/// The processes of the ranks. They are killed when this value is dropped.
struct Ranks(Vec<Child>);

impl Ranks {
    fn wait(
        &mut self,
        lines: &mpsc::Receiver<(usize, Vec<u8>)>,
        output: &mut dyn Write,
    ) -> io::Result<Ended> {
        let mut statuses = vec![None; self.0.len()];
        let mut failure: Option<(usize, String)> = None;
        let mut kill_at = None;
        loop {
            let mut is_open = true;
            match lines.recv_timeout(PAUSE) {
                Ok((rank, line)) => print(output, rank, &line)?,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => {
                    is_open = false;
                    thread::sleep(PAUSE);
                }
            }
            for (rank, (child, status)) in self.0.iter_mut().zip(&mut statuses).enumerate() {
                if status.is_none() {
                    *status = child.try_wait()?;
                    if let Some(status) = status.filter(|status| !status.success())
                        && failure.is_none()
                    {
                        failure = Some((rank, describe(status)));
                        kill_at = Some(Instant::now() + GRACE);
                    }
                }
            }
            let ended: Option<Vec<_>> = statuses.iter().copied().collect();
            if let Some(statuses) = ended {
                // A process that a rank has started may hold its output open.
                let deadline = Instant::now() + PAUSE * 5;
                while is_open && Instant::now() < deadline {
                    match lines.recv_timeout(PAUSE) {
                        Ok((rank, line)) => print(output, rank, &line)?,
                        Err(mpsc::RecvTimeoutError::Timeout) => {}
                        Err(mpsc::RecvTimeoutError::Disconnected) => is_open = false,
                    }
                }
                return Ok(Ended { statuses, failure });
            }
            if kill_at.is_some_and(|time| Instant::now() > time) {
                kill_at = None;
                self.kill();
            }
        }
    }

    fn kill(&mut self) {
        for child in &mut self.0 {
            // This fails only if the process has ended already.
            let _ended = child.kill();
        }
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        self.kill();
        for child in &mut self.0 {
            let _ended = child.wait();
        }
    }
}

fn print(output: &mut dyn Write, rank: usize, line: &[u8]) -> io::Result<()> {
    writeln!(output, "[{rank}] {}", String::from_utf8_lossy(line))
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was killed by signal {signal}"),
        (None, None) => "ended".into(),
    }
}

/// How long the other ranks may take to end after a rank has failed.
pub const GRACE: Duration = Duration::from_secs(3);

/// Time between two looks for ranks that have ended.
const PAUSE: Duration = Duration::from_millis(10);

#[cfg(test)]
mod tests {
    use super::*;

    fn run(size: usize, script: &str) -> (Ended, String) {
        let arguments = vec!["-c".into(), script.into()];
        let launch = Launch { size, program: "sh".into(), arguments };
        let mut output = Vec::new();
        let ended = launch.run(&mut output).unwrap();
        (ended, String::from_utf8(output).unwrap())
    }

    #[test]
    fn each_rank_has_its_number_and_its_lines_carry_it() {
        let script = "echo rank $ETHERNOT_DSM_RANK of $ETHERNOT_DSM_SIZE; echo trouble >&2";
        let (ended, output) = run(2, script);
        assert_eq!(ended.failure, None);
        let mut lines: Vec<_> = output.lines().collect();
        lines.sort_unstable();
        assert_eq!(lines, ["[0] rank 0 of 2", "[0] trouble", "[1] rank 1 of 2", "[1] trouble"]);
    }

    #[test]
    fn the_first_failure_ends_the_others_and_is_named() {
        let script = "[ $ETHERNOT_DSM_RANK = 1 ] && exit 3; exec sleep 1000";
        let (ended, _) = run(3, script);
        assert_eq!(ended.failure, Some((1, "ended with status 3".into())));
        assert_eq!(ended.statuses[0].signal(), Some(9));
    }
}
