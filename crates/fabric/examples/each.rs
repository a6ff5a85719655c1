//! tmp
use fabric::torture::{Options, run};
fn main() {
    let a: Vec<u64> = std::env::args().skip(1).map(|x| x.parse().unwrap()).collect();
    let mut c = [0u64; 12];
    for seed in a[0]..a[1] {
        let r = run(seed, &Options { twice: false, ..Options::default() });
        if a.len() > 2 {
            println!("{r} conns {} ops {} net {:?}", r.connections, r.operations, r.network);
        }
        c[0] += 1;
        c[1] += r.operations;
        c[2] += r.completed;
        c[3] += r.delivered;
        c[4] += r.connections;
        c[5] += r.network.sent;
        c[6] += u64::from(r.connections > 1);
    }
    println!("{c:?}");
}
