//! Posts work requests.

use std::fmt;
use std::sync::MutexGuard;

use super::{QueuePair, lock};
use crate::attributes::{DeviceAttributes, QueuePairState};
use crate::error::Error;
use crate::queue_pair::ending::Side;
use crate::services::{Operations, QueuePairType};
use crate::work_request::{ReceiveRequest, ScatterGather, SendOpcode, SendRequest};

/// The sends that a device carries on a queue pair. The queue pair has a copy, so that posting a
/// send costs no call of the provider.
#[derive(Clone, Copy, Debug)]
pub(super) struct Carried {
    operations: Operations,
    read_pieces_max: u32,
    message_bytes_max: u32,
}

impl Carried {
    /// Returns what a device carries on queue pairs with this service.
    pub(super) const fn by(device: &DeviceAttributes, service: QueuePairType) -> Self {
        Self {
            operations: device.services.operations(service),
            read_pieces_max: device.read_pieces_max,
            message_bytes_max: device.message_bytes_max,
        }
    }
}

/// Content of the posting locks. It has no fields, because these locks only prevent threads from
/// posting at the same time.
#[derive(Debug, Default)]
pub(super) struct Posting;

/// Sends that one thread is posting. [`SendPosting::post`] posts all added sends. If the value is
/// dropped without this call, no send is posted.
pub struct SendPosting<'a> {
    queue_pair: &'a QueuePair,
    turn: MutexGuard<'a, Posting>,
    next: u64,
}

/// Receives that one thread is posting. [`ReceivePosting::post`] posts all added receives. If the
/// value is dropped without this call, no receive is posted.
pub struct ReceivePosting<'a> {
    queue_pair: &'a QueuePair,
    turn: MutexGuard<'a, Posting>,
    next: u64,
}

