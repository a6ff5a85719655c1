//! Records two results of earlier connections: which services are silent, and to which services
//! connections last long.
//!
//! If a peer does not run the library, its services become silent. The library then tries to move
//! a connection to this peer only once a minute. Without the records, it would try to move each
//! connection.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::rules::Role;

/// A service: the peer's address, and the port on which the accepting side listens. The peer can be
/// the connecting or the accepting side.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Service {
    peer: IpAddr,
    port: u16,
}

impl Service {
    /// Returns the service of a connection.
    pub fn of(role: Role, local: SocketAddr, peer: SocketAddr) -> Self {
        let port = match role {
            Role::Connecting => peer.port(),
            Role::Accepting => local.port(),
        };
        Self { peer: peer.ip().to_canonical(), port }
    }
}

/// Services of recent connections. If the table is full, a new service replaces the service that
/// was unused for the longest time. All times are relative to one fixed moment, which the caller
/// chooses.
#[derive(Debug, Default)]
pub struct Peers {
    known: HashMap<Service, Known>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Known {
    used: Duration,
    /// The time at which a connection of the service last moved.
    answered: Option<Duration>,
    /// The time at which a peer last did not answer.
    silent: Option<Duration>,
    /// Number of consecutive connections that ended before the peer answered.
    unanswered: u8,
    /// Number of consecutive connections that lasted.
    lasting: u8,
}

impl Peers {
    //= sockets-protocol.md: move.4
    /// Returns true if this side may try to move a connection of the service: the service has not
    /// been silent within the last minute.
    pub fn may_ask(&mut self, now: Duration, service: Service) -> bool {
        let Some(known) = self.known.get_mut(&service) else { return true };
        known.used = now;
        known.silent.is_none_or(|silent| now.saturating_sub(silent) >= SILENT_FOR)
    }

    //= sockets-protocol.md: move.2
    /// Returns true if a connection of the service is expected to last, because the previous
    /// connections lasted.
    pub fn lasts(&self, service: Service) -> bool {
        self.known.get(&service).is_some_and(|known| known.lasting >= LASTING_MIN)
    }

    /// Records that a connection lasted and then moved.
    pub fn on_lasting(&mut self, now: Duration, service: Service) {
        let known = self.entry(now, service);
        known.lasting = known.lasting.saturating_add(1);
    }

    /// Records that a connection was short, or that it moved early and the peer did not answer. A
    /// move is early if it begins at the first use of the connection. Moves begin early if earlier
    /// connections of the service lasted.
    pub fn on_short(&mut self, now: Duration, service: Service) {
        if let Some(known) = self.known.get_mut(&service) {
            (known.used, known.lasting) = (now, 0);
        }
    }

    /// Records that a connection has moved.
    pub fn on_moved(&mut self, now: Duration, service: Service) {
        let known = self.entry(now, service);
        (known.answered, known.silent, known.unanswered) = (Some(now), None, 0);
    }

    /// Records that a peer did not answer. If no connection of the service moved within the last
    /// minute, the service becomes silent.
    pub fn on_silent(&mut self, now: Duration, service: Service) {
        let known = self.entry(now, service);
        known.unanswered = 0;
        if known.answered.is_none_or(|answered| now.saturating_sub(answered) >= SILENT_FOR) {
            known.silent = Some(now);
        }
    }

    /// Records that a connection ended before the peer answered. `waited` is the time since this
    /// side began the move.
    pub fn on_unanswered(&mut self, now: Duration, service: Service, waited: Duration) {
        let known = self.entry(now, service);
        known.unanswered += 1;
        if known.unanswered >= UNANSWERED_MAX || waited >= ANSWER_WITHIN {
            self.on_silent(now, service);
        }
    }

    fn entry(&mut self, now: Duration, service: Service) -> &mut Known {
        if self.known.len() >= PEERS_MAX && !self.known.contains_key(&service) {
            let oldest = self.known.iter().min_by_key(|(_, known)| known.used);
            if let Some(oldest) = oldest.map(|(service, _)| *service) {
                self.known.remove(&oldest);
            }
        }
        let known = self.known.entry(service).or_default();
        known.used = now;
        known
    }
}

/// The time for which a service stays silent.
const SILENT_FOR: Duration = Duration::from_mins(1);

/// The time within which a peer with the library usually answers. A peer that is silent for longer
/// probably does not run the library.
const ANSWER_WITHIN: Duration = Duration::from_millis(200);

/// Number of consecutive unanswered connections after which the service becomes silent.
const UNANSWERED_MAX: u8 = 8;

/// Number of consecutive lasting connections after which the next connection is expected to last.
const LASTING_MIN: u8 = 2;

/// Maximum number of services in the table, 96 bytes each. A search for the oldest service takes a
/// microsecond.
const PEERS_MAX: usize = 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn service(host: u16, port: u16) -> Service {
        let [high, low] = host.to_be_bytes();
        Service { peer: [10, 0, high, low].into(), port }
    }

