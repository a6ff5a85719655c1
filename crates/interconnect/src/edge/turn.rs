//! The turn of a host, which runs when the processor of the host is free. In a turn, the host
//! receives frames, takes completions and events, posts operations, and sends frames.

use std::collections::VecDeque;

use delivery::{LinkId, RxFrame, TxBatch};
use engine::{Emitted, Event as News};
use mem::Payload;
use semantics::{
    Completion, CompletionKind, Operation, OperationFlags, Order, PostError, Request, Source,
};

use super::super::simulation::{Context, Message};
use super::super::workload::Origin;
use super::bytes::OperationPlace;
use super::host::{self, EngineHost, instant};
use super::{DELIVER, EdgeFabric, RAIL_SHIFT, Stream, tap};

impl EdgeFabric {
    /// Does all work that host `number` can do now.
    pub(super) fn turn(&mut self, context: &mut Context, number: u32) {
        let now_ps = context.wheel.now_ps();
        let now = instant(self.base_ns, now_ps);
        let host = &mut self.hosts[number as usize];
        host.free_ps = host.free_ps.max(now_ps);
        host.full = 0;
        self.receive(number, now_ps);
        let host = &mut self.hosts[number as usize];
        if host.engine.poll_timeout() <= now {
            host.engine.handle_timeout(now, &self.memory.access());
        }
        self.take_news(context, number, now);
        self.take_completions(context, number);
        self.post_blocked(context, number);
        self.transmit(context, number, now);
        // Notifications that waited for room in the completion queue can have entered the queue
        // after the host emptied it. Therefore the host empties the queue again.
        self.take_completions(context, number);
        let host = &self.hosts[number as usize];
        if host.engine.has_work() && host.full == 0 {
            let at_ps = host.free_ps.max(now_ps + 1);
            self.schedule_turn(context, number, at_ps);
        }
        self.arm(context, number);
    }

    /// Passes the frames that have arrived to the engine.
    fn receive(&mut self, number: u32, now_ps: u64) {
        let Self {
            hosts,
            memory,
            frames,
            work,
            base_ns,
            configuration,
            open_operations,
            bytes,
            ..
        } = self;
        let host = &mut hosts[number as usize];
        if host.inbox.is_empty() {
            return;
        }
        host.interrupt_ps = now_ps + configuration.interrupt_interval_ps;
        let access = memory.access();
        let now = instant(*base_ns, now_ps);
        let costs = &configuration.costs;
        while let Some(arrived) = host.inbox.pop_front() {
            let rail = frames.rail(arrived.frame);
            let bytes = u64::from(frames.len(arrived.frame));
            host.free_ps += costs.frame_receive_ps + costs.frame_receive_ps_per_byte * bytes;
            frames.with_bytes(arrived.frame, &mut work.received, |bytes| {
                let frame = RxFrame {
                    bytes,
                    outside: Payload::EMPTY,
                    received_at: instant(*base_ns, arrived.at_ps),
                    congestion_experienced: arrived.is_marked && configuration.sees_marks,
                    from: host::address(arrived.source, rail),
                };
                host.engine.handle_frame(now, &access, LinkId(rail), frame);
            });
            frames.remove(arrived.frame);
        }
        drop(access);
        memory.drain_ghosts(&mut work.placed);
        for placement in work.placed.drain(..) {
            if bytes.is_none() {
                open_operations.on_placed(number, &placement);
            } else {
                open_operations.violate(format!(
                    "host {number}: {placement:?} is outside the registered memory"
                ));
            }
        }
    }

    /// Handles events of the engine: connections requested, established or lost.
    fn take_news(&mut self, context: &mut Context, number: u32, now: delivery::Instant) {
        while let Some(news) = self.hosts[number as usize].engine.poll_event() {
            match news {
                News::Requested { connection, private_data, .. } => {
                    self.accept(number, now, connection, &private_data);
                }
                News::Established { connection, .. } => {
                    self.on_established(context, number, connection.index());
                }
                News::Closed { connection, reason, .. } => {
                    let pair = self.hosts[number as usize].pairs.get(connection.index() as usize);
                    let pair = pair.and_then(|&pair| self.pairs.get(pair as usize));
                    let hosts = pair.map(|pair| pair.hosts);
                    let what = format!("host {number}: connection of {hosts:?} ended: {reason}");
                    self.open_operations.violate(what);
                }
                _ => {}
            }
        }
    }

