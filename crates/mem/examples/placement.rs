//! Prints the cost of lookups and placements: `cargo run --release -p ethernot-mem --example
//! placement`.
#![expect(clippy::disallowed_methods, reason = "a measurement reads the clock")]

use std::hint::black_box;
use std::time::Instant;

use mem::{
    AccessError, Buffer, MemoryAccess, MemoryTable, ProtectionDomain, Region, RegisterError,
    Rights, TableLimits,
};

const FRAME: usize = 1440;
const FRAMES: u64 = 64;
const CONTENT: [u8; FRAME] = [7; FRAME];
const ALL: Rights = Rights::ALL;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let table = MemoryTable::new(TableLimits::default(), [0x243f_6a88, 0x85a3_08d3]);
    let domain = table.allocate_domain();
    let buffer = Buffer::new(FRAME as u64 * FRAMES);
    let region = table.register(domain, buffer.clone(), ALL)?;
    let other = table.register(domain, buffer.clone(), ALL)?;

    measure_plain_copy();
    measure_lookups(&table.access(), domain, &region, &other);
    measure_placements(&table.access(), domain, &region, &buffer)?;
    measure_words(&table.access(), domain, &region)?;
    measure("begin and end an access", |_| {
        black_box(table.access());
    });
    measure("register + deregister of an owned buffer", |_| {
        let registered = table.register(domain, buffer.clone(), ALL);
        registered.and_then(|region| table.deregister(region.id)).ok();
    });

    match table.register_whole_address_space(domain, ALL) {
        Ok(whole) => {
            let access = table.access();
            measure("resolve + place of 1440 B, whole address space", |round| {
                let at = frame_at(&region, round);
                let target = access.resolve(domain, whole.key, at, FRAME as u64, ALL);
                if let Ok(target) = target {
                    black_box(access.place(&target, 0, black_box(&CONTENT))).ok();
                }
            });
        }
        Err(error @ RegisterError::NoFaultSafeCopies { .. }) => println!("skipped: {error}"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Returns the address of a frame of the region. Successive rounds cycle through the frames.
fn frame_at(region: &Region, round: u64) -> u64 {
    region.start + round % FRAMES * FRAME as u64
}

fn measure_plain_copy() {
    let mut plain = vec![0_u8; FRAME * FRAMES as usize];
    measure("memcpy of 1440 B into ordinary memory", |round| {
        let start = (round % FRAMES) as usize * FRAME;
        black_box(&mut plain[start..start + FRAME]).copy_from_slice(black_box(&CONTENT));
    });
}

fn measure_lookups(
    access: &MemoryAccess<'_>,
    domain: ProtectionDomain,
    region: &Region,
    other: &Region,
) {
    measure("resolve, another key each time", |round| {
        let key = if round % 2 == 0 { region.key } else { other.key };
        black_box(access.resolve(domain, key, frame_at(region, round), FRAME as u64, ALL)).ok();
    });
    measure("resolve, the same key", |round| {
        let at = frame_at(region, round);
        black_box(access.resolve(domain, region.key, at, FRAME as u64, ALL)).ok();
    });
}

fn measure_placements(
    access: &MemoryAccess<'_>,
    domain: ProtectionDomain,
    region: &Region,
    buffer: &Buffer,
) -> Result<(), AccessError> {
    let whole_buffer = access.resolve(domain, region.key, region.start, region.len, ALL)?;
    measure("place of 1440 B", |round| {
        let offset = round % FRAMES * FRAME as u64;
        black_box(access.place(&whole_buffer, offset, black_box(&CONTENT))).ok();
    });
    measure("Buffer::write of 1440 B", |round| {
        buffer.write(round % FRAMES * FRAME as u64, black_box(&CONTENT));
    });
    measure("resolve + place of 1440 B", |round| {
        let at = frame_at(region, round);
        if let Ok(target) = access.resolve(domain, region.key, at, FRAME as u64, ALL) {
            black_box(access.place(&target, 0, black_box(&CONTENT))).ok();
        }
    });
    measure("resolve + place_tail of 1440 B", |round| {
        let at = frame_at(region, round);
        if let Ok(target) = access.resolve(domain, region.key, at, FRAME as u64, ALL) {
            black_box(access.place_tail(&target, 0, black_box(&CONTENT))).ok();
        }
    });
    Ok(())
}

fn measure_words(
    access: &MemoryAccess<'_>,
    domain: ProtectionDomain,
    region: &Region,
) -> Result<(), AccessError> {
    let word = access.resolve(domain, region.key, region.start, 8, ALL)?;
    measure("place_tail of 8 B", |round| {
        black_box(access.place_tail(&word, 0, &round.to_ne_bytes())).ok();
    });
    measure("source", |round| {
        black_box(access.source(region.id, round % FRAMES * FRAME as u64, 1440)).ok();
    });
    measure("fetch_add", |round| {
        black_box(access.fetch_add(&word, round)).ok();
    });
    Ok(())
}

/// Prints the mean time of the fastest of several runs, because other work disturbed that run
/// least.
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
