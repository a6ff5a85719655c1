//! Hosts that use Homa on an Ethernet: data frames, grants and requests for retransmission.

use super::super::super::simulation::Context;
use super::super::super::statistics::mix;
use super::super::super::wheel::Event;
use super::super::transport::{NO_MESSAGE, TRANSPORT};
use super::super::{Ethernet, Frame};
use super::incoming::{Grant, Verdict};
use super::outgoing::{Departure, Outgoing};
use super::{Homa, Key, Kind, Packet};

impl Ethernet {
    /// Accepts a message that its host hands over now.
    pub(in super::super) fn post_message(&mut self, context: &mut Context, index: u32) {
        let mtu = self.configuration.mtu_bytes.max(1);
        let message = context.messages.get_mut(index);
        message.remaining = message.bytes.div_ceil(mtu).max(1);
        let message = *message;
        let name = match &mut self.exchange {
            Some(exchange) => exchange.name(context, index),
            None => index,
        };
        let last_bytes = message.bytes - (message.remaining - 1) * mtu;
        let now_ps = context.wheel.now_ps();
        let Some(homa) = &mut self.homa else { return };
        let number = homa.number(message.source, message.destination);
        let class = homa.unscheduled_class(message.bytes);
        let outgoing =
            Outgoing::new((name, message.remaining, last_bytes), (homa.rtt_frames, class), now_ps);
        let key = (message.destination, number);
        homa.hosts[message.source as usize].sender.post(key, outgoing);
        let deadline_ps = now_ps + 2 * homa.timeout_ps(0);
        self.watch(context, message.source, (deadline_ps, true, key));
        self.pull_message(context, message.source);
    }

    /// Handles an event of a host: its port can take a data frame, or a message may have timed out.
    pub(in super::super) fn handle_homa(&mut self, context: &mut Context, event: Event) {
        let host = event.place & !TRANSPORT;
        let Some(homa) = &mut self.homa else { return };
        let own = &mut homa.hosts[host as usize];
        if event.subject == PULL {
            own.pull_ps = u64::MAX;
            self.pull_message(context, host);
            return;
        }
        if own.timer_ps != event.time_ps {
            return;
        }
        own.timer_ps = u64::MAX;
        self.look_at_late(context, host, event.time_ps);
        self.arm_homa(context, host);
    }

    /// Returns whether a host has a data frame to send.
    pub(in super::super) fn has_message_to_send(&self, host: u32) -> bool {
        self.homa.as_ref().is_some_and(|homa| homa.hosts[host as usize].sender.has_ready())
    }

    /// Sends data frames of a host while its port is free and no other frame waits for the port.
    fn pull_message(&mut self, context: &mut Context, host: u32) {
        let port = self.routes.host_link(host) ^ 1;
        while self.has_message_to_send(host) {
            let free_ps = self.ports[port as usize].free_ps;
            if free_ps > context.wheel.now_ps() {
                self.schedule_message_pull(context, host, free_ps);
                return;
            }
            let output = self.queues.as_ref().map(|queues| &queues.outputs[port as usize]);
            let is_waiting = |output: &super::super::queues::Output| {
                output.waiting.iter().any(|queue| !queue.frames.is_empty())
            };
            if output.is_some_and(is_waiting) {
                return;
            }
            self.send_data(context, port, host);
        }
    }

    /// Schedules the event in which a host sends its next data frame.
    pub(in super::super) fn schedule_message_pull(
        &mut self,
        context: &mut Context,
        host: u32,
        time_ps: u64,
    ) {
        let Some(homa) = &mut self.homa else { return };
        let pull_ps = &mut homa.hosts[host as usize].pull_ps;
        if *pull_ps == u64::MAX {
            *pull_ps = time_ps;
            context.schedule(time_ps, TRANSPORT | host, PULL);
        }
    }

    /// Sends a frame of the message with the fewest unsent frames, through a port.
    fn send_data(&mut self, context: &mut Context, port: u32, host: u32) {
        let now_ps = context.wheel.now_ps();
        let Some(homa) = &mut self.homa else { return };
        let sender = &mut homa.hosts[host as usize].sender;
        let Some((key, departure)) = sender.depart() else { return };
        let Some(&Outgoing { name, frames, last_bytes, .. }) = sender.message(key) else { return };
        let Departure { frame, class, transmission, is_again } = departure;
        let payload = if frame == frames - 1 { last_bytes } else { self.configuration.mtu_bytes };
        homa.counts.data_frames += 1;
        homa.counts.payload_bytes += u64::from(payload);
        homa.counts.retransmitted_frames += u64::from(is_again);
        let (destination, number) = key;
        let packet = Packet {
            source: host,
            destination,
            number,
            frame,
            until: frames,
            transmission,
            kind: Kind::Data,
        };
        let bytes = self.frame_bytes(payload);
        let (ready_ps, _) = self.pass_nic(host, bytes, now_ps);
        let flow = self.flow(host, destination, port);
        let frame = Frame { message: name, destination, flow, bytes };
        self.send_packet(context, port, (frame, class), packet, ready_ps);
    }

