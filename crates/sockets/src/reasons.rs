//! The reasons why a connection stays on TCP. The list is closed; counters, logs and reports share
//! it.

use std::fmt;

/// The reason why a connection was left to TCP. Each reason has a name for machines and a sentence
/// for people.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum Reason {
    /// A setting is invalid, so no connection moves.
    Settings = 0,
    /// A rule leaves the connection to TCP.
    Rule = 1,
    /// The settings exclude the port of the connection.
    Port = 2,
    /// The peer's address is in none of the networks.
    Network = 3,
    /// The library could not start in this process.
    NoEndpoint = 4,
    /// The UDP port of the rendezvous socket is in use.
    NoRendezvousSocket = 5,
    /// The peer sent no offer.
    NoOffer = 6,
    /// The peer did not accept the offer.
    NoAnswer = 7,
    /// UDP datagrams do not reach the peer.
    Blocked = 8,
    /// The peer has another protocol version.
    Version = 9,
    /// The peer refused to move.
    Refused = 10,
    /// The process has no descriptors left.
    Descriptors = 11,
    /// There is no memory for the rings, or the limit of streams is reached.
    Memory = 12,
    /// TCP had no room for a switch marker for too long.
    Busy = 13,
    /// The program uses out-of-band data.
    OutOfBand = 14,
    /// The process forked before the connection had moved.
    Forked = 15,
    /// The process executed another program before the connection had moved.
    Exec = 16,
    /// The program passed the descriptor to another process, or used it in a function that the
    /// library does not interpose.
    Passed = 17,
    /// The program used another feature that only TCP has.
    OnlyTcp = 18,
    /// The connection ended before its route was decided.
    Closed = 19,
    /// The peer violated the protocol before the connection had moved.
    Misbehaved = 20,
    /// No edge connection to the peer's process was established, or it was lost before this
    /// connection moved.
    NoGroup = 21,
    /// The connection had moved, and has returned to TCP.
    Home = 22,
    /// The settings disable moves.
    Off = 23,
    /// The edge would be no faster than TCP.
    NoGain = 24,
    /// The connection ended before a move would have been worth its cost.
    Short = 25,
}

impl Reason {
    /// All reasons, in the order of their numbers.
    pub const ALL: [Self; 26] = [
        Self::Settings,
        Self::Rule,
        Self::Port,
        Self::Network,
        Self::NoEndpoint,
        Self::NoRendezvousSocket,
        Self::NoOffer,
        Self::NoAnswer,
        Self::Blocked,
        Self::Version,
        Self::Refused,
        Self::Descriptors,
        Self::Memory,
        Self::Busy,
        Self::OutOfBand,
        Self::Forked,
        Self::Exec,
        Self::Passed,
        Self::OnlyTcp,
        Self::Closed,
        Self::Misbehaved,
        Self::NoGroup,
        Self::Home,
        Self::Off,
        Self::NoGain,
        Self::Short,
    ];

    /// Returns the number of the reason. Messages to the peer carry this number, and it indexes the
    /// counters. A reason keeps its number in all versions.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns the reason with this number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }

