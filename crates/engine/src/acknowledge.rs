//! Acknowledgements: what goes into an ack section, and the Ack frames that go out when no data frame
//! carried one (sender.md, 3).

use delivery::Instant;
use semantics::Carried;
use wire_edge::{
    ACK_BLOCK_WORDS_MAX, ACK_BLOCKS_MAX, ACK_SECTION_BYTES_MAX, AckBlock, Flags, HEADER_BYTES_MAX,
    Header, ack_section_bytes, encode_acks,
};

use crate::ack_duty::{AckDuty, Moment};
use crate::connection::Connection;
use crate::engine::Engine;
use crate::frames::{Body, Emit, NewFrame};
use crate::path::Path;
use crate::purpose::Purpose;

impl Engine {
    /// Sends acknowledgements by themselves, if they are due and nothing else carried them. False if
    /// they wait for a link that is full.
    pub(crate) fn send_due_acknowledgements(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        emit: Emit<'_>,
    ) -> bool {
        let mut duty = connection.ack_duty_left(now);
        if core::mem::take(&mut connection.asked) {
            return self.acknowledge_everywhere(now, connection, emit);
        }
        // What small frames have no room for goes into another one.
        for _ in 0..connection.paths.len() {
            if duty != AckDuty::Alone {
                break;
            }
            let Some(position) = self.acknowledging_path(connection) else { return false };
            if !self.send_acknowledgements(now, connection, position, emit) {
                return false;
            }
            duty = connection.ack_duty(now, Moment::NoData);
        }
        true
    }

    //= protocol.md: ack.8
    /// Sends acknowledgements on every link that is up and not full.
    #[cold]
    fn acknowledge_everywhere(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        emit: Emit<'_>,
    ) -> bool {
        let nearest = connection.nearest_path();
        let mut sent = true;
        for position in 0..connection.paths.len() {
            let path = &connection.paths[position];
            if path.may_carry_data() || position == nearest && path.is_validated() {
                connection.report_now = true;
                sent &= !self.is_full(&connection.paths[position])
                    && self.send_acknowledgements(now, connection, position, emit);
            }
        }
        sent
    }

    /// Position of the nearest link that is not full, if there is one.
    fn acknowledging_path(&self, connection: &Connection) -> Option<usize> {
        let nearest = connection.nearest_path();
        let free = |path: &Path| path.may_carry_data() && !self.is_full(path);
        match connection.paths.get(nearest) {
            Some(path) if !self.is_full(path) => Some(nearest),
            _ => connection.paths.iter().position(free),
        }
    }

    /// Sends a bare acknowledgement on one link; false if the link is full.
    fn send_acknowledgements(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        position: usize,
        emit: Emit<'_>,
    ) -> bool {
        let frame_bytes = connection.paths[position].frame_bytes();
        self.acks.fill(now, connection, usize::from(frame_bytes) - BESIDE_ACKS_BYTES);
        let frame = NewFrame {
            purpose: Purpose::Acknowledge,
            header: &Header::Ack,
            flags: Flags::ACK,
            body: Body::Bytes(&[]),
            carried: Carried::default(),
        };
        self.send_alone(now, connection, position, &frame, emit)
    }
}

/// An encoded ack section, and room to make one. It lives in the engine, because clearing so much
/// memory for each batch costs more than filling in what is used of it. Without room at first, it makes
/// some when it is needed.
#[derive(Debug, Default)]
pub(crate) struct AckBytes {
    blocks: Vec<AckBlock>,
    bytes: Vec<u8>,
    pub(crate) len: usize,
}

impl AckBytes {
    /// With all the room it may need.
    pub(crate) fn allocated() -> Self {
        let mut acks = Self::default();
        acks.allocate();
        acks
    }

    #[cold]
    fn allocate(&mut self) {
        self.blocks.resize(ACK_BLOCKS_MAX, AckBlock::default());
        self.bytes.resize(ACK_SECTION_BYTES_MAX, 0);
    }

    /// Acknowledges all that is owed on every link, and tells what is delivered.
    /// What does not fit into `limit` bytes stays owed.
    pub(crate) fn fill(&mut self, now: Instant, connection: &mut Connection, limit: usize) {
        if self.blocks.is_empty() {
            self.allocate();
        }
        let Self { blocks, bytes, len } = self;
        let Some(bytes) = bytes.first_chunk_mut() else { return };
        let mut used = 0;
        let mut room = limit.saturating_sub(ACK_SECTION_BYTES_MIN);
        let everything = connection.report_now;
        for path in &mut connection.paths {
            if room >= ACK_BLOCK_BYTES_MAX
                && used < blocks.len()
                && (everything || path.received().acknowledgement_joins(now))
                && let Some(block) = path.acknowledge(now)
            {
                room -= block.wire_bytes();
                blocks[used] = block;
                used += 1;
            }
        }
        let delivered = connection.inbound.delivered();
        let credit = connection.inbound.credit();
        connection.report_now = false;
        connection.told_delivered = delivered;
        connection.told_credit = credit;
        *len = encode_acks(delivered, credit, &blocks[..used], bytes);
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// An ack section without blocks, and its longest block.
const ACK_SECTION_BYTES_MIN: usize = ack_section_bytes(&[]);
const ACK_BLOCK_BYTES_MAX: usize = 12 + 8 * ACK_BLOCK_WORDS_MAX;

/// What of a frame is kept free of acknowledgements: its headers and a few bytes of payload.
pub(crate) const BESIDE_ACKS_BYTES: usize = HEADER_BYTES_MAX + 12;

/// The smallest frame of the protocol takes an ack section that acknowledges two links.
const _: () = assert!(256 - BESIDE_ACKS_BYTES >= ACK_SECTION_BYTES_MIN + 2 * ACK_BLOCK_BYTES_MAX);
