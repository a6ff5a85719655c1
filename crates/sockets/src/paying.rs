//! Which connections move: the edge is faster than TCP only in memory, over several links, or for threads that poll.

use std::net::IpAddr;
use std::str::FromStr;

use thiserror::Error;

/// When connections move: `ETHERNOT_SOCKETS_MOVE`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum Moving {
    /// Each at its first use, whatever it gains.
    Always,
    /// Those that gain by it.
    #[default]
    WhenItPays,
    /// None.
    Never,
}

/// A word that does not say when connections move.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("give always, when-it-pays or never")]
pub struct MovingError;

impl FromStr for Moving {
    type Err = MovingError;

    fn from_str(text: &str) -> Result<Self, MovingError> {
        match text.trim() {
            "always" => Ok(Self::Always),
            "when-it-pays" => Ok(Self::WhenItPays),
            "never" => Ok(Self::Never),
            _ => Err(MovingError),
        }
    }
}

/// What the edge has in this process that TCP does not.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Gains {
    /// Processes of one host exchange bytes in memory.
    pub(crate) shares_memory: bool,
    /// Several links carry one connection.
    pub(crate) has_several_links: bool,
    /// Threads poll instead of sleeping.
    pub(crate) polls: bool,
}

impl Gains {
    /// Whether a connection between these addresses gains by a move.
    pub(crate) fn are_had(self, local: IpAddr, peer: IpAddr) -> bool {
        self.has_several_links || self.polls || (self.shares_memory && is_one_host(local, peer))
    }
}

/// Whether both addresses are of this host. The kernel connects to an own address from the same address.
fn is_one_host(local: IpAddr, peer: IpAddr) -> bool {
    let (local, peer) = (local.to_canonical(), peer.to_canonical());
    local == peer || local.is_loopback() || peer.is_loopback()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_says_when_connections_move() {
        for (text, moving) in [
            ("always", Moving::Always),
            (" when-it-pays ", Moving::WhenItPays),
            ("never", Moving::Never),
        ] {
            assert_eq!(text.parse(), Ok(moving));
        }
        assert_eq!("often".parse::<Moving>(), Err(MovingError));
        assert_eq!(Moving::default(), Moving::WhenItPays);
    }

    #[test]
    fn only_memory_links_and_polling_are_gains() {
        let one_host = [("127.0.0.1", "127.0.0.2"), ("10.0.0.1", "10.0.0.1"), ("::1", "::1")];
        let two_hosts = [("10.0.0.1", "10.0.0.2"), ("fd00::1", "fd00::2")];
        let all = |pairs: &[(&str, &str)], gains: Gains| -> Vec<bool> {
            let ip = |text: &str| text.parse().unwrap();
            pairs.iter().map(|(local, peer)| gains.are_had(ip(local), ip(peer))).collect()
        };
        let nothing = Gains::default();
        let memory = Gains { shares_memory: true, ..nothing };
        let links = Gains { has_several_links: true, ..nothing };
        let polling = Gains { polls: true, ..nothing };
        for (gains, on_one, on_two) in [
            (nothing, false, false),
            (memory, true, false),
            (links, true, true),
            (polling, true, true),
        ] {
            assert_eq!(all(&one_host, gains), [on_one; 3], "{gains:?}");
            assert_eq!(all(&two_hosts, gains), [on_two; 2], "{gains:?}");
        }
        let mapped =
            memory.are_had("::ffff:10.0.0.1".parse().unwrap(), "10.0.0.1".parse().unwrap());
        assert!(mapped);
    }
}
