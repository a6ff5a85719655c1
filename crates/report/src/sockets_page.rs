//! Shows measurements of ordinary sockets over kernel TCP and over the edge: a page with the
//! papers' values and our values.

use std::fmt::Write;

use bench::sockets::paper::{self, Mode};
use bench::sockets::{Contender, Figure, Report, Row, Test};

use crate::bars::{self, Bar};
use crate::chart::{self, ChartError, Point, Series};
use crate::format::{date, digits, size};
use crate::page::{document, escaped, legend};
use crate::rows::page_table;
use crate::sockets::{HEADER, NOTES, conditions, mtus, refusals, rows};

/// Makes a self-contained HTML page of the report.
///
/// # Errors
/// Returns [`ChartError`] if a chart cannot be drawn.
pub fn sockets_page(report: &Report) -> Result<String, ChartError> {
    let title = "Ethernot: ordinary sockets over the edge";
    let mut body = String::new();
    // Writing to a string cannot fail, here and below.
    let _ = writeln!(
        body,
        "<header><h1>{title}</h1><p>{}</p><p>{}</p></header>",
        escaped(&date(report.unix_seconds)),
        escaped(&conditions(report)).replace('\n', "<br>"),
    );
    for line in refusals(report) {
        let _ = writeln!(body, "<p><b>{}</b></p>", escaped(&line));
    }
    let mtus = mtus(report);
    if let Some(&mtu) = mtus.last() {
        beside_the_papers(&mut body, report, mtu);
    }
    for &mtu in &mtus {
        for (test, heading) in TESTS {
            section(&mut body, report, mtu, test, heading)?;
        }
    }
    for mtu in mtus {
        let table = page_table(&HEADER, rows(report, mtu));
        let _ = writeln!(body, "<section><h2>all figures, MTU {mtu}</h2>{table}</section>");
    }
    let notes = escaped(NOTES).replace('\n', "<br>");
    let _ = writeln!(body, "<footer>{notes}<br>ethernot {}</footer>", escaped(&report.version));
    Ok(document(title, bars::STYLE, &body))
}

/// Adds bar charts of the papers' printed values and our values of the same kind.
fn beside_the_papers(body: &mut String, report: &Report, mtu: u32) {
    let _ = writeln!(
        body,
        "<section><h2>values of the papers and our values</h2><p>The papers have machines and \
         networks of their time, and we have one host with virtual Ethernet of MTU {mtu}. \
         Therefore only ratios to the host's own stack are comparable; absolute values show only \
         orders of magnitude. Of the papers, the charts contain only values that their texts print \
         as numbers.</p>"
    );
    let contenders = coloured().filter(|(_, one)| Contender::USUAL.contains(one));
    let labels = contenders.map(|(colour, contender)| (colour, contender.description()));
    body.push_str(&legend(
        labels.chain([(PAPER_COLOUR, "papers: printed values of their machines")]),
    ));
    body.push_str("<div class=\"charts\">\n");
    for figure in &FIGURES {
        let mut drawn: Vec<Bar> = figure
            .contenders
            .iter()
            .filter_map(|contender| {
                let value = (figure.ours)(report, mtu, *contender)?;
                let label = contender.name().to_string();
                Some(Bar { label, value, colour: *contender as usize })
            })
            .collect();
        if drawn.is_empty() {
            continue;
        }
        let values = paper::values();
        let printed = values.iter().filter(|printed| (printed.test, printed.mode) == figure.paper);
        let value = |printed: &paper::Value| {
            if figure.is_ratio { printed.ratio() } else { Some(printed.value) }
        };
        drawn.extend(printed.filter_map(|printed| {
            let label = format!("paper: {}", printed.name);
            Some(Bar { label, value: value(printed)?, colour: PAPER_COLOUR })
        }));
        body.push_str(&bars::draw(figure.caption, figure.unit, &drawn));
    }
    body.push_str("</div></section>\n");
}

/// A bar chart of our values and the papers' values.
struct Bars {
    caption: &'static str,
    unit: &'static str,
    contenders: &'static [Contender],
    ours: fn(&Report, u32, Contender) -> Option<f64>,
    paper: (Test, Mode),
    /// Whether to show ratios. In a chart of ratios, the papers' values appear only if the paper
    /// also prints a value of the host's own stack.
    is_ratio: bool,
}

