//! Chooses the link for the next bytes.

use wire_edge::LinkIndex;

use crate::time::Instant;

/// Largest number of links of a connection.
pub const LINKS_MAX: usize = LinkIndex::MAX as usize + 1;

/// The rule by which the scheduler distributes bytes over links.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum SchedulingPolicy {
    /// The scheduler sends every frame on the link that, by its estimates, delivers the frame
    /// first.
    #[default]
    EarliestDelivery,
    /// Each link gets one frame, one link after the other, even if their speeds differ
    /// (`MultiEdge`). If the next link has no room, the other links wait.
    RoundRobin,
}

/// The properties of a link that the scheduler uses.
#[derive(Clone, Copy, Debug)]
pub struct LinkView {
    /// Estimated rate in bytes per second; `None` before the first measurement.
    pub rate_bytes_per_second: Option<u64>,
    /// Time to the peer without queueing, in nanoseconds. Only the differences between links
    /// matter.
    pub one_way_ns: u64,
    /// Time at which the link will have sent all bytes that are queued or in flight on it, at the
    /// estimated rate. This is never in the past.
    pub idle_at: Instant,
    /// Bytes that the congestion window still allows.
    pub window_left_bytes: u64,
    /// Time at which the window allows another frame; [`Instant::NEVER`] if only an acknowledgement
    /// can open the window.
    pub opens_at: Instant,
    /// Whether the link has already sent the largest number of bytes that it may send in one turn.
    /// Such a link gets no more frames in this turn, although its window is open. The next turn may
    /// follow at once.
    pub has_share: bool,
    /// Largest frame of the link, in bytes; 0 counts as 1.
    pub frame_bytes: u32,
    /// Whether the link may carry new data.
    pub usable: bool,
    /// Whether the link is used only while no other link is usable.
    pub backup: bool,
}

/// The next step in distributing a backlog over links.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Next {
    /// Send the next frame on this link.
    Frame {
        /// Index of the link in `links`.
        link: usize,
    },
    /// Send no frame before a window opens, an acknowledgement arrives, or time `until`.
    Wait {
        /// Time at which the window of a better link opens, if a link with room waits for that
        /// better link. Otherwise [`Instant::NEVER`].
        until: Instant,
    },
}

/// The state of the scheduler between decisions. Indices are those of the links passed to [`next`].
#[derive(Clone, Debug, Default)]
pub struct SchedulerState {
    /// For round robin: index from which the search for the next usable link starts.
    turn: usize,
    /// Bytes sent on each link while its rate was unknown.
    unmeasured_bytes: [u32; LINKS_MAX],
    /// For each link: the time at which it last got data. If it never got data, the time at which
    /// the scheduler first considered it; the default time before that.
    given_at: [Instant; LINKS_MAX],
}

crate::pack_fields!(SchedulerState { turn, unmeasured_bytes, given_at });

impl SchedulerState {
    /// Resets the state of link `index`. Call this when the link was replaced or works again.
    pub fn forget(&mut self, index: usize) {
        if let (Some(bytes), Some(at)) =
            (self.unmeasured_bytes.get_mut(index), self.given_at.get_mut(index))
        {
            *bytes = 0;
            *at = Instant::default();
        }
    }
}

/// Chooses the link for the next frame of a backlog of `backlog_bytes`. Call this once per frame,
/// with `links` updated for the frames sent so far.
///
/// Of the links with room, the link that delivers the frame first gets it. So frames arrive roughly
/// in the order in which they were cut. A link with room waits if three conditions hold: another
/// link without room would deliver the frame earlier, that link opens within `HOLD_NS`, and the
/// waiting link has enough queued data. The link never waits longer than `HOLD_NS`. It does not
/// wait if it would deliver the frame much later than the other link. The wait is limited for three
/// reasons:
///
/// * Predictions of arrival are inexact: if a switch or a host sends in bursts, they are wrong by
///   more than the time of a frame.
/// * A window that is not filled does not grow.
/// * While a link is idle, its capacity is lost, and the protocol does not require order.
///
/// If a link would deliver a frame later than the other links together deliver the whole backlog,
/// the link gets no frame. So a slow link gets only data that it can deliver in time. A backlog of
/// one frame goes to the link that delivers it first, and to no other link. If the window of a link
/// is closed, the scheduler assumes that the link can send when its window opens. If only an
/// acknowledgement can open the window, the scheduler assumes that the link can send when the link
/// has become idle.
///
/// If the rate of a link is not measured, the scheduler assumes the average of the measured rates.
/// Such a link gets its first few frames even if the estimates favour other links. If a link has
/// got no data for [`REMEASURE_NS`] and the backlog is long, the link gets one frame.
///
/// Only the first [`LINKS_MAX`] of `links` are used.
pub fn next(
    policy: SchedulingPolicy,
    backlog_bytes: u64,
    now: Instant,
    links: &[LinkView],
    state: &mut SchedulerState,
) -> Next {
    let links = links.get(..LINKS_MAX).unwrap_or(links);
    let chosen = match policy {
        SchedulingPolicy::RoundRobin => turn_of(backlog_bytes, links, state),
        SchedulingPolicy::EarliestDelivery => earliest(backlog_bytes, now, links, state),
    };
    if let Next::Frame { link } = chosen {
        let view = &links[link];
        state.given_at[link] = now;
        if view.rate_bytes_per_second.is_none() {
            let unit_bytes = unit_bytes(view, backlog_bytes) as u32;
            state.unmeasured_bytes[link] = state.unmeasured_bytes[link].saturating_add(unit_bytes);
        }
    }
    chosen
}

