//! Hosts of an Ethernet that have a transport: the order of sending, arrivals and timeouts.

use super::super::super::simulation::Context;
use super::super::super::statistics::mix;
use super::super::super::wheel::Event;
use super::super::{ENGINE, Ethernet, Frame, QUEUE, rate_bps};
use super::receiver::Verdict;
use super::sender::{Departure, Outgoing};
use super::{Congestion, Kind, Segment};

impl Ethernet {
    /// Accepts a message that its host hands over now.
    pub(in super::super) fn post(&mut self, context: &mut Context, index: u32) {
        let mtu = self.configuration.mtu_bytes.max(1);
        let message = context.messages.get_mut(index);
        message.remaining = message.bytes.div_ceil(mtu).max(1);
        let message = *message;
        let name = match &mut self.exchange {
            Some(exchange) => exchange.name(context, index),
            None => index,
        };
        let queues = &self.configuration.queues;
        let class = queues.class_of(&message);
        let last_bytes = message.bytes - (message.remaining - 1) * mtu;
        let port = self.routes.host_link(message.source) ^ 1;
        let line_bps = rate_bps(self.byte_time(port));
        let Some(transport) = &mut self.transport else { return };
        let source = (message.source, line_bps);
        let connection = transport.connection(source, message.destination, class);
        let outgoing = Outgoing::new(name, message.remaining, last_bytes);
        transport.senders[connection as usize].post(outgoing);
        self.offer(context, connection);
        self.arm(context, connection);
    }

    /// Handles an event of a host's transport: a check for frames to send, or a timer.
    pub(in super::super) fn handle_transport(&mut self, context: &mut Context, event: Event) {
        let host = event.place & !TRANSPORT;
        let Some(transport) = &mut self.transport else { return };
        if event.subject == PULL {
            transport.pulls_ps[host as usize] = u64::MAX;
            self.pull(context, host);
            return;
        }
        let sender = &mut transport.senders[event.subject as usize];
        let is_paced = sender.rate.is_some();
        let is_timeout = sender.on_timer(&transport.configuration, event.time_ps);
        transport.counts.timeouts += u64::from(is_timeout);
        if is_timeout || is_paced {
            self.offer(context, event.subject);
        }
        self.arm(context, event.subject);
    }

    /// Handles the start of a transmission at a host's port. Schedules the next check for frames to
    /// send. The check happens when the port is free.
    pub(in super::super) fn on_port_begun(&mut self, context: &mut Context, port: u32, index: u32) {
        let host = self.ends[port as usize ^ 1].node();
        if self.has_message_to_send(host) {
            self.schedule_message_pull(context, host, self.ports[port as usize].free_ps);
        }
        let Some(transport) = &mut self.transport else { return };
        transport.on_left(index, context.wheel.now_ps());
        if transport.has_ready(host) {
            self.schedule_pull(context, host, self.ports[port as usize].free_ps);
        }
    }

    /// Queues a connection for its turn, if the connection may send now. Also schedules a check for
    /// frames to send.
    fn offer(&mut self, context: &mut Context, connection: u32) {
        let Some(transport) = &mut self.transport else { return };
        if transport.make_ready(connection, context.wheel.now_ps()) {
            let host = transport.senders[connection as usize].source;
            self.pull(context, host);
        }
    }

    /// Sends frames of connections, one connection after the other, while the port of the host is
    /// free. At most one frame of each class waits for the port.
    fn pull(&mut self, context: &mut Context, host: u32) {
        let port = self.routes.host_link(host) ^ 1;
        let classes = self.transport.as_ref().map_or(0, |transport| transport.classes);
        for class in 0..classes {
            loop {
                let Some(transport) = &mut self.transport else { return };
                if !transport.has_ready(host) {
                    return;
                }
                let free_ps = self.ports[port as usize].free_ps;
                if free_ps > context.wheel.now_ps() {
                    self.schedule_pull(context, host, free_ps);
                    return;
                }
                let output = self.queues.as_ref().map(|queues| &queues.outputs[port as usize]);
                if output.is_some_and(|output| !output.waiting[class].frames.is_empty()) {
                    break;
                }
                let Some(connection) = transport.take_ready(host, class) else { break };
                self.depart(context, port, connection);
                if let Some(transport) = &mut self.transport {
                    transport.make_ready(connection, context.wheel.now_ps());
                }
                self.arm(context, connection);
            }
        }
    }

