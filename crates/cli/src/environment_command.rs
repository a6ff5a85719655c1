//! `ethernot env`: prints the variables that `ethernot run` sets, for shells and scripts.

use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;

use clap::Args;
use serde_json::{Map, Value, json};

use crate::Failure;
use crate::surroundings::{Options, Variables};

/// Print environment variables for a shell that give programs an RDMA device, or move their TCP
/// connections.
///
/// If the shell sets these variables, all programs that it starts after that inherit them. Use the
/// command in a container's start script, a cluster job or a test suite. For a single program use
/// `ethernot run`, which also reports the reason if a program cannot run this way.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    eval \"$(ethernot env)\"\n  \
    eval \"$(ethernot env --links eth0 --log info)\"\n  \
    eval \"$(ethernot env --sockets --networks 10.0.0.0/8)\"\n  \
    ethernot env --json | jq -r .variables.LD_PRELOAD")]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Print JSON instead of shell commands
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let Variables(variables) = Variables::of(&arguments.options)?;
    let mut text = Vec::new();
    if arguments.json {
        let variables: Map<String, Value> = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.to_string_lossy().into()))
            .collect();
        writeln!(text, "{:#}", json!({ "format": FORMAT, "variables": variables }))?;
    } else {
        for (name, value) in &variables {
            text.extend_from_slice(format!("export {name}=").as_bytes());
            text.extend_from_slice(&quoted(value));
            text.push(b'\n');
        }
    }
    Ok(io::stdout().write_all(&text)?)
}

/// Quotes a value for POSIX shells. Between single quotes only the single quote has a special
/// meaning.
fn quoted(value: &OsStr) -> Vec<u8> {
    let mut quoted = vec![b'\''];
    for &byte in value.as_bytes() {
        match byte {
            b'\'' => quoted.extend_from_slice(b"'\\''"),
            byte => quoted.push(byte),
        }
    }
    quoted.push(b'\'');
    quoted
}

/// Name of the JSON format.
const FORMAT: &str = "ethernot-env-1";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_parses_quoted_text_to_the_original() {
        for value in ["", "plain", "it's", "$HOME `ls` \"x\" \\ !", "two\nlines", "''"] {
            let mut script = b"printf %s ".to_vec();
            script.extend(quoted(OsStr::new(value)));
            let mut shell = std::process::Command::new("sh");
            let output = shell.arg("-c").arg(OsStr::from_bytes(&script)).output().unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), value);
        }
    }
}
