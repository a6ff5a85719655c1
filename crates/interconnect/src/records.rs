//! Records of a run: its messages, the link crossings of its packets, and the waits.
//!
//! If a [`Simulation`](super::simulation::Simulation) has a [`Recorder`], the simulation reports
//! the actions of ranks to the recorder, and the fabric reports the use of links. Without a
//! recorder, each report costs only a test of a pointer. Sums over links are always complete.
//! Single messages and crossings are recorded up to [`RecordLimits`]. [`Records::left_out`]
//! contains the numbers of messages and crossings beyond these limits.

mod critical;
mod engines;
mod links;
mod saturation;

pub use critical::{CriticalPath, PathError, Share, Step, StepKind};
pub use links::{LinkRecord, Window};
pub use saturation::{Backlog, Growth, SaturatedLink};

use super::simulation::{HostCosts, Message};
use engines::Engines;
use links::LinkTable;

/// Maximum number of records of a run.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct RecordLimits {
    /// Maximum number of recorded messages; a record has 80 bytes. Also the maximum number of
    /// recorded work items of processors; such a record has 48 bytes.
    pub messages: usize,
    /// Maximum number of recorded crossings of links by packets; a record has 64 bytes.
    pub crossings: usize,
}

impl Default for RecordLimits {
    /// Returns limits with which the records take at most 384 MB.
    fn default() -> Self {
        Self { messages: 1_000_000, crossings: 4_000_000 }
    }
}

/// The records of a run.
#[derive(Clone, Debug)]
pub struct Records {
    /// Messages, in the order of posting.
    pub messages: Vec<MessageRecord>,
    /// Crossings, in the order in which the fabric first reported them.
    pub crossings: Vec<Crossing>,
    /// Work of the processors for their ranks, and timers of ranks.
    pub works: Vec<Work>,
    /// Load of each link. With several rails, all links of one rail come before those of the next.
    /// [`Topology::link_name`] returns the name of a link.
    ///
    /// [`Topology::link_name`]: super::topology::Topology::link_name
    pub links: Vec<LinkRecord>,
    /// Width of the windows of time in [`LinkRecord::windows`], in picoseconds.
    pub window_ps: u64,
    /// Time when the last message was posted, in picoseconds.
    pub posting_ended_ps: u64,
    /// Number of records beyond the limits.
    pub left_out: LeftOut,
    costs: HostCosts,
    /// Whether windows limit the frames in flight, and so delay the frames of a message. This is
    /// the case if hosts have a transport, or if they have the real engine.
    has_windows: bool,
    last: Cause,
    completed_ps: u64,
}

/// Number of records beyond the limits.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct LeftOut {
    /// Number of messages that were omitted together with all their crossings.
    pub messages: u64,
    /// Number of omitted crossings of recorded messages.
    pub crossings: u64,
}

/// A message, with the times of its stages in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MessageRecord {
    /// Time when the rank posted the message.
    pub posted_ps: u64,
    /// Time when the sending processor had handed the message to the network.
    pub handed_ps: u64,
    /// Time when the first packet of the message started to cross its first link.
    pub started_ps: u64,
    /// Time when the last byte reached the destination host; [`NEVER_PS`] if it never did.
    pub delivered_ps: u64,
    /// Time when the receiving processor had received the message; [`NEVER_PS`] if it never did.
    pub received_ps: u64,
    /// Host that sends the message.
    pub source: u32,
    /// Host that receives the message.
    pub destination: u32,
    /// Payload, in bytes.
    pub bytes: u32,
    /// Tag that the workload gave the message.
    pub tag: u32,
    /// Index of the message's workload among several, from 0.
    pub workload: u8,
    /// Last notification that the sending rank got before it posted the message.
    pub cause: Cause,
    /// Last crossing of the packet that arrived last, as an index in [`Records::crossings`].
    pub last_crossing: Option<u32>,
}

