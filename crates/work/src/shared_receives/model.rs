//! Loom model of two threads: one posts receives, and the other is the thread inside the engine.
//! Loom runs every interleaving of the two threads.

use loom::sync::Arc;
use loom::thread as modelled;
use mem::RegionId;

use super::*;

const fn receive(context: u64) -> Receive {
    Receive { region: RegionId::NONE, offset: 0, length: 0, context }
}

/// Keeps the context of a taken receive.
fn context(receive: Receive, _list: Option<PieceList<'_>>) -> u64 {
    receive.context
}

/// Takes a receive for `owner`. If there is none, makes `owner` wait and returns true.
fn take_or_wait(shared: &SharedReceives, owner: Owner) -> bool {
    loop {
        if shared.take(context).is_some() {
            return false;
        }
        if shared.wait(owner) {
            return true;
        }
    }
}

#[test]
fn a_waiting_message_is_notified_of_the_receive_that_is_posted() {
    loom::model(|| {
        let shared = Arc::new(SharedReceives::new(2));
        let poster = modelled::spawn({
            let shared = Arc::clone(&shared);
            move || shared.post(receive(1)).expect("room")
        });
        let owner = Owner::new(0, 1);
        let waits = take_or_wait(&shared, owner);
        let is_waited_for = poster.join().expect("no panic");
        if waits {
            assert!(is_waited_for, "the waiting connection would get no report");
            assert_eq!(shared.next_ready(), Some(owner));
            assert_eq!(shared.take_waited_for(context), Some(1));
        }
        assert_eq!((shared.next_ready(), shared.len()), (None, 0));
    });
}

#[test]
fn two_waiting_messages_get_one_of_two_receives_each() {
    loom::model(|| {
        let shared = Arc::new(SharedReceives::new(2));
        let poster = modelled::spawn({
            let shared = Arc::clone(&shared);
            move || [1, 2].map(|context| shared.post(receive(context)).expect("room"))
        });
        let owners = [Owner::new(0, 1), Owner::new(1, 1)];
        let waits = owners.map(|owner| take_or_wait(&shared, owner));
        let is_waited_for = poster.join().expect("no panic").contains(&true);
        let waiting = waits.iter().filter(|&&waits| waits).count();
        assert!(is_waited_for || waiting == 0, "the waiting connection would get no report");
        for (owner, _) in owners.iter().zip(waits).filter(|(_, waits)| *waits) {
            assert_eq!(shared.next_ready(), Some(*owner));
            assert!(shared.take_waited_for(context).is_some());
        }
        assert_eq!((shared.next_ready(), shared.len()), (None, 0));
    });
}
