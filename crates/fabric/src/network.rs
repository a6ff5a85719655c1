//! Ports, the segments that connect them, and the frames in flight between them.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};

use delivery::{Evidence, Instant, LinkCaps, LinkEvent};
use wire_edge::PeerAddr;

use crate::channel::{Admission, Channel};
use crate::channel::{Corruption, Faults, LinkModel};
use crate::queue::EventQueue;
use crate::random::Random;
use crate::trace::{Kind, Trace, digest};
use crate::watch::Watch;

/// A port, which represents one link of one host in the network.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PortId(pub u16);

/// The kind of connection between the ports of a segment.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Segment {
    /// Cables: a frame goes directly from the sender's port to the receiver's port.
    Direct,
    /// A store-and-forward switch with an output queue for each port. The cable from the sender to
    /// the switch has the faults and delays of the sending port. The cable from the switch to the
    /// receiver has the rate, queue and mark threshold of the receiving port.
    Switched {
        /// Time from the arrival of a frame's last bit until the frame enters the output queue, in
        /// nanoseconds.
        latency_ns: u64,
    },
}

/// A scheduled event of the network.
#[derive(Clone, Copy, Debug)]
pub struct NetworkEvent {
    step: Step,
    frame: FrameSlot,
}

/// A frame that has reached a port. The caller must return the buffer with [`Network::recycle`].
#[derive(Debug)]
pub struct Arrival {
    /// The port that the frame reached.
    pub port: PortId,
    /// The source address that the frame carries.
    pub from: PeerAddr,
    /// The bytes of the frame of the edge protocol.
    pub bytes: Vec<u8>,
    /// Whether a queue marked the frame (ECN).
    pub marked: bool,
    /// Number of frames that all hosts together had sent before this frame.
    pub ordinal: u64,
}

/// Result of passing a frame to a driver.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum SendOutcome {
    /// The driver accepted the frame. The frame can still get lost.
    Accepted,
    /// The driver accepts no frames until this time.
    Refused(Instant),
    /// The driver accepts no frames for this peer until this time. The driver still accepts frames
    /// for other peers.
    RefusedForPeer(Instant),
}

/// A change of a link that must be reported to the host of a port.
#[derive(Clone, Copy, Debug)]
pub struct Notice {
    /// The port.
    pub port: PortId,
    /// The change.
    pub event: LinkEvent,
}

/// Numbers of frames, by what happened to them.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Counters {
    /// Frames accepted from hosts.
    pub sent: u64,
    /// Bytes of the accepted frames, without overhead.
    pub sent_bytes: u64,
    /// Frames that reached a host.
    pub arrived: u64,
    /// Frames dropped because a queue was full.
    pub queue_full: u64,
    /// Frames lost at random.
    pub lost: u64,
    /// Frames dropped because of a cut or a link that was down.
    pub cut: u64,
    /// Frames dropped because they were too large for the path.
    pub too_big: u64,
    /// Frames with flipped bits.
    pub corrupted: u64,
    /// Duplicates of frames.
    pub duplicated: u64,
    /// Frames delayed so much that later frames overtake them.
    pub reordered: u64,
    /// Old frames that arrived again (replay).
    pub replayed: u64,
    /// Frames that a queue marked (ECN).
    pub marked: u64,
    /// Frames to an address that no port has.
    pub unreachable: u64,
}

/// All ports, all frames in flight, and all faults.
///
/// The caller owns the event queue, and lends it to the methods that schedule events. When a
/// [`NetworkEvent`] is due, the caller passes the event to [`Network::handle`]. Frames are copies
/// of the sender's bytes, in reused buffers.
#[derive(Debug)]
pub struct Network {
    seed: u64,
    ports: Vec<Port>,
    segments: Vec<Segment>,
    by_address: BTreeMap<PeerAddr, PortId>,
    frames: Vec<Frame>,
    free_slots: Vec<FrameSlot>,
    free_buffers: Vec<Vec<u8>>,
    notices: VecDeque<Notice>,
    counters: Counters,
    /// Observer of the frames; `None` if no strangers (attackers) take part in the run.
    watch: Option<Box<Watch>>,
}