/// A crossing of a link by a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crossing {
    /// Time at which the packet was ready to be sent, in picoseconds.
    pub ready_ps: u64,
    /// Time when the packet's first bit left, in picoseconds.
    pub started_ps: u64,
    /// Time at which the part of the packet that the next node waits for has left, in picoseconds.
    /// If the next node stores the packet, this part is the whole packet. If the head continues
    /// alone, this part is the head.
    pub sent_ps: u64,
    /// Time when the packet or its head reached the other end, in picoseconds.
    pub arrived_ps: u64,
    /// Time when the link was free again, in picoseconds; 0 if it never was.
    pub busy_until_ps: u64,
    /// Number of the link.
    pub link: u32,
    /// The packet's message, as an index in [`Records::messages`].
    pub message: u32,
    /// Length on the link, in bytes.
    pub bytes: u32,
    /// Virtual channel.
    pub channel: u8,
    /// The packet's previous crossing, as an index in [`Records::crossings`].
    pub previous: Option<u32>,
}

/// Work that a host's processor does for its rank, or a timer of the rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Time when the rank requested the work, in picoseconds.
    pub asked_ps: u64,
    /// Time when the processor started the work, in picoseconds.
    pub started_ps: u64,
    /// Time when the work ended, in picoseconds.
    pub ended_ps: u64,
    /// Number of the rank.
    pub rank: u32,
    /// Whether this is a timer, during which the processor is free.
    pub is_timer: bool,
    /// Last notification that the rank got before it requested the work.
    pub cause: Cause,
    tag: u32,
}

/// Cause of a rank's action: the last notification before it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Cause {
    /// The start of the run.
    Start,
    /// The rank received this message, an index in [`Records::messages`].
    Received(u32),
    /// The rank sent this message, an index in [`Records::messages`].
    Sent(u32),
    /// The rank finished this work, an index in [`Records::works`].
    Worked(u32),
    /// The cause was not recorded, because a limit was reached.
    Unknown,
}

/// Collects the [`Records`] of a run.
#[derive(Clone, Debug)]
pub struct Recorder {
    limits: RecordLimits,
    messages: Vec<MessageRecord>,
    crossings: Vec<Crossing>,
    works: Vec<Work>,
    links: LinkTable,
    left_out: LeftOut,
    costs: HostCosts,
    cause: Cause,
    last: (u64, Cause),
    posting_ended_ps: u64,
    /// For each live message, by its index in the run, its record; [`NONE`] if it has none.
    record_of: Vec<u32>,
    /// For each live packet, by its index in the fabric, its last crossing; [`NONE`] if it has
    /// none.
    crossing_of: Vec<u32>,
    /// For each channel of each link, the crossing that occupies the channel and whose end is not
    /// known yet; [`NONE`] if there is no such crossing.
    open: Vec<u32>,
    channels: usize,
    /// For each rank, its unfinished work.
    pending: Vec<Vec<u32>>,
    /// State that only hosts with the real engine need.
    engines: Option<Box<Engines>>,
    /// Whether hosts have a transport.
    has_windows: bool,
}

/// A fabric's report about a packet that gets a link.
#[derive(Clone, Copy, Debug)]
pub struct Grant {
    /// Index of the packet in the fabric.
    pub packet: u32,
    /// Index of the message in the run.
    pub message: u32,
    /// Number of the link.
    pub link: u32,
    /// Virtual channel; 0 without virtual channels.
    pub channel: u8,
    /// Whether this is the first link of the packet.
    pub is_first: bool,
    /// Length on the link, in bytes.
    pub bytes: u32,
    /// Time at which the packet was ready to be sent, in picoseconds. `None` means the time when it
    /// arrived from the previous link.
    pub ready_ps: Option<u64>,
    /// Time when the packet's first bit leaves, in picoseconds.
    pub started_ps: u64,
    /// See [`Crossing::sent_ps`].
    pub sent_ps: u64,
    /// Time when the packet or its head will reach the other end, in picoseconds.
    pub arrived_ps: u64,
    /// Time when the link will be free, in picoseconds. `None` means that [`Recorder::on_released`]
    /// will report this time.
    pub busy_until_ps: Option<u64>,
    /// Whether the link belongs to the topology; false for a path within a switch.
    pub is_counted: bool,
}

