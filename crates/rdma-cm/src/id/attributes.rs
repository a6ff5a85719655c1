//! The attributes that an id sets when it connects its queue pair.

use std::sync::Arc;

use verbs::{
    AddressVectorAttributes, AttributeMask as Mask, Device, Error, Gid, Modification, QueuePair,
    QueuePairAttributes, QueuePairState, QueuePairType,
};

use super::{Id, Inner, QUEUE_KEY};
use crate::manager::ManagedDevice;
use crate::message::End;

impl Id {
    /// Returns the attributes with which to move a queue pair of this id to INIT, RTR or RTS. If
    /// the wire (the transport) connects queue pairs, the result for RTR and RTS changes nothing.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the device or the peer is not known yet.
    pub fn modification(&self, to: QueuePairState) -> Result<Modification, Error> {
        let is_connected_by_wire = self.is_connected_by_wire();
        let inner = self.lock();
        let Some(ManagedDevice { device, .. }) = &inner.device else {
            return Err(Error::Invalid("the id has no device yet".into()));
        };
        let is_datagram = self.service == QueuePairType::Datagram;
        match to {
            QueuePairState::Init => Ok(to_init(&inner, is_datagram)),
            QueuePairState::ReadyToReceive if is_datagram => Ok(change(to, Mask::NONE)),
            QueuePairState::ReadyToReceive | QueuePairState::ReadyToSend
                if is_connected_by_wire =>
            {
                // Not even the state: the program makes no transition, as with the kernel's iWARP.
                Ok(Modification { mask: Mask::NONE, ..change(to, Mask::NONE) })
            }
            QueuePairState::ReadyToReceive => {
                Ok(to_receive(&inner, device, inner.peer()?, self.service))
            }
            QueuePairState::ReadyToSend => {
                let peer = if is_datagram { None } else { Some(inner.peer()?) };
                Ok(to_send(&inner, peer, self.service))
            }
            _ => Err(Error::Invalid(format!("an id has no attributes for {to:?}"))),
        }
    }

    /// Attaches a queue pair that is in RESET. Moves a datagram queue pair to RTS, and any other
    /// queue pair to INIT.
    ///
    /// # Errors
    /// * Returns [`Error::Invalid`] if the id already has a queue pair, or has no device.
    /// * Returns the errors of the queue pair.
    pub fn take_queue_pair(&self, queue_pair: &Arc<QueuePair>) -> Result<(), Error> {
        if self.queue_pair().is_some() {
            return Err(Error::Invalid("the id has a queue pair".into()));
        }
        if queue_pair.service() != self.service {
            return Err(Error::Invalid(format!("the id is for {:?} queue pairs", self.service)));
        }
        queue_pair.modify(&self.modification(QueuePairState::Init)?)?;
        if self.service == QueuePairType::Datagram {
            self.pass_to_sending(queue_pair, false)?;
        }
        self.lock().queue_pair = Some(Arc::clone(queue_pair));
        Ok(())
    }

    /// Detaches the queue pair. After that, the program destroys it.
    pub fn release_queue_pair(&self) {
        let released = self.lock().queue_pair.take();
        drop(released);
    }

    /// If the id has a queue pair, moves it to RTS.
    pub(super) fn connect_queue_pair(&self) -> Result<(), Error> {
        match self.connected_queue_pair() {
            Some(queue_pair) => self.pass_to_sending(&queue_pair, false),
            None => Ok(()),
        }
    }

    /// Returns the id's queue pair; `None` if there is none or it carries datagrams.
    pub(super) fn connected_queue_pair(&self) -> Option<Arc<QueuePair>> {
        self.queue_pair().filter(|_| self.service != QueuePairType::Datagram)
    }

    /// Returns the queue pair that the wire connects: that of the id, or the one that the program
    /// has created itself and names by its number.
    pub(super) fn queue_pair_for_wire(&self, number: u32) -> Result<Arc<QueuePair>, Error> {
        if let Some(queue_pair) = self.connected_queue_pair() {
            return Ok(queue_pair);
        }
        let named = self.device().and_then(|device| device.provider().registry().by_number(number));
        let named = named.filter(|queue_pair| queue_pair.service() == self.service);
        named.ok_or_else(|| {
            let service = self.service;
            Error::Invalid(format!("the device has no {service:?} queue pair {number:#x}"))
        })
    }

    /// If the id has a queue pair, moves it to ERR, so that its work is flushed.
    pub(super) fn fail_queue_pair(&self) {
        if let Some(queue_pair) = self.queue_pair() {
            // This fails if the queue pair is destroyed, or if it belongs to a parent process. In
            // both cases, this process has no work to flush.
            let _gone = queue_pair.modify(&change(QueuePairState::Error, Mask::NONE));
        }
    }

