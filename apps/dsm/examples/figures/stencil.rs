//! A stencil of doubles: on the ranks, on as many threads of one process, and on one thread.

use std::error::Error;
use std::ops::Range;
use std::slice;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use dsm::Dsm;

use crate::ratios;

/// Rows and columns.
const SIDE: usize = 2048;

/// Rounds, and steps of each.
const ROUNDS: usize = 9;
const STEPS: usize = 20;

/// The address of a grid, for threads.
#[derive(Clone, Copy)]
struct Grid(*mut f64);

// SAFETY: threads write different rows, and barriers part the steps.
unsafe impl Send for Grid {}
// SAFETY: as above.
unsafe impl Sync for Grid {}

pub(super) fn run(dsm: &Dsm) -> Result<(), Box<dyn Error>> {
    let (rank, size) = (dsm.rank(), dsm.size());
    let shared = [dsm.alloc::<f64>(SIDE * SIDE)?, dsm.alloc::<f64>(SIDE * SIDE)?];
    let shared = shared.map(|grid| Grid(grid.as_ptr()));
    let mut own = [(); 4].map(|()| vec![0.0; SIDE * SIDE]);
    let [first, second, third, fourth] = own.each_mut().map(|grid| Grid(grid.as_mut_ptr()));
    let (of_threads, of_one) = ([first, second], [third, fourth]);
    let rows = rows_of(rank, size);
    for grid in &shared {
        fill(*grid, rows.clone());
    }
    for grid in of_threads.into_iter().chain(of_one) {
        fill(grid, 0..SIDE);
    }
    dsm.barrier()?;
    let (mut against_threads, mut against_one) = (Vec::new(), Vec::new());
    let mut times = [Vec::new(), Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        dsm.barrier()?;
        let begin = Instant::now();
        for step in 0..STEPS {
            smooth(shared[step % 2], shared[(step + 1) % 2], rows.clone());
            dsm.barrier()?;
        }
        let by_ranks = begin.elapsed().as_secs_f64();
        if rank == 0 {
            let by_threads = time_of_threads(of_threads, size);
            let by_one = time_of_threads(of_one, 1);
            against_threads.push(by_threads / by_ranks);
            against_one.push(by_one / by_ranks);
            for (all, time) in times.iter_mut().zip([by_ranks, by_threads, by_one]) {
                all.push(time * 1e3 / STEPS as f64);
            }
        }
        dsm.barrier()?;
    }
    if rank == 0 {
        compare(shared[0], of_threads[0])?;
        compare(of_one[0], of_threads[0])?;
        let [by_ranks, by_threads, by_one] = times.each_mut().map(|times| ratios::median(times));
        println!("a step: {by_ranks:.2} ms, {by_threads:.2} ms by threads, {by_one:.2} ms by one");
        println!("{:?}", dsm.counters());
        ratios::print("stencil against threads", &mut against_threads);
        ratios::print("stencil against one thread", &mut against_one);
    }
    dsm.barrier()?;
    Ok(())
}

fn rows_of(part: usize, parts: usize) -> Range<usize> {
    SIDE * part / parts..SIDE * (part + 1) / parts
}

/// Runs all steps on threads of this process. Returns the seconds.
fn time_of_threads(grids: [Grid; 2], threads: usize) -> f64 {
    let barrier = Barrier::new(threads);
    let begin = Instant::now();
    thread::scope(|scope| {
        for thread in 0..threads {
            let barrier = &barrier;
            scope.spawn(move || {
                for step in 0..STEPS {
                    let (from, into) = (grids[step % 2], grids[(step + 1) % 2]);
                    smooth(from, into, rows_of(thread, threads));
                    barrier.wait();
                }
            });
        }
    });
    begin.elapsed().as_secs_f64()
}

fn fill(grid: Grid, rows: Range<usize>) {
    for row in rows {
        for (column, cell) in row_of(grid, row).iter_mut().enumerate() {
            *cell = ((row * 31 + column * 17) % 101) as f64;
        }
    }
}

/// Replaces the cells of rows by the means of their neighbours. Cells of the border stay.
fn smooth(from: Grid, into: Grid, rows: Range<usize>) {
    for row in rows {
        if row == 0 || row == SIDE - 1 {
            continue;
        }
        let [above, here, below] = [row - 1, row, row + 1].map(|row| &*row_of(from, row));
        let out = row_of(into, row);
        for column in 1..SIDE - 1 {
            let around = above[column] + below[column] + here[column - 1] + here[column + 1];
            out[column] = 0.25 * around;
        }
    }
}

/// Compares two results, bit by bit.
fn compare(one: Grid, other: Grid) -> Result<(), Box<dyn Error>> {
    for row in 0..SIDE {
        for (column, (one, other)) in row_of(one, row).iter().zip(row_of(other, row)).enumerate() {
            if one.to_bits() != other.to_bits() {
                return Err(format!("cell {row}, {column} is {one} or {other}").into());
            }
        }
    }
    Ok(())
}

fn row_of<'a>(grid: Grid, row: usize) -> &'a mut [f64] {
    // SAFETY: the grid has the row. A thread changes only its own rows, and barriers part the steps
    // in which others read them. Pages that are absent become present when they are accessed.
    unsafe { slice::from_raw_parts_mut(grid.0.add(row * SIDE), SIDE) }
}
