//! Settings of one connection that differ from the settings of its endpoint.

use std::sync::Arc;

use delivery::SettingError;
use mem::Rights;
use semantics::{InboundLimits, SharedReceives};
use wire_edge::{CloseReason, OperationNumber};

use crate::config::{EngineConfig, READ_DEPTH_MAX};
use crate::receive_wait::ReceiveWait;

/// Settings of one end of a connection. If a setting has no value, the setting of the endpoint
/// applies.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Terms {
    /// Whether this end wants a verbs queue pair. The connection is a queue pair if both ends want
    /// a queue pair (protocol.md §5.8). An idle queue pair asks its peer for a sign of life every
    /// half second, or at the interval [`Grants::keep_alive_ns`].
    pub queue_pair: bool,
    /// Limits that this end grants its peer.
    pub grants: Grants,
    /// Shared queue from which a queue pair takes its receives. If this field is set, the
    /// connection reserves no places in its completion queues. If the peer wants no queue pair, the
    /// connection does not use the shared queue.
    pub shared_receives: Option<Arc<SharedReceives>>,
    /// How long the oldest operation of a queue pair waits for a receive of the peer, in
    /// nanoseconds. After that time, the operation fails. `None` means no limit.
    pub not_ready_ns: Option<u64>,
}

/// Limits that one end of a connection grants its peer. `None` means the limit of the endpoint.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Grants {
    /// Maximum number of reads and atomics of the peer that this end answers at a time: see
    /// [`EngineConfig::read_depth`].
    pub read_depth: Option<u16>,
    /// Maximum number of posted receives: see [`EngineConfig::receives_max`].
    pub receives: Option<u32>,
    /// How long the peer may be silent, in nanoseconds: see [`EngineConfig::silence_budget_ns`].
    pub silence_ns: Option<u64>,
    /// Time of silence after which an idle connection asks its peer for a sign of life, in
    /// nanoseconds: see [`EngineConfig::keep_alive_ns`].
    pub keep_alive_ns: Option<u64>,
    /// Memory for fragments of the peer that must wait for earlier operations, in bytes: see
    /// [`EngineConfig::order_pool_bytes`].
    pub order_pool_bytes: Option<u32>,
    /// Maximum rights of the peer on this connection. The peer has a right only if the region also
    /// grants it. `None` sets no maximum.
    pub rights: Option<Rights>,
}

delivery::setters!(Terms {
    queue_pair: bool,
    grants: Grants,
    shared_receives: Option<Arc<SharedReceives>>,
    not_ready_ns: Option<u64>,
});

delivery::setters!(Grants {
    read_depth: Option<u16>,
    receives: Option<u32>,
    silence_ns: Option<u64>,
    keep_alive_ns: Option<u64>,
    order_pool_bytes: Option<u32>,
    rights: Option<Rights>,
});

impl Terms {
    /// Checks that a connection works with these terms.
    pub(crate) fn check(&self) -> Result<(), SettingError> {
        let within =
            |setting, value: u64, wanted| SettingError::unless_within(setting, &value, &wanted);
        let read_depth = self.grants.read_depth.unwrap_or(0);
        within("grants.read_depth", read_depth.into(), 0..=READ_DEPTH_MAX.into())?;
        within("grants.silence_ns", self.grants.silence_ns.unwrap_or(1), 1..=u64::MAX)?;
        within("grants.keep_alive_ns", self.grants.keep_alive_ns.unwrap_or(1), 1..=u64::MAX)
    }
}

/// Settings of one connection. If a connection uses only the settings of its endpoint, it has no
/// value of this type.
#[derive(Clone, Debug)]
pub(crate) struct OwnTerms {
    limits: InboundLimits,
    silence_ns: u64,
    keep_alive_ns: u64,
    /// Whether this end wants a queue pair.
    wants_queue_pair: bool,
    /// Whether the connection is a queue pair. It is a queue pair if both ends want a queue pair.
    is_queue_pair: bool,
    /// Shared queue for receives. If the connection becomes a queue pair, the connection takes its
    /// receives from this queue.
    shared_receives: Option<Arc<SharedReceives>>,
    /// Whether this connection has asked on behalf of all connections to its peer, and still waits
    /// for an answer of the peer.
    asks_for_all: bool,
    /// State of operations that wait for receives of the peer.
    receive_wait: ReceiveWait,
    /// Reason and operation of a deferred Close, with which this end refuses a request of the peer.
    /// The Close waits until the peer has all earlier answers.
    refused: Option<(CloseReason, OperationNumber)>,
}

