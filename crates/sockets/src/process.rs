//! What a process has: an endpoint, its groups, doors and offers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use thiserror::Error;

use crate::connection::Connection;
use crate::held::Held;
use crate::place::Place;
use crate::reasons::Reason;
use crate::settings::{Role, Settings};
use crate::waiting::{Waited, Waits};

/// Why a process has no part in it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum StartError {
    /// Not a link could be opened.
    #[error(
        "no link to carry connections could be opened; ETHERNOT_SOCKETS_LINKS names which to use"
    )]
    NoLink(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The endpoint does not start.
    #[error(transparent)]
    Runtime(#[from] runtime::StartError),
    /// No random numbers.
    #[error("the kernel gives no random numbers; is /dev/urandom there?")]
    Random(#[source] std::io::Error),
}

/// What a process has of moved connections: one endpoint, started with the first connection that may move.
pub struct Sockets {
    place: Arc<dyn Place>,
    settings: Arc<Settings>,
}

impl Sockets {
    /// Starts it. Links are opened behind: nothing waits for them.
    pub fn start(settings: Arc<Settings>, place: Arc<dyn Place>) -> Result<Self, StartError> {
        Ok(Self { place, settings })
    }

    /// The program has connected, or begun to: opens the door for the peer's offer. `local` is bound already.
    pub fn connected(&self, token: u64, local: SocketAddr, peer: SocketAddr) -> Arc<Connection> {
        self.connection(token, Role::Connecting, local, peer)
    }

    /// The program begins to use a connection that it has accepted: makes the offer.
    pub fn accepted(&self, token: u64, local: SocketAddr, peer: SocketAddr) -> Arc<Connection> {
        self.connection(token, Role::Accepting, local, peer)
    }

    fn connection(
        &self,
        token: u64,
        role: Role,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Arc<Connection> {
        let _ = self.settings.choice(role, local, peer);
        let place = Arc::clone(&self.place);
        let connection =
            Connection::new(token, role, local, peer, place, Arc::new(Nothing::default()));
        connection.leave(Reason::NoEndpoint);
        connection
    }

    /// Makes progress, unless another thread is at it.
    pub fn drive(&self) {}

    /// Waits until `ready` says so, one of `others` is ready, or `limit` has passed (`None`: never).
    pub fn wait_beside(
        &self,
        others: &mut [libc::pollfd],
        limit: Option<Duration>,
        mut ready: impl FnMut() -> bool,
    ) -> Result<Waited, Errno> {
        let _ = (others, limit);
        Ok(if ready() { Waited::Ready } else { Waited::TimedOut })
    }

    /// Whether this is the process that started it.
    pub fn is_of_this_process(&self) -> bool {
        true
    }

    /// Lets go in a forked child, in which nothing of it works: descriptors are closed, nobody is told.
    pub fn forget_in_child(self) {}

    /// The process is about to end: drives out what programs have written, for at most `limit`.
    pub fn finish(&self, limit: Duration) {
        let _ = limit;
    }
}

/// Stands for an endpoint until there is one.
#[derive(Default)]
struct Nothing {
    held: Held,
}

impl Waits for Nothing {
    fn drive(&self) {}

    fn wait_beside(
        &self,
        _mark: &Arc<runtime::Mark>,
        _others: &mut [libc::pollfd],
        _limit: Option<Duration>,
        ready: &mut dyn FnMut() -> bool,
    ) -> Result<Waited, Errno> {
        Ok(if ready() { Waited::Ready } else { Waited::TimedOut })
    }

    fn raise(&self, mark: &runtime::Mark) {
        mark.raise();
    }

    fn held(&self) -> &Held {
        &self.held
    }
}