    fn schedule_pull(&mut self, context: &mut Context, host: u32, time_ps: u64) {
        let Some(transport) = &mut self.transport else { return };
        let pull_ps = &mut transport.pulls_ps[host as usize];
        if *pull_ps == u64::MAX {
            *pull_ps = time_ps;
            context.schedule(time_ps, TRANSPORT | host, PULL);
        }
    }

    /// Sends the next frame of a connection through a port.
    fn depart(&mut self, context: &mut Context, port: u32, connection: u32) {
        let now_ps = context.wheel.now_ps();
        let Some(transport) = &mut self.transport else { return };
        let sender = &mut transport.senders[connection as usize];
        let (source, destination, class) = (sender.source, sender.destination, sender.class);
        let departure = sender.depart(&transport.configuration, now_ps);
        let Departure { sequence, transmission, message, last_bytes, is_again } = departure;
        let payload = last_bytes.unwrap_or(self.configuration.mtu_bytes);
        transport.counts.data_frames += 1;
        transport.counts.payload_bytes += u64::from(payload);
        transport.counts.retransmitted_frames += u64::from(is_again);
        let bytes = self.frame_bytes(payload);
        self.pace(connection, bytes + self.configuration.gap_bytes, now_ps);
        self.arm(context, connection);
        let (ready_ps, _) = self.pass_nic(source, bytes, now_ps);
        let segment = Segment {
            connection,
            source,
            sequence,
            expected: 0,
            transmission,
            sent_ps: ready_ps.max(self.ports[port as usize].free_ps),
            part: self.exchange.as_ref().map_or(0, |exchange| exchange.own_part()),
            kind: Kind::Data,
        };
        let flow = self.flow(source, destination, port);
        let frame = Frame { message, destination, flow, bytes };
        self.send_segment(context, port, (frame, class), segment, ready_ps);
    }

    /// Updates the rate limiter of a connection after a transmission of `bytes` bytes.
    fn pace(&mut self, connection: u32, bytes: u32, now_ps: u64) {
        let Some(transport) = &mut self.transport else { return };
        if let Congestion::Dcqcn(dcqcn) = &transport.configuration.congestion
            && let Some(rate) = &mut transport.senders[connection as usize].rate
        {
            rate.on_sent(dcqcn, bytes, now_ps);
        }
    }

    /// Sends a frame with a transport header, in a class.
    fn send_segment(
        &mut self,
        context: &mut Context,
        port: u32,
        (frame, class): (Frame, u8),
        segment: Segment,
        ready_ps: u64,
    ) {
        let index = self.insert_at_host(frame, class);
        if let Some(transport) = &mut self.transport {
            transport.set_segment(index, segment);
        }
        self.transmit(context, port, index, frame, ready_ps);
    }

    /// Schedules the timer of a connection, if the connection needs the timer and no timer event is
    /// scheduled that is early enough.
    fn arm(&mut self, context: &mut Context, connection: u32) {
        let Some(transport) = &mut self.transport else { return };
        let sender = &mut transport.senders[connection as usize];
        if let Some(time_ps) = sender.arm() {
            context.schedule(time_ps, TRANSPORT | sender.source, connection);
        }
    }

