//! Batches for drivers with segmentation offload. Such a driver sends many frames in one call, for
//! the cost of one frame.

mod pair;

use std::collections::HashSet;

use engine::{Closed, Emitted, EngineConfig};
use pair::{LinkPlan, Pair};
use semantics::OperationError;

/// Bytes of an operation. They fill 46 frames, and the last frame is short.
const MESSAGE_BYTES: u32 = 65_536;

/// Number of operations that are outstanding at the same time.
const IN_FLIGHT: u64 = 32;

/// Number of ranges of memory. Consecutive operations write to different ranges.
const PLACES: u64 = 32;

/// Returns a connection over one link with segmentation offload and this rate, in bits per second.
fn offloading(rate: u64) -> Pair {
    let plan = LinkPlan { rate: Some(rate), offloads: true, ..LinkPlan::default() };
    let mut pair = Pair::connected_with(&[plan], EngineConfig::default());
    for channel in pair.channels.iter_mut().flatten() {
        channel.queue_bytes = 1 << 22;
    }
    pair.fill(0, PLACES * u64::from(MESSAGE_BYTES));
    pair
}

/// Posts `count` writes on the first host, with [`IN_FLIGHT`] outstanding at a time, and waits
/// until all are complete.
fn stream(pair: &mut Pair, count: u64) {
    let (mut posted, mut done) = (0, 0);
    while done < count {
        while posted < count && posted - done < IN_FLIGHT {
            pair.write(0, posted % PLACES * u64::from(MESSAGE_BYTES), MESSAGE_BYTES, posted);
            posted += 1;
        }
        let until = pair.now.after_ns(1_000_000_000);
        assert!(pair.step(until), "{done} of {count} messages are done");
        for completion in pair.done(0) {
            assert_eq!((completion.context, completion.result), (done, Ok(())));
            done += 1;
        }
    }
}

/// Returns the number of driver messages per 44 full frames, in a long stream over a link with this
/// rate. A driver message is the content of one system call of the driver.
fn driver_messages(rate: u64) -> f64 {
    let mut pair = offloading(rate);
    stream(&mut pair, 200);
    let before = pair.messages[0];
    stream(&mut pair, 1_000);
    let frames = 1_000 * u64::from(MESSAGE_BYTES.div_ceil(1_436));
    assert!(pair.same(PLACES * u64::from(MESSAGE_BYTES)));
    (pair.messages[0] - before) as f64 / (frames as f64 / 44.0)
}

#[test]
fn the_end_of_an_operation_does_not_split_the_batch_of_an_offloading_driver() {
    // The rates stand for hosts with 0.5, 1, 2 and 4 times the speed of a host that reaches 40
    // Gb/s. On still slower hosts, batches are always short.
    for gigabits in [20, 40, 80, 160] {
        let messages = driver_messages(gigabits * 1_000_000_000);
        // If the sender did not defer the ends of operations, 44 frames would need 2.3 driver
        // messages. If a batch had only the bytes of 16 µs, 44 frames would need 2.0 driver
        // messages at 20 Gb/s. With both, 44 frames need 1.4 to 1.6 driver messages.
        assert!(messages < 1.8, "{gigabits} Gb/s: {messages:.2} messages for 44 frames");
    }
}

#[test]
fn deferred_ends_arrive_despite_lost_frames_and_full_drivers() {
    let mut pair = offloading(40_000_000_000);
    pair.filter = Box::new(|number, _| number % 97 != 0);
    let mut calls = 0;
    pair.take = Box::new(move |host, _, frames| {
        calls += 1;
        Emitted::Taken(if host == 0 && calls % 5 == 0 { frames / 2 } else { frames })
    });
    stream(&mut pair, 300);
    assert!(pair.same(PLACES * u64::from(MESSAGE_BYTES)));
    pair.run_for(5_000_000_000);
    pair.assert_idle();
}

//= protocol.md: packet.1
/// A driver reports that it has no room, but the frames leave the host. The sender must not reuse
/// the packet numbers of these frames, because the peer would treat later frames with these numbers
/// as duplicates.
#[test]
fn packet_numbers_of_refused_frames_that_left_anyway_are_not_reused() {
    let mut pair = offloading(40_000_000_000);
    let mut numbers = HashSet::new();
    pair.filter = Box::new(move |_, flight| {
        let number = wire_edge::peek_prefix(&flight.bytes).map(|prefix| prefix.packet);
        let is_new = number.is_ok_and(|number| numbers.insert((flight.to, number)));
        assert!(is_new, "{number:?} is used twice");
        true
    });
    let mut calls = 0;
    pair.take = Box::new(move |host, _, frames| {
        calls += 1;
        if host == 0 && calls % 5 == 0 {
            return Emitted::Doubtful { taken: frames / 3, doubtful: frames.div_ceil(2) };
        }
        Emitted::Taken(frames)
    });
    stream(&mut pair, 300);
    assert!(pair.same(PLACES * u64::from(MESSAGE_BYTES)));
    pair.run_for(5_000_000_000);
    pair.assert_idle();
    let info = pair.hosts[0].info();
    assert_eq!(info.paths[0].counters.packets_lost, 0, "a refusal is no loss");
}

/// Asserts that all operations of a stream complete in order after the memory of the stream is
/// gone, and that exactly one operation reports the missing memory.
fn assert_the_stream_ends(pair: &mut Pair, first: u64) {
    pair.run_for(5_000_000_000);
    let done = pair.done(0);
    let contexts: Vec<_> = done.iter().map(|completion| completion.context).collect();
    assert_eq!(contexts, (first..first + IN_FLIGHT).collect::<Vec<_>>());
    let failed = Err(OperationError::LocalAccess);
    assert_eq!(done.iter().filter(|completion| completion.result == failed).count(), 1);
    assert_eq!(pair.hosts[0].closed(), [Closed::LocalMemory]);
    pair.assert_idle();
}

/// Returns a pair with a stream. The sender has measured the rate, and has the maximum number of
/// operations outstanding.
fn busy_stream() -> Pair {
    let mut pair = offloading(40_000_000_000);
    stream(&mut pair, 200);
    for context in 200..200 + IN_FLIGHT {
        pair.write(0, context % PLACES * u64::from(MESSAGE_BYTES), MESSAGE_BYTES, context);
    }
    pair
}

#[test]
fn unmapped_payload_releases_deferred_ends() {
    for frame in [0, 10, 40] {
        let mut pair = busy_stream();
        let mut calls = 0;
        pair.take = Box::new(move |host, _, frames| {
            calls += u32::from(host == 0);
            // A batch of one frame may be the Close, which has no payload.
            if host == 0 && calls >= 3 && frames > frame.max(1) {
                return Emitted::PayloadUnmapped(frame);
            }
            Emitted::Taken(frames)
        });
        assert_the_stream_ends(&mut pair, 200);
    }
}

#[test]
fn deregistering_the_region_fails_a_stream_with_deferred_ends() {
    let mut pair = busy_stream();
    let region = pair.hosts[0].region.id;
    pair.hosts[0].memory.deregister(region).expect("it is registered");
    assert_the_stream_ends(&mut pair, 200);
}
