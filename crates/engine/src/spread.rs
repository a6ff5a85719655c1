//! Distributes the data frames of one connection over several links: chooses a link for each frame,
//! and limits the frames that each link gets in a turn (sender.md, 8).

use delivery::{Instant, LINKS_MAX, LinkView, QUANTUM_NS, SchedulingPolicy};
use mem::MemoryAccess;

use crate::ack_bytes::beside_acks_bytes;
use crate::asks::expects_answer;
use crate::connection::Connection;
use crate::new_frame::{COMMON_BYTES, Emit, Sent};
use crate::parts::Parts;
use crate::path::Path;
use crate::scratch::BATCH_BYTES_MAX;
use crate::transmit::may_send;

/// The share of one link: the frames that the link gets in one turn.
#[derive(Clone, Copy, Debug, Default)]
struct Share {
    frames: usize,
    bytes: u32,
    /// Number of frames, over all links, that were cut in this turn before the first frame of this
    /// share.
    first: usize,
    /// Whether the first frame of this share carries the acknowledgements.
    acks: bool,
}

/// The shares of all links in one turn: for each link, the frames that it gets.
#[derive(Debug)]
struct Spread {
    views: [LinkView; LINKS_MAX],
    shares: [Share; LINKS_MAX],
    rtt_min_ns: u64,
    /// The time that a link should need to transmit its share of one turn, in nanoseconds.
    turn_ns: u64,
    /// Whether the round trips of the links differ by more than [`LONGER_NS`].
    has_long: bool,
    /// Position of the link that got the last frame.
    last: usize,
    /// Whether the peer probably answers the last frame soon ([`expects_answer`]).
    alone: bool,
}

impl Spread {
    /// Returns the maximum number of bytes that one link gets in one turn: its share.
    ///
    /// Without segmentation offload, shares are small, for two reasons:
    ///
    /// * While the processor sends a long burst on one link, it cannot serve the other links, and
    ///   frames in the queue of a link can no longer move to another link.
    /// * A network may let a whole burst pass immediately, for instance by a token bucket. The
    ///   frames of such a burst then overtake the frames of the other links.
    ///
    /// If the round trips of the links differ much, frames arrive out of order in any case. In that
    /// case, shares are larger, because larger shares leave fewer gaps at the receiver.
    ///
    /// With segmentation offload, each batch has the same cost, whatever its length. So shares are
    /// large. With small shares, two links without a rate limit would carry less than one of these
    /// links alone.
    ///
    /// Shares are proportional to the long-term rates of the links. The largest recent rate is not
    /// suitable, for two reasons. It may come from a burst, and can then by chance be twice the
    /// recent rate of an equally fast link. And if the host is the bottleneck, the shares determine
    /// the recent rates, so that unequal shares would preserve themselves.
    fn share_bytes(&self, path: &Path, path_offloads: bool, frame_bytes: u32) -> u32 {
        let rate = path.send().estimate().carried().unwrap_or(0);
        let burst = rate.saturating_mul(self.turn_ns) / 1_000_000_000;
        let burst = u32::try_from(burst).unwrap_or(u32::MAX);
        let least = match (path_offloads, self.has_long) {
            (true, _) => {
                let run = u32::try_from(rate / OFFLOADED_SHARES_PER_SECOND).unwrap_or(u32::MAX);
                run.max(OFFLOADED_FRAMES * frame_bytes)
            }
            (false, true) => RUN_FRAMES * frame_bytes,
            (false, false) => frame_bytes,
        };
        burst.max(least).min(BATCH_BYTES_MAX)
    }

    /// Returns the position of the link whose share begins with the frame that was cut first.
    /// Returns `None` if no share is left.
    fn first_share(&self) -> Option<usize> {
        let shares = self.shares.iter().enumerate().filter(|(_, share)| share.frames > 0);
        shares.min_by_key(|(_, share)| share.first).map(|(position, _)| position)
    }
}

