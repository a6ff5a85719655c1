//! Datagrams: the calls of the application, and the handling of frames that arrive.

use delivery::{Instant, LinkId, RxFrame};
use mem::MemoryAccess;
use semantics::{Piece, PieceList, Receive};
use wire_edge::{PeerAddr, datagram_payload_max, decode_datagram};

use crate::datagram_port::{DatagramError, DatagramPort, OutgoingDatagram, PortRequest};
use crate::datagrams::{Datagrams, Route};
use crate::engine::Engine;

impl Engine {
    /// Opens a port that sends and receives datagrams under a queue pair number.
    ///
    /// # Errors
    /// Returns [`DatagramError::NumberInUse`], [`DatagramError::NumberOfGroup`] or
    /// [`DatagramError::NoPortLeft`].
    pub fn open_datagram_port(
        &mut self,
        request: PortRequest,
    ) -> Result<DatagramPort, DatagramError> {
        self.lend_datagrams().0.open(request)
    }

    /// Closes a port and removes it from its groups. All posted datagrams and receives of the port
    /// complete as flushed.
    ///
    /// # Errors
    /// Returns [`DatagramError::Closed`] if the port was closed before. All calls with a closed
    /// port return this error.
    pub fn close_datagram_port(&mut self, port: DatagramPort) -> Result<(), DatagramError> {
        let (datagrams, around) = self.lend_datagrams();
        datagrams.close(around.pools, around.counters, port)
    }

    /// Sets the queue key of a port. The port then accepts only datagrams with this key.
    ///
    /// # Errors
    /// Returns [`DatagramError::Closed`] if the port was closed before.
    pub fn set_datagram_key(&mut self, port: DatagramPort, key: u32) -> Result<(), DatagramError> {
        self.lend_datagrams().0.set_key(port, key)
    }

    /// Returns the largest payload of a datagram on a link, in bytes; `None` if there is no such
    /// link.
    pub fn datagram_payload_max(&mut self, link: LinkId) -> Option<u16> {
        let caps = self.parts().links.caps(link)?;
        Some(datagram_payload_max(caps.frame_bytes_max))
    }

    /// Adds a port to a group. The caller itself receives the frames of the group from the network,
    /// and passes them to [`Engine::handle_group_frame`], which delivers them to the port.
    ///
    /// # Errors
    /// Returns [`DatagramError::NotGroup`] or [`DatagramError::NoGroupLeft`].
    pub fn join_datagram_group(
        &mut self,
        port: DatagramPort,
        group: PeerAddr,
    ) -> Result<(), DatagramError> {
        self.lend_datagrams().0.join(port, group)
    }

    /// Removes a port from a group.
    ///
    /// # Errors
    /// Returns [`DatagramError::Closed`] if the port was closed before.
    pub fn leave_datagram_group(
        &mut self,
        port: DatagramPort,
        group: PeerAddr,
    ) -> Result<(), DatagramError> {
        self.lend_datagrams().0.leave(port, group)
    }

    /// Returns whether any port is in a group.
    pub fn has_datagram_group(&mut self, group: PeerAddr) -> bool {
        self.lend_datagrams().0.has_group(group)
    }

    /// Posts a datagram with the bytes of a scatter/gather list. The caller then calls
    /// [`Engine::poll_transmit`]. The operation completes when the driver has accepted the
    /// datagram. The completion does not say whether the datagram arrived.
    ///
    /// # Errors
    /// Returns [`DatagramError::TooLong`], [`DatagramError::UnknownLink`],
    /// [`DatagramError::LocalAccess`], [`DatagramError::TooManyWaiting`] or
    /// [`DatagramError::Overrun`].
    pub fn post_datagram(
        &mut self,
        memory: &MemoryAccess<'_>,
        port: DatagramPort,
        datagram: &OutgoingDatagram,
        list: PieceList<'_>,
    ) -> Result<(), DatagramError> {
        let (datagrams, around) = self.lend_datagrams();
        datagrams.post(memory, around.links, port, datagram, list)
    }

