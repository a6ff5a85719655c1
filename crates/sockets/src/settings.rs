//! Settings from environment variables. The library reads them once, when it is loaded, because a
//! program may clear its environment later.

use std::collections::HashSet;
use std::env;
use std::fmt::Display;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use link::FaultShares;
use links::LinkSpec;
use runtime::Polling;
use thiserror::Error;

use crate::log::LogLevel;
use crate::networks::Networks;
use crate::paying::{Gains, Moving};
use crate::reasons::Reason;
pub(crate) use crate::rules::Role;
use crate::rules::{Ports, Rule, RuleError, Rules, Subject, Verdict};

/// The settings of the library in a process. [`Settings::default`] returns the settings for an
/// empty environment.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    networks: Networks,
    except_ports: Ports,
    rules: Rules,
    polling: Polling,
    moving: Moving,
    log: LogLevel,
    log_file: Option<PathBuf>,
    links: Vec<LinkSpec>,
    faults: FaultShares,
    counters: Option<PathBuf>,
    /// Name of the program, if a rule depends on the name.
    program: String,
    /// True if the settings are invalid. In that case no connection moves.
    is_wrong: bool,
}

/// The reason why settings are invalid.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum SettingsError {
    /// A variable has an invalid value.
    #[error("{variable}={value}: {problem}")]
    Value {
        /// The name of the variable.
        variable: &'static str,
        /// The value of the variable.
        value: String,
        /// The mistake in the value, and the valid values.
        problem: String,
    },
    /// The file of rules cannot be read.
    #[error("{RULES}={}: {cause}; name a file that this user can read", path.display())]
    RulesUnread {
        /// The path of the file.
        path: PathBuf,
        /// The error of the system call.
        cause: io::Error,
    },
    /// A rule is invalid.
    #[error("{RULES}={}: {cause}", path.display())]
    Rules {
        /// The path of the file.
        path: PathBuf,
        /// The number of the line, and the mistake in that line.
        cause: RuleError,
    },
}

/// The decision of this side about one connection.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Choice {
    /// The connection moves, if the peer agrees.
    Edge,
    /// The connection stays on TCP.
    Tcp(Reason),
}

