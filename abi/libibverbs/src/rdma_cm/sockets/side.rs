//! One side of the additional connection that belongs to a connected socket: a queue pair that
//! writes to mapped memory of the peer.
//!
//! Each side has a table of the peer's mappings, which the peer writes. `riomap` writes an entry to
//! the table at the peer. `riowrite` looks up the offset in the table on its own side. Writes to
//! the table and to mapped memory use the same queue pair, so they arrive in the order in which
//! they were posted.

use std::ffi::c_int;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rdma_cm::Id;
use verbs::{
    AccessFlags, Arm, CompletionChannel, CompletionQueue, CompletionStatus, Context, Error,
    MemoryRegion, ProtectionDomain, QueuePair, QueuePairInit, QueuePairLimits, QueuePairType,
    ScatterGather, SendFlags, SendOpcode, SendRequest, WorkCompletion,
};

use super::pages::Pages;

/// One side of the additional connection that belongs to a connected socket.
pub(super) struct Side {
    id: Arc<Id>,
    context: Arc<Context>,
    domain: Arc<ProtectionDomain>,
    channel: Arc<CompletionChannel>,
    queue: Arc<CompletionQueue>,
    pair: Arc<QueuePair>,
    /// The table that the peer writes, followed by the slots for writes in flight.
    pages: Pages,
    table: Arc<MemoryRegion>,
    slots: Arc<MemoryRegion>,
    maps: u32,
    peer: OnceLock<Hello>,
    sending: Mutex<Sending>,
    mapped: Mutex<Vec<Mapped>>,
}

/// Writes in flight. Write number `n` uses slot `n % SLOTS`.
#[derive(Default)]
struct Sending {
    posted: u64,
    placed: u64,
    is_broken: bool,
}

/// Memory that the program has mapped with `riomap`. `remote` contains the index of the mapping in
/// the peer's table, and the memory region; `remote` is `None` if the peer may not write to the
/// memory.
struct Mapped {
    address: usize,
    len: usize,
    remote: Option<(u32, Arc<MemoryRegion>)>,
}

/// The private data that the two sides exchange when they connect.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Hello {
    /// Address and port of the connecting socket.
    pub(super) socket: SocketAddr,
    /// Address of the table on the side that sends this data.
    table: u64,
    key: u32,
    /// Number of entries in the table on the side that sends this data.
    maps: u32,
}

impl Hello {
    pub(super) fn encode(&self) -> Vec<u8> {
        let ip = match self.socket.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend(ip.octets());
        bytes.extend(self.socket.port().to_be_bytes());
        bytes.extend(self.table.to_be_bytes());
        bytes.extend(self.key.to_be_bytes());
        bytes.extend(self.maps.to_be_bytes());
        bytes
    }

    /// Decodes private data. Returns `None` if the data is not a `Hello`. Private data is padded
    /// with zeros, so further bytes are ignored.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.strip_prefix(&MAGIC)?;
        let (ip, bytes) = bytes.split_first_chunk::<16>()?;
        let (port, bytes) = bytes.split_first_chunk::<2>()?;
        let (table, bytes) = bytes.split_first_chunk::<8>()?;
        let (key, bytes) = bytes.split_first_chunk::<4>()?;
        let (maps, _) = bytes.split_first_chunk::<4>()?;
        let maps = u32::from_be_bytes(*maps);
        let ip = IpAddr::V6(Ipv6Addr::from(*ip)).to_canonical();
        (maps <= MAPS_MAX).then_some(Self {
            socket: SocketAddr::new(ip, u16::from_be_bytes(*port)),
            table: u64::from_be_bytes(*table),
            key: u32::from_be_bytes(*key),
            maps,
        })
    }
}

