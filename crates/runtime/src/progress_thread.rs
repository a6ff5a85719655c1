//! The progress thread, which serves the endpoint while the application does not.

use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use delivery::Instant;
use waiting::{Outcome, Standby, WAKE_UPS};

use crate::cell::Drive;
use crate::runtime::Shared;
use crate::sleep::{processor_ns, sleep_precisely};
use crate::waits::Looking;

/// Serves the engine until the runtime is stopped.
///
/// The progress thread sleeps on the links, and drives the engine when something arrives. After
/// that it spins for the time that [`Polling`](crate::Polling) sets. The reason: the next frame
/// often arrives soon, and a wake-up takes longer than serving the frame.
///
/// While the application polls, or a thread of the application is on watch, the progress thread
/// leaves the links to the application. It does not drive the engine or sleep on the links. It only
/// checks at intervals whether the application still polls or watches. A network driver that polls
/// disables the interrupt of its adapter in the same way.
pub(crate) fn run(shared: &Arc<Shared>) {
    sleep_precisely();
    measure_wake_ups(shared);
    let mut looking = Looking::default();
    let mut standby = Standby::default();
    while !shared.is_stopping.load(Ordering::SeqCst) {
        if let Outcome::SleepUntil(time) = shared.while_serving() {
            looking = Looking::default();
            park_until(shared, time);
        } else if shared.host.waiters.take_watch() {
            standby.on_served();
            serve(shared, &mut looking);
        } else {
            looking = Looking::default();
            stand_by(shared, &mut standby);
        }
    }
}

/// Sleeps a few times to measure the cost of a wake-up on this host. Each sleep takes about as long
/// as a wait for a frame.
fn measure_wake_ups(shared: &Shared) {
    for _ in 0..WAKE_UPS {
        let spent_ns = processor_ns();
        let until = shared.host.clock.now().after_ns(MEASURED_SLEEP_NS);
        thread::park_timeout(Duration::from_nanos(MEASURED_SLEEP_NS));
        // If another thread ended the sleep early, the length of the sleep does not show the cost
        // of a wake-up.
        if shared.host.clock.now() >= until {
            shared.on_wake_up(until, spent_ns);
        }
    }
}

/// Pins a thread to one processor.
pub(crate) fn keep_to(thread: &JoinHandle<()>, processor: usize) -> io::Result<()> {
    // SAFETY: a `cpu_set_t` is an array of bits, and all bits may be zero.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if processor >= size_of::<libc::cpu_set_t>() * 8 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the set has a bit for the processor, as checked above.
    unsafe { libc::CPU_SET(processor, &mut set) };
    let (id, bytes) = (thread.as_pthread_t(), size_of::<libc::cpu_set_t>());
    // SAFETY: the thread has not been joined, because its handle is here, and `bytes` is the length
    // of `set`.
    match unsafe { libc::pthread_setaffinity_np(id, bytes, &raw const set) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Reads the links and sleeps on them. The calling thread is on watch; this function gives up the
/// watch at the end.
fn serve(shared: &Shared, looking: &mut Looking) {
    let (mut outcome, found) = shared.look(looking);
    shared.on_served(found);
    // If another thread is inside the engine, stop. The kernel may have descheduled that thread,
    // and spinning here would keep it from getting a processor back.
    while outcome == Drive::Drove && !shared.is_stopping.load(Ordering::Relaxed) {
        match shared.while_serving() {
            Outcome::Spin if !shared.moderates_instead() => {
                std::hint::spin_loop();
                outcome = shared.look(looking).0;
            }
            Outcome::Spin | Outcome::SleepUntilEvent => {
                let slept = shared.sleep_on_links(None);
                shared.on_slept(looking, slept);
                break;
            }
            Outcome::SleepUntil(_) => break,
        }
    }
    shared.host.waiters.leave_watch();
}

/// Waits while a thread of the application is on watch: first for increasing times, then until that
/// thread wakes the progress thread.
fn stand_by(shared: &Shared, standby: &mut Standby) {
    let now = shared.host.clock.now();
    if let Some(time) = standby.on_watched(now, shared.waits.sleep_cost_ns()) {
        return park_until(shared, time);
    }
    shared.is_resting.store(true, Ordering::SeqCst);
    if shared.host.waiters.is_watched() && !shared.is_stopping.load(Ordering::SeqCst) {
        thread::park();
    }
    shared.is_resting.store(false, Ordering::SeqCst);
}

fn park_until(shared: &Shared, time: Instant) {
    thread::park_timeout(Duration::from_nanos(time.since_ns(shared.host.clock.now())));
}

/// Length of each measured sleep, in nanoseconds. This is longer than setting a timer takes on the
/// slowest hosts, and so short that all measurements together take a millisecond.
const MEASURED_SLEEP_NS: u64 = 50_000;
