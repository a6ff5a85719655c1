//! Transitions of a queue pair's state, and changes of its attributes.

use std::ops::BitOr;

use super::{QueuePair, lock, transitions};
use crate::address_handle;
use crate::attributes::{QueuePairAttributes, QueuePairLimits, QueuePairState as State};
use crate::device::check_port;
use crate::error::Error;
use crate::services::QueuePairType;
use crate::transport::Connector;

/// Set of attributes that a call changes: bits of `ibv_qp_attr_mask`.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct AttributeMask(pub u32);

impl AttributeMask {
    /// No attribute.
    pub const NONE: Self = Self(0);
    /// `IBV_QP_STATE`.
    pub const STATE: Self = Self(1);
    /// `IBV_QP_CUR_STATE`.
    pub const CURRENT_STATE: Self = Self(1 << 1);
    /// `IBV_QP_EN_SQD_ASYNC_NOTIFY`.
    pub const DRAINED_EVENT: Self = Self(1 << 2);
    /// `IBV_QP_ACCESS_FLAGS`.
    pub const ACCESS: Self = Self(1 << 3);
    /// `IBV_QP_PKEY_INDEX`.
    pub const PARTITION_KEY: Self = Self(1 << 4);
    /// `IBV_QP_PORT`.
    pub const PORT: Self = Self(1 << 5);
    /// `IBV_QP_QKEY`.
    pub const QUEUE_KEY: Self = Self(1 << 6);
    /// `IBV_QP_AV`.
    pub const PATH: Self = Self(1 << 7);
    /// `IBV_QP_PATH_MTU`.
    pub const PATH_MTU: Self = Self(1 << 8);
    /// `IBV_QP_TIMEOUT`.
    pub const TIMEOUT: Self = Self(1 << 9);
    /// `IBV_QP_RETRY_CNT`.
    pub const RETRIES: Self = Self(1 << 10);
    /// `IBV_QP_RNR_RETRY`.
    pub const NOT_READY_RETRIES: Self = Self(1 << 11);
    /// `IBV_QP_RQ_PSN`.
    pub const RECEIVE_PSN: Self = Self(1 << 12);
    /// `IBV_QP_MAX_QP_RD_ATOMIC`.
    pub const READS_MAX: Self = Self(1 << 13);
    /// `IBV_QP_ALT_PATH`: accepted, but has no effect.
    pub const ALTERNATE_PATH: Self = Self(1 << 14);
    /// `IBV_QP_MIN_RNR_TIMER`.
    pub const NOT_READY_TIMER: Self = Self(1 << 15);
    /// `IBV_QP_SQ_PSN`.
    pub const SEND_PSN: Self = Self(1 << 16);
    /// `IBV_QP_MAX_DEST_RD_ATOMIC`.
    pub const PEER_READS_MAX: Self = Self(1 << 17);
    /// `IBV_QP_PATH_MIG_STATE`: accepted, but has no effect.
    pub const PATH_MIGRATION: Self = Self(1 << 18);
    /// `IBV_QP_DEST_QPN`.
    pub const DESTINATION: Self = Self(1 << 20);

    /// Returns whether all bits of `other` are set.
    pub const fn contains(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }
}

impl BitOr for AttributeMask {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// A change of a queue pair's attributes.
#[derive(Clone, Copy, Debug)]
pub struct Modification {
    /// Which of the attributes below the call changes.
    pub mask: AttributeMask,
    /// The next state.
    pub state: State,
    /// The current state, according to the caller. The call fails if the queue pair is in another
    /// state.
    pub current: State,
    /// In a transition to SQD: whether to raise an event as soon as no send is in flight.
    pub drained_event: bool,
    /// The other attributes.
    pub attributes: QueuePairAttributes,
}

/// State and attributes of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QueuePairQuery {
    /// The state of the queue pair.
    pub state: State,
    /// Whether the state is SQD and sends are still in flight.
    pub is_draining: bool,
    /// The attributes, as the program set them last.
    pub attributes: QueuePairAttributes,
    /// The actual sizes of the queues.
    pub limits: QueuePairLimits,
    /// Whether every send is signalled.
    pub signals_all: bool,
}

impl QueuePair {
    /// Changes attributes, and the state if the mask includes it. On an error, nothing changes.
    ///
    /// # Errors
    /// * Returns [`Error::Invalid`] if there is no such transition.
    /// * Returns [`Error::Invalid`] if the call would connect the queue pair, but only the
    ///   connection manager connects queue pairs of the device ([`Connector::Manager`]).
    /// * Returns [`Error::Invalid`] if an attribute is missing, invalid, or not allowed in this
    ///   transition.
    /// * Returns the errors of the wire, the transport that carries the work of the queue pair.
    pub fn modify(&self, change: &Modification) -> Result<(), Error> {
        self.change(change, false)
    }

    /// Changes attributes like [`QueuePair::modify`], but does not start to connect when the queue
    /// pair enters RTR or RTS. Either the queue pair is already connected, or the connection
    /// manager is about to connect it. Only a connection manager calls this function.
    ///
    /// # Errors
    /// Returns the errors of [`QueuePair::modify`].
    pub fn modify_met(&self, change: &Modification) -> Result<(), Error> {
        self.change(change, true)
    }