    pub(super) fn take_completions(&mut self, context: &mut Context, number: u32) {
        while let Some(completion) = self.queue.poll() {
            self.hosts[number as usize].free_ps += self.configuration.costs.completion_ps;
            match completion.kind {
                CompletionKind::Notification => self.on_notified(context, number, &completion),
                _ => self.on_completed(number, &completion),
            }
        }
    }

    /// Handles the notification that a peer has written a message.
    fn on_notified(&mut self, context: &mut Context, number: u32, completion: &Completion) {
        let host = &self.hosts[number as usize];
        let pair = host.pairs[completion.owner.index() as usize];
        let is_lower = self.pairs[pair as usize].hosts[0] == number;
        let message = completion.immediate.unwrap_or(u32::MAX);
        // The peer wrote the message, so the message belongs to the stream from the peer to this
        // host.
        let stream = 2 * pair + u32::from(is_lower);
        if let Some(bytes) = &mut self.bytes {
            bytes.on_notified(&mut self.open_operations, stream);
        }
        self.open_operations.on_notified(stream, message);
        if let Some(recorder) = &mut context.recorder {
            let hosts = self.pairs[pair as usize].hosts;
            recorder.on_notified(message, (hosts[usize::from(is_lower)], number));
        }
        if host.free_ps <= context.wheel.now_ps() {
            context.deliver(message);
        } else {
            context.schedule(host.free_ps, DELIVER | number, message);
        }
    }

    /// Handles a completed operation of this host.
    fn on_completed(&mut self, number: u32, completion: &Completion) {
        let index = completion.context as u32;
        if let Some(bytes) = &mut self.bytes {
            bytes.on_completed(&mut self.open_operations, index);
        }
        self.open_operations.on_completed(index, completion.result.is_ok());
        let stream = &mut self.streams[index as usize];
        stream.in_flight -= 1;
        self.hosts[number as usize].in_flight -= 1;
        match stream.ending.front_mut() {
            None => stream.since_end -= 1,
            Some(1) => {
                pop(&mut stream.ending, &mut self.spare_lists);
                self.open_messages -= 1;
            }
            Some(operations) => *operations -= 1,
        }
        if !stream.waiting.is_empty() {
            self.hosts[number as usize].block(&mut self.streams, index);
        }
    }

    /// Posts operations of streams that have something to post. A stream is all messages from one
    /// host to another. The streams alternate, one operation each.
    fn post_blocked(&mut self, context: &mut Context, number: u32) {
        let mut left = self.hosts[number as usize].blocked.len();
        while left > 0 {
            left -= 1;
            let Some(index) = self.hosts[number as usize].blocked.pop_front() else { break };
            match self.post(context, number, index) {
                Posted::More => {
                    self.hosts[number as usize].blocked.push_back(index);
                    left += 1;
                }
                Posted::Full => {
                    // The host's limit of operations is reached, so no other stream can post
                    // either.
                    self.hosts[number as usize].blocked.push_front(index);
                    break;
                }
                Posted::Nothing => self.streams[index as usize].is_blocked = false,
            }
        }
    }