impl Settings {
    /// Reads the environment, and the file of rules if a variable names one.
    ///
    /// # Errors
    /// Returns [`SettingsError`] if a variable has an invalid value, or if the file of rules cannot
    /// be read or has an invalid line. After such an error, the caller must use [`Settings::off`].
    pub fn from_environment() -> Result<Self, SettingsError> {
        Self::read(|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// Reads the settings from a function that returns the value of each variable. An empty value
    /// counts as unset.
    ///
    /// # Errors
    /// Returns the errors of [`Settings::from_environment`].
    pub fn read(value_of: impl Fn(&str) -> Option<String>) -> Result<Self, SettingsError> {
        let value_of = |name: &str| value_of(name).filter(|value| !value.trim().is_empty());
        let mut settings = Self::default();
        if let Some(text) = value_of(NETWORKS) {
            settings.networks = understood(NETWORKS, &text, Networks::parse(&text))?;
        }
        if let Some(text) = value_of(EXCEPT_PORTS) {
            settings.except_ports = understood(EXCEPT_PORTS, &text, text.parse())?;
        }
        if let Some(path) = value_of(RULES) {
            settings.rules = read_rules(Path::new(&path))?;
        }
        if let Some(text) = value_of(POLL) {
            settings.polling = understood(POLL, &text, parse_polling(&text))?;
        }
        if let Some(text) = value_of(MOVE) {
            settings.moving = understood(MOVE, &text, text.parse())?;
        }
        if let Some(text) = value_of(LOG) {
            settings.log = understood(LOG, &text, text.parse())?;
        }
        if let Some(text) = value_of(LINKS) {
            settings.links = understood(LINKS, &text, LinkSpec::parse_list(&text))?;
        }
        if let Some(text) = value_of(FAULTS) {
            settings.faults = understood(FAULTS, &text, text.parse())?;
        }
        settings.log_file = value_of(LOG_FILE).map(PathBuf::from);
        settings.counters = value_of(COUNTERS).map(PathBuf::from);
        if settings.rules.name_programs() {
            settings.program = program();
        }
        Ok(settings)
    }

    /// Returns settings with which all connections stay on TCP, for a process whose settings are
    /// invalid.
    pub fn off() -> Self {
        Self { is_wrong: true, ..Self::default() }
    }

    /// Decides about a connection between these addresses. A connection for which the edge is not
    /// faster stays on TCP. For any other connection, the first matching rule decides. If no rule
    /// matches, the connection stays on TCP if its port is excluded or if the peer's address is in
    /// none of the networks.
    pub fn choice(&self, role: Role, local: SocketAddr, peer: SocketAddr) -> Choice {
        if self.is_wrong {
            return Choice::Tcp(Reason::Settings);
        }
        match self.moving {
            Moving::Never => return Choice::Tcp(Reason::Off),
            Moving::WhenItPays if !self.gains().are_had(local.ip(), peer.ip()) => {
                return Choice::Tcp(Reason::NoGain);
            }
            Moving::Always | Moving::WhenItPays => {}
        }
        let subject = Subject { role, local, peer, program: &self.program };
        match self.rules.first_for(&subject).map(Rule::verdict) {
            Some(Verdict::Edge) => Choice::Edge,
            Some(Verdict::Tcp) => Choice::Tcp(Reason::Rule),
            None => self.choice_without_rule(&subject),
        }
    }

    fn choice_without_rule(&self, subject: &Subject<'_>) -> Choice {
        if self.except_ports.contains(subject.port()) {
            Choice::Tcp(Reason::Port)
        } else if self.networks.contain(subject.peer.ip()) {
            Choice::Edge
        } else {
            Choice::Tcp(Reason::Network)
        }
    }

    /// Returns the properties of this process that can make the edge faster than TCP.
    fn gains(&self) -> Gains {
        let is_shared = |link: &LinkSpec| *link == LinkSpec::SharedMemory;
        let finds_links = self.links.is_empty() && !self.faults.is_any();
        Gains {
            shares_memory: finds_links || self.links.iter().any(is_shared),
            has_several_links: self.links.iter().filter(|link| !is_shared(link)).count() > 1,
            polls: !matches!(self.polling, Polling::ADAPTIVE | Polling::NEVER),
        }
    }

    /// Returns the setting that decides when connections move.
    pub fn moving(&self) -> Moving {
        self.moving
    }

    /// Returns the time for which threads poll before they sleep.
    pub fn polling(&self) -> Polling {
        self.polling
    }

    /// Returns the log level.
    pub fn log_level(&self) -> LogLevel {
        self.log
    }

    /// Returns the log file; `None` for standard error.
    pub fn log_file(&self) -> Option<&Path> {
        self.log_file.as_deref()
    }

    /// Returns the links that moved connections use. An empty list means that the library finds the
    /// links itself.
    pub fn links(&self) -> &[LinkSpec] {
        &self.links
    }

    /// Returns the faults to inject into links.
    pub fn faults(&self) -> FaultShares {
        self.faults
    }

    /// Returns the folder for the counters files of all processes.
    pub fn counters(&self) -> Option<&Path> {
        self.counters.as_deref()
    }
}

/// Adds the name and value of the variable to the error of a parser.
fn understood<T>(
    variable: &'static str,
    value: &str,
    read: Result<T, impl Display>,
) -> Result<T, SettingsError> {
    read.map_err(|problem| SettingsError::Value {
        variable,
        value: value.into(),
        problem: problem.to_string(),
    })
}

fn read_rules(path: &Path) -> Result<Rules, SettingsError> {
    let is_long = |bytes: u64| bytes > RULES_BYTES_MAX;
    let text = fs::metadata(path).and_then(|found| {
        if is_long(found.len()) {
            let what = format!("the file has more than {RULES_BYTES_MAX} bytes");
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, what));
        }
        fs::read_to_string(path)
    });
    let text = text.map_err(|cause| SettingsError::RulesUnread { path: path.into(), cause })?;
    Rules::parse(&text).map_err(|cause| SettingsError::Rules { path: path.into(), cause })
}

fn parse_polling(text: &str) -> Result<Polling, String> {
    match text.trim() {
        "adaptive" => Ok(Polling::ADAPTIVE),
        "always" => Ok(Polling::ALWAYS),
        "never" => Ok(Polling::NEVER),
        other => other
            .parse()
            .ok()
            .filter(|&us: &u64| us <= POLL_US_MAX)
            .map(|us| Polling::for_at_most(Duration::from_micros(us)))
            .ok_or_else(|| {
                format!("give adaptive, always, never, or microseconds up to {POLL_US_MAX}")
            }),
    }
}