impl Recorder {
    /// Creates a recorder for a network with `links` links that have `channels` virtual channels
    /// each.
    pub fn new(limits: RecordLimits, links: usize, channels: usize) -> Self {
        Self {
            limits,
            messages: Vec::new(),
            crossings: Vec::new(),
            works: Vec::new(),
            links: LinkTable::new(links),
            left_out: LeftOut::default(),
            costs: HostCosts::default(),
            cause: Cause::Start,
            last: (0, Cause::Start),
            posting_ended_ps: 0,
            record_of: Vec::new(),
            crossing_of: Vec::new(),
            open: vec![NONE; links * channels.max(1)],
            channels: channels.max(1),
            pending: Vec::new(),
            engines: None,
            has_windows: false,
        }
    }

    /// Sets whether hosts have a transport. The windows of a transport delay the frames of a
    /// message.
    #[must_use]
    pub fn with_windows(self, has_windows: bool) -> Self {
        Self { has_windows, ..self }
    }

    /// Returns the records of a run that has ended.
    pub fn finish(self) -> Records {
        let (completed_ps, last) = self.last;
        let (links, window_ps) = self.links.finish();
        Records {
            messages: self.messages,
            crossings: self.crossings,
            works: self.works,
            links,
            window_ps,
            posting_ended_ps: self.posting_ended_ps,
            left_out: self.left_out,
            costs: self.costs,
            has_windows: self.has_windows || self.engines.is_some(),
            last,
            completed_ps,
        }
    }

    /// Sets the message costs of the hosts in this run.
    pub(super) const fn set_costs(&mut self, costs: HostCosts) {
        self.costs = costs;
    }

    /// Records that a rank posts a message.
    #[cold]
    pub(super) fn on_posted(&mut self, index: u32, message: &Message) {
        self.posting_ended_ps = message.posted_ps;
        let record = if self.messages.len() < self.limits.messages {
            self.messages.push(MessageRecord {
                posted_ps: message.posted_ps,
                handed_ps: message.posted_ps,
                started_ps: NEVER_PS,
                delivered_ps: NEVER_PS,
                received_ps: NEVER_PS,
                source: message.source,
                destination: message.destination,
                bytes: message.bytes,
                tag: message.tag,
                workload: message.origin.workload,
                cause: self.cause,
                last_crossing: None,
            });
            self.messages.len() as u32 - 1
        } else {
            self.left_out.messages += 1;
            NONE
        };
        *slot(&mut self.record_of, index) = record;
    }

    /// Records that a message is handed to the network.
    #[cold]
    pub(super) fn on_handed(&mut self, index: u32, now_ps: u64) {
        if let Some(message) = self.message(index) {
            message.handed_ps = now_ps;
        }
    }

    /// Records that the last byte of a message has reached its host.
    #[cold]
    pub(super) fn on_delivered(&mut self, index: u32, now_ps: u64) {
        if let Some(message) = self.message(index) {
            message.delivered_ps = now_ps;
        }
    }

    /// Records that a rank is notified of a received message.
    #[cold]
    pub(super) fn on_received(&mut self, index: u32, now_ps: u64) {
        let record = self.record_of.get(index as usize).copied().unwrap_or(NONE);
        self.cause = Cause::Unknown;
        if let Some(message) = self.messages.get_mut(record as usize) {
            message.received_ps = now_ps;
            self.cause = Cause::Received(record);
        }
        self.last = (now_ps, self.cause);
    }

    /// Records that a rank requests work. `work` contains the times of the request, and of the
    /// start and end of the work.
    #[cold]
    pub(super) fn on_asked(&mut self, mut work: Work) {
        if self.works.len() >= self.limits.messages {
            return;
        }
        work.cause = self.cause;
        slot(&mut self.pending, work.rank).push(self.works.len() as u32);
        self.works.push(work);
    }

    /// Records that requested work starts.
    #[cold]
    pub(super) fn on_begun(&mut self, rank: u32, tag: u32, started_ps: u64, ended_ps: u64) {
        for &work in slot(&mut self.pending, rank).iter() {
            if let Some(work) = self.works.get_mut(work as usize)
                && work.ended_ps == NEVER_PS
                && work.tag == tag
            {
                (work.started_ps, work.ended_ps) = (started_ps, ended_ps);
                return;
            }
        }
    }

    /// Records that a rank is notified of the end of a send.
    #[cold]
    pub(super) fn on_sent(&mut self, index: u32) {
        let record = self.record_of.get(index as usize).copied().unwrap_or(NONE);
        let is_known = (record as usize) < self.messages.len();
        self.cause = if is_known { Cause::Sent(record) } else { Cause::Unknown };
    }