    /// Posts the next operation of a stream, if the stream has an operation and room for it.
    /// Returns the outcome.
    fn post(&mut self, context: &mut Context, number: u32, index: u32) -> Posted {
        let Self {
            hosts,
            streams,
            spare_lists,
            pairs,
            open_operations,
            configuration,
            memory,
            bytes,
            ..
        } = self;
        let stream = &mut streams[index as usize];
        let Some(&message) = stream.waiting.front() else { return Posted::Nothing };
        let end = index as usize % 2;
        let pair = &pairs[index as usize / 2];
        let (Some(handle), true) = (pair.handles[end], pair.is_established[end]) else {
            return Posted::Nothing;
        };
        if stream.in_flight >= configuration.window {
            return Posted::Nothing;
        }
        let total = context.messages.get(message).bytes.max(1);
        let length = configuration.operation_bytes.min(total - stream.posted_bytes);
        let is_last = stream.posted_bytes + length == total;
        let (host, target) = (&hosts[number as usize], &hosts[pair.hosts[1 - end] as usize]);
        if host.in_flight >= configuration.operations {
            return Posted::Full;
        }
        let place = match bytes {
            None => OperationPlace::of_ghost(host, target, open_operations.next_address(index)),
            Some(bytes) => {
                match bytes.place(
                    memory,
                    open_operations,
                    index,
                    (host.domain, target.domain),
                    length,
                ) {
                    Ok(place) => place,
                    Err(error) => {
                        open_operations
                            .violate(format!("host {number}: memory of stream {index}: {error}"));
                        return Posted::Nothing;
                    }
                }
            }
        };
        let fence = configuration.order.is_fenced;
        let strict = configuration.order.is_strict;
        let operation = Operation {
            request: Request::Write {
                source: Source::Region { region: place.source, offset: place.offset },
                key: place.key,
                address: place.address,
            },
            length,
            flags: OperationFlags {
                fence_before: fence,
                fence_after: false,
                waits_for_answers: false,
                order: if strict { Order::Strict } else { Order::Relaxed },
                notify: false,
                signalled: true,
            },
            immediate: is_last.then_some(message),
            context: u64::from(index),
            status: None,
        };
        let host = &mut hosts[number as usize];
        match host.engine.post(&memory.access(), handle, &operation) {
            Ok(_) => {}
            Err(PostError::CompletionQueueFull(_) | PostError::NoOperationLeft(_)) => {
                return Posted::Full;
            }
            Err(error) => {
                open_operations
                    .violate(format!("host {number}: post to {:?}: {error}", pair.hosts));
                return Posted::Nothing;
            }
        }
        host.in_flight += 1;
        host.free_ps += configuration.costs.post_ps;
        open_operations.on_posted(index, length, is_last.then_some(message));
        self.counts.operations += 1;
        stream.advance(length, total, spare_lists);
        Posted::More
    }

    /// Lets the engine send until it has nothing to send or the links are full.
    fn transmit(&mut self, context: &mut Context, number: u32, now: delivery::Instant) {
        let Self { hosts, memory, frames, rails, work, configuration, counts, .. } = self;
        let Self { bytes: store, tap, .. } = self;
        let host = &mut hosts[number as usize];
        let EngineHost { engine, free_ps, full, queue_ps, .. } = host;
        let queue_ps = *queue_ps;
        let access = memory.access();
        engine.exchange_scratch(&mut work.scratch);
        let costs = &configuration.costs;
        loop {
            let mut taken = 0;
            let mut emit = |link: LinkId, batch: &TxBatch| {
                let to = host::host_and_rail(batch.to());
                for index in 0..batch.len() {
                    let rail = &mut rails[usize::from(link.0)];
                    if rail.host_free_ps(number) > *free_ps + queue_ps {
                        *full |= 1 << link.0;
                        return Emitted::Taken(index);
                    }
                    let frame = batch.frame(index);
                    let bytes = frame.len() as u32;
                    *free_ps +=
                        costs.frame_send_ps + costs.frame_send_ps_per_byte * u64::from(bytes);
                    counts.frames_sent += 1;
                    taken += 1;
                    // Rails are separate networks, so no host of this rail has the address.
                    let Some((destination, _)) = to.filter(|&(_, rail)| rail == link.0) else {
                        counts.frames_astray += 1;
                        continue;
                    };
                    let message = Message {
                        posted_ps: *free_ps,
                        source: number,
                        destination,
                        bytes: bytes + configuration.envelope_bytes,
                        tag: match store {
                            None => frames.insert(link.0, &frame),
                            Some(store) => {
                                frames.insert(link.0, &store.whole(&frame, &mut work.whole))
                            }
                        },
                        remaining: 0,
                        is_marked: false,
                        origin: Origin::default(),
                    };
                    if let Some(tap) = tap {
                        let ends = (number, destination);
                        tap::on_sent(&mut **tap, frames, &mut work.received, ends, &message);
                    }
                    let message = context.messages.insert(message);
                    if let Some(recorder) = &mut context.recorder {
                        recorder.set_rail(link.0.into());
                        recorder.on_frame(message, (number, destination));
                    }
                    context.set_place_base(u32::from(link.0) << RAIL_SHIFT);
                    rail.inject_at(context, message, *free_ps);
                }
                Emitted::Taken(batch.len())
            };
            let more = engine.poll_transmit(now, &access, &mut emit);
            if !more || taken == 0 {
                break;
            }
        }
        context.set_place_base(0);
        engine.exchange_scratch(&mut work.scratch);
        drop(access);
        if *full != 0 {
            self.wait_for_room(context, number);
        }
        self.on_rails_lost(context);
    }

