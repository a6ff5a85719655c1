//! Which link the next bytes go to.

use wire_edge::LinkIndex;

use crate::Instant;

/// Links a connection can have.
pub const LINKS_MAX: usize = LinkIndex::MAX as usize + 1;

/// How bytes are spread over links.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub enum SchedulingPolicy {
    /// Every byte to the link that is expected to deliver it first.
    #[default]
    EarliestDelivery,
    /// One frame to each link in turn, however fast it is (`MultiEdge`). A link whose turn it is
    /// makes the others wait.
    RoundRobin,
}

/// What the scheduler knows about a link. All bytes are counted as the rate estimator counts them.
#[derive(Clone, Copy, Debug)]
pub struct LinkView {
    /// Estimated rate; `None` until something was measured.
    pub rate_bytes_per_second: Option<u64>,
    /// What it takes to the peer without queueing, in nanoseconds. Only how links compare matters.
    pub one_way_ns: u64,
    /// When all that is queued or in flight on it will have left, by the same estimate; not in the past.
    pub idle_at: Instant,
    /// What the congestion window still allows.
    pub window_left_bytes: u64,
    /// When the window allows another frame; [`Instant::NEVER`] if that depends on an acknowledgement.
    pub opens_at: Instant,
    /// It has its share of this turn. It gets no more in it, but its window is not closed: the next turn may
    /// come at once.
    pub has_share: bool,
    /// Its largest frame; at least 1 is assumed.
    pub frame_bytes: u32,
    /// Whether new data may be put on it.
    pub usable: bool,
    /// Whether it is used only while no other link is usable.
    pub backup: bool,
}

/// The next step in spreading a backlog over links.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Next {
    /// The next frame goes to this link.
    Frame {
        /// Its index among the links shown.
        link: usize,
    },
    /// Nothing goes anywhere before a window opens, an acknowledgement comes, or this time.
    Wait {
        /// When a link that holds back would run dry; [`Instant::NEVER`] if none does.
        until: Instant,
    },
}

/// What the scheduler remembers between decisions, indexed like the links it is shown.
#[derive(Clone, Debug, Default)]
pub struct SchedulerState {
    /// Round robin: index of the link whose turn it is, before unusable ones are skipped.
    turn: usize,
    /// Bytes given to each link while its rate was unknown.
    unmeasured_bytes: [u32; LINKS_MAX],
    /// When each link last got data or was first seen; default until then.
    given_at: [Instant; LINKS_MAX],
}

crate::pack_fields!(SchedulerState { turn, unmeasured_bytes, given_at });

impl SchedulerState {
    /// Forgets what was learnt of link `index`, which was replaced or came back.
    pub fn forget(&mut self, index: usize) {
        if let (Some(bytes), Some(at)) =
            (self.unmeasured_bytes.get_mut(index), self.given_at.get_mut(index))
        {
            *bytes = 0;
            *at = Instant::default();
        }
    }
}

/// Chooses the link of the next frame of a backlog of `backlog_bytes`; to be asked frame by frame,
/// with what was given so far in the views.
///
/// Of the links with room the frame goes to the one that delivers it first, so that frames arrive
/// about in the order in which they are cut. A link that has room while one that would deliver a little
/// earlier opens within `HOLD_NS` is passed over, if it has enough queued for that time. No link waits
/// longer for another, nor does one that delivers much later anyway: predictions of arrival err by more
/// than the time of a frame wherever a switch or a host sends in bursts, a window that is not filled does
/// not grow, and a link that idles is lost for good, while order is not needed.
///
/// A link gets nothing that it would deliver later than the other links together deliver the whole
/// backlog without it: a slow one gets exactly the share it can deliver in time, and when the backlog is
/// down to a frame only the link that delivers it first is left. A link whose window is closed counts as
/// able to send when it opens, or is idle if that depends on an acknowledgement.
///
/// A link without a measured rate counts as average, and gets a first share whatever the estimates
/// say; a link that has got nothing for [`REMEASURE_NS`] gets one frame of a long backlog.
///
/// Only the first [`LINKS_MAX`] of `links` count.
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

/// Round robin: the link whose turn it is, if it has room.
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

/// Earliest delivery: see [`next`].
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

/// Which links may carry data: backups only if nothing else may.
fn eligible(links: &[LinkView]) -> impl Fn(&LinkView) -> bool + use<> {
    let only_backups = !links.iter().any(|link| link.usable && !link.backup);
    move |link| link.usable && (!link.backup || only_backups)
}

/// What a link sends at least: a frame, or all there is.
fn unit_bytes(link: &LinkView, backlog_bytes: u64) -> u64 {
    u64::from(link.frame_bytes.max(1)).min(backlog_bytes)
}

/// Whether a link takes a frame now.
fn is_open(link: &LinkView, backlog_bytes: u64) -> bool {
    let unit_bytes = unit_bytes(link, backlog_bytes);
    unit_bytes > 0 && !link.has_share && link.window_left_bytes >= unit_bytes
}