impl Network {
    /// Creates a network without ports. `seed` determines its random faults.
    pub const fn new(seed: u64) -> Self {
        Self {
            seed,
            ports: Vec::new(),
            segments: Vec::new(),
            by_address: BTreeMap::new(),
            frames: Vec::new(),
            free_slots: Vec::new(),
            free_buffers: Vec::new(),
            notices: VecDeque::new(),
            counters: Counters {
                sent: 0,
                sent_bytes: 0,
                arrived: 0,
                queue_full: 0,
                lost: 0,
                cut: 0,
                too_big: 0,
                corrupted: 0,
                duplicated: 0,
                reordered: 0,
                replayed: 0,
                marked: 0,
                unreachable: 0,
            },
            watch: None,
        }
    }

    /// Adds a segment and returns its number.
    pub fn add_segment(&mut self, segment: Segment) -> usize {
        self.segments.push(segment);
        self.segments.len() - 1
    }

    /// Adds a port with this address to a segment. `model` applies to frames from the host and,
    /// behind a switch, also to frames to the host.
    ///
    /// # Panics
    /// Panics if the segment does not exist, the address is in use, or [`LinkModel::check`] rejects
    /// the model.
    pub fn add_port(&mut self, segment: usize, address: PeerAddr, model: LinkModel) -> PortId {
        assert!(segment < self.segments.len(), "segment {segment} exists");
        let port = PortId(self.ports.len() as u16);
        let taken = self.by_address.insert(address, port);
        assert!(taken.is_none(), "address {address} is free");
        let stream = |direction| Random::stream(self.seed, u64::from(port.0) << 8 | direction);
        self.ports.push(Port {
            address,
            segment,
            up: true,
            sent: 0,
            outward: Channel::new(model, stream(1)),
            inward: Channel::new(model, stream(2)),
            recorded: Vec::new(),
            path_bytes_max: u16::MAX,
            mute: None,
            full_for: Vec::new(),
            full_until: Instant(0),
            accepted_bytes_max: u16::MAX,
        });
        port
    }

    /// Passes a frame to the driver of `port`.
    pub fn send<E: From<NetworkEvent>>(
        &mut self,
        queue: &mut EventQueue<E>,
        trace: &mut Trace,
        port: PortId,
        to: PeerAddr,
        pieces: &[&[u8]],
    ) -> SendOutcome {
        let now = queue.now();
        let Some(sender) = self.ports.get_mut(usize::from(port.0)) else {
            return SendOutcome::Accepted;
        };
        if sender.up
            && let Some(ready_at) = sender.refuses_until(now)
        {
            trace.record(now, Kind::Refused, u32::from(port.0), ready_at.0);
            return SendOutcome::Refused(ready_at);
        }
        if let Some(ready_at) = sender.refuses_peer_until(now, to) {
            trace.record(now, Kind::Refused, u32::from(port.0), ready_at.0);
            return SendOutcome::RefusedForPeer(ready_at);
        }
        let mut bytes = self.free_buffers.pop().unwrap_or_default();
        bytes.clear();
        for piece in pieces {
            bytes.extend_from_slice(piece);
        }
        sender.sent += 1;
        self.counters.sent += 1;
        self.counters.sent_bytes += bytes.len() as u64;
        trace.record(now, Kind::Sent, u32::from(port.0), digest(&bytes));
        let target = self.target(port, to);
        if let Some(watch) = &mut self.watch {
            watch.on_sent(port, to, target, &bytes);
        }
        let Some(target) = target else {
            self.counters.unreachable += 1;
            trace.record(now, Kind::Unreachable, u32::from(port.0), digest(&to.0));
            self.free_buffers.push(bytes);
            return SendOutcome::Accepted;
        };
        self.transmit(queue, trace, port, target, bytes);
        SendOutcome::Accepted
    }

