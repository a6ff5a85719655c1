//! Drivers that take nothing for a while.

mod pair;

use engine::Emitted;
use pair::Pair;

#[test]
fn an_acknowledgement_that_waits_for_a_full_link_leaves_no_timer_in_the_past() {
    let mut pair = Pair::connected(1);
    pair.take = Box::new(|host, _, frames| Emitted::Taken(if host == 1 { 0 } else { frames }));
    pair.write(0, 0, 100_000, 1);
    // What finds out in each turn that the link is full, before acknowledgements have their turn.
    pair.write(1, 200_000, 8, 2);
    pair.run_until(1_000_000, "the other host has something to say and cannot", |pair| {
        pair.hosts[1].more
    });
    // The network of the test fails when a timer in the past makes time stand still.
    pair.run_for(500_000);
    assert!(pair.hosts[1].engine.poll_timeout() > pair.now, "its driver would spin");
    pair.take = Box::new(|_, _, frames| Emitted::Taken(frames));
    pair.run_for(1_000_000_000);
    assert!(pair.done(0).iter().all(|completion| completion.result.is_ok()));
    pair.assert_idle();
}
