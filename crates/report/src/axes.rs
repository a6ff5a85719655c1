//! The axes of a chart, with the placeholder colours of the page's style sheet.

use plotters::chart::ChartContext;
use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use crate::format::digits;

/// A chart over two axes of numbers.
pub(crate) type Chart<'a, 'svg, X, Y> = ChartContext<
    'a,
    SVGBackend<'svg>,
    Cartesian2d<<X as AsRangedCoord>::CoordDescType, <Y as AsRangedCoord>::CoordDescType>,
>;

/// Draws the axes `x` and `y` with their titles on `root`. `x_label` returns the label of a tick of
/// the horizontal axis.
pub(crate) fn with_axes<'a, 'svg, X, Y>(
    root: &'a DrawingArea<SVGBackend<'svg>, Shift>,
    (x, y): (X, Y),
    [x_title, y_title]: [&str; 2],
    x_label: &dyn Fn(f64) -> String,
) -> Result<Chart<'a, 'svg, X, Y>, String>
where
    X: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y: AsRangedCoord<Value = f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    let text = || ("sans-serif", 15).into_font().color(&TEXT);
    let mut chart = ChartBuilder::on(root)
        .margin(8)
        .margin_right(20)
        .x_label_area_size(44)
        .y_label_area_size(64)
        .build_cartesian_2d(x, y)
        .map_err(|error| error.to_string())?;
    chart
        .configure_mesh()
        .axis_style(GRID)
        .bold_line_style(GRID)
        .light_line_style(TRANSPARENT)
        .label_style(text())
        .x_labels(7)
        .y_labels(6)
        .x_label_formatter(&|at| x_label(*at))
        .y_label_formatter(&|value| tick_label(*value))
        .x_desc(x_title)
        .y_desc(y_title)
        .axis_desc_style(text())
        .draw()
        .map_err(|error| error.to_string())?;
    Ok(chart)
}

/// Returns the label of a tick. Because of rounding errors, the value of the tick at 0 may differ
/// slightly from 0.
pub(crate) fn tick_label(value: f64) -> String {
    if value.abs() < 1e-9 {
        "0".to_string()
    } else if value >= 0.001 {
        let text = digits(value);
        let text = if text.contains('.') { text.trim_end_matches('0') } else { &text };
        text.trim_end_matches('.').to_string()
    } else {
        format!("{value:.0e}")
    }
}

/// Placeholder colours. [`with_classes`](crate::chart::with_classes) replaces each of them by a
/// variable of the page's style sheet.
const TEXT: RGBColor = RGBColor(1, 1, 1);
const GRID: RGBColor = RGBColor(2, 2, 2);
