//! A self-contained page with curves, a table and facts. The page loads no other files.

use std::fmt::Write;

use bench::results::{Measurement, Results};
use bench::statistics::Summary;
use bench::transport::Test;

use crate::chart::{self, COLOURS, ChartError, Point, Series};
use crate::format::{date, digits, size};
use crate::rows::page_table;
use crate::table::{HEADER, facts, notes, rows};

/// Makes the HTML page that shows `results`.
///
/// # Errors
/// Returns [`ChartError`] if a chart cannot be drawn.
pub fn page(results: &Results) -> Result<String, ChartError> {
    let labels = labels(results);
    let title = "Ethernot benchmark";
    let mut body = String::new();
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        body,
        "<header><h1>{title}</h1><p>{}</p><p>{}</p></header>",
        escaped(&date(results.unix_seconds)),
        escaped(&facts(results)).replace('\n', "<br>"),
    );
    for (test, heading) in CURVES {
        section(&mut body, results, test, heading, &labels)?;
    }
    let table = page_table(&HEADER, rows(results));
    let _ = writeln!(body, "<section><h2>all figures</h2>{table}</section>");
    let _ = writeln!(
        body,
        "<footer>{} ethernot {}</footer>",
        escaped(&notes(results)).replace('\n', "<br>"),
        escaped(&results.version)
    );
    Ok(document(title, "", &body))
}

/// Adds the charts of one test, if the test was run.
fn section(
    body: &mut String,
    results: &Results,
    test: Test,
    heading: &str,
    labels: &[String],
) -> Result<(), ChartError> {
    let measured: Vec<_> = results.results.iter().filter(|m| m.test == test).collect();
    if measured.is_empty() {
        return Ok(());
    }
    let _ = writeln!(body, "<section><h2>{}</h2><p>{heading}</p>", test.name());
    let is_here = |label: &String| measured.iter().any(|m| m.label() == *label);
    let here = labels.iter().enumerate().filter(|(_, label)| is_here(label));
    body.push_str(&legend(here.map(|(colour, label)| (colour, label.as_str()))));
    body.push_str("<div class=\"charts\">\n");
    for quantity in &QUANTITIES {
        let series = curves(&measured, quantity, labels);
        let title = format!("{}: {}", test.name(), quantity.name);
        if let Some(svg) = chart::draw(&title, quantity.axis, &series)? {
            let name = quantity.name;
            let _ = writeln!(body, "<figure><figcaption>{name}</figcaption>{svg}</figure>");
        }
    }
    body.push_str("</div></section>\n");
    Ok(())
}

/// Returns one curve for each transport and number of links.
fn curves(measured: &[&Measurement], quantity: &Quantity, labels: &[String]) -> Vec<Series> {
    let of_label = |(colour, label): (usize, &String)| {
        let points = measured.iter().filter(|m| m.label() == *label).filter_map(|m| {
            let value = (quantity.value)(m)?;
            let median = value.median * quantity.scale;
            let (min, max) = (value.min * quantity.scale, value.max * quantity.scale);
            let note = format!(
                "{label}, {}: {} {} ({} to {})",
                size(m.message_bytes),
                digits(median),
                quantity.axis,
                digits(min),
                digits(max)
            );
            Some(Point { message_bytes: m.message_bytes, median, min, max, note })
        });
        Series { colour, points: points.collect() }
    };
    labels.iter().enumerate().map(of_label).collect()
}

/// Returns the legend: the names of the curves, each with its colour. A colour is an index in the
/// style sheet.
pub(crate) fn legend<'a>(curves: impl IntoIterator<Item = (usize, &'a str)>) -> String {
    let mut html = String::from("<ul class=\"legend\">");
    for (colour, label) in curves {
        let (colour, label) = (colour % COLOURS, escaped(label));
        let _ = write!(
            html,
            "<li><span style=\"background:var(--series-{colour})\"></span>{label}</li>"
        );
    }
    html.push_str("</ul>\n");
    html
}

/// Returns the labels of all measurements in order of appearance, without repetitions.
fn labels(results: &Results) -> Vec<String> {
    let mut labels = Vec::new();
    for label in results.results.iter().map(Measurement::label) {
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    labels
}

/// Returns a self-contained document. `style` contains rules that are added to the style sheet
/// common to all pages.
pub(crate) fn document(title: &str, style: &str, body: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{}</title><style>{STYLE}{style}</style></head>\n<body>\n{body}</body></html>\n",
        escaped(title)
    )
}

/// Escapes `text` for HTML text and attribute values. Escaping is necessary because results can
/// come from a file or from another host.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// The quantity of a chart.
struct Quantity {
    name: &'static str,
    axis: &'static str,
    value: fn(&Measurement) -> Option<Summary>,
    /// Factor from the measurement's unit to the axis's unit.
    scale: f64,
}

const QUANTITIES: [Quantity; 3] = [
    Quantity { name: "Latency", axis: "µs", value: |m| m.latency_ns, scale: 1e-3 },
    Quantity { name: "Throughput", axis: "Gb/s", value: |m| Some(m.bytes_per_second), scale: 8e-9 },
    Quantity {
        name: "CPU time",
        axis: "CPU s/GB",
        value: |m| m.cpu_seconds_per_gigabyte,
        scale: 1.0,
    },
];

const CURVES: [(Test, &str); 3] = [
    (Test::PingPong, "One message back and forth; latency is half a round trip."),
    (Test::OneWay, "Messages from client to server, one after the other."),
    (Test::TwoWay, "Messages in both directions at the same time; both directions are counted."),
];

const STYLE: &str = include_str!("page.css");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::results;

    #[test]
    fn the_page_is_self_contained() {
        let page = page(&results()).unwrap();
        for reference in ["src=", "href=", "url(", "@import", "<script", "http:"] {
            let page = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!page.contains(reference), "{reference}");
        }
        assert!(page.contains("<svg") && page.contains("tcp-poll"));
    }

    #[test]
    fn text_from_another_host_is_escaped() {
        let mut results = results();
        results.server.cpu = "<script>alert(1)</script>".to_string();
        let page = page(&results).unwrap();
        assert!(!page.contains("<script"));
        assert!(page.contains("&lt;script&gt;"));
    }
}