    /// Sends a control packet from a message's receiver to its sender, in class 0.
    fn notify_sender(&mut self, context: &mut Context, packet: Packet) {
        let Some(homa) = &self.homa else { return };
        let ack_bytes = homa.configuration.ack_bytes;
        let port = self.routes.host_link(packet.destination) ^ 1;
        let frame = Frame {
            message: NO_MESSAGE,
            destination: packet.source,
            flow: self.flow(packet.destination, packet.source, port),
            bytes: self.frame_bytes(ack_bytes),
        };
        let now_ps = context.wheel.now_ps();
        self.send_packet(context, port, (frame, 0), packet, now_ps);
    }

    fn send_packet(
        &mut self,
        context: &mut Context,
        port: u32,
        (frame, class): (Frame, u8),
        packet: Packet,
        ready_ps: u64,
    ) {
        let index = self.insert_at_host(frame, class);
        if let Some(homa) = &mut self.homa {
            homa.set_packet(index, packet);
        }
        self.transmit(context, port, index, frame, ready_ps);
    }

    /// Handles a frame that has reached its host.
    pub(in super::super) fn take_packet(&mut self, context: &mut Context, index: u32) {
        let Some(homa) = &mut self.homa else { return };
        let packet = homa.packet(index);
        if homa.is_lost(&packet, self.configuration.salt) {
            homa.counts.frames_lost_at_random += 1;
            self.frames.remove(index);
            return;
        }
        if packet.kind == Kind::Data {
            self.take_message(context, index, packet);
            return;
        }
        self.frames.remove(index);
        let now_ps = context.wheel.now_ps();
        let Some(homa) = &mut self.homa else { return };
        let sender = &mut homa.hosts[packet.source as usize].sender;
        let key = (packet.destination, packet.number);
        match packet.kind {
            Kind::Grant { class } => {
                homa.counts.grants += 1;
                sender.on_granted(key, (packet.until, class), now_ps);
            }
            Kind::Resend { frames } => {
                homa.counts.resends += 1;
                sender.on_resend(key, (packet.frame, frames), packet.until, now_ps);
            }
            Kind::Done | Kind::Data => {
                homa.counts.acknowledgements += 1;
                sender.on_done(key);
            }
        }
        self.pull_message(context, packet.source);
    }

    /// Handles a data frame that has reached its host.
    fn take_message(&mut self, context: &mut Context, index: u32, packet: Packet) {
        let now_ps = context.wheel.now_ps();
        let Some(homa) = &mut self.homa else { return };
        let host = packet.destination;
        let key = (packet.source, packet.number);
        let receiver = &mut homa.hosts[host as usize].receiver;
        let verdict = receiver.take(key, packet.frame, packet.until, now_ps);
        if matches!(verdict, Verdict::Duplicate | Verdict::Late) {
            homa.counts.duplicate_frames += 1;
            self.frames.remove(index);
        } else {
            receiver.grant();
            self.arrive(context, index);
        }
        if matches!(verdict, Verdict::Last | Verdict::Late) {
            self.notify_sender(context, Packet { kind: Kind::Done, ..packet });
        }
        if verdict == Verdict::New {
            self.expect_message(context, host, key);
        }
        self.send_grants(context, host);
    }

    /// Sends the grants that a receiver can give now.
    fn send_grants(&mut self, context: &mut Context, host: u32) {
        loop {
            let Some(homa) = &mut self.homa else { return };
            let receiver = &mut homa.hosts[host as usize].receiver;
            let Some(Grant { key, until, class }) = receiver.poll_grant() else { return };
            let Some(message) = receiver.message(key) else { continue };
            message.transmissions += 1;
            let packet = Packet {
                source: key.0,
                destination: host,
                number: key.1,
                frame: 0,
                until,
                transmission: message.transmissions,
                kind: Kind::Grant { class },
            };
            self.notify_sender(context, packet);
            self.expect_message(context, host, key);
        }
    }

    /// Starts the timeout timer of a message that a host receives. Does nothing if no frame is
    /// expected or the timer runs already.
    fn expect_message(&mut self, context: &mut Context, host: u32, key: Key) {
        let now_ps = context.wheel.now_ps();
        let Some(homa) = &mut self.homa else { return };
        let deadline_ps = now_ps + homa.timeout_ps(0);
        let Some(message) = homa.hosts[host as usize].receiver.message(key) else { return };
        if message.is_expected() && !message.has_timer {
            message.has_timer = true;
            message.news_ps = now_ps;
            self.watch(context, host, (deadline_ps, false, key));
        }
    }

    /// Adds a timer for a message of a host.
    fn watch(&mut self, context: &mut Context, host: u32, timer: (u64, bool, Key)) {
        let Some(homa) = &mut self.homa else { return };
        homa.hosts[host as usize].timers.insert(timer);
        self.arm_homa(context, host);
    }