    //= protocol.md: datagram.7
    /// Posts a buffer for one datagram: 40 bytes of route header, then the payload. The length in
    /// the completion includes the header. The `value` of the completion is the sender's queue pair
    /// number.
    ///
    /// # Errors
    /// Returns [`DatagramError::LocalAccess`], [`DatagramError::ReceiveQueueFull`],
    /// [`DatagramError::Overrun`] or [`DatagramError::ReceivesShared`].
    pub fn post_datagram_receive(
        &mut self,
        memory: &MemoryAccess<'_>,
        port: DatagramPort,
        receive: Receive,
    ) -> Result<(), DatagramError> {
        let Receive { region, offset, length, context } = receive;
        let pieces = [Piece { region, offset, length }];
        let Ok(list) = PieceList::new(&pieces) else {
            // The buffer would end beyond address 2^64, where no region has bytes. Return the error
            // that an access to such a buffer gets.
            memory.source(region, offset, length)?;
            return Ok(());
        };
        self.post_datagram_receive_list(memory, port, list, context)
    }

    /// Posts a receive as [`Engine::post_datagram_receive`] does, with a scatter/gather list as the
    /// buffer.
    ///
    /// # Errors
    /// Returns the errors of [`Engine::post_datagram_receive`].
    pub fn post_datagram_receive_list(
        &mut self,
        memory: &MemoryAccess<'_>,
        port: DatagramPort,
        list: PieceList<'_>,
        context: u64,
    ) -> Result<(), DatagramError> {
        let (datagrams, mut around) = self.lend_datagrams();
        datagrams.post_receive(memory, &mut around, port, list, context)
    }

    /// Posts a receive of `length` bytes whose memory does not exist. The call succeeds. The
    /// receive fails when a datagram consumes it.
    ///
    /// # Errors
    /// Returns the errors of [`Engine::post_datagram_receive`], except those about memory.
    pub fn post_failed_datagram_receive(
        &mut self,
        port: DatagramPort,
        length: u32,
        context: u64,
    ) -> Result<(), DatagramError> {
        self.lend_datagrams().0.post_failed_receive(port, length, context)
    }

    /// Sets the current time for the datagram calls. The engine needs the time because it drops
    /// datagrams that wait too long for a receive.
    #[inline]
    pub fn note_time(&mut self, now: Instant) {
        self.begin_turn(now);
    }

    /// Removes the posted receives of a port. They do not complete.
    ///
    /// # Errors
    /// Returns [`DatagramError::Closed`] if the port was closed before.
    pub fn forget_datagram_receives(&mut self, port: DatagramPort) -> Result<(), DatagramError> {
        let (datagrams, around) = self.lend_datagrams();
        datagrams.forget_receives(around.counters, port)
    }

    /// Returns how many datagrams of a port wait for their links.
    pub fn waiting_datagrams_of(&self, port: DatagramPort) -> u32 {
        self.datagrams().map_or(0, |datagrams| datagrams.waiting_of(port))
    }

    /// Returns how many datagrams of all ports together wait for their links.
    #[inline]
    pub fn waiting_datagrams(&self) -> usize {
        self.datagrams().map_or(0, Datagrams::waiting)
    }

    /// Handles a frame that a peer sent to a group. Multicast sockets accept only datagrams, so the
    /// engine drops all other frames.
    #[expect(clippy::needless_pass_by_value, reason = "a frame is handed over, not lent")]
    pub fn handle_group_frame(
        &mut self,
        memory: &MemoryAccess<'_>,
        group: PeerAddr,
        frame: RxFrame<'_>,
    ) {
        let (datagrams, mut around) = self.lend_datagrams();
        let route = Route { from: frame.from, to: group };
        match decode_datagram(frame.bytes) {
            Ok((datagram, payload)) if frame.outside.is_empty() => {
                let datagram = (&datagram, payload.into());
                datagrams.receive_of_group(memory, &mut around, route, datagram);
            }
            _ => around.counters.malformed += 1,
        }
    }

    /// Handles a datagram that arrived on a link.
    pub(crate) fn handle_datagram(
        &mut self,
        memory: &MemoryAccess<'_>,
        link: LinkId,
        frame: &RxFrame<'_>,
    ) {
        let (datagrams, mut around) = self.lend_datagrams();
        let Some(caps) = around.links.caps(link) else {
            around.counters.wrong_address += 1;
            return;
        };
        let route = Route { from: frame.from, to: caps.local };
        let decoded = decode_datagram(frame.bytes);
        let (datagram, payload) = match &decoded {
            Ok((datagram, inside)) if frame.outside.is_empty() => (datagram, (*inside).into()),
            Ok((datagram, [])) => (datagram, frame.outside),
            _ => {
                around.counters.malformed += 1;
                return;
            }
        };
        datagrams.receive(memory, &mut around, route, (datagram, payload));
    }
}
