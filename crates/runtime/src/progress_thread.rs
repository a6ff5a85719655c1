//! The thread that serves one-sided targets and idle applications.

use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crate::aside::{Aside, Step};
use crate::cell::Drive;
use crate::looking::Looking;
use crate::lookout::WAKE_UPS;
use crate::runtime::Shared;
use crate::sleep::{processor_ns, sleep_precisely};

/// Serves the engine until told to stop.
///
/// It sleeps on the links, and drives the engine when something comes. After that it looks on for as long
/// as [`Polling`](crate::Polling) says: the next frame often comes soon, and waking up takes
/// longer than serving it. While the application polls, or a thread of the application sleeps on the links
/// itself, it steps aside: it then neither drives nor sleeps on the links (each frame would wake it for
/// nothing), but looks now and then whether the application has turned to something else: [`Aside`]
/// says when. It is what a network adapter's interrupt is to a polling driver.
pub(crate) fn run(shared: &Arc<Shared>) {
    sleep_precisely();
    measure_wake_ups(shared);
    let (mut aside, mut looking) = (Aside::new(), Looking::default());
    while !shared.is_stopping.load(Ordering::SeqCst) {
        if let Step::Aside(ns) = aside.step(shared.is_driven(), shared.polled_ns_ago()) {
            step_aside(ns);
        } else if shared.host.waiters.take_watch() {
            serve(shared, &mut aside, &mut looking);
        } else if let Some(ns) = aside.watched() {
            step_aside(ns);
        } else {
            rest(shared);
        }
    }
}

/// Sleeps a few times for as long as a frame may be away, to learn what a wake-up costs here.
fn measure_wake_ups(shared: &Shared) {
    for _ in 0..WAKE_UPS {
        let spent_ns = processor_ns();
        let until = shared.host.clock.now().after_ns(MEASURED_SLEEP_NS);
        thread::park_timeout(Duration::from_nanos(MEASURED_SLEEP_NS));
        // Somebody may have called.
        if shared.host.clock.now() >= until {
            shared.on_wake_up(until, spent_ns);
        }
    }
}

/// Has a thread run on this processor only.
pub(crate) fn keep_to(thread: &JoinHandle<()>, processor: usize) -> io::Result<()> {
    // SAFETY: a set of processors is an array of bits, and none is set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    if processor >= size_of::<libc::cpu_set_t>() * 8 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    // SAFETY: the set has a bit for it.
    unsafe { libc::CPU_SET(processor, &mut set) };
    let (id, bytes) = (thread.as_pthread_t(), size_of::<libc::cpu_set_t>());
    // SAFETY: the thread has not been joined, as its handle is here, and `set` is as long as is said.
    match unsafe { libc::pthread_setaffinity_np(id, bytes, &raw const set) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Serves the links and sleeps on them; the place of the thread that does so is taken.
fn serve(shared: &Shared, aside: &mut Aside, looking: &mut Looking) {
    let (mut outcome, found) = shared.look(looking);
    let away_ns = aside.away_ns();
    while outcome == Drive::Drove && shared.looks_on(away_ns) {
        shared.pause(looking);
        outcome = shared.look(looking).0;
    }
    if outcome == Drive::Drove && shared.polled_ns_ago() >= away_ns {
        shared.sleep_on_links(None);
        *looking = Looking::after_sleep();
    }
    shared.host.waiters.leave_watch();
    if outcome == Drive::HandedOver {
        // Another thread is inside. Should it have lost its processor there, trying again at
        // once would only keep it from getting the processor back.
        step_aside(aside.at_it());
    } else {
        aside.served(found);
    }
}

/// Leaves the work to the application for a while.
fn step_aside(ns: u64) {
    thread::park_timeout(Duration::from_nanos(ns));
}

/// A thread of the application has been asleep on the links for long: it calls when it stops.
fn rest(shared: &Shared) {
    shared.is_resting.store(true, Ordering::SeqCst);
    if shared.host.waiters.is_watched() && !shared.is_stopping.load(Ordering::SeqCst) {
        thread::park();
    }
    shared.is_resting.store(false, Ordering::SeqCst);
}

/// Longer than setting a timer takes on the slowest hosts; all measurements together take a millisecond.
const MEASURED_SLEEP_NS: u64 = 50_000;
