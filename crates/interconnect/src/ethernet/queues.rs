//! Stored queues, and the decision of a switch whether its buffer stores a frame.

use std::collections::VecDeque;

use super::super::statistics::mix;
use super::counters::Wait;
use super::{CLASSES_MAX, Ethernet, EthernetConfiguration, NOWHERE, PortCounters};

/// The queues of all ports, and the buffers of switches.
#[derive(Clone, Debug)]
pub(super) struct Queues {
    pub(super) configuration: EthernetConfiguration,
    pub(super) classes: usize,
    pub(super) outputs: Vec<Output>,
    /// For each port, the frames that are still within the latency of the switch. Empty before the
    /// first such frame.
    coming: Vec<Coming>,
    /// Number of used bytes in the shared buffer of each switch.
    used_bytes: Vec<u64>,
    /// For each port and class, the frames that arrived on the port's link and have not left the
    /// switch.
    inputs: Vec<Input>,
    /// Buffer of each port for frames that arrive after a pause was sent, in bytes. Empty if no
    /// class is lossless.
    headroom_bytes: Vec<u64>,
}

/// The queues of a link.
#[derive(Clone, Debug)]
pub(super) struct Output {
    /// One queue per class; class 0 is served first.
    pub(super) waiting: Vec<ClassQueue>,
    /// Number of bytes that wait or are being sent.
    pub(super) bytes: u64,
    pub(super) sending: Option<Sending>,
    /// Bit mask of the paused classes, bit n for class n.
    pub(super) paused: u8,
    /// Time of the scheduled event that serves the output; [`u64::MAX`] if none is scheduled.
    pub(super) serve_ps: u64,
    /// Time when all pause frames that this output sends will have left.
    pub(super) pause_free_ps: u64,
    /// Time until which paused time is already counted.
    paused_since_ps: u64,
    counters: Counters,
}

/// Frames that will join the queue of a port after the latency of the switch.
#[derive(Clone, Debug, Default)]
struct Coming {
    /// Time and frame, ordered by time. Frames with equal times are in the order of arrival.
    frames: VecDeque<(u64, u32)>,
    bytes: u64,
}

/// Counters of an output port.
#[derive(Clone, Copy, Debug, Default)]
struct Counters {
    marked: u64,
    pauses: u64,
    paused_ps: u64,
    bytes_max: u64,
}

/// Frames of one class that wait for a link.
#[derive(Clone, Debug, Default)]
pub(super) struct ClassQueue {
    pub(super) frames: VecDeque<Waiting>,
    pub(super) bytes: u64,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) index: u32,
    pub(super) pool: Pool,
    pub(super) ready_ps: u64,
}

/// A frame that is being sent; it still occupies the buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sending {
    pub(super) bytes: u32,
    pub(super) input: u32,
    pub(super) class: u8,
    pub(super) pool: Pool,
}

/// The buffer that stores a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Pool {
    /// The buffer of a host, which is unlimited.
    Host,
    /// The shared buffer of a switch.
    Shared,
    /// The headroom, which is reserved for one input and class.
    Headroom,
}

/// Frames of one class that arrived on one link and have not left the switch.
#[derive(Clone, Copy, Debug, Default)]
struct Input {
    shared_bytes: u64,
    headroom_bytes: u64,
    headroom_bytes_max: u64,
    is_paused: bool,
}

/// Decision of a switch whether it stores a frame.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Admission {
    /// The switch stores the frame.
    Stored(Pool),
    /// The switch stores the frame, and pauses the sender.
    StoredAndPause(Pool),
    /// The switch drops the frame.
    Dropped,
}

impl Queues {
    pub(super) fn new(ethernet: &Ethernet) -> Self {
        let configuration = ethernet.configuration;
        let queues = configuration.queues;
        let classes = usize::from(queues.classes.clamp(1, CLASSES_MAX));
        let output = Output {
            waiting: vec![ClassQueue::default(); classes],
            bytes: 0,
            sending: None,
            paused: 0,
            serve_ps: u64::MAX,
            pause_free_ps: 0,
            paused_since_ps: 0,
            counters: Counters::default(),
        };
        let inputs = if queues.lossless == 0 { 0 } else { ethernet.ports.len() * classes };
        let (_, slowest) = ethernet.byte_time_bounds();
        let headroom = |port: u32| match queues.headroom_bytes {
            0 => {
                let byte_times = [ethernet.byte_time(port), slowest].map(u64::from);
                let propagation_ps = ethernet.propagation_ps(port);
                headroom_bytes(&configuration, classes as u64, propagation_ps, byte_times)
            }
            bytes => bytes,
        };
        let ports = if queues.lossless == 0 { 0 } else { ethernet.ports.len() as u32 };
        Self {
            configuration,
            classes,
            outputs: vec![output; ethernet.ports.len()],
            coming: Vec::new(),
            used_bytes: vec![0; ethernet.engines_ps.len()],
            inputs: vec![Input::default(); inputs],
            headroom_bytes: (0..ports).map(headroom).collect(),
        }
    }

