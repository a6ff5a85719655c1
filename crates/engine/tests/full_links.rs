//! Tests of drivers that are full and accept no frames for a while.

mod pair;

use std::collections::VecDeque;
use std::sync::Arc;

use delivery::{Instant, LinkId, LinkState, RxFrame, TxBatch};
use engine::{ConnectRequest, ConnectionHandle, Emitted, EngineConfig, Event, Terms};
use mem::Payload;
use pair::{Host, LinkPlan, Pair, address, caps, share_memory};
use semantics::{Operation, OperationFlags, Request, Source};

#[test]
fn an_acknowledgement_blocked_by_a_full_link_leaves_no_expired_timer() {
    let mut pair = Pair::connected(1);
    pair.take = Box::new(|host, _, frames| Emitted::Taken(if host == 1 { 0 } else { frames }));
    pair.write(0, 0, 100_000, 1);
    // In each turn, the engine tries to send this write before it sends acknowledgements, and finds
    // that the link is full.
    pair.write(1, 200_000, 8, 2);
    pair.run_until(1_000_000, "the other host cannot send its frames", |pair| pair.hosts[1].more);
    // If a timer lies in the past, time does not advance. The test network panics in that case.
    pair.run_for(500_000);
    assert!(
        pair.hosts[1].engine.poll_timeout() > pair.now,
        "the timer is in the past, so the driver would spin"
    );
    pair.take = Box::new(|_, _, frames| Emitted::Taken(frames));
    pair.run_for(1_000_000_000);
    assert!(pair.done(0).iter().all(|completion| completion.result.is_ok()));
    pair.assert_idle();
}

#[test]
fn questions_blocked_by_a_full_link_leave_no_expired_timer() {
    let mut pair = Pair::new(1);
    pair.take = Box::new(|_, _, _| Emitted::Taken(0));
    // The number of connections exceeds the limit of waiting replies.
    for _ in 0..QUESTIONS {
        pair.connect();
    }
    // Now each connection has to repeat its Hello.
    pair.turn(0);
    pair.now = pair.now.after_ns(100_000_000);
    pair.turn(0);
    assert!(pair.hosts[0].more && pair.frames == 0);
    assert!(
        pair.hosts[0].engine.poll_timeout() > pair.now,
        "the timer is in the past, so the driver would spin"
    );
    // When the link has room, all Hellos leave immediately, without a timer.
    pair.take = Box::new(|_, _, frames| Emitted::Taken(frames));
    pair.turn(0);
    assert!(pair.frames >= QUESTIONS, "{} frames", pair.frames);
}

/// A number above the limit of waiting replies.
const QUESTIONS: u64 = 300;

#[test]
fn control_messages_refused_by_a_full_driver_are_sent_when_it_has_room() {
    let mut pair = Pair::connected(2);
    let handle = pair.hosts[0].connection.unwrap();
    let before = pair.hosts[0].info().paths[0].counters;
    pair.take = Box::new(|host, _, frames| Emitted::Taken(if host == 0 { 0 } else { frames }));
    pair.hosts[0].engine.remove_path(handle, 1).unwrap();
    pair.turn(0);
    let path = &pair.hosts[0].info().paths[0];
    assert_eq!((path.in_flight_bytes, path.counters), (0, before));
    assert!(pair.hosts[0].more, "they wait for room");
    pair.take = Box::new(|_, _, frames| Emitted::Taken(frames));
    pair.turn(0);
    assert_eq!(
        pair.hosts[0].info().paths[0].counters.control_frames_sent,
        before.control_frames_sent + 1
    );
    pair.run_until(500_000, "the peer hears before any timer", |pair| {
        pair.hosts[1].info().paths.len() == 1
    });
    pair.run_for(1_000_000_000);
    pair.assert_idle();
}

#[test]
fn a_close_refused_by_a_full_driver_is_sent_when_it_has_room() {
    let mut pair = Pair::connected(1);
    let handle = pair.hosts[0].connection.unwrap();
    pair.take = Box::new(|host, _, frames| Emitted::Taken(if host == 0 { 0 } else { frames }));
    pair.hosts[0].engine.close(pair.now, handle, &[]).unwrap();
    pair.turn(0);
    pair.take = Box::new(|_, _, frames| Emitted::Taken(frames));
    pair.turn(0);
    assert_eq!(pair.wire.len(), 1, "no timer is needed");
}

