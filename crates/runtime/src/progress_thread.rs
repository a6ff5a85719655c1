//! The thread that serves one-sided targets and idle applications.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use crate::aside::{Aside, Step};
use crate::cell::Drive;
use crate::runtime::Shared;
use crate::sleep::sleep_precisely;

/// Serves the engine until told to stop.
///
/// It sleeps on the links, and drives the engine when something comes. After that it looks on for as long
/// as threads of the application spin that wait: the next frame often comes soon, and waking up takes
/// longer than serving it. While the application polls, or a thread of the application sleeps on the links
/// itself, it steps aside: it then neither drives nor sleeps on the links (each frame would wake it for
/// nothing), but looks now and then whether the application has turned to something else: [`Aside`]
/// says when. It is what a network adapter's interrupt is to a polling driver.
pub(crate) fn run(shared: &Arc<Shared>) {
    sleep_precisely();
    let mut aside = Aside::new();
    while !shared.is_stopping.load(Ordering::SeqCst) {
        if let Step::Aside(ns) = aside.step(shared.is_driven(), shared.polled_ns_ago()) {
            step_aside(ns);
        } else if shared.host.waiters.take_watch() {
            serve(shared, &mut aside);
        } else if let Some(ns) = aside.watched() {
            step_aside(ns);
        } else {
            rest(shared);
        }
    }
}

/// Serves the links and sleeps on them; the place of the thread that does so is taken.
fn serve(shared: &Shared, aside: &mut Aside) {
    let (mut outcome, found) = shared.drive_all();
    let away_ns = aside.away_ns();
    while outcome == Drive::Drove && shared.looks_on(away_ns) {
        std::hint::spin_loop();
        outcome = shared.drive_all().0;
    }
    if outcome == Drive::Drove && shared.polled_ns_ago() >= away_ns {
        shared.sleep_on_links(None);
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
