//! What passes through a link, in a file that Wireshark reads.

mod at_exit;
mod encapsulation;
mod file;

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, Receiver, SyncSender, TryRecvError, TrySendError};
use std::thread::JoinHandle;
use std::time::{SystemTime, UNIX_EPOCH};

use delivery::{Instant, TxBatch};

use self::encapsulation::Envelope;
pub use self::file::{CaptureFile, CapturedFrame};
use crate::pcapng::{self, Direction};
use crate::wrapper::Wrapper;
use crate::{Link, OnFrame, PayloadUnmapped, payload, start_thread};

/// Which clock the times of captured frames are from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum CaptureClock {
    /// The host's wall clock: for real links.
    Wall,
    /// The engine's, as if it had begun in 1970; a sent frame has the time of the last receive. For
    /// simulated links, whose captures are then the same in every run.
    Engine,
}

/// How much of the traffic a capture has.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct CaptureStatistics {
    /// Frames that passed.
    pub frames: u64,
    /// Frames among them that are not in the file: the writer did not keep up, writing failed, or
    /// the payload could not be read.
    pub frames_missing: u64,
}

/// A link whose frames are also written to a pcapng file, with the headers they had on the wire.
///
/// A thread of its own writes the file, behind a queue of 4096 frames: what does not fit
/// is counted and left out, so that a slow disk never holds up the link. Dropping the capture
/// writes what is queued and ends the file.
#[derive(Debug)]
pub struct Capture<L> {
    link: L,
    clock: CaptureClock,
    last_now: Instant,
    recorder: Recorder,
}

/// Frames waiting to be written: at 9 KiB each no more than 36 MiB.
const QUEUE_FRAMES: usize = 4096;

impl<L: Link> Capture<L> {
    /// Captures to a new file at `path`.
    pub fn create(link: L, path: &Path, clock: CaptureClock) -> io::Result<Self> {
        let file = File::create(path).map_err(|error| {
            io::Error::new(error.kind(), format!("cannot create {}: {error}", path.display()))
        })?;
        Self::new(link, file, clock)
    }

    /// Captures to `output`, which needs no buffer of its own.
    pub fn new<W>(link: L, output: W, clock: CaptureClock) -> io::Result<Self>
    where
        W: Write + Send + 'static,
    {
        let recorder = Recorder::start(output, &format!("link {}", link.caps().local))?;
        Ok(Self { link, clock, last_now: Instant(0), recorder })
    }

    /// How much the file has so far, counting what is still queued as written.
    pub fn capture_statistics(&self) -> CaptureStatistics {
        self.recorder.counts.get()
    }

    /// The link without the capture, which ends.
    pub fn into_inner(self) -> L {
        self.link
    }

    fn record_sent(&mut self, batch: &TxBatch, frames: usize) {
        let envelope = Envelope {
            from: self.link.caps().local,
            to: batch.to(),
            congestion_experienced: false,
            ethernet: self.link.ethernet_header(),
        };
        let at_ns = match self.clock {
            CaptureClock::Wall => wall_ns(),
            CaptureClock::Engine => self.last_now.0,
        };
        for index in 0..frames.min(batch.len()) {
            let frame = batch.frame(index);
            let mut bytes = frame.header.to_vec();
            if payload::append(frame.payload, &mut bytes) {
                self.recorder.record(at_ns, Direction::Outbound, &envelope, &bytes);
            } else {
                self.recorder.counts.add(1, 1);
            }
        }
    }
}

impl<L: Link> Wrapper for Capture<L> {
    type Inner = L;

    fn inner(&self) -> &L {
        &self.link
    }

    fn inner_mut(&mut self) -> &mut L {
        &mut self.link
    }

    fn let_in(&mut self, now: Instant, limit: usize, on_frame: OnFrame<'_>) -> io::Result<usize> {
        self.last_now = now;
        let (to, ethernet) = (self.link.caps().local, self.link.ethernet_header());
        let (clock, recorder) = (self.clock, &mut self.recorder);
        let mut now_wall_ns = None;
        self.link.receive(now, limit, &mut |frame| {
            let at_ns = match clock {
                CaptureClock::Wall => now_wall_ns
                    .get_or_insert_with(wall_ns)
                    .saturating_sub(now.since_ns(frame.received_at)),
                CaptureClock::Engine => frame.received_at.0,
            };
            let congestion_experienced = frame.congestion_experienced;
            let envelope = Envelope { from: frame.from, to, congestion_experienced, ethernet };
            if frame.outside.is_empty() {
                recorder.record(at_ns, Direction::Inbound, &envelope, frame.bytes);
            } else {
                let mut whole = Vec::with_capacity(frame.len());
                frame.append_to(&mut whole);
                recorder.record(at_ns, Direction::Inbound, &envelope, &whole);
            }
            on_frame(frame);
        })
    }