#[test]
fn a_challenge_answer_refused_by_a_full_driver_is_sent_before_the_next_challenge() {
    let mut pair = Pair::connected(1);
    let handle = pair.hosts[0].connection.unwrap();
    for host in 0..2 {
        let caps = caps(host, 1, &LinkPlan::default());
        pair.hosts[host].engine.attach_link(LinkId(1), caps).unwrap();
    }
    pair.channels.iter_mut().for_each(|links| links.push(links[0]));
    let mut refused = 0;
    pair.take = Box::new(move |host, link, frames| {
        let is_refused = (host, link) == (1, 1) && refused < 3;
        refused += u32::from(is_refused);
        Emitted::Taken(if is_refused { 0 } else { frames })
    });
    pair.hosts[0].engine.add_path(pair.now, handle, LinkId(1), address(1, 1)).unwrap();
    pair.run_until(9_000_000, "the first challenge is answered", |pair| {
        pair.hosts[0].info().paths.iter().filter(|path| path.state == LinkState::Up).count() == 2
    });
}

#[test]
fn mtu_probes_refused_by_a_full_driver_do_not_count_as_lost() {
    let plan =
        LinkPlan { frame_bytes_max: 9000, frame_bytes_safe: 1200, rate: None, offloads: false };
    let mut pair = Pair::with(&[plan], EngineConfig::default());
    // The engine sends each probe in a separate batch. The driver refuses every second batch of one
    // frame.
    let mut refuses = false;
    pair.take = Box::new(move |host, _, frames| {
        refuses = host == 0 && frames == 1 && !refuses;
        Emitted::Taken(if refuses { 0 } else { frames })
    });
    pair.establish();
    pair.write(0, 0, 1_000_000, 1);
    pair.run_for(3_000_000_000);
    pair.write(0, 0, 1_000_000, 2);
    pair.run_for(3_000_000_000);
    let path = &pair.hosts[0].info().paths[0];
    let probes = (path.counters.mtu_probes_sent, path.counters.mtu_probes_lost);
    assert_eq!((path.frame_bytes, probes), (9000, (1, 0)));
}

/// Several hosts on one link. The first host exchanges frames with each other host.
struct Star {
    now: Instant,
    hosts: Vec<Host>,
    /// Frames in flight, each with its receiver and its sender. They arrive in the next turn.
    wire: VecDeque<(usize, usize, Vec<u8>)>,
    /// Returns how many frames of a batch the driver of the first host accepts. The arguments are
    /// the receiving host and the number of frames in the batch.
    take: Box<dyn FnMut(usize, usize) -> usize>,
    /// Number of frames that the first host sent to each host.
    sent: Vec<u64>,
}

impl Star {
    fn new(hosts: usize) -> Self {
        let plan =
            LinkPlan { frame_bytes_max: 1472, frame_bytes_safe: 1472, rate: None, offloads: false };
        let host = |number| Host::new(number, number as u8 + 1, &[plan], EngineConfig::default());
        let mut star = Self {
            now: Instant(1_000),
            hosts: (0..hosts).map(host).collect(),
            wire: VecDeque::new(),
            take: Box::new(|_, frames| frames),
            sent: vec![0; hosts],
        };
        for host in &mut star.hosts {
            host.engine.listen(0);
        }
        star
    }

    fn connect(&mut self, from: usize, to: usize) -> ConnectionHandle {
        let host = &mut self.hosts[from];
        let request = ConnectRequest {
            paths: vec![(LinkId(0), address(to, 0))],
            service: 0,
            private_data: Vec::new(),
            domain: host.domain,
            queues: Arc::clone(&host.queue).into(),
            terms: Terms::default(),
        };
        host.engine.connect(self.now, request).unwrap()
    }

    fn write(&mut self, connection: ConnectionHandle, to: usize, length: u32, context: u64) {
        let region = self.hosts[to].region;
        let Host { engine, memory, region: own, .. } = &mut self.hosts[0];
        let source = Source::Region { region: own.id, offset: 0 };
        let request = Request::Write { source, key: region.key, address: region.start };
        let flags = OperationFlags { signalled: true, ..OperationFlags::default() };
        let operation =
            Operation { request, length, flags, immediate: None, context, status: None };
        engine.post(&memory.access(), connection, &operation).unwrap();
    }