const FIGURES: [Bars; 5] = [
    Bars {
        caption: "latency of one byte in one direction, divided by the latency of the host's own \
                  stack",
        unit: "×",
        contenders: &[Contender::Sockets, Contender::SocketsPoll, Contender::Native],
        ours: |report, mtu, contender| {
            let row = of_one_byte(report, mtu, contender)?;
            row.ratio_to(Contender::Tcp).map(|ratio| ratio.value.mean)
        },
        paper: (Test::Latency, Mode::Event),
        is_ratio: true,
    },
    Bars {
        caption: "latency of one byte in one direction, event mode",
        unit: "µs",
        contenders: &[Contender::Tcp, Contender::Sockets],
        ours: latency_of_one_byte,
        paper: (Test::Latency, Mode::Event),
        is_ratio: false,
    },
    Bars {
        caption: "latency of one byte in one direction, polling",
        unit: "µs",
        contenders: &[Contender::TcpPoll, Contender::SocketsPoll, Contender::Native],
        ours: latency_of_one_byte,
        paper: (Test::Latency, Mode::Polling),
        is_ratio: false,
    },
    Bars {
        caption: "largest throughput of one stream",
        unit: "Gb/s",
        contenders: &[Contender::Tcp, Contender::Sockets, Contender::Native],
        ours: |report, mtu, contender| {
            let rows = report.rows.iter().filter(|row| {
                (row.test, row.mtu, row.contender) == (Test::Throughput, mtu, contender)
            });
            rows.filter_map(|row| Some(row.bytes_per_second?.mean * 8e-9)).reduce(f64::max)
        },
        paper: (Test::Throughput, Mode::Event),
        is_ratio: false,
    },
    Bars {
        caption: "time of connect() to a running service (SDP: milliseconds, according to the \
                  paper)",
        unit: "µs",
        contenders: &[Contender::Tcp, Contender::Sockets, Contender::Native],
        ours: |report, mtu, contender| {
            Some(report.row(Test::Connection, mtu, 1, 1, contender)?.connect_us?.mean)
        },
        paper: (Test::Connection, Mode::Event),
        is_ratio: false,
    },
];

fn of_one_byte(report: &Report, mtu: u32, contender: Contender) -> Option<&Row> {
    report.row(Test::Latency, mtu, 1, 1, contender)
}

fn latency_of_one_byte(report: &Report, mtu: u32, contender: Contender) -> Option<f64> {
    Some(of_one_byte(report, mtu, contender)?.latency_us?.mean)
}

/// Adds the curves of one test, if they have more than one point.
fn section(
    body: &mut String,
    report: &Report,
    mtu: u32,
    test: Test,
    heading: &str,
) -> Result<(), ChartError> {
    let measured: Vec<&Row> =
        report.rows.iter().filter(|row| (row.test, row.mtu) == (test, mtu)).collect();
    if measured.is_empty() {
        return Ok(());
    }
    let _ = writeln!(body, "<section><h2>{}, MTU {mtu}</h2><p>{heading}</p>", test.name());
    let is_here = |contender: Contender| measured.iter().any(|row| row.contender == contender);
    let here = coloured().filter(|(_, one)| is_here(*one));
    let paper = (test == Test::Latency).then_some((PAPER_COLOUR, PAPER_LABEL));
    body.push_str(&legend(here.map(|(colour, one)| (colour, one.description())).chain(paper)));
    body.push_str("<div class=\"charts\">\n");
    for quantity in &QUANTITIES {
        let mut series = curves(&measured, quantity);
        if test == Test::Latency && quantity.name == RATIO {
            series.push(Series { colour: PAPER_COLOUR, points: printed_ratios() });
        }
        let title = format!("{}, MTU {mtu}: {}", test.name(), quantity.name);
        let axis = match test {
            Test::Latency | Test::Throughput | Test::Connection => "message size (bytes)",
            Test::MultiStream => "streams",
            Test::HotSpot | Test::FanIn | Test::FanOut => "clients",
        };
        if let Some(svg) = chart::draw_over(&title, axis, quantity.axis, &series)? {
            let name = quantity.name;
            let _ = writeln!(body, "<figure><figcaption>{name}</figcaption>{svg}</figure>");
        }
    }
    body.push_str("</div></section>\n");
    Ok(())
}

fn curves(measured: &[&Row], quantity: &Quantity) -> Vec<Series> {
    let of_contender = |(colour, contender): (usize, Contender)| {
        let points = measured.iter().filter(|row| row.contender == contender).filter_map(|row| {
            let figure = (quantity.value)(row)?;
            let at = if row.test.has_sizes() { row.message_bytes } else { u64::from(row.clients) };
            let place = if row.test.has_sizes() { size(at) } else { at.to_string() };
            let note = format!(
                "{}, {place}: {} {} ({} to {})",
                contender.name(),
                digits(figure.mean),
                quantity.axis,
                digits(figure.min),
                digits(figure.max)
            );
            let Figure { mean, min, max } = figure;
            Some(Point { message_bytes: at, median: mean, min, max, note })
        });
        Series { colour, points: points.collect() }
    };
    coloured().map(of_contender).collect()
}

