//! Measures round trips of single frames between two polled UDP links.
//!
//! ```text
//! udp_pingpong serve ADDRESS
//! udp_pingpong ask PEER COUNT BYTES
//! ```
//! The server ends after three seconds without a frame. Without arguments, both ends run as threads
//! on loopback. The environment variable `CORE` binds the process to one core.
#![expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::env;
use std::error::Error;
use std::net::SocketAddr;
use std::thread;
use std::time;

use delivery::{Instant, TxBatch};
use link::{Link, UdpConfig, UdpFeatures, UdpLink};
use mem::PayloadSlice;

fn main() -> Result<(), Box<dyn Error + Send + Sync>> {
    if let Ok(core) = env::var("CORE") {
        bind_to_core(core.parse()?);
    }
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["serve", address] => serve(bind(address.parse()?)?),
        ["ask", peer, count, bytes] => ask(peer.parse()?, count.parse()?, bytes.parse()?),
        [] => {
            let server = bind("127.0.0.1:0".parse()?)?;
            let peer = server.caps().local.to_socket().ok_or("no socket address")?;
            let thread = thread::spawn(move || serve(server));
            ask(peer, 100_000, 64)?;
            thread.join().map_err(|_| "the server panicked")?
        }
        _ => Err("see the head of the source for the arguments".into()),
    }
}

/// Opens a link without the capabilities that the environment variable `WITHOUT` names.
fn bind(address: SocketAddr) -> Result<UdpLink, Box<dyn Error + Send + Sync>> {
    let without = env::var("WITHOUT").unwrap_or_default();
    let has = |name: &str| !without.split(',').any(|word| word == name);
    let features = UdpFeatures::ALL
        .coalescing(has("coalescing"))
        .batching(has("batching"))
        .timestamps(has("timestamps"))
        .congestion_marks(has("marks"))
        .error_queue(has("errors"));
    Ok(UdpLink::bind(address, &UdpConfig::default().features(features))?)
}

fn serve(mut link: UdpLink) -> Result<(), Box<dyn Error + Send + Sync>> {
    let mut copy = [0; 2048];
    let mut batch = TxBatch::new(1, copy.len());
    let mut last = time::Instant::now();
    let origin = last;
    let mut turn = 0_u32;
    let mut now = Instant(0);
    loop {
        let mut question = None;
        let frames = link.receive(now, 1, &mut |frame| {
            let len = frame.bytes.len().min(copy.len());
            copy[..len].copy_from_slice(&frame.bytes[..len]);
            question = Some((frame.from, len));
        })?;
        if let Some((from, len)) = question {
            batch.reset(from);
            batch.header_mut().extend_from_slice(&copy[..len]);
            batch.finish_frame(PayloadSlice::EMPTY);
            link.send(&batch)?;
        }
        turn += 1;
        if frames > 0 || turn.is_multiple_of(1024) {
            let at = time::Instant::now();
            now = Instant((at - origin).as_nanos() as u64);
            if frames > 0 {
                last = at;
            } else if at - last > time::Duration::from_secs(3) {
                return Ok(());
            }
        }
    }
}

fn ask(peer: SocketAddr, count: usize, bytes: usize) -> Result<(), Box<dyn Error + Send + Sync>> {
    let any = if peer.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let mut link = bind(any.parse()?)?;
    let mut batch = TxBatch::new(1, bytes);
    batch.reset(peer.into());
    batch.header_mut().resize(bytes, 7);
    batch.finish_frame(PayloadSlice::EMPTY);
    let origin = time::Instant::now();
    let mut round_trips_us = Vec::with_capacity(count);
    for _ in 0..count {
        let start = time::Instant::now();
        let now = Instant((start - origin).as_nanos() as u64);
        link.send(&batch)?;
        let mut received = 0;
        while received == 0 {
            received = link.receive(now, 1, &mut |_| {})?;
        }
        round_trips_us.push(start.elapsed().as_secs_f64() * 1e6);
    }
    round_trips_us.sort_by(f64::total_cmp);
    let at = |part: usize| round_trips_us[(count * part / 1000).min(count - 1)];
    println!(
        "{bytes} bytes: round trip in us: min {:.2}  p50 {:.2}  p90 {:.2}  p99 {:.2}",
        at(0),
        at(500),
        at(900),
        at(990)
    );
    Ok(())
}

fn bind_to_core(core: usize) {
    // SAFETY: all-zero bytes are an empty set, and the set outlives the call.
    unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}
