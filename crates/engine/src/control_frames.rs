//! Sends control frames: questions, answers, and reports about links.

use delivery::Instant;
use wire_edge::{CONTROL_BYTES_MAX, Control, Flags, Header, LinkIndex, LinkStatus};

use crate::connection::Connection;
use crate::new_frame::{Body, CONTROL_BODY_MIN, Emit, NewFrame, pad};
use crate::parts::Parts;
use crate::path::Path;
use crate::pending::{CLOSE, CLOSE_ACK, LINKS, NOT_READY, PING, Pending, READY};
use crate::phase::Phase;
use crate::purpose::Purpose;

impl Parts<'_> {
    /// Sends the pending control messages of all links. Returns false if some messages must wait
    /// because a link is full.
    pub(crate) fn send_control(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        emit: Emit<'_>,
    ) -> bool {
        let is_open = connection.is_open();
        let nearest = connection.nearest_path();
        gather_status(connection, nearest);
        let mut sent = true;
        for position in 0..connection.paths().len() {
            let path = &mut connection.paths_mut()[position];
            if path.challenge_at() <= now {
                let (index, change) = (path.index(), path.on_challenge_due(now));
                self.on_path_change(now, connection, index, change);
            }
            let path = &mut connection.paths_mut()[position];
            let challenged = path.poll_challenge(now) && may_challenge(path);
            path.limit_answer(CONTROL_FRAME_BYTES);
            let may_report = |path: &Path| path.may_report() || !is_open && path.is_validated();
            let reports = may_report(path);
            let announces = reports && position == nearest && path.pending().has_news_of_links();
            let says = announces || reports && path.pending().messages() != 0;
            let waits = says || path.pending().nonce().is_some();
            if !challenged && !waits {
                continue;
            }
            // Count the challenge even if the link is full: if the driver never accepts a
            // challenge, the link does not work and must fail.
            if challenged {
                path.count_challenge();
            }
            if self.is_full(path) {
                sent &= !waits;
                continue;
            }
            let what = What { challenge: challenged.then(|| self.random()), reports, announces };
            if !self.send_control_on(now, connection, position, &what, emit) {
                sent &= !waits;
                continue;
            }
            // One frame may not have room for the addresses of all new links.
            while announces
                && connection.paths()[position].pending().addresses() != 0
                && may_report(&connection.paths()[position])
            {
                let what = What { challenge: None, reports, announces };
                if !self.send_control_on(now, connection, position, &what, emit) {
                    sent = false;
                    break;
                }
            }
        }
        sent
    }

    //= protocol.md: ack.10, close.7
    /// Sends one control frame with the pending messages of the link at `position`. Returns false
    /// if the link is full.
    fn send_control_on(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        position: usize,
        what: &What,
        emit: Emit<'_>,
    ) -> bool {
        let statuses = statuses_of(connection, position, what.announces);
        let path = &connection.paths()[position];
        let addresses = what.announces.then(|| self.links_to_announce(path.pending().addresses()));
        // If the link may not send another report yet, its messages stay pending.
        let control = if what.reports { path.pending().messages() } else { 0 };
        let carried = path.pending().carried(control, addresses);
        let mut body = Vec::with_capacity(64);
        gather_messages(&mut body, connection, position, control, what.challenge, &statuses);
        self.gather_addresses(&mut body, addresses.unwrap_or(0));
        // Pad short frames. If the peer has forgotten the connection, the peer answers by a Reset,
        // and only to a frame that is at least as long as the Reset. A frame with one Ping may be
        // the only frame that this end ever sends to such a peer.
        let len = body.len();
        pad(&mut body, len);
        // Loss detection does not retransmit questions and answers about whether a link works,
        // because a timer repeats the questions. Loss detection does not retransmit frames that end
        // a connection. Such a frame has a timer, or it answers a frame that the peer repeats.
        let is_repeated = carried.slot != 0 && connection.phase() == Phase::Established;
        let is_urgent = control & (PING | LINKS | CLOSE) != 0;
        let urgent = if is_urgent { Flags::ACK_NOW } else { Flags::NONE };
        let last = if control & CLOSE != 0 { Flags::ACK } else { Flags::NONE };
        if control & CLOSE != 0 {
            self.scratch.write_last_acks(connection);
        }
        let frame = NewFrame {
            purpose: if is_repeated { Purpose::Report } else { Purpose::Ask },
            header: &Header::Control,
            flags: urgent.with(last),
            body: Body::Bytes(&body),
            carried,
        };
        if !self.send_alone(now, connection, position, &frame, emit) {
            return false;
        }
        for path in connection.paths_mut() {
            let reported = statuses.get(usize::from(path.index().0)).copied().flatten();
            if reported.is_some() {
                path.on_announced();
            }
        }
        let path = &mut connection.paths_mut()[position];
        if let Some(nonce) = what.challenge {
            path.on_challenge_sent(nonce);
        }
        path.on_control_sent(control, addresses, is_repeated);
        true
    }

    /// Appends the addresses of the links in the bit mask `links` to the body of a control frame.
    fn gather_addresses(&self, body: &mut Vec<u8>, links: u16) {
        for (_, caps) in self.links.iter().filter(|(link, _)| links >> link.0 & 1 != 0) {
            add(body, Control::Address(caps.local));
        }
    }

    /// Returns those links of the bit mask `links` that are attached, as a bit mask. Returns at
    /// most as many links as one frame has room for.
    fn links_to_announce(&self, links: u16) -> u16 {
        let reported =
            self.links.iter().map(|(link, _)| 1 << link.0).filter(|bit| links & bit != 0);
        reported.take(ADDRESSES_PER_FRAME).fold(0, |bits, bit| bits | bit)
    }
}