/// Chooses the next link by round robin. If this link has no room, the result is [`Next::Wait`].
fn turn_of(backlog_bytes: u64, links: &[LinkView], state: &mut SchedulerState) -> Next {
    let eligible = eligible(links);
    let mut turns = (0..links.len()).map(|step| (state.turn + step) % links.len());
    match turns.find(|&link| eligible(&links[link])) {
        Some(link) if is_open(&links[link], backlog_bytes) => {
            state.turn = (link + 1) % links.len();
            Next::Frame { link }
        }
        _ => Next::Wait { until: Instant::NEVER },
    }
}

/// Chooses the link with the earliest delivery. [`next`] describes the rules.
fn earliest(
    backlog_bytes: u64,
    now: Instant,
    links: &[LinkView],
    state: &mut SchedulerState,
) -> Next {
    let mut queue = Deliveries::new(backlog_bytes, now, links);
    let first_opens_at = queue.first().map_or(Instant::NEVER, |first| opens_at(&links[first], now));
    let first_opens_soon = first_opens_at.since_ns(now) <= HOLD_NS;
    let mut until = Instant::NEVER;
    while let Some((link, late_ns)) = queue.next_open() {
        let view = &links[link];
        let dry_at = Instant(view.idle_at.0.saturating_sub(RUN_DRY_NS));
        let is_about_as_early = (1..=HELD_LATE_NS_MAX).contains(&late_ns);
        if is_about_as_early && first_opens_soon && dry_at > first_opens_at {
            until = first_opens_at;
        } else if Estimates::new(link, backlog_bytes, now, links).is_in_time(backlog_bytes)
            || claims_a_measurement(link, view, backlog_bytes, now, state)
        {
            return Next::Frame { link };
        }
    }
    Next::Wait { until }
}

/// Returns a function that tests whether a link may carry data. A backup link may carry data only
/// if no other link is usable.
fn eligible(links: &[LinkView]) -> impl Fn(&LinkView) -> bool + use<> {
    let only_backups = !links.iter().any(|link| link.usable && !link.backup);
    move |link| link.usable && (!link.backup || only_backups)
}

/// Returns the smallest number of bytes that a link sends: a full frame, or the whole backlog if
/// that is smaller.
fn unit_bytes(link: &LinkView, backlog_bytes: u64) -> u64 {
    u64::from(link.frame_bytes.max(1)).min(backlog_bytes)
}

/// Returns whether the link currently accepts a frame.
fn is_open(link: &LinkView, backlog_bytes: u64) -> bool {
    let unit_bytes = unit_bytes(link, backlog_bytes);
    unit_bytes > 0 && !link.has_share && link.window_left_bytes >= unit_bytes
}

/// Returns the time at which a link that accepts no frame now will accept a frame.
fn opens_at(link: &LinkView, now: Instant) -> Instant {
    if link.has_share { now } else { link.opens_at }
}

/// The time at which each usable link would deliver one more frame.
struct Deliveries {
    /// Time of delivery in nanoseconds; `u64::MAX` if the link is not eligible.
    at_ns: [u64; LINKS_MAX],
    open: u16,
}

