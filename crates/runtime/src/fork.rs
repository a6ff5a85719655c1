//! A child made by `fork` has no threads and none of the parent's business: calls report that, and it lets go of the
//! parent's links and opens its own.

use std::os::fd::RawFd;
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use thiserror::Error;

/// The call was made in a child process that was forked after the endpoint was made.
///
/// The child has a copy of the endpoint's memory but not its sockets: two engines with one identity would
/// confuse every peer. The child makes an endpoint of its own.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("this endpoint belongs to the parent process; a forked child makes its own")]
pub struct Forked;

/// Returns how many forks lie between this process and the one that first asked: code that keeps something for each
/// process uses it as a key. One relaxed load, but for the first call.
#[inline]
pub fn forks() -> u32 {
    if !REGISTERED.is_completed() {
        HomeProcess::here();
    }
    FORKS.load(Ordering::Relaxed)
}

/// The process that something was made in. A `Drop` that takes a lock or waits for threads asks it first, because a forked
/// child has neither those threads nor those that held the lock.
#[derive(Clone, Copy, Debug)]
pub struct HomeProcess {
    generation: u32,
}

impl HomeProcess {
    /// Returns this process.
    pub fn here() -> Self {
        REGISTERED.call_once(|| {
            // SAFETY: the handler is a function without captured state that works on atomics and
            // descriptors, which is allowed in a child of a program with threads. Failure (no memory)
            // leaves forked children undetected, as they are without this call.
            unsafe { libc::pthread_atfork(None, None, Some(begin_child)) };
        });
        Self { generation: FORKS.load(Ordering::Relaxed) }
    }

    /// Whether the caller is in the process this was made in. One relaxed load.
    ///
    /// # Errors
    /// [`Forked`] in a child.
    #[inline]
    pub fn check(self) -> Result<(), Forked> {
        if FORKS.load(Ordering::Relaxed) == self.generation { Ok(()) } else { Err(Forked) }
    }
}

/// Sockets of one endpoint, where a forked child finds them without a lock.
///
/// As long as a process has a socket open, its address is taken, and peers that send there are not refused.
/// A child that knows nothing of the endpoint must not keep it so after the parent's end.
#[derive(Debug)]
pub(crate) struct Inherited {
    block: &'static Block,
}

/// Never freed, but used again.
#[derive(Debug)]
struct Block {
    is_used: AtomicBool,
    sockets: [Socket; SOCKETS],
    /// Blocks are only ever put in front.
    next: *const Block,
}

// SAFETY: `next` is written before the block is shared, and what it points to is never freed.
unsafe impl Sync for Block {}
// SAFETY: as above.
unsafe impl Send for Block {}

#[derive(Debug)]
struct Socket {
    /// Negative for none.
    fd: AtomicI32,
    /// Which socket it is, as numbers of descriptors are used again.
    inode: AtomicU64,
}

/// Sockets of one block: what the links of an endpoint are waited for by.
pub(crate) const SOCKETS: usize = 32;

impl Inherited {
    /// For a new endpoint.
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

    /// Notes which descriptor is in a place. Others than sockets are none.
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
        // SAFETY: null or a block, which is never freed, and was made before it could be seen here.
        let block = unsafe { next.as_ref() }?;
        next = block.next;
        Some(block)
    })
}

/// The number of the socket that a descriptor stands for, if it is a socket.
fn socket_inode(fd: RawFd) -> Option<u64> {
    let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
    // SAFETY: fills `found` if it succeeds.
    let found = unsafe {
        if libc::fstat(fd, found.as_mut_ptr()) != 0 {
            return None;
        }
        found.assume_init()
    };
    (found.st_mode & libc::S_IFMT == libc::S_IFSOCK).then_some(found.st_ino)
}

/// How many forks lie between this process and the first.
static FORKS: AtomicU32 = AtomicU32::new(0);
static REGISTERED: Once = Once::new();
static BLOCKS: AtomicPtr<Block> = AtomicPtr::new(ptr::null_mut());

/// Runs in each child before `fork` returns there.
extern "C" fn begin_child() {
    FORKS.fetch_add(1, Ordering::Relaxed);
    crate::exit::forget();
    if BLOCKS.load(Ordering::Acquire).is_null() {
        return;
    }
    // SAFETY: names a file by a string that ends with 0.
    let nothing = unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if nothing < 0 {
        return;
    }
    for socket in blocks().flat_map(|block| &block.sockets) {
        let fd = socket.fd.load(Ordering::Acquire);
        if fd >= 0 && socket_inode(fd) == Some(socket.inode.load(Ordering::Acquire)) {
            // Something else takes its number: the copy of the endpoint closes that if it is dropped. SAFETY: takes no
            // pointers, and only that copy uses the number.
            unsafe { libc::dup3(nothing, fd, libc::O_CLOEXEC) };
        }
    }
    // SAFETY: opened above, and nothing else has it.
    unsafe { libc::close(nothing) };
}
