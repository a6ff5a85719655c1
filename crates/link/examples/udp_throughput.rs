//! Measures the frames per second of a UDP link in one direction.
//!
//! ```text
//! udp_throughput rx ADDRESS SECONDS [LIMIT]
//! udp_throughput tx PEER SECONDS HEADER_BYTES PAYLOAD_BYTES FRAMES
//! ```
//! The sender reads payload from a region of 1 MiB. With 0 payload bytes, each frame is completely
//! in the memory of the batch, and none of it in the region. Without arguments, both ends run as
//! threads on loopback. The environment variable `WITHOUT` names capabilities that the link must
//! not use, for example `WITHOUT=coalescing,batching`.
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
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["rx", address, seconds, limit @ ..] => {
            let limit = limit.first().map_or(Ok(512), |limit| limit.parse())?;
            receive(bind(address.parse()?)?, seconds.parse()?, limit)
        }
        ["tx", peer, seconds, header, payload, frames] => {
            let shape = Shape {
                header: header.parse()?,
                payload: payload.parse()?,
                frames: frames.parse()?,
            };
            send(peer.parse()?, seconds.parse()?, &shape)
        }
        [] => {
            let receiver = bind("127.0.0.1:0".parse()?)?;
            let peer = receiver.caps().local.to_socket().ok_or("no socket address")?;
            let thread = thread::spawn(move || receive(receiver, 3.0, 512));
            send(peer, 3.0, &Shape { header: 32, payload: 1440, frames: 44 })?;
            thread.join().map_err(|_| "the receiver panicked")?
        }
        _ => Err("see the head of the source for the arguments".into()),
    }
}

struct Shape {
    header: usize,
    payload: usize,
    frames: usize,
}

/// Opens a link without the capabilities that the environment variable `WITHOUT` names.
fn bind(address: SocketAddr) -> Result<UdpLink, Box<dyn Error + Send + Sync>> {
    let without = env::var("WITHOUT").unwrap_or_default();
    let has = |name: &str| !without.split(',').any(|word| word == name);
    let features = UdpFeatures::NONE
        .segmentation(has("segmentation"))
        .coalescing(has("coalescing"))
        .batching(has("batching"))
        .timestamps(has("timestamps"))
        .congestion_marks(has("marks"))
        .error_queue(has("errors"))
        .forced_buffers(has("forced"))
        .drop_count(has("drops"))
        .connected_peer(has("connected"));
    let config = UdpConfig::default().features(features).receive_buffer_bytes(32 << 20);
    Ok(UdpLink::bind(address, &config)?)
}

fn send(peer: SocketAddr, seconds: f64, shape: &Shape) -> Result<(), Box<dyn Error + Send + Sync>> {
    let any = if peer.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let mut link = bind(any.parse()?)?;
    let region = vec![1_u8; 1 << 20];
    let mut offset = 0;
    let mut batch = TxBatch::new(shape.frames, shape.frames * shape.header);
    let start = time::Instant::now();
    let cpu = cpu_seconds();
    while start.elapsed().as_secs_f64() < seconds {
        batch.reset(peer.into());
        for _ in 0..shape.frames {
            let end = batch.header_mut().len() + shape.header;
            batch.header_mut().resize(end, 2);
            if offset + shape.payload > region.len() {
                offset = 0;
            }
            let start = region[offset..].as_ptr();
            batch.finish_frame(PayloadSlice::at(start, shape.payload as u32));
            offset += shape.payload;
        }
        link.send(&batch)?;
    }
    let elapsed = start.elapsed().as_secs_f64();
    let statistics = link.statistics();
    println!(
        "tx {:.2} Gb/s  {:.2} M frames/s  {:.0} ns of CPU per frame  {:.1} frames per call  full {}",
        statistics.send_bytes as f64 * 8e-9 / elapsed,
        statistics.send_frames as f64 * 1e-6 / elapsed,
        (cpu_seconds() - cpu) * 1e9 / statistics.send_frames as f64,
        statistics.send_frames as f64 / statistics.send_calls as f64,
        statistics.send_full,
    );
    Ok(())
}

fn receive(
    mut link: UdpLink,
    seconds: f64,
    limit: usize,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let origin = time::Instant::now();
    let now = || Instant(origin.elapsed().as_nanos() as u64);
    let mut first = None;
    let mut cpu = 0.0;
    let mut before = link.statistics();
    let mut delay_ns = 0;
    loop {
        let at = now();
        let frames = link.receive(at, limit, &mut |frame| {
            delay_ns += at.since_ns(frame.received_at);
        })?;
        if frames > 0 && first.is_none() {
            (first, cpu, before) = (Some(at), thread_cpu_seconds(), link.statistics());
        }
        let end = seconds * 1e9;
        match first {
            Some(first) if at.since_ns(first) as f64 > end => break,
            None if at.0 as f64 > end + 10e9 => return Err("nothing came".into()),
            _ => {}
        }
    }
    let s = link.statistics();
    let elapsed = seconds;
    let (calls, messages) =
        (s.receive_calls - before.receive_calls, s.receive_messages - before.receive_messages);
    let frames = s.receive_frames - before.receive_frames;
    println!(
        "rx {:.2} Gb/s  {:.2} M frames/s  {:.0} ns of CPU per frame  {calls} calls  {:.1} messages \
         per call  {:.1} frames per message  {} dropped  {:.1} us waiting",
        (s.receive_bytes - before.receive_bytes) as f64 * 8e-9 / elapsed,
        frames as f64 * 1e-6 / elapsed,
        (thread_cpu_seconds() - cpu) * 1e9 / frames as f64,
        messages as f64 / calls as f64,
        frames as f64 / messages as f64,
        s.receive_kernel_drops,
        delay_ns as f64 * 1e-3 / s.receive_frames as f64,
    );
    Ok(())
}

fn cpu_seconds() -> f64 {
    clock_seconds(libc::CLOCK_PROCESS_CPUTIME_ID)
}

fn thread_cpu_seconds() -> f64 {
    clock_seconds(libc::CLOCK_THREAD_CPUTIME_ID)
}

fn clock_seconds(clock: libc::clockid_t) -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` outlives the call.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}
