//! Two processes that read 32 MiB from each other at the same time, by reads of 4 KiB with 16 in
//! flight: the yardstick for programs that read shared memory.
//!
//! `native_reads` prints its address, and waits for `native_reads ADDRESS`. Both then print bytes a
//! second.

#![expect(clippy::disallowed_methods, reason = "it measures")]

use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ethernot::{Buffer, ConnectOptions, Endpoint, OperationOptions, Polling, RemoteRegion, Rights};

fn main() -> Result<(), Box<dyn Error>> {
    let endpoint = Endpoint::builder()
        .polling(Polling::for_at_most(Duration::from_micros(50)))
        .shared_memory(true)
        .bind("127.0.0.1:0")
        .build()?;
    let rights = Rights::LOCAL_WRITE | Rights::REMOTE_READ;
    let source = Buffer::new(BYTES);
    source.write(0, &vec![1; BYTES as usize]);
    let region = endpoint.register(source, rights)?;
    let own = region.remote().to_bytes();
    let into = Buffer::new(BYTES);
    // Touched, as the frames of shared memory are not: the native reads have the better place.
    into.write(0, &vec![2; BYTES as usize]);
    let sink = endpoint.register(Arc::clone(&into), rights)?;
    let connection = match std::env::args().nth(1) {
        None => {
            let listener = endpoint.listen(SERVICE)?;
            println!("{}", endpoint.local_addresses()?[0]);
            listener.accept(Some(LIMIT))?.accept(&own)?
        }
        Some(address) => {
            let options = ConnectOptions::new().service(SERVICE).private_data(own);
            endpoint.connect_with(address.as_str(), options.limit(Some(LIMIT)))?
        }
    };
    let remote = RemoteRegion::from_bytes(&connection.peer_data())?;
    let began = Instant::now();
    let mut reads = VecDeque::new();
    for offset in (0..BYTES).step_by(READ_BYTES as usize) {
        if reads.len() == IN_FLIGHT {
            end(&mut reads)?;
        }
        let none = OperationOptions::NONE;
        reads.push_back(connection.read(&sink, offset, &remote, offset, READ_BYTES, none)?);
    }
    while !reads.is_empty() {
        end(&mut reads)?;
    }
    let seconds = began.elapsed().as_secs_f64();
    assert_eq!(into.load_u64(BYTES - 8), 0x0101_0101_0101_0101);
    println!("{}", BYTES as f64 / seconds);
    // Stays until the peer has read, too.
    let theirs = connection.receive_message(8)?;
    connection.send_message(b"done", OperationOptions::NONE)?.wait(Some(LIMIT))?;
    theirs.wait(Some(LIMIT))?;
    endpoint.shutdown(Some(LIMIT))?;
    Ok(())
}

fn end(reads: &mut VecDeque<ethernot::OperationHandle>) -> Result<(), Box<dyn Error>> {
    if let Some(read) = reads.pop_front() {
        read.wait(Some(LIMIT))?;
    }
    Ok(())
}

const BYTES: u64 = 32 << 20;
const READ_BYTES: u64 = 4096;
const IN_FLIGHT: usize = 16;
const SERVICE: u32 = 3;
const LIMIT: Duration = Duration::from_secs(20);
