//! Times of kernels on 16 nodes in virtual time: with notices, and with two other ways to keep
//! copies valid, which are modes of the machine for this comparison. The same programs, the same
//! network, and the same check of every word that is read.
//!
//! * Self-invalidation: an acquire invalidates every page whose home is elsewhere.
//! * Blind fetch: a read fault fetches the eight pages of its group.

use std::collections::VecDeque;

use super::network::Timing;
use super::program::{Action, Program, Shape};
use super::random::Random;
use super::world::{Settings, World};
use crate::call::Call;
use crate::config::{Coherence, Config};
use crate::diff::PAGE_WORDS;
use crate::identity::Rank;

const NODES: usize = 16;

/// Ethernet of 1 Gb/s between hosts of 2007: the network of the paper about MultiEdge. An access
/// stands for computing with a page.
const ETHERNET: Timing = Timing { latency: 30_000, kilobyte: 8_475, access: 5_000, call: 10_000 };

/// A region, whose pages are allocated in groups of eight.
#[derive(Default)]
struct Region {
    pages: usize,
}

impl Region {
    fn allocate(&mut self, pages: usize) -> usize {
        let first = self.pages;
        self.pages += pages.next_multiple_of(8);
        first
    }
}

type Script = VecDeque<Action>;

fn barrier() -> Action {
    Action::Call(Call::Barrier { address: 0x10, count: NODES as u32 })
}

/// Reads a word of a page.
fn read(page: usize) -> Action {
    Action::Read(page * PAGE_WORDS + 5)
}

/// Writes a word of a page.
fn write(page: usize) -> Action {
    Action::Write(page * PAGE_WORDS + 5)
}

/// The transposes of a Fourier transform. A row has four pages, and a node has 16 rows of two
/// matrices. To transpose, a node reads from each row of each other node the page that has its
/// columns, which it shares with three other nodes. All nodes read a table that never changes.
fn transpose() -> (usize, Vec<Script>) {
    const ROWS: usize = 16;
    const ROW_PAGES: usize = 4;
    const TABLE: usize = 16;
    let mut region = Region::default();
    let matrices = [0; 2].map(|_| region.allocate(NODES * ROWS * ROW_PAGES));
    let table = region.allocate(TABLE);
    let row = |matrix: usize, row: usize| matrices[matrix] + row * ROW_PAGES;
    let mut scripts = vec![Script::new(); NODES];
    for (node, script) in scripts.iter_mut().enumerate() {
        let own = || node * ROWS..(node + 1) * ROWS;
        if node == 0 {
            script.extend((table..table + TABLE).map(write));
        }
        for matrix in 0..2 {
            script.extend(own().flat_map(|number| {
                (0..ROW_PAGES).map(move |page| write(row(matrix, number) + page))
            }));
        }
        script.push_back(barrier());
        for step in 0..3 {
            let (from, into) = (step % 2, (step + 1) % 2);
            for other in (1..NODES).map(|distance| (node + distance) % NODES) {
                for number in 0..ROWS {
                    script.push_back(read(row(from, other * ROWS + number) + node / 4));
                }
            }
            script.extend((table..table + TABLE).map(read));
            let own_pages =
                own().flat_map(|number| (0..ROW_PAGES).map(move |page| row(into, number) + page));
            script.extend(own_pages.flat_map(|page| [read(page), write(page)]));
            script.push_back(barrier());
        }
    }
    (region.pages, scripts)
}

/// The forces between molecules, as SPLASH's Water adds them up: in each phase a node reads the
/// positions of all molecules, which do not change meanwhile, and adds to the forces on half of them,
/// each under its own lock. Eight molecules share a page. Then the owners move their molecules.
fn forces() -> (usize, Vec<Script>) {
    const MOLECULES: usize = 256;
    const IN_PAGE: usize = 8;
    const OWN: usize = MOLECULES / NODES;
    let mut region = Region::default();
    let [positions, forces] = [0; 2].map(|_| region.allocate(MOLECULES / IN_PAGE));
    let word = |first: usize, molecule: usize| {
        (first + molecule / IN_PAGE) * PAGE_WORDS + 16 * (molecule % IN_PAGE)
    };
    let position = |molecule| word(positions, molecule);
    let force = |molecule| word(forces, molecule);
    let mut scripts = vec![Script::new(); NODES];
    for (node, script) in scripts.iter_mut().enumerate() {
        let own = || node * OWN..(node + 1) * OWN;
        for molecule in own() {
            script.push_back(Action::Write(position(molecule)));
            script.push_back(Action::Write(force(molecule)));
        }
        script.push_back(barrier());
        for _ in 0..2 {
            script
                .extend((0..MOLECULES).step_by(IN_PAGE).map(|other| Action::Read(position(other))));
            for molecule in (0..MOLECULES / 2).map(|other| (node * OWN + other) % MOLECULES) {
                let lock = 0x100 + 8 * molecule as u64;
                script.push_back(Action::Call(Call::Lock(lock)));
                script.push_back(Action::Read(force(molecule)));
                script.push_back(Action::Write(force(molecule)));
                script.push_back(Action::Call(Call::Unlock(lock)));
            }
            script.push_back(barrier());
            for molecule in own() {
                script.push_back(Action::Read(force(molecule)));
                script.push_back(Action::Write(position(molecule)));
            }
            script.push_back(barrier());
        }
    }
    (region.pages, scripts)
}

