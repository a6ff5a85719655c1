//! The table of the store, and both sides of it.
//!
//! # What lies in memory
//!
//! The server registers a table of slots of 128 bytes; it sends key, address and length of it to its clients when they
//! connect. A slot is a [`Slot`]: a version, the key, the length of the value, 96 bytes for the value, and a checksum
//! of all that. All numbers are little-endian. A key lies in one of the [`PROBES`] slots from [`first_slot`] on, in the
//! first that was free; nothing is ever removed.
//!
//! # Who changes a slot
//!
//! The one that makes its version odd, by compare-and-swap from the even one that it saw: a client, or the server itself.
//! He writes the rest, and last the next even version. (A client that dies in between leaves the slot locked; a server
//! that must survive this keeps in the odd version who it was, and frees it when the connection ends.)
//!
//! # Who reads one
//!
//! Any client, by one read, without work at the server. The bytes of a read may be torn (they are copied frame by
//! frame, in any order), so the version alone shows nothing: the checksum, which contains it, does. A slot whose version
//! is odd or whose checksum is wrong is being written, and is read again.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use bytemuck::{Pod, Zeroable};
use ethernot::{
    Buffer, Connection, Endpoint, Error, Listener, MemoryRegion, OperationOptions, Records,
    RemoteRegion, Rights, WaitError,
};

/// Longest value, in bytes.
pub(crate) const VALUE_MAX: usize = 96;
/// Slots from the first on where a key may be.
const PROBES: u64 = 8;
/// Far longer than an operation takes while the server lives.
pub(crate) const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

/// What lies in memory, and what a message says (whose version and checksum are 0).
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Slot {
    /// 0: free. Odd: being written.
    version: u64,
    key: u64,
    length: u64,
    value: [u8; VALUE_MAX],
    checksum: u64,
}

const SLOT_BYTES: u64 = size_of::<Slot>() as u64;
/// Where the rest of a slot begins, behind its version.
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

    /// FNV-1a of everything but the checksum.
    fn sum(&self) -> u64 {
        let bytes = bytemuck::bytes_of(self);
        let words = bytes.chunks_exact(8).take(bytes.len() / 8 - 1);
        words.fold(0xcbf2_9ce4_8422_2325, |sum, word| {
            let word = word.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
            (sum ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23)
        })
    }

    /// Whether no client was writing it while it was read.
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

/// Where to look for a key first, in a table of so many slots, fewer than 2^32: keys in a row lie as far from each
/// other as there is room, by the upper bits of the product (D. Knuth: The Art of Computer Programming, volume 3, 6.4). A
/// remainder would undo that: a table may be of a size at which every third key or so lies beside another.
pub(crate) fn first_slot(key: u64, slots: u64) -> u64 {
    ((key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) * (slots - PROBES + 1)) >> 32
}

/// The side that has the table. Gets, and puts by compare-and-swap, cost its application nothing.
pub(crate) struct Server {
    endpoint: Endpoint,
    table: Table,
    region: MemoryRegion,
    listener: Listener,
}

impl Server {
    /// A table of at least [`PROBES`] slots on this endpoint.
    pub(crate) fn new(endpoint: &Endpoint, slots: u64) -> Result<Self, Error> {
        let slots = slots.max(PROBES);
        let table = Table { slots: Records::new(&Buffer::new(slots * SLOT_BYTES), 0, slots)? };
        let rights = Rights::REMOTE_READ | Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC;
        let region = endpoint.register(Arc::clone(table.slots.buffer()), rights)?;
        Ok(Self { endpoint: endpoint.clone(), table, region, listener: endpoint.listen(0)? })
    }

    /// Takes clients, as many as are given, each with a thread for its messages, until all have gone; fewer if none
    /// comes for as long as `patience`.
    pub(crate) fn serve(&self, clients: u64, patience: Option<Duration>) -> Result<(), Error> {
        thread::scope(|scope| {
            for _ in 0..clients {
                let Some(connection) = self.accept(patience)? else { break };
                scope.spawn(move || self.answer(&connection));
            }
            Ok(())
        })
    }

    /// Takes a client, which needs no thread if it sends no messages; nothing if none comes.
    pub(crate) fn accept(&self, patience: Option<Duration>) -> Result<Option<Connection>, Error> {
        match self.listener.accept(patience) {
            Ok(request) => Ok(Some(request.accept(&self.region.remote().to_bytes())?)),
            Err(WaitError::TimedOut { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Puts what messages say, and answers each, until the client goes.
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

    /// The value of a key, as the server itself sees it.
    pub(crate) fn get(&self, key: u64) -> Result<Option<Vec<u8>>, Error> {
        self.table.get(key)
    }
}

/// The table, on the side that has it. Threads and peers change it at the same time.
struct Table {
    slots: Records<Slot>,
}

impl Table {
    fn get(&self, key: u64) -> Result<Option<Vec<u8>>, Error> {
        let found = self.find(key)?.filter(|(_, slot)| slot.version != 0);
        Ok(found.map(|(_, slot)| slot.value()))
    }

    /// The slot of a key, or the free one where it belongs, and its number.
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

    /// Puts a value; false if there is no room for it.
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
                continue; // Somebody else was quicker.
            }
            let body = &bytemuck::bytes_of(&new)[BODY as usize..];
            buffer.try_write(at + BODY, body)?;
            word.store(new.version, Ordering::Release);
            return Ok(true);
        }
    }
}

/// The side that asks.
pub(crate) struct Client {
    connection: Connection,
    table: RemoteRegion,
    /// What is read, what is written, and what the server answers.
    scratch: Records<Slot>,
    region: MemoryRegion,
}

const READ: u64 = 0;
const WRITTEN: u64 = 1;
const ANSWER: u64 = 2;

impl Client {
    /// Of the server at this address.
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

    /// The value of a key: one read, of which the server's application does not know, if the key lies in its first slot
    /// and no client writes it.
    pub(crate) fn get(&mut self, key: u64) -> Result<Option<Vec<u8>>, Error> {
        let found = self.find(key)?.filter(|(_, slot)| slot.version != 0);
        Ok(found.map(|(_, slot)| slot.value()))
    }

    /// Asks the server to put a value; false if there is no room for it.
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

    /// Puts a value without the help of the server's application; false if there is no room for it.
    pub(crate) fn put_by_swap(&mut self, key: u64, value: &[u8]) -> Result<bool, Error> {
        loop {
            let Some((at, seen)) = self.find(key)? else { return Ok(false) };
            let version = u64::from_le(seen.version);
            let Some(new) = Slot::new(version + 2, key, value) else { return Ok(false) };
            // Atomics count as the processor of the server does: little-endian, as the slots are.
            let lock = OperationOptions::NONE;
            let swap = self.connection.compare_swap(&self.table, at, version, version + 1, lock)?;
            if swap.wait(LIMIT)? != version {
                continue; // Somebody else was quicker.
            }
            self.scratch.set(WRITTEN, &new)?;
            let (from, length) = (self.scratch.range(WRITTEN)?.start, SLOT_BYTES - BODY);
            let none = OperationOptions::NONE;
            let (region, table) = (&self.region, &self.table);
            drop(self.connection.write(region, from + BODY, table, at + BODY, length, none)?);
            // The version comes last: it is placed only when the rest is.
            let last = none.fence_before(true);
            let version = new.version.to_ne_bytes();
            self.connection.write_bytes(&version, table, at, last)?.wait(LIMIT)?;
            return Ok(true);
        }
    }

    /// The slot of a key, or the free one where it belongs, and where that is in the table.
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
