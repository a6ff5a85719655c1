//! The table of the store, its server and its client.
//!
//! # Layout
//!
//! The server registers a table of slots of 128 bytes. When a client connects, the server sends the
//! table's key, address and length to the client. A slot is a [`Slot`]: a version, the key, the
//! length of the value, 96 bytes for the value, and a checksum of all these fields. All numbers are
//! little-endian. A key is in one of the [`PROBES`] slots from [`first_slot`]: in the first of
//! these slots that was free when the key was put. Keys are never removed.
//!
//! # Writing
//!
//! A writer (a client or the server) locks a slot by a compare-and-swap. It changes the version
//! from the even value that it has read to an odd value. Then the writer writes the rest of the
//! slot, and finally the next even version.
//!
//! If a client fails while it holds the lock, the slot stays locked. In a store that must survive
//! this failure, the odd version would contain the client's identity. The server would unlock the
//! slot when the client's connection ends.
//!
//! # Reading
//!
//! Any client reads a slot with one read, and the server's application does nothing. The bytes of a
//! read may be torn, because they are copied frame by frame in any order. So the version alone does
//! not show whether the copy of the slot is complete. The checksum shows this, because the checksum
//! covers the version. If the version is odd or the checksum is wrong, a writer is changing the
//! slot. The reader then reads the slot again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use ethernot::{
    Buffer, Connection, Endpoint, Error, Listener, MemoryRegion, OperationOptions, Records,
    RemoteRegion, Rights, WaitError,
};

/// Length of the longest value, in bytes.
pub(crate) const VALUE_MAX: usize = 96;
/// Number of consecutive slots in which a key may be stored.
const PROBES: u64 = 8;
/// Limit of waits. It is far longer than an operation takes while the server is alive.
pub(crate) const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

/// The content of a slot, and of a message. In a message, version and checksum are 0.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Slot {
    /// 0: the slot is free. Odd: a writer has locked the slot. Even and not 0: the slot contains a
    /// value.
    version: u64,
    key: u64,
    length: u64,
    value: [u8; VALUE_MAX],
    checksum: u64,
}

const SLOT_BYTES: u64 = size_of::<Slot>() as u64;
/// Offset of the part of a slot that follows the version.
const BODY: u64 = 8;

impl Slot {
    fn new(version: u64, key: u64, value: &[u8]) -> Option<Self> {
        let mut kept = [0; VALUE_MAX];
        kept.get_mut(..value.len())?.copy_from_slice(value);
        let [version, length] = [version, value.len() as u64].map(u64::to_le);
        let mut slot = Self { version, key: key.to_le(), length, value: kept, checksum: 0 };
        slot.checksum = slot.sum().to_le();
        Some(slot)
    }

    /// Returns the FNV-1a checksum of all fields except the checksum.
    fn sum(&self) -> u64 {
        let bytes = bytemuck::bytes_of(self);
        let words = bytes.chunks_exact(8).take(bytes.len() / 8 - 1);
        words.fold(0xcbf2_9ce4_8422_2325, |sum, word| {
            let word = word.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
            (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
        })
    }

    /// Returns whether the slot was read while no writer changed it.
    fn is_whole(&self) -> bool {
        let version = u64::from_le(self.version);
        version == 0 || version.is_multiple_of(2) && u64::from_le(self.checksum) == self.sum()
    }

    fn is_of(&self, key: u64) -> bool {
        u64::from_le(self.key) == key
    }

    fn value(&self) -> Vec<u8> {
        let length = (u64::from_le(self.length) as usize).min(VALUE_MAX);
        self.value[..length].to_vec()
    }
}

/// Returns the first slot for a key, in a table of `slots` slots. `slots` must be less than 2^32.
/// The upper bits of a product select the slot. With this method, the slots of consecutive keys are
/// as far apart as the table permits (D. Knuth: The Art of Computer Programming, volume 3, 6.4). If
/// a remainder selected the slot, with some table sizes about every third key would get a slot next
/// to that of another key.
pub(crate) fn first_slot(key: u64, slots: u64) -> u64 {
    ((key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) * (slots - PROBES + 1)) >> 32
}

/// The owner of the table. The server's application does nothing for gets and for puts by
/// compare-and-swap.
pub(crate) struct Server {
    endpoint: Endpoint,
    table: Table,
    region: MemoryRegion,
    listener: Listener,
}

impl Server {
    /// Makes a table of at least [`PROBES`] slots on this endpoint.
    pub(crate) fn new(endpoint: &Endpoint, slots: u64) -> Result<Self, Error> {
        let slots = slots.max(PROBES);
        let table = Table { slots: Records::new(&Buffer::new(slots * SLOT_BYTES), 0, slots)? };
        let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC;
        let region = endpoint.register(Arc::clone(table.slots.buffer()), rights)?;
        Ok(Self { endpoint: endpoint.clone(), table, region, listener: endpoint.listen(0)? })
    }

