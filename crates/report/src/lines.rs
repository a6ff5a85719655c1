//! Several lines over a numeric axis, as SVG. Their colours are those of the page's style sheet.

use std::ops::Range;

use plotters::coord::combinators::{BindKeyPoints, IntoLogRange};
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use crate::axes::{tick_label, with_axes};
use crate::chart::{ChartError, series_colour, ticks, widened, with_classes, with_notes};

/// One line.
#[derive(Debug, Clone)]
pub(crate) struct Line {
    /// Index of the line's colour in the style sheet.
    pub(crate) colour: usize,
    /// The points in the order in which they are joined.
    pub(crate) points: Vec<LinePoint>,
}

/// One point of a line.
#[derive(Debug, Clone)]
pub(crate) struct LinePoint {
    pub(crate) x: f64,
    pub(crate) y: f64,
    /// Text that the page shows while the pointer is on the point.
    pub(crate) note: String,
}

/// The scale of both axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// Linear, starting at 0.
    Even,
    /// Logarithmic. Points that are not above 0 are not drawn.
    Logarithmic,
}

/// Draws lines over axes with these titles. Returns `None` if no point is greater than 0.
pub(crate) fn draw(
    title: &str,
    axes: [&str; 2],
    scale: Scale,
    lines: &[Line],
) -> Result<Option<String>, ChartError> {
    let is_shown = |point: &&LinePoint| scale == Scale::Even || (point.x > 0.0 && point.y > 0.0);
    let lines: Vec<Line> = lines
        .iter()
        .map(|line| Line {
            colour: line.colour,
            points: line.points.iter().filter(is_shown).cloned().collect(),
        })
        .collect();
    let values = |value: fn(&LinePoint) -> f64| {
        let all = lines.iter().flat_map(|line| &line.points);
        all.map(value).filter(|value| *value > 0.0).collect::<Vec<f64>>()
    };
    let (x, y) = (values(|point| point.x), values(|point| point.y));
    if x.is_empty() || y.is_empty() {
        return Ok(None);
    }
    let mut svg = String::new();
    let drawn = match scale {
        Scale::Even => draw_on(&mut svg, axes, (from_zero(&x), from_zero(&y)), &lines),
        Scale::Logarithmic => {
            let axis = |values: &[f64]| {
                let range = widened(values.iter().copied(), 1.3);
                let marks = ticks(&range);
                range.log_scale().with_key_points(marks)
            };
            draw_on(&mut svg, axes, (axis(&x), axis(&y)), &lines)
        }
    };
    drawn.map_err(|reason| ChartError::new(title, reason))?;
    let notes: Vec<String> =
        lines.iter().flat_map(|line| &line.points).map(|point| point.note.clone()).collect();
    Ok(Some(with_notes(&with_classes(&svg, title, SIZE_PIXELS), &notes)))
}

fn from_zero(values: &[f64]) -> Range<f64> {
    0.0..values.iter().copied().fold(f64::MIN_POSITIVE, f64::max) * 1.05
}

fn draw_on<X, Y>(
    svg: &mut String,
    axes: [&str; 2],
    (x, y): (X, Y),
    lines: &[Line],
) -> Result<(), String>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let root = SVGBackend::with_string(svg, SIZE_PIXELS).into_drawing_area();
    let mut chart = with_axes(&root, (x, y), axes, &tick_label)?;
    for line in lines {
        let colour = series_colour(line.colour);
        let places = || line.points.iter().map(|point| (point.x, point.y));
        chart
            .draw_series(LineSeries::new(places(), colour.stroke_width(2)))
            .map_err(|error| error.to_string())?;
        let dots = places().map(|place| Circle::new(place, 4, colour.filled()));
        chart.draw_series(dots).map_err(|error| error.to_string())?;
    }
    drop(chart);
    root.present().map_err(|error| error.to_string())
}

const SIZE_PIXELS: (u32, u32) = (520, 350);

#[cfg(test)]
mod tests {
    use super::*;

    fn line(points: &[(f64, f64)]) -> Line {
        let point = |&(x, y): &(f64, f64)| LinePoint { x, y, note: format!("<{x}>") };
        Line { colour: 1, points: points.iter().map(point).collect() }
    }

    #[test]
    fn every_point_has_its_note_and_no_colour_is_fixed() {
        for scale in [Scale::Even, Scale::Logarithmic] {
            let lines = [line(&[(0.25, 40.0), (0.5, 20.0)]), line(&[(0.75, 10.0)])];
            let svg = draw("t", ["x", "y"], scale, &lines).unwrap().unwrap();
            assert_eq!(svg.matches("<title>").count(), 3, "{svg}");
            assert!(svg.contains("<title>&lt;0.75&gt;</title>") && !svg.contains("\"#0"), "{svg}");
        }
    }

    #[test]
    fn values_outside_the_scale_are_omitted() {
        let lines = [line(&[(0.0, 1.0), (2.0, 0.0), (3.0, 4.0)])];
        let svg = draw("t", ["x", "y"], Scale::Logarithmic, &lines).unwrap().unwrap();
        assert_eq!(svg.matches("<title>").count(), 1, "{svg}");
        assert!(draw("t", ["x", "y"], Scale::Even, &[]).unwrap().is_none());
        let zero = [line(&[(0.0, 0.0)])];
        assert!(draw("t", ["x", "y"], Scale::Logarithmic, &zero).unwrap().is_none());
    }
}