    /// Returns the name of the reason for machines: lower-case letters and `-`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Settings => "settings",
            Self::Rule => "rule",
            Self::Port => "port",
            Self::Network => "network",
            Self::NoEndpoint => "no-endpoint",
            Self::NoRendezvousSocket => "no-rendezvous-socket",
            Self::NoOffer => "no-offer",
            Self::NoAnswer => "no-answer",
            Self::Blocked => "blocked",
            Self::Version => "version",
            Self::Refused => "refused",
            Self::Descriptors => "descriptors",
            Self::Memory => "memory",
            Self::Busy => "busy",
            Self::OutOfBand => "out-of-band",
            Self::Forked => "forked",
            Self::Exec => "exec",
            Self::Passed => "passed",
            Self::OnlyTcp => "only-tcp",
            Self::Closed => "closed",
            Self::Misbehaved => "misbehaved",
            Self::NoGroup => "no-edge-connection",
            Self::Home => "went-home",
            Self::Off => "off",
            Self::NoGain => "no-gain",
            Self::Short => "short",
        }
    }

    /// Returns the explanation for people: the cause, and the remedy if there is one.
    pub const fn sentence(self) -> &'static str {
        match self {
            Self::Settings => {
                "a setting of ETHERNOT_SOCKETS_* is invalid, so no connection moves: see the message on standard error"
            }
            Self::Rule => "a rule of ETHERNOT_SOCKETS_RULES keeps the connection on TCP",
            Self::Port => "the port of the connection is one of ETHERNOT_SOCKETS_EXCEPT_PORTS",
            Self::Network => {
                "the peer's address is in none of the networks of ETHERNOT_SOCKETS_NETWORKS, or of this host if the variable is not set"
            }
            Self::NoEndpoint => "the library could not start in this process: see its log",
            Self::NoRendezvousSocket => {
                "the library could not open the UDP port with the number of the TCP port: another program may use it"
            }
            Self::NoOffer => {
                "the accepting side sent no offer: its program may not run under ethernot, or a firewall may block UDP"
            }
            Self::NoAnswer => {
                "the connecting side did not accept the offer: its program may not run under ethernot, or a firewall may block UDP"
            }
            Self::Blocked => "UDP datagrams do not reach the peer: a firewall may block them",
            Self::Version => "the peer has another version: install the same version on both hosts",
            Self::Refused => "the peer refused to move the connection: see the log of the peer",
            Self::Descriptors => {
                "the process has no free file descriptors: raise the limit (ulimit -n)"
            }
            Self::Memory => "no memory for the rings of the connection, or too many streams",
            Self::Busy => {
                "the connection could not move, because TCP accepted no bytes for 5 s: the peer \
                 read too slowly"
            }
            Self::OutOfBand => "the program uses out-of-band data, which the edge does not carry",
            Self::Forked => "the process forked before the connection had moved",
            Self::Exec => "the process executed another program before the connection had moved",
            Self::Passed => {
                "the descriptor was passed to another process, or to a function that the library does not interpose"
            }
            Self::OnlyTcp => "the program requested a function that only TCP has",
            Self::Closed => "the connection ended before the library decided whether to move it",
            Self::Misbehaved => "the peer broke the rules of the protocol: it may not run Ethernot",
            Self::NoGroup => {
                "no edge connection to the peer's process was established: a firewall may block UDP to the ports of the process, or the process ended"
            }
            Self::Home => {
                "the connection had moved and returned to TCP: a child process or another program uses it, or the edge connection was lost"
            }
            Self::Off => "ETHERNOT_SOCKETS_MOVE=never keeps all connections on TCP",
            Self::NoGain => {
                "the edge gains nothing between two hosts over one link, unless threads poll: see ETHERNOT_SOCKETS_MOVE"
            }
            Self::Short => {
                "the connection ended before it had lasted long enough for a move to pay"
            }
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.sentence())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_reason_has_its_number_as_its_list_position() {
        for (number, reason) in (0..).zip(Reason::ALL) {
            assert_eq!(reason.number(), number);
            assert_eq!(Reason::from_number(number), Some(reason));
        }
        assert_eq!(Reason::from_number(Reason::ALL.len() as u8), None);
        assert_eq!(Reason::from_number(u8::MAX), None);
    }

    #[test]
    fn names_and_sentences_are_distinct() {
        let names: HashSet<_> = Reason::ALL.iter().map(|reason| reason.name()).collect();
        let sentences: HashSet<_> = Reason::ALL.iter().map(|reason| reason.sentence()).collect();
        assert_eq!((names.len(), sentences.len()), (Reason::ALL.len(), Reason::ALL.len()));
        let is_plain =
            |name: &str| name.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'-');
        assert!(names.iter().all(|name| is_plain(name)));
    }

    #[test]
    fn the_page_lists_each_reason_and_no_other() {
        let page = include_str!("../../../docs/sockets.md");
        for reason in Reason::ALL {
            let line = format!("| `{}` | {reason} |", reason.name());
            assert!(page.lines().any(|known| known == line), "docs/sockets.md lacks: {line}");
        }
        let rows = page.lines().skip_while(|line| !line.starts_with("| reason |")).skip(2);
        assert_eq!(rows.take_while(|line| line.starts_with('|')).count(), Reason::ALL.len());
    }
}