    fn let_out(&mut self, batch: &TxBatch) -> io::Result<usize> {
        let result = self.link.send(batch);
        let sent = match &result {
            Ok(frames) => *frames,
            Err(error) => PayloadUnmapped::from_io(error).map_or(0, |unmapped| unmapped.frame),
        };
        self.record_sent(batch, sent);
        result
    }
}

/// The way to the thread that writes.
#[derive(Debug)]
struct Recorder {
    /// `None` once the thread is told to end.
    queue: Option<SyncSender<Vec<u8>>>,
    counts: Arc<Counts>,
    last_ns: u64,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Counts {
    frames: AtomicU64,
    frames_missing: AtomicU64,
    /// Blocks that are not in the file yet.
    waiting: AtomicU64,
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

impl Recorder {
    fn start<W: Write + Send + 'static>(output: W, name: &str) -> io::Result<Self> {
        let mut head = Vec::new();
        pcapng::put_section_header(&mut head);
        pcapng::put_interface(&mut head, name);
        let mut output = BufWriter::new(output);
        output.write_all(&head)?;
        let (queue, blocks) = mpsc::sync_channel(QUEUE_FRAMES);
        let counts = Arc::new(Counts::default());
        at_exit::wait_for(&counts);
        let of_thread = Arc::clone(&counts);
        let thread = start_thread("capture", move || write_blocks(output, &blocks, &of_thread))?;
        Ok(Self { queue: Some(queue), counts, last_ns: 0, thread: Some(thread) })
    }

    fn record(&mut self, at_ns: u64, direction: Direction, envelope: &Envelope, frame: &[u8]) {
        self.last_ns = at_ns;
        let mut packet = Vec::with_capacity(frame.len() + HEADERS_BYTES);
        let mut block = Vec::with_capacity(frame.len() + HEADERS_BYTES + BLOCK_BYTES);
        let is_recorded = envelope.put(&mut packet, frame) && {
            pcapng::put_packet(&mut block, 0, at_ns, direction, &packet);
            self.enqueue(block)
        };
        self.counts.add(1, u64::from(!is_recorded));
    }

    fn enqueue(&self, block: Vec<u8>) -> bool {
        self.counts.waiting.fetch_add(1, Ordering::Relaxed);
        match self.queue.as_ref().map(|queue| queue.try_send(block)) {
            Some(Ok(())) => true,
            Some(Err(TrySendError::Full(_) | TrySendError::Disconnected(_))) | None => {
                self.counts.waiting.fetch_sub(1, Ordering::Relaxed);
                false
            }
        }
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        let mut block = Vec::new();
        let counts = self.counts.get();
        pcapng::put_statistics(&mut block, self.last_ns, counts.frames, counts.frames_missing);
        if let Some(queue) = self.queue.take() {
            // Waits for room: the file shall end with its counts. An error means that writing has
            // failed, and there is nobody left to tell.
            self.counts.waiting.fetch_add(1, Ordering::Relaxed);
            let _ = queue.send(block);
        }
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Writes blocks until the queue ends; flushes whenever it runs empty, so that the file can be
/// watched. After an error the blocks are counted as missing.
fn write_blocks<W: Write>(mut output: BufWriter<W>, blocks: &Receiver<Vec<u8>>, counts: &Counts) {
    let mut has_failed = false;
    let mut unflushed = 0;
    loop {
        let block = match blocks.try_recv() {
            Ok(block) => block,
            Err(TryRecvError::Empty) => {
                has_failed |= output.flush().is_err();
                counts.waiting.fetch_sub(std::mem::take(&mut unflushed), Ordering::Release);
                match blocks.recv() {
                    Ok(block) => block,
                    Err(_) => return,
                }
            }
            Err(TryRecvError::Disconnected) => {
                // Nobody is left to tell.
                let _ = output.flush();
                return;
            }
        };
        has_failed = has_failed || output.write_all(&block).is_err();
        unflushed += 1;
        counts.add(0, u64::from(has_failed));
    }
}

fn wall_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// Ethernet, IPv6 and UDP headers.
const HEADERS_BYTES: usize = 14 + 40 + 8;

/// Everything in a packet's block but the packet, padding included.
const BLOCK_BYTES: usize = 28 + 3 + 8 + 4 + 4;
