//! Tests a thread that polls its endpoint, and then waits for bytes in its memory without polling
//! the endpoint.

mod pair;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Instant;

use mem::{Buffer, Rights};
use pair::{Side, connect};
use runtime::Doorbell;
use semantics::{Operation, OperationFlags, Request, Source};

/// Number of measured writes. It is so large that even the slowest thousandth of the writes
/// consists of 20 writes.
const WRITES: u64 = 20_000;

/// The writing thread writes, and then sleeps until the spinning thread has seen the write, so that
/// a processor is free for the progress thread. Before each write, the spinning thread polls the
/// endpoint: once before every second write, and 200 times before the others.
#[test]
#[ignore = "slow: run by hand, in release mode with --ignored --nocapture; prints a figure"]
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn writes_are_seen_by_a_spinning_thread() {
    let (client, server) = (Side::new(false), Side::new(true));
    let connection = connect(&client, &server);
    let buffer = Buffer::new(64);
    let memory = server.runtime.memory();
    let region = memory.register(server.domain, Arc::clone(&buffer), Rights::REMOTE_WRITE);
    let region = region.expect("it is registered");
    let began = Instant::now();
    let (posted_ns, spins) = (AtomicU64::new(0), AtomicBool::new(false));
    let mut seen_ns: Vec<u64> = Vec::with_capacity(WRITES as usize);
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 1..=WRITES {
                while !spins.swap(false, Ordering::Acquire) {
                    thread::park();
                }
                let mut bytes = [0; 64];
                bytes[..8].copy_from_slice(&number.to_le_bytes());
                let (source, key, address) = (Source::Inline(bytes), region.key, region.start);
                let write = Operation {
                    request: Request::Write { source, key, address },
                    length: 8,
                    flags: OperationFlags::default(),
                    immediate: None,
                    context: number,
                    status: None,
                };
                client.runtime.drive().expect("not forked");
                posted_ns.store(began.elapsed().as_nanos() as u64, Ordering::Release);
                let posted = client.runtime.post(connection, &client.queue, &write, Doorbell::Ring);
                posted.expect("it is posted");
            }
        });
        for number in 1..=WRITES {
            for _ in 0..[1, 200][number as usize % 2] {
                server.runtime.drive().expect("not forked");
            }
            spins.store(true, Ordering::Release);
            writer.thread().unpark();
            let mut bytes = [0; 8];
            while u64::from_le_bytes(bytes) != number {
                std::hint::spin_loop();
                buffer.read(0, &mut bytes);
            }
            let now_ns = began.elapsed().as_nanos() as u64;
            seen_ns.push(now_ns - posted_ns.load(Ordering::Acquire));
        }
    });
    seen_ns.sort_unstable();
    let at = |share: f64| seen_ns[(WRITES as f64 * share) as usize] as f64 / 1000.0;
    println!("median {} us, 99 % {} us", at(0.5), at(0.99));
    println!("figure: writes seen by a thread that spins: {}", at(0.999));
}
