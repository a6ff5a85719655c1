//! Tests the combined throughput of several links and the cost of acknowledgements.

use fabric::stream::{HEADING, Policies, SET_UPS, Stream, StreamOutcome, line, run, shaped};

fn measured(name: &str, stream: &Stream<'_>) -> StreamOutcome {
    let outcome = run(stream).expect("the stream runs");
    println!("{}", line(name, &outcome));
    outcome
}

#[test]
#[ignore = "slow: run by hand, with --ignored --nocapture; prints figures"]
fn figures() {
    println!("{HEADING}");
    for (name, links) in SET_UPS {
        measured(name, &Stream::new(links));
        measured(&format!("{name} two-way"), &Stream::new(links).both_ways());
        let shaped: Vec<_> = links.iter().copied().map(shaped).collect();
        measured(&format!("{name} shaped"), &Stream::new(&shaped));
        measured(&format!("{name} shaped two-way"), &Stream::new(&shaped).both_ways());
        let stalls = Stream { stall_ns_max: 100_000, ..Stream::new(&shaped) };
        measured(&format!("{name} shaped, hosts pause"), &stalls);
        let stalls = Stream { stall_ns_max: 100_000, ..Stream::new(links) };
        measured(&format!("{name} hosts pause up to 100 us"), &stalls);
    }
    for (name, links) in &SET_UPS[..3] {
        for loss_ppm in [10_000, 50_000] {
            let lossy = Stream { loss_ppm, ..Stream::new(links) };
            measured(&format!("{name} {} % loss", loss_ppm / 10_000), &lossy);
        }
        let multiedge = Stream { policies: Policies::MultiEdge, ..Stream::new(links) };
        measured(&format!("{name} MultiEdge"), &multiedge);
        measured(&format!("{name} MultiEdge strict"), &Stream { strict: true, ..multiedge });
        measured(&format!("{name} strict"), &Stream { strict: true, ..Stream::new(links) });
    }
}

#[test]
fn links_reach_the_sum_of_their_rates_in_order_with_few_extra_frames() {
    // Columns: name; minimum goodput in percent of the links' rates; maximum extra frames in
    // percent; maximum frames out of order in percent. Payload is at most 96.2 % of a frame.
    let bounds = [
        ("1L-1G", 95.0, 2.0, 0.1),
        ("2L-1G", 95.0, 2.0, 15.0),
        ("1G+100M", 95.0, 2.0, 40.0),
        ("1L-10G", 95.0, 2.0, 1.0),
    ];
    for (name, share, extra, out_of_order) in bounds {
        let (_, links) = SET_UPS.iter().find(|set_up| set_up.0 == name).expect("it is listed");
        let stream = Stream { measured_ns: 300_000_000, ..Stream::new(links) };
        let outcome = measured(name, &stream);
        assert!(outcome.share_percent >= share, "{name}: {outcome:?}");
        assert!(outcome.extra_percent <= extra, "{name}: {outcome:?}");
        assert!(outcome.out_of_order_percent <= out_of_order, "{name}: {outcome:?}");
        // A sender that probes for the limit of a link sometimes exceeds the limit.
        assert!(outcome.queue_full * 200 <= outcome.frames, "{name}: {outcome:?}");
        assert_eq!(outcome.refused, 0, "{name}");
    }
}

#[test]
fn unlike_and_shaped_links_reach_the_sum_of_their_rates() {
    // Columns: name; minimum goodput in percent of the links' rates; maximum extra frames in
    // percent. Links have shapers, and hosts pause.
    let bounds = [
        ("2L-1G", 95.0, 2.0),
        ("1G+100M", 95.0, 2.0),
        ("1G/20us+1G/2ms", 94.0, 2.0),
        ("4L-2.5G", 95.0, 2.0),
        // A queue of 200 frames is short for 10 Gb/s. Without a limit of the window, a fifth of the
        // frames would be lost.
        ("10G+1G", 95.0, 3.0),
        ("2L-10G", 95.0, 3.0),
    ];
    for (name, share, extra) in bounds {
        let (_, links) = SET_UPS.iter().find(|set_up| set_up.0 == name).expect("it is listed");
        let shaped: Vec<_> = links.iter().copied().map(shaped).collect();
        let stream = Stream { stall_ns_max: 100_000, ..Stream::new(&shaped) };
        let outcome = measured(name, &stream);
        assert!(outcome.share_percent >= share, "{name}: {outcome:?}");
        assert!(outcome.extra_percent <= extra, "{name}: {outcome:?}");
    }
}

#[test]
fn multiedge_uses_links_in_turn_and_frames_arrive_out_of_order() {
    let (_, links) = SET_UPS.iter().find(|set_up| set_up.0 == "2L-1G").expect("it is listed");
    let stream =
        Stream { policies: Policies::MultiEdge, measured_ns: 50_000_000, ..Stream::new(links) };
    let outcome = measured("2L-1G MultiEdge", &stream);
    assert!(outcome.share_percent > 95.0, "{outcome:?}");
    assert!((1.0..6.0).contains(&outcome.extra_percent), "{outcome:?}");
}
