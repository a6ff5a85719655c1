//! Finds out which links this host and this process can have, and what prevents other links.
//! Changes nothing.

mod host;
mod interface;
mod sockets;

use std::env;
use std::io;

use link::host::{
    Capabilities, Capability, ProbeError, interfaces, probe_bpf_program, probe_packet_socket,
    probe_shared_memory, probe_xdp_socket,
};

pub(crate) use host::Finding;
pub(crate) use interface::InterfaceDiagnosis;

/// The whole diagnosis.
#[derive(Debug)]
pub(crate) struct Diagnosis {
    /// The interfaces, in the kernel's order.
    pub(crate) interfaces: Vec<InterfaceDiagnosis>,
    /// Whether links over shared memory with processes of this host are possible.
    pub(crate) shared_memory: Verdict,
    /// Whether TCP connections can move to the edge (`ethernot run --sockets`).
    pub(crate) sockets: Verdict,
    /// Other properties of this host that affect speed.
    pub(crate) findings: Vec<Finding>,
}

/// Whether a kind of link is possible.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Verdict {
    /// Whether the link is possible.
    pub(crate) works: bool,
    /// One word: how the link is possible, or why not.
    pub(crate) word: String,
    /// The obstacle, in a sentence.
    pub(crate) obstacle: Option<String>,
    /// The command that removes the obstacle.
    pub(crate) remedy: Option<String>,
}

/// The privileges of this process.
#[derive(Clone, Debug)]
pub(crate) struct Rights {
    /// The result of opening a packet socket.
    pub(crate) packet_socket: Trial,
    /// The result of opening an `AF_XDP` socket.
    pub(crate) xdp_socket: Trial,
    /// The result of loading an XDP program into the kernel.
    pub(crate) program: Trial,
    /// Whether XDP programs can be attached to interfaces. This is derived from the capabilities,
    /// because an attempt to attach a program would change an interface.
    pub(crate) can_attach: bool,
    /// The path of this program, quoted for a shell.
    pub(crate) program_path: String,
}

/// The result of an attempt to use a feature.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Trial {
    Worked,
    NotPermitted,
    NotThere,
    Failed(String),
}

impl Diagnosis {
    /// Makes the diagnosis.
    pub(crate) fn make() -> io::Result<Self> {
        let rights = Rights::find();
        let shared_memory = match Trial::from(probe_shared_memory()) {
            Trial::Worked => Verdict::yes("yes"),
            Trial::Failed(reason) => Verdict::no("no", reason, None),
            other => Verdict::no("no", format!("memory without a name (memfd): {other}"), None),
        };
        let found = interfaces()?;
        Ok(Self {
            interfaces: found.into_iter().map(|i| InterfaceDiagnosis::of(i, &rights)).collect(),
            shared_memory,
            sockets: sockets::verdict(),
            findings: host::findings(),
        })
    }

    /// Returns whether this process can have any link.
    pub(crate) fn is_any_usable(&self) -> bool {
        self.interfaces.iter().any(|i| i.udp.works || i.packet.works || i.xdp.works)
    }
}

impl Rights {
    fn find() -> Self {
        let capabilities = Capabilities::effective().unwrap_or_default();
        let path = env::current_exe().ok();
        let path = path.and_then(|path| path.into_os_string().into_string().ok());
        Self {
            packet_socket: probe_packet_socket().into(),
            xdp_socket: probe_xdp_socket().into(),
            program: probe_bpf_program().into(),
            can_attach: capabilities.has(Capability::NetAdmin),
            program_path: path
                .map_or_else(|| "$(command -v ethernot)".into(), |path| quoted(&path)),
        }
    }

    /// Returns the command that gives this program `capabilities`.
    pub(crate) fn grant(&self, capabilities: &str) -> String {
        format!("sudo setcap {capabilities}+ep {}", self.program_path)
    }
}

impl Verdict {
    pub(crate) fn yes(word: &str) -> Self {
        Self { works: true, word: word.into(), obstacle: None, remedy: None }
    }

    /// Returns this verdict if it is negative. Otherwise runs `attempt`, and returns a negative
    /// verdict if `attempt` fails.
    pub(crate) fn and_then(self, attempt: impl FnOnce() -> Result<(), String>) -> Self {
        if !self.works {
            return self;
        }
        match attempt() {
            Ok(()) => self,
            Err(reason) => Self::no("no", reason, None),
        }
    }

    pub(crate) fn no(word: &str, obstacle: impl Into<String>, remedy: Option<String>) -> Self {
        Self { works: false, word: word.into(), obstacle: Some(obstacle.into()), remedy }
    }
}

impl From<Result<(), ProbeError>> for Trial {
    fn from(outcome: Result<(), ProbeError>) -> Self {
        match outcome {
            Ok(()) => Self::Worked,
            Err(ProbeError::NotPermitted) => Self::NotPermitted,
            Err(ProbeError::NotThere) => Self::NotThere,
            Err(error) => Self::Failed(error.to_string()),
        }
    }
}

impl std::fmt::Display for Trial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Worked => "works",
            Self::NotPermitted => "not permitted",
            Self::NotThere => "this kernel does not support it",
            Self::Failed(reason) => reason,
        })
    }
}

/// Quotes a text as one word for a shell.
fn quoted(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+".contains(c);
    if text.chars().all(is_plain) {
        text.into()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_quoted_as_one_shell_word() {
        assert_eq!(quoted("/usr/bin/ethernot"), "/usr/bin/ethernot");
        assert_eq!(quoted("/a b/it's"), r"'/a b/it'\''s'");
    }
}