impl QueuePair {
    /// Begins to post sends.
    ///
    /// # Errors
    /// * Returns [`Error::Invalid`] if the queue pair is in a state before RTS.
    /// * Returns [`Error::NoDevice`] in a forked child.
    pub fn begin_sends(&self) -> Result<SendPosting<'_>, Error> {
        self.provider().check()?;
        let turn = lock(&self.posting_sends);
        match self.state() {
            state @ (QueuePairState::Reset
            | QueuePairState::Init
            | QueuePairState::ReadyToReceive) => {
                Err(Error::Invalid(format!("sends are posted from RTS on, not in {state:?}")))
            }
            _ => Ok(SendPosting { queue_pair: self, next: self.sends.posted(), turn }),
        }
    }

    /// Posts sends in order. Stops at the first send that is rejected.
    ///
    /// # Errors
    /// Returns the index in `requests` of the rejected send, and one of these causes:
    /// * [`Error::NoRoom`] if the queue is full.
    /// * [`Error::Invalid`] if the queue pair cannot carry out such a send.
    pub fn post_send(&self, requests: &[SendRequest<'_>]) -> Result<(), (usize, Error)> {
        let mut posting = self.begin_sends().map_err(|error| (0, error))?;
        let added = requests
            .iter()
            .enumerate()
            .try_for_each(|(index, request)| posting.add(request).map_err(|error| (index, error)));
        posting.post();
        added
    }

    /// Begins to post receives.
    ///
    /// # Errors
    /// * Returns [`Error::Invalid`] if the queue pair is in RESET or uses a shared receive queue.
    /// * Returns [`Error::NoDevice`] in a forked child.
    pub fn begin_receives(&self) -> Result<ReceivePosting<'_>, Error> {
        self.provider().check()?;
        if self.shared.is_some() {
            return Err(Error::Invalid("receives are taken from a shared queue".into()));
        }
        let turn = lock(&self.posting_receives);
        if self.state() == QueuePairState::Reset {
            return Err(Error::Invalid("receives are posted from INIT on, not in RESET".into()));
        }
        Ok(ReceivePosting { queue_pair: self, next: self.receives.posted(), turn })
    }

    /// Posts receives in order. Stops at the first receive that is rejected.
    ///
    /// # Errors
    /// Returns the index in `requests` of the rejected receive, and the cause, like
    /// [`QueuePair::post_send`].
    pub fn post_receive(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, Error)> {
        let mut posting = self.begin_receives().map_err(|error| (0, error))?;
        let added = requests
            .iter()
            .enumerate()
            .try_for_each(|(index, request)| posting.add(request).map_err(|error| (index, error)));
        posting.post();
        added
    }

    /// Notifies the device of posted sends. If the sends must be flushed because of the state of
    /// the queue pair, notifies the completion queue instead.
    fn on_sends_posted(&self) {
        match self.state() {
            QueuePairState::ReadyToSend if self.end.has_ended() => self.list(Side::Send, true),
            QueuePairState::ReadyToSend => {
                self.with_wire(|wire| wire.ring());
            }
            QueuePairState::Error | QueuePairState::SendQueueError => self.flush_if_over(),
            _ => {}
        }
    }

    fn on_receives_posted(&self) {
        match self.state() {
            QueuePairState::Error => self.flush_if_over(),
            QueuePairState::Reset => {}
            _ => {
                self.with_wire(|wire| wire.receives());
            }
        }
    }

    /// Checks that the queue pair can carry out the send. For the operation, this costs one test of
    /// a bit.
    fn check_send(&self, request: &SendRequest<'_>) -> Result<(), Error> {
        if !self.carried.operations.contains(request.opcode.operation()) {
            return Err(self.not_carried(&request.opcode));
        }
        if self.service == QueuePairType::Datagram && request.to.is_none() {
            return Err(Error::Invalid("a datagram needs an address handle".into()));
        }
        if let Some(bytes) = request.inline {
            return self.check_inline(&request.opcode, bytes.len());
        }
        let carried = &self.carried;
        let is_read = matches!(request.opcode, SendOpcode::Read { .. });
        let read_pieces_max = if is_read { carried.read_pieces_max } else { u32::MAX };
        let pieces_max = self.limits.send_pieces.min(read_pieces_max);
        check_list(request.pieces, pieces_max, carried.message_bytes_max)?;
        let is_atomic =
            matches!(request.opcode, SendOpcode::FetchAdd { .. } | SendOpcode::CompareSwap { .. });
        if is_atomic && bytes_of(request.pieces) != 8 {
            return Err(Error::Invalid("the result of an atomic has 8 bytes".into()));
        }
        Ok(())
    }

    /// Returns the error for an operation that the device does not carry on this queue pair.
    #[cold]
    fn not_carried(&self, opcode: &SendOpcode) -> Error {
        let device = self.provider().attributes();
        let (operation, service) = (opcode.operation(), self.service);
        let (name, transport) = (&device.name, device.transport());
        Error::Invalid(format!(
            "{operation}: not possible on {service:?} queue pairs of {name}, a device with the transport {transport}"
        ))
    }

    fn check_inline(&self, opcode: &SendOpcode, length: usize) -> Result<(), Error> {
        let is_source = matches!(
            opcode,
            SendOpcode::Write { .. } | SendOpcode::Send { .. } | SendOpcode::SendInvalidate { .. }
        );
        if !is_source {
            return Err(Error::Invalid("only sends and writes may have inline bytes".into()));
        }
        if length > self.limits.inline as usize {
            let what = format!("{length} inline bytes: there is room for {}", self.limits.inline);
            return Err(Error::Invalid(what));
        }
        Ok(())
    }
}