    /// Accepts `clients` clients. For each client, a thread serves the client's messages. Returns
    /// when all clients have closed their connections. Stops accepting if no client connects within
    /// `patience`.
    pub(crate) fn serve(&self, clients: u64, patience: Option<Duration>) -> Result<(), Error> {
        thread::scope(|scope| {
            for _ in 0..clients {
                let Some(connection) = self.accept(patience)? else { break };
                scope.spawn(move || self.answer(&connection));
            }
            Ok(())
        })
    }

    /// Accepts a client. If the client sends no messages, the server needs no thread for this
    /// client. Returns `None` if no client connects within `patience`.
    pub(crate) fn accept(&self, patience: Option<Duration>) -> Result<Option<Connection>, Error> {
        match self.listener.accept(patience) {
            Ok(request) => Ok(Some(request.accept(&self.region.remote().to_bytes())?)),
            Err(WaitError::TimedOut { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Handles the messages of a client until the client closes the connection: puts the value of
    /// each message, and answers the message.
    fn answer(&self, connection: &Connection) -> Result<(), Error> {
        let inbox = Buffer::new(SLOT_BYTES);
        let region = self.endpoint.register(Arc::clone(&inbox), Rights::LOCAL_WRITE)?;
        let inbox = Records::<Slot>::new(&inbox, 0, 1)?;
        connection.post_receive(&region, 0, SLOT_BYTES as u32, 0)?;
        while let Ok(completion) = connection.wait_completion(None) {
            if completion.result.is_err() || u64::from(completion.bytes) != SLOT_BYTES {
                break;
            }
            let message = inbox.get(0)?;
            let is_put = self.table.put(u64::from_le(message.key), &message.value())?;
            connection.post_receive(&region, 0, SLOT_BYTES as u32, 0)?;
            drop(connection.send_bytes(&[u8::from(is_put)], OperationOptions::NONE)?);
        }
        Ok(())
    }

    /// Returns the value of a key, for threads of the server.
    pub(crate) fn get(&self, key: u64) -> Result<Option<Vec<u8>>, Error> {
        self.table.get(key)
    }
}

/// The table on the server. Threads and peers change it concurrently.
struct Table {
    slots: Records<Slot>,
}

impl Table {
    fn get(&self, key: u64) -> Result<Option<Vec<u8>>, Error> {
        let found = self.find(key)?.filter(|(_, slot)| slot.version != 0);
        Ok(found.map(|(_, slot)| slot.value()))
    }

    /// Returns the slot of a key with its index. If the table does not contain the key, returns the
    /// free slot for the key.
    fn find(&self, key: u64) -> Result<Option<(u64, Slot)>, Error> {
        let first = first_slot(key, self.slots.len());
        for index in first..first + PROBES {
            let slot = loop {
                let slot = self.slots.get(index)?;
                if slot.is_whole() {
                    break slot;
                }
                std::hint::spin_loop();
            };
            if slot.version == 0 || slot.is_of(key) {
                return Ok(Some((index, slot)));
            }
        }
        Ok(None)
    }

    /// Puts a value. Returns false if the table has no room for it.
    fn put(&self, key: u64, value: &[u8]) -> Result<bool, Error> {
        let (buffer, slots) = (self.slots.buffer(), &self.slots);
        loop {
            let Some((index, seen)) = self.find(key)? else { return Ok(false) };
            let version = u64::from_le(seen.version);
            let Some(new) = Slot::new(version + 2, key, value) else { return Ok(false) };
            let at = slots.range(index)?.start;
            let word = buffer.word::<u64>(at)?;
            let (old, locked) = (seen.version, (version + 1).to_le());
            if word.compare_exchange(old, locked, Ordering::AcqRel, Ordering::Acquire).is_err() {
                continue; // Another writer has locked the slot.
            }
            let body = &bytemuck::bytes_of(&new)[BODY as usize..];
            buffer.try_write(at + BODY, body)?;
            word.store(new.version, Ordering::Release);
            return Ok(true);
        }
    }
}

/// The client.
pub(crate) struct Client {
    connection: Connection,
    table: RemoteRegion,
    /// Three slots in the client's memory: for the last read, the next write, and the server's
    /// answer.
    scratch: Records<Slot>,
    region: MemoryRegion,
}

const READ: u64 = 0;
const WRITTEN: u64 = 1;
const ANSWER: u64 = 2;

impl Client {
    /// Connects to the server at this address.
    pub(crate) fn connect(
        endpoint: &Endpoint,
        server: impl ethernot::IntoPeers,
    ) -> Result<Self, Error> {
        let connection = endpoint.connect(server)?;
        let table = RemoteRegion::from_bytes(&connection.peer_data())?;
        let scratch = Records::new(&Buffer::new(3 * SLOT_BYTES), 0, 3)?;
        let region = endpoint.register(Arc::clone(scratch.buffer()), Rights::LOCAL_WRITE)?;
        Ok(Self { connection, table, scratch, region })
    }

    /// Returns the value of a key. This takes one read if the key is in its first slot and no
    /// writer is changing that slot. The server's application does nothing.
    pub(crate) fn get(&mut self, key: u64) -> Result<Option<Vec<u8>>, Error> {
        let found = self.find(key)?.filter(|(_, slot)| slot.version != 0);
        Ok(found.map(|(_, slot)| slot.value()))
    }

    /// Asks the server to put a value. Returns false if the table has no room for the value.
    pub(crate) fn put_by_message(&mut self, key: u64, value: &[u8]) -> Result<bool, Error> {
        let Some(message) = Slot::new(0, key, value) else { return Ok(false) };
        self.scratch.set(WRITTEN, &message)?;
        let answer = self.scratch.range(ANSWER)?.start;
        self.connection.post_receive(&self.region, answer, 1, 0)?;
        let at = self.scratch.range(WRITTEN)?.start;
        drop(self.connection.send(&self.region, at, SLOT_BYTES, OperationOptions::NONE)?);
        let answered = self.connection.wait_completion(LIMIT)?;
        Ok(answered.result.is_ok() && self.scratch.buffer().load_u8(answer) == 1)
    }

    /// Puts a value. The server's application does nothing. Returns false if the table has no room
    /// for the value.
    pub(crate) fn put_by_swap(&mut self, key: u64, value: &[u8]) -> Result<bool, Error> {
        loop {
            let Some((at, seen)) = self.find(key)? else { return Ok(false) };
            let version = u64::from_le(seen.version);
            let Some(new) = Slot::new(version + 2, key, value) else { return Ok(false) };
            // Atomics use the byte order of the server's processor, which is little-endian like the
            // slots.
            let lock = OperationOptions::NONE;
            let swap = self.connection.compare_swap(&self.table, at, version, version + 1, lock)?;
            if swap.wait(LIMIT)? != version {
                continue; // Another writer has locked the slot.
            }
            self.scratch.set(WRITTEN, &new)?;
            let (from, length) = (self.scratch.range(WRITTEN)?.start, SLOT_BYTES - BODY);
            let none = OperationOptions::NONE;
            let (region, table) = (&self.region, &self.table);
            drop(self.connection.write(region, from + BODY, table, at + BODY, length, none)?);
            // Write the version last. The fence delays it until the rest of the slot is placed.
            let last = none.fence_before(true);
            let version = new.version.to_ne_bytes();
            self.connection.write_bytes(&version, table, at, last)?.wait(LIMIT)?;
            return Ok(true);
        }
    }

    /// Returns the slot of a key with its offset in the table. If the table does not contain the
    /// key, returns the free slot for the key.
    fn find(&mut self, key: u64) -> Result<Option<(u64, Slot)>, Error> {
        let first = first_slot(key, self.table.len / SLOT_BYTES);
        for at in (first..first + PROBES).map(|index| index * SLOT_BYTES) {
            let slot = loop {
                let slot = self.read(at)?;
                if slot.is_whole() {
                    break slot;
                }
            };
            if slot.version == 0 || slot.is_of(key) {
                return Ok(Some((at, slot)));
            }
        }
        Ok(None)
    }

    fn read(&mut self, at: u64) -> Result<Slot, Error> {
        let (region, table) = (&self.region, &self.table);
        let to = self.scratch.range(READ)?.start;
        let read =
            self.connection.read(region, to, table, at, SLOT_BYTES, OperationOptions::NONE)?;
        read.wait(LIMIT)?;
        Ok(self.scratch.get(READ)?)
    }
}