impl Parts<'_> {
    /// Cuts operations into frames for all links, and passes each link its batch. Each frame goes
    /// to the link that would deliver it first.
    ///
    /// The engine cuts the frames of a turn in the order in which they should arrive, whatever
    /// batch they belong to. So large batches do not make frames overtake each other.
    #[inline(never)]
    pub(crate) fn spread(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
        emit: Emit<'_>,
    ) -> Sent {
        self.scratch.provide(connection.paths().len());
        if connection.paths().iter().all(|path| path.send().in_flight_bytes() == 0) {
            for path in connection.paths_mut() {
                path.begin_train(now);
            }
        }
        let usable = connection.paths_mut().iter_mut().filter(|path| path.may_carry_data());
        let rates = usable.map(|path| path.send().estimate().carried().unwrap_or(0));
        let fastest = rates.max().unwrap_or(0);
        for path in connection.paths_mut() {
            path.compare_with(fastest);
        }
        let none_up = !connection.paths().iter().any(Path::may_carry_data);
        let usable = connection.paths().iter().filter(|path| path.may_carry_data());
        let rtts = usable.map(|path| path.send().estimate().delay_ns());
        let (rtt_min_ns, rtt_max_ns) = (rtts.clone().min().unwrap_or(0), rtts.max().unwrap_or(0));
        let mut spread = Spread {
            views: [UNUSABLE; LINKS_MAX],
            shares: [Share::default(); LINKS_MAX],
            rtt_min_ns,
            turn_ns: turn_ns(connection.paths()),
            has_long: rtt_max_ns > rtt_min_ns.saturating_add(LONGER_NS),
            last: 0,
            alone: true,
        };
        let Spread { views, .. } = &mut spread;
        for (view, path) in views.iter_mut().zip(connection.paths()) {
            *view = path.view(now, none_up, rtt_min_ns);
            view.usable &= !self.is_blocked(path);
        }
        match self.fill(now, memory, connection, &mut spread) {
            Ok(()) => self.emit_shares(now, connection, spread, emit),
            Err(fault) => {
                self.take_back_shares(connection, spread);
                // There may be no frame that can carry the written acknowledgements. In that case,
                // report them later.
                connection.reported_mut().report_if(true);
                self.local_memory_gone(now, connection, fault);
                Sent::Failed
            }
        }
    }

    /// Takes back all frames that were cut in this turn. The engine has not passed any of them to a
    /// driver.
    #[cold]
    fn take_back_shares(&mut self, connection: &mut Connection, mut spread: Spread) {
        while let Some(position) = spread.first_share() {
            let share = core::mem::take(&mut spread.shares[position]);
            self.scratch.exchange(position);
            self.take_back(connection, position, share.acks, 0);
            self.scratch.exchange(position);
        }
    }

    /// Cuts operations into frames until the scheduler decides to wait, a batch is full, or nothing
    /// is left to send.
    fn fill(
        &mut self,
        now: Instant,
        memory: &MemoryAccess<'_>,
        connection: &mut Connection,
        spread: &mut Spread,
    ) -> Result<(), semantics::LocalFault> {
        self.scratch.drop_acks();
        let mut owes = connection.acks_ride(now);
        while connection.outbound().wants_to_send() {
            let Some(position) = self.choose(now, connection, spread) else { break };
            let Some(path) = connection.paths().get(position) else { break };
            let (link, to) = path.pair();
            let frame_bytes = u32::from(path.frame_bytes());
            let share = spread.shares[position];
            let most = spread.share_bytes(path, self.offloads(link), frame_bytes);
            if share.frames >= self.segments(link) || share.bytes + frame_bytes > most {
                if core::mem::replace(&mut spread.views[position].has_share, true) {
                    break;
                }
                continue;
            }
            if core::mem::take(&mut owes) {
                let limit = frame_bytes as usize - beside_acks_bytes(connection);
                self.scratch.write_acks(now, connection, limit);
            }
            let acks_len = self.scratch.acks_len();
            let whole = frame_bytes - COMMON_BYTES - acks_len as u32;
            let together = self.config.scheduling == SchedulingPolicy::EarliestDelivery
                && connection.spreading_mut().falls_together(&spread.views, position);
            let room = if together {
                (whole / 2).max(connection.outbound().room_bytes_min().min(whole))
            } else {
                whole
            };
            let cut = connection.outbound_mut().next_fragment(memory, self.pools, room);
            let Some(fragment) = cut? else { break };
            self.scratch.exchange(position);
            if share.frames == 0 {
                self.scratch.begin(to);
            }
            let pushed = self.push_data(now, memory, connection, position, &fragment);
            self.scratch.exchange(position);
            let cut: usize = spread.shares.iter().map(|share| share.frames).sum();
            spread.shares[position] = Share {
                first: if share.frames == 0 { cut } else { share.first },
                frames: share.frames + 1,
                bytes: share.bytes + pushed?,
                acks: share.acks || acks_len > 0,
            };
            spread.last = position;
            spread.alone = expects_answer(&fragment);
            let none_up = !connection.paths().iter().any(Path::may_carry_data);
            let path = &connection.paths()[position];
            spread.views[position] = path.view(now, none_up, spread.rtt_min_ns);
            let view = &spread.views[position];
            connection.spreading_mut().on_cut(position, view);
        }
        // If no frame carried the written acknowledgements, report them later.
        connection.reported_mut().report_if(self.scratch.drop_acks());
        count_idle(now, connection, spread);
        Ok(())
    }

    /// Returns the position of the link for the next frame; `None` if no link should get a frame
    /// now.
    fn choose(
        &self,
        now: Instant,
        connection: &mut Connection,
        spread: &mut Spread,
    ) -> Option<usize> {
        let paths = connection.paths();
        // A probe after a timeout must use the link that it tests.
        let probes = |path: &Path| path.may_probe();
        let views = &mut spread.views[..paths.len()];
        if let Some(position) =
            (0..paths.len()).find(|&position| views[position].usable && probes(&paths[position]))
        {
            return Some(position);
        }
        let backlog = connection.outbound().backlog_bytes().max(1);
        let chosen = connection.spreading_mut().choose(self.config.scheduling, backlog, now, views);
        chosen.filter(|&link| may_send(now, &connection.paths()[link]))
    }

    /// Passes each link its batch. If a driver does not accept some frames, the engine sends them
    /// in the next batch.
    fn emit_shares(
        &mut self,
        now: Instant,
        connection: &mut Connection,
        mut spread: Spread,
        emit: Emit<'_>,
    ) -> Sent {
        let mut outcome = Sent::Nothing;
        let nothing_left = !connection.outbound().wants_to_send();
        // A link may still have room, because the scheduler gave it no more frames, or because it
        // had its full share. The number of frames that such a link delivers shows only how many
        // frames it was given, and not its rate.
        //
        // But if frames have waited on a link for a long time, that link is the bottleneck. Check
        // all links, because this turn may have given some of them no frame.
        for path in connection.paths_mut() {
            let full = path.send().window_left(now) < u32::from(path.frame_bytes());
            let waits = path.send().estimate().waits_long(u32::from(path.frame_bytes()));
            path.set_application_limited(nothing_left || !full && !waits);
        }
        // Pass the batches to the links in the order in which their first frames were cut.
        while let Some(position) = spread.first_share() {
            let share = core::mem::take(&mut spread.shares[position]);
            self.scratch.exchange(position);
            // The last frame on each link asks for an acknowledgement, because any of these frames
            // may be the last one that arrives.
            if !spread.alone {
                self.ask_if_last(connection);
            }
            let sent = self.hand_over(now, connection, position, share.acks, emit);
            self.scratch.exchange(position);
            match (sent, outcome) {
                (Sent::Failed, _) => return Sent::Failed,
                (Sent::Blocked, _) => outcome = Sent::Blocked,
                (Sent::All, Sent::Nothing) => outcome = Sent::All,
                _ => {}
            }
        }
        outcome
    }
}