    /// Handles an event that is due. Returns the arrival if a frame has reached a port.
    pub fn handle<E: From<NetworkEvent>>(
        &mut self,
        queue: &mut EventQueue<E>,
        trace: &mut Trace,
        event: NetworkEvent,
    ) -> Option<Arrival> {
        let now = queue.now();
        let slot = event.frame;
        let port = self.frames[slot.0 as usize].to;
        match event.step {
            Step::Forward => {
                let wire_bytes = self.wire_bytes(port, self.frames[slot.0 as usize].bytes.len());
                let inward = &mut self.ports[usize::from(port.0)].inward;
                match inward.admit(now, wire_bytes) {
                    Admission::Full => {
                        self.counters.queue_full += 1;
                        trace.record(now, Kind::QueueFull, u32::from(port.0), u64::from(slot.0));
                        self.release(slot);
                    }
                    Admission::Queued { departs_at_ps, marked } => {
                        let arrival = inward.arrival(departs_at_ps);
                        if marked {
                            self.mark(trace, now, slot);
                        }
                        queue.push(
                            arrival,
                            NetworkEvent { step: Step::Deliver, frame: slot }.into(),
                        );
                    }
                }
                None
            }
            Step::Deliver => {
                if !self.ports[usize::from(port.0)].up {
                    self.counters.cut += 1;
                    trace.record(now, Kind::Cut, u32::from(port.0), u64::from(slot.0));
                    self.release(slot);
                    return None;
                }
                let frame = &mut self.frames[slot.0 as usize];
                let arrival = Arrival {
                    port,
                    from: frame.from,
                    bytes: core::mem::take(&mut frame.bytes),
                    marked: frame.marked,
                    ordinal: frame.ordinal,
                };
                self.free_slots.push(slot);
                self.counters.arrived += 1;
                if let Some(watch) = &mut self.watch {
                    watch.on_arrived(port, arrival.from, arrival.bytes.len());
                }
                trace.record(now, Kind::Arrived, u32::from(port.0), digest(&arrival.bytes));
                Some(arrival)
            }
        }
    }

    /// Takes back the buffer of a frame that has been handled, to reuse it.
    pub fn recycle(&mut self, bytes: Vec<u8>) {
        self.free_buffers.push(bytes);
    }

    /// Removes and returns the oldest change that must be reported to a host.
    pub fn poll_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// Replaces the faults of frames that leave `port`.
    pub fn set_faults(&mut self, port: PortId, faults: Faults) {
        self.ports[usize::from(port.0)].outward.set_faults(faults);
    }

    /// Returns the faults of frames that leave `port`.
    pub fn faults(&self, port: PortId) -> Faults {
        self.ports[usize::from(port.0)].outward.faults
    }

    /// Starts or ends a one-way cut of frames that leave `port`.
    pub fn set_cut(&mut self, port: PortId, cut: bool) {
        self.ports[usize::from(port.0)].outward.faults.cut = cut;
    }

    /// Sets a link down or up, and reports the change to its host. Frames that arrive at a link
    /// that is down are lost.
    pub fn set_up(&mut self, port: PortId, up: bool) {
        let state = &mut self.ports[usize::from(port.0)];
        if state.up == up {
            return;
        }
        state.up = up;
        let event = if up { LinkEvent::Changed(self.caps(port)) } else { LinkEvent::Down };
        self.notices.push_back(Notice { port, event });
    }

    /// Changes the address of a port. This can happen when an interface comes back. Frames in
    /// flight still arrive. The host gets no report of the change.
    ///
    /// # Panics
    /// Panics if the address is in use.
    pub fn set_address(&mut self, port: PortId, address: PeerAddr) {
        let state = &mut self.ports[usize::from(port.0)];
        self.by_address.remove(&state.address);
        state.address = address;
        let taken = self.by_address.insert(address, port);
        assert!(taken.is_none(), "address {address} is free");
    }

    /// Reports the current capabilities of a port's link to its host. Does nothing if the link is
    /// down.
    pub fn announce(&mut self, port: PortId) {
        if self.is_up(port) {
            let event = LinkEvent::Changed(self.caps(port));
            self.notices.push_back(Notice { port, event });
        }
    }

    /// Returns whether the link of a port is up.
    pub fn is_up(&self, port: PortId) -> bool {
        self.ports[usize::from(port.0)].up
    }

