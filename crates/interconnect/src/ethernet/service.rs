//! Stored queues: how frames join a queue, and how a port serves it.
//!
//! A frame causes three events: it arrives, its transmission starts, and its transmission ends,
//! which frees its buffer. At a busy port, the end of one transmission and the start of the next
//! transmission happen at the same time, so they are one event. A frame joins the queue of its
//! output after the latency of the switch. In most configurations, its arrival is therefore
//! scheduled for the end of this latency. Pauses and the rate-limited engine of a switch, however,
//! need the exact time of arrival. If the switch has lossless classes or such an engine, the
//! arrival is scheduled for the exact time.

use super::super::simulation::Context;
use super::super::wheel::Event;
use super::queues::{Admission, Pool, Queues, Sending, Waiting};
use super::{Ethernet, Forwarding, FrameState, NOWHERE, QUEUE};

impl Ethernet {
    /// Returns whether arrivals at a switch are scheduled for the end of its latency, which saves
    /// one event. Lossless classes and the engine of a switch need the exact time of arrival.
    pub(super) fn arrives_ready(&self) -> bool {
        self.configuration.host_frame_interval_ps == 0
            && self.queues.as_ref().is_some_and(|queues| queues.configuration.queues.lossless == 0)
    }

    /// Schedules a frame to join the queue of a port at `ready_ps`. A frame of a lossless class
    /// occupies buffer immediately, so that the switch pauses the sender in time. Frames of other
    /// classes occupy buffer from `ready_ps` on.
    pub(super) fn enqueue(&mut self, context: &mut Context, port: u32, index: u32, ready_ps: u64) {
        let bytes = self.frames.get(index).bytes;
        let FrameState { class, input, .. } = self.states[index as usize];
        let Some(queues) = &mut self.queues else { return };
        if self.ends[port as usize].is_from_host() {
            self.states[index as usize].pool = Some(Pool::Host);
            self.join(context, port, index, ready_ps);
            return;
        }
        let is_lossless = queues.is_lossless(class);
        self.states[index as usize].pool = None;
        if is_lossless && !self.admit(context, port, index) {
            return;
        }
        if ready_ps <= context.wheel.now_ps() {
            self.join(context, port, index, ready_ps);
            return;
        }
        debug_assert_ne!(input, NOWHERE, "it came by a link");
        let Some(queues) = &mut self.queues else { return };
        queues.expect(port, ready_ps, (index, bytes));
        context.schedule(ready_ps, QUEUE | port, READY);
    }

    /// Requests buffer for a frame at a switch. Drops the frame and returns false if there is no
    /// room.
    fn admit(&mut self, context: &mut Context, port: u32, index: u32) -> bool {
        let bytes = self.frames.get(index).bytes;
        let FrameState { class, input, .. } = self.states[index as usize];
        let switch = self.switch_of(port);
        let buffer_bytes = self.buffer_bytes(port);
        let Some(queues) = &mut self.queues else { return false };
        let ends = (input, port);
        let pool = match queues.admit(switch, ends, (class, u64::from(bytes)), buffer_bytes) {
            Admission::Dropped => {
                self.lose(context, port, index);
                return false;
            }
            Admission::Stored(pool) => pool,
            Admission::StoredAndPause(pool) => {
                self.send_pause(context, input, class, true);
                pool
            }
        };
        self.states[index as usize].pool = Some(pool);
        true
    }

    /// Adds a frame to the queue of a port. Drops the frame if the buffer has no room.
    fn join(&mut self, context: &mut Context, port: u32, index: u32, ready_ps: u64) {
        if self.states[index as usize].pool.is_none() && !self.admit(context, port, index) {
            return;
        }
        let bytes = self.frames.get(index).bytes;
        let FrameState { class, is_marked, pool, .. } = self.states[index as usize];
        let pool = pool.unwrap_or(Pool::Shared);
        let sent = self.ports[port as usize].bytes;
        let Some(queues) = &mut self.queues else { return };
        let number = sent + queues.stored_bytes(port);
        if !is_marked && pool != Pool::Host && queues.marks(port, number) {
            self.states[index as usize].is_marked = true;
        }
        queues.store(port, class, bytes, Waiting { index, pool, ready_ps });
        if queues.outputs[port as usize].sending.is_none() {
            self.look_at(context, port, ready_ps.max(context.wheel.now_ps()));
        }
    }

    /// Handles an event of a port's queue.
    pub(super) fn handle_queue(&mut self, context: &mut Context, port: u32, subject: u32) {
        let now_ps = context.wheel.now_ps();
        let Some(queues) = &mut self.queues else { return };
        if subject == READY {
            let Some(index) = queues.expected(port) else { return };
            queues.forget(port, self.frames.get(index).bytes);
            self.join(context, port, index, now_ps);
            return;
        }
        if subject == SERVE {
            let output = &mut queues.outputs[port as usize];
            if output.serve_ps == now_ps {
                output.serve_ps = u64::MAX;
                self.serve(context, port);
            }
            return;
        }
        queues.set_paused(port, (subject >> CLASS_SHIFT) as u8, subject & IS_ON != 0, now_ps);
        if queues.outputs[port as usize].sending.is_none() {
            self.serve(context, port);
        }
    }

    /// Schedules an event that serves a port. The event happens at `time_ps` if the port is then
    /// free, and otherwise when the port becomes free.
    fn look_at(&mut self, context: &mut Context, port: u32, time_ps: u64) {
        let Some(queues) = &mut self.queues else { return };
        let output = &mut queues.outputs[port as usize];
        let time_ps = time_ps.max(self.ports[port as usize].free_ps);
        if time_ps < output.serve_ps {
            output.serve_ps = time_ps;
            context.schedule(time_ps, QUEUE | port, SERVE);
        }
    }

