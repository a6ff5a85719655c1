//! Programs on several ranks of this host, as processes: the stencil with each method.

use crate::shared::Ranks;
use page_faults::Method;

fn stencil_is_right(method: Method, name: &str) {
    if let Err(error) = method.check() {
        println!("skipped: {error}");
        return;
    }
    for size in [1, 2, 4] {
        let ranks = Ranks::of("stencil", size).method(name).run();
        for (rank, ended) in ranks.iter().enumerate() {
            let errors = ended.errors();
            assert!(ended.status().success(), "{size} ranks, rank {rank}: {errors}");
        }
        let printed = ranks[0].printed();
        assert!(printed.contains(&format!("by {size} ranks are right ({method}")), "{printed}");
    }
}

#[test]
fn a_stencil_is_right_with_mprotect() {
    stencil_is_right(Method::Protection, "mprotect");
}

#[test]
fn a_stencil_is_right_with_synchronous_write_protection() {
    stencil_is_right(Method::Synchronous, "synchronous");
}

#[test]
fn a_stencil_is_right_with_asynchronous_write_protection() {
    stencil_is_right(Method::Asynchronous, "asynchronous");
}
