//! How hosts learn of messages, and what frames cost their processors.

use std::collections::VecDeque;

/// What frames cost processors, and how a host learns of a message: by looking, which costs nothing
/// and is at once, or by an interrupt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReceivingConfiguration {
    /// What a frame carries at most, in bytes: a message is so many frames to the processor.
    pub frame_bytes: u32,
    /// Processor time for each frame of a message sent, in picoseconds; 0 if the card cuts messages
    /// into frames.
    pub segment_ps: u64,
    /// The same for each frame received, in picoseconds.
    pub reassemble_ps: u64,
    /// How hosts are interrupted; `None` if they poll.
    pub interrupts: Option<InterruptConfiguration>,
}

/// How a host is interrupted. While its processor is busy with what an interrupt brought, it takes
/// what arrives meanwhile without a further one.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InterruptConfiguration {
    /// From raising it to the first instruction of its handler, in picoseconds.
    pub latency_ps: u64,
    /// Processor time of an interrupt without what it brings, in picoseconds.
    pub cost_ps: u64,
    /// It is raised when messages of so many frames are complete; 0 and 1 for each.
    pub coalesce_frames: u32,
    /// But no later than this after the first of them, in picoseconds; 0 for at once.
    pub coalesce_ps: u64,
}

impl Default for ReceivingConfiguration {
    /// Frames cost nothing, and hosts poll.
    fn default() -> Self {
        Self { frame_bytes: 1500, segment_ps: 0, reassemble_ps: 0, interrupts: None }
    }
}

impl ReceivingConfiguration {
    /// Returns the number of frames of a message of so many bytes.
    pub const fn frames(&self, bytes: u32) -> u32 {
        let frame = if self.frame_bytes == 0 { 1 } else { self.frame_bytes };
        let frames = bytes.div_ceil(frame);
        if frames == 0 { 1 } else { frames }
    }

    /// Cost of cutting a message into frames, in picoseconds.
    pub(super) const fn segmentation_ps(&self, bytes: u32) -> u64 {
        if self.segment_ps == 0 { 0 } else { self.segment_ps * self.frames(bytes) as u64 }
    }

    /// Cost of putting a message together, in picoseconds.
    pub(super) const fn reassembly_ps(&self, bytes: u32) -> u64 {
        if self.reassemble_ps == 0 { 0 } else { self.reassemble_ps * self.frames(bytes) as u64 }
    }
}

/// The interrupts of all hosts.
#[derive(Clone, Debug)]
pub(super) struct Interrupts {
    configuration: InterruptConfiguration,
    hosts: Vec<ReceivingHost>,
}

#[derive(Clone, Debug)]
struct ReceivingHost {
    /// Messages that are complete and that the processor does not know of.
    messages: VecDeque<u32>,
    frames: u32,
    /// When the handler begins; [`NEVER`] if none is to.
    due_ps: u64,
    /// Until when the processor is busy with what the last interrupt brought.
    busy_ps: u64,
}

/// What becomes of a message that is complete.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Noticed {
    /// The processor takes it after what it does.
    Now,
    /// An interrupt is to be handled at this time, unless another one was before.
    At(u64),
    /// An interrupt that is due already brings it.
    Later,
}

impl Interrupts {
    pub(super) fn new(configuration: InterruptConfiguration, ranks: usize) -> Self {
        let host =
            ReceivingHost { messages: VecDeque::new(), frames: 0, due_ps: NEVER, busy_ps: 0 };
        Self { configuration, hosts: vec![host; ranks] }
    }

    /// A message of so many frames is complete at the host of a rank.
    pub(super) fn on_message(
        &mut self,
        rank: u32,
        message: u32,
        frames: u32,
        now_ps: u64,
    ) -> Noticed {
        let InterruptConfiguration { latency_ps, coalesce_frames, coalesce_ps, .. } =
            self.configuration;
        let host = &mut self.hosts[rank as usize];
        if now_ps < host.busy_ps {
            return Noticed::Now;
        }
        host.messages.push_back(message);
        host.frames = host.frames.saturating_add(frames);
        let wait_ps = if host.frames >= coalesce_frames { 0 } else { coalesce_ps };
        let due_ps = now_ps + wait_ps + latency_ps;
        if due_ps >= host.due_ps {
            return Noticed::Later;
        }
        host.due_ps = due_ps;
        Noticed::At(due_ps)
    }

    /// The handler of a rank's host begins: its cost, and the messages it finds; nothing if it was
    /// moved to an earlier time.
    pub(super) fn take(&mut self, rank: u32, now_ps: u64) -> Option<(u64, VecDeque<u32>)> {
        let host = &mut self.hosts[rank as usize];
        if host.due_ps != now_ps {
            return None;
        }
        host.due_ps = NEVER;
        host.frames = 0;
        Some((self.configuration.cost_ps, std::mem::take(&mut host.messages)))
    }

    /// The processor will be done at a time with what the interrupt brought.
    pub(super) fn on_handled(&mut self, rank: u32, free_ps: u64) {
        self.hosts[rank as usize].busy_ps = free_ps;
    }
}

const NEVER: u64 = u64::MAX;

#[cfg(test)]
mod tests {
    use super::*;

    fn interrupts(coalesce_frames: u32) -> Interrupts {
        let configuration = InterruptConfiguration {
            latency_ps: 10,
            cost_ps: 5,
            coalesce_frames,
            coalesce_ps: 1_000,
        };
        Interrupts::new(configuration, 1)
    }

    #[test]
    fn an_interrupt_waits_for_frames_or_for_time() {
        let mut interrupts = interrupts(3);
        assert_eq!(interrupts.on_message(0, 7, 1, 100), Noticed::At(1_110));
        assert_eq!(interrupts.on_message(0, 8, 1, 200), Noticed::Later);
        assert_eq!(interrupts.on_message(0, 9, 1, 300), Noticed::At(310));
        let (cost_ps, messages) = interrupts.take(0, 310).expect("it is due");
        assert_eq!((cost_ps, messages), (5, VecDeque::from([7, 8, 9])));
        assert_eq!(interrupts.take(0, 1_110), None);
    }

    #[test]
    fn what_arrives_while_the_handler_works_needs_no_interrupt() {
        let mut interrupts = interrupts(1);
        assert_eq!(interrupts.on_message(0, 1, 1, 100), Noticed::At(110));
        interrupts.take(0, 110).expect("it is due");
        interrupts.on_handled(0, 500);
        assert_eq!(interrupts.on_message(0, 2, 1, 400), Noticed::Now);
        assert_eq!(interrupts.on_message(0, 3, 1, 600), Noticed::At(610));
    }

    #[test]
    fn frames_are_counted_from_bytes() {
        let receiving = ReceivingConfiguration { segment_ps: 3, ..Default::default() };
        assert_eq!([0, 1, 1_500, 1_501].map(|bytes| receiving.frames(bytes)), [1, 1, 1, 2]);
        assert_eq!((receiving.segmentation_ps(3_000), receiving.reassembly_ps(3_000)), (6, 0));
    }
}
