//! Least squares for models that have no formula: the Levenberg-Marquardt algorithm with finite
//! differences.

/// A parameter to determine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Parameter {
    /// Starting value, at least 0.
    pub(super) start: f64,
    /// Size of a significant change of the parameter.
    pub(super) scale: f64,
}

/// Finds the non-negative parameters with the smallest sum of squares of `model / measured - 1`.
/// `model` returns one value for each measured value.
///
/// * If the measurements cannot separate some parameters, the search prefers values near the start.
///   For this, each parameter adds a residual: [`PULL`] times its distance from its start, in units
///   of its scale.
/// * Simulated values have steps, which mislead a search that follows slopes. After each such
///   search, the function therefore also moves each parameter alone, as long as the result
///   improves.
pub(super) fn fit<E>(
    parameters: &[Parameter],
    measured: &[f64],
    mut model: impl FnMut(&[f64]) -> Result<Vec<f64>, E>,
) -> Result<Vec<f64>, E> {
    let mut measure = |values: &[f64]| {
        let modelled = model(values)?;
        Ok(residuals(parameters, values, measured, &modelled))
    };
    let found: Vec<f64> = parameters.iter().map(|parameter| parameter.start).collect();
    let residuals = measure(&found)?;
    let mut search = Search { found, residuals };
    for _ in 0..SEARCHES {
        search.descend(parameters, &mut measure)?;
        search.feel(parameters, &mut measure)?;
    }
    search.descend(parameters, &mut measure)?;
    Ok(search.found)
}

/// The best parameters found so far.
struct Search {
    found: Vec<f64>,
    residuals: Vec<f64>,
}

impl Search {
    /// Improves the parameters by following the slopes of the residuals.
    fn descend<E>(
        &mut self,
        parameters: &[Parameter],
        measure: &mut impl FnMut(&[f64]) -> Result<Vec<f64>, E>,
    ) -> Result<(), E> {
        let mut damping = 1e-2;
        for _ in 0..STEPS_MAX {
            let mut slopes = Vec::with_capacity(self.found.len());
            for (index, parameter) in parameters.iter().enumerate() {
                let mut moved = self.found.clone();
                let change = parameter.scale.max(moved[index]) * CHANGE;
                moved[index] += change;
                let there = measure(&moved)?;
                let slope = |(there, here): (&f64, &f64)| (there - here) / change;
                slopes.push(there.iter().zip(&self.residuals).map(slope).collect::<Vec<_>>());
            }
            let before = squares(&self.residuals);
            let mut is_better = false;
            for _ in 0..TRIES_MAX {
                let step = step(&slopes, &self.residuals, damping);
                let tried = self.found.iter().zip(&step).map(|(value, step)| value + step);
                is_better = self.accept(tried.map(|value| value.max(0.0)).collect(), measure)?;
                if is_better {
                    damping = (damping * 0.2).max(1e-9);
                    break;
                }
                damping *= 10.0;
            }
            if !is_better || squares(&self.residuals) > before * ENOUGH {
                break;
            }
        }
        Ok(())
    }

    /// Improves the parameters by moving one parameter at a time, in decreasing steps.
    fn feel<E>(
        &mut self,
        parameters: &[Parameter],
        measure: &mut impl FnMut(&[f64]) -> Result<Vec<f64>, E>,
    ) -> Result<(), E> {
        let mut share = 0.5;
        for _ in 0..ROUNDS_MAX {
            let mut is_better = false;
            for (index, parameter) in parameters.iter().enumerate() {
                for sign in [1.0, -1.0] {
                    let mut moved = self.found.clone();
                    let change = parameter.scale.max(moved[index]) * share;
                    moved[index] = (moved[index] + sign * change).max(0.0);
                    if self.accept(moved, measure)? {
                        is_better = true;
                        break;
                    }
                }
            }
            if !is_better {
                share /= 2.0;
            }
        }
        Ok(())
    }

    /// Accepts parameters if they are better than the best so far. Returns whether they are.
    fn accept<E>(
        &mut self,
        tried: Vec<f64>,
        measure: &mut impl FnMut(&[f64]) -> Result<Vec<f64>, E>,
    ) -> Result<bool, E> {
        let there = measure(&tried)?;
        let is_better = squares(&there) < squares(&self.residuals);
        if is_better {
            (self.found, self.residuals) = (tried, there);
        }
        Ok(is_better)
    }
}

/// Returns the relative differences from the measured values, and after them a residual for each
/// parameter's distance from its start.
fn residuals(
    parameters: &[Parameter],
    values: &[f64],
    measured: &[f64],
    modelled: &[f64],
) -> Vec<f64> {
    let differences = modelled.iter().zip(measured).map(|(model, measured)| model / measured - 1.0);
    let pulls = parameters
        .iter()
        .zip(values)
        .map(|(parameter, value)| (value - parameter.start) / parameter.scale * PULL);
    differences.chain(pulls).collect()
}

fn squares(residuals: &[f64]) -> f64 {
    residuals.iter().map(|residual| residual * residual).sum()
}

/// Solves `(JᵀJ + damping · diag(JᵀJ)) step = -Jᵀr`. Each entry of `slopes` is a column of `J`.
fn step(slopes: &[Vec<f64>], residuals: &[f64], damping: f64) -> Vec<f64> {
    let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
    let mut rows: Vec<Vec<f64>> = Vec::with_capacity(slopes.len());
    for (index, slope) in slopes.iter().enumerate() {
        let mut row: Vec<f64> = slopes.iter().map(|other| dot(slope, other)).collect();
        row[index] *= 1.0 + damping;
        row.push(-dot(slope, residuals));
        rows.push(row);
    }
    solve(rows)
}