impl Deliveries {
    fn new(backlog_bytes: u64, now: Instant, links: &[LinkView]) -> Self {
        let eligible = eligible(links);
        let average = average_rate(links, &eligible);
        let mut deliveries = Self { at_ns: [u64::MAX; LINKS_MAX], open: 0 };
        let mut shortest_ns = u64::MAX;
        let mut sending_ns = [0; LINKS_MAX];
        for (index, link) in links.iter().enumerate().filter(|(_, link)| eligible(link)) {
            let unit_bytes = unit_bytes(link, backlog_bytes);
            let rate = link.rate_bytes_per_second.unwrap_or(average).max(1);
            let start_at = could_send_at(link, unit_bytes, now).after_ns(link.one_way_ns);
            sending_ns[index] = time_of(unit_bytes, rate);
            shortest_ns = shortest_ns.min(sending_ns[index]);
            deliveries.at_ns[index] = start_at.0.saturating_add(sending_ns[index]);
            deliveries.open |= u16::from(is_open(link, backlog_bytes)) << index;
        }
        // If a frame of a slow link arrives earlier than predicted, it overtakes many frames of a
        // fast link. If it arrives later than predicted, only this one frame is overtaken. It is
        // therefore better if the frame arrives later than predicted. So predict an earlier
        // delivery for the slow link: subtract half of the time by which its frame takes longer
        // than a frame of the fastest link.
        for (at_ns, sending_ns) in deliveries.at_ns.iter_mut().zip(sending_ns) {
            if *at_ns < u64::MAX {
                *at_ns = at_ns.saturating_sub(sending_ns.saturating_sub(shortest_ns) / 2);
            }
        }
        deliveries
    }

    /// Returns the link that would deliver a frame first, whether or not it has room; `None` if no
    /// link is eligible.
    fn first(&self) -> Option<usize> {
        let known = (0..LINKS_MAX).filter(|&index| self.at_ns[index] < u64::MAX);
        known.min_by_key(|&index| self.at_ns[index])
    }

    /// Of the links with room that this method has not returned yet, returns the link that delivers
    /// first; `None` if there is no such link. Also returns how much later this link delivers than
    /// the earliest of all links, in nanoseconds.
    fn next_open(&mut self) -> Option<(usize, u64)> {
        let first_ns = self.at_ns.iter().copied().min()?;
        let open = (0..LINKS_MAX).filter(|index| self.open >> index & 1 != 0);
        let link = open.min_by_key(|&index| self.at_ns[index])?;
        self.open &= !(1 << link);
        Some((link, self.at_ns[link] - first_ns))
    }
}

/// Returns whether a link gets a frame for a measurement of its rate, although the link would
/// deliver the frame too late. Returns false if the backlog is so small that this frame would
/// determine the latency of an operation.
fn claims_a_measurement(
    candidate: usize,
    view: &LinkView,
    backlog_bytes: u64,
    now: Instant,
    state: &mut SchedulerState,
) -> bool {
    let frame_bytes = u64::from(view.frame_bytes.max(1));
    let given_at = &mut state.given_at[candidate];
    if *given_at == Instant::default() {
        *given_at = now;
    }
    if view.rate_bytes_per_second.is_none() {
        let share_bytes = UNMEASURED_FRAMES * frame_bytes;
        return backlog_bytes > frame_bytes
            && u64::from(state.unmeasured_bytes[candidate]) < share_bytes;
    }
    now.since_ns(*given_at) >= REMEASURE_NS && backlog_bytes >= REMEASURE_FRAMES * frame_bytes
}

/// The start and the rate of a link's delivery: the time at which the next byte would arrive if
/// sending took no time, and the rate at which further bytes follow.
#[derive(Clone, Copy, Debug, Default)]
struct Estimate {
    start_ns: u64,
    /// Bytes per second, at least 1.
    rate: u64,
    /// Smallest number of bytes that the link sends: a frame, or the whole backlog if it is
    /// smaller.
    unit_bytes: u64,
}

/// The estimate of the link under test (the candidate), and the estimates of the other eligible
/// links, earliest start first.
struct Estimates {
    mine: Estimate,
    others: [Estimate; LINKS_MAX],
    others_len: usize,
}

impl Estimates {
    fn new(candidate: usize, backlog_bytes: u64, now: Instant, links: &[LinkView]) -> Self {
        let eligible = eligible(links);
        let average = average_rate(links, &eligible);
        let mut estimates = Self {
            mine: Estimate::default(),
            others: [Estimate::default(); LINKS_MAX],
            others_len: 0,
        };
        for (index, link) in links.iter().enumerate().filter(|(_, link)| eligible(link)) {
            let unit_bytes = unit_bytes(link, backlog_bytes);
            let estimate = Estimate {
                unit_bytes,
                start_ns: could_send_at(link, unit_bytes, now).after_ns(link.one_way_ns).0,
                rate: link.rate_bytes_per_second.unwrap_or(average).max(1),
            };
            if index == candidate {
                estimates.mine = estimate;
            } else {
                estimates.insert(estimate);
            }
        }
        estimates
    }

    /// Returns whether the candidate delivers a frame no later than the other links together
    /// deliver the whole backlog.
    fn is_in_time(&self, backlog_bytes: u64) -> bool {
        let mine_at =
            self.mine.start_ns.saturating_add(time_of(self.mine.unit_bytes, self.mine.rate));
        mine_at <= self.others_deliver_at(backlog_bytes)
    }

