//! Curves over message sizes, as SVG. Their colours are those of the page's style sheet.

use std::ops::Range;

use plotters::coord::combinators::{BindKeyPoints, IntoLogRange};
use plotters::prelude::*;

use crate::axes::with_axes;
use crate::format::short_size;

/// One curve.
#[derive(Debug, Clone)]
pub(crate) struct Series {
    /// Index of the curve's colour in the style sheet, below [`COLOURS`].
    pub(crate) colour: usize,
    /// The points in ascending order of message size.
    pub(crate) points: Vec<Point>,
}

/// One point of a curve.
#[derive(Debug, Clone)]
pub(crate) struct Point {
    pub(crate) message_bytes: u64,
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// Text that the page shows while the pointer is on the point.
    pub(crate) note: String,
}

/// Why a chart could not be drawn.
#[derive(Debug, thiserror::Error)]
#[error("draw the chart {title:?}: {reason}")]
pub struct ChartError {
    title: String,
    reason: String,
}

/// Draws `series` over message sizes on logarithmic axes. Returns `None` if no point can be drawn,
/// because logarithmic axes show only positive values.
pub(crate) fn draw(
    title: &str,
    value_axis: &str,
    series: &[Series],
) -> Result<Option<String>, ChartError> {
    draw_over(title, "message size (bytes)", value_axis, series)
}

