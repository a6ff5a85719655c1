//! A page with everything inside: curves, table, facts. It loads nothing from anywhere.

use std::fmt::Write;

use bench::results::{Measurement, Results};
use bench::statistics::Summary;
use bench::transport::Test;

use crate::chart::{self, COLOURS, ChartError, Point, Series};
use crate::format::{date, digits, size};
use crate::table::{HEADER, cells, facts, notes};

/// The page that shows `results`.
pub fn page(results: &Results) -> Result<String, ChartError> {
    let labels = labels(results);
    let title = "Ethernot benchmark";
    let mut body = String::new();
    // Writing to a string does not fail, here and below.
    let _ = writeln!(
        body,
        "<header><h1>{title}</h1><p>{}</p><p>{}</p></header>",
        escaped(&date(results.unix_seconds)),
        escaped(&facts(results)).replace('\n', "<br>"),
    );
    for (test, heading) in CURVES {
        section(&mut body, results, test, heading, &labels)?;
    }
    whole_table(&mut body, results);
    let _ = writeln!(
        body,
        "<footer>{} ethernot {}</footer>",
        escaped(&notes(results)).replace('\n', "<br>"),
        escaped(&results.version)
    );
    Ok(format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{title}</title><style>{STYLE}</style></head>\n<body>\n{body}</body></html>\n"
    ))
}

/// The curves of one test, if it was run.
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
    legend(body, &measured, labels);
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

/// One curve for each transport and number of links.
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

fn legend(body: &mut String, measured: &[&Measurement], labels: &[String]) {
    body.push_str("<ul class=\"legend\">");
    for (colour, label) in labels.iter().enumerate() {
        if measured.iter().any(|m| m.label() == *label) {
            let (colour, label) = (colour % COLOURS, escaped(label));
            let _ = write!(
                body,
                "<li><span style=\"background:var(--series-{colour})\"></span>{label}</li>"
            );
        }
    }
    body.push_str("</ul>\n");
}

fn whole_table(body: &mut String, results: &Results) {
    body.push_str("<section><h2>all figures</h2><div class=\"wide\"><table><thead><tr>");
    for (name, _) in HEADER {
        let _ = write!(body, "<th>{name}</th>");
    }
    body.push_str("</tr></thead><tbody>\n");
    let mut previous = None;
    for measurement in &results.results {
        let case = (measurement.test, measurement.message_bytes);
        let is_new = previous.replace(case) != Some(case);
        body.push_str(if is_new { "<tr class=\"case\">" } else { "<tr>" });
        for cell in cells(measurement, is_new) {
            let _ = write!(body, "<td>{}</td>", escaped(&cell));
        }
        body.push_str("</tr>\n");
    }
    body.push_str("</tbody></table></div></section>\n");
}

/// The labels of all measurements, each once, in the order in which they appear.
fn labels(results: &Results) -> Vec<String> {
    let mut labels = Vec::new();
    for label in results.results.iter().map(Measurement::label) {
        if !labels.contains(&label) {
            labels.push(label);
        }
    }
    labels
}

/// `text` as HTML text or attribute value. Results may come from a file or from another host.
pub(crate) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// What a chart shows of a measurement.
struct Quantity {
    name: &'static str,
    axis: &'static str,
    value: fn(&Measurement) -> Option<Summary>,
    /// From the measurement's unit to the axis's.
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

pub(crate) const STYLE: &str = include_str!("page.css");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::results;

    #[test]
    fn the_page_needs_nothing_from_elsewhere() {
        let page = page(&results()).unwrap();
        for reference in ["src=", "href=", "url(", "@import", "<script", "http:"] {
            let page = page.replace("http://www.w3.org/2000/svg", "");
            assert!(!page.contains(reference), "{reference}");
        }
        assert!(page.contains("<svg") && page.contains("tcp-poll"));
    }

    #[test]
    fn what_another_host_says_is_only_text() {
        let mut results = results();
        results.server.cpu = "<script>alert(1)</script>".to_string();
        let page = page(&results).unwrap();
        assert!(!page.contains("<script"));
        assert!(page.contains("&lt;script&gt;"));
    }
}
