//! One-way writes whose bytes are all checked. The target checks the bytes, and records the
//! progress over time.
//!
//! Message `k` is written to slot `k` modulo [`SLOTS`] of the target, with a notification. The
//! target compares all bytes with the expected bytes. Then it writes the number of checked messages
//! into the requester's memory. The requester reuses a slot only after the target has checked the
//! slot.

use ethernot::{CompletionKind, Order, RemoteRegion, Request, Source};

use super::{Half, other};
use crate::transport::{Observed, Setup, TransportError, counter};
use crate::transports::idle_limit::IdleLimit;
use testbed::clock;

/// Highest number of messages that are in flight or not yet checked.
pub(super) const SLOTS: u64 = 16;

/// Returns the bytes of memory that an end needs: slots for incoming and for outgoing messages, and
/// the word with the number of checked messages.
pub(super) fn buffer_bytes(setup: &Setup) -> u64 {
    2 * (SLOTS * setup.message_bytes + super::WORD_BYTES)
}

/// Bytes that arrived in each millisecond of this host's clock.
#[derive(Debug, Default)]
struct Timeline {
    start_ms: u64,
    bytes: Vec<u32>,
}

impl Timeline {
    fn add(&mut self, bytes: u64) {
        let now_ms = clock::monotonic_ns() / 1_000_000;
        if self.bytes.is_empty() {
            self.start_ms = now_ms;
        }
        let index = now_ms.saturating_sub(self.start_ms) as usize;
        if index < TIMELINE_MS_MAX {
            self.bytes.resize(self.bytes.len().max(index + 1), 0);
            if let Some(bucket) = self.bytes.get_mut(index) {
                *bucket = bucket.saturating_add(bytes as u32);
            }
        }
    }
}

impl Half {
    /// Returns the offset of the word to which the peer writes the number of checked messages.
    fn result_at(&self) -> u64 {
        SLOTS * self.message_bytes
    }

    /// Returns the offset of the outgoing messages.
    fn outgoing_at(&self) -> u64 {
        self.result_at() + super::WORD_BYTES
    }

    /// Runs at the requester: writes `count` messages and waits until all were checked.
    pub(super) fn stream_to_be_verified(&mut self, count: u64) -> Result<(), TransportError> {
        let first = self.rounds + 1;
        let last = self.rounds + count;
        self.rounds = last;
        let (connection, remote) = self.parts()?;
        let mut next = first;
        let mut idle_limit = IdleLimit::new("stream verified writes over edge");
        loop {
            let checked = self.buffer.load_u64(self.result_at());
            while next <= last && next - checked <= SLOTS {
                self.fill(next);
                let operation = self.verified_write(remote, next);
                connection.post(&operation).map_err(other)?;
                next += 1;
                idle_limit.on_progress();
            }
            if checked == last {
                return Ok(());
            }
            match connection.poll().map_err(other)? {
                Some(completion) => drop(completion.result.map_err(other)?),
                None => idle_limit.on_idle()?,
            }
        }
    }

    /// Runs at the target: checks `count` messages as they arrive.
    pub(super) fn verify_stream(&mut self, count: u64) -> Result<Observed, TransportError> {
        let last = self.rounds + count;
        let mut timeline = Timeline::default();
        let mut corrupted = 0_u64;
        let mut idle_limit = IdleLimit::new("receive verified writes over edge");
        while self.rounds < last {
            let (connection, remote) = self.parts()?;
            let Some(completion) = connection.poll().map_err(other)? else {
                idle_limit.on_idle()?;
                continue;
            };
            idle_limit.on_progress();
            completion.result.map_err(other)?;
            if completion.kind != CompletionKind::Notification {
                continue;
            }
            let number = self.rounds + 1;
            let is_expected = completion.immediate == Some(number as u32);
            corrupted += u64::from(!is_expected || !self.is_intact(number));
            timeline.add(self.message_bytes);
            // Use the memory for outgoing messages as the source of the report. This memory is
            // free, because the target sends no messages.
            let word_at = self.outgoing_at();
            self.buffer.store_u64(word_at, number);
            // Each report overwrites the same word of the requester, so the reports need strict
            // order. With relaxed order, an older report could be placed last. The requester would
            // then wait forever.
            let mut operation = self.operation(remote, Order::Strict);
            operation.request = Request::Write {
                source: Source::Region { region: self.region.region().id, offset: word_at },
                key: remote.key,
                address: remote.address + self.result_at(),
            };
            operation.length = super::WORD_BYTES as u32;
            operation.flags.signalled = false;
            connection.post(&operation).map_err(other)?;
            self.rounds = number;
        }
        let mut observed = Observed { timeline: timeline.bytes, ..Observed::default() };
        observed.counters.insert(counter::CORRUPTED.to_string(), corrupted as f64);
        observed.timeline_start_ms = timeline.start_ms;
        Ok(observed)
    }