    const fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn the_port_of_a_service_is_that_of_the_accepting_side() {
        let server: SocketAddr = "10.0.0.1:80".parse().unwrap();
        let client: SocketAddr = "[::ffff:10.0.0.2]:4000".parse().unwrap();
        assert_eq!(Service::of(Role::Connecting, client, server), service(1, 80));
        assert_eq!(Service::of(Role::Accepting, server, client), service(2, 80));
    }

    //= sockets-protocol.md: move.4
    #[test]
    fn a_silent_peer_gets_one_offer_a_minute() {
        let (mut peers, mut asked) = (Peers::default(), 0);
        for second in 0..600 {
            if peers.may_ask(at(second), service(1, 80)) {
                asked += 1;
                peers.on_silent(at(second), service(1, 80));
            }
            assert!(peers.may_ask(at(second), service(1, 81)), "another service");
            assert!(peers.may_ask(at(second), service(2, 80)), "another host");
        }
        assert_eq!(asked, 10);
    }

    #[test]
    fn an_answering_peer_gets_new_offers_at_once_and_so_do_others_on_its_host() {
        let mut peers = Peers::default();
        peers.on_silent(at(0), service(1, 80));
        assert!(!peers.may_ask(at(59), service(1, 80)));
        peers.on_moved(at(59), service(1, 80));
        assert!(peers.may_ask(at(59), service(1, 80)));
        peers.on_silent(at(60), service(1, 80));
        assert!(
            peers.may_ask(at(60), service(1, 80)),
            "one silent client stopped the offers to its service"
        );
        peers.on_silent(at(119), service(1, 80));
        assert!(
            !peers.may_ask(at(119), service(1, 80)),
            "offers continue after a minute of silence"
        );
    }

    #[test]
    fn a_peer_whose_connections_end_unanswered_becomes_silent() {
        let mut peers = Peers::default();
        for _ in 1..UNANSWERED_MAX {
            peers.on_unanswered(at(1), service(1, 80), Duration::ZERO);
            assert!(peers.may_ask(at(1), service(1, 80)));
        }
        peers.on_unanswered(at(1), service(1, 80), Duration::ZERO);
        assert!(!peers.may_ask(at(1), service(1, 80)));
        peers.on_unanswered(at(1), service(2, 80), ANSWER_WITHIN);
        assert!(
            !peers.may_ask(at(1), service(2, 80)),
            "offers continue although the peer had time to answer"
        );
    }

    //= sockets-protocol.md: move.2
    #[test]
    fn a_connection_is_expected_to_last_if_the_previous_two_did() {
        let mut peers = Peers::default();
        peers.on_short(at(0), service(1, 80));
        assert!(peers.known.is_empty(), "a short connection used an entry of the table");
        for (event, lasts) in
            [(true, false), (true, true), (true, true), (false, false), (true, false)]
        {
            if event {
                peers.on_lasting(at(1), service(1, 80));
            } else {
                peers.on_short(at(1), service(1, 80));
            }
            assert_eq!(peers.lasts(service(1, 80)), lasts);
            assert!(!peers.lasts(service(1, 81)));
        }
    }

    #[test]
    fn the_least_recently_used_entry_is_evicted() {
        let mut peers = Peers::default();
        for host in 0..PEERS_MAX as u16 {
            peers.on_silent(at(u64::from(host)), service(host, 80));
        }
        assert!(
            peers.may_ask(at(1024), service(0, 80)),
            "offers do not start again after a minute"
        );
        peers.on_silent(at(1025), service(0, 81));
        assert_eq!(peers.known.len(), PEERS_MAX);
        assert!(peers.known.contains_key(&service(0, 80)), "a recently used entry was removed");
        assert!(!peers.known.contains_key(&service(1, 80)));
    }

    proptest! {
        #[test]
        fn the_peer_table_is_bounded(
            events in prop::collection::vec((0..6_u8, 0..3000_u16, 0..100_u64), 0..4000),
        ) {
            let (mut peers, mut now) = (Peers::default(), Duration::ZERO);
            for (event, host, ms) in events {
                now += Duration::from_millis(ms);
                let service = service(host, 80);
                match event {
                    0 => { let _may = peers.may_ask(now, service); }
                    1 => peers.on_moved(now, service),
                    2 => peers.on_silent(now, service),
                    3 => peers.on_lasting(now, service),
                    4 => peers.on_short(now, service),
                    _ => peers.on_unanswered(now, service, Duration::from_millis(ms)),
                }
                prop_assert!(peers.known.len() <= PEERS_MAX);
            }
        }
    }
}
