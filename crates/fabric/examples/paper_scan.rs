//! Scans.
use fabric::interconnect::paper::configurations::*;
use fabric::interconnect::paper::reference::*;
use fabric::interconnect::routing::Choice;
use fabric::interconnect::simulation::HostCosts;
use fabric::interconnect::workload::*;
use fabric::interconnect::wormhole::{Arbiter, LaneSelection::*};
fn rms(c: &Configurations, n: &Networks, net: Interconnect, order: [u8; 4]) -> (f64, usize, f64) {
    let (mut sum, mut good, mut small) = (0.0, 0, 0.0);
    for (i, &bytes) in SIZES.iter().enumerate() {
        let mesh = MeshExchange::new(MeshConfiguration {
            width: 16,
            height: 16,
            bytes,
            iterations: c.iterations,
            compute_ps: c.compute_ps,
            order,
        });
        let Ok(o) = c.run(n, net, mesh, &mesh_placement(net), HostCosts::default()) else {
            return (9.0, 0, 0.0);
        };
        let l = o.latency;
        let r = table2(net)[i];
        let m = [l.min_us(), l.mean_us(), l.max_us(), l.deviation_us()];
        for k in 0..4 {
            let e = (m[k] / r[k]).ln();
            sum += e * e;
            if i < 4 {
                small += e * e;
            }
            if (m[k] / r[k] - 1.0).abs() <= 0.1 {
                good += 1;
            }
        }
    }
    ((sum / 28.0).sqrt() * 100.0, good, (small / 16.0).sqrt() * 100.0)
}
fn main() {
    let orders =
        [[0, 1, 2, 3], [0, 2, 1, 3], [0, 2, 3, 1], [0, 1, 3, 2], [0, 3, 1, 2], [0, 3, 2, 1]];
    let mode = std::env::args().nth(1).unwrap();
    let mut results = Vec::new();
    if mode == "E" {
        for o in [3] {
            for comp in [9000, 9600, 9990, 10500, 10800, 12000] {
                for it in [8, 9, 10, 11, 12] {
                    for ch in [0, 1] {
                        for interval in [310] {
                            let mut c = Configurations::default();
                            c.compute_ps = comp * 1_000;
                            c.iterations = it;
                            c.ethernet.host_frame_interval_ps = interval * 1000;
                            c.ethernet.choice = [Choice::PerSource, Choice::LeastLoaded][ch];
                            let n = Networks::new(&c).unwrap();
                            results.push((
                                rms(&c, &n, Interconnect::Ethernet, orders[o]),
                                format!("order {o} comp {comp} it {it} choice {ch} int {interval}"),
                            ));
                        }
                    }
                }
            }
        }
    } else if mode == "A" {
        for o in [3] {
            for comp in [9, 12] {
                for it in [8, 9, 10, 12] {
                    for vc in [4] {
                        for buf in [8] {
                            let mut c = Configurations::default();
                            c.compute_ps = comp * 1_000_000;
                            c.iterations = it;
                            c.avici.channels = vc;
                            c.avici.buffer_flits = buf;
                            let n = Networks::new(&c).unwrap();
                            results.push((
                                rms(&c, &n, Interconnect::Avici, orders[o]),
                                format!("order {o} comp {comp} it {it} vc {vc} buf {buf}"),
                            ));
                        }
                    }
                }
            }
        }
    } else {
        let mut perms = Vec::new();
        for a in 0..4u8 {
            for b in 0..4 {
                for d in 0..4 {
                    for e in 0..4 {
                        if a != b && a != d && a != e && b != d && b != e && d != e {
                            perms.push([a, b, d, e]);
                        }
                    }
                }
            }
        }
        let hs: Vec<u32> = std::env::args()
            .nth(2)
            .unwrap_or("0".into())
            .split(',')
            .map(|x| x.parse().unwrap())
            .collect();
        let bs: Vec<u64> = std::env::args()
            .nth(3)
            .unwrap_or("278".into())
            .split(',')
            .map(|x| x.parse().unwrap())
            .collect();
        let os: Vec<usize> = std::env::args()
            .nth(4)
            .unwrap_or("2".into())
            .split(',')
            .map(|x| x.parse().unwrap())
            .collect();
        let arbs: Vec<usize> = std::env::args()
            .nth(5)
            .unwrap_or("1".into())
            .split(',')
            .map(|x| x.parse().unwrap())
            .collect();
        let lanes: Vec<usize> = std::env::args()
            .nth(6)
            .unwrap_or("0,2".into())
            .split(',')
            .map(|x| x.parse().unwrap())
            .collect();
        let comps: Vec<u64> = std::env::args()
            .nth(7)
            .unwrap_or("12".into())
            .split(',')
            .map(|x| x.parse().unwrap())
            .collect();
        let its: Vec<u32> = std::env::args()
            .nth(8)
            .unwrap_or("10".into())
            .split(',')
            .map(|x| x.parse().unwrap())
            .collect();
        if std::env::var("FINE").is_ok() {
            perms = vec![[2, 1, 3, 0], [1, 2, 0, 3]];
        }
        for p in &perms {
            for &lane in &lanes {
                for rev in [true] {
                    for &h in &hs {
                        for &b in &bs {
                            for &o in &os {
                                for &arb in &arbs {
                                    for &comp in &comps {
                                        for &it in &its {
                                            let mut c = Configurations::default();
                                            c.compute_ps = (if comp > 100 {
                                                comp * 1000
                                            } else {
                                                comp * 1_000_000
                                            });
                                            c.iterations = it;
                                            c.myrinet.direction_order = *p;
                                            c.myrinet_reversed = rev;
                                            c.myrinet.lanes = [
                                                FirstFree,
                                                FreeElsePerSource,
                                                PerSource,
                                                PerDestination,
                                            ][lane];
                                            c.myrinet.header_characters = h as u64;
                                            c.myrinet.exit_characters = 23 - h as u64;
                                            c.myrinet.storage_characters = b;
                                            c.myrinet.arbiter = [
                                                Arbiter::HostsFirst,
                                                Arbiter::HostsLast,
                                                Arbiter::Fair,
                                            ][arb];
                                            let n = Networks::new(&c).unwrap();
                                            results.push((rms(&c, &n, Interconnect::Myrinet, orders[o]), format!("perm {p:?} lane {lane} rev {rev} h {h} b {b} order {o} arb {arb} comp {comp} it {it}")));
                                        }
                                    }
                                }
                            }
                        }
                    }
                }
            }
        }
    }
    results.sort_by(|a, b| a.0.0.total_cmp(&b.0.0));
    for r in results.iter().take(40) {
        println!("{:.2} good {} small {:.2}  {}", r.0.0, r.0.1, r.0.2, r.1);
    }
    println!("of {}", results.len());
}
