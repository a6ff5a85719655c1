fn main() {
    let path = std::env::args().nth(1).unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let c = fabric::interconnect::configuration::Configuration::parse(&path, &text).unwrap();
    #[expect(clippy::disallowed_methods)]
    let s = std::time::Instant::now();
    let r = c.run_counting();
    #[expect(clippy::disallowed_methods)]
    let e = s.elapsed().as_secs_f64();
    match r {
        Ok((o, k)) => {
            let k = k.unwrap();
            println!("{} s, frames sent {} rx {} = {:.3} M/s, events {} , {:.2} Mev/s lat mean {} max {} completed {} us hash {:x}", e, k.frames_sent, k.frames_received, k.frames_received as f64/e*1e-6, o.events, o.events as f64/e*1e-6, o.latency.mean_us(), o.latency.max_us(), o.completed_ps as f64*1e-6, o.hash);
            println!("{k:?}");
        }
        Err(x) => println!("{e} s: {x}"),
    }
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    for l in status.lines().filter(|l| l.starts_with("VmHWM") || l.starts_with("VmRSS")) { println!("{l}"); }
}