/// When a link takes a frame again.
fn opens_at(link: &LinkView, now: Instant) -> Instant {
    if link.has_share { now } else { link.opens_at }
}

/// When each usable link would deliver one more frame.
struct Deliveries {
    /// Time of delivery in nanoseconds, `u64::MAX` where the link is not to be asked.
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
        // A frame of a slow link that comes too early overtakes many of a fast one, and one that comes
        // too late is overtaken alone: it is taken for half a frame early.
        for (at_ns, sending_ns) in deliveries.at_ns.iter_mut().zip(sending_ns) {
            if *at_ns < u64::MAX {
                *at_ns = at_ns.saturating_sub(sending_ns.saturating_sub(shortest_ns) / 2);
            }
        }
        deliveries
    }

    /// The link that delivers first, whether it has room or not.
    fn first(&self) -> Option<usize> {
        let known = (0..LINKS_MAX).filter(|&index| self.at_ns[index] < u64::MAX);
        known.min_by_key(|&index| self.at_ns[index])
    }

    /// The link with room that delivers first among those not yet returned, and by how much another
    /// link is earlier.
    fn next_open(&mut self) -> Option<(usize, u64)> {
        let first_ns = self.at_ns.iter().copied().min()?;
        let open = (0..LINKS_MAX).filter(|index| self.open >> index & 1 != 0);
        let link = open.min_by_key(|&index| self.at_ns[index])?;
        self.open &= !(1 << link);
        Some((link, self.at_ns[link] - first_ns))
    }
}

/// Whether a link that would deliver too late gets a frame all the same, so that its rate becomes
/// known, or known again. Never one of an operation so small that this frame decides its latency.
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

/// When a link's next byte would arrive if it took no time to send, and how fast bytes follow.
#[derive(Clone, Copy, Debug, Default)]
struct Estimate {
    start_ns: u64,
    /// Bytes per second, at least 1.
    rate: u64,
    /// What it sends at least: a frame, or all there is.
    unit_bytes: u64,
}

/// The candidate's estimate, and those of the other eligible links, earliest start first.
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

    /// Whether the candidate delivers a frame no later than the others would deliver the whole backlog.
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

    /// When the other links together would have delivered `bytes`, in nanoseconds on the clock:
    /// as if bytes were a fluid poured into all links that have started, but not before the first
    /// frame of one of them is through: so the link with the earliest first frame finds no others
    /// that it should wait for, whatever frames each of them has.
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

/// When a link could begin to send `unit_bytes`: the next frame, or all there is.
fn could_send_at(link: &LinkView, unit_bytes: u64, now: Instant) -> Instant {
    let idle_at = link.idle_at.max(now);
    let is_open = link.has_share || link.window_left_bytes >= unit_bytes;
    // Where that depends on an acknowledgement, one is expected when it is idle.
    if is_open || link.opens_at == Instant::NEVER { idle_at } else { idle_at.max(link.opens_at) }
}

/// Mean of the known rates, in bytes per second.
fn average_rate(links: &[LinkView], eligible: impl Fn(&LinkView) -> bool) -> u64 {
    let known = links.iter().filter(|link| eligible(link));
    let (sum, count) = known
        .filter_map(|link| link.rate_bytes_per_second)
        .fold((0_u64, 0), |(sum, count), rate| (sum.saturating_add(rate), count + 1));
    sum.checked_div(count).unwrap_or(RATE_WITHOUT_ANY_MEASUREMENT)
}

/// Nanoseconds that `bytes` take. Exact below 18 GB, where the product leaves 64 bits.
const fn time_of(bytes: u64, rate_bytes_per_second: u64) -> u64 {
    bytes.saturating_mul(1_000_000_000) / rate_bytes_per_second
}

/// Bytes that pass in `ns` nanoseconds, at most 18 GB.
const fn bytes_in(ns: u64, rate_bytes_per_second: u64) -> u64 {
    ns.saturating_mul(rate_bytes_per_second) / 1_000_000_000
}

/// Longest time for which a link with room waits for one that delivers earlier, in nanoseconds: two
/// full frames at 1 Gb/s.
const HOLD_NS: u64 = 25_000;

/// Most by which a link that waits would deliver later, in nanoseconds: four full frames at 1 Gb/s.
const HELD_LATE_NS_MAX: u64 = 50_000;

/// What a link has queued beyond the time for which it waits, in nanoseconds: if no timer looks after it
/// for that long, it idles.
const RUN_DRY_NS: u64 = 60_000;

/// Frames a link without a measured rate gets for certain: two rate samples of two acknowledged
/// frames each, and little enough that a hundred times slower link delays nothing for long.
const UNMEASURED_FRAMES: u64 = 4;

/// How long a link may get nothing before its rate counts as outdated.
pub const REMEASURE_NS: u64 = 100_000_000;

/// Shortest backlog that gives a frame away to measure.
const REMEASURE_FRAMES: u64 = 16;

/// 1 Gb/s. Only how links compare matters, and without any measurement all are equal.
const RATE_WITHOUT_ANY_MEASUREMENT: u64 = 125_000_000;

#[cfg(test)]
mod tests;
