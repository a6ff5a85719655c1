//! A work queue: a producer has tasks in its memory, and consumers claim these tasks by
//! fetch-and-add. The producer's application does nothing until it waits for the results.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::thread;
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use ethernot::{Buffer, Endpoint, Error, OperationOptions, Records, RemoteRegion, Rights};

/// A task and its result. The consumer of the task writes the result.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Task {
    number: u64,
    result: u64,
}

/// Offset of the word that contains the number of the next unclaimed task. The word precedes the
/// tasks.
const NEXT: u64 = 0;
const TASKS: u64 = 64;
const TASK_BYTES: u64 = size_of::<Task>() as u64;
const RESULT: u64 = 8;

const CONSUMERS: usize = 3;
const COUNT: u64 = 200;
const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

pub(crate) fn main() -> Result<(), Error> {
    let producer = Endpoint::bind("127.0.0.1:0")?;
    let tasks = Records::<Task>::new(&Buffer::new(TASKS + COUNT * TASK_BYTES), TASKS, COUNT)?;
    for number in 0..COUNT {
        tasks.set(number, &Task { number, result: 0 })?;
    }
    let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC;
    let region = producer.register(tasks.buffer().clone(), rights)?;
    let listener = producer.listen(0)?;
    let address = producer.local_addresses()?[0];
    let done = thread::scope(|scope| {
        let consumers: Vec<_> =
            (0..CONSUMERS).map(|_| scope.spawn(move || consume(address))).collect();
        let mut connections = Vec::new();
        for _ in 0..CONSUMERS {
            let request = listener.accept(LIMIT)?;
            connections.push(request.accept(&region.remote().to_bytes())?);
        }
        let done =
            consumers.into_iter().map(|consumer| consumer.join().expect("it does not panic"));
        done.collect::<Result<Vec<u64>, Error>>()
    })?;
    assert_eq!(done.iter().sum::<u64>(), COUNT, "each task was taken once");
    for number in 0..COUNT {
        assert_eq!(tasks.get(number)?.result, square(number));
    }
    println!("consumers did {done:?} tasks");
    Ok(())
}

/// Processes tasks until no task is left. Returns the number of tasks that this consumer has
/// processed.
fn consume(producer: SocketAddr) -> Result<u64, Error> {
    let endpoint = Endpoint::bind("127.0.0.1:0")?;
    let connection = endpoint.connect(producer)?;
    let queue = RemoteRegion::from_bytes(&connection.peer_data())?;
    let task = Records::<Task>::new(&Buffer::new(TASK_BYTES), 0, 1)?;
    let local = endpoint.register(task.buffer().clone(), Rights::LOCAL_WRITE)?;
    let none = OperationOptions::NONE;
    let count = (queue.len - TASKS) / TASK_BYTES;
    let mut done = 0;
    loop {
        // Each number is returned to exactly one consumer, even if frames are lost and
        // retransmitted.
        let taken = connection.fetch_add(&queue, NEXT, 1, none)?.wait(LIMIT)?;
        if taken >= count {
            return Ok(done);
        }
        let at = TASKS + taken * TASK_BYTES;
        connection.read(&local, 0, &queue, at, TASK_BYTES, none)?.wait(LIMIT)?;
        let result = square(task.get(0)?.number);
        connection.write_bytes(&result.to_ne_bytes(), &queue, at + RESULT, none)?.wait(LIMIT)?;
        done += 1;
    }
}

fn square(number: u64) -> u64 {
    number * number
}
