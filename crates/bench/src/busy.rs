//! Threads that spin during a measurement, as a model of other programs on a busy host.
//!
//! The threads run in a process of their own. Otherwise their CPU time would be added to that of
//! the client or the server. The process of the threads has no namespace of its own and is not
//! pinned, so the kernel's scheduler places its threads.

use std::fs;
use std::hint::black_box;
use std::io;
use std::path::Path;
use std::process;
use std::thread;

use crate::process::{ChildProcess, ChildSpec, Line, ProcessError, Role, print_line};

/// Starts a process with `threads` spinning threads. The threads end when the returned value is
/// dropped or when this process ends. Returns after all threads have started. Returns `None` if
/// `threads` is 0.
pub(crate) fn start(program: &Path, threads: u32) -> Result<Option<ChildProcess>, ProcessError> {
    if threads == 0 {
        return Ok(None);
    }
    let role = Role::Busy(threads);
    let parent = process::id();
    let spec = ChildSpec { role, namespace: None, cpu: None, parent, links: Vec::new() };
    let mut child = ChildProcess::start(program, &spec)?;
    match child.receive()? {
        Line::Spinning => Ok(Some(child)),
        line => Err(child.unexpected(&line)),
    }
}

/// Spins in `threads` threads until the standard input of this process is closed.
pub(crate) fn run(threads: u32) -> Result<(), String> {
    let status = fs::read_to_string("/proc/self/stat");
    let status =
        status.map_err(|error| format!("read the scheduling class of this process: {error}"))?;
    let class = scheduling_class(&status)
        .ok_or("read the scheduling class of this process: /proc/self/stat has no such field")?;
    if REAL_TIME.contains(&class) {
        return Err(format!(
            "busy threads cannot run in the real-time scheduling class {class}, because no other \
             thread would get a processor; start ethernot with normal priority, without chrt"
        ));
    }
    for number in 0..threads {
        let spin = || {
            let mut count = 0_u64;
            loop {
                count = black_box(count).wrapping_add(1);
            }
        };
        let thread = thread::Builder::new().name(format!("busy-{number}"));
        thread.spawn(spin).map_err(|error| format!("start busy thread {number}: {error}"))?;
    }
    print_line(&Line::Spinning)?;
    // The parent sends no data. When the parent closes the input, this process ends with all its
    // threads.
    io::copy(&mut io::stdin().lock(), &mut io::sink())
        .map(|_| ())
        .map_err(|error| format!("wait for the end of the run: {error}"))
}

/// Returns the scheduling policy, which is field 41 of `/proc/PID/stat`. The second field may
/// contain spaces, so the fields are counted from its end.
fn scheduling_class(status: &str) -> Option<u32> {
    let (_, after_name) = status.rsplit_once(')')?;
    after_name.split_whitespace().nth(CLASS_FIELD - FIELDS_TO_NAME - 1)?.parse().ok()
}

/// The scheduling policies `SCHED_FIFO`, `SCHED_RR` and `SCHED_DEADLINE`. Threads that spin under
/// these policies leave no CPU time to threads of other policies.
const REAL_TIME: [u32; 3] = [1, 2, 6];

/// Number of the scheduling policy's field, counted from 1 as in proc(5).
const CLASS_FIELD: usize = 41;

/// Number of fields up to the name: the process id and the name.
const FIELDS_TO_NAME: usize = 2;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduling_class_is_found_after_any_process_name() {
        let fields: Vec<_> = (3..=52).map(|field| field.to_string()).collect();
        let status = format!("17 (a ) b) {}", fields.join(" "));
        assert_eq!(scheduling_class(&status), Some(41));
        assert_eq!(scheduling_class("17 (a) S"), None);
    }
}
