//! A host that a remote shell reaches.

use std::ffi::OsStr;

/// A host that a remote shell, such as `ssh`, reaches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Remote {
    /// The shell with its options.
    shell: Vec<String>,
    /// The host, as the shell names it, such as `user@host`.
    host: String,
}

impl Remote {
    /// Describes a host. `shell` is a program with its options. It gets the host and a command, as
    /// `ssh` does.
    pub fn new(shell: Vec<String>, host: impl Into<String>) -> Self {
        Self { shell, host: host.into() }
    }

    /// Returns the name of the host.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// Returns the words that run `words` on the host. The program ends when the input of these
    /// words ends.
    pub(super) fn words(&self, words: &[String]) -> Vec<String> {
        let command = remote_shell::command([].iter(), words.iter().map(OsStr::new));
        let mut line = self.shell.clone();
        line.extend([self.host.clone(), command.to_string_lossy().into_owned()]);
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shell_gets_the_host_and_one_command() {
        let remote = Remote::new(vec!["ssh".into(), "-x".into()], "user@host");
        let line = remote.words(&["program".into(), "an argument".into()]);
        assert_eq!(line[..3], ["ssh", "-x", "user@host"]);
        assert_eq!(line.len(), 4);
        assert!(line[3].contains("program") && line[3].contains("an argument"), "{line:?}");
    }
}