/// Draws `series` over a quantity that is not a message size, such as the number of clients.
pub(crate) fn draw_over(
    title: &str,
    axis: &str,
    value_axis: &str,
    series: &[Series],
) -> Result<Option<String>, ChartError> {
    let drawable = |point: &&Point| point.median > 0.0 && point.message_bytes > 0;
    let points: Vec<&Point> = series.iter().flat_map(|s| &s.points).filter(drawable).collect();
    if points.is_empty() {
        return Ok(None);
    }
    let mut sizes: Vec<u64> = points.iter().map(|point| point.message_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let axes = Axes {
        x: widened(sizes.iter().map(|&bytes| bytes as f64), 1.4),
        y: widened(points.iter().flat_map(|p| [p.min, p.median, p.max]).filter(|v| *v > 0.0), 1.2),
        sizes,
    };
    let mut svg = String::new();
    let mut notes = Vec::new();
    draw_on(&mut svg, [axis, value_axis], series, axes, &mut notes)
        .map_err(|reason| ChartError::new(title, reason))?;
    Ok(Some(with_notes(&with_classes(&svg, title, SIZE_PIXELS), &notes)))
}

/// The ranges of the axes, and the positions of the ticks.
struct Axes {
    x: Range<f64>,
    y: Range<f64>,
    sizes: Vec<u64>,
}

fn draw_on(
    svg: &mut String,
    [axis, value_axis]: [&str; 2],
    series: &[Series],
    axes: Axes,
    notes: &mut Vec<String>,
) -> Result<(), String> {
    let root = SVGBackend::with_string(svg, SIZE_PIXELS).into_drawing_area();
    let x_ticks: Vec<f64> = axes.sizes.iter().map(|&bytes| bytes as f64).collect();
    let y_ticks = ticks(&axes.y);
    let x = axes.x.log_scale().with_key_points(x_ticks);
    let y = axes.y.log_scale().with_key_points(y_ticks);
    let size = |bytes: f64| short_size(bytes as u64);
    let mut chart = with_axes(&root, (x, y), [axis, value_axis], &size)?;
    for one in series {
        let colour = series_colour(one.colour);
        let points = || one.points.iter().filter(|p| p.median > 0.0 && p.message_bytes > 0);
        let line = points().map(|p| (p.message_bytes as f64, p.median));
        let spreads = points().filter(|p| p.min > 0.0).map(|p| {
            let x = p.message_bytes as f64;
            PathElement::new(vec![(x, p.min), (x, p.max)], colour.mix(0.5).stroke_width(1))
        });
        let dots = points().map(|p| {
            notes.push(p.note.clone());
            Circle::new((p.message_bytes as f64, p.median), 4, colour.filled())
        });
        chart
            .draw_series(LineSeries::new(line, colour.stroke_width(2)))
            .map_err(|error| error.to_string())?;
        chart.draw_series(spreads).map_err(|error| error.to_string())?;
        chart.draw_series(dots).map_err(|error| error.to_string())?;
    }
    drop(chart);
    root.present().map_err(|error| error.to_string())
}

/// Returns the range of `values`, extended by `factor` at both ends.
pub(crate) fn widened(values: impl Iterator<Item = f64>, factor: f64) -> Range<f64> {
    let (low, high) =
        values.fold((f64::MAX, f64::MIN_POSITIVE), |(low, high), v| (low.min(v), high.max(v)));
    low / factor..high * factor
}

/// Returns round values for ticks in `range`, which must be positive. The values are powers of ten.
/// If the range contains few powers of ten, also returns multiples of them. If there would still be
/// fewer than three values, returns evenly spaced values.
pub(crate) fn ticks(range: &Range<f64>) -> Vec<f64> {
    let decades = (range.end / range.start).log10();
    let finer: &[&[f64]] = match decades {
        2.5.. => &MULTIPLES,
        0.8.. => &MULTIPLES[1..],
        _ => &MULTIPLES[2..],
    };
    let mut choices = finer.iter().map(|steps| multiples(range, steps));
    choices.find(|ticks| ticks.len() >= TICKS_MIN).unwrap_or_else(|| even_ticks(range))
}

/// Returns all products of a power of ten and one of `steps` that lie in `range`.
fn multiples(range: &Range<f64>, steps: &[f64]) -> Vec<f64> {
    let exponents = range.start.log10().floor() as i32..=range.end.log10().ceil() as i32;
    exponents
        .flat_map(|exponent| steps.iter().map(move |step| step * 10_f64.powi(exponent)))
        .filter(|tick| range.contains(tick))
        .collect()
}

/// Returns evenly spaced round values in `range`. Their distance is 1, 2 or 5 times a power of ten.
/// It is the largest such distance that gives enough values.
fn even_ticks(range: &Range<f64>) -> Vec<f64> {
    let exponent = (range.end - range.start).log10().floor() as i32;
    let widths = [exponent, exponent - 1]
        .into_iter()
        .flat_map(|exponent| [5.0, 2.0, 1.0].map(|step| step * 10_f64.powi(exponent)));
    let mut choices = widths.map(|width| {
        let (first, last) = ((range.start / width).ceil(), (range.end / width).floor());
        let all = (first as u64..=last as u64).map(|count| count as f64 * width);
        all.filter(|tick| range.contains(tick)).collect::<Vec<_>>()
    });
    choices.find(|ticks| ticks.len() >= TICKS_MIN).unwrap_or_default()
}

/// Returns the placeholder of a colour of curves. [`with_classes`] replaces it by a variable of the
/// page's style sheet.
pub(crate) fn series_colour(colour: usize) -> RGBColor {
    RGBColor(3, 3, (colour % COLOURS) as u8)
}

impl ChartError {
    pub(crate) fn new(title: &str, reason: String) -> Self {
        Self { title: title.to_string(), reason }
    }
}

/// Replaces the placeholder colours, so that one drawing is suitable for light and dark pages.
/// Removes the fixed size, because the page determines the size. Adds `title` for screen readers.
pub(crate) fn with_classes(svg: &str, title: &str, (width, height): (u32, u32)) -> String {
    let mut svg = svg
        .replace("\"#010101\"", "\"currentColor\"")
        .replace("\"#020202\"", "\"var(--grid)\"")
        .replace(
            &format!("width=\"{width}\" height=\"{height}\" viewBox"),
            &format!("role=\"img\" aria-label=\"{}\" viewBox", crate::page::escaped(title)),
        );
    for colour in 0..COLOURS {
        let stand_in = format!("\"#0303{colour:02X}\"");
        svg = svg.replace(&stand_in, &format!("\"var(--series-{colour})\""));
    }
    svg
}

/// Adds the n-th note to the n-th circle.
pub(crate) fn with_notes(svg: &str, notes: &[String]) -> String {
    let mut result = String::with_capacity(svg.len() * 2);
    let mut notes = notes.iter();
    for line in svg.split_inclusive('\n') {
        match line.strip_suffix("/>\n").filter(|_| line.starts_with("<circle ")) {
            Some(circle) => {
                let note = notes.next().map_or(String::new(), |note| crate::page::escaped(note));
                result.extend([circle, "><title>", &note, "</title></circle>\n"]);
            }
            None => result.push_str(line),
        }
    }
    result
}

/// Number of colours in the style sheet. If there are more curves than colours, several curves have
/// the same colour.
pub(crate) const COLOURS: usize = 8;

/// Smallest number of ticks from which a reader can see the scale of an axis.
const TICKS_MIN: usize = 3;

/// Multiples of powers of ten for ticks. Each list has more multiples than the list before.
const MULTIPLES: [&[f64]; 3] =
    [&[1.0], &[1.0, 2.0, 5.0], &[1.0, 1.2, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0]];

const SIZE_PIXELS: (u32, u32) = (520, 350);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::axes::tick_label;

    #[test]
    fn every_point_has_its_note_and_no_colour_is_fixed() {
        let svg = draw("<t>", "µs", &[series(0, &[8, 64]), series(1, &[8])]).unwrap().unwrap();
        assert_eq!(svg.matches("<title>").count(), 3);
        assert!(svg.contains("<title>64 &lt; 65</title>"), "{svg}");
        assert!(svg.contains("var(--series-1)") && svg.contains("aria-label=\"&lt;t&gt;\""));
        assert!(!svg.contains("\"#0"), "{svg}");
    }

    #[test]
    fn values_without_a_logarithm_are_omitted() {
        assert!(draw("t", "µs", &[]).unwrap().is_none());
        let mut zero = series(0, &[8]);
        zero.points[0].median = 0.0;
        assert!(draw("t", "µs", &[zero.clone()]).unwrap().is_none());
        assert!(draw("t", "µs", &[zero, series(0, &[8, 16])]).unwrap().is_some());
    }

    #[test]
    fn ticks_are_within_the_range() {
        assert_eq!(ticks(&(0.9..30.0)), [1.0, 2.0, 5.0, 10.0, 20.0]);
        assert_eq!(ticks(&(0.5..5000.0)), [1.0, 10.0, 100.0, 1000.0]);
        assert_eq!(ticks(&(74.0..198.0)), [80.0, 100.0, 120.0, 150.0]);
        assert_eq!(ticks(&(130.0..190.0)), [140.0, 160.0, 180.0]);
        assert_eq!(tick_label(0.05), "0.05");
        assert_eq!(tick_label(1000.0), "1000");
    }

    #[test]
    fn at_least_three_distinct_ticks_exist_however_close_the_values() {
        for exponent in -3..6 {
            for start in (100..1000).map(|start| f64::from(start) * 10_f64.powi(exponent - 2)) {
                for ratio in [1.44, 1.6, 2.0, 5.0, 6.4, 20.0, 300.0, 320.0, 1e5] {
                    let range = start..start * ratio;
                    let ticks = ticks(&range);
                    assert!((3..=12).contains(&ticks.len()), "{range:?}: {ticks:?}");
                    assert!(ticks.iter().all(|tick| range.contains(tick)), "{range:?}: {ticks:?}");
                    if start >= 0.01 {
                        let mut labels: Vec<_> = ticks.iter().map(|t| tick_label(*t)).collect();
                        labels.dedup();
                        assert_eq!(labels.len(), ticks.len(), "{range:?}: {labels:?}");
                    }
                }
            }
        }
    }

    fn series(colour: usize, sizes: &[u64]) -> Series {
        let point = |&message_bytes| Point {
            message_bytes,
            median: message_bytes as f64,
            min: message_bytes as f64 * 0.9,
            max: message_bytes as f64 * 1.1,
            note: format!("{message_bytes} < {}", message_bytes + 1),
        };
        Series { colour, points: sizes.iter().map(point).collect() }
    }
}