impl Side {
    /// Creates one side and attaches its queue pair to the id. Returns an error if the id has no
    /// device.
    pub(super) fn new(id: &Arc<Id>, maps: u32) -> Result<Self, Error> {
        let Some(device) = id.device() else {
            return Err(Error::Invalid("the id has no device".into()));
        };
        let table_bytes = maps.max(1) as usize * ENTRY_BYTES;
        let pages = Pages::new(table_bytes + SLOTS as usize * SLOT_BYTES)?;
        let context = device.open()?;
        let domain = context.allocate_domain()?;
        let channel = context.create_channel()?;
        let queue = context.create_completion_queue(SLOTS, Some(&channel))?;
        let limits = QueuePairLimits {
            sends: SLOTS,
            receives: 1,
            send_pieces: 1,
            receive_pieces: 1,
            inline: 0,
        };
        let pair = domain.create_queue_pair(&QueuePairInit {
            service: QueuePairType::Reliable,
            send_queue: Arc::clone(&queue),
            receive_queue: Arc::clone(&queue),
            shared_queue: None,
            limits,
            signals_all: true,
        })?;
        let register = |at: usize, len: usize, access: AccessFlags| {
            let address = pages.address(at);
            domain.register(address, len as u64, address as u64, access)
        };
        let table = register(0, table_bytes, WRITABLE)?;
        let slots = register(table_bytes, SLOTS as usize * SLOT_BYTES, AccessFlags::default())?;
        id.take_queue_pair(&pair)?;
        Ok(Self {
            id: Arc::clone(id),
            context,
            domain,
            channel,
            queue,
            pair,
            pages,
            table,
            slots,
            maps,
            peer: OnceLock::new(),
            sending: Mutex::default(),
            mapped: Mutex::default(),
        })
    }

    /// Returns the private data that this side sends. `socket` is the address of the connecting
    /// socket.
    pub(super) fn hello(&self, socket: SocketAddr) -> Hello {
        let table = self.table.remote_address();
        Hello { socket, table, key: self.table.key(), maps: self.maps }
    }

    /// Stores the peer's private data.
    pub(super) fn take_hello(&self, hello: Hello) {
        // The peer sends this value only once, so no value is stored yet.
        let _again = self.peer.set(hello);
    }

    pub(super) fn id(&self) -> &Arc<Id> {
        &self.id
    }

    /// Allows the peer to write to memory. `riowrite` at the peer uses `offset` for the first byte.
    pub(super) fn map(&self, address: usize, len: usize, offset: u64) -> Result<(), Error> {
        let peer = self.peer()?;
        let mut mapped = lock(&self.mapped);
        let is_free = |index: &u32| {
            !mapped.iter().any(|mapped| mapped.remote.as_ref().is_some_and(|(at, _)| at == index))
        };
        let Some(index) = (0..peer.maps).find(is_free) else {
            return Err(Error::NoRoom(format!("the peer has room for {} mappings", peer.maps)));
        };
        let region = self.domain.register(address, len as u64, address as u64, WRITABLE)?;
        let entry = [offset, region.remote_address(), len as u64, region.key().into()];
        if let Err(error) = self.send_entry(index, entry) {
            let _gone = region.deregister();
            return Err(error);
        }
        mapped.push(Mapped { address, len, remote: Some((index, region)) });
        Ok(())
    }

    /// Records a mapping to which the peer may not write.
    pub(super) fn map_for_itself(&self, address: usize, len: usize) {
        lock(&self.mapped).push(Mapped { address, len, remote: None });
    }

    /// Ends a mapping. After the call, the peer cannot write to the memory.
    pub(super) fn unmap(&self, address: usize, len: usize) -> Result<(), Error> {
        let mut mapped = lock(&self.mapped);
        let is_meant = |mapped: &Mapped| mapped.address == address && mapped.len == len;
        let Some(at) = mapped.iter().position(is_meant) else {
            return Err(Error::Invalid("no mapping has this address and length".into()));
        };
        let Mapped { remote: Some((index, region)), .. } = mapped.swap_remove(at) else {
            return Ok(());
        };
        // Ignore the error, because a peer that is gone needs no notification.
        let _sent = self.send_entry(index, [0; 4]);
        region.deregister()
    }