impl OwnTerms {
    //= protocol.md: silence.4
    /// Creates the settings of a new connection; `None` if the connection uses the settings of the
    /// endpoint.
    pub(crate) fn new(config: &EngineConfig, terms: &Terms) -> Option<Box<Self>> {
        if !terms.queue_pair && terms.grants == Grants::default() {
            return None;
        }
        let Grants { read_depth, receives, silence_ns, keep_alive_ns, order_pool_bytes, rights } =
            terms.grants;
        let usual = config.inbound_limits();
        let limits = InboundLimits {
            read_depth: read_depth.unwrap_or(usual.read_depth),
            receives: receives.unwrap_or(usual.receives),
            order_pool_bytes: order_pool_bytes.unwrap_or(usual.order_pool_bytes),
            rights: rights.unwrap_or(usual.rights),
            patches: usual.patches && !terms.queue_pair,
            ..usual
        };
        let most_ns = if terms.queue_pair { QUEUE_PAIR_KEEP_ALIVE_NS } else { u64::MAX };
        let usual_ns = config.keep_alive_ns.min(most_ns);
        Some(Box::new(Self {
            limits,
            silence_ns: silence_ns.unwrap_or(config.silence_budget_ns),
            keep_alive_ns: keep_alive_ns.unwrap_or(usual_ns),
            wants_queue_pair: terms.queue_pair,
            is_queue_pair: false,
            shared_receives: terms.shared_receives.clone(),
            asks_for_all: false,
            receive_wait: ReceiveWait::new(terms.not_ready_ns),
            refused: None,
        }))
    }

    /// Returns the limits of the peer's operations at this end.
    pub(crate) const fn limits(&self) -> InboundLimits {
        self.limits
    }

    /// Returns how long the peer may be silent while this end waits for the peer, in nanoseconds.
    pub(crate) const fn silence_ns(&self) -> u64 {
        self.silence_ns
    }

    /// Returns the time of silence after which this end asks the peer for a sign of life, in
    /// nanoseconds.
    pub(crate) const fn keep_alive_ns(&self) -> u64 {
        self.keep_alive_ns
    }

    /// Returns whether this end wants a queue pair.
    pub(crate) const fn wants_queue_pair(&self) -> bool {
        self.wants_queue_pair
    }

    /// Returns whether the connection is a queue pair. It is a queue pair if both ends want a queue
    /// pair.
    pub(crate) const fn is_queue_pair(&self) -> bool {
        self.is_queue_pair
    }

    /// Records that the peer wants a queue pair. Returns whether the connection becomes a queue
    /// pair.
    pub(crate) const fn on_peer_wants(&mut self) -> bool {
        self.is_queue_pair = self.wants_queue_pair;
        self.is_queue_pair
    }

    /// Takes the shared queue of the receives, if there is one.
    pub(crate) const fn take_shared_receives(&mut self) -> Option<Arc<SharedReceives>> {
        self.shared_receives.take()
    }

    /// Records that this connection asks on behalf of all connections to its peer.
    pub(crate) const fn ask_for_all(&mut self) {
        self.asks_for_all = true;
    }

    /// Records that the peer has answered the question that this connection asked on behalf of all
    /// connections, if this connection asked one. Returns whether this connection had asked.
    #[inline]
    pub(crate) const fn take_asking_for_all(&mut self) -> bool {
        core::mem::replace(&mut self.asks_for_all, false)
    }

    /// Returns the state of operations that wait for receives of the peer.
    pub(crate) const fn receive_wait_mut(&mut self) -> &mut ReceiveWait {
        &mut self.receive_wait
    }

    /// Sets two timeouts in nanoseconds: `silence_ns` limits the silence of the peer, and
    /// `not_ready_ns` limits the wait for a receive of the peer.
    pub(crate) const fn set_patience(&mut self, silence_ns: u64, not_ready_ns: Option<u64>) {
        self.silence_ns = silence_ns;
        self.receive_wait.set_budget(not_ready_ns);
    }

    /// Stores the Close with which this end refuses a request of the peer. This end sends the Close
    /// after the peer has received all earlier answers.
    pub(crate) const fn set_refused(&mut self, close: (CloseReason, OperationNumber)) {
        self.refused = Some(close);
    }

    /// Returns whether this end has deferred a Close with which it refuses a request of the peer.
    #[inline]
    pub(crate) const fn has_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Removes the deferred Close, and returns its reason and its operation. Returns `None` if no
    /// Close is deferred.
    pub(crate) const fn take_refused(&mut self) -> Option<(CloseReason, OperationNumber)> {
        self.refused.take()
    }
}

/// Time of silence after which a queue pair asks its peer for a sign of life, in nanoseconds. With
/// this value, a verbs program notices within a second that its peer was killed. With a network
/// adapter, a verbs program notices this equally fast, because the kernel of the peer reports the
/// end of the process.
const QUEUE_PAIR_KEEP_ALIVE_NS: u64 = 500_000_000;