    /// Returns the number of bytes that wait for a link or will join its queue. Does not count the
    /// frame being sent.
    pub(super) fn waiting_bytes(&self, port: u32) -> u64 {
        self.stored_bytes(port) + self.coming.get(port as usize).map_or(0, |coming| coming.bytes)
    }

    /// Records that a frame will join the queue of a port at `ready_ps`.
    pub(super) fn expect(&mut self, port: u32, ready_ps: u64, (index, bytes): (u32, u32)) {
        if self.coming.is_empty() {
            self.coming.resize(self.outputs.len(), Coming::default());
        }
        let coming = &mut self.coming[port as usize];
        coming.bytes += u64::from(bytes);
        // The new frame nearly always belongs at the end.
        let place = coming.frames.iter().rposition(|other| other.0 <= ready_ps);
        coming.frames.insert(place.map_or(0, |place| place + 1), (ready_ps, index));
    }

    /// Removes and returns the frame that joins the queue of a port next.
    pub(super) fn expected(&mut self, port: u32) -> Option<u32> {
        self.coming[port as usize].frames.pop_front().map(|(_, index)| index)
    }

    /// Subtracts the bytes of a frame from the bytes that will join a port's queue. The caller has
    /// queued or dropped the frame.
    pub(super) fn forget(&mut self, port: u32, bytes: u32) {
        self.coming[port as usize].bytes -= u64::from(bytes);
    }

    /// Returns the number of bytes that wait for a link. Does not count the frame being sent.
    pub(super) fn stored_bytes(&self, port: u32) -> u64 {
        let output = &self.outputs[port as usize];
        output.bytes - output.sending.map_or(0, |sending| u64::from(sending.bytes))
    }

    /// Returns whether a class is lossless. A switch does not drop frames of such a class, but
    /// pauses the node that sends them.
    pub(super) const fn is_lossless(&self, class: u8) -> bool {
        self.configuration.queues.lossless >> class & 1 == 1
    }

    /// Returns how long a pause frame occupies a link, in picoseconds. `byte_time` is the time of a
    /// byte in 1/256 ps.
    pub(super) const fn pause_ps(byte_time: u64) -> u64 {
        (PAUSE_BYTES * byte_time) >> 8
    }

    /// Decides whether a switch stores a frame of `bytes` bytes, and reserves the buffer if it
    /// does. `switch` is the index of the switch in tables that contain all rails. The frame
    /// arrived at port `input` and leaves through port `output`; `buffer_bytes` is the buffer limit
    /// of the output.
    pub(super) fn admit(
        &mut self,
        switch: u32,
        (input, output): (u32, u32),
        (class, bytes): (u8, u64),
        buffer_bytes: u64,
    ) -> Admission {
        let queues = self.configuration.queues;
        let is_lossless = self.is_lossless(class);
        let used = &mut self.used_bytes[switch as usize];
        let free = match queues.shared_bytes {
            0 => u64::MAX / 1024,
            shared => shared.saturating_sub(*used),
        };
        let threshold = free.saturating_mul(u64::from(queues.alpha_percent)) / 100;
        if !is_lossless {
            let output = &self.outputs[output as usize];
            let queue = output.waiting[usize::from(class)].bytes;
            let is_full = buffer_bytes > 0 && output.bytes + bytes > buffer_bytes;
            if is_full || bytes > free || queue + bytes > threshold {
                return Admission::Dropped;
            }
            *used += bytes;
            return Admission::Stored(Pool::Shared);
        }
        let headroom_bytes = self.headroom_bytes[input as usize];
        let input = &mut self.inputs[input as usize * self.classes + usize::from(class)];
        if bytes <= free && input.shared_bytes + bytes <= threshold.min(queues.pause_bytes) {
            *used += bytes;
            input.shared_bytes += bytes;
            return Admission::Stored(Pool::Shared);
        }
        if input.headroom_bytes + bytes > headroom_bytes {
            return Admission::Dropped;
        }
        input.headroom_bytes += bytes;
        input.headroom_bytes_max = input.headroom_bytes_max.max(input.headroom_bytes);
        if std::mem::replace(&mut input.is_paused, true) {
            return Admission::Stored(Pool::Headroom);
        }
        Admission::StoredAndPause(Pool::Headroom)
    }