    fn insert(&mut self, estimate: Estimate) {
        let mut position = self.others_len;
        while position > 0 && self.others[position - 1].start_ns > estimate.start_ns {
            self.others[position] = self.others[position - 1];
            position -= 1;
        }
        self.others[position] = estimate;
        self.others_len += 1;
    }

    /// Returns the time at which the other links together would have delivered `bytes`, in
    /// nanoseconds on the clock. The computation divides the bytes among the links that have
    /// started to deliver, in proportion to their rates and without regard to frames. The result is
    /// at least the time of the first complete frame of any of these links. So the link with the
    /// earliest first frame never waits for other links, even if their frame sizes differ.
    fn others_deliver_at(&self, bytes: u64) -> u64 {
        let others = &self.others[..self.others_len];
        let mut delivered = 0;
        let mut rate: u64 = 0;
        let mut fluid_at = u64::MAX;
        for (index, link) in others.iter().enumerate() {
            rate = rate.saturating_add(link.rate);
            let next_ns = others.get(index + 1).map_or(u64::MAX, |next| next.start_ns);
            let until_next = bytes_in(next_ns - link.start_ns, rate);
            if bytes - delivered <= until_next {
                fluid_at = link.start_ns.saturating_add(time_of(bytes - delivered, rate));
                break;
            }
            delivered += until_next;
        }
        let first_at = others
            .iter()
            .map(|link| {
                link.start_ns.saturating_add(time_of(link.unit_bytes.min(bytes), link.rate))
            })
            .min();
        first_at.map_or(u64::MAX, |first_at| fluid_at.max(first_at))
    }
}

/// Returns the time at which the link could begin to send `unit_bytes` bytes: the next frame, or
/// the whole backlog.
fn could_send_at(link: &LinkView, unit_bytes: u64, now: Instant) -> Instant {
    let idle_at = link.idle_at.max(now);
    let is_open = link.has_share || link.window_left_bytes >= unit_bytes;
    // If only an acknowledgement can open the window, assume that it arrives when the link is idle.
    if is_open || link.opens_at == Instant::NEVER { idle_at } else { idle_at.max(link.opens_at) }
}

/// Returns the mean of the known rates, in bytes per second.
fn average_rate(links: &[LinkView], eligible: impl Fn(&LinkView) -> bool) -> u64 {
    let known = links.iter().filter(|link| eligible(link));
    let (sum, count) = known
        .filter_map(|link| link.rate_bytes_per_second)
        .fold((0_u64, 0), |(sum, count), rate| (sum.saturating_add(rate), count + 1));
    sum.checked_div(count).unwrap_or(RATE_WITHOUT_ANY_MEASUREMENT)
}

/// Returns the nanoseconds that `bytes` bytes take at this rate. Above 18 GB, the product exceeds
/// 64 bits and saturates, so the result is too small.
const fn time_of(bytes: u64, rate_bytes_per_second: u64) -> u64 {
    bytes.saturating_mul(1_000_000_000) / rate_bytes_per_second
}

/// Returns the number of bytes that pass in `ns` nanoseconds, at most 18 GB.
const fn bytes_in(ns: u64, rate_bytes_per_second: u64) -> u64 {
    ns.saturating_mul(rate_bytes_per_second) / 1_000_000_000
}

/// Longest time that a link with room waits for a link that delivers earlier, in nanoseconds: the
/// time of two full frames at 1 Gb/s.
const HOLD_NS: u64 = 25_000;

/// Largest delay, in nanoseconds, with which a link still waits for the earliest link. The delay is
/// the time by which the link would deliver a frame after the earliest link. The limit is the time
/// of four full frames at 1 Gb/s.
const HELD_LATE_NS_MAX: u64 = 50_000;

/// Time in nanoseconds that the queued data of a waiting link must last after the end of the wait.
/// With this margin, the link becomes idle only if the timer that ends the wait is late by more
/// than the margin.
const RUN_DRY_NS: u64 = 60_000;

/// Number of frames that a link without a measured rate gets in any case: two rate samples of two
/// acknowledged frames each. The frames are so few that they delay little, even if the link is a
/// hundred times as slow as the others.
const UNMEASURED_FRAMES: u64 = 4;

/// Nanoseconds without data after which the rate of a link counts as outdated.
pub const REMEASURE_NS: u64 = 100_000_000;

/// Smallest backlog, in frames, from which a link with an outdated rate gets one frame for a
/// measurement.
const REMEASURE_FRAMES: u64 = 16;

/// Rate of all links while no link has a measured rate: 1 Gb/s. The value does not matter, because
/// only differences between links do.
const RATE_WITHOUT_ANY_MEASUREMENT: u64 = 125_000_000;

#[cfg(test)]
mod tests;