    fn change(&self, change: &Modification, is_met: bool) -> Result<(), Error> {
        self.provider().check()?;
        let _one_at_a_time = lock(&self.modifying);
        if self.uses.is_destroyed() {
            return Err(Error::Invalid("the queue pair was destroyed".into()));
        }
        self.settle();
        let from = self.state();
        let mask = change.mask;
        let to = if mask.contains(AttributeMask::STATE) { change.state } else { from };
        if !is_met {
            self.check_connector(from, to)?;
        }
        self.check_mask(change, from, to)?;
        self.check_values(mask, &change.attributes)?;
        let before = *self.lock_attributes();
        set(&mut self.lock_attributes(), mask, &change.attributes);
        let made = match (from, to) {
            (State::Init, State::ReadyToReceive) if is_met => {
                self.enter(to);
                Ok(())
            }
            (State::ReadyToReceive, State::ReadyToSend) if is_met => {
                self.enter_unless_failed(from, to);
                Ok(())
            }
            _ => self.pass(from, to, change.drained_event),
        };
        if made.is_err() {
            *self.lock_attributes() = before;
        }
        made
    }

    /// Returns the state and the attributes.
    ///
    /// # Errors
    /// Returns [`Error::NoDevice`] in a forked child.
    pub fn query(&self) -> Result<QueuePairQuery, Error> {
        self.provider().check()?;
        self.settle();
        let state = self.state();
        Ok(QueuePairQuery {
            state,
            is_draining: state == State::SendQueueDrained && !self.end.is_drained(),
            attributes: self.attributes(),
            limits: self.limits,
            signals_all: self.signals_all,
        })
    }

    /// Checks that a program may make the transition itself. The transition to RTR connects the
    /// queue pair.
    fn check_connector(&self, from: State, to: State) -> Result<(), Error> {
        let device = self.provider().attributes();
        let transport = device.transport();
        let connects = (from, to) == (State::Init, State::ReadyToReceive);
        if connects && transport.connector() == Connector::Manager {
            return Err(Error::Invalid(format!(
                "ibv_modify_qp cannot connect queue pairs of {}, a device with the transport {transport}; connect them with rdma_connect and rdma_accept",
                device.name
            )));
        }
        Ok(())
    }

    fn check_mask(&self, change: &Modification, from: State, to: State) -> Result<(), Error> {
        let mask = change.mask;
        if mask.contains(AttributeMask::CURRENT_STATE) && change.current != from {
            return Err(Error::Invalid(format!(
                "the queue pair is in {from:?}, not in {:?}",
                change.current
            )));
        }
        let transport = self.provider().attributes().transport();
        let Some(known) = transitions::attributes(transport, self.service, from, to) else {
            let service = self.service;
            let what =
                format!("no {service:?} queue pair of {transport} goes from {from:?} to {to:?}");
            return Err(Error::Invalid(what));
        };
        let missing = known.required.without(mask);
        let allowed = known.required | known.optional | AttributeMask::STATE;
        let unwanted = mask.without(allowed);
        if missing != AttributeMask::NONE || unwanted != AttributeMask::NONE {
            return Err(Error::Invalid(format!(
                "from {from:?} to {to:?}: attributes {:#x} are missing and {:#x} are not allowed",
                missing.0, unwanted.0
            )));
        }
        Ok(())
    }

    fn check_values(
        &self,
        mask: AttributeMask,
        attributes: &QueuePairAttributes,
    ) -> Result<(), Error> {
        let device = self.provider().attributes();
        let at_most = |bit, what: &str, value: u32, max: u32| {
            if mask.contains(bit) && value > max {
                return Err(Error::Invalid(format!("{what} of {value}: at most {max}")));
            }
            Ok(())
        };
        let reads = device.read_depth_max.into();
        at_most(AttributeMask::READS_MAX, "read depth", attributes.reads_max.into(), reads)?;
        let peer_reads = attributes.peer_reads_max.into();
        at_most(AttributeMask::PEER_READS_MAX, "read depth of the peer", peer_reads, reads)?;
        let timer = attributes.not_ready_timer.into();
        at_most(AttributeMask::NOT_READY_TIMER, "RNR timer", timer, 31)?;
        at_most(AttributeMask::TIMEOUT, "timeout", attributes.timeout.into(), 31)?;
        at_most(AttributeMask::RETRIES, "retry count", attributes.retries.into(), 7)?;
        let retries = attributes.not_ready_retries.into();
        at_most(AttributeMask::NOT_READY_RETRIES, "RNR retry count", retries, 7)?;
        let key = attributes.partition_key_index.into();
        at_most(AttributeMask::PARTITION_KEY, "partition key index", key, 0)?;
        at_most(
            AttributeMask::DESTINATION,
            "queue pair number",
            attributes.destination,
            0xff_ffff,
        )?;
        if mask.contains(AttributeMask::PORT) {
            check_port(attributes.port)?;
        }
        if mask.contains(AttributeMask::PATH_MTU)
            && ![256, 512, 1024, 2048, 4096].contains(&attributes.path_mtu)
        {
            return Err(Error::Invalid(format!(
                "invalid path MTU of {} bytes",
                attributes.path_mtu
            )));
        }
        if mask.contains(AttributeMask::PATH) {
            address_handle::check(&self.domain, &attributes.path)?;
        }
        Ok(())
    }