    fn verified_write(&self, remote: RemoteRegion, number: u64) -> ethernot::Operation {
        let slot_at = number % SLOTS * self.message_bytes;
        let mut operation = self.operation(remote, Order::Relaxed);
        operation.request = Request::Write {
            source: Source::Region {
                region: self.region.region().id,
                offset: self.outgoing_at() + slot_at,
            },
            key: remote.key,
            address: remote.address + slot_at,
        };
        operation.immediate = Some(number as u32);
        operation.flags.signalled = number.is_multiple_of(SLOTS / 2);
        operation
    }

    fn fill(&self, number: u64) {
        let start = self.outgoing_at() + number % SLOTS * self.message_bytes;
        for index in 0..self.message_bytes / 8 {
            self.buffer.store_u64(start + index * 8, word(number, index));
        }
    }

    fn is_intact(&self, number: u64) -> bool {
        let start = number % SLOTS * self.message_bytes;
        (0..self.message_bytes / 8)
            .all(|index| self.buffer.load_u64(start + index * 8) == word(number, index))
    }
}

/// Returns word `index` of message `number`. The same word differs in neighbouring messages.
const fn word(number: u64, index: u64) -> u64 {
    number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index.wrapping_mul(0xd1b5_4a32_d192_ed03)
}

/// Longest timeline: one minute, which is longer than any stream of this test.
const TIMELINE_MS_MAX: usize = 60_000;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::thread;

    use ethernot::{Endpoint, Fault, FaultConfig, UdpConfig, UdpLink};

    use super::super::SERVICE;
    use super::*;
    use crate::transport::{Test, Waiting};

    /// Messages of one stream. If an older report is placed after a newer report, the next report
    /// overwrites the wrong value. The last report of a stream has no next report, so there the
    /// fault stays visible. Therefore the test has many short streams.
    const MESSAGES: u64 = 20;
    const STREAMS: u64 = 200;

    /// Makes an endpoint whose link reorders arriving frames.
    fn endpoint(seed: u64) -> Endpoint {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let udp = UdpLink::bind(address, &UdpConfig::default()).expect("a socket on loopback");
        let config = FaultConfig::default().seed(seed).reordering(0.3).distance_frames(16);
        let link = Fault::new(udp, config).expect("the fault configuration is valid");
        Endpoint::builder().link(Box::new(link)).build().expect("an endpoint")
    }

    #[test]
    fn verified_messages_are_reported_in_order_when_frames_are_reordered() {
        let setup = Setup {
            test: Test::VerifiedStream,
            message_bytes: 4096,
            links: Vec::new(),
            client_links: Vec::new(),
            server_links: Vec::new(),
            mtu: None,
            in_flight: 1,
            connections: 1,
            in_order: false,
            waiting: Waiting::Poll,
            delays_us: Vec::new(),
            rates: Vec::new(),
        };
        let (client, server) = (endpoint(1), endpoint(2));
        let listener = server.listen(SERVICE).expect("no other listener has the service");
        let address = server.local_addresses().expect("not forked")[0];
        let mut target = Half::new(&server, &setup).expect("memory");
        let mut requester = Half::new(&client, &setup).expect("memory");
        thread::scope(|scope| {
            let target = &mut target;
            let checking = scope.spawn(move || {
                let request = listener.accept(None).expect("a request");
                target.adopt(request.accept_with(target.options()).unwrap()).unwrap();
                let checked = |_| target.verify_stream(MESSAGES).expect("all come");
                (0..STREAMS).map(checked).all(|it| it.counters[counter::CORRUPTED] == 0.0)
            });
            let connection = client.connect_with(address, requester.options()).expect("accepted");
            requester.adopt(connection).unwrap();
            for _ in 0..STREAMS {
                requester
                    .stream_to_be_verified(MESSAGES)
                    .expect("the target reports that it has checked all messages");
            }
            assert!(
                checking.join().expect("the target ends"),
                "the target received a message with wrong content"
            );
        });
    }
}
