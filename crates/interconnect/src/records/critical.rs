//! The critical path: the waits, link crossings and work that determined the end of a run.
//!
//! The path is built from the end to the start. The last notification of a rank has a cause: work
//! that ended, or a message that arrived. At an earlier notification, the rank requested this work,
//! or another rank posted this message. That notification has a cause too, and so on until the
//! start of the run. Each event of this chain happened as soon as the event before it permitted.
//! The steps between the events therefore fill the run without a gap. To end earlier, the run would
//! need a faster step on this path.

use std::collections::BTreeMap;

use super::{Cause, Crossing, MessageRecord, NEVER_PS, Records, Work};

/// The steps that determined the end of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct CriticalPath {
    /// Steps from the start to the end of the run. Each step starts where the previous one ends.
    pub steps: Vec<Step>,
    /// End of the last step, in picoseconds.
    pub completed_ps: u64,
    /// Number of messages on the path.
    pub messages: u64,
}

/// A step of the critical path.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Step {
    /// Kind of the step.
    pub kind: StepKind,
    /// Start of the step, in picoseconds.
    pub from_ps: u64,
    /// End of the step, in picoseconds.
    pub until_ps: u64,
    /// The link that the step concerns; `None` if it concerns none.
    pub link: Option<u32>,
    /// The host or rank that the step concerns; `None` if it concerns none.
    pub host: Option<u32>,
    /// The message that the step concerns, as an index in [`Records::messages`].
    pub message: Option<u32>,
}

/// Kind of a step.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub enum StepKind {
    /// A rank computed.
    Compute,
    /// A rank waited for its timer.
    Timer,
    /// A processor was busy with other work.
    ProcessorWait,
    /// A processor sent a message.
    Send,
    /// A processor received a message.
    Receive,
    /// A packet waited for a link that other packets used.
    LinkWait,
    /// A link sent the packet, or earlier packets of the same message. If hosts have engines, the
    /// earlier packets can also belong to other messages of the same host.
    Serialisation,
    /// A packet was on a cable or inside a switch.
    Latency,
    /// A message was in an engine or transport, while its host sent nothing on the link. The cause
    /// is a busy processor or a full window.
    Engine,
    /// A message was in a network that a formula models.
    Network,
}

impl StepKind {
    /// Returns the name of the kind, in words.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compute => "computation",
            Self::Timer => "waits of the program",
            Self::ProcessorWait => "waits for a processor",
            Self::Send => "processor, sending",
            Self::Receive => "processor, receiving",
            Self::LinkWait => "waits for links",
            Self::Serialisation => "serialisation",
            Self::Latency => "cables and switches",
            Self::Engine => "processors and windows",
            Self::Network => "network",
        }
    }
}

/// Why the critical path cannot be determined.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PathError {
    /// Parts of the critical path were not recorded.
    #[error(
        "the critical path is not known: {messages} messages and {crossings} crossings were not recorded; raise the limit of records"
    )]
    LeftOut {
        /// Number of messages that were not recorded.
        messages: u64,
        /// Number of crossings that were not recorded.
        crossings: u64,
    },
}

/// The part of the path that consists of one kind of step, or that concerns one link.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Share {
    /// Number of steps.
    pub steps: u64,
    /// Total time of the steps, in picoseconds.
    pub total_ps: u64,
    /// Total time of the steps that are waits, in picoseconds.
    pub wait_ps: u64,
}

impl CriticalPath {
    /// Returns the time of each kind of step, the longest first.
    pub fn by_kind(&self) -> Vec<(StepKind, Share)> {
        shares(self.steps.iter().map(|step| (step.kind, step)))
    }

    /// Returns the time that the path spends at each link, ordered by waiting time, the longest
    /// first. The first link delayed the end of the run most.
    pub fn by_link(&self) -> Vec<(u32, Share)> {
        let steps = self.steps.iter().filter_map(|step| Some((step.link?, step)));
        let mut shares = shares(steps);
        shares.sort_by_key(|(_, share)| std::cmp::Reverse((share.wait_ps, share.total_ps)));
        shares
    }
}