    /// Handles a frame that has reached the host at the end of a link.
    pub(in super::super) fn arrive_at_host(
        &mut self,
        context: &mut Context,
        place: u32,
        index: u32,
    ) {
        let Some(transport) = &mut self.transport else { return };
        let segment = transport.segment(index);
        let loss_ppm = transport.configuration.loss_ppm;
        if loss_ppm > 0 && self.is_lost(place, index, &segment, loss_ppm) {
            self.frames.remove(index);
            if let Some(transport) = &mut self.transport {
                transport.counts.frames_lost_at_random += 1;
            }
            return;
        }
        match segment.kind {
            Kind::Data => self.take_data(context, place, index, segment),
            Kind::Acknowledgement { is_marked } => {
                self.frames.remove(index);
                let now_ps = context.wheel.now_ps();
                let Some(transport) = &mut self.transport else { return };
                let sender = &mut transport.senders[segment.connection as usize];
                let (configuration, counts) = (&transport.configuration, &mut transport.counts);
                sender.on_acknowledged(configuration, &segment, (is_marked, now_ps), counts);
                self.offer(context, segment.connection);
                self.arm(context, segment.connection);
            }
            Kind::Notification => {
                self.frames.remove(index);
                let Some(transport) = &mut self.transport else { return };
                transport.counts.notifications += 1;
                if let Congestion::Dcqcn(dcqcn) = &transport.configuration.congestion
                    && let Some(rate) = &mut transport.senders[segment.connection as usize].rate
                {
                    rate.on_notified(dcqcn, context.wheel.now_ps());
                }
            }
        }
    }

    /// Returns whether an arriving frame is lost at random. The result depends only on the frame's
    /// contents and the seed.
    fn is_lost(&self, place: u32, index: u32, segment: &Segment, loss_ppm: u32) -> bool {
        let class = self.states.get(index as usize).map_or(0, |state| state.class);
        let ends = u64::from(self.ends[place as usize].node()) << 32
            | u64::from(self.frames.get(index).flow);
        let kind = match segment.kind {
            Kind::Data => 0,
            Kind::Acknowledgement { .. } => 1,
            Kind::Notification => 2,
        };
        let kind = kind << 8 | u64::from(class);
        let what = kind << 32 | u64::from(segment.transmission);
        let drawn = mix(mix(self.configuration.salt, ends), mix(what, LOSSES)) >> 32;
        drawn * 1_000_000 < u64::from(loss_ppm) << 32
    }

    /// Handles a data frame that has reached its host, and acknowledges it.
    fn take_data(&mut self, context: &mut Context, place: u32, index: u32, segment: Segment) {
        let now_ps = context.wheel.now_ps();
        let state = self.states.get(index as usize);
        let is_marked = self.queues.is_some() && state.is_some_and(|state| state.is_marked);
        let class = state.map_or(0, |state| state.class);
        let Some(transport) = &mut self.transport else { return };
        let configuration = transport.configuration;
        let receiver = transport.receiver(segment.part, segment.connection);
        let verdict = receiver.take(segment.sequence, configuration.recovery);
        let expected = receiver.expected;
        let notifies = match configuration.congestion {
            Congestion::Dcqcn(dcqcn) if is_marked => {
                receiver.notifies(dcqcn.notification_ps, now_ps)
            }
            _ => false,
        };
        match verdict {
            Verdict::New => self.arrive(context, index),
            Verdict::Duplicate => {
                transport.counts.duplicate_frames += 1;
                self.frames.remove(index);
            }
            Verdict::Discarded => {
                transport.counts.discarded_frames += 1;
                self.frames.remove(index);
            }
        }
        let host = self.ends[place as usize].node();
        let (port, source) = (place ^ 1, segment.source);
        let frame = Frame {
            message: NO_MESSAGE,
            destination: source,
            flow: self.flow(host, source, port),
            bytes: self.frame_bytes(configuration.ack_bytes),
        };
        if notifies {
            // The notification has class 0, the highest priority, as in RDMA adapters.
            let notification = Segment { expected, kind: Kind::Notification, ..segment };
            self.send_segment(context, port, (frame, 0), notification, now_ps);
        }
        let kind = Kind::Acknowledgement { is_marked };
        let answer = Segment { expected, kind, ..segment };
        self.send_segment(context, port, (frame, class), answer, now_ps);
    }
}

/// Flags in `Event::place` of an event of a host with a transport.
pub(in super::super) const TRANSPORT: u32 = ENGINE | QUEUE;
/// Value of `Event::subject` if a host checks for frames to send. Any other value is the index of a
/// connection.
const PULL: u32 = u32::MAX;
/// Message number of an acknowledgement frame, which belongs to no message.
pub(in super::super) const NO_MESSAGE: u32 = u32::MAX;
/// Number of the random stream that decides losses.
const LOSSES: u64 = 6;
