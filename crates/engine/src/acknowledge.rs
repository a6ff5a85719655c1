//! Sends Ack frames if no data frame has carried the acknowledgements (sender.md, 3).

use delivery::Instant;
use semantics::Carried;
use wire_edge::{Flags, Header};

use crate::ack_bytes::BESIDE_ACKS_BYTES;
use crate::ack_duty::{AckDuty, Moment, RIDE_WAIT_NS};
use crate::connection::Connection;
use crate::new_frame::{Body, Emit, NewFrame};
use crate::parts::Parts;
use crate::path::Path;
use crate::purpose::Purpose;

impl Parts<'_> {
    /// Sends acknowledgements in Ack frames, if they are due and no data frame has carried them.
    /// Returns false if some acknowledgements must wait because a link is full.
    pub(crate) fn send_due_acknowledgements(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        emit: Emit<'_>,
    ) -> bool {
        let mut duty = connection.ack_duty_left(now);
        if connection.reported_mut().take_question() {
            return self.acknowledge_everywhere(now, connection, emit);
        }
        // If one small frame does not have room for all acknowledgements, the next frame carries
        // the remaining ones.
        for _ in 0..connection.paths().len() {
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
    /// Sends all pending acknowledgements on every link that is up and not full, because one of the
    /// links may lose all frames. Returns false if a link was full.
    #[cold]
    fn acknowledge_everywhere(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        emit: Emit<'_>,
    ) -> bool {
        let nearest = connection.nearest_path();
        let mut sent = true;
        for position in 0..connection.paths().len() {
            let path = &connection.paths()[position];
            if path.may_carry_data() || position == nearest && path.is_validated() {
                connection.reported_mut().report_now();
                sent &= !self.is_full(&connection.paths()[position])
                    && self.send_acknowledgements(now, connection, position, emit);
            }
        }
        sent
    }

    /// Returns the position of the link for an acknowledgement: the link with the shortest round
    /// trip or, if that link is full, the first usable link that is not full. Returns `None` if all
    /// links are full.
    fn acknowledging_path(&self, connection: &Connection) -> Option<usize> {
        let nearest = connection.nearest_path();
        let free = |path: &Path| path.may_carry_data() && !self.is_full(path);
        match connection.paths().get(nearest) {
            Some(path) if !self.is_full(path) => Some(nearest),
            _ => connection.paths().iter().position(free),
        }
    }

    /// Sends an Ack frame on one link. Returns false if the link is full.
    fn send_acknowledgements(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        position: usize,
        emit: Emit<'_>,
    ) -> bool {
        let frame_bytes = connection.paths()[position].frame_bytes();
        self.scratch.write_acks(now, connection, usize::from(frame_bytes) - BESIDE_ACKS_BYTES);
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

impl Connection {
    /// Decides what to do with pending acknowledgements if no data will follow them.
    #[inline]
    pub(crate) fn ack_duty(&self, now: Instant, moment: Moment) -> AckDuty {
        self.ack_duty_with(now, moment, self.reported().must_report(), || false)
    }

    /// Returns whether the data that is about to leave should carry the pending acknowledgements.
    #[inline]
    pub(crate) fn acks_ride(&self, now: Instant) -> bool {
        let has_news = self.reported().has_news(self.inbound());
        self.ack_duty(now, Moment::DataLeaves { has_news }) == AckDuty::Ride
    }

    /// Returns what to do with pending acknowledgements, after the engine has sent all data that it
    /// can send at the moment.
    #[inline]
    pub(crate) fn ack_duty_left(&self, now: Instant) -> AckDuty {
        let data_follows = || {
            let soon = now.after_ns(RIDE_WAIT_NS);
            self.outbound().wants_to_send()
                && self.paths().iter().any(|path| {
                    let opens_at = path.send().opens_at(now, u32::from(path.frame_bytes()));
                    path.may_carry_data() && opens_at > now && opens_at <= soon
                })
        };
        self.ack_duty_with(
            now,
            Moment::NoData,
            self.reported().must_report() || self.reported().is_asked(),
            data_follows,
        )
    }

    #[inline]
    fn ack_duty_with(
        &self,
        now: Instant,
        moment: Moment,
        must_report: bool,
        data_follows: impl FnOnce() -> bool,
    ) -> AckDuty {
        let links = self.paths().iter().map(Path::received);
        AckDuty::decide(now, moment, must_report, data_follows, &links)
    }
}