fn shares<'a, K: Ord + Copy>(steps: impl Iterator<Item = (K, &'a Step)>) -> Vec<(K, Share)> {
    let mut shares: BTreeMap<K, Share> = BTreeMap::new();
    for (key, step) in steps {
        let share = shares.entry(key).or_default();
        let length_ps = step.until_ps - step.from_ps;
        share.steps += 1;
        share.total_ps += length_ps;
        if step.kind == StepKind::LinkWait {
            share.wait_ps += length_ps;
        }
    }
    let mut shares: Vec<(K, Share)> = shares.into_iter().collect();
    shares.sort_by_key(|(_, share)| std::cmp::Reverse(share.total_ps));
    shares
}

impl Records {
    /// Returns the steps that determined the end of the run.
    ///
    /// # Errors
    /// Returns [`PathError`]; each variant names one cause.
    pub fn critical_path(&self) -> Result<CriticalPath, PathError> {
        let left_out = PathError::LeftOut {
            messages: self.left_out.messages,
            crossings: self.left_out.crossings,
        };
        let spans = if self.has_windows { self.host_spans() } else { BTreeMap::new() };
        let mut way = Way { steps: Vec::new(), at_ps: self.completed_ps, messages: 0, spans };
        let mut cause = self.last;
        loop {
            cause = match cause {
                Cause::Start => break,
                Cause::Unknown => return Err(left_out),
                Cause::Worked(index) => {
                    let work = self.works.get(index as usize).ok_or(left_out)?;
                    way.back_through_work(work)
                }
                Cause::Sent(index) => {
                    let message = self.messages.get(index as usize).ok_or(left_out)?;
                    self.back_through_send(&mut way, index, message)
                }
                Cause::Received(index) => {
                    let message = self.messages.get(index as usize).ok_or(left_out)?;
                    if self.left_out.crossings > 0 && message.last_crossing.is_none() {
                        return Err(left_out);
                    }
                    self.back_through_message(&mut way, index, message).ok_or(left_out)?
                }
            };
        }
        way.steps.reverse();
        let Way { steps, messages, .. } = way;
        Ok(CriticalPath { steps, completed_ps: self.completed_ps, messages })
    }

    fn back_through_message(
        &self,
        way: &mut Way,
        index: u32,
        message: &MessageRecord,
    ) -> Option<Cause> {
        way.messages += 1;
        let about =
            CriticalPlace { link: None, host: Some(message.destination), message: Some(index) };
        if message.delivered_ps == NEVER_PS {
            // If a host sends a message to itself, only its processor works.
            return Some(self.back_through_send(way, index, message));
        }
        let cost_ps = self.costs.receive(message.bytes);
        way.step(StepKind::Receive, way.at_ps.saturating_sub(cost_ps), about);
        way.step(StepKind::ProcessorWait, message.delivered_ps, about);
        let mut next = message.last_crossing;
        if next.is_none() {
            way.step(StepKind::Network, message.handed_ps, CriticalPlace { host: None, ..about });
        }
        if let Some(last) = next.filter(|_| self.has_windows) {
            let arrived_ps = self.crossings.get(last as usize)?.arrived_ps;
            way.step(StepKind::Engine, arrived_ps, about);
        }
        while let Some(at) = next {
            let crossing = self.crossings.get(at as usize)?;
            way.back_through_link(crossing, message, (index, self.has_windows));
            next = crossing.previous;
        }
        let about = CriticalPlace { host: Some(message.source), ..about };
        if self.has_windows {
            way.back_through_engine(message.handed_ps, about);
        }
        way.step(StepKind::LinkWait, message.handed_ps, about);
        Some(self.back_through_send(way, index, message))
    }

    /// Adds the work that the sender's processor did for a message.
    fn back_through_send(&self, way: &mut Way, index: u32, message: &MessageRecord) -> Cause {
        let about = CriticalPlace { link: None, host: Some(message.source), message: Some(index) };
        let cost_ps = self.costs.send(message.bytes);
        way.step(StepKind::Send, way.at_ps.saturating_sub(cost_ps), about);
        way.step(StepKind::ProcessorWait, message.posted_ps, about);
        message.cause
    }

