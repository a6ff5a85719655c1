//! Measures costs for the acceptance table. Two engines run in one thread, which copies the frames
//! from one engine to the other.

mod pair;

use std::sync::Arc;
use std::time;

use delivery::{Instant, RxFrame};
use engine::{ConnectionHandle, Emitted};
use mem::Payload;
use pair::{Host, Pair, address};
use semantics::{OperationFlags, Receive, Request, SharedReceives};

/// Number of connections between the two engines. It exceeds the number of outstanding messages, so
/// each connection has at most one outstanding message.
const CONNECTIONS: usize = 1000;

/// Messages per connection in a round. `IN_FLIGHT` is the number of outstanding messages.
const MESSAGES: u64 = 40;
const IN_FLIGHT: u64 = 256;

const MESSAGE_BYTES: u32 = 64;

/// Many connections between two hosts. Either all connections share a queue with one receive per
/// outstanding message, or each connection has one receive.
struct Setting {
    pair: Pair,
    shared: Option<Arc<SharedReceives>>,
    handles: Vec<[ConnectionHandle; 2]>,
    frame: Vec<u8>,
}

impl Setting {
    fn new(shares: bool) -> Self {
        let mut pair = Pair::new(1);
        for host in &mut pair.hosts {
            host.terms.queue_pair = true;
            // Turn keep-alives off, because the test measures only messages.
            host.terms.grants.keep_alive_ns = Some(u64::MAX);
        }
        let shared = shares.then(|| Arc::new(SharedReceives::new(IN_FLIGHT as usize)));
        pair.hosts[1].terms.shared_receives.clone_from(&shared);
        pair.establish();
        let mut handles = vec![pair.hosts.each_ref().map(|host| host.connection.unwrap())];
        while handles.len() < CONNECTIONS {
            pair.connect();
            pair.run_for(1_000_000);
            handles.push(pair.hosts.each_ref().map(|host| host.connection.unwrap()));
        }
        let mut setting = Self { pair, shared, handles, frame: Vec::with_capacity(2048) };
        if shares {
            (0..IN_FLIGHT).for_each(|_| setting.receive(0));
        } else {
            // Each connection has at most one outstanding message.
            (0..CONNECTIONS).for_each(|index| setting.receive(index));
        }
        setting.pair.run_for(100_000_000);
        setting
    }

    /// Posts a receive for the next message of a connection.
    fn receive(&mut self, connection: usize) {
        let now = self.pair.now;
        let Host { engine, memory, region, .. } = &mut self.pair.hosts[1];
        let receive = Receive {
            region: region.id,
            offset: 0,
            length: MESSAGE_BYTES,
            context: connection as u64,
        };
        match &self.shared {
            None => {
                let to = self.handles[connection][1];
                engine.post_receive(&memory.access(), to, receive).unwrap();
            }
            Some(shared) => {
                if shared.post(receive).unwrap() {
                    engine.on_receives_posted(now, &memory.access(), shared);
                }
            }
        }
    }

    /// Runs a turn of both hosts at the same time. Frames arrive without delay.
    fn turn(&mut self) {
        self.pair.now = self.pair.now.after_ns(1_000);
        let now: Instant = self.pair.now;
        for from in [0, 1] {
            let [first, second] = &mut self.pair.hosts;
            let (own, other) = if from == 0 { (first, second) } else { (second, first) };
            let (access, other_access) = (own.memory.access(), other.memory.access());
            if own.engine.poll_timeout() <= now {
                own.engine.handle_timeout(now, &access);
            }
            own.engine.poll_transmit(now, &access, &mut |link, batch| {
                for index in 0..batch.len() {
                    let (bytes, frame) = (&mut self.frame, batch.frame(index));
                    bytes.clear();
                    bytes.extend_from_slice(frame.header);
                    if frame.payload.len > 0 {
                        let length = frame.payload.len as usize;
                        // SAFETY: the hosts' buffers outlive the turn, and no other thread runs.
                        let payload =
                            unsafe { std::slice::from_raw_parts(frame.payload.start, length) };
                        bytes.extend_from_slice(payload);
                    }
                    let frame = RxFrame {
                        bytes,
                        outside: Payload::EMPTY,
                        received_at: now,
                        congestion_experienced: false,
                        from: address(from, link.0),
                    };
                    other.engine.handle_frame(now, &other_access, link, frame);
                }
                Emitted::Taken(batch.len())
            });
            while own.engine.poll_event().is_some() {}
        }
    }

    /// Sends messages on all connections, one connection after the other. Returns the nanoseconds
    /// per message.
    #[expect(clippy::disallowed_methods, reason = "it measures")]
    fn round(&mut self) -> f64 {
        let flags = OperationFlags { signalled: true, ..OperationFlags::default() };
        let source = self.pair.source(0, 0);
        let messages = MESSAGES * CONNECTIONS as u64;
        let (mut posted, mut sent, mut received) = (0, 0, 0);
        let began = time::Instant::now();
        while sent < messages || received < messages {
            while posted < messages && posted < IN_FLIGHT + sent.min(received) {
                let connection = posted as usize % CONNECTIONS;
                self.pair.hosts[0].connection = Some(self.handles[connection][0]);
                let send = Request::Send { source };
                self.pair.try_post(0, send, MESSAGE_BYTES, posted, flags).unwrap();
                posted += 1;
            }
            self.turn();
            while let Some(done) = self.pair.hosts[0].queue.poll() {
                assert_eq!(done.result, Ok(()));
                sent += 1;
            }
            while let Some(done) = self.pair.hosts[1].queue.poll() {
                assert_eq!(done.result, Ok(()));
                received += 1;
                self.receive(done.context as usize);
            }
        }
        began.elapsed().as_nanos() as f64 / messages as f64
    }
}

#[test]
#[ignore = "slow: run by hand, in release mode with --ignored --nocapture; prints a figure"]
fn shared_receives_against_own_ones() {
    let (mut shares, mut own) = (Setting::new(true), Setting::new(false));
    let _warms_up = [shares.round(), own.round()];
    let mut ratios = Vec::new();
    for _ in 0..21 {
        let [of_shared, of_own] = [shares.round(), own.round()];
        println!("a message takes {of_shared:.0} ns and {of_own:.0} ns");
        ratios.push(of_shared / of_own);
    }
    ratios.sort_by(f64::total_cmp);
    println!("figure: shared against own receives: {:.3}", ratios[10]);
}
