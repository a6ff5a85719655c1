//! Datagram ports of a host.

use std::sync::Arc;

use engine::{DatagramError, DatagramPort, OutgoingDatagram, PortRequest};
use semantics::{CompletionQueue, Piece, PieceList, Receive};
use wire_edge::QueuePairNumber;

use super::requests::cut;
use super::{COMPLETIONS_MAX, EdgeHost, completion_of};
use crate::host::{Completion, Datagram, Refusal, Region};

/// A datagram port and its completion queue.
#[derive(Debug)]
pub(super) struct Port {
    name: DatagramPort,
    queue: Arc<CompletionQueue>,
}

impl EdgeHost {
    pub(super) fn open(&mut self, number: u32, key: u32) {
        let queue = Arc::new(CompletionQueue::new(COMPLETIONS_MAX));
        let request = PortRequest {
            number: QueuePairNumber::new(number).expect("24 bits"),
            key,
            send: Arc::clone(&queue),
            receive: Arc::clone(&queue),
            receives_max: RECEIVES_MAX,
            shared_receives: self.receives.clone(),
        };
        let name = self.engine.open_datagram_port(request).expect("a free number");
        self.ports.insert(number, Port { name, queue });
    }

    pub(super) fn post_from(&mut self, number: u32, asked: &Datagram) -> Result<(), Refusal> {
        let port = self.ports.get(&number).ok_or(Refusal::Closed)?;
        let region = self.region_id(asked.local).ok_or(Refusal::Invalid)?;
        let offset = u64::from(asked.local_offset);
        let whole = Piece { region, offset, length: asked.length_bytes };
        let pieces =
            if self.is_list(asked.context) { cut(whole, asked.context) } else { vec![whole] };
        let list = PieceList::new(&pieces).map_err(|_| Refusal::Invalid)?;
        let datagram = OutgoingDatagram {
            link: asked.link,
            to: asked.to,
            destination: QueuePairNumber::new(asked.destination).ok_or(Refusal::Invalid)?,
            key: asked.key,
            immediate: asked.immediate,
            solicited: false,
            signalled: asked.signalled,
            context: asked.context,
        };
        let posted = self.engine.post_datagram(&self.memory.access(), port.name, &datagram, list);
        posted.map_err(|error| match error {
            DatagramError::TooManyWaiting(_) => Refusal::Full,
            _ => Refusal::Invalid,
        })
    }

    pub(super) fn post_receive_at(
        &mut self,
        number: u32,
        (region, offset, length): (Region, u32, u32),
        context: u64,
    ) -> Result<(), Refusal> {
        let port = self.ports.get(&number).ok_or(Refusal::Closed)?;
        let region = self.region_id(region).ok_or(Refusal::Invalid)?;
        let (access, offset) = (self.memory.access(), u64::from(offset));
        let posted = if self.is_list(context) {
            let pieces = cut(Piece { region, offset, length }, context);
            let list = PieceList::new(&pieces).map_err(|_| Refusal::Invalid)?;
            self.engine.post_datagram_receive_list(&access, port.name, list, context)
        } else {
            let receive = Receive { region, offset, length, context };
            self.engine.post_datagram_receive(&access, port.name, receive)
        };
        posted.map_err(|_| Refusal::Invalid)
    }

    pub(super) fn poll_port(&mut self, number: u32) -> Option<(Completion, u32)> {
        let found = self.ports.get(&number)?.queue.poll()?;
        // For a receive, `value` contains the queue pair number of the sender instead of a key.
        let source = found.value as u32;
        Some((Completion { invalidated: None, ..completion_of(&found) }, source))
    }
}

/// Capacity for posted receives, which is more than a run posts.
const RECEIVES_MAX: u32 = 32;
