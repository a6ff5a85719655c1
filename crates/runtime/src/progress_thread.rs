//! The thread that serves one-sided targets and idle applications.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::cell::Drive;
use crate::runtime::Shared;
use crate::sleep::sleep_precisely;

/// Serves the engine until told to stop.
///
/// It sleeps on the links, and drives the engine when something comes. After that it looks on for as long
/// as threads of the application spin that wait: the next frame often comes soon, and waking up takes
/// longer than serving it. While the application polls, or a thread of the application sleeps on the links
/// itself, it steps aside: it then neither drives nor sleeps on the links (each frame would wake it for
/// nothing), but looks now and then whether the application has turned to something else. It is what a network adapter's interrupt is to a
/// polling driver.
pub(crate) fn run(shared: &Arc<Shared>) {
    sleep_precisely();
    let mut aside_ns = ASIDE_NS;
    let mut polled_looks = 0_u32;
    while !shared.is_stopping.load(Ordering::SeqCst) {
        let is_polled = shared.was_polled_within(QUIET_NS);
        polled_looks = if is_polled { polled_looks.saturating_add(1) } else { 0 };
        if is_polled || !shared.host.waiters.take_watch() {
            let polls_on = polled_looks > POLLED_LOOKS;
            let limit = match (is_polled, polls_on) {
                (true, true) => ASIDE_POLLED_NS_MAX,
                (true, false) => ASIDE_NS_MAX,
                (false, _) => REST_NS,
            };
            aside_ns = step_aside(shared, is_polled, aside_ns, limit);
            continue;
        }
        aside_ns = ASIDE_NS;
        let mut outcome = shared.drive_all();
        while outcome == Drive::Drove && shared.looks_on() {
            std::hint::spin_loop();
            outcome = shared.drive_all();
        }
        if outcome == Drive::Drove && !shared.was_polled_within(QUIET_NS) {
            shared.sleep_on_links(None);
        }
        shared.host.waiters.leave_watch();
        if outcome == Drive::HandedOver {
            // Another thread is inside. Should it have lost its processor there, trying again at
            // once would only keep it from getting the processor back.
            thread::park_timeout(Duration::from_nanos(ASIDE_NS));
        }
    }
}

/// Leaves the work to the application for a while; returns for how long next time, `limit_ns` at most.
fn step_aside(shared: &Shared, is_polled: bool, aside_ns: u64, limit_ns: u64) -> u64 {
    if is_polled || aside_ns < REST_NS {
        thread::park_timeout(Duration::from_nanos(aside_ns));
        return (aside_ns * 2).min(limit_ns);
    }
    // A thread of the application has been asleep on the links for long: it calls when it stops.
    shared.is_resting.store(true, Ordering::SeqCst);
    if shared.host.waiters.is_watched() && !shared.is_stopping.load(Ordering::SeqCst) {
        thread::park();
    }
    shared.is_resting.store(false, Ordering::SeqCst);
    ASIDE_NS
}

/// The application counts as polling for this long after it did: longer than a turn that fills a
/// window of 1 MiB takes, about 200 µs.
pub(crate) const QUIET_NS: u64 = 400_000;

/// The first look after stepping aside comes after this time; each further one after twice it.
const ASIDE_NS: u64 = 50_000;

/// At most this long nobody serves the links after the application has stopped polling: half of the
/// shortest probe timeout, so that peers do not suspect a loss. 2000 looks a second of 2 µs each
/// are 0.4 % of a processor.
const ASIDE_NS_MAX: u64 = 500_000;

/// An application that was found polling so often, 16 ms or more, is left alone for longer: an
/// application that polls and computes in turn is not found so. A thread that wakes up every half
/// millisecond costs a processor that is polled on 4 % with what it takes out of the caches; and where
/// threads of a process change more often than every 3 ms, Linux 6.18 leaves other processes and its own
/// threads without a processor for seconds.
const POLLED_LOOKS: u32 = 32;
const ASIDE_POLLED_NS_MAX: u64 = 4_000_000;

/// When a thread of the application sleeps on the links for this long, the progress thread rests
/// until it is called. 16 ms and the ten looks before make rests rare enough that calls cost nothing.
const REST_NS: u64 = 16_000_000;
