//! Tests of patches between two engines: negotiation, loss, several links and small frames.

mod pair;

use delivery::AckPolicy;
use engine::EngineConfig;
use pair::{Host, LinkPlan, Pair};
use semantics::{CompletionKind, OperationFlags, PostError, Request, Source};
use wire_edge::encode_patch;

/// Offset of the records in the memory of host 0, and length of the area in the memory of host 1.
const RECORDS_AT: u64 = 1 << 20;
const AREA: usize = 64 << 10;

/// Posts a patch that makes the area of host 1 equal to `after`. Returns its length.
fn post(pair: &mut Pair, after: &[u8]) -> u32 {
    let mut before = vec![0; after.len()];
    pair.hosts[1].buffer.read(0, &mut before);
    let mut records = vec![0; after.len() * 2];
    let length = encode_patch(&before, after, &mut records).expect("there is room");
    pair.hosts[0].buffer.write(RECORDS_AT, &records[..length]);
    let (key, address) = pair.remote(1, 0);
    let source = pair.source(0, RECORDS_AT);
    pair.post(0, Request::Patch { source, key, address }, length as u32, 1);
    length as u32
}

/// Returns an area in which every third word is not zero.
fn scattered() -> Vec<u8> {
    (0..AREA).map(|at| if at / 4 % 3 == 0 { (at / 4) as u8 | 1 } else { 0 }).collect()
}

//= protocol.md: patch.2, patch.6
#[test]
fn a_patch_of_many_frames_arrives_under_loss_on_links_of_any_frame_size() {
    // The smallest frame that the protocol permits has room for one record of the largest size.
    for frame_bytes_max in [256, 300, 1472, 8972] {
        for links in [1, 3] {
            let frame_bytes_safe = frame_bytes_max.min(1472);
            let plan = LinkPlan { frame_bytes_max, frame_bytes_safe, ..LinkPlan::default() };
            let plans = vec![plan; links];
            let mut pair = Pair::connected_with(&plans, EngineConfig::default());
            pair.filter = Box::new(|frame, _| frame % 9 != 3);
            // Writes of the peer make acknowledgements travel in the frames of the patch.
            for context in 0..20 {
                pair.write(1, 3_000_000 + context * 5000, 5000, 100 + context);
            }
            let after = scattered();
            let length = post(&mut pair, &after);
            pair.run_for(4_000_000_000);
            let done = pair.done(0);
            let seen: Vec<_> = done.iter().map(|c| (c.kind, c.result, c.bytes)).collect();
            let what = format!("{links} links of {frame_bytes_max} bytes");
            assert_eq!(seen, [(CompletionKind::Patch, Ok(()), length)], "{what}");
            let mut found = vec![0; AREA + 8];
            pair.hosts[1].buffer.read(0, &mut found);
            assert!(found[..AREA] == after && found[AREA..] == [0; 8], "{what}");
            assert_eq!(pair.done(1).len(), 20, "{what}");
            pair.assert_idle();
        }
    }
}

//= protocol.md: patch.8, feature.1
#[test]
fn both_ends_must_offer_patches_and_the_connection_works_without_them() {
    for offers in [[true, false], [false, true], [false, false]] {
        let plans = [LinkPlan::default()];
        let host = |host: usize| {
            let config = EngineConfig::default().patches(offers[host]);
            Host::new(host, host as u8 + 1, &plans, config)
        };
        let mut pair = Pair::of(&plans, [host(0), host(1)]);
        pair.establish();
        let (key, address) = pair.remote(1, 0);
        let source = Source::Inline([0; 64]);
        let swap = Request::Swap { key, address, value: 1, sink: None };
        for (request, length) in [(Request::Patch { source, key, address }, 8), (swap, 8)] {
            let flags = OperationFlags::default();
            let refused = pair.try_post(0, request, length, 1, flags);
            assert_eq!(refused, Err(PostError::PatchesRefused), "{offers:?}");
        }
        pair.fill(0, 100);
        pair.write(0, 0, 100, 2);
        pair.run_for(200_000_000);
        assert!(pair.same(100) && pair.done(0).iter().all(|done| done.result.is_ok()));
    }
}

/// No application answers a patch, so no answer would carry the acknowledgement.
#[test]
fn a_patch_of_one_frame_asks_for_its_acknowledgement() {
    for links in [1, 2] {
        let mut pair = Pair::connected(links);
        pair.run_for(1_000_000_000);
        let mut after = vec![0; 4096];
        after[100] = 7;
        let began = pair.now;
        post(&mut pair, &after);
        let is_done = |pair: &Pair| !pair.hosts[0].queue.is_empty();
        pair.run_until(1_000_000_000, "the patch is complete", is_done);
        // The round trip, and the time for which the acknowledgement waits for an answer.
        let waited_ns = pair.now.since_ns(began) - 2 * pair::DELAY_NS;
        assert!(waited_ns < u64::from(AckPolicy::default().ack_delay_ns) / 2, "{waited_ns} ns");
    }
}

//= protocol.md: answer.3
#[test]
fn a_swap_returns_the_value_that_it_replaces() {
    let mut pair = Pair::connected(1);
    pair.hosts[1].buffer.store_u64(64, 40);
    let (key, address) = pair.remote(1, 64);
    for (value, context) in [(7, 1), (8, 2)] {
        pair.post(0, Request::Swap { key, address, value, sink: None }, 8, context);
    }
    pair.run_for(200_000_000);
    let seen: Vec<_> = pair.done(0).iter().map(|c| (c.kind, c.value, c.result)).collect();
    assert_eq!(seen, [(CompletionKind::Swap, 40, Ok(())), (CompletionKind::Swap, 7, Ok(()))]);
    assert_eq!(pair.hosts[1].buffer.load_u64(64), 8);
}