/// The tree of Barnes and Hut. To add a body, a node walks from the root through four cells, which
/// do not change meanwhile, and changes a leaf under the lock of the leaf. Each cell has a page. Then
/// the owners of the upper cells add the leaves up.
fn tree() -> (usize, Vec<Script>) {
    const LEVELS: [usize; 4] = [1, 4, 16, 32];
    const LEAVES: usize = 64;
    const BODIES: usize = 32;
    let mut region = Region::default();
    let levels = LEVELS.map(|cells| region.allocate(cells));
    let leaves = region.allocate(LEAVES);
    let mut random = Random::new(7);
    let mut scripts = vec![Script::new(); NODES];
    for (node, script) in scripts.iter_mut().enumerate() {
        let cells = LEVELS.iter().zip(levels).flat_map(|(cells, first)| first..first + cells);
        let own: Vec<usize> = cells.filter(|cell| cell % NODES == node).collect();
        script.extend(own.iter().map(|cell| write(*cell)));
        script.push_back(barrier());
        for _ in 0..3 {
            for _ in 0..BODIES {
                let leaf = random.below(LEAVES);
                let path = LEVELS.iter().zip(levels);
                script.extend(path.map(|(cells, first)| read(first + leaf * cells / LEAVES)));
                script.push_back(Action::Call(Call::Lock(0x100 + 8 * leaf as u64)));
                script.extend([read(leaves + leaf), write(leaves + leaf)]);
                script.push_back(Action::Call(Call::Unlock(0x100 + 8 * leaf as u64)));
            }
            script.push_back(barrier());
            script.extend(
                (0..LEAVES).filter(|leaf| leaf % NODES == node).map(|leaf| read(leaves + leaf)),
            );
            script.extend(own.iter().map(|cell| write(*cell)));
            script.push_back(barrier());
        }
    }
    (region.pages, scripts)
}

/// A table of 512 pages, of which a node writes half at each step. Then the next node reads the table,
/// page after page.
fn sweep() -> (usize, Vec<Script>) {
    const TABLE: usize = 512;
    let mut region = Region::default();
    let table = region.allocate(TABLE);
    let mut scripts = vec![Script::new(); NODES];
    for step in 0..2 {
        for (node, script) in scripts.iter_mut().enumerate() {
            if node == step {
                script.extend((table..table + TABLE).skip(step * TABLE / 2).map(write));
            }
            script.push_back(barrier());
            if node == step + 1 {
                script.extend((table..table + TABLE).map(read));
            }
            script.push_back(barrier());
        }
    }
    (region.pages, scripts)
}

/// Returns the time of a kernel in nanoseconds.
fn time_of(
    (pages, scripts): (usize, Vec<Script>),
    coherence: Coherence,
    (fetch_pages, read_ahead): (u32, u32),
) -> u64 {
    let (nodes, pages) = (NODES as u8, pages as u32);
    let (phases, steps) = (1, 1);
    let shape =
        Shape { nodes, threads: 1, pages, phases, steps, only_barriers: true, has_race: false };
    let config = Config::new(Rank(0), nodes, pages);
    let config = Config { coherence, fetch_pages, read_ahead, ..config };
    let settings = Settings {
        seed: 1,
        shape,
        config,
        death: None,
        lies_one_in: 0,
        notes_writes: 0,
        notes_once: false,
        timing: Some(ETHERNET),
    };
    let program = Program { scripts, race: None };
    World::with_program(settings, program).run().expect("every word is right").time
}

/// Prints how much longer a kernel takes in the other two modes. Returns these ratios.
fn compare(name: &str, kernel: fn() -> (usize, Vec<Script>)) -> [f64; 2] {
    let time = |coherence, pages| time_of(kernel(), coherence, (pages, READ_AHEAD)) as f64;
    let own = time(Coherence::Notices, 1);
    let invalidating = time(Coherence::SelfInvalidation, 1) / own;
    let blind = time(Coherence::Notices, 8) / own;
    println!(
        "{name}: {:.1} ms; {invalidating:.3} with self-invalidation, {blind:.3} with blind fetch",
        own / 1e6
    );
    [invalidating, blind]
}

/// Pages of the read-ahead of a node without other settings.
const READ_AHEAD: u32 = Config::new(Rank(0), 1, 1).read_ahead;

#[test]
fn read_ahead_shortens_sweeps_and_delays_no_other_kernel() {
    let gain = |kernel: fn() -> (usize, Vec<Script>)| {
        let time = |pages| time_of(kernel(), Coherence::Notices, (1, pages)) as f64;
        time(1) / time(READ_AHEAD)
    };
    let gains = [sweep, transpose, forces, tree].map(gain);
    println!("times without read-ahead against times with it: {gains:.3?}");
    assert!(gains[0] >= 1.5);
    assert!(gains.iter().all(|gain| *gain >= 0.99));
}

#[test]
fn notices_are_as_fast_as_other_ways_in_transposes() {
    let [invalidating, blind] = compare("transpose", transpose);
    println!("figure: transpose in other modes against notices: {:.3}", invalidating.min(blind));
    assert!(invalidating >= 1.0 && blind >= 1.0);
}

#[test]
fn notices_are_faster_than_self_invalidation_with_many_locks() {
    let [invalidating, _] = compare("tree", tree);
    println!("figure: many locks with self-invalidation against notices: {invalidating:.3}");
    assert!(invalidating >= 1.5);
    // Here a lock costs three messages, a patch and the read of a log, and the page only a read.
    let [invalidating, _] = compare("forces", forces);
    assert!(invalidating >= 1.1);
}
