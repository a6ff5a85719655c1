//! Tests tasks that wait for changes which cause no event.

mod pair;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Wake, Waker};

use pair::{Side, connect};
use runtime::ChangedBy;

/// Counts the wake-ups of a task.
#[derive(Default)]
struct Woken(AtomicU32);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Number of turns in which nothing arrives. A turn takes longer than 10 ns, so these turns take
/// longer than the millisecond after which a task checks again.
const TURNS: u32 = 200_000;

#[test]
fn a_task_waiting_for_peers_does_not_wake_without_traffic() {
    let client = Side::new(false);
    let woken = [(); 2].map(|()| Arc::new(Woken::default()));
    let wakers = woken.each_ref().map(|woken| Waker::from(Arc::clone(woken)));
    let _of_peers = client.runtime.enlist_looker(&wakers[0], ChangedBy::Peers);
    for _ in 0..TURNS {
        client.runtime.drive().expect("not forked");
    }
    assert_eq!(woken[0].0.load(Ordering::SeqCst), 0);
    // A task that waits for a change by the application is woken even if nothing arrives.
    let _of_application = client.runtime.enlist_looker(&wakers[1], ChangedBy::Application);
    while woken[1].0.load(Ordering::SeqCst) == 0 {
        client.runtime.drive().expect("not forked");
    }
}

#[test]
fn a_task_waiting_for_peers_wakes_when_frames_arrive() {
    let (client, server) = (Side::new(false), Side::new(false));
    let _connection = connect(&client, &server);
    let woken = Arc::new(Woken::default());
    let _enlisted =
        client.runtime.enlist_looker(&Waker::from(Arc::clone(&woken)), ChangedBy::Peers);
    connect(&server, &client);
    while woken.0.load(Ordering::SeqCst) == 0 {
        client.runtime.drive().expect("not forked");
        server.runtime.drive().expect("not forked");
    }
}