/// Returns the kernel's name of this program (`comm`).
pub(crate) fn program() -> String {
    let name = fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.trim_end().into()
}

/// Returns the names of all variables that the library reads.
pub fn variables() -> HashSet<&'static str> {
    [NETWORKS, EXCEPT_PORTS, RULES, POLL, MOVE, LOG, LOG_FILE, LINKS, FAULTS, COUNTERS].into()
}

const NETWORKS: &str = "ETHERNOT_SOCKETS_NETWORKS";
const EXCEPT_PORTS: &str = "ETHERNOT_SOCKETS_EXCEPT_PORTS";
const RULES: &str = "ETHERNOT_SOCKETS_RULES";
const POLL: &str = "ETHERNOT_SOCKETS_POLL";
const MOVE: &str = "ETHERNOT_SOCKETS_MOVE";
const LOG: &str = "ETHERNOT_SOCKETS_LOG";
const LOG_FILE: &str = "ETHERNOT_SOCKETS_LOG_FILE";
const LINKS: &str = "ETHERNOT_SOCKETS_LINKS";
const FAULTS: &str = "ETHERNOT_SOCKETS_FAULTS";
const COUNTERS: &str = "ETHERNOT_SOCKETS_COUNTERS";

/// The longest polling time that a user can set, in microseconds. `always` stands for an unlimited
/// time.
const POLL_US_MAX: u64 = 1_000_000;