    /// Makes a transition. The caller has checked that the transition is allowed.
    fn pass(&self, from: State, to: State, drained_event: bool) -> Result<(), Error> {
        match (from, to) {
            (_, State::Reset) => self.reset(),
            (_, State::Error) => self.fail_by_program(),
            (State::Init | State::ReadyToSend, State::Init)
            | (State::ReadyToSend, State::ReadyToSend)
            | (State::SendQueueDrained, State::SendQueueDrained) => {
                return self.ask_wire(|wire| wire.update());
            }
            (State::Reset, State::Init) => {
                self.ask_wire(|wire| wire.open())?;
                self.enter(to);
            }
            (State::Init, State::ReadyToReceive) => {
                // Enter the state before the connection is established, because a message can
                // arrive immediately after that, and the queue pair must be ready for the message.
                self.enter(to);
                let connected = self.ask_wire(|wire| wire.connect());
                if connected.is_err() {
                    self.enter(from);
                }
                return connected;
            }
            (State::ReadyToReceive, State::ReadyToSend) => {
                self.enter_unless_failed(from, to);
                return self.ask_wire(|wire| wire.update());
            }
            (State::SendQueueDrained, State::ReadyToSend) => {
                self.end.forget_draining();
                self.enter_unless_failed(from, to);
                let updated = self.ask_wire(|wire| wire.update());
                self.with_wire(|wire| wire.ring());
                return updated;
            }
            (State::SendQueueError, State::ReadyToSend) => {
                // Flush the posted sends now. A later flush would also flush sends that the program
                // posts in RTS.
                self.send_queue.flush_sends_of(self);
                self.end.forget_failure();
                self.enter_unless_failed(from, to);
                let updated = self.ask_wire(|wire| wire.update());
                self.with_wire(|wire| wire.ring());
                return updated;
            }
            (State::ReadyToSend, State::SendQueueDrained) => {
                self.end.begin_draining(drained_event);
                self.enter_unless_failed(from, to);
                self.with_wire(|wire| wire.drain());
            }
            _ => self.enter(to),
        }
        Ok(())
    }

    /// Resets the queue pair: drops its work and sets all its attributes to their defaults. Its
    /// number and its sizes stay the same.
    fn reset(&self) {
        self.send_out();
        self.enter(State::Reset);
        self.with_wire(|wire| wire.close());
        let _no_posting = (lock(&self.posting_sends), lock(&self.posting_receives));
        self.purge();
        self.disown();
        self.end.clear();
        *self.lock_attributes() = QueuePairAttributes::default();
    }

    fn fail_by_program(&self) {
        self.send_out();
        self.enter(State::Error);
        if !self.end.has_ended() {
            self.close_in_error();
        }
        self.begin_flush();
    }

    /// Closes the connection of a queue pair that is in ERR.
    pub(super) fn close_in_error(&self) {
        self.with_wire(|wire| wire.close());
        self.end.set_over();
    }

    /// Transmits posted sends before the connection is closed, because a network adapter would
    /// already have transmitted them.
    pub(super) fn send_out(&self) {
        let may_send = self.state() == State::ReadyToSend && !self.end.has_ended();
        if may_send && self.sends.posted() > self.sends.retired() {
            self.with_wire(|wire| wire.send_out());
        }
    }

    fn ask_wire(
        &self,
        call: impl FnOnce(&dyn crate::provider::Wire) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.with_wire(call).unwrap_or(Ok(()))
    }
}

/// Copies the attributes in `mask` from `from` to `to`.
fn set(to: &mut QueuePairAttributes, mask: AttributeMask, from: &QueuePairAttributes) {
    macro_rules! take {
        ($($bit:ident: $field:ident),* $(,)?) => {
            $(if mask.contains(AttributeMask::$bit) {
                to.$field = from.$field;
            })*
        };
    }
    take!(
        ACCESS: access,
        PARTITION_KEY: partition_key_index,
        PORT: port,
        QUEUE_KEY: queue_key,
        PATH: path,
        PATH_MTU: path_mtu,
        TIMEOUT: timeout,
        RETRIES: retries,
        NOT_READY_RETRIES: not_ready_retries,
        RECEIVE_PSN: receive_psn,
        READS_MAX: reads_max,
        NOT_READY_TIMER: not_ready_timer,
        SEND_PSN: send_psn,
        PEER_READS_MAX: peer_reads_max,
        DESTINATION: destination,
    );
}

/// Returns whether a queue pair with this service enters SQE if a send fails, so that its receives
/// continue.
pub(super) const fn has_send_queue_error(service: QueuePairType) -> bool {
    matches!(service, QueuePairType::Datagram)
}