    /// Returns whether frames from `from` can now reach `to`. Ignores random faults.
    pub fn passes(&self, from: PortId, to: PortId) -> bool {
        let (sender, receiver) = (&self.ports[usize::from(from.0)], &self.ports[usize::from(to.0)]);
        sender.segment == receiver.segment && sender.up && receiver.up && !sender.outward.faults.cut
    }

    /// Sets the length of the largest frame that can leave `port`, in bytes. The host gets no
    /// report.
    pub fn set_frame_bytes_max(&mut self, port: PortId, frame_bytes_max: u16) {
        self.ports[usize::from(port.0)].outward.model.frame_bytes_max = frame_bytes_max;
    }

    /// Sets the rate of `port` for frames from the host, in bits per second (0 counts as 1). The
    /// host gets no report.
    pub fn set_rate(&mut self, port: PortId, rate: u64) {
        self.ports[usize::from(port.0)].outward.model.rate = rate.max(1);
    }

    /// Sets the propagation delay of `port` for frames from the host, in nanoseconds. The host gets
    /// no report.
    pub fn set_propagation(&mut self, port: PortId, propagation_ns: u64) {
        self.ports[usize::from(port.0)].outward.model.propagation_ns = propagation_ns;
    }

    /// Returns the model of `port` for frames from the host.
    pub fn model(&self, port: PortId) -> &LinkModel {
        &self.ports[usize::from(port.0)].outward.model
    }

    /// Returns the capabilities that the driver of `port` reports to its engine.
    pub fn caps(&self, port: PortId) -> LinkCaps {
        let state = &self.ports[usize::from(port.0)];
        LinkCaps {
            frame_bytes_max: state.outward.model.frame_bytes_max,
            frame_bytes_safe: state.outward.model.frame_bytes_max.min(FRAME_BYTES_SAFE),
            segments: 16,
            offloads: state.outward.model.offloads,
            receive_buffer_bytes: RECEIVE_BUFFER_BYTES,
            rate: state.outward.model.reports_rate.then_some(state.outward.model.rate),
            local: state.address,
        }
    }

    /// Sets the path MTU behind `port`. Longer frames are lost, even if the interface accepts them.
    /// The host gets no report.
    pub(crate) fn set_path_bytes_max(&mut self, port: PortId, path_bytes_max: u16) {
        self.ports[usize::from(port.0)].path_bytes_max = path_bytes_max;
    }

    /// Sets a filter behind `port`. Frames for which `mute` returns true are lost.
    pub(crate) fn set_mute(&mut self, port: PortId, mute: Option<Mute>) {
        self.ports[usize::from(port.0)].mute = mute;
    }

    /// Makes the driver of `port` refuse frames until `until`. `peer` selects the peer; `None`
    /// selects all peers.
    pub(crate) fn set_full(&mut self, port: PortId, peer: Option<PeerAddr>, until: Instant) {
        let state = &mut self.ports[usize::from(port.0)];
        let Some(peer) = peer else {
            state.full_until = until;
            return;
        };
        state.full_for.retain(|&(other, _)| other != peer);
        state.full_for.push((peer, until));
    }

    /// Sets the length of the longest frame that `port` receives. The host gets no report.
    pub(crate) fn set_accepted_bytes_max(&mut self, port: PortId, accepted_bytes_max: u16) {
        self.ports[usize::from(port.0)].accepted_bytes_max = accepted_bytes_max;
    }

    /// Starts to record frames, and to count the bytes that each host exchanges with each address.
    /// Returns the observer.
    pub(crate) fn watch(&mut self) -> &mut Watch {
        self.watch.get_or_insert_default()
    }

    /// Schedules a forged frame with the source address `from`. The frame arrives at `to`, at
    /// `time`.
    pub(crate) fn inject<E: From<NetworkEvent>>(
        &mut self,
        queue: &mut EventQueue<E>,
        from: PeerAddr,
        to: PortId,
        bytes: Vec<u8>,
        time: Instant,
    ) {
        let frame = Frame { bytes, from, to, marked: false, ordinal: self.counters.sent };
        let slot = self.store(frame);
        queue.push(time, NetworkEvent { step: Step::Deliver, frame: slot }.into());
    }

