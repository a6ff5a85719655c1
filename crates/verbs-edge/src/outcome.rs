//! How an exchange of the connection manager ends.

use delivery::Instant;
use engine::Closed;
use rdma_cm::{Over, Refusal};
use verbs::QueuePairType;
use wire_edge::RejectReason;

/// Phase of an exchange.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Phase {
    /// This end has sent a request, and waits for the answer until this time.
    Asked(Instant),
    /// The peer has sent a request.
    Requested,
    /// This end has accepted the peer's request.
    Accepted,
    /// The connection is established, and both ends have confirmed this.
    Connected,
    /// The queue pair has closed the connection, but the id has not closed the exchange yet.
    Severed,
}

/// How an exchange has ended.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) enum Outcome {
    /// The peer rejected the request, or no program listens at the port.
    Refused(Refusal),
    /// The peer did not answer, or it disappeared before the connection was established.
    Unreachable,
    /// The connection was established, and then the peer ended it or disappeared.
    Disconnected,
}

impl Outcome {
    /// Returns the report to the id. `service` is the service of the request.
    pub(super) fn over(self, service: QueuePairType) -> Over {
        match self {
            Self::Refused(refusal) => Over::of_refusal(refusal, service),
            Self::Unreachable => Over::Unreachable,
            Self::Disconnected => Over::Disconnected,
        }
    }
}

/// Returns the outcome of an exchange whose connection has ended.
pub(super) fn outcome_of(phase: Phase, reason: Closed, private_data: &[u8]) -> Outcome {
    let said = Refusal::decode(private_data);
    match (phase, reason) {
        (Phase::Connected | Phase::Severed, _) => Outcome::Disconnected,
        (Phase::Asked(_), Closed::Rejected(why)) => {
            let reason = match why {
                RejectReason::Application => rdma_cm::REJECTED_BY_PROGRAM,
                RejectReason::NoListener | RejectReason::Moved => NO_SUCH_SERVICE,
                RejectReason::ConnectionLimit => NO_RESOURCES,
                _ => NOT_UNDERSTOOD,
            };
            Outcome::Refused(said.unwrap_or(Refusal::of(reason)))
        }
        (Phase::Asked(_), Closed::Refused(_)) => Outcome::Refused(Refusal::of(NO_SUCH_SERVICE)),
        (Phase::Asked(_), Closed::Version { .. }) => Outcome::Refused(Refusal::of(NOT_UNDERSTOOD)),
        (Phase::Requested, _) => {
            Outcome::Refused(said.unwrap_or(Refusal::of(rdma_cm::REJECTED_BY_PROGRAM)))
        }
        (Phase::Accepted, Closed::ByPeer) => said.map_or(Outcome::Disconnected, Outcome::Refused),
        _ => Outcome::Unreachable,
    }
}

/// Reason code: no id listens at the port (IBA volume 1, table 108).
pub(super) const NO_SUCH_SERVICE: u16 = 8;

/// Reason code: there is no room for another connection (IBA volume 1, table 108).
const NO_RESOURCES: u16 = 3;

/// Reason code: the private data could not be decoded (IBA volume 1, table 108).
pub(super) const NOT_UNDERSTOOD: u16 = 5;

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;

    use wire_edge::PeerAddr;

    use super::*;

    //= protocol.md: cm.2
    #[test]
    fn the_event_for_an_ended_connection_depends_on_its_phase() {
        let outcome = |phase, reason| outcome_of(phase, reason, &[]);
        let asked = Phase::Asked(Instant(1));
        let refused = |reason| Outcome::Refused(Refusal::of(reason));
        let no_listener = Closed::Rejected(RejectReason::NoListener);
        assert_eq!(outcome(asked, no_listener), refused(NO_SUCH_SERVICE));
        let address = PeerAddr::from(SocketAddr::from(([10, 0, 0, 1], 1)));
        assert_eq!(outcome(asked, Closed::Refused(address)), refused(NO_SUCH_SERVICE));
        let silent = Closed::Unreachable { peer: address, silence_ms: 1 };
        assert_eq!(outcome(asked, silent), Outcome::Unreachable);
        assert_eq!(outcome(Phase::Connected, silent), Outcome::Disconnected);
        let said = Refusal { reason: 28, private_data: b"no".to_vec() };
        let application = Closed::Rejected(RejectReason::Application);
        assert_eq!(outcome_of(asked, application, &said.encode()), Outcome::Refused(said));
    }
}
