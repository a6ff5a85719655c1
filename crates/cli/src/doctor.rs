//! What links this host and this process can have, and what stands in the way. Changes nothing.

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

/// Everything that was found out.
#[derive(Debug)]
pub(crate) struct Diagnosis {
    /// The interfaces, in the kernel's order.
    pub(crate) interfaces: Vec<InterfaceDiagnosis>,
    /// Links by shared memory with processes of this host.
    pub(crate) shared_memory: Verdict,
    /// TCP connections that move (`ethernot run --sockets`).
    pub(crate) sockets: Verdict,
    /// What else matters on this host.
    pub(crate) findings: Vec<Finding>,
}

/// Whether a kind of link is possible.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Verdict {
    /// It is.
    pub(crate) works: bool,
    /// In a word, how; or why not.
    pub(crate) word: String,
    /// What stands in the way, in a sentence.
    pub(crate) obstacle: Option<String>,
    /// The command that removes the obstacle.
    pub(crate) remedy: Option<String>,
}

/// What the process may do.
#[derive(Clone, Debug)]
pub(crate) struct Rights {
    /// Packet sockets.
    pub(crate) packet_socket: Trial,
    /// `AF_XDP` sockets.
    pub(crate) xdp_socket: Trial,
    /// Programs for XDP in the kernel.
    pub(crate) program: Trial,
    /// To attach those to interfaces. Trying would change an interface, so the kernel's word has to
    /// do.
    pub(crate) can_attach: bool,
    /// This program, as a shell command names it.
    pub(crate) program_path: String,
}

/// How a trial ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Trial {
    Worked,
    NotPermitted,
    NotThere,
    Failed(String),
}

impl Diagnosis {
    /// Finds out.
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

    /// There is a link that this process can have.
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

    /// The command that gives this program what packet links need, or all that XDP links do.
    pub(crate) fn grant(&self, capabilities: &str) -> String {
        format!("sudo setcap {capabilities}+ep {}", self.program_path)
    }
}

impl Verdict {
    pub(crate) fn yes(word: &str) -> Self {
        Self { works: true, word: word.into(), obstacle: None, remedy: None }
    }

    /// This verdict, unless it is a yes that a trial refutes.
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
            Self::NotThere => "this kernel does not have it",
            Self::Failed(reason) => reason,
        })
    }
}

/// The text as one word of a shell.
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
    fn paths_are_one_word_of_a_shell() {
        assert_eq!(quoted("/usr/bin/ethernot"), "/usr/bin/ethernot");
        assert_eq!(quoted("/a b/it's"), r"'/a b/it'\''s'");
    }
}