    /// Returns the counters of frames so far.
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns the number of frames that the host of `port` has passed to the port's driver.
    pub fn sent(&self, port: PortId) -> u64 {
        self.ports[usize::from(port.0)].sent
    }

    /// Returns the number of frames that are now in flight between hosts.
    pub const fn in_flight(&self) -> usize {
        self.frames.len() - self.free_slots.len()
    }

    fn target(&self, from: PortId, to: PeerAddr) -> Option<PortId> {
        let target = *self.by_address.get(&to)?;
        let same = |port: PortId| self.ports[usize::from(port.0)].segment;
        (same(from) == same(target)).then_some(target)
    }

    fn wire_bytes(&self, port: PortId, frame_bytes: usize) -> u32 {
        self.ports[usize::from(port.0)].outward.model.overhead.wire_bytes(frame_bytes)
    }

    /// Passes a frame through the sender's queue, and then applies the sender's faults.
    fn transmit<E: From<NetworkEvent>>(
        &mut self,
        queue: &mut EventQueue<E>,
        trace: &mut Trace,
        port: PortId,
        to: PortId,
        bytes: Vec<u8>,
    ) {
        let now = queue.now();
        let place = u32::from(port.0);
        let wire_bytes = self.wire_bytes(port, bytes.len());
        let Port { address, accepted_bytes_max, .. } = self.ports[usize::from(to.0)];
        let sender = &mut self.ports[usize::from(port.0)];
        if bytes.len() > usize::from(sender.path_bytes_max.min(accepted_bytes_max)) {
            self.counters.too_big += 1;
            trace.record(now, Kind::TooBig, place, bytes.len() as u64);
            return self.free_buffers.push(bytes);
        }
        if sender.mute.is_some_and(|mute| mute(&bytes)) {
            self.counters.cut += 1;
            trace.record(now, Kind::Cut, place, bytes.len() as u64);
            return self.free_buffers.push(bytes);
        }
        if bytes.len() > usize::from(sender.outward.model.frame_bytes_max) {
            self.counters.too_big += 1;
            trace.record(now, Kind::TooBig, place, bytes.len() as u64);
            if sender.outward.model.reports_too_big {
                let event = LinkEvent::TooBig(
                    address,
                    sender.outward.model.frame_bytes_max,
                    Evidence::Local,
                );
                self.notices.push_back(Notice { port, event });
            }
            self.free_buffers.push(bytes);
            return;
        }
        let admission = sender.outward.admit(now, wire_bytes);
        let Admission::Queued { departs_at_ps, marked } = admission else {
            self.counters.queue_full += 1;
            trace.record(now, Kind::QueueFull, place, bytes.len() as u64);
            self.free_buffers.push(bytes);
            return;
        };
        let from = sender.address;
        let arrival = sender.outward.arrival(departs_at_ps);
        let slot =
            self.store(Frame { bytes, from, to, marked: false, ordinal: self.counters.sent });
        if marked {
            self.mark(trace, now, slot);
        }
        self.inflict(queue, trace, port, slot, arrival);
    }

    /// Applies the faults of `port` to a frame that would otherwise arrive at `arrival`.
    fn inflict<E: From<NetworkEvent>>(
        &mut self,
        queue: &mut EventQueue<E>,
        trace: &mut Trace,
        port: PortId,
        slot: FrameSlot,
        arrival: Instant,
    ) {
        let now = queue.now();
        let place = u32::from(port.0);
        self.replay(queue, trace, port, arrival);
        self.record(port, slot);
        let sender = &mut self.ports[usize::from(port.0)];
        let faults = sender.outward.faults;
        if faults.cut || !sender.up {
            self.counters.cut += 1;
            trace.record(now, Kind::Cut, place, u64::from(slot.0));
            return self.release(slot);
        }
        if sender.outward.loses() {
            self.counters.lost += 1;
            trace.record(now, Kind::Lost, place, u64::from(slot.0));
            return self.release(slot);
        }
        if sender.outward.random().chance_ppm(faults.corrupt_ppm) {
            self.counters.corrupted += 1;
            trace.record(now, Kind::Corrupted, place, u64::from(slot.0));
            if faults.corruption == Corruption::Dropped {
                return self.release(slot);
            }
            flip_bits(&mut self.frames[slot.0 as usize].bytes, sender.outward.random());
        }
        if sender.outward.random().chance_ppm(faults.duplicate_ppm) {
            let late_ns = sender.outward.lateness_ns();
            self.counters.duplicated += 1;
            trace.record(now, Kind::Duplicated, place, late_ns);
            let copy = self.copy(slot);
            self.forward(queue, copy, arrival.after_ns(late_ns));
        }
        let sender = &mut self.ports[usize::from(port.0)];
        let mut arrival = arrival;
        if sender.outward.random().chance_ppm(faults.reorder_ppm) {
            let late_ns = sender.outward.lateness_ns();
            self.counters.reordered += 1;
            trace.record(now, Kind::Reordered, place, late_ns);
            arrival = arrival.after_ns(late_ns);
        }
        self.forward(queue, slot, arrival);
    }