    /// Returns, for each link of a host, the time spans in which the host sent on it. The spans are
    /// in ascending order. Frames in close succession count as one span.
    fn host_spans(&self) -> BTreeMap<u32, Vec<(u64, u64)>> {
        let mut spans: BTreeMap<u32, Vec<(u64, u64)>> = BTreeMap::new();
        for crossing in self.crossings.iter().filter(|crossing| crossing.previous.is_none()) {
            let span = (crossing.started_ps, crossing.busy_until_ps);
            spans.entry(crossing.link).or_default().push(span);
        }
        for spans in spans.values_mut() {
            spans.sort_unstable();
            spans.dedup_by(|later, earlier| {
                // The gap between two frames is shorter than 1/50 of the time of a large frame.
                let gap_ps = (later.1 - later.0) / 50;
                let is_next = later.0 <= earlier.1 + gap_ps;
                if is_next {
                    earlier.1 = earlier.1.max(later.1);
                }
                is_next
            });
        }
        spans
    }
}

/// The part of the path that is known so far.
struct Way {
    steps: Vec<Step>,
    at_ps: u64,
    messages: u64,
    /// For each link of a host with an engine, the time spans in which the host sent.
    spans: BTreeMap<u32, Vec<(u64, u64)>>,
}

#[derive(Clone, Copy)]
struct CriticalPlace {
    link: Option<u32>,
    host: Option<u32>,
    message: Option<u32>,
}

impl Way {
    /// Adds a step before the steps known so far. The new step starts at `from_ps`. Adds nothing if
    /// the new step would be empty.
    fn step(&mut self, kind: StepKind, from_ps: u64, place: CriticalPlace) {
        if from_ps < self.at_ps {
            let CriticalPlace { link, host, message } = place;
            self.steps.push(Step { kind, from_ps, until_ps: self.at_ps, link, host, message });
            self.at_ps = from_ps;
        }
    }

    fn back_through_work(&mut self, work: &Work) -> Cause {
        let place = CriticalPlace { link: None, host: Some(work.rank), message: None };
        let kind = if work.is_timer { StepKind::Timer } else { StepKind::Compute };
        self.step(kind, work.started_ps, place);
        self.step(StepKind::ProcessorWait, work.asked_ps, place);
        work.cause
    }

    /// Adds the time that a message spent in an engine before its last frame could be sent. The
    /// time in which the link sent other frames counts as serialisation, and the rest as engine
    /// time.
    fn back_through_engine(&mut self, handed_ps: u64, about: CriticalPlace) {
        let mut own = self.steps.iter().rev().take_while(|step| step.message == about.message);
        let link = own.find_map(|step| step.link);
        let spans = link.and_then(|link| self.spans.remove(&link)).unwrap_or_default();
        let end = spans.partition_point(|&(from_ps, _)| from_ps < self.at_ps);
        for &(from_ps, until_ps) in spans.iter().take(end).rev() {
            if until_ps <= handed_ps {
                break;
            }
            self.step(StepKind::Engine, until_ps, about);
            self.step(
                StepKind::Serialisation,
                from_ps.max(handed_ps),
                CriticalPlace { link, ..about },
            );
        }
        self.step(StepKind::Engine, handed_ps, about);
        self.spans.extend(link.map(|link| (link, spans)));
    }

    fn back_through_link(
        &mut self,
        crossing: &Crossing,
        message: &MessageRecord,
        (index, has_windows): (u32, bool),
    ) {
        let place = CriticalPlace { link: Some(crossing.link), host: None, message: Some(index) };
        self.step(StepKind::Latency, crossing.arrived_ps, place);
        self.step(StepKind::Latency, crossing.sent_ps.max(crossing.started_ps), place);
        self.step(StepKind::Serialisation, crossing.started_ps, place);
        if crossing.previous.is_none() && !has_windows {
            // During this time, the link sent earlier packets of the message.
            self.step(StepKind::Serialisation, message.started_ps, place);
        }
        self.step(StepKind::LinkWait, crossing.ready_ps, place);
    }
}
