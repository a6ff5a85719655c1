//! Waits at the end of the process until captures are written. Without this wait, queued frames
//! would be lost, because `exit` drops no values and stops the writing threads.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use std::{process, thread};

use super::recorder::Waiting;

/// Captures that are running.
static CAPTURES: Mutex<Vec<Weak<Waiting>>> = Mutex::new(Vec::new());

/// Identifier of the process that registered the exit handler; 0 before registration. In a forked
/// child, the handler returns at once, because the child has no writing threads.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Makes the end of the process wait until this capture is written to its file, for at most
/// [`PATIENCE`].
pub(super) fn wait_for(waiting: &Arc<Waiting>) {
    if PROCESS.swap(process::id(), Ordering::AcqRel) == 0 {
        // SAFETY: the handler is a function without captured state. If there is no memory to
        // register it, the last frames are missing from the file.
        unsafe { libc::atexit(at_exit) };
    }
    let mut captures = CAPTURES.lock().unwrap_or_else(PoisonError::into_inner);
    captures.retain(|known| known.strong_count() > 0);
    captures.push(Arc::downgrade(waiting));
}

extern "C" fn at_exit() {
    if PROCESS.load(Ordering::Acquire) != process::id() {
        return;
    }
    // If another thread holds the lock, it is registering a capture. That capture has no frames
    // yet.
    let Ok(captures) = CAPTURES.try_lock() else { return };
    let captures: Vec<_> = captures.iter().filter_map(Weak::upgrade).collect();
    settle(&captures, PATIENCE);
}

/// Waits until `captures` have no bytes to write, for at most `patience`.
fn settle(captures: &[Arc<Waiting>], patience: Duration) {
    let began = Instant::now();
    while captures.iter().any(|waiting| waiting.is_any()) && began.elapsed() < patience {
        thread::park_timeout(LOOK);
    }
}

/// Longest time that the end of a process waits for captures. The end of a process waits for peers
/// for at most the same time.
const PATIENCE: Duration = Duration::from_millis(100);

const LOOK: Duration = Duration::from_micros(200);

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::sync::mpsc::{Receiver, channel};

    use super::super::recorder::{Queue, Recorder};
    use super::*;
    use crate::pcapng::Direction;

    /// A disk that performs one write for each message in its channel.
    struct Slow(Receiver<()>, Arc<Mutex<usize>>);

    impl Write for Slow {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            // If the test has dropped its end of the channel, write at once.
            let _ = self.0.recv();
            *self.1.lock().unwrap() += bytes.len();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn the_capture_file_has_all_frames_at_exit() {
        let (go, wait) = channel();
        let written = Arc::new(Mutex::new(0));
        let queue = Queue::start(Slow(wait, Arc::clone(&written))).unwrap();
        let waiting = queue.waiting();
        let mut recorder = Recorder::new(queue, "link");
        for _ in 0..100 {
            recorder.record_packet(0, Direction::Outbound, &[7; 1000]);
        }
        assert!(waiting.is_any());
        drop(go);
        settle(&[Arc::clone(&waiting)], Duration::from_mins(1));
        assert!(!waiting.is_any());
        assert!(*written.lock().unwrap() > 100_000);
        drop(recorder);
    }
}
