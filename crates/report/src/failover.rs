//! Failover: a line per cut, and rates over time.

use std::fmt::Write;

use bench::failover::results::{Cut, FailoverResults, WINDOW_MS};
use comfy_table::Table;

use crate::format::{date, digits};
use crate::page::{document, escaped};
use crate::table::LINES;

/// The table.
pub fn failover_table(results: &FailoverResults) -> String {
    let mut table = Table::new();
    table.load_style(LINES);
    table.set_header(HEADER);
    for cut in &results.cuts {
        table.add_row(row(cut));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    format!("{}\n{table}\n{NOTES}\n", facts(results))
}

/// The page.
pub fn failover_page(results: &FailoverResults) -> String {
    let title = "Ethernot failover";
    let mut body = String::new();
    // Writing to a string does not fail, here and below.
    let _ = writeln!(
        body,
        "<header><h1>{title}</h1><p>{}</p><p>{}</p></header><section><div class=\"charts\">",
        escaped(&date(results.unix_seconds)),
        escaped(&facts(results))
    );
    for cut in results.cuts.iter().filter(|cut| cut.failure.is_none()) {
        let name = escaped(&cut.name);
        let _ = writeln!(body, "<figure><figcaption>{name}</figcaption>{}</figure>", chart(cut));
    }
    body.push_str("</div></section><section><div class=\"wide\"><table><thead><tr>");
    for name in HEADER {
        let _ = write!(body, "<th>{name}</th>");
    }
    body.push_str("</tr></thead><tbody>\n");
    for cut in &results.cuts {
        body.push_str("<tr>");
        for cell in row(cut) {
            let _ = write!(body, "<td>{}</td>", escaped(&cell));
        }
        body.push_str("</tr>\n");
    }
    let _ = writeln!(
        body,
        "</tbody></table></div></section><footer>{} ethernot {}</footer>",
        escaped(NOTES),
        escaped(&results.version)
    );
    document(title, &body)
}

fn row(cut: &Cut) -> [String; 6] {
    let or_never = |value: Option<u64>, never: &str| {
        value.map_or_else(|| never.to_string(), |value| format!("{value} ms"))
    };
    if let Some(failure) = &cut.failure {
        let mut row: [String; 6] = Default::default();
        for (cell, text) in row.iter_mut().zip([cut.name.clone(), format!("failed: {failure}")]) {
            *cell = text;
        }
        return row;
    }
    [
        cut.name.clone(),
        format!("{} Gb/s", digits(cut.bytes_per_second * 8e-9)),
        or_never(cut.gap_ms, "–"),
        or_never(cut.back_ms, "never"),
        cut.series.operations.to_string(),
        format!("{} / {}", cut.series.lost_operations, cut.series.corrupted_operations),
    ]
}

/// The rate over time; the cut is between the two vertical lines.
fn chart(cut: &Cut) -> String {
    let windows: Vec<f64> = cut
        .series
        .bytes_per_ms
        .chunks(WINDOW_MS as usize)
        .map(|window| window.iter().sum::<u64>() as f64 * 8e-6 / window.len() as f64)
        .collect();
    let highest = windows.iter().copied().fold(0.1, f64::max) * 1.1;
    let length_ms = (cut.series.bytes_per_ms.len() as f64).max(1.0);
    let x = |ms: f64| LEFT + ms / length_ms * (WIDTH - LEFT - MARGIN);
    let y = |gigabits: f64| HEIGHT - BOTTOM - gigabits / highest * (HEIGHT - BOTTOM - MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" aria-label=\"rate over time, cut \
         {}\" viewBox=\"0 0 {WIDTH} {HEIGHT}\">",
        escaped(&cut.name)
    );
    for step in 0..=4 {
        let value = highest / 4.4 * f64::from(step);
        let _ = write!(
            svg,
            "<line x1=\"{LEFT}\" x2=\"{}\" y1=\"{2:.1}\" y2=\"{2:.1}\" stroke=\"var(--grid)\"/>\
             <text x=\"4\" y=\"{2:.1}\" font-size=\"13\" fill=\"currentColor\">{1}</text>",
            WIDTH - MARGIN,
            digits(value),
            y(value)
        );
    }
    for (at, what) in [(cut.cut_ms, "cut"), (cut.restored_ms, "restored")] {
        let _ = write!(
            svg,
            "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{MARGIN}\" y2=\"{1}\" \
             stroke=\"var(--series-5)\"/><text x=\"{0:.1}\" y=\"{2}\" font-size=\"13\" \
             fill=\"currentColor\">{what} {at} ms</text>",
            x(at as f64),
            HEIGHT - BOTTOM,
            HEIGHT - 8.0
        );
    }
    svg.push_str(
        "<polyline fill=\"none\" stroke=\"var(--series-3)\" stroke-width=\"1.5\" points=\"",
    );
    for (index, gigabits) in windows.iter().enumerate() {
        let ms = index as f64 * WINDOW_MS as f64;
        let _ = write!(svg, "{:.1},{:.1} ", x(ms), y(*gigabits));
    }
    svg.push_str("\"/></svg>");
    svg
}

fn facts(results: &FailoverResults) -> String {
    format!(
        "two {} links of {} Gb/s, one of them cut; {}, {} CPUs, Linux {}",
        results.link,
        digits(results.bits_per_second as f64 / 1e9),
        results.machine.cpu,
        results.machine.cpus,
        results.machine.kernel
    )
}

const HEADER: [&str; 6] = ["cut", "both links", "gap", "back after", "writes", "lost / corrupted"];
const NOTES: &str = "gap: longest time below 80 % of half the rate of both links; back: from the \
restoration until the rate stays at 80 % of both (payload in Gb/s over 5 ms, in order, every byte \
checked at the target).";
const WIDTH: f64 = 620.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 48.0;
const BOTTOM: f64 = 28.0;
const MARGIN: f64 = 10.0;

#[cfg(test)]
mod tests {
    use bench::failover::Series;
    use bench::failover::results::{FORMAT, Worst};
    use bench::machine::Machine;

    use super::*;

    #[test]
    fn table_and_page_show_figures_and_failures() {
        let series = Series { bytes_per_ms: vec![250_000; 400], ..Series::default() };
        let cuts = vec![
            Cut::judge("both", 100, 200, series),
            Cut::failed("carrier", "<b>no tool</b>".into()),
        ];
        let results = FailoverResults {
            format: FORMAT.to_string(),
            version: "0".to_string(),
            unix_seconds: 0,
            machine: Machine::default(),
            link: "udp".to_string(),
            bits_per_second: 1_000_000_000,
            worst: Worst::of(&cuts),
            cuts,
        };
        let table = failover_table(&results);
        assert!(table.contains("2.00 Gb/s") && table.contains("0 / 0"), "{table}");
        let page = failover_page(&results).replace("http://www.w3.org/2000/svg", "");
        assert!(page.contains("<polyline") && page.contains("&lt;b&gt;no tool"));
        for reference in ["src=", "href=", "url(", "@import", "<script", "http:", "<b>"] {
            assert!(!page.contains(reference), "{reference}");
        }
    }
}
