//! Lock, write and unlock: several clients and a thread of the server change a record of many
//! words. No reader may see a record that is only partly written.
//!
//! A client takes these steps. The server's application does nothing.
//!
//! 1. *Lock*: compare-and-swap the lock word from 0 to the client's own number. Repeat until the
//!    old value was 0.
//! 2. *Read* the record, if the new content depends on the old one.
//! 3. *Write* the record, by any number of operations, in any number of pieces.
//! 4. *Unlock*: write 0 to the lock word with `fence_before`. The target places the 0 only after
//!    all writes of step 3, so no thread needs to wait for these writes.
//!
//! Threads of the server take the same steps by `Buffer::word`. The number in the lock word
//! identifies the owner of the lock. If a client fails while it owns the lock, the server repairs
//! the record. Then the server releases the lock by a compare-and-swap from the client's number to
//! 0.
#![forbid(unsafe_code)]

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use ethernot::{
    Buffer, Connection, Endpoint, Error, OperationOptions, Records, RemoteRegion, Rights,
};

/// The protected record. Its words are always equal.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Account {
    words: [u64; 512],
}

/// Offset of the lock, which precedes the record.
const LOCK: u64 = 0;
const RECORD: u64 = 64;
const RECORD_BYTES: u64 = size_of::<Account>() as u64;
const FREE: u64 = 0;

const CLIENTS: u64 = 3;
const ROUNDS: u64 = 100;
const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

pub(crate) fn main() -> Result<(), Error> {
    let server = Endpoint::bind("127.0.0.1:0")?;
    let memory = Buffer::new(RECORD + RECORD_BYTES);
    let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC;
    let region = server.register(memory.clone(), rights)?;
    let listener = server.listen(0)?;
    let address = server.local_addresses()?[0];
    thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS)
            .map(|number| scope.spawn(move || add_remotely(address, number + 1)))
            .collect();
        let mut connections = Vec::new();
        for _ in 0..CLIENTS {
            let request = listener.accept(LIMIT)?;
            connections.push(request.accept(&region.remote().to_bytes())?);
        }
        add_here(&memory)?;
        for client in clients {
            client.join().expect("it does not panic")?;
        }
        Ok::<(), Error>(())
    })?;
    let found = Records::<Account>::new(&memory, RECORD, 1)?.get(0)?;
    assert!(found.words.iter().all(|word| *word == (CLIENTS + 1) * ROUNDS), "an addition is lost");
    println!("{} additions under the lock, none lost", (CLIENTS + 1) * ROUNDS);
    Ok(())
}

/// Adds one to every word, a hundred times, in the role of client `number`.
fn add_remotely(server: std::net::SocketAddr, number: u64) -> Result<(), Error> {
    let endpoint = Endpoint::bind("127.0.0.1:0")?;
    let connection = endpoint.connect(server)?;
    let remote = RemoteRegion::from_bytes(&connection.peer_data())?;
    let copy = Records::<Account>::new(&Buffer::new(RECORD_BYTES), 0, 1)?;
    let local = endpoint.register(copy.buffer().clone(), Rights::LOCAL_WRITE)?;
    let none = OperationOptions::NONE;
    for _ in 0..ROUNDS {
        lock(&connection, &remote, number)?;
        connection.read(&local, 0, &remote, RECORD, RECORD_BYTES, none)?.wait(LIMIT)?;
        copy.set(0, &increased(&copy.get(0)?))?;
        let write = connection.write(&local, 0, &remote, RECORD, RECORD_BYTES, none)?;
        let fenced = none.fence_before(true);
        drop(connection.write_bytes(&FREE.to_ne_bytes(), &remote, LOCK, fenced)?);
        // The source bytes may change after this wait.
        write.wait(LIMIT)?;
    }
    // Wait until the last unlock is complete. For this, wait for a read, because the target
    // performs the read after the unlock.
    connection.read(&local, 0, &remote, LOCK, 8, none)?.wait(LIMIT)?;
    Ok(())
}

fn lock(connection: &Connection, remote: &RemoteRegion, number: u64) -> Result<(), Error> {
    while connection
        .compare_swap(remote, LOCK, FREE, number, OperationOptions::NONE)?
        .wait(LIMIT)?
        != FREE
    {
        thread::yield_now();
    }
    Ok(())
}

/// Does the same as `add_remotely`, but in a thread of the server.
fn add_here(memory: &std::sync::Arc<Buffer>) -> Result<(), Error> {
    let (lock, record) = (memory.word::<u64>(LOCK)?, Records::<Account>::new(memory, RECORD, 1)?);
    for _ in 0..ROUNDS {
        while lock.compare_exchange(FREE, u64::MAX, Ordering::Acquire, Ordering::Relaxed).is_err() {
            thread::yield_now();
        }
        record.set(0, &increased(&record.get(0)?))?;
        lock.store(FREE, Ordering::Release);
    }
    Ok(())
}

fn increased(account: &Account) -> Account {
    let first = account.words[0];
    assert!(account.words.iter().all(|word| *word == first), "a record that is half written");
    Account { words: [first + 1; 512] }
}
