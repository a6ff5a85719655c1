//! Rules that decide which connections may move. A rule depends only on facts that this side knows
//! before it sends anything to the peer.
//!
//! Each line is one rule: `edge` or `tcp`, followed by conditions. A rule matches a connection if
//! all of its conditions hold. The first matching rule decides.
//!
//! ```text
//! # comments begin with a number sign
//! tcp  port 22,8000-8099
//! edge 10.0.0.0/8
//! edge connecting 2001:db8::/32 port 80 program curl
//! tcp
//! ```

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use ipnet::IpNet;
use thiserror::Error;

/// The end of a connection that this process has.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum Role {
    /// The process called `connect`.
    Connecting,
    /// The process called `accept`.
    Accepting,
}

/// The facts about a connection that rules are matched against.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// The role of this process.
    pub role: Role,
    /// This side's address.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
    /// Name of the program in the kernel (`comm`): at most 15 bytes.
    pub program: &'a str,
}

impl Subject<'_> {
    /// Returns the port of the service: the port on which the accepting side listens.
    pub fn port(&self) -> u16 {
        match self.role {
            Role::Connecting => self.peer.port(),
            Role::Accepting => self.local.port(),
        }
    }
}

/// The decision of a rule.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Verdict {
    /// The connection may move.
    Edge,
    /// The connection stays on TCP.
    Tcp,
}

/// An ordered list of rules.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Rules {
    rules: Vec<Rule>,
}

/// One rule.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Rule {
    verdict: Verdict,
    /// The number of the rule's line in the file, from 1.
    line: u32,
    role: Option<Role>,
    /// The network that must contain the peer's address.
    network: Option<Network>,
    /// The port of the service must be one of these; an empty set matches any port.
    ports: Ports,
    program: Option<String>,
}

/// The error for an invalid rule.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("line {line}: {problem}")]
pub struct RuleError {
    /// The number of the line, from 1.
    pub line: u32,
    /// The mistake in the line.
    pub problem: RuleProblem,
}

/// A mistake in a line.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum RuleProblem {
    /// The first word of a rule is not a verdict.
    #[error("{0:?} is not a verdict; a rule begins with `edge` or `tcp`")]
    Verdict(String),
    /// A word is not a condition.
    #[error(
        "{0:?} is not a condition; conditions are `port PORTS`, `program NAME`, `connecting`, `accepting` and an address or \
         network such as 10.0.0.0/8"
    )]
    Condition(String),
    /// A condition has no value.
    #[error(
        "{0:?} lacks its value; write it after the word, as in `port 80,8000-8099` or `program nginx`"
    )]
    Value(String),
    /// A rule contains the same condition twice.
    #[error(
        "condition {0:?} is repeated; a rule has each condition only once, so write a second rule"
    )]
    Twice(String),
    /// The ports are invalid.
    #[error(transparent)]
    Ports(#[from] PortsError),
    /// The name of the program is longer than the names that the kernel keeps.
    #[error(
        "program name {0:?} is longer than the 15 bytes that the kernel stores; write its first 15 \
         bytes"
    )]
    Program(String),
    /// There are more rules than [`RULES_MAX`].
    #[error("too many rules, more than {RULES_MAX}; write networks instead of single addresses")]
    TooMany,
}

impl Rules {
    /// Parses a file of rules.
    ///
    /// # Errors
    /// Returns the number of the first invalid line, and the mistake in that line.
    pub fn parse(text: &str) -> Result<Self, RuleError> {
        let mut rules = Vec::new();
        for (line, words) in (1..).zip(text.lines()) {
            let words = words.split_once('#').map_or(words, |(before, _)| before);
            let wrong = |problem| RuleError { line, problem };
            if let Some(rule) = Rule::parse(line, words).map_err(wrong)? {
                rules.push(rule);
            }
            if rules.len() > RULES_MAX {
                return Err(wrong(RuleProblem::TooMany));
            }
        }
        Ok(Self { rules })
    }

    /// Returns the first rule that matches the connection.
    pub fn first_for(&self, subject: &Subject<'_>) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.holds_for(subject))
    }

    /// Returns whether a rule depends on the name of the program.
    pub(crate) fn name_programs(&self) -> bool {
        self.rules.iter().any(|rule| rule.program.is_some())
    }

    /// Returns the number of rules.
    pub fn len(&self) -> usize {
        self.rules.len()
    }

    /// Returns whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }
}

impl Rule {
    /// Returns the verdict of the rule.
    pub fn verdict(&self) -> Verdict {
        self.verdict
    }

    /// Returns the number of the rule's line in the file, from 1.
    pub fn line(&self) -> u32 {
        self.line
    }

    /// Parses a line without its comment. Returns `None` if the line is empty.
    fn parse(line: u32, text: &str) -> Result<Option<Self>, RuleProblem> {
        let mut words = text.split_whitespace();
        let verdict = match words.next() {
            None => return Ok(None),
            Some("edge") => Verdict::Edge,
            Some("tcp") => Verdict::Tcp,
            Some(other) => return Err(RuleProblem::Verdict(other.into())),
        };
        let mut rule = Self {
            verdict,
            line,
            role: None,
            network: None,
            ports: Ports::default(),
            program: None,
        };
        while let Some(word) = words.next() {
            rule.add(word, &mut words)?;
        }
        Ok(Some(rule))
    }

