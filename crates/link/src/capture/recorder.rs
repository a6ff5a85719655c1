//! The thread that writes a capture file, and the queue in front of it.

use std::io::{self, BufWriter, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use super::at_exit;
use crate::pcapng::{self, Direction};
use crate::threads::start_thread;

/// Counters of a capture.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct CaptureStatistics {
    /// Frames that passed through the link.
    pub frames: u64,
    /// Number of the frames counted in `frames` that are missing from the file. A frame is missing
    /// if the queue to the writing thread was full, a write failed, or its payload could not be
    /// read.
    pub frames_missing: u64,
}

/// The queue to the thread that writes the file.
#[derive(Debug)]
pub(super) struct Queue {
    /// `None` if the queue is closed, which stops the thread.
    blocks: Option<SyncSender<Block>>,
    /// Counts the bytes that are not in the file yet.
    waiting: Arc<Waiting>,
    /// Number of interface blocks queued so far. The order of these blocks in the file determines
    /// the numbers of the interfaces.
    interfaces: Mutex<u32>,
    thread: Option<JoinHandle<()>>,
}

/// Number of bytes in blocks that are queued or buffered.
#[derive(Debug, Default)]
pub(super) struct Waiting(AtomicU64);

impl Waiting {
    pub(super) fn is_any(&self) -> bool {
        self.0.load(Ordering::Acquire) > 0
    }

    /// Adds a block and returns the number of bytes that waited before it.
    fn add(&self, block: &Block) -> u64 {
        self.0.fetch_add(block.bytes.len() as u64, Ordering::Relaxed)
    }

    fn remove(&self, bytes: u64) {
        self.0.fetch_sub(bytes, Ordering::Release);
    }
}

/// A block of the file, and the counters of its link.
#[derive(Debug)]
struct Block {
    bytes: Vec<u8>,
    counts: Arc<Counts>,
}

/// Frame counters of one link.
#[derive(Debug, Default)]
struct Counts {
    frames: AtomicU64,
    frames_missing: AtomicU64,
}

impl Counts {
    fn add(&self, frames: u64, missing: u64) {
        self.frames.fetch_add(frames, Ordering::Relaxed);
        self.frames_missing.fetch_add(missing, Ordering::Relaxed);
    }

    fn get(&self) -> CaptureStatistics {
        CaptureStatistics {
            frames: self.frames.load(Ordering::Relaxed),
            frames_missing: self.frames_missing.load(Ordering::Relaxed),
        }
    }
}

