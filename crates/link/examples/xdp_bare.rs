use std::time::Instant;
use link::yardstick::xdp::BareXdp;
use link::{XdpConfig, XdpMode};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let mut c = XdpConfig::new(a[2].clone());
    c.port = 7;
    c.mode = match a[3].as_str() { "generic" => Some(XdpMode::Generic), "native" => Some(XdpMode::Native), _ => None };
    let bytes: u16 = a[4].parse().unwrap();
    let mut b = BareXdp::open(&c, bytes).unwrap_or_else(|e| { eprintln!("{e}"); std::process::exit(1) });
    if a[1] == "srv" { loop { if let Some(f) = b.poll() { let _ = b.send(f); } } }
    let mac: Vec<u8> = a[5].split(':').map(|h| u8::from_str_radix(h, 16).unwrap()).collect();
    let to: [u8; 6] = mac.try_into().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(300));
    let mut best = f64::MAX; let mut all = vec![];
    for _ in 0..10 {
        let t = Instant::now();
        for _ in 0..20000 { b.send(to).unwrap(); while b.poll().is_none() {} }
        let us = t.elapsed().as_secs_f64() * 1e6 / 20000.0 / 2.0;
        best = best.min(us); all.push(us);
    }
    all.sort_by(f64::total_cmp);
    println!("{:?} {} B: one way best {best:.2} median {:.2} us", b.mode(), bytes, all[5]);
}