/// Counts the links that got no frame in this turn although they had room and data was waiting.
fn count_idle(now: Instant, connection: &mut Connection, spread: &Spread) {
    if !connection.outbound().wants_to_send() {
        return;
    }
    let Spread { views, shares, .. } = spread;
    for (path, (view, share)) in connection.paths_mut().iter_mut().zip(views.iter().zip(shares)) {
        let has_room = path.send().window_left(now) >= u32::from(path.frame_bytes());
        if view.usable && has_room && share.frames == 0 {
            path.on_left_idle();
        }
    }
}

/// Returns how long the batches of one turn should keep the links busy, in nanoseconds.
///
/// A turn has the same cost for a host, however many frames it sends, and it sends at least one
/// frame on each link. If a slow link already has a queue, one frame takes a long time on it. In
/// that case, the other links get as many bytes as they transmit in that time.
fn turn_ns(paths: &[Path]) -> u64 {
    let frame_ns = |path: &Path| {
        let (estimate, frame_bytes) = (path.send().estimate(), path.frame_bytes());
        let rate = estimate.carried().filter(|_| estimate.has_queue(u32::from(frame_bytes)))?;
        (u64::from(frame_bytes) * 1_000_000_000).checked_div(rate)
    };
    paths.iter().filter_map(frame_ns).max().unwrap_or(0).clamp(QUANTUM_NS, TURN_NS_MAX)
}

/// Maximum duration of one turn on the links, in nanoseconds: the time of a frame of 9000 bytes at
/// 1 Gb/s, and some margin.
const TURN_NS_MAX: u64 = 100_000;

/// Difference of two round trips, in nanoseconds, above which the longer one counts as much longer.
/// Each link then gets `RUN_FRAMES` consecutive frames.
const LONGER_NS: u64 = 1_000_000;
const RUN_FRAMES: u32 = 4;

/// Number of shares per second that a link with segmentation offload transmits. The share of such a
/// link is therefore the number of bytes that the link transmits in 190 µs, but at least
/// `OFFLOADED_FRAMES` frames. At rates from 2.75 Gb/s, such a share fills a batch.
const OFFLOADED_SHARES_PER_SECOND: u64 = 5_250;
pub(crate) const OFFLOADED_FRAMES: u32 = 16;

const UNUSABLE: LinkView = LinkView {
    rate_bytes_per_second: None,
    one_way_ns: 0,
    idle_at: Instant::NEVER,
    window_left_bytes: 0,
    opens_at: Instant::NEVER,
    has_share: false,
    frame_bytes: 0,
    usable: false,
    backup: false,
};