impl SendPosting<'_> {
    /// Adds a send to those that [`SendPosting::post`] posts.
    ///
    /// # Errors
    /// * Returns [`Error::NoRoom`] if the queue is full.
    /// * Returns [`Error::Invalid`] if the queue pair cannot carry out such a send.
    pub fn add(&mut self, request: &SendRequest<'_>) -> Result<(), Error> {
        let queue_pair = self.queue_pair;
        queue_pair.check_send(request)?;
        let ring = &queue_pair.sends;
        let mut slot = ring.slot_to_post(self.next).ok_or_else(|| queue_is_full("send"))?;
        slot.inline = match request.inline {
            Some(bytes) if !bytes.is_empty() => {
                let kept = queue_pair.inline.keep(self.next, bytes);
                Some(kept.ok_or_else(|| Error::NoRoom("no memory for inline bytes".into()))?)
            }
            _ => None,
        };
        slot.opcode = request.opcode;
        slot.flags = request.flags;
        slot.is_reported = request.flags.signalled || queue_pair.signals_all;
        // Datagrams on different links complete out of order. So the device must report the
        // completion of every datagram, and the queue pair restores the order.
        slot.flags.signalled = slot.is_reported || queue_pair.service == QueuePairType::Datagram;
        slot.outcome = None;
        slot.to = request.to;
        slot.pieces.keep(if request.inline.is_some() { &[] } else { request.pieces });
        drop(slot);
        ring.set_id(self.next, request.id);
        self.next += 1;
        Ok(())
    }

    /// Posts all added sends.
    pub fn post(self) {
        let Self { queue_pair, turn, next } = self;
        let has_work = next > queue_pair.sends.posted();
        queue_pair.sends.post_to(next);
        drop(turn);
        if has_work {
            queue_pair.on_sends_posted();
        }
    }
}

impl ReceivePosting<'_> {
    /// Adds a receive to those that [`ReceivePosting::post`] posts.
    ///
    /// # Errors
    /// * Returns [`Error::NoRoom`] if the queue is full.
    /// * Returns [`Error::Invalid`] if the receive has too many scatter/gather entries.
    pub fn add(&mut self, request: &ReceiveRequest<'_>) -> Result<(), Error> {
        let queue_pair = self.queue_pair;
        check_pieces(request.pieces, queue_pair.limits.receive_pieces)?;
        let ring = &queue_pair.receives;
        let mut slot = ring.slot_to_post(self.next).ok_or_else(|| queue_is_full("receive"))?;
        slot.pieces.keep(request.pieces);
        drop(slot);
        ring.set_id(self.next, request.id);
        self.next += 1;
        Ok(())
    }

    /// Posts all added receives.
    pub fn post(self) {
        let Self { queue_pair, turn, next } = self;
        let has_work = next > queue_pair.receives.posted();
        queue_pair.receives.post_to(next);
        drop(turn);
        if has_work {
            queue_pair.on_receives_posted();
        }
    }
}

impl fmt::Debug for SendPosting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SendPosting").field("next", &self.next).finish_non_exhaustive()
    }
}

impl fmt::Debug for ReceivePosting<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReceivePosting").field("next", &self.next).finish_non_exhaustive()
    }
}

/// Checks the scatter/gather entries of a receive: there are at most `max`, and their total length
/// is at most the maximum length of a message of any device.
pub(crate) fn check_pieces(pieces: &[ScatterGather], max: u32) -> Result<(), Error> {
    check_list(pieces, max, work::OPERATION_BYTES_MAX)
}

/// Checks that there are at most `max` scatter/gather entries, and that their total length is at
/// most `bytes_max` bytes.
fn check_list(pieces: &[ScatterGather], max: u32, bytes_max: u32) -> Result<(), Error> {
    if pieces.len() > max as usize {
        return Err(Error::Invalid(format!("{} pieces: there is room for {max}", pieces.len())));
    }
    let bytes = bytes_of(pieces);
    if bytes > u64::from(bytes_max) {
        return Err(Error::Invalid(format!("{bytes} bytes: a message has at most {bytes_max}")));
    }
    Ok(())
}

fn bytes_of(pieces: &[ScatterGather]) -> u64 {
    pieces.iter().map(|piece| u64::from(piece.length)).sum()
}

fn queue_is_full(queue: &str) -> Error {
    Error::NoRoom(format!("the {queue} queue is full"))
}
