//! Detects forked children. A child made by `fork` has none of the parent's threads, so calls on
//! the parent's endpoints fail in the child. The child closes its copies of the parent's sockets
//! and opens endpoints of its own.

use std::os::fd::RawFd;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use thiserror::Error;

/// The call was made in a child process that was forked after the endpoint was created.
///
/// The child has a copy of the endpoint's memory, but two engines with one identity would confuse
/// every peer. The child must create an endpoint of its own.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("this endpoint belongs to the parent process; a forked child makes its own")]
pub struct Forked;

/// Returns the number of forks between the process that first called this function and the calling
/// process. Code that stores something per process can use the result as a key. After the first
/// call, costs one relaxed load.
#[inline]
pub fn forks() -> u32 {
    if !REGISTERED.is_completed() {
        HomeProcess::here();
    }
    FORKS.load(Ordering::Relaxed)
}

/// The process that created a value. A `Drop` that takes a lock or waits for threads must check the
/// process first. A forked child has none of its parent's threads. If one of them held the lock
/// during the fork, no thread of the child would ever release the lock.
#[derive(Clone, Copy, Debug)]
pub struct HomeProcess {
    generation: u32,
}

impl HomeProcess {
    /// Returns the calling process.
    pub fn here() -> Self {
        REGISTERED.call_once(|| {
            // SAFETY: the handler is a function without captured state that works on atomics and
            // descriptors, which is allowed in the child of a program with threads. If registering
            // fails (no memory), forked children go undetected, as without this call.
            unsafe { libc::pthread_atfork(None, None, Some(begin_child)) };
        });
        Self { generation: FORKS.load(Ordering::Relaxed) }
    }

    /// Checks that the caller is in the process that created the value. Costs one relaxed load.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child.
    #[inline]
    pub fn check(self) -> Result<(), Forked> {
        if FORKS.load(Ordering::Relaxed) == self.generation { Ok(()) } else { Err(Forked) }
    }
}

/// Sockets of one endpoint, stored where a forked child finds them without a lock.
///
/// A child must close its copies of the sockets. While any process has a socket open, the socket's
/// address stays in use. The kernel then also accepts datagrams to this address, so peers would not
/// notice that the parent has ended.
#[derive(Debug)]
pub(crate) struct Inherited {
    block: &'static Block,
}

/// An element of a list that only grows. Blocks are reused and never freed.
#[derive(Debug)]
struct Block {
    is_used: AtomicBool,
    sockets: [Socket; SOCKETS],
    /// The next block of the list. New blocks are added only at the head of the list, so this never
    /// changes.
    next: *const Block,
}

// SAFETY: `next` is written before the block is shared, and the block that it points to is never
// freed.
unsafe impl Sync for Block {}
// SAFETY: `next` is written before the block is shared, and the block that it points to is never
// freed.
unsafe impl Send for Block {}

#[derive(Debug)]
struct Socket {
    /// Negative if the entry is empty.
    fd: AtomicI32,
    /// Inode of the socket. A forked child compares it, because the descriptor number may belong to
    /// another file when the process forks.
    inode: AtomicU64,
}

/// Maximum number of sockets in one block: the descriptors of all links of an endpoint.
pub(crate) const SOCKETS: usize = 32;

impl Inherited {
    /// Takes a free block, or adds one.
    pub(crate) fn claim() -> Self {
        let mut blocks = blocks();
        let free = |block: &&Block| !block.is_used.swap(true, Ordering::AcqRel);
        let block = blocks.find(free).unwrap_or_else(|| {
            let none = || Socket { fd: AtomicI32::new(-1), inode: AtomicU64::new(0) };
            let sockets = std::array::from_fn(|_| none());
            let is_used = AtomicBool::new(true);
            let block = Box::leak(Box::new(Block { is_used, sockets, next: ptr::null() }));
            let mut first = BLOCKS.load(Ordering::Acquire);
            loop {
                block.next = first;
                let this = ptr::from_mut(block);
                match BLOCKS.compare_exchange(first, this, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => break block,
                    Err(other) => first = other,
                }
            }
        });
        Self { block }
    }

    /// Sets the descriptor of an entry. If the descriptor is not a socket, empties the entry.
    pub(crate) fn set(&self, place: usize, fd: Option<RawFd>) {
        let Some(socket) = self.block.sockets.get(place) else { return };
        socket.fd.store(-1, Ordering::Release);
        let Some((fd, inode)) = fd.and_then(|fd| Some((fd, socket_inode(fd)?))) else { return };
        socket.inode.store(inode, Ordering::Release);
        socket.fd.store(fd, Ordering::Release);
    }
}

impl Drop for Inherited {
    fn drop(&mut self) {
        for socket in &self.block.sockets {
            socket.fd.store(-1, Ordering::Release);
        }
        self.block.is_used.store(false, Ordering::Release);
    }
}

fn blocks() -> impl Iterator<Item = &'static Block> {
    let mut next: *const Block = BLOCKS.load(Ordering::Acquire);
    std::iter::from_fn(move || {
        // SAFETY: the pointer is null or points to a block. Blocks are never freed, and a block is
        // complete before a thread can see it here.
        let block = unsafe { next.as_ref() }?;
        next = block.next;
        Some(block)
    })
}

/// Returns the inode of a descriptor, if it is a socket.
fn socket_inode(fd: RawFd) -> Option<u64> {
    let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: `fstat` fills `found` if it succeeds.
    let found = unsafe {
        if libc::fstat(fd, found.as_mut_ptr()) != 0 {
            return None;
        }
        found.assume_init()
    };
    (found.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(found.st_ino)
}

/// Number of forks between the first process and this one.
static FORKS: AtomicU32 = AtomicU32::new(0);
static REGISTERED: Once = Once::new();
static BLOCKS: AtomicPtr<Block> = AtomicPtr::new(ptr::null_mut());

/// Runs in each child before `fork` returns in the child.
extern "C" fn begin_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    crate::exit::forget();
    if BLOCKS.load(Ordering::Acquire).is_null() {
        return;
    }
    // SAFETY: the path is a string that ends with 0.
    let nothing = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if nothing < 0 {
        return;
    }
    for socket in blocks().flat_map(|block| &block.sockets) {
        let fd = socket.fd.load(Ordering::Acquire);
        if fd >= 0 && socket_inode(fd) == Some(socket.inode.load(Ordering::Acquire)) {
            // Replace the socket with `/dev/null` under the same descriptor number. The child may
            // later drop its copy of the endpoint, which closes that descriptor number. SAFETY:
            // takes no pointers, and only that copy uses the number.
            unsafe { libc::dup3(nothing, fd, libc::O_CLOEXEC) };
        }
    }
    // SAFETY: `nothing` was opened above, and no other code uses it.
    unsafe { libc::close(nothing) };
}