    /// Schedules the event for the first timer of a host.
    fn arm_homa(&mut self, context: &mut Context, host: u32) {
        let Some(homa) = &mut self.homa else { return };
        let own = &mut homa.hosts[host as usize];
        let Some(&(time_ps, ..)) = own.timers.first() else { return };
        if time_ps < own.timer_ps {
            own.timer_ps = time_ps;
            context.schedule(time_ps, TRANSPORT | host, TIMER);
        }
    }

    /// Checks those messages of a host whose timers have expired.
    fn look_at_late(&mut self, context: &mut Context, host: u32, now_ps: u64) {
        loop {
            let Some(homa) = &mut self.homa else { return };
            let timers = &mut homa.hosts[host as usize].timers;
            let Some(&timer) = timers.first().filter(|timer| timer.0 <= now_ps) else { return };
            timers.remove(&timer);
            let (_, is_sent, key) = timer;
            let next_ps = if is_sent {
                homa.look_at_outgoing(host, key, now_ps)
            } else {
                self.look_at_incoming(context, host, key)
            };
            if let (Some(next_ps), Some(homa)) = (next_ps, &mut self.homa) {
                homa.hosts[host as usize].timers.insert((next_ps, is_sent, key));
            }
            self.pull_message(context, host);
        }
    }

    /// If a message has timed out, requests its missing frames from the sender. Returns the time of
    /// the next check; `None` if no check is needed because no frame is expected.
    fn look_at_incoming(&mut self, context: &mut Context, host: u32, key: Key) -> Option<u64> {
        let now_ps = context.wheel.now_ps();
        let homa = self.homa.as_mut()?;
        let backoff = homa.hosts[host as usize].receiver.message(key)?.backoff;
        let (first, other) = (homa.timeout_ps(backoff), homa.timeout_ps(backoff + 1));
        let message = homa.hosts[host as usize].receiver.message(key)?;
        if !message.is_expected() {
            message.has_timer = false;
            return None;
        }
        if message.news_ps + first > now_ps {
            return Some(message.news_ps + first);
        }
        (message.news_ps, message.backoff) = (now_ps, message.backoff + 1);
        let (gaps, until) = (message.gaps(), message.granted);
        let transmissions = message.transmissions;
        message.transmissions += gaps.len() as u32;
        homa.counts.timeouts += 1;
        for (transmission, (frame, frames)) in (transmissions + 1..).zip(gaps) {
            let packet = Packet {
                source: key.0,
                destination: host,
                number: key.1,
                frame,
                until,
                transmission,
                kind: Kind::Resend { frames },
            };
            self.notify_sender(context, packet);
        }
        Some(now_ps + other)
    }
}

impl Homa {
    /// Returns the number of the next message from one host to another.
    fn number(&mut self, source: u32, destination: u32) -> u32 {
        let next = self.numbers.entry((source, destination)).or_insert_with(|| {
            self.counts.connections += 1;
            0
        });
        *next = next.wrapping_add(1);
        next.wrapping_sub(1)
    }

    /// If a message has timed out, retransmits its first frame. Returns the time of the next check;
    /// `None` if the message is complete.
    fn look_at_outgoing(&mut self, host: u32, key: Key, now_ps: u64) -> Option<u64> {
        let sender = &self.hosts[host as usize].sender;
        let message = sender.message(key)?;
        let (backoff, news_ps) = (message.backoff, message.news_ps);
        // The receiver is perhaps silent only because this host has not sent the frames yet. The
        // host sends shorter messages first.
        if sender.is_ready(key) {
            return Some(now_ps + 2 * self.timeout_ps(0));
        }
        let deadline_ps = news_ps + 2 * self.timeout_ps(backoff);
        if deadline_ps > now_ps {
            return Some(deadline_ps);
        }
        self.counts.timeouts += 1;
        self.hosts[host as usize].sender.on_silence(key, now_ps);
        Some(now_ps + 2 * self.timeout_ps(backoff + 1))
    }

    /// Returns whether an arriving frame is lost at random. The result depends only on the packet's
    /// contents and the seed.
    fn is_lost(&self, packet: &Packet, salt: u64) -> bool {
        let loss_ppm = self.configuration.loss_ppm;
        if loss_ppm == 0 {
            return false;
        }
        let kind = match packet.kind {
            Kind::Data => 0,
            Kind::Grant { .. } => 1,
            Kind::Resend { .. } => 2,
            Kind::Done => 3,
        };
        let ends = u64::from(packet.source) << 32 | u64::from(packet.destination);
        let what = u64::from(packet.number) << 32 | u64::from(packet.transmission);
        let drawn = mix(mix(mix(salt, ends), what), LOSSES + kind) >> 32;
        drawn * 1_000_000 < u64::from(loss_ppm) << 32
    }
}

/// Values of `Event::subject`. `PULL`: a host sends its next data frame. `TIMER`: a host checks its
/// timers.
const PULL: u32 = u32::MAX;
const TIMER: u32 = 0;
/// First stream of random numbers for losses; each kind of packet uses another stream.
const LOSSES: u64 = 16;
