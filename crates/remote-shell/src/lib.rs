//! The command line by which `ssh`, or a program that is used like it, runs a program on another
//! host. The program there ends when its starter ends, or closes the input of the shell.
//!
//! ```
//! let words = ["echo", "two words"].map(std::ffi::OsStr::new);
//! let line = remote_shell::command([].iter(), words.into_iter());
//! let mut shell = std::process::Command::new("sh"); // Stands for `ssh HOST`.
//! let mut child = shell.arg("-c").arg(line).stdin(std::process::Stdio::piped()).spawn()?;
//! let _held_open = child.stdin.take();
//! assert!(child.wait()?.success());
//! # Ok::<(), std::io::Error>(())
//! ```

#![forbid(unsafe_code)]

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Returns the command for a shell on the other host: it runs `words` with these variables, in the
/// folder of this process if there is one with this name, and ends with the status of the program.
/// The program has no input.
///
/// The program ends if the command's input ends, so hold the input open.
pub fn command<'a>(
    variables: impl Iterator<Item = &'a (OsString, OsString)>,
    words: impl Iterator<Item = &'a OsStr>,
) -> OsString {
    let mut run = Vec::new();
    for (name, value) in variables {
        let assignment = [name.as_bytes(), b"=", value.as_bytes()].concat();
        run.extend_from_slice(&quoted(&assignment));
        run.push(b' ');
    }
    for word in words {
        run.extend_from_slice(&quoted(word.as_bytes()));
        run.push(b' ');
    }
    let folder = std::env::current_dir().unwrap_or_default();
    let script = [
        b"cd ",
        &quoted(folder.as_os_str().as_bytes())[..],
        b" 2>/dev/null\nexec 3<&0\nenv ",
        &run,
        b"</dev/null 3<&- &\n",
        WATCH.as_bytes(),
    ]
    .concat();
    // The login shell of a user need not be one with this syntax.
    OsString::from_vec([b"exec sh -c ", &quoted(&script)[..]].concat())
}

/// Returns a word that a shell reads as these bytes.
fn quoted(bytes: &[u8]) -> Vec<u8> {
    let mut word = vec![b'\''];
    for byte in bytes {
        match byte {
            b'\'' => word.extend_from_slice(b"'\\''"),
            byte => word.push(*byte),
        }
    }
    word.push(b'\'');
    word
}

/// Ends the program when the input ends, and returns its status.
const WATCH: &str = "program=$!
{ cat <&3; kill $program; sleep 1; kill -9 $program; } >/dev/null 2>&1 &
watch=$!
exec 3<&-
wait $program
status=$?
kill $watch
exit $status";

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    const SIGTERM: i32 = 15;

    fn started(words: &[&str]) -> std::process::Child {
        let variables = [("A".into(), "two words".into())];
        let line = command(variables.iter(), words.iter().map(|word| OsStr::new(*word)));
        let mut command = Command::new("sh");
        command.arg("-c").arg(line).stdin(Stdio::piped()).stdout(Stdio::piped());
        command.spawn().unwrap()
    }

    #[test]
    fn words_with_any_character_variables_and_the_status_arrive() {
        let script = "echo \"$A\" \"$1\"; pwd; exit 7";
        let mut child = started(&["sh", "-c", script, "name", "it's $HOME"]);
        let _held = child.stdin.take();
        let output = child.wait_with_output().unwrap();
        let folder = std::env::current_dir().unwrap();
        let expected = format!("two words it's $HOME\n{}\n", folder.display());
        assert_eq!(String::from_utf8_lossy(&output.stdout), expected);
        assert_eq!(output.status.code(), Some(7));
    }

    #[test]
    fn the_program_ends_with_the_input() {
        let mut child = started(&["sleep", "1000"]);
        drop(child.stdin.take());
        assert_eq!(child.wait().unwrap().code(), Some(128 + SIGTERM));
    }
}