    /// Writes to mapped memory of the peer. Returns the number of written bytes. The number is less
    /// than `count` in two cases:
    /// * The peer's mapping ends before `count` bytes are written.
    /// * All slots for writes in flight are in use, and the call must not block.
    ///
    /// # Safety
    /// `from` must have `count` readable bytes.
    pub(super) unsafe fn write(
        &self,
        from: *const u8,
        count: usize,
        offset: u64,
        may_wait: bool,
    ) -> Result<usize, Error> {
        let mut sending = lock(&self.sending);
        let mut done = 0;
        while done < count {
            let at = offset.wrapping_add(done as u64);
            let Some((to, room, key)) = self.find(at) else { break };
            let len = (count - done).min(SLOT_BYTES).min(room);
            // SAFETY: the caller meets the requirements of this function.
            let posted = unsafe { self.post(&mut sending, from.add(done), len, to, key, may_wait) };
            match posted {
                Ok(()) => done += len,
                Err(_) if done > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(done)
    }

    /// Waits until all writes are in the peer's memory. Returns an error if writes are pending and
    /// the call must not block.
    pub(super) fn settle(&self, may_wait: bool) -> Result<(), Error> {
        let mut sending = lock(&self.sending);
        self.wait(&mut sending, may_wait, |sending| sending.placed == sending.posted)
    }

    fn peer(&self) -> Result<&Hello, Error> {
        self.peer.get().ok_or_else(|| Error::Invalid("the peer has not announced its table".into()))
    }

    /// Finds the peer's mapping that contains an offset. Returns the remote address for this
    /// offset, the number of bytes up to the end of the mapping, and the key of the mapping.
    fn find(&self, offset: u64) -> Option<(u64, usize, u32)> {
        (0..self.maps as usize).find_map(|index| {
            let number = |of: usize| self.pages.number(index * ENTRY_BYTES + of * 8);
            let [first, address, len, key] = [0, 1, 2, 3].map(number);
            let inside = offset.checked_sub(first).filter(|inside| *inside < len)?;
            let room = usize::try_from(len - inside).unwrap_or(usize::MAX);
            Some((address.wrapping_add(inside), room, key as u32))
        })
    }

    /// Writes an entry to the peer's table.
    fn send_entry(&self, index: u32, entry: [u64; 4]) -> Result<(), Error> {
        let peer = self.peer()?;
        let to = peer.table.wrapping_add(u64::from(index) * ENTRY_BYTES as u64);
        let mut sending = lock(&self.sending);
        // SAFETY: the entry lives until the call returns.
        unsafe { self.post(&mut sending, entry.as_ptr().cast(), ENTRY_BYTES, to, peer.key, true) }
    }

    /// Posts a write of at most [`SLOT_BYTES`].
    ///
    /// # Safety
    /// `from` must have `len` readable bytes.
    unsafe fn post(
        &self,
        sending: &mut Sending,
        from: *const u8,
        len: usize,
        to: u64,
        key: u32,
        may_wait: bool,
    ) -> Result<(), Error> {
        let is_free = |sending: &Sending| sending.posted - sending.placed < u64::from(SLOTS);
        self.wait(sending, may_wait, is_free)?;
        let slot = (sending.posted % u64::from(SLOTS)) as usize;
        let at = self.maps.max(1) as usize * ENTRY_BYTES + slot * SLOT_BYTES;
        // SAFETY: the caller meets the requirements of this function. No write in flight uses a
        // free slot.
        unsafe { self.pages.fill(at, from, len) };
        let address = self.pages.address(at) as u64;
        let piece = ScatterGather { address, length: len as u32, key: self.slots.key() };
        let request = SendRequest {
            id: sending.posted,
            opcode: SendOpcode::Write { address: to, key, immediate: None },
            flags: SendFlags::default(),
            pieces: &[piece],
            inline: None,
            to: None,
        };
        self.pair.post_send(&[request]).map_err(|(_, error)| error)?;
        sending.posted += 1;
        Ok(())
    }

    fn wait(
        &self,
        sending: &mut Sending,
        may_wait: bool,
        is_so: impl Fn(&Sending) -> bool,
    ) -> Result<(), Error> {
        if is_so(sending) && !sending.is_broken {
            return Ok(());
        }
        loop {
            self.reap(sending)?;
            if sending.is_broken {
                let what = "writing to mapped memory of the peer".into();
                return Err(Error::System { what, number: libc::ECONNRESET });
            }
            if is_so(sending) {
                return Ok(());
            }
            if !may_wait {
                return Err(Error::Again);
            }
            self.queue.arm(Arm::Next)?;
            let before = sending.placed;
            self.reap(sending)?;
            if sending.placed != before || sending.is_broken {
                continue;
            }
            match self.channel.get() {
                Ok(queue) => queue.acknowledge_events(1),
                Err(Error::System { number: libc::EINTR, .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn reap(&self, sending: &mut Sending) -> Result<(), Error> {
        let mut completions = [WorkCompletion::NOTHING; 16];
        loop {
            let count = self.queue.poll(&mut completions)?;
            for completion in &completions[..count] {
                sending.placed += 1;
                sending.is_broken |= completion.status != CompletionStatus::Success;
            }
            if count < completions.len() {
                return Ok(());
            }
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        let _over = self.id.disconnect();
        self.id.release_queue_pair();
        let mapped = std::mem::take(&mut *lock(&self.mapped));
        let mut regions = mapped.iter().filter_map(|mapped| mapped.remote.as_ref());
        let ended = [
            self.pair.destroy(),
            regions.try_for_each(|(_, region)| region.deregister()),
            self.table.deregister(),
            self.slots.deregister(),
            self.queue.destroy(),
            self.channel.destroy(),
            self.domain.deallocate(),
            self.context.close(),
            self.id.destroy(),
        ];
        // Ignore errors. In a forked child, all of these objects belong to the parent, so each call
        // fails.
        drop(ended);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Maximum number of mappings that a peer may announce. With this number, the table takes 32 KiB.
/// librdmacm allows 255 mappings.
pub(super) const MAPS_MAX: u32 = 1024;

/// The access that a peer has to mapped memory.
const WRITABLE: AccessFlags = AccessFlags::LOCAL_WRITE.union(AccessFlags::REMOTE_WRITE);

/// Size of a table entry in bytes: offset, address, length and key of a mapping. An unused entry is
/// all zeros.
const ENTRY_BYTES: usize = 32;

/// Maximum number of writes in flight. Their slots take 64 × 16 KiB = 1 MiB of address space. A
/// page of a slot takes memory only after a write has used it.
const SLOTS: u32 = 64;

/// Size in bytes of a slot, which holds the bytes of one write.
const SLOT_BYTES: usize = 16 << 10;

/// First bytes of the private data. These bytes distinguish the data from the private data of other
/// programs.
const MAGIC: [u8; 4] = *b"rio1";

/// Returns whether a call on a socket must not block.
pub(super) fn is_non_blocking(socket: c_int, flags: c_int) -> bool {
    // SAFETY: `fcntl` accepts any number.
    flags & libc::MSG_DONTWAIT != 0
        || unsafe { libc::fcntl(socket, libc::F_GETFL) } & libc::O_NONBLOCK != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hello_is_decoded_as_it_was_encoded() {
        for socket in ["10.0.0.1:7", "[fd00::1]:65535"] {
            let socket = socket.parse().expect("an address");
            let hello = Hello { socket, table: u64::MAX - 1, key: 77, maps: MAPS_MAX };
            let mut said = hello.encode();
            said.resize(56, 0);
            assert_eq!(Hello::decode(&said), Some(hello));
        }
    }

    #[test]
    fn other_private_data_is_not_decoded() {
        let socket = "10.0.0.1:7".parse().expect("an address");
        let hello = Hello { socket, table: 1, key: 2, maps: MAPS_MAX + 1 };
        assert_eq!(Hello::decode(&hello.encode()), None);
        assert_eq!(Hello::decode(&[0; 56]), None);
        let said = Hello { maps: 1, ..hello }.encode();
        for len in 0..said.len() {
            assert_eq!(Hello::decode(&said[..len]), None);
        }
    }
}
