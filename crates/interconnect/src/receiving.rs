//! How hosts are notified of messages, and the processor time that frames take.

use std::collections::VecDeque;

/// Processor time of frames, and how a host is notified of a message. A host that polls receives
/// the notification immediately and without cost. Otherwise the host is notified by an interrupt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReceivingConfiguration {
    /// Maximum payload of a frame, in bytes. This length determines how many frames a message has.
    pub frame_bytes: u32,
    /// Processor time for each frame sent, in picoseconds; 0 if the card divides messages into
    /// frames.
    pub segment_ps: u64,
    /// Processor time for each frame received, in picoseconds.
    pub reassemble_ps: u64,
    /// Settings of interrupts; `None` if hosts poll.
    pub interrupts: Option<InterruptConfiguration>,
}

/// Settings of a host's interrupts. While the processor handles the messages of an interrupt, the
/// host accepts further messages without another interrupt.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct InterruptConfiguration {
    /// Time from raising the interrupt to the first instruction of its handler, in picoseconds.
    pub latency_ps: u64,
    /// Processor time of an interrupt itself, without the messages that it delivers, in
    /// picoseconds.
    pub cost_ps: u64,
    /// Number of frames that cause an interrupt. The host raises the interrupt when its pending
    /// complete messages together have at least this number of frames. 0 and 1 mean an interrupt
    /// after each message.
    pub coalesce_frames: u32,
    /// Maximum time from the first pending message to the interrupt, in picoseconds; 0 means no
    /// delay.
    pub coalesce_ps: u64,
}

impl Default for ReceivingConfiguration {
    /// Returns settings in which frames have no costs and hosts poll.
    fn default() -> Self {
        Self { frame_bytes: 1500, segment_ps: 0, reassemble_ps: 0, interrupts: None }
    }
}

impl ReceivingConfiguration {
    /// Returns the number of frames of a message of `bytes` bytes.
    pub const fn frames(&self, bytes: u32) -> u32 {
        let frame = if self.frame_bytes == 0 { 1 } else { self.frame_bytes };
        let frames = bytes.div_ceil(frame);
        if frames == 0 { 1 } else { frames }
    }

    /// Returns the processor time to divide a message into frames, in picoseconds.
    pub(super) const fn segmentation_ps(&self, bytes: u32) -> u64 {
        if self.segment_ps == 0 { 0 } else { self.segment_ps * self.frames(bytes) as u64 }
    }

    /// Returns the processor time to reassemble a message, in picoseconds.
    pub(super) const fn reassembly_ps(&self, bytes: u32) -> u64 {
        if self.reassemble_ps == 0 { 0 } else { self.reassemble_ps * self.frames(bytes) as u64 }
    }
}

/// Interrupts of all hosts.
#[derive(Clone, Debug)]
pub(super) struct Interrupts {
    configuration: InterruptConfiguration,
    hosts: Vec<ReceivingHost>,
}

#[derive(Clone, Debug)]
struct ReceivingHost {
    /// Complete messages of which the host's processor has not been notified yet.
    messages: VecDeque<u32>,
    frames: u32,
    /// Time when the interrupt handler starts, in picoseconds; [`NEVER`] if no interrupt is
    /// scheduled.
    due_ps: u64,
    /// Time when the processor has handled the messages of the last interrupt, in picoseconds.
    busy_ps: u64,
}

/// How the processor is notified of a complete message.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Noticed {
    /// The processor handles the message after its current work, without an interrupt.
    Now,
    /// The caller must schedule an interrupt for this time. If another interrupt happens earlier,
    /// that interrupt delivers the message.
    At(u64),
    /// An interrupt that is already scheduled delivers the message.
    Later,
}

impl Interrupts {
    pub(super) fn new(configuration: InterruptConfiguration, ranks: usize) -> Self {
        let host =
            ReceivingHost { messages: VecDeque::new(), frames: 0, due_ps: NEVER, busy_ps: 0 };
        Self { configuration, hosts: vec![host; ranks] }
    }

    /// Handles a complete message of `frames` frames at the host of a rank.
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

    /// Starts the interrupt handler of a rank's host. Returns the cost of the interrupt and the
    /// messages that it delivers. Returns `None` if the host's interrupt is not scheduled for this
    /// time.
    pub(super) fn take(&mut self, rank: u32, now_ps: u64) -> Option<(u64, VecDeque<u32>)> {
        let host = &mut self.hosts[rank as usize];
        if host.due_ps != now_ps {
            return None;
        }
        host.due_ps = NEVER;
        host.frames = 0;
        Some((self.configuration.cost_ps, std::mem::take(&mut host.messages)))
    }

    /// Records the time when the processor will have handled the messages of the interrupt.
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
    fn an_interrupt_waits_for_frames_or_a_timeout() {
        let mut interrupts = interrupts(3);
        assert_eq!(interrupts.on_message(0, 7, 1, 100), Noticed::At(1_110));
        assert_eq!(interrupts.on_message(0, 8, 1, 200), Noticed::Later);
        assert_eq!(interrupts.on_message(0, 9, 1, 300), Noticed::At(310));
        let (cost_ps, messages) = interrupts.take(0, 310).expect("it is due");
        assert_eq!((cost_ps, messages), (5, VecDeque::from([7, 8, 9])));
        assert_eq!(interrupts.take(0, 1_110), None);
    }

    #[test]
    fn frames_that_arrive_during_the_handler_need_no_interrupt() {
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
