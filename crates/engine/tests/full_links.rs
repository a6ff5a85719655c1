//! Drivers that take nothing for a while.

mod pair;

use engine::Emitted;
use pair::Pair;

#[test]
fn an_acknowledgement_that_waits_for_a_full_link_leaves_no_timer_in_the_past() {
    let mut pair = Pair::connected(1);
    pair.take = Box::new(|host, _, frames| Emitted::Taken(if host == 1 { 0 } else { frames }));
    pair.write(0, 0, 100_000, 1);
    pair.run_until(1_000_000, "the other host has something to say and cannot", |pair| {
        pair.hosts[1].more
    });
    let host = &pair.hosts[1];
    assert!(host.engine.poll_timeout() > pair.now, "the driver of a full link would spin");
    pair.take = Box::new(|_, _, frames| Emitted::Taken(frames));
    pair.run_for(1_000_000_000);
    assert!(pair.done(0).iter().all(|completion| completion.result.is_ok()));
    pair.assert_idle();
}