    /// Releases the buffer of a frame that has left its switch. Returns whether the paused sender
    /// may resume.
    pub(super) fn release(&mut self, switch: u32, sent: Sending) -> bool {
        let bytes = u64::from(sent.bytes);
        if sent.pool == Pool::Shared {
            self.used_bytes[switch as usize] -= bytes;
        }
        let queues = &self.configuration.queues;
        if sent.pool == Pool::Host || queues.lossless >> sent.class & 1 == 0 {
            return false;
        }
        let input = &mut self.inputs[sent.input as usize * self.classes + usize::from(sent.class)];
        match sent.pool {
            Pool::Headroom => input.headroom_bytes -= bytes,
            _ => input.shared_bytes -= bytes,
        }
        // The sender may resume only when all of the headroom is free, because the next pause needs
        // it.
        let resume_bytes = queues.resume_bytes.min(queues.pause_bytes);
        if input.is_paused && input.headroom_bytes == 0 && input.shared_bytes <= resume_bytes {
            input.is_paused = false;
            return true;
        }
        false
    }

    /// Decides from the length of a port's queue whether to mark a frame. `number` identifies the
    /// frame.
    pub(super) fn marks(&mut self, port: u32, number: u64) -> bool {
        let queues = &self.configuration.queues;
        let output = &mut self.outputs[port as usize];
        let bytes = output.bytes;
        if queues.ecn_max_bytes == 0 || bytes <= queues.ecn_min_bytes {
            return false;
        }
        let is_marked = if bytes > queues.ecn_max_bytes {
            true
        } else {
            let slope = queues.ecn_max_bytes - queues.ecn_min_bytes;
            let share = (bytes - queues.ecn_min_bytes) * u64::from(queues.ecn_max_percent);
            let salt = self.configuration.salt;
            let drawn = mix(mix(salt ^ u64::from(port), 4), number) >> 32;
            // True if `drawn` / 2^32 is less than `share` / (100 × `slope`). The comparison does
            // not round.
            u128::from(drawn) * u128::from(slope) * 100 < u128::from(share) << 32
        };
        output.counters.marked += u64::from(is_marked);
        is_marked
    }

    /// Adds a frame to the queue of its class, after the switch has decided to store the frame.
    pub(super) fn store(&mut self, port: u32, class: u8, bytes: u32, waiting: Waiting) {
        let output = &mut self.outputs[port as usize];
        output.bytes += u64::from(bytes);
        output.counters.bytes_max = output.counters.bytes_max.max(output.bytes);
        let queue = &mut output.waiting[usize::from(class)];
        queue.bytes += u64::from(bytes);
        queue.frames.push_back(waiting);
    }

    /// Pauses or resumes a class of a port.
    pub(super) fn set_paused(&mut self, port: u32, class: u8, is_paused: bool, now_ps: u64) {
        let output = &mut self.outputs[port as usize];
        let paused = u64::from(output.paused.count_ones());
        output.counters.paused_ps += paused * (now_ps - output.paused_since_ps);
        output.paused_since_ps = now_ps;
        if is_paused {
            output.counters.pauses += 1;
            output.paused |= 1 << class;
        } else {
            output.paused &= !(1 << class);
        }
    }

    pub(super) fn counters(&self, port: u32) -> PortCounters {
        let Counters { marked, pauses, paused_ps, bytes_max } =
            self.outputs[port as usize].counters;
        let start = port as usize * self.classes;
        let inputs = self.inputs.get(start..start + self.classes).unwrap_or_default();
        let headroom = inputs.iter().map(|input| input.headroom_bytes_max).max();
        PortCounters {
            name: String::new(),
            dropped: 0,
            marked,
            pauses,
            paused_ps,
            queue_bytes_max: bytes_max,
            headroom_bytes_max: headroom.unwrap_or(0),
        }
    }

    /// Adds the counters of another part of a divided network. Only one of the parts sends frames
    /// through a port.
    pub(super) fn merge(&mut self, part: &Self) {
        for (output, other) in self.outputs.iter_mut().zip(&part.outputs) {
            let (counters, other) = (&mut output.counters, &other.counters);
            counters.marked += other.marked;
            counters.pauses += other.pauses;
            counters.paused_ps += other.paused_ps;
            counters.bytes_max = counters.bytes_max.max(other.bytes_max);
        }
        for (input, other) in self.inputs.iter_mut().zip(&part.inputs) {
            input.headroom_bytes_max = input.headroom_bytes_max.max(other.headroom_bytes_max);
        }
    }
}

impl Ethernet {
    /// Returns, for each paused class of a link, from which links the waiting frames came.
    pub(in super::super) fn waits(&self) -> Vec<Wait> {
        let Some(queues) = &self.queues else { return Vec::new() };
        let mut waits: Vec<Wait> = Vec::new();
        for (port, output) in (0..).zip(&queues.outputs) {
            let paused = (0..queues.classes as u8).filter(|class| output.paused >> class & 1 == 1);
            for class in paused {
                let mut inputs: Vec<u32> = output.waiting[usize::from(class)]
                    .frames
                    .iter()
                    .map(|waiting| self.states[waiting.index as usize].input)
                    .filter(|&input| input != NOWHERE)
                    .collect();
                inputs.sort_unstable();
                for group in inputs.chunk_by(|a, b| a == b) {
                    waits.push(((group[0], class), (port, class), group.len() as u32));
                }
            }
        }
        waits
    }
}