    /// Moves a queue pair to RTR and then to RTS. If `is_met` is true, the wire (the transport)
    /// need not connect the queue pair, because the queue pair is already connected or will take
    /// over a connection.
    pub(super) fn pass_to_sending(
        &self,
        queue_pair: &QueuePair,
        is_met: bool,
    ) -> Result<(), Error> {
        for state in [QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend] {
            let change = self.modification(state)?;
            if is_met {
                queue_pair.modify_met(&change)?;
            } else {
                queue_pair.modify(&change)?;
            }
        }
        Ok(())
    }
}

impl Inner {
    fn peer(&self) -> Result<&End, Error> {
        self.peer.as_ref().ok_or_else(|| Error::Invalid("the id does not know its peer yet".into()))
    }

    /// Returns the local GID and its index in the device's table.
    pub(super) fn gid(&self) -> Option<(Gid, u8)> {
        let (device, local) = (&self.device.as_ref()?.device, self.local?);
        let wanted = Gid::of(local.ip().to_canonical());
        let gids = device.provider().gids();
        // Loopback addresses are not in the table. For a loopback address, use an entry of the same
        // address family.
        let alike = |gid: Gid| gid.address().is_ipv4() == local.is_ipv4();
        let entry = gids
            .iter()
            .find(|entry| entry.gid == wanted)
            .or_else(|| gids.iter().find(|entry| alike(entry.gid)))
            .or_else(|| gids.first())?;
        Some((entry.gid, entry.index as u8))
    }

    /// Returns the RNR timer code. The code stands for the time after which the peer may retransmit
    /// a message for which this side had no receive posted.
    pub(super) fn not_ready_timer(&self) -> u8 {
        self.options.not_ready_timer.unwrap_or(NOT_READY_TIMER)
    }

    /// Returns the path from this id to the address `gid`.
    pub(super) fn path_to(&self, gid: Gid) -> AddressVectorAttributes {
        AddressVectorAttributes {
            gid,
            source_index: self.gid().map_or(0, |(_, index)| index),
            hop_limit: HOP_LIMIT,
            traffic_class: self.options.traffic_class,
            is_global: true,
            port: 1,
            ..Default::default()
        }
    }
}

fn to_init(inner: &Inner, is_datagram: bool) -> Modification {
    let common = Mask::PARTITION_KEY | Mask::PORT;
    let mask = if is_datagram { common | Mask::QUEUE_KEY } else { common | Mask::ACCESS };
    let mut change = change(QueuePairState::Init, mask);
    change.attributes.port = 1;
    change.attributes.queue_key = inner.own.queue_key.unwrap_or(QUEUE_KEY);
    change.attributes.access = ACCESS;
    change
}

fn to_receive(inner: &Inner, device: &Device, peer: &End, service: QueuePairType) -> Modification {
    let connected = Mask::PATH | Mask::PATH_MTU | Mask::DESTINATION | Mask::RECEIVE_PSN;
    let mask = match service {
        QueuePairType::Reliable => connected | Mask::PEER_READS_MAX | Mask::NOT_READY_TIMER,
        _ => connected,
    };
    let mut change = change(QueuePairState::ReadyToReceive, mask);
    let provider = device.provider();
    let max = provider.attributes().read_depth_max;
    change.attributes = QueuePairAttributes {
        path: inner.path_to(peer.gid),
        path_mtu: provider.path_mtu(),
        destination: peer.number,
        receive_psn: inner.own.psn,
        peer_reads_max: inner.own.responder_resources.min(max),
        not_ready_timer: inner.not_ready_timer(),
        ..Default::default()
    };
    change
}

fn to_send(inner: &Inner, peer: Option<&End>, service: QueuePairType) -> Modification {
    let mask = match service {
        QueuePairType::Reliable => {
            Mask::TIMEOUT
                | Mask::RETRIES
                | Mask::NOT_READY_RETRIES
                | Mask::SEND_PSN
                | Mask::READS_MAX
        }
        _ => Mask::SEND_PSN,
    };
    let max = inner.device.as_ref().map_or(0, |managed| managed.device.attributes().read_depth_max);
    let mut change = change(QueuePairState::ReadyToSend, mask);
    change.attributes = QueuePairAttributes {
        send_psn: peer.map_or(inner.own.psn, |peer| peer.psn),
        reads_max: inner.own.initiator_depth.min(max),
        timeout: inner.options.acknowledgement_timeout.unwrap_or(TIMEOUT),
        retries: inner.own.retries,
        not_ready_retries: inner.own.not_ready_retries,
        ..Default::default()
    };
    change
}

fn change(to: QueuePairState, mask: Mask) -> Modification {
    Modification {
        mask: mask | Mask::STATE,
        state: to,
        current: QueuePairState::Reset,
        drained_event: false,
        attributes: QueuePairAttributes::default(),
    }
}

/// Access flags of the queue pair: local write, remote write, remote read and atomics. Peers need
/// valid keys as well.
const ACCESS: u32 = 0xf;

/// Timeout code of a queue pair if the program sets none. One attempt then lasts about a second.
const TIMEOUT: u8 = 18;

/// RNR timer code if the program sets none: 0.64 ms.
const NOT_READY_TIMER: u8 = 12;

/// Hop limit of sent packets.
const HOP_LIMIT: u8 = 64;
