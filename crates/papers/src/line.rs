//! The straight line of least squares through measured points.

/// A straight line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Line {
    /// Value of the line at 0 on the axis.
    pub at_zero: f64,
    /// Growth of the value for each unit of the axis.
    pub slope: f64,
}

impl Line {
    /// Returns the line for which the sum of the squares of the distances from all points is
    /// minimal. A point is a place on the axis and a value. Returns `None` if there are fewer than
    /// three points or all are at the same place.
    pub fn through(points: &[(f64, f64)]) -> Option<Self> {
        let () = (points.len() > 2).then_some(())?;
        let count = points.len() as f64;
        let mean_at = points.iter().map(|point| point.0).sum::<f64>() / count;
        let mean_value = points.iter().map(|point| point.1).sum::<f64>() / count;
        let (mut across, mut along) = (0.0, 0.0);
        for (at, value) in points {
            across += (at - mean_at).powi(2);
            along += (at - mean_at) * (value - mean_value);
        }
        let slope = if across > 0.0 { along / across } else { return None };
        Some(Self { at_zero: mean_value - slope * mean_at, slope })
    }

    /// Returns the value of the line at a place on the axis.
    pub fn value(&self, at: f64) -> f64 {
        self.at_zero + self.slope * at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_goes_through_points_that_lie_on_it() {
        let line = Line::through(&[(0.0, 5.0), (10.0, 7.0), (100.0, 25.0)]).expect("a line");
        assert!((line.at_zero - 5.0).abs() < 1e-9, "{line:?}");
        assert!((line.value(50.0) - 15.0).abs() < 1e-9, "{line:?}");
    }

    #[test]
    fn a_line_lies_between_points_that_differ() {
        let line =
            Line::through(&[(0.0, 0.0), (0.0, 2.0), (1.0, 1.0), (1.0, 3.0)]).expect("a line");
        assert!((line.at_zero - 1.0).abs() < 1e-9 && (line.slope - 1.0).abs() < 1e-9, "{line:?}");
    }

    #[test]
    fn few_points_or_one_place_give_no_line() {
        assert_eq!(Line::through(&[(0.0, 1.0), (1.0, 2.0)]), None);
        assert_eq!(Line::through(&[(2.0, 1.0); 3]), None);
    }
}
