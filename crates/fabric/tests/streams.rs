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
