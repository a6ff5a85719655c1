//! One curve over a numeric axis, as SVG. Its colour is one of the page's style sheet.

use plotters::coord::combinators::{BindKeyPoints, IntoLogRange};
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use crate::axes::{tick_label, with_axes};
use crate::chart::{COLOURS, ChartError, series_colour, ticks, with_classes};

/// A curve and its axes.
#[derive(Debug)]
pub(crate) struct Curve<'a> {
    /// The title, for screen readers.
    pub(crate) title: &'a str,
    /// Title of the horizontal axis.
    pub(crate) x_axis: &'a str,
    /// Title of the vertical axis.
    pub(crate) y_axis: &'a str,
    /// Index of the curve's colour in the style sheet.
    pub(crate) colour: usize,
    /// The points in ascending order of x.
    pub(crate) points: &'a [(f64, f64)],
    /// Whether the horizontal axis is logarithmic. Ignored if the largest x is less than
    /// [`LOGARITHMIC_FROM`] times the smallest x.
    pub(crate) is_logarithmic: bool,
    /// Whether the curve stays constant up to the next point, and jumps there.
    pub(crate) has_steps: bool,
}

/// Draws a curve. The horizontal axis starts at 0 or, if it is logarithmic, at the first point.
/// Returns `None` if no point is greater than 0.
pub(crate) fn draw(curve: &Curve) -> Result<Option<String>, ChartError> {
    let xs = || curve.points.iter().map(|point| point.0);
    let (low, high) = (xs().fold(f64::MAX, f64::min), xs().fold(0.0, f64::max));
    if high <= 0.0 {
        return Ok(None);
    }
    let is_logarithmic = curve.is_logarithmic && low > 0.0 && high / low > LOGARITHMIC_FROM;
    let mut svg = String::new();
    let drawn = if is_logarithmic {
        let (from, until) = (low / 1.1, high * 1.1);
        let marks = ticks(&(from..until));
        draw_on(&mut svg, curve, (from..until).log_scale().with_key_points(marks), from)
    } else {
        draw_on(&mut svg, curve, 0.0..high * 1.03, 0.0)
    };
    drawn.map_err(|reason| ChartError::new(curve.title, reason))?;
    Ok(Some(with_classes(&svg, curve.title, SIZE_PIXELS)))
}

fn draw_on<X>(svg: &mut String, curve: &Curve, x: X, start: f64) -> Result<(), String>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let top = curve.points.iter().map(|point| point.1).fold(0.0, f64::max);
    let top = if top > 0.0 { top * 1.04 } else { 1.0 };
    let root = SVGBackend::with_string(svg, SIZE_PIXELS).into_drawing_area();
    let mut chart = with_axes(&root, (x, 0.0..top), [curve.x_axis, curve.y_axis], &tick_label)?;
    let mut line = Vec::with_capacity(curve.points.len() * 2 + 1);
    if curve.has_steps {
        line.push((start, 0.0));
    }
    let mut before = 0.0;
    for &(at, value) in curve.points {
        if curve.has_steps {
            line.push((at, before));
        }
        line.push((at, value));
        before = value;
    }
    let colour = series_colour(curve.colour % COLOURS);
    let mut area = line.clone();
    area.extend(line.last().map(|&(at, _)| (at, 0.0)));
    area.extend(line.first().map(|&(at, _)| (at, 0.0)));
    chart.draw_series([Polygon::new(area, colour.mix(0.12))]).map_err(|error| error.to_string())?;
    let line = LineSeries::new(line, colour.stroke_width(2));
    chart.draw_series(line).map_err(|error| error.to_string())?;
    drop(chart);
    root.present().map_err(|error| error.to_string())
}

/// Smallest ratio of x values for a logarithmic axis.
const LOGARITHMIC_FROM: f64 = 8.0;
const SIZE_PIXELS: (u32, u32) = (520, 320);

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(points: &[(f64, f64)]) -> Option<String> {
        let curve = Curve {
            title: "t",
            x_axis: "µs",
            y_axis: "share",
            colour: 3,
            points,
            is_logarithmic: true,
            has_steps: true,
        };
        draw(&curve).unwrap()
    }

    #[test]
    fn curves_have_no_fixed_colours_and_draw_any_points() {
        let svg = curve(&[(1.0, 0.1), (200.0, 0.9), (3000.0, 1.0)]).unwrap();
        assert!(svg.contains("var(--series-3)") && !svg.contains("\"#0"), "{svg}");
        assert!(svg.contains("1000") && !svg.contains("0e0"), "{svg}");
        assert!(curve(&[(5.0, 1.0)]).is_some() && curve(&[(0.0, 1.0), (1.0, 0.0)]).is_some());
        assert!(curve(&[]).is_none() && curve(&[(0.0, 1.0)]).is_none());
    }
}