/// Maximum size of a file of rules, in bytes: [`crate::rules::RULES_MAX`] rules of 256 bytes.
const RULES_BYTES_MAX: u64 = 256 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, SettingsError> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        Settings::read(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    fn connecting(settings: &Settings, peer: &str) -> Choice {
        let local = "10.0.0.1:40000".parse().unwrap();
        settings.choice(Role::Connecting, local, peer.parse().unwrap())
    }

    #[test]
    fn every_variable_is_read_and_an_empty_one_is_ignored() {
        let settings = read(&[
            (NETWORKS, "10.0.0.0/8"),
            (EXCEPT_PORTS, "22"),
            (POLL, "always"),
            (MOVE, "always"),
            (LOG, "debug"),
            (LOG_FILE, "/tmp/log"),
            (LINKS, "udp:127.0.0.1:0"),
            (FAULTS, "loss=0.01"),
            (COUNTERS, "/tmp/counters"),
        ]);
        let settings = settings.unwrap();
        assert_eq!((settings.polling(), settings.moving()), (Polling::ALWAYS, Moving::Always));
        assert_eq!((settings.log_level(), settings.links().len()), (LogLevel::Debug, 1));
        assert_eq!(settings.log_file(), Some(Path::new("/tmp/log")));
        assert_eq!(settings.counters(), Some(Path::new("/tmp/counters")));
        assert!(settings.faults().is_any());
        let empty = read(&[(NETWORKS, ""), (POLL, " "), (COUNTERS, "")]).unwrap();
        assert_eq!((empty.polling(), empty.counters()), (Polling::ADAPTIVE, None));
        assert_eq!(empty.moving(), Moving::WhenItPays);
    }

    #[test]
    fn ports_and_networks_decide_if_no_rule_matches() {
        let ports = (EXCEPT_PORTS, "22,8000-8099");
        let settings = read(&[(NETWORKS, "10.0.0.0/8"), ports, (MOVE, "always")]).unwrap();
        assert_eq!(connecting(&settings, "10.1.1.1:80"), Choice::Edge);
        assert_eq!(connecting(&settings, "10.1.1.1:8001"), Choice::Tcp(Reason::Port));
        assert_eq!(connecting(&settings, "192.0.2.1:80"), Choice::Tcp(Reason::Network));
        // The port of a service is the port of the accepting side.
        let (local, peer) = ("10.0.0.1:22".parse().unwrap(), "10.0.0.2:80".parse().unwrap());
        let choice = settings.choice(Role::Accepting, local, peer);
        assert_eq!(choice, Choice::Tcp(Reason::Port));
    }

    #[test]
    fn rules_come_before_ports_and_networks() {
        let path = env::temp_dir().join(format!("ethernot-rules-{}", std::process::id()));
        let variables = |path: &Path| {
            read(&[
                (RULES, path.to_str().unwrap()),
                (NETWORKS, "none"),
                (EXCEPT_PORTS, "1-65535"),
                (MOVE, "always"),
            ])
        };
        fs::write(&path, "tcp 10.9.0.0/16\nedge 10.0.0.0/8\n").unwrap();
        let settings = variables(&path).unwrap();
        assert_eq!(connecting(&settings, "10.9.0.1:80"), Choice::Tcp(Reason::Rule));
        assert_eq!(connecting(&settings, "10.8.0.1:80"), Choice::Edge);
        assert_eq!(connecting(&settings, "192.0.2.1:80"), Choice::Tcp(Reason::Port));
        fs::write(&path, "edge 10.0.0.0/8\n\nedge port many\n").unwrap();
        let message = variables(&path).unwrap_err().to_string();
        fs::remove_file(&path).unwrap();
        let parts = ["ETHERNOT_SOCKETS_RULES=", "ethernot-rules", "line 3", "\"many\""];
        assert!(parts.iter().all(|part| message.contains(part)), "{message}");
        let message = variables(&path).unwrap_err().to_string();
        assert!(message.contains(RULES) && message.contains("can read"), "{message}");
    }

    #[test]
    fn invalid_settings_are_refused_with_variable_value_and_remedy() {
        for (variable, value, remedy) in [
            (NETWORKS, "10.0.0.0/33", "10.0.0.0/8"),
            (EXCEPT_PORTS, "ssh", "22,8000-8099"),
            (POLL, "often", "adaptive, always, never"),
            (POLL, "1000001", "microseconds"),
            (MOVE, "often", "always, when-it-pays or never"),
            (LOG, "loud", "off, error, warn, info"),
            (LINKS, "udp:::::", "udp"),
            (FAULTS, "luck=0.1", "loss, dup or reorder"),
        ] {
            let message = read(&[(variable, value)]).unwrap_err().to_string();
            assert!(message.starts_with(&format!("{variable}={value}: ")), "{message}");
            assert!(message.contains(remedy), "{message}");
        }
    }

    #[test]
    fn no_connection_moves_with_wrong_settings() {
        let choice = connecting(&Settings::off(), "127.0.0.1:80");
        assert_eq!(choice, Choice::Tcp(Reason::Settings));
    }

    #[test]
    fn a_connection_without_a_gain_stays_on_tcp() {
        const HERE: &str = "10.0.0.1:80";
        const THERE: &str = "10.0.0.2:80";
        let links = (LINKS, "udp:127.0.0.1:0,udp:127.0.0.2:0");
        let tcp = |reason| Choice::Tcp(reason);
        for (variables, here, there) in [
            (&[][..], Choice::Edge, tcp(Reason::NoGain)),
            (&[links][..], Choice::Edge, Choice::Edge),
            (&[(LINKS, "udp:127.0.0.1:0")], tcp(Reason::NoGain), tcp(Reason::NoGain)),
            (&[(LINKS, "udp:127.0.0.1:0,shm")], Choice::Edge, tcp(Reason::NoGain)),
            (&[(FAULTS, "loss=0.01")], tcp(Reason::NoGain), tcp(Reason::NoGain)),
            (&[(POLL, "always")], Choice::Edge, Choice::Edge),
            (&[(POLL, "20")], Choice::Edge, Choice::Edge),
            (&[(POLL, "never")], Choice::Edge, tcp(Reason::NoGain)),
            (&[(MOVE, "always")], Choice::Edge, Choice::Edge),
            (&[(MOVE, "never"), links], tcp(Reason::Off), tcp(Reason::Off)),
        ] {
            let everywhere = [&[(NETWORKS, "all")], variables].concat();
            let settings = read(&everywhere).unwrap();
            assert_eq!(connecting(&settings, HERE), here, "{variables:?}");
            assert_eq!(connecting(&settings, THERE), there, "{variables:?}");
        }
    }

    #[test]
    fn polling_is_a_word_or_a_time() {
        assert_eq!(parse_polling("never"), Ok(Polling::NEVER));
        assert_eq!(parse_polling("0"), Ok(Polling::NEVER));
        let time = Polling::for_at_most(Duration::from_micros(50));
        assert_eq!(parse_polling(" 50 "), Ok(time));
    }
}
