//! The log of a device: what happens to connections.

use std::fmt;
use std::io;
use std::net::SocketAddr;

use iwarp::{BlamedSegment, EndCause, PeerKind, Terms};
use verbs::{Error, Log, LogLevel};

use crate::settings::Settings;

/// The log of a device.
#[derive(Debug)]
pub(crate) struct Journal {
    device: String,
    log: Log,
}

impl Journal {
    /// Opens the log of the settings.
    pub(crate) fn open(settings: &Settings) -> Result<Self, Error> {
        let log = Log::open(settings.log, settings.trace.as_deref())?;
        Ok(Self { device: settings.name.clone(), log })
    }

    /// Logs that a connection carries messages.
    pub(crate) fn established(&self, peer: SocketAddr, terms: &Terms) {
        let (device, peer, terms) = (&self.device, peer, Agreed(terms));
        let what = format_args!("{device}: connected with {peer}: {terms}");
        self.log.note(LogLevel::Info, what);
    }

    /// Logs that a connection, or its set-up, has ended. Says which rule the peer has broken, if it
    /// has, and in which segment.
    pub(crate) fn ended(&self, peer: SocketAddr, cause: &EndCause, blamed: Option<BlamedSegment>) {
        let level = match cause {
            EndCause::Closed | EndCause::ClosedHere => LogLevel::Info,
            _ => LogLevel::Debug,
        };
        self.log.note(level, format_args!("{}", Ending { journal: self, peer, cause, blamed }));
    }

    /// Logs that TCP has not connected.
    pub(crate) fn not_connected(&self, peer: SocketAddr, error: &io::Error) {
        let (device, peer) = (&self.device, peer);
        let what = format_args!("{device}: cannot connect with {peer}: {error}");
        self.log.note(LogLevel::Debug, what);
    }

    /// Logs that no program takes a request.
    pub(crate) fn no_listener(&self, peer: SocketAddr) {
        let (device, peer) = (&self.device, peer);
        let what = format_args!(
            "{device}: rejected the request of {peer}: no program listens any more, or its backlog is full"
        );
        self.log.note(LogLevel::Debug, what);
    }
}

/// What both ends have agreed on.
struct Agreed<'a>(&'a Terms);

impl fmt::Display for Agreed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Terms { revision, crc, sends_markers, receives_markers, ird, ord, .. } = self.0;
        write!(f, "MPA revision {}, IRD {ird}, ORD {ord}", revision.number())?;
        for (is_on, what) in [
            (*crc, "CRC"),
            (*sends_markers, "markers sent"),
            (*receives_markers, "markers received"),
            (self.0.long_fpdus, "FPDUs longer than a segment"),
        ] {
            if is_on {
                write!(f, ", {what}")?;
            }
        }
        match self.0.peer {
            PeerKind::Ethernot => f.write_str(", the peer is Ethernot"),
            PeerKind::Siw => f.write_str(", the peer is siw"),
            PeerKind::Unknown => Ok(()),
        }
    }
}

/// The end of a connection.
struct Ending<'a> {
    journal: &'a Journal,
    peer: SocketAddr,
    cause: &'a EndCause,
    blamed: Option<BlamedSegment>,
}

impl fmt::Display for Ending<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { journal, peer, cause, blamed } = self;
        let what = if matches!(cause, EndCause::Setup(_)) { "set-up" } else { "connection" };
        write!(f, "{}: the {what} with {} ended: {cause}", journal.device, peer)?;
        if let Some(rule) = cause.rule() {
            write!(f, " ({rule})")?;
        }
        blamed.map_or(Ok(()), |blamed| write!(f, "; in a {blamed}"))
    }
}

#[cfg(test)]
mod tests {
    use iwarp::SetupFault;
    use wire_iwarp::Cause;

    use super::*;

    fn shown(cause: EndCause) -> String {
        let journal = Journal::open(&Settings::new("iwarp0")).expect("it has no file");
        let peer = "192.0.2.7:4000".parse().expect("an address");
        Ending { journal: &journal, peer, cause: &cause, blamed: None }.to_string()
    }

    #[test]
    fn an_end_is_logged_with_peer_and_rule() {
        assert_eq!(
            shown(EndCause::Peer(Cause::MpaCrc)),
            "iwarp0: the connection with 192.0.2.7:4000 ended: the peer broke a rule: MPA: wrong CRC (RFC 5044 section 4.4)"
        );
        assert_eq!(
            shown(EndCause::Setup(SetupFault::PrivateData(600))),
            "iwarp0: the set-up with 192.0.2.7:4000 ended: 600 bytes of private data (RFC 5044 section 7.1.1)"
        );
        assert_eq!(
            shown(EndCause::Reset),
            "iwarp0: the connection with 192.0.2.7:4000 ended: the TCP connection was reset"
        );
    }
}