    fn add<'a>(
        &mut self,
        word: &str,
        words: &mut impl Iterator<Item = &'a str>,
    ) -> Result<(), RuleProblem> {
        let is_second = match word {
            "connecting" => self.role.replace(Role::Connecting).is_some(),
            "accepting" => self.role.replace(Role::Accepting).is_some(),
            "port" => {
                let ports = words.next().ok_or_else(|| RuleProblem::Value(word.into()))?;
                let before = std::mem::replace(&mut self.ports, ports.parse()?);
                !before.is_empty()
            }
            "program" => {
                let name = words.next().ok_or_else(|| RuleProblem::Value(word.into()))?;
                if name.len() > PROGRAM_BYTES_MAX {
                    return Err(RuleProblem::Program(name.into()));
                }
                self.program.replace(name.into()).is_some()
            }
            other => {
                let network: Result<Network, _> = other.parse();
                let network = network.map_err(|_| RuleProblem::Condition(other.into()))?;
                self.network.replace(network).is_some()
            }
        };
        if is_second { Err(RuleProblem::Twice(word.into())) } else { Ok(()) }
    }

    fn holds_for(&self, subject: &Subject<'_>) -> bool {
        self.role.is_none_or(|role| role == subject.role)
            && self.network.is_none_or(|network| network.contains(subject.peer.ip()))
            && (self.ports.is_empty() || self.ports.contains(subject.port()))
            && self.program.as_deref().is_none_or(|program| program == subject.program)
    }
}

/// Formats a rule in the syntax of the file.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.verdict {
            Verdict::Edge => "edge",
            Verdict::Tcp => "tcp",
        })?;
        match self.role {
            Some(Role::Connecting) => f.write_str(" connecting")?,
            Some(Role::Accepting) => f.write_str(" accepting")?,
            None => {}
        }
        if let Some(network) = self.network {
            write!(f, " {network}")?;
        }
        if !self.ports.is_empty() {
            write!(f, " port {}", self.ports)?;
        }
        match &self.program {
            Some(program) => write!(f, " program {program}"),
            None => Ok(()),
        }
    }
}

/// A network (prefix) of addresses. IPv4-mapped IPv6 addresses are treated as IPv4 addresses.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Network(IpNet);

impl Network {
    /// Returns the network of an address with a prefix of `bits` bits. Returns `None` if `bits`
    /// exceeds the length of the address.
    pub fn of(address: IpAddr, bits: u8) -> Option<Self> {
        IpNet::new(address, bits).ok().map(|network| Self(network.trunc()))
    }

    /// Returns whether the address is in the network.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.0.contains(&address.to_canonical())
    }
}

/// The error for an invalid network.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{0:?} is neither an address nor a network; write it as 10.0.0.0/8 or fd00::/8")]
pub struct NetworkError(pub String);

impl FromStr for Network {
    type Err = NetworkError;

    /// Parses a network. An address without a prefix length is a network of one host.
    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let one = || text.parse::<IpAddr>().ok().map(|address| IpNet::from(address.to_canonical()));
        let network = text.parse().ok().or_else(one);
        network.map(|network: IpNet| Self(network.trunc())).ok_or_else(|| NetworkError(text.into()))
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of ports.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Ports {
    /// First and last port of each range.
    ranges: Vec<(u16, u16)>,
}

/// The error for invalid ports.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub enum PortsError {
    /// A part is not a port and not a range of ports.
    #[error(
        "{0:?} is neither a port nor a range of ports; write them as 22,8000-8099, from 1 to 65535"
    )]
    Part(String),
    /// The last port of a range is less than the first.
    #[error("invalid range of ports {0:?}; write the smaller port first")]
    Order(String),
}

impl Ports {
    /// Returns whether the port is in the set.
    pub fn contains(&self, port: u16) -> bool {
        self.ranges.iter().any(|&(first, last)| (first..=last).contains(&port))
    }

    /// Returns whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

impl FromStr for Ports {
    type Err = PortsError;

    /// Parses ports such as `22,8000-8099`.
    fn from_str(text: &str) -> Result<Self, PortsError> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let port = |text: &str| {
                // Check for digits, because `parse` also accepts a sign before the digits.
                let number = text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse());
                let port = number.and_then(Result::ok).filter(|&port: &u16| port > 0);
                port.ok_or_else(|| PortsError::Part(part.into()))
            };
            let (first, last) = (port(first)?, port(last)?);
            if last < first { Err(PortsError::Order(part.into())) } else { Ok((first, last)) }
        };
        let ranges: Result<_, _> = text.split(',').map(|part| range(part.trim())).collect();
        Ok(Self { ranges: ranges? })
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.ranges.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            if first == last {
                write!(f, "{comma}{first}")?;
            } else {
                write!(f, "{comma}{first}-{last}")?;
            }
        }
        Ok(())
    }
}

/// Parses any bytes as a file of rules, for fuzzing. Checks that the parser does not panic. Formats
/// each accepted rule, parses the result, and checks that the rules are equal.
#[doc(hidden)]
pub fn fuzz_rules(bytes: &[u8]) {
    let Ok(rules) = Rules::parse(&String::from_utf8_lossy(bytes)) else { return };
    let written: Vec<String> = rules.rules.iter().map(ToString::to_string).collect();
    let again = Rules::parse(&written.join("\n")).expect("it was written by us");
    let without_lines = |rules: &Rules| -> Vec<Rule> {
        rules.rules.iter().map(|rule| Rule { line: 0, ..rule.clone() }).collect()
    };
    assert_eq!(without_lines(&again), without_lines(&rules));
}

/// The maximum number of rules. The library may have to match a connection against all of them, so
/// this limit bounds the cost.
pub const RULES_MAX: usize = 1024;

/// `TASK_COMM_LEN` without the terminating zero.
const PROGRAM_BYTES_MAX: usize = 15;

#[cfg(test)]
mod tests;
