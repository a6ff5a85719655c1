//! Prints what lookups and placements cost: `cargo run --release -p mem --example placement`.
#![expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::hint::black_box;
use std::time::Instant;

use mem::{Buffer, MemoryTable, RegisterError, Rights, TableLimits};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    const FRAME: usize = 1440;
    const FRAMES: u64 = 64;
    let table = MemoryTable::new(TableLimits::default(), [0x243f_6a88, 0x85a3_08d3]);
    let domain = table.allocate_domain();
    let buffer = Buffer::new(FRAME as u64 * FRAMES);
    let all = Rights::ALL;
    let region = table.register(domain, buffer.clone(), all)?;
    let frame = [7_u8; FRAME];
    let address = |round: u64| region.start + round % FRAMES * FRAME as u64;
    let access = table.access();

    let mut plain = vec![0_u8; FRAME * FRAMES as usize];
    measure("memcpy of 1440 B into ordinary memory", |round| {
        let start = (round % FRAMES) as usize * FRAME;
        black_box(&mut plain[start..start + FRAME]).copy_from_slice(black_box(&frame));
    });
    let other = table.register(domain, buffer.clone(), all)?;
    measure("resolve, another key each time", |round| {
        let key = if round % 2 == 0 { region.key } else { other.key };
        black_box(access.resolve(domain, key, address(round), FRAME as u64, all)).ok();
    });
    measure("resolve, the same key", |round| {
        black_box(access.resolve(domain, region.key, address(round), FRAME as u64, all)).ok();
    });
    let whole_buffer = access.resolve(domain, region.key, region.start, region.len, all)?;
    measure("place of 1440 B", |round| {
        let offset = round % FRAMES * FRAME as u64;
        black_box(access.place(&whole_buffer, offset, black_box(&frame))).ok();
    });
    measure("Buffer::write of 1440 B", |round| {
        buffer.write(round % FRAMES * FRAME as u64, black_box(&frame));
    });
    measure("resolve + place of 1440 B", |round| {
        let target = access.resolve(domain, region.key, address(round), FRAME as u64, all);
        if let Ok(target) = target {
            black_box(access.place(&target, 0, black_box(&frame))).ok();
        }
    });
    measure("resolve + place_tail of 1440 B", |round| {
        let target = access.resolve(domain, region.key, address(round), FRAME as u64, all);
        if let Ok(target) = target {
            black_box(access.place_tail(&target, 0, black_box(&frame))).ok();
        }
    });
    let word = access.resolve(domain, region.key, region.start, 8, all)?;
    measure("place_tail of 8 B", |round| {
        black_box(access.place_tail(&word, 0, &round.to_ne_bytes())).ok();
    });
    measure("source", |round| {
        black_box(access.source(region.id, round % FRAMES * FRAME as u64, 1440)).ok();
    });
    measure("fetch_add", |round| {
        black_box(access.fetch_add(&word, round)).ok();
    });
    drop(access);
    measure("begin and end an access", |_| {
        black_box(table.access());
    });
    measure("register + deregister of an owned buffer", |_| {
        let registered = table.register(domain, buffer.clone(), all);
        registered.and_then(|region| table.deregister(region.id)).ok();
    });

    match table.register_whole_address_space(domain, all) {
        Ok(whole) => {
            let access = table.access();
            measure("resolve + place of 1440 B, whole address space", |round| {
                let at = address(round);
                let target = access.resolve(domain, whole.key, at, FRAME as u64, all);
                if let Ok(target) = target {
                    black_box(access.place(&target, 0, black_box(&frame))).ok();
                }
            });
        }
        Err(error @ RegisterError::NoFaultSafeCopies { .. }) => println!("skipped: {error}"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Prints the shortest mean of several runs, the one least disturbed.
fn measure(name: &str, mut action: impl FnMut(u64)) {
    const ROUNDS: u64 = 50_000;
    const RUNS: u32 = 15;
    let mut shortest_ns = f64::INFINITY;
    for _ in 0..RUNS {
        let start = Instant::now();
        for round in 0..ROUNDS {
            action(round);
        }
        shortest_ns = shortest_ns.min(start.elapsed().as_nanos() as f64 / ROUNDS as f64);
    }
    println!("{shortest_ns:8.1} ns  {name}");
}