/// The content of a control frame to send.
struct What {
    challenge: Option<u64>,
    /// Whether to send the pending messages of the link.
    reports: bool,
    /// Whether to send the pending reports about all links.
    announces: bool,
}

/// Appends messages to the body of a control frame:
///
/// * the messages in `control` ([`Pending::say`]),
/// * the challenge of the link at `position`, and the answer to the peer's challenge on this link,
/// * the pending reports about links, in `statuses`.
fn gather_messages(
    body: &mut Vec<u8>,
    connection: &Connection,
    position: usize,
    control: u16,
    challenge: Option<u64>,
    statuses: &[Option<LinkStatus>; 16],
) {
    if control & PING != 0 {
        add(body, Control::Ping);
    }
    if control & LINKS != 0 {
        add(body, Control::Links(connection.settled_links()));
    }
    if control & CLOSE != 0 {
        add(body, connection.close().control());
    }
    if control & READY != 0 {
        add(body, Control::Ready);
    }
    // Name the message that lacks a receive now. After the report was queued, the application may
    // have posted the receive for the message that lacked one at that time.
    if control & NOT_READY != 0
        && let Some(message) = connection.inbound().lacks_receive()
    {
        add(body, Control::NotReady(message));
    }
    if control & CLOSE_ACK != 0 {
        add(body, Control::CloseAck);
    }
    if let Some(nonce) = challenge {
        add(body, Control::PathChallenge(nonce));
    }
    if let Some(nonce) = connection.paths()[position].pending().nonce() {
        add(body, Control::PathResponse(nonce));
    }
    for (index, status) in statuses.iter().enumerate() {
        if let Some(status) = status {
            add(body, Control::LinkStatus(LinkIndex(index as u8), *status));
        }
    }
}

fn add(body: &mut Vec<u8>, message: Control<'_>) {
    let mut bytes = [0; CONTROL_BYTES_MAX];
    let len = message.encode(&mut bytes);
    body.extend_from_slice(&bytes[..len]);
}

//= protocol.md: amplify.5
/// Returns whether the challenge that is due on a link may be sent. For a link that this end tests,
/// `Parts::join_links` limits the number of challenges.
fn may_challenge(path: &Path) -> bool {
    let bytes = if path.pending().nonce().is_some() {
        CONTROL_FRAME_BYTES + NONCE_BYTES
    } else {
        CONTROL_FRAME_BYTES
    };
    path.is_trial() || path.may_answer(bytes)
}

//= protocol.md: status.1
/// Moves the pending reports about all links into the queue of the link at position `nearest`.
fn gather_status(connection: &mut Connection, nearest: usize) {
    if connection.paths().len() < 2 {
        return;
    }
    let mut all = Pending::default();
    for path in connection.paths_mut() {
        path.hand_news_of_links(&mut all);
    }
    if let Some(path) = connection.paths_mut().get_mut(nearest) {
        path.take_news_of_links(&mut all);
    }
}

/// Returns the statuses that the link at `position` has to report, by link index.
fn statuses_of(
    connection: &Connection,
    position: usize,
    announces: bool,
) -> [Option<LinkStatus>; 16] {
    let mut statuses = [None; 16];
    if !announces {
        return statuses;
    }
    let Some(carrier) = connection.paths().get(position) else { return statuses };
    for (index, slot) in statuses.iter_mut().enumerate() {
        if carrier.pending().statuses() & 1 << index == 0 {
            continue;
        }
        let path = connection.paths().iter().find(|path| usize::from(path.index().0) == index);
        *slot = Some(match path {
            None => LinkStatus::Removed,
            Some(path) if path.may_carry_data() => LinkStatus::Available,
            Some(_) => LinkStatus::Down,
        });
    }
    statuses
}

/// Bytes of a control frame with one message of at most 12 bytes. `NONCE_BYTES` is the number of
/// bytes of each further challenge or response.
const CONTROL_FRAME_BYTES: u64 = wire_edge::COMMON_BYTES as u64 + CONTROL_BODY_MIN as u64;
const NONCE_BYTES: u64 = 10;

/// Maximum number of addresses in one control frame. Each address takes 22 bytes. With this limit,
/// a frame with all other possible messages of an open connection stays below 256 bytes.
const ADDRESSES_PER_FRAME: usize = 6;