/// Returns the contenders with their colours, which differ from the colour of the papers.
fn coloured() -> impl Iterator<Item = (usize, Contender)> {
    let colours = (0..).filter(|colour| *colour != PAPER_COLOUR);
    colours.zip(Contender::ALL)
}

/// Returns one point for each latency of a one-byte message that the papers print as a ratio to the
/// host's own TCP stack.
fn printed_ratios() -> Vec<Point> {
    let values = paper::values();
    let latencies = values.iter().filter(|printed| printed.test == Test::Latency);
    let printed = latencies.filter_map(|printed| Some((printed, printed.ratio()?)));
    let point = |(printed, ratio): (&paper::Value, f64)| Point {
        message_bytes: 1,
        median: ratio,
        min: ratio,
        max: ratio,
        note: format!("paper, {}, 1 byte: {} of its host's stack", printed.name, digits(ratio)),
    };
    printed.map(point).collect()
}

/// The quantity of a chart.
struct Quantity {
    name: &'static str,
    axis: &'static str,
    value: fn(&Row) -> Option<Figure>,
}

const RATIO: &str = "divided by kernel TCP in event mode";

const QUANTITIES: [Quantity; 7] = [
    Quantity {
        name: "one way",
        axis: "µs",
        value: |row| row.value().filter(|_| row.test.is_about_time()),
    },
    Quantity {
        name: "payload of all",
        axis: "Gb/s",
        value: |row| {
            let rate = row.value().filter(|_| !row.test.is_about_time())?;
            let [mean, min, max] = [rate.mean, rate.min, rate.max].map(|rate| rate * 8e-9);
            Some(Figure { mean, min, max })
        },
    },
    Quantity {
        name: RATIO,
        axis: "×",
        value: |row| row.ratio_to(Contender::Tcp).map(|ratio| ratio.value),
    },
    Quantity { name: "CPU time of all", axis: "% of a CPU", value: |row| row.cpu_percent },
    Quantity {
        name: "CPU time of the server's process",
        axis: "% of a CPU",
        value: |row| row.server_cpu_percent,
    },
    Quantity {
        name: "CPU time of the clients' processes",
        axis: "% of a CPU",
        value: |row| row.client_cpu_percent,
    },
    Quantity { name: "fairness", axis: "Jain's index", value: |row| row.fairness },
];

/// The tests that are shown as curves. Connection times are shown as bars.
const TESTS: [(Test, &str); 6] = [
    (Test::Latency, "X bytes to the server and X bytes back; the value is half of a round trip."),
    (
        Test::Throughput,
        "N messages of X bytes in one direction; the time of the answer is subtracted.",
    ),
    (
        Test::MultiStream,
        "Several streams at the same time between the same two processes; the value is their sum.",
    ),
    (
        Test::HotSpot,
        "Clients on three hosts exchange one byte with one server that uses epoll; the value is \
         the mean of all clients.",
    ),
    (
        Test::FanIn,
        "Clients on three hosts send to one server; the value is the sum of all clients.",
    ),
    (
        Test::FanOut,
        "One server sends to clients on three hosts; the value is the sum of all clients.",
    ),
];

/// Index of the papers' colour, after the contenders' colours.
const PAPER_COLOUR: usize = 5;
const PAPER_LABEL: &str = "paper: TOE divided by the stack of its host, 1 byte";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sockets::tests::report;

    #[test]
    fn the_page_is_self_contained_and_shows_the_papers_values() {
        let page = sockets_page(&report()).unwrap();
        let own = page.replace("http://www.w3.org/2000/svg", "");
        for reference in ["src=", "href=", "url(", "@import", "<script", "http:"] {
            assert!(!own.contains(reference), "{reference}");
        }
        assert!(page.contains("paper: TOE/10GigE") && page.contains("60.0 µs"), "bars");
        assert!(page.contains("0.858 of its host"), "the point of the ratio");
        assert!(page.contains("&lt;cpu&gt;") && page.contains("&lt;moved&gt;"), "only text");
    }

    #[test]
    fn a_case_that_was_not_measured_has_no_figure() {
        let mut report = report();
        report.rows.retain(|row| row.test == Test::HotSpot);
        let page = sockets_page(&report).unwrap();
        assert!(!page.contains("fan-in, MTU") && !page.contains("paper: TOE/10GigE"));
        assert!(page.contains("hot-spot, MTU 1500"));
    }
}