impl Queue {
    /// Writes the start of the file and starts the writing thread.
    pub(super) fn start<W: Write + Send + 'static>(output: W) -> io::Result<Arc<Self>> {
        let mut head = Vec::new();
        pcapng::put_section_header(&mut head);
        let mut output = BufWriter::new(output);
        output.write_all(&head)?;
        let (sender, blocks) = mpsc::sync_channel(QUEUE_BLOCKS);
        let waiting = Arc::new(Waiting::default());
        at_exit::wait_for(&waiting);
        let of_thread = Arc::clone(&waiting);
        let thread = start_thread("capture", move || write_blocks(output, &blocks, &of_thread))?;
        let interfaces = Mutex::new(0);
        Ok(Arc::new(Self { blocks: Some(sender), waiting, interfaces, thread: Some(thread) }))
    }

    #[cfg(test)]
    pub(super) fn waiting(&self) -> Arc<Waiting> {
        Arc::clone(&self.waiting)
    }

    /// Queues an interface block and returns the interface's number. Waits while the queue is full.
    fn add_interface(&self, name: &str, description: &str, counts: &Arc<Counts>) -> u32 {
        let mut interfaces = self.interfaces.lock().unwrap_or_else(PoisonError::into_inner);
        let mut bytes = Vec::new();
        pcapng::put_interface(&mut bytes, name, description);
        self.enqueue_last(Block { bytes, counts: Arc::clone(counts) });
        *interfaces += 1;
        *interfaces - 1
    }

    /// Queues a block if the queue has room. Returns whether the block was queued.
    fn enqueue(&self, block: Block) -> bool {
        let bytes = block.bytes.len() as u64;
        let has_room = self.waiting.add(&block) + bytes <= QUEUE_BYTES_MAX;
        let is_queued =
            has_room && self.blocks.as_ref().is_some_and(|blocks| blocks.try_send(block).is_ok());
        if !is_queued {
            self.waiting.remove(bytes);
        }
        is_queued
    }

    /// Queues a block that must not be dropped. Waits while the queue is full.
    fn enqueue_last(&self, block: Block) {
        let bytes = block.bytes.len() as u64;
        self.waiting.add(&block);
        if self.blocks.as_ref().is_none_or(|blocks| blocks.send(block).is_err()) {
            // The writing thread has panicked, so the file ends before this block.
            self.waiting.remove(bytes);
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.blocks = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Records the frames of one link. In the file, the link is an interface.
#[derive(Debug)]
pub(super) struct Recorder {
    queue: Arc<Queue>,
    interface: u32,
    counts: Arc<Counts>,
    last_ns: u64,
}

impl Recorder {
    /// Adds an interface with this name to the file.
    pub(super) fn new(queue: Arc<Queue>, name: &str) -> Self {
        Self::described(queue, name, pcapng::EDGE)
    }

    /// Adds an interface with this name for TCP connections to the file.
    pub(super) fn of_tcp(queue: Arc<Queue>, name: &str) -> Self {
        Self::described(queue, name, pcapng::TCP)
    }

    fn described(queue: Arc<Queue>, name: &str, description: &str) -> Self {
        let counts = Arc::new(Counts::default());
        let interface = queue.add_interface(name, description, &counts);
        Self { queue, interface, counts, last_ns: 0 }
    }

    pub(super) fn statistics(&self) -> CaptureStatistics {
        self.counts.get()
    }

    /// Records a packet that has all its headers.
    pub(super) fn record_packet(&mut self, at_ns: u64, direction: Direction, packet: &[u8]) {
        self.last_ns = at_ns;
        let mut bytes = Vec::with_capacity(packet.len() + BLOCK_BYTES);
        pcapng::put_packet(&mut bytes, self.interface, at_ns, direction, packet);
        let is_recorded = self.queue.enqueue(Block { bytes, counts: Arc::clone(&self.counts) });
        self.counts.add(1, u64::from(!is_recorded));
    }

    /// Counts a frame whose bytes could not be read.
    pub(super) fn record_missing(&self) {
        self.counts.add(1, 1);
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let mut bytes = Vec::new();
        let CaptureStatistics { frames, frames_missing } = self.counts.get();
        let (interface, at_ns) = (self.interface, self.last_ns);
        pcapng::put_statistics(&mut bytes, interface, at_ns, frames, frames_missing);
        self.queue.enqueue_last(Block { bytes, counts: Arc::clone(&self.counts) });
    }
}

/// Writes blocks until the queue is closed. Flushes whenever the queue is empty, so that other
/// programs can read the file while it grows. After a write error, all further blocks count as
/// missing.
fn write_blocks<W: Write>(mut output: BufWriter<W>, blocks: &Receiver<Block>, waiting: &Waiting) {
    let mut has_failed = false;
    let mut unflushed = 0;
    loop {
        let block = match blocks.try_recv() {
            Ok(block) => block,
            Err(TryRecvError::Empty) => {
                has_failed |= output.flush().is_err();
                waiting.remove(std::mem::take(&mut unflushed));
                match blocks.recv() {
                    Ok(block) => block,
                    Err(_) => return,
                }
            }
            Err(TryRecvError::Disconnected) => {
                // The queue is closed, so no capture is left that could report an error.
                let _ = output.flush();
                return;
            }
        };
        has_failed = has_failed || output.write_all(&block.bytes).is_err();
        unflushed += block.bytes.len() as u64;
        block.counts.add(0, u64::from(has_failed));
    }
}

/// Returns the time of the host's wall clock, in nanoseconds since 1970.
pub(super) fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Maximum number of queued blocks: 36 MiB at 9 KiB each.
const QUEUE_BLOCKS: usize = 4096;

/// Maximum number of queued bytes: 1024 frames of 64 KiB, which is the length of the longest frames
/// over shared memory and loopback.
const QUEUE_BYTES_MAX: u64 = 64 << 20;

/// Bytes of a packet block besides the packet itself, including padding.
const BLOCK_BYTES: usize = 28 + 3 + 8 + 4 + 4;