    /// Frees the buffer of the frame that has been sent, and starts the next frame.
    fn serve(&mut self, context: &mut Context, port: u32) {
        let now_ps = context.wheel.now_ps();
        let free_ps = self.ports[port as usize].free_ps;
        if free_ps > now_ps {
            self.look_at(context, port, free_ps);
            return;
        }
        self.release(context, port);
        let Some(queues) = &mut self.queues else { return };
        let output = &mut queues.outputs[port as usize];
        let mut next_ps = u64::MAX;
        let mut chosen = None;
        for (class, queue) in output.waiting.iter_mut().enumerate() {
            let Some(first) = queue.frames.front() else { continue };
            if output.paused >> class & 1 == 1 {
                continue;
            }
            if first.ready_ps <= now_ps {
                chosen = queue.frames.pop_front().map(|waiting| (class, waiting));
                break;
            }
            next_ps = next_ps.min(first.ready_ps);
        }
        match chosen {
            Some((class, waiting)) => self.begin(context, port, class, waiting),
            None if next_ps < u64::MAX => self.look_at(context, port, next_ps),
            None => {}
        }
    }

    /// Starts to send a frame.
    fn begin(&mut self, context: &mut Context, port: u32, class: usize, waiting: Waiting) {
        let Waiting { index, pool, ready_ps, .. } = waiting;
        let frame = *self.frames.get(index);
        let input = self.states[index as usize].input;
        let byte_time = u64::from(self.byte_time(port));
        let Some(queues) = &mut self.queues else { return };
        let output = &mut queues.outputs[port as usize];
        output.waiting[class].bytes -= u64::from(frame.bytes);
        output.sending = Some(Sending { bytes: frame.bytes, input, class: class as u8, pool });
        let time_ps = |bytes: u32| (u64::from(bytes) * byte_time) >> 8;
        let now_ps = context.wheel.now_ps();
        let free_ps = now_ps + time_ps(frame.bytes) + time_ps(self.configuration.gap_bytes);
        let state = &mut self.ports[port as usize];
        state.free_ps = free_ps;
        state.bytes += u64::from(frame.bytes);
        let first_bytes = match self.configuration.forwarding {
            Forwarding::CutThrough { header_bytes }
                if self.ends[port as usize].node() >= self.hosts =>
            {
                header_bytes.min(frame.bytes)
            }
            _ => frame.bytes,
        };
        let arrival_ps = now_ps + time_ps(first_bytes) + self.propagation_ps(port);
        let arrival_ps = self.jittered_ps(port, frame.bytes, arrival_ps);
        if self.has_transport() && self.ends[port as usize].is_from_host() {
            self.on_port_begun(context, port, index);
        }
        if context.recorder.is_some() {
            let sent_ps = now_ps + time_ps(first_bytes);
            let busy_ps = now_ps + time_ps(frame.bytes);
            self.record(context, port, index, ready_ps, [now_ps, sent_ps, arrival_ps, busy_ps]);
        }
        let is_switch = self.ends[port as usize].node() >= self.hosts;
        let latency_ps =
            if is_switch && self.arrives_ready() { self.configuration.latency_ps } else { 0 };
        if !self.cross(arrival_ps + latency_ps, port, index) {
            context.schedule(arrival_ps + latency_ps, port, index);
        }
        self.look_at(context, port, free_ps);
    }

    /// Releases the buffer of the last frame that a port sent.
    fn release(&mut self, context: &mut Context, port: u32) {
        let switch = if self.ends[port as usize].is_from_host() { 0 } else { self.switch_of(port) };
        let Some(queues) = &mut self.queues else { return };
        let output = &mut queues.outputs[port as usize];
        let Some(sent) = output.sending.take() else { return };
        output.bytes -= u64::from(sent.bytes);
        if queues.release(switch, sent) {
            self.send_pause(context, sent.input, sent.class, false);
        }
    }

    /// Requests that the sender of a link pauses or resumes a class. The request travels in the
    /// opposite direction, after the frame being sent in that direction. The model does not delay
    /// later frames by the request.
    fn send_pause(&mut self, context: &mut Context, input: u32, class: u8, is_on: bool) {
        debug_assert_ne!(input, NOWHERE, "hosts have room for all");
        let back = input ^ 1;
        let byte_time = u64::from(self.byte_time(back));
        let sender = self.ends[back as usize].node();
        let propagation_ps = self.propagation_ps(back);
        let Some(queues) = &mut self.queues else { return };
        let pause_ps = Queues::pause_ps(byte_time);
        let output = &mut queues.outputs[back as usize];
        let free_ps = self.ports[back as usize].free_ps.max(output.pause_free_ps);
        output.pause_free_ps = free_ps.max(context.wheel.now_ps()) + pause_ps;
        let event = Event {
            time_ps: output.pause_free_ps + propagation_ps,
            place: QUEUE | input,
            subject: u32::from(class) << CLASS_SHIFT | if is_on { IS_ON } else { 0 } | PAUSE,
        };
        self.schedule_at(context, event, sender);
    }

    /// Returns the switch that sends through a port, as its index in tables that contain all rails.
    fn switch_of(&self, port: u32) -> u32 {
        self.switch_place(self.ends[port as usize ^ 1].node() - self.hosts, self.base(port))
    }
}

/// Values of `Event::subject`. `READY`: the latency of the switch has passed for a frame. `SERVE`:
/// the port serves its queue. Any other value contains a class, and means that a pause of this
/// class starts or ends.
const READY: u32 = 0;
const SERVE: u32 = 1;
const PAUSE: u32 = 2;
const IS_ON: u32 = 4;
const CLASS_SHIFT: u32 = 3;