    /// Returns the last notification of the rank that acts now.
    pub(super) const fn cause(&self) -> Cause {
        self.cause
    }

    /// Restores the cause to which later actions are attributed, after other ranks were notified.
    pub(super) const fn resume(&mut self, cause: Cause) {
        self.cause = cause;
    }

    /// Records that a rank is notified of finished work.
    #[cold]
    pub(super) fn on_worked(&mut self, rank: u32, tag: u32, now_ps: u64) {
        let works = &self.works;
        let pending = slot(&mut self.pending, rank);
        let is_it = |&work: &u32| {
            works.get(work as usize).is_some_and(|work| work.ended_ps == now_ps && work.tag == tag)
        };
        let found = pending.iter().position(is_it);
        self.cause = found.map_or(Cause::Unknown, |at| Cause::Worked(pending.swap_remove(at)));
        self.last = (now_ps, self.cause);
    }

    /// Returns the time when a message was handed to the network, in picoseconds; `None` if the
    /// message has no record.
    pub fn handed_ps(&self, message: u32) -> Option<u64> {
        let record = *self.record_of.get(message as usize)?;
        self.messages.get(record as usize).map(|message| message.handed_ps)
    }

    /// Records that a packet gets a link.
    #[cold]
    pub fn on_granted(&mut self, grant: Grant) {
        let grant = self.of_rail(grant);
        let previous = if grant.is_first {
            NONE
        } else {
            self.crossing_of.get(grant.packet as usize).copied().unwrap_or(NONE)
        };
        let before = self.crossings.get(previous as usize);
        let ready_ps =
            grant.ready_ps.or(before.map(|before| before.arrived_ps)).unwrap_or(grant.started_ps);
        if grant.is_counted {
            let wait_ps = grant.started_ps.saturating_sub(ready_ps);
            self.links.on_packet(grant.link, ready_ps, wait_ps, grant.bytes);
            if let Some(until_ps) = grant.busy_until_ps {
                self.links.on_busy(grant.link, grant.started_ps, until_ps);
            }
        }
        let record = self.record_of.get(grant.message as usize).copied().unwrap_or(NONE);
        let crossing = self.keep(record, &grant, ready_ps, previous);
        *slot(&mut self.crossing_of, grant.packet) = crossing;
        if grant.busy_until_ps.is_none() {
            let at = grant.link as usize * self.channels + usize::from(grant.channel);
            if let Some(open) = self.open.get_mut(at) {
                *open = crossing;
            }
        }
    }

    fn keep(&mut self, record: u32, grant: &Grant, ready_ps: u64, previous: u32) -> u32 {
        let Some(message) = self.messages.get_mut(record as usize) else { return NONE };
        if self.crossings.len() >= self.limits.crossings {
            self.left_out.crossings += 1;
            return NONE;
        }
        message.started_ps = message.started_ps.min(grant.started_ps);
        self.crossings.push(Crossing {
            ready_ps,
            started_ps: grant.started_ps,
            sent_ps: grant.sent_ps,
            arrived_ps: grant.arrived_ps,
            busy_until_ps: grant.busy_until_ps.unwrap_or(0),
            link: grant.link,
            message: record,
            bytes: grant.bytes,
            channel: grant.channel,
            previous: (previous != NONE).then_some(previous),
        });
        self.crossings.len() as u32 - 1
    }

    /// Records that a channel of a link becomes free at `until_ps`.
    #[cold]
    pub fn on_released(&mut self, link: u32, channel: u8, until_ps: u64) {
        let at = link as usize * self.channels + usize::from(channel);
        let Some(open) = self.open.get_mut(at) else { return };
        if let Some(crossing) = self.crossings.get_mut(*open as usize) {
            crossing.busy_until_ps = until_ps;
        }
        *open = NONE;
    }

    /// Records that a link is occupied for a time.
    #[cold]
    pub fn on_busy(&mut self, link: u32, from_ps: u64, until_ps: u64) {
        self.links.on_busy(link, from_ps, until_ps);
    }