    /// Schedules a turn for the time when the transmit queue of a full link will be half empty. If
    /// several links are full, chooses the earliest of these times.
    fn wait_for_room(&mut self, context: &mut Context, number: u32) {
        let full = self.hosts[number as usize].full;
        let rails = self.rails.iter().enumerate().filter(|(rail, _)| full >> rail & 1 != 0);
        let free_ps = rails.map(|(_, rail)| rail.host_free_ps(number)).min();
        if let Some(free_ps) = free_ps {
            let queue_ps = self.hosts[number as usize].queue_ps;
            let at_ps = free_ps.saturating_sub(queue_ps / 2);
            self.schedule_turn(context, number, at_ps.max(context.wheel.now_ps() + 1));
        }
    }

    /// Handles frames that the rails have lost.
    pub(super) fn on_rails_lost(&mut self, context: &mut Context) {
        while let Some(message) = context.take_lost() {
            let lost = context.messages.remove(message);
            self.frames.remove(lost.tag);
            self.counts.frames_lost_in_network += 1;
        }
    }
}

/// Result of an attempt to post an operation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Posted {
    /// The operation was posted; the stream may have more to post.
    More,
    /// The stream cannot post now: it has no message, no connection, or no room in its window.
    Nothing,
    /// The host has too many outstanding operations to post more.
    Full,
}

impl Stream {
    /// Records that an operation of `length` bytes was posted for the first waiting message, which
    /// has `total` bytes.
    fn advance(&mut self, length: u32, total: u32, spare: &mut Vec<VecDeque<u32>>) {
        self.in_flight += 1;
        self.since_end += 1;
        self.posted_bytes += length;
        if self.posted_bytes == total {
            self.posted_bytes = 0;
            pop(&mut self.waiting, spare);
            push(&mut self.ending, std::mem::take(&mut self.since_end), spare);
        }
    }
}

/// Appends to a list of a stream. If the list has no memory yet, it takes the memory of a list in
/// `spare`.
pub(super) fn push(list: &mut VecDeque<u32>, value: u32, spare: &mut Vec<VecDeque<u32>>) {
    if list.capacity() == 0 {
        *list = spare.pop().unwrap_or_default();
    }
    list.push_back(value);
}

/// Removes the first entry of a list of a stream. If the list is then empty, moves its memory to
/// `spare`.
fn pop(list: &mut VecDeque<u32>, spare: &mut Vec<VecDeque<u32>>) {
    list.pop_front();
    if list.is_empty() && list.capacity() > 0 {
        spare.push(std::mem::take(list));
    }
}

impl EngineHost {
    /// Adds a stream to the list of streams that have something to post.
    pub(super) fn block(&mut self, streams: &mut [Stream], index: u32) {
        let stream = &mut streams[index as usize];
        if !stream.is_blocked {
            stream.is_blocked = true;
            self.blocked.push_back(index);
        }
    }
}