    /// Schedules the arrival of a frame: at the receiver or, with a switch, at its output queue.
    fn forward<E: From<NetworkEvent>>(
        &self,
        queue: &mut EventQueue<E>,
        slot: FrameSlot,
        arrival: Instant,
    ) {
        let to = self.frames[slot.0 as usize].to;
        let (time, step) = match self.segments[self.ports[usize::from(to.0)].segment] {
            Segment::Direct => (arrival, Step::Deliver),
            Segment::Switched { latency_ns } => (arrival.after_ns(latency_ns), Step::Forward),
        };
        queue.push(time, NetworkEvent { step, frame: slot }.into());
    }

    /// With the configured probability, replays a frame that was recorded earlier.
    fn replay<E: From<NetworkEvent>>(
        &mut self,
        queue: &mut EventQueue<E>,
        trace: &mut Trace,
        port: PortId,
        arrival: Instant,
    ) {
        let sender = &mut self.ports[usize::from(port.0)];
        let faults = sender.outward.faults;
        if faults.cut
            || !sender.up
            || sender.recorded.is_empty()
            || !sender.outward.random().chance_ppm(faults.replay_ppm)
        {
            return;
        }
        let from = sender.address;
        let choice = sender.outward.random().below(sender.recorded.len() as u64) as usize;
        let mut bytes = self.free_buffers.pop().unwrap_or_default();
        bytes.clear();
        let (to, old) = &sender.recorded[choice];
        let to = *to;
        bytes.extend_from_slice(old);
        self.counters.replayed += 1;
        trace.record(queue.now(), Kind::Replayed, u32::from(port.0), digest(&bytes));
        let slot =
            self.store(Frame { bytes, from, to, marked: false, ordinal: self.counters.sent });
        self.forward(queue, slot, arrival);
    }

    /// Records a random sample of frames, spread over the whole run, for [`Network::replay`].
    fn record(&mut self, port: PortId, slot: FrameSlot) {
        let sender = &mut self.ports[usize::from(port.0)];
        if sender.outward.faults.replay_ppm == 0 {
            return;
        }
        let frame = &self.frames[slot.0 as usize];
        if sender.recorded.len() < RECORDED_FRAMES_MAX {
            sender.recorded.push((frame.to, frame.bytes.clone()));
        } else if sender.outward.random().chance_ppm(RECORD_PPM) {
            let victim = sender.outward.random().below(RECORDED_FRAMES_MAX as u64) as usize;
            let (to, bytes) = &mut sender.recorded[victim];
            *to = frame.to;
            bytes.clone_from(&frame.bytes);
        }
    }

    fn mark(&mut self, trace: &mut Trace, now: Instant, slot: FrameSlot) {
        let frame = &mut self.frames[slot.0 as usize];
        frame.marked = true;
        self.counters.marked += 1;
        trace.record(now, Kind::Marked, u32::from(frame.to.0), u64::from(slot.0));
    }

    fn store(&mut self, frame: Frame) -> FrameSlot {
        if let Some(slot) = self.free_slots.pop() {
            self.frames[slot.0 as usize] = frame;
            return slot;
        }
        self.frames.push(frame);
        FrameSlot(self.frames.len() as u32 - 1)
    }

