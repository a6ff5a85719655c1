//! A stencil: each rank smooths its rows of a grid, which needs the last row of its neighbours.
//!
//! `ethernot dsm run -n 4 -- target/debug/examples/stencil` runs it with four ranks. Rank 0 checks the
//! result against a sequential computation.

use dsm::{Dsm, DsmSlice, Options};

/// Rows and columns of the grid, and steps.
const ROWS: usize = 96;
const COLUMNS: usize = 160;
const STEPS: usize = 12;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dsm = Dsm::join(Options::new())?;
    let (rank, size) = (dsm.rank(), dsm.size());
    let grids = [dsm.alloc::<f64>(ROWS * COLUMNS)?, dsm.alloc::<f64>(ROWS * COLUMNS)?];
    let visits = dsm.mutex::<u64>()?;
    let rows = ROWS * rank / size..ROWS * (rank + 1) / size;
    for row in rows.clone() {
        for column in 0..COLUMNS {
            grids[0].set(row * COLUMNS + column, first_value(row, column));
        }
    }
    dsm.barrier()?;
    for step in 0..STEPS {
        let (from, into) = (grids[step % 2], grids[(step + 1) % 2]);
        for row in rows.clone() {
            for column in 0..COLUMNS {
                let smoothed = smooth(row, column, |index| from.get(index));
                into.set(row * COLUMNS + column, smoothed);
            }
        }
        *visits.lock()? += 1;
        dsm.barrier()?;
    }
    if rank == 0 {
        check(grids[STEPS % 2]);
        assert_eq!(*visits.lock()?, (STEPS * size) as u64);
        println!(
            "{STEPS} steps by {size} ranks are right ({}, {:?})",
            dsm.method(),
            dsm.counters()
        );
    }
    dsm.finalize()?;
    Ok(())
}

fn first_value(row: usize, column: usize) -> f64 {
    (row * 31 + column * 17 % 101) as f64
}

/// Returns the mean of a cell and its neighbours; cells of the border stay as they are.
fn smooth(row: usize, column: usize, cell: impl Fn(usize) -> f64) -> f64 {
    let index = row * COLUMNS + column;
    if row == 0 || row == ROWS - 1 || column == 0 || column == COLUMNS - 1 {
        return cell(index);
    }
    let around = [index - COLUMNS, index - 1, index, index + 1, index + COLUMNS];
    around.into_iter().map(cell).sum::<f64>() / 5.0
}

/// Compares the result with a sequential one, bit by bit.
fn check(result: DsmSlice<'_, f64>) {
    let mut grid: Vec<f64> =
        (0..ROWS * COLUMNS).map(|index| first_value(index / COLUMNS, index % COLUMNS)).collect();
    for _ in 0..STEPS {
        grid = (0..grid.len())
            .map(|index| smooth(index / COLUMNS, index % COLUMNS, |index| grid[index]))
            .collect();
    }
    for (index, expected) in grid.into_iter().enumerate() {
        let (row, column) = (index / COLUMNS, index % COLUMNS);
        assert_eq!(result.get(index).to_bits(), expected.to_bits(), "row {row}, column {column}");
    }
}