    /// Runs one turn of each host, 10 µs after the previous turn.
    fn turn(&mut self) {
        self.now = self.now.after_ns(10_000);
        let now = self.now;
        for (to, from, mut bytes) in std::mem::take(&mut self.wire) {
            let Host { engine, memory, .. } = &mut self.hosts[to];
            let frame = RxFrame {
                bytes: &mut bytes,
                outside: Payload::EMPTY,
                received_at: now,
                congestion_experienced: false,
                from: address(from, 0),
            };
            engine.handle_frame(now, &memory.access(), LinkId(0), frame);
        }
        for number in 0..self.hosts.len() {
            self.transmit(number);
        }
    }

    fn transmit(&mut self, number: usize) {
        let Self { now, hosts, wire, take, sent, .. } = self;
        let (now, count) = (*now, hosts.len());
        let Host { engine, memory, queue, domain, events, .. } = &mut hosts[number];
        engine.handle_timeout(now, &memory.access());
        engine.poll_transmit(now, &memory.access(), &mut |_, batch: &TxBatch| {
            let to = (0..count).find(|&host| address(host, 0) == batch.to()).unwrap();
            let taken = if number == 0 { take(to, batch.len()) } else { batch.len() };
            for index in 0..taken {
                let frame = batch.frame(index);
                let mut bytes = frame.header.to_vec();
                if frame.payload.len > 0 {
                    let (start, len) = (frame.payload.start, frame.payload.len as usize);
                    // SAFETY: the hosts' buffers outlive the turn, and no other thread runs.
                    bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(start, len) });
                }
                sent[to] += u64::from(number == 0);
                wire.push_back((to, number, bytes));
            }
            Emitted::Taken(taken)
        });
        while let Some(event) = engine.poll_event() {
            if let Event::Requested { connection, .. } = event {
                engine.accept(now, connection, *domain, Arc::clone(queue), &[]).unwrap();
            }
            events.push(event);
        }
    }

    fn run(&mut self, turns: u32) {
        (0..turns).for_each(|_| self.turn());
    }

    /// Returns the contexts of the first host's new completions.
    fn done(&self) -> Vec<u64> {
        let completions = std::iter::from_fn(|| self.hosts[0].queue.poll());
        completions
            .map(|completion| completion.result.map(|()| completion.context).unwrap())
            .collect()
    }
}

#[test]
fn a_peer_that_stops_reading_its_ring_blocks_no_other_peer() {
    share_memory();
    let mut star = Star::new(4);
    let [stopped, other] = [1, 2].map(|to| star.connect(0, to));
    star.run(100);
    assert_eq!(star.hosts[0].established(), 2);
    star.take = Box::new(|to, frames| if to == 1 { 0 } else { frames });
    star.write(stopped, 1, 100_000, 1);
    for round in 0..10 {
        star.write(other, 2, 100_000, 10 + round);
        star.run(100);
        assert_eq!(star.done(), [10 + round]);
    }
    // The stopped peer sends more Hellos than the limit of waiting replies. These Hellos do not
    // delay other hosts either.
    for _ in 0..300 {
        star.connect(1, 0);
    }
    star.run(10);
    let last = star.connect(3, 0);
    star.run(100);
    assert!(star.hosts[3].engine.info(last).unwrap().established);
    star.take = Box::new(|_, frames| frames);
    star.run(100_000);
    assert_eq!(star.done(), [1]);
}

#[test]
fn connections_take_turns_on_a_full_link() {
    let mut star = Star::new(5);
    let connections = [1, 2, 3, 4].map(|to| star.connect(0, to));
    star.run(100);
    assert_eq!(star.hosts[0].established(), 4);
    // The driver has room for four frames in each turn.
    let room = std::rc::Rc::new(std::cell::Cell::new(0_usize));
    let left = std::rc::Rc::clone(&room);
    star.take = Box::new(move |_, frames| {
        let taken = frames.min(left.get());
        left.set(left.get() - taken);
        taken
    });
    for (to, connection) in (1..).zip(connections) {
        star.write(connection, to, 1_000_000, to as u64);
    }
    star.sent.fill(0);
    for _ in 0..400 {
        room.set(4);
        star.turn();
    }
    let sent: u64 = star.sent.iter().sum();
    assert!(sent > 1_500, "{sent} frames in 400 turns");
    for (to, frames) in star.sent.iter().enumerate().skip(1) {
        assert!(frames * 8 > sent, "host {to} got {frames} of {sent} frames");
    }
}