/// Solves linear equations by Gaussian elimination with column pivoting. The last number in each
/// row is the right side of its equation.
fn solve(mut rows: Vec<Vec<f64>>) -> Vec<f64> {
    let count = rows.len();
    for column in 0..count {
        let magnitude = |row: &Vec<f64>| row[column].abs();
        let largest =
            (column..count).max_by(|&a, &b| magnitude(&rows[a]).total_cmp(&magnitude(&rows[b])));
        rows.swap(column, largest.unwrap_or(column));
        let pivot = rows[column].clone();
        if pivot[column] == 0.0 {
            continue;
        }
        for (_, row) in rows.iter_mut().enumerate().filter(|(index, _)| *index != column) {
            let factor = row[column] / pivot[column];
            for (value, pivot) in row.iter_mut().zip(&pivot) {
                *value -= factor * pivot;
            }
        }
    }
    let solution = |(index, row): (usize, &Vec<f64>)| match row[index] {
        0.0 => 0.0,
        pivot => row[count] / pivot,
    };
    rows.iter().enumerate().map(solution).collect()
}

/// Residual for a distance of one scale from the start. It equals a relative difference of 0.1 %.
const PULL: f64 = 1e-3;

/// Step of the finite differences, as a fraction of the scale or of the value. The larger step is
/// used.
const CHANGE: f64 = 0.1;

const SEARCHES: u32 = 2;
const ROUNDS_MAX: u32 = 6;
const STEPS_MAX: u32 = 12;
const TRIES_MAX: u32 = 4;

/// The search ends if the sum of squares after a step is more than this fraction of the sum before
/// the step.
const ENOUGH: f64 = 0.995;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Invented measurements, each with its number of bytes and of frames.
    const SHAPES: [(f64, f64); 6] =
        [(8.0, 1.0), (256.0, 1.0), (1400.0, 1.0), (4096.0, 3.0), (65536.0, 45.0), (1e6, 720.0)];

    /// Returns two times for each shape. The first time is the time of a sender with a fixed cost,
    /// a cost per frame and a cost per byte. The second time is the larger of two times: the first
    /// one, and the time that a receiver needs for the frames.
    fn model(costs: &[f64]) -> Vec<f64> {
        let one = |(bytes, frames): &(f64, f64)| {
            let sender = costs[0] + costs[1] * frames + costs[2] * bytes;
            [sender, sender.max(frames * costs[3])]
        };
        SHAPES.iter().flat_map(one).collect()
    }

    proptest! {
        #[test]
        fn the_fit_recovers_known_costs(
            fixed in 200.0..3000.0_f64,
            frame in 300.0..6000.0_f64,
            byte in 0.05..2.0_f64,
            other in 7000.0..12000.0_f64,
        ) {
            let costs = [fixed, frame, byte, other];
            let scales = [1000.0, 1000.0, 0.5, 5000.0];
            let starts = [1000.0, 2000.0, 0.5, 10_000.0];
            let parameters: Vec<_> = scales.iter().zip(starts)
                .map(|(&scale, start)| Parameter { start, scale }).collect();
            let run = |costs: &[f64]| Ok::<_, ()>(model(costs));
            let found = fit(&parameters, &model(&costs), run).expect("the model never fails");
            let worst = model(&found).iter().zip(model(&costs))
                .map(|(found, exact)| (found / exact - 1.0).abs()).fold(0.0, f64::max);
            prop_assert!(worst < 0.02, "{found:?} for {costs:?}: {worst}");
            // Costs that affect all measurements are determined exactly. The receiver's cost
            // affects only some measurements.
            for index in 0..3 {
                let error = (found[index] - costs[index]).abs() / (scales[index] + costs[index]);
                prop_assert!(error < 0.03, "{found:?} for {costs:?}");
            }
        }

        #[test]
        fn equations_are_solved(values in proptest::array::uniform3(-5.0..5.0_f64)) {
            let rows = [[4.0, 1.0, 0.5], [0.0, 0.0, 3.0], [1.0, -5.0, 2.0]];
            let right = |row: &[f64; 3]| row.iter().zip(values).map(|(a, b)| a * b).sum::<f64>();
            let whole = rows.iter().map(|row| {
                let mut whole = row.to_vec();
                whole.push(right(row));
                whole
            });
            let solved = solve(whole.collect());
            for (solved, value) in solved.iter().zip(values) {
                prop_assert!((solved - value).abs() < 1e-9);
            }
        }
    }

    #[test]
    fn undetermined_parameters_stay_at_their_start_values() {
        let parameters = [(100.0, 100.0), (500.0, 100.0)];
        let parameters = parameters.map(|(start, scale)| Parameter { start, scale });
        // The measurement depends only on the sum of the two parameters.
        let model = |costs: &[f64]| Ok::<_, ()>(vec![costs[0] + costs[1]]);
        let found = fit(&parameters, &[700.0], model).expect("the model never fails");
        assert!((found[0] + found[1] - 700.0).abs() < 1.0, "{found:?}");
        assert!((found[0] - 150.0).abs() < 5.0, "{found:?}");
    }

    #[test]
    fn costs_do_not_become_negative() {
        let parameters = [Parameter { start: 100.0, scale: 100.0 }];
        let model = |costs: &[f64]| Ok::<_, ()>(vec![1000.0 + costs[0]]);
        let found = fit(&parameters, &[600.0], model).expect("the model never fails");
        assert!(found[0].abs() < 1e-9, "{found:?}");
    }
}
