//! What holds on one connection and not on all of an endpoint.

use std::sync::Arc;

use delivery::SettingError;
use mem::Rights;
use semantics::{InboundLimits, SharedReceives};
use wire_edge::{CloseReason, OperationNumber};

use crate::config::{EngineConfig, READ_DEPTH_MAX};
use crate::patience::Patience;

/// Under which terms one end takes part in a connection. The defaults are those of the endpoint.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Terms {
    /// This end wants a queue pair of verbs; it is one if the peer wants that too (protocol.md §5.8). It asks its
    /// peer for a sign of life every half second, unless the grants say otherwise.
    pub queue_pair: bool,
    /// What this end grants its peer.
    pub grants: Grants,
    /// Where a queue pair takes its receives from, if it shares them with others; its queues of completions promise
    /// nothing. If the peer wants no queue pair, receives are not shared.
    pub shared_receives: Option<Arc<SharedReceives>>,
    /// How long the oldest operation of a queue pair waits for a receive of the peer before it fails, in nanoseconds;
    /// `None` for as long as it takes.
    pub not_ready_ns: Option<u64>,
}

/// What one end of a connection grants its peer; `None` for what the endpoint grants all.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct Grants {
    /// Reads and atomics of the peer answered at a time: see [`EngineConfig::read_depth`].
    pub read_depth: Option<u16>,
    /// See [`EngineConfig::receives_max`].
    pub receives: Option<u32>,
    /// See [`EngineConfig::silence_budget_ns`].
    pub silence_ns: Option<u64>,
    /// See [`EngineConfig::keep_alive_ns`].
    pub keep_alive_ns: Option<u64>,
    /// See [`EngineConfig::order_pool_bytes`].
    pub order_pool_bytes: Option<u32>,
    /// What the peer may do to memory at most, whatever the regions allow; `None` for all that they allow.
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
    /// Refuses what no connection works with.
    pub(crate) fn check(&self) -> Result<(), SettingError> {
        let within =
            |setting, value: u64, wanted| SettingError::unless_within(setting, &value, &wanted);
        let read_depth = self.grants.read_depth.unwrap_or(0);
        within("grants.read_depth", read_depth.into(), 0..=READ_DEPTH_MAX.into())?;
        within("grants.silence_ns", self.grants.silence_ns.unwrap_or(1), 1..=u64::MAX)?;
        within("grants.keep_alive_ns", self.grants.keep_alive_ns.unwrap_or(1), 1..=u64::MAX)
    }
}

/// What holds on a connection alone. One that lives under the terms of its endpoint has none of it.
#[derive(Clone, Debug)]
pub(crate) struct OwnTerms {
    limits: InboundLimits,
    silence_ns: u64,
    keep_alive_ns: u64,
    /// This end wants a queue pair.
    wants_queue_pair: bool,
    /// So does the peer.
    is_queue_pair: bool,
    /// Where receives come from, once it is one.
    shared_receives: Option<Arc<SharedReceives>>,
    /// It has asked for all that go to the same peer, and not heard the peer since.
    asks_for_all: bool,
    /// How long it waits for receives of the peer.
    patience: Patience,
    /// What the peer has asked for and may not have, while answers to what it asked before are outstanding.
    refused: Option<(CloseReason, OperationNumber)>,
}

impl OwnTerms {
    //= protocol.md: silence.4
    /// Of a connection to be; nothing if there is nothing of its own.
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
            patience: Patience::new(terms.not_ready_ns),
            refused: None,
        }))
    }

    /// What the peer may do here.
    pub(crate) const fn limits(&self) -> InboundLimits {
        self.limits
    }

    /// How long the peer may be silent while something is awaited.
    pub(crate) const fn silence_ns(&self) -> u64 {
        self.silence_ns
    }

    /// After how much silence the peer is asked.
    pub(crate) const fn keep_alive_ns(&self) -> u64 {
        self.keep_alive_ns
    }

    /// Whether this end wants a queue pair.
    pub(crate) const fn wants_queue_pair(&self) -> bool {
        self.wants_queue_pair
    }

    /// Whether both ends do.
    pub(crate) const fn is_queue_pair(&self) -> bool {
        self.is_queue_pair
    }

    /// The peer wants a queue pair. Whether that makes it one.
    pub(crate) const fn on_peer_wants(&mut self) -> bool {
        self.is_queue_pair = self.wants_queue_pair;
        self.is_queue_pair
    }

    /// Where receives come from, if others have them too.
    pub(crate) const fn take_shared_receives(&mut self) -> Option<Arc<SharedReceives>> {
        self.shared_receives.take()
    }

    /// It asks for all that go to the same peer.
    pub(crate) const fn ask_for_all(&mut self) {
        self.asks_for_all = true;
    }

    /// Whether it did, when its peer is heard.
    #[inline]
    pub(crate) const fn take_asking_for_all(&mut self) -> bool {
        core::mem::replace(&mut self.asks_for_all, false)
    }

    /// How long it waits for receives of the peer.
    pub(crate) const fn patience_mut(&mut self) -> &mut Patience {
        &mut self.patience
    }

    /// It waits for so long from now on: for a sign of the peer, and for a receive of it.
    pub(crate) const fn set_patience(&mut self, silence_ns: u64, not_ready_ns: Option<u64>) {
        self.silence_ns = silence_ns;
        self.patience.set_budget(not_ready_ns);
    }

    /// The peer is refused when it has all answers.
    pub(crate) const fn set_refused(&mut self, close: (CloseReason, OperationNumber)) {
        self.refused = Some(close);
    }

    /// Whether it is.
    #[inline]
    pub(crate) const fn has_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Why.
    pub(crate) const fn take_refused(&mut self) -> Option<(CloseReason, OperationNumber)> {
        self.refused.take()
    }
}

/// Silence after which a queue pair asks its peer: programs of verbs learn within a second that their peer was
/// killed, as those of network adapters do, whose kernel says so.
const QUEUE_PAIR_KEEP_ALIVE_NS: u64 = 500_000_000;
