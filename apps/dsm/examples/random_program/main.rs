//! One rank of a random program without data races, for `tests/processes/random_programs.rs`.
//!
//! `random_program SEED RANKS FILE PAUSE` joins the other ranks, pauses for some milliseconds, in
//! which connections find all links, and does what the script of each of its
//! threads says. `FILE` is a memory that all ranks have mapped: each access goes there too. Accesses
//! to one word are ordered by locks, barriers and other objects of the shared memory, so both
//! memories must always agree. The first difference ends the rank with its place.

#![expect(clippy::disallowed_methods, reason = "waits for links")]

mod oracle;
#[path = "../../protocol/src/tests/program.rs"]
mod program;
#[path = "../../protocol/src/tests/random.rs"]
mod random;
mod runner;

use std::env;
use std::error::Error;
use std::process;
use std::thread;
use std::time::Duration;

use dsm::{Dsm, Options};
use dsm_protocol::diff::{PAGE_BYTES, PAGE_WORDS};

use oracle::Oracle;
use program::{Program, Shape, program};
use random::Random;
use runner::Runner;

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [seed, ranks, file, pause] = arguments.as_slice() else {
        return Err("usage: random_program SEED RANKS FILE PAUSE".into());
    };
    let seed = seed.parse()?;
    let shape = shape(seed, ranks.parse()?);
    let (pages, threads) = (shape.pages as usize, usize::from(shape.threads));
    let oracle = Oracle::open(file.as_ref(), pages)?;
    let options = Options::new().threads(threads).region_bytes((pages * PAGE_BYTES) as u64);
    let dsm = Dsm::join(options)?;
    thread::sleep(Duration::from_millis(pause.parse()?));
    println!("joined");
    let memory = dsm.alloc::<u32>(pages * PAGE_WORDS)?;
    let Program { scripts, race } = program(seed, shape);
    if race.is_some() {
        return Err("the program has a race".into());
    }
    let first = dsm.rank() * threads;
    let runner = |index| Runner::new(&dsm, memory, &oracle, first + index);
    let run = |index: usize, script| {
        if let Err(what) = runner(index).and_then(|mut runner| runner.run(script)) {
            eprintln!("seed {seed}, thread {}: {what}", first + index);
            // The other threads may wait for this one.
            process::exit(1);
        }
    };
    let mut scripts = scripts.into_iter().skip(first).take(threads).enumerate();
    let own = scripts.next();
    thread::scope(|scope| {
        for (index, script) in scripts {
            scope.spawn(move || run(index, script));
        }
        // Only threads of the program may use the memory, and this one leaves it later.
        if let Some((index, script)) = own {
            run(index, script);
        }
    });
    oracle.check_atomics()?;
    dsm.finalize()?;
    Ok(())
}

/// Returns the shape of the program of a seed, which depends on nothing else but the ranks.
fn shape(seed: u64, nodes: u8) -> Shape {
    let mut random = Random::new(seed ^ 0x5eed);
    let is_large = nodes > 4;
    Shape {
        nodes,
        threads: if is_large { 1 } else { 1 + random.below(3) as u16 },
        pages: 1 + random.below(8) as u32,
        phases: 2 + random.below(if is_large { 4 } else { 8 }),
        steps: 2 + random.below(4),
        only_barriers: random.one_in(6),
        has_race: false,
    }
}
