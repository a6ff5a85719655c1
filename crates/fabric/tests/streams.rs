//! What links are worth together, and what acknowledgements cost.

use fabric::stream::{HEADING, Policies, SET_UPS, Stream, StreamOutcome, line, run};

fn measured(name: &str, stream: &Stream<'_>) -> StreamOutcome {
    let outcome = run(stream).expect("the stream runs");
    println!("{}", line(name, &outcome));
    outcome
}

#[test]
#[ignore = "prints figures; run it with --ignored --nocapture"]
fn figures() {
    println!("{HEADING}");
    for (name, links) in SET_UPS {
        measured(name, &Stream::new(links));
        measured(&format!("{name} two-way"), &Stream::new(links).both_ways());
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
#[ignore]
fn debug() {
    let which: usize = std::env::var("W").map_or(0, |w| w.parse().unwrap());
    let step: u64 = std::env::var("STEP").map_or(1000, |w| w.parse().unwrap());
    let two_way = std::env::var("TW").is_ok();
    let (name, links) = SET_UPS[which];
    println!("{name}");
    let warm: u64 = std::env::var("WARM").map_or(1000, |w| w.parse().unwrap());
    let loss_ppm = std::env::var("LOSS").map_or(0, |w| w.parse().unwrap());
    fabric::stream::debug(
        &Stream { two_way, loss_ppm, warm_up_ns: warm * 1000, ..Stream::new(links) },
        step * 1000,
        40,
    )
    .unwrap();
}