    /// Records that a link has carried a message of `bytes` bytes in the fluid model. `busy_ps` is
    /// the time for which this message alone would have occupied the link.
    #[cold]
    pub fn on_carried(&mut self, link: u32, from_ps: u64, busy_ps: u64, bytes: u32) {
        self.links.on_packet(link, from_ps, 0, bytes);
        self.links.on_busy(link, from_ps, from_ps.saturating_add(busy_ps));
    }

    /// Records that the tail of a packet, sent at `sent_ps`, crosses the packet's last link after
    /// the head.
    #[cold]
    pub fn on_tail(&mut self, packet: u32, sent_ps: u64, arrived_ps: u64) {
        let crossing = self.crossing_of.get(packet as usize).copied().unwrap_or(NONE);
        if let Some(crossing) = self.crossings.get_mut(crossing as usize) {
            (crossing.sent_ps, crossing.arrived_ps) = (sent_ps, arrived_ps);
        }
    }

    /// Records that a packet has reached its host. The message is complete when its last packet is
    /// reported.
    #[cold]
    pub fn on_arrived(&mut self, packet: u32, message: u32) {
        let packet = self.packet_of_rail(packet);
        let crossing = self.crossing_of.get(packet as usize).copied().unwrap_or(NONE);
        if let Some(engines) = &mut self.engines {
            engines.on_arrived(message, crossing);
        } else if let Some(message) = self.message(message) {
            message.last_crossing = (crossing != NONE).then_some(crossing);
        }
    }

    fn message(&mut self, index: u32) -> Option<&mut MessageRecord> {
        let record = *self.record_of.get(index as usize)?;
        self.messages.get_mut(record as usize)
    }
}

impl Work {
    /// Creates work that a rank requests at `asked_ps`. The recorder sets the cause.
    pub(super) const fn new(rank: u32, tag: u32, times_ps: [u64; 3], is_timer: bool) -> Self {
        let [asked_ps, started_ps, ended_ps] = times_ps;
        Self { asked_ps, started_ps, ended_ps, rank, is_timer, cause: Cause::Unknown, tag }
    }
}

impl Records {
    /// Returns the time when the last rank finished, in picoseconds.
    pub const fn completed_ps(&self) -> u64 {
        self.completed_ps
    }

    /// Returns the fraction of the run in which a link was occupied, from 0 to 1.
    pub fn busy_share(&self, link: &LinkRecord) -> f64 {
        (link.busy_ps as f64 / self.completed_ps.max(1) as f64).min(1.0)
    }

    /// Returns how long the last packet of a message waited for links, in picoseconds. The last
    /// packet is the one that arrived last. Returns `None` if some crossings of this packet were
    /// not recorded.
    pub fn link_wait_ps(&self, message: &MessageRecord) -> Option<u64> {
        let mut next = Some(message.last_crossing?);
        let mut wait_ps = 0;
        while let Some(at) = next {
            let crossing = self.crossings.get(at as usize)?;
            // Before its first link, a packet can also wait for earlier packets of the same
            // message. This time does not count: the wait ends when the first packet of the message
            // has started.
            let started_ps = match crossing.previous {
                None if !self.has_windows => message.started_ps.min(crossing.started_ps),
                _ => crossing.started_ps,
            };
            wait_ps += started_ps.saturating_sub(crossing.ready_ps);
            next = crossing.previous;
        }
        Some(wait_ps)
    }
}

/// Returns a mutable reference to a list entry. Extends the list if needed.
fn slot<T: Clone + Vacant>(list: &mut Vec<T>, index: u32) -> &mut T {
    if list.len() <= index as usize {
        list.resize(index as usize + 1, T::vacant());
    }
    &mut list[index as usize]
}

/// Types that have a value for unused entries of a list.
trait Vacant {
    fn vacant() -> Self;
}

impl Vacant for u32 {
    fn vacant() -> Self {
        NONE
    }
}

impl Vacant for Vec<u32> {
    fn vacant() -> Self {
        Self::new()
    }
}

/// The time of an event that has not happened.
pub const NEVER_PS: u64 = u64::MAX;
const NONE: u32 = u32::MAX;

const _: () = assert!(size_of::<MessageRecord>() == 80);
const _: () = assert!(size_of::<Crossing>() == 64 && size_of::<Work>() <= 48);
