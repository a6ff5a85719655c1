//! Prints Table 2 under variations.
use fabric::interconnect::paper::configurations::*;
use fabric::interconnect::paper::reference::*;
use fabric::interconnect::routing::Choice;
use fabric::interconnect::simulation::HostCosts;
use fabric::interconnect::workload::*;
use fabric::interconnect::wormhole::Arbiter;

fn env(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

fn main() {
    let mut c = Configurations::default();
    c.iterations = env("ITER", 10) as u32;
    c.compute_ps = env("COMPUTE_NS", 10_000) * 1000;
    c.ethernet_trunks = env("TRUNKS", 6) as u32;
    c.ethernet.choice =
        [Choice::PerSource, Choice::LeastLoaded, Choice::PerFlow][env("CHOICE", 0) as usize];
    c.myrinet.arbiter =
        [Arbiter::HostsFirst, Arbiter::HostsLast, Arbiter::Fair][env("ARB", 1) as usize];
    {
        use fabric::interconnect::wormhole::LaneSelection::*;
        c.myrinet.lanes =
            [FirstFree, FreeElsePerSource, PerSource, PerDestination][env("LANE", 0) as usize];
    }
    c.myrinet.storage_characters = env("B", 278);
    c.myrinet.header_characters = env("H", 0);
    c.myrinet.exit_characters -= env("H", 0);
    c.myrinet_reversed = env("REV", 1) == 1;
    c.avici.channels = env("VC", 8) as u8;
    c.avici.buffer_flits = env("BUF", 16) as u16;
    c.avici.ports.gap_bytes = env("GAP", 12) as u32;
    let order =
        [[0, 1, 2, 3], [0, 2, 1, 3], [0, 2, 3, 1], [0, 1, 3, 2], [0, 3, 1, 2], [0, 3, 2, 1]]
            [env("ORDER", 0) as usize];
    c.delay_ps = c.compute_ps;
    if let Ok(p) = std::env::var("PERM") {
        for (i, ch) in p.bytes().enumerate() {
            c.myrinet.direction_order[i] = ch - b'0';
        }
    }
    let n = Networks::new(&c).unwrap();
    let which = std::env::var("NET").unwrap_or("AME".into());
    let mut total = [0; 6];
    for net in Interconnect::ALL {
        if !which.contains(&net.name()[..1].replace('C', "E")) {
            continue;
        }
        let t = TokenPass::new(256, 1, c.delay_ps, 256);
        match c.run(&n, net, t, &linear(), HostCosts::default()) {
            Ok(o) => println!(
                "{} T1 {:.4} {:.4} {:.4} {:.4}  paper {:?}",
                net.name(),
                o.latency.min_us(),
                o.latency.mean_us(),
                o.latency.max_us(),
                o.latency.deviation_us(),
                table1(net)
            ),
            Err(e) => println!("{} {e}", net.name()),
        }
        let mut sum = 0.0;
        let mut cells = 0;
        let mut counts = [0; 5];
        for (i, &bytes) in SIZES.iter().enumerate() {
            let mesh = MeshExchange::new(MeshConfiguration {
                width: 16,
                height: 16,
                bytes,
                iterations: c.iterations,
                compute_ps: c.compute_ps,
                order,
            });
            match c.run(&n, net, mesh, &mesh_placement(net), HostCosts::default()) {
                Ok(o) => {
                    let l = o.latency;
                    let r = table2(net)[i];
                    let m = [l.min_us(), l.mean_us(), l.max_us(), l.deviation_us()];
                    print!("{bytes:5} T={:7.1} ev={:7} ", o.completed_ps as f64 * 1e-6, o.events);
                    for k in 0..4 {
                        let e = (m[k] / r[k]).ln();
                        sum += e * e;
                        cells += 1;
                        for (b, lim) in [0.01, 0.05, 0.10, 0.15, 0.20].into_iter().enumerate() {
                            if (m[k] / r[k] - 1.0).abs() <= lim {
                                counts[b] += 1;
                            }
                        }
                        print!(" {:7.2}/{:7.2} {:+6.1}%", m[k], r[k], (m[k] / r[k] - 1.0) * 100.0);
                    }
                    println!();
                }
                Err(e) => println!("{bytes} {e}"),
            }
        }
        println!("RMS {:.2}%  {counts:?}", (sum / cells as f64).sqrt() * 100.0);
        for k in 0..5 {
            total[k] += counts[k];
        }
    }
    println!("within {total:?}");
}
