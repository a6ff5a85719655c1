//! Cuts and restores a link at a chosen moment. The program that does this starts ahead of time.
//!
//! While two processes poll on all processors, starting or ending a program in a namespace takes a
//! second or more, because the kernel waits until no processor uses the old state any longer.
//! Therefore the program starts before the measurement, waits for its commands, and ends after the
//! measurement. The kernel may delay the commands, too. Therefore a query follows the commands. The
//! answer to the query shows that the commands have taken effect.

use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::{self, JoinHandle};

use crate::cleanup;
use crate::clock;
use crate::namespace::NamespaceError;

/// A program in a switch's namespace that waits for its commands. Drop kills it.
#[derive(Debug)]
pub struct Lever {
    child: Child,
    input: Option<ChildStdin>,
    /// The command line, for error texts.
    command: String,
    /// The commands and the query, for the program's standard input.
    commands: String,
    pulled_at_ns: u64,
    /// The thread that waits for the answer. It returns the time at which the answer arrived, or
    /// `None` if no answer arrived.
    answer: Option<JoinHandle<Option<u64>>>,
}

impl Lever {
    /// Starts `program`. Its arguments must make it read commands until the end of its standard
    /// input. [`Self::pull`] later writes `commands` to this input, and then the query `question`.
    /// The program must answer `question` with at least one byte.
    pub(crate) fn start(
        program: &'static str,
        arguments: &[&str],
        commands: &str,
        question: &str,
    ) -> Result<Self, NamespaceError> {
        let command = format!("{program} {}", arguments.join(" "));
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // The child has its own process group, so Ctrl-C does not signal the child. Instead,
            // the parent ends its children in the right order.
            .process_group(0)
            .spawn()
            .map_err(|source| NamespaceError::Start { command: command.clone(), source })?;
        cleanup::register_child(child.id());
        let input = child.stdin.take();
        let output = child.stdout.take();
        let answer = thread::spawn(move || {
            let mut output = output?;
            let came = output.read_exact(&mut [0]).is_ok().then(clock::monotonic_ns);
            // Read the rest of the answer. Otherwise the rest could fill the pipe and block the
            // program.
            io::copy(&mut output, &mut io::sink()).ok()?;
            came
        });
        let commands = format!("{commands}{question}\n");
        Ok(Self { child, input, command, commands, pulled_at_ns: 0, answer: Some(answer) })
    }

    /// Writes the commands. Returns the time of the call, in nanoseconds on the clock of
    /// [`clock::monotonic_ns`]. The commands take effect as soon as the program gets a processor.
    ///
    /// # Errors
    /// Returns [`NamespaceError`]; each variant names one cause.
    pub fn pull(&mut self) -> Result<u64, NamespaceError> {
        let at_ns = clock::monotonic_ns();
        // Close the input at the end of this function, because the program reads until the end.
        let input = self.input.take().ok_or_else(|| io::Error::other("its input is closed"));
        input.and_then(|mut input| input.write_all(self.commands.as_bytes())).map_err(|error| {
            let message = format!("writing {:?} to it: {error}", self.commands);
            NamespaceError::Failed { command: self.command.clone(), message }
        })?;
        self.pulled_at_ns = at_ns;
        Ok(at_ns)
    }

    /// Waits until the program has ended. Returns an upper bound of the time from [`Self::pull`]
    /// until the commands took effect, in nanoseconds.
    ///
    /// # Errors
    /// Returns [`NamespaceError`]; each variant names one cause.
    pub fn finish(mut self) -> Result<u64, NamespaceError> {
        let failed = |message| NamespaceError::Failed {
            command: format!("{} < {:?}", self.command, self.commands),
            message,
        };
        let mut message = String::new();
        let said = self.child.stderr.take();
        let read = said.map_or(Ok(0), |mut said| said.read_to_string(&mut message));
        let status = read.and_then(|_| self.child.wait());
        match status {
            Ok(status) if status.success() => {
                let came = self.answer.take().and_then(|answer| answer.join().ok()).flatten();
                let came = came.ok_or_else(|| failed("it did not answer".into()))?;
                Ok(came.saturating_sub(self.pulled_at_ns))
            }
            Ok(_) => Err(failed(message.trim().to_string())),
            Err(error) => Err(failed(format!("waiting for its end: {error}"))),
        }
    }
}

impl Drop for Lever {
    fn drop(&mut self) {
        // Both calls fail only if the child has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        cleanup::forget_child(self.child.id());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_change_is_reported_with_its_command() {
        let commands = "link set nowhere up\n";
        let Ok(mut lever) = Lever::start("ip", &["-batch", "-"], commands, QUESTION) else {
            eprintln!("skipped: the command `ip` is not installed");
            return;
        };
        assert!(lever.pull().is_ok());
        let error = lever.finish().unwrap_err().to_string();
        assert!(error.contains("ip -batch -") && error.contains("nowhere"), "{error}");
    }

    #[test]
    fn a_lever_acts_once() {
        let Ok(mut lever) = Lever::start("ip", &["-batch", "-"], "", QUESTION) else {
            eprintln!("skipped: the command `ip` is not installed");
            return;
        };
        assert!(lever.pull().is_ok());
        assert!(lever.pull().is_err());
        let took_ns = lever.finish().unwrap();
        assert!(took_ns < 60_000_000_000, "{took_ns}");
    }

    const QUESTION: &str = "link show dev lo";
}