    fn copy(&mut self, slot: FrameSlot) -> FrameSlot {
        let mut bytes = self.free_buffers.pop().unwrap_or_default();
        let Frame { bytes: original, from, to, marked, ordinal } = &self.frames[slot.0 as usize];
        bytes.clone_from(original);
        let copy = Frame { bytes, from: *from, to: *to, marked: *marked, ordinal: *ordinal };
        self.store(copy)
    }

    fn release(&mut self, slot: FrameSlot) {
        let bytes = core::mem::take(&mut self.frames[slot.0 as usize].bytes);
        self.free_buffers.push(bytes);
        self.free_slots.push(slot);
    }
}

/// Returns the address of link `link` of host `host`: 10.`link`.`host`.1, UDP port 4792.
pub fn port_address(host: u8, link: u8) -> PeerAddr {
    SocketAddr::from((Ipv4Addr::new(10, link, host, 1), 4792)).into()
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// The frame enters the output queue of the receiving port.
    Forward,
    /// The frame arrives at the receiving host.
    Deliver,
}

#[derive(Clone, Copy, Debug)]
struct FrameSlot(u32);

#[derive(Debug)]
struct Frame {
    bytes: Vec<u8>,
    from: PeerAddr,
    to: PortId,
    marked: bool,
    ordinal: u64,
}

#[derive(Debug)]
struct Port {
    address: PeerAddr,
    segment: usize,
    up: bool,
    /// Number of frames accepted from the host.
    sent: u64,
    outward: Channel,
    inward: Channel,
    /// Recorded frames, each with its receiving port.
    recorded: Vec<(PortId, Vec<u8>)>,
    /// Path MTU in bytes; longer frames are lost.
    path_bytes_max: u16,
    mute: Option<Mute>,
    /// Peers for which the driver has no room, each with the time at which the driver has room
    /// again. The driver still accepts frames for other peers.
    full_for: Vec<(PeerAddr, Instant)>,
    /// Until this time, the driver refuses frames for all peers.
    full_until: Instant,
    /// Length of the longest frame that the port receives, in bytes.
    accepted_bytes_max: u16,
}

impl Port {
    /// Returns the time until which the driver accepts no frames; `None` if it accepts frames now.
    fn refuses_until(&mut self, now: Instant) -> Option<Instant> {
        let is_full = self.full_until > now;
        is_full.then_some(self.full_until).or_else(|| self.outward.refuses_until(now))
    }

    /// Returns the time until which the driver accepts no frames for this peer. Returns `None` if
    /// it accepts them now.
    fn refuses_peer_until(&mut self, now: Instant, peer: PeerAddr) -> Option<Instant> {
        if self.full_for.is_empty() {
            return None;
        }
        self.full_for.retain(|&(_, until)| until > now);
        self.full_for.iter().find(|&&(other, _)| other == peer).map(|&(_, until)| until)
    }
}

/// Filter function: returns whether a frame is lost.
pub(crate) type Mute = fn(&[u8]) -> bool;

/// Flips one to three random bits.
fn flip_bits(bytes: &mut [u8], random: &mut Random) {
    if bytes.is_empty() {
        return;
    }
    for _ in 0..random.between(1, 3) {
        let index = random.below(bytes.len() as u64) as usize;
        bytes[index] ^= 1 << random.below(8);
    }
}

/// Maximum number of frames that a port records for replay. A recorded frame stays for a long time,
/// because only [`RECORD_PPM`] of 10^6 frames replace a recorded frame.
const RECORDED_FRAMES_MAX: usize = 48;
const RECORD_PPM: u32 = 50_000;

/// Length of the largest frame that every UDP path is assumed to carry, in bytes. The length is the
/// IPv6 minimum of 1280, minus 40 and 8 bytes of headers.
pub(crate) const FRAME_BYTES_SAFE: u16 = 1232;

/// Size of a simulated driver's receive buffer, in bytes. While the host does not run, frames
/// collect in the buffer.
pub(crate) const RECEIVE_BUFFER_BYTES: u32 = 1 << 20;