/// Returns how many bytes can still arrive after the decision to pause, in bytes. Bytes arrive
/// during these steps:
///
/// * The pause frame waits for the frame being sent in its direction, and for the pauses of the
///   other classes.
/// * The pause frame crosses the cable, and the sender has just started another frame.
/// * The bytes then on the cable arrive, and so do frames that jitter delays.
///
/// One more frame is added, because a switch that cuts through counts a frame from its header. The
/// byte times are those of this link and of the slowest link, in 1/256 ps.
fn headroom_bytes(
    configuration: &EthernetConfiguration,
    classes: u64,
    propagation_ps: u64,
    [byte_time, slowest]: [u64; 2],
) -> u64 {
    let frame = u64::from(configuration.frame_bytes_max() + configuration.gap_bytes);
    let cable = ((2 * propagation_ps) << 8).div_ceil(byte_time.max(1));
    let late = frame * u64::from(configuration.jitter_percent) * slowest;
    let late = late.div_ceil(100 * byte_time.max(1));
    4 * frame + (2 * classes + 1) * PAUSE_BYTES + cable + late
}

/// Length of a pause frame on the wire: 64 bytes, plus preamble and gap.
const PAUSE_BYTES: u64 = 84;

#[cfg(test)]
mod tests {
    use super::super::super::routing::{RouteTable, Routing};
    use super::super::super::topology::Topology;
    use super::super::{ClassBy, QueueConfiguration};
    use super::*;

    fn queues(queues: QueueConfiguration) -> Queues {
        let topology = Topology::star(4).expect("a star");
        let routes = RouteTable::new(&topology, Routing::Shortest).expect("routes");
        let configuration =
            EthernetConfiguration { queues, ..EthernetConfiguration::with_rate(1_000_000_000) };
        Queues::new(&Ethernet::new(&topology, routes, configuration))
    }

    #[test]
    fn a_queue_may_use_its_share_of_the_free_buffer() {
        let configuration = QueueConfiguration {
            shared_bytes: 10_000,
            alpha_percent: 100,
            classes: 2,
            class_by: ClassBy::Tag,
            ..QueueConfiguration::NONE
        };
        let mut queues = queues(configuration);
        let mut admitted = 0;
        // With α = 1, one queue gets half of the buffer, because its length may not exceed the free
        // space.
        while queues.admit(0, (0, 3), (0, 500), 0) == Admission::Stored(Pool::Shared) {
            queues.outputs[3].waiting[0].bytes += 500;
            admitted += 500;
        }
        assert_eq!(admitted, 5_000);
        assert_eq!(queues.admit(0, (0, 5), (1, 500), 0), Admission::Stored(Pool::Shared));
    }

    #[test]
    fn a_lossless_class_pauses_once_and_resumes_when_its_headroom_is_empty() {
        let configuration = QueueConfiguration {
            lossless: 1,
            pause_bytes: 1_000,
            resume_bytes: 500,
            headroom_bytes: 1_000,
            ..QueueConfiguration::NONE
        };
        let mut queues = queues(configuration);
        let mut admit = || queues.admit(0, (0, 3), (0, 500), 0);
        assert_eq!([admit(), admit()], [Admission::Stored(Pool::Shared); 2]);
        assert_eq!(admit(), Admission::StoredAndPause(Pool::Headroom));
        assert_eq!(admit(), Admission::Stored(Pool::Headroom));
        assert_eq!(admit(), Admission::Dropped);
        let sent = |pool| Sending { bytes: 500, input: 0, class: 0, pool };
        let order = [Pool::Shared, Pool::Shared, Pool::Headroom, Pool::Headroom];
        let resumed = order.map(|pool| queues.release(0, sent(pool)));
        assert_eq!(resumed, [false, false, false, true]);
    }

    #[test]
    fn the_marking_probability_follows_the_slope() {
        let configuration = QueueConfiguration {
            ecn_min_bytes: 1_000,
            ecn_max_bytes: 3_000,
            ecn_max_percent: 50,
            ..QueueConfiguration::NONE
        };
        let mut queues = queues(configuration);
        let mut marked = |bytes| {
            queues.outputs[1].bytes = bytes;
            (0..10_000).filter(|&number| queues.marks(1, number)).count()
        };
        assert_eq!([marked(0), marked(1_000), marked(3_001)], [0, 0, 10_000]);
        let half = marked(2_000);
        assert!((2_300..2_700).contains(&half), "{half}");
    }
}
