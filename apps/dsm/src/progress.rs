//! The progress thread of a rank: it serves the machine while no other thread does, and ends the
//! process if a rank has failed.

use std::io;
use std::thread;
use std::time::{Duration, Instant};

use ethernot::{Awaited, Occurred, WaitError};

use crate::core::{Core, Inside};
use crate::failure::RankFailure;

/// Starts the progress thread.
pub(crate) fn start(core: &'static Core) -> io::Result<()> {
    let builder = thread::Builder::new().name("dsm-progress".into());
    builder.spawn(move || core.serve()).map(drop)
}

impl Core {
    fn serve(&self) {
        let _inside = Inside::enter();
        let mut connections: Vec<_> = self.connections.iter().collect();
        loop {
            let ends = connections.iter().map(|(_, connection)| Awaited::End(connection));
            let awaited: Vec<_> =
                [Awaited::Completion(&self.queue)].into_iter().chain(ends).collect();
            let found = self.endpoint.wait_any(&awaited, Some(LOOK_AGAIN));
            let mut state = self.lock();
            match found {
                Ok((_, Occurred::Completion(completion))) => {
                    state.host.network.handle(&completion);
                }
                Ok((index, Occurred::End(closed, _))) if index > 0 => {
                    let (rank, _) = connections.remove(index - 1);
                    state.host.network.handle_end(*rank, closed);
                }
                Ok(_) | Err(WaitError::TimedOut { .. }) => {}
                Err(_) => return,
            }
            self.advance(&mut state);
            if state.has_left {
                return;
            }
            if let Some(failure) = state.failure.clone() {
                drop(state);
                self.end(&failure);
                return;
            }
        }
    }

    /// Ends the rank: lets the other ranks know, then calls the program or ends the process.
    fn end(&self, failure: &RankFailure) {
        let deadline = Instant::now() + PASS_ON;
        loop {
            let mut state = self.lock();
            let mut bytes = Vec::new();
            while state.host.network.poll(&mut bytes).is_some() {}
            if state.host.network.is_idle() || Instant::now() > deadline {
                break;
            }
            drop(self.sleep(state, Some(Duration::from_millis(1))));
        }
        if let Some(handler) = &self.on_failure {
            handler(failure);
        } else {
            eprintln!("ethernot dsm: rank {} ends: {failure}", self.rank);
            // SAFETY: `_exit` ends the process without handlers of exits, which could wait for
            // threads that wait for this rank's machine.
            unsafe { libc::_exit(STATUS_FAILED) }
        }
        self.progress.notify_all();
    }
}

/// Time between two looks for failures that other threads have found.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How long a rank that ends waits until the others know why.
const PASS_ON: Duration = Duration::from_millis(200);

/// Exit status of a process that ends because a rank has failed.
const STATUS_FAILED: i32 = 70;
