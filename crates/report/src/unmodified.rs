//! Parts of tables and pages that all benchmarks of unmodified programs use. They show a case over
//! kernel TCP and over one other way to carry bytes, and the comparison of the two.

use bench::statistics::Summary;
use bench::unmodified::figures::{Case, Figure, Quantity};
use bench::unmodified::way::{PathTaken, Way};

use crate::chart::{self, ChartError, Point, Series};
use crate::format::{digits, scaled};
use crate::page::escaped;

/// Returns three cells: the quantity over kernel TCP, the quantity over the other way, and the
/// ratio. Returns dashes if there is no figure.
pub(crate) fn cells(case: &Case, quantity: Quantity) -> [String; 3] {
    let Some(figure) = case.figure(quantity) else { return DASHES.map(str::to_string) };
    let value = |summary: &Summary| match quantity {
        Quantity::PerSecond => scaled(summary.median, "").trim_end().to_string(),
        Quantity::BytesPerSecond => scaled(summary.median * 8.0, "b/s"),
        _ => digits(summary.median),
    };
    [value(&figure.tcp), value(&figure.other), ratio(&figure.ratio)]
}

/// Returns a ratio with its spread: half the distance between the lowest and the highest value, in
/// percent.
pub(crate) fn ratio(ratio: &Summary) -> String {
    format!("{} ±{}%", digits(ratio.median), ratio.spread_percent().round())
}

/// Returns the ratio of a quantity, or a dash if there is no figure.
pub(crate) fn ratio_of(case: &Case, quantity: Quantity) -> String {
    case.figure(quantity).map_or_else(|| DASHES[0].to_string(), |figure| ratio(&figure.ratio))
}

/// Returns in words what the library's counters show about the connections of a case: whether they
/// moved to the edge or stayed with TCP. If the case could not run, returns the reason.
pub(crate) fn way(case: &Case) -> String {
    if let Some(reason) = &case.cannot_run {
        return format!("cannot run: {reason}");
    }
    let path = counted(&case.client_path);
    let shown = if case.is_proven { String::new() } else { "NOT SHOWN; ".to_string() };
    let errors = match case.errors {
        [0, 0] => String::new(),
        [tcp, other] => format!("; errors {tcp} and {other}"),
    };
    format!("{shown}{path}{errors}")
}

/// Returns the library's counters in words.
pub(crate) fn counted(path: &PathTaken) -> String {
    if path.processes == 0 {
        return "no library".to_string();
    }
    let left = path.left.iter().map(|(reason, count)| format!("{count} left ({reason})"));
    let reset = (path.resets > 0).then(|| format!("{} reset", path.resets));
    let parts: Vec<String> =
        [format!("{} moved", path.moved)].into_iter().chain(left).chain(reset).collect();
    parts.join(", ")
}

/// Returns the names of the two ways in the order of their colours.
pub(crate) fn ways(other: Way) -> [&'static str; 2] {
    let other = match other {
        Way::Tcp => "tcp: kernel TCP, measured a second time",
        Way::Edge => "edge: the library in both programs; threads sleep while they wait",
        Way::EdgePoll => "edge-poll: the library in both programs; threads poll while they wait",
        Way::Default => {
            "default: the library in both programs; it moves the connections that gain from it"
        }
        Way::ServerOnly => {
            "server-only: the library only in the server; connections stay with kernel TCP"
        }
        Way::ClientOnly => {
            "client-only: the library only in the client; connections stay with kernel TCP"
        }
        Way::LeftAlone => {
            "left-alone: the library in both programs, but no network is allowed; connections stay \
             with kernel TCP"
        }
    };
    ["tcp: kernel TCP", other]
}

/// The titles of a chart.
pub(crate) struct Axes<'a> {
    pub(crate) title: &'a str,
    pub(crate) x: &'a str,
    pub(crate) quantity: Quantity,
}

/// Returns a chart of a quantity over the numbers in `cases`. Returns an empty text if there is no
/// point to draw.
pub(crate) fn figure(axes: &Axes<'_>, cases: &[(u64, &Case)]) -> Result<String, ChartError> {
    let (scale, unit) = match axes.quantity {
        Quantity::BytesPerSecond => (8e-9, "Gb/s"),
        quantity => (1.0, quantity.unit()),
    };
    let series = |colour: usize, name: fn(&Case) -> &'static str, of: fn(&Figure) -> Summary| {
        let point = |&(at, case): &(u64, &Case)| {
            let value = of(case.figure(axes.quantity)?);
            let (median, min, max) = (value.median * scale, value.min * scale, value.max * scale);
            let note = format!(
                "{}, {}: {} {unit} ({} to {})",
                case.name,
                name(case),
                digits(median),
                digits(min),
                digits(max)
            );
            Some(Point { message_bytes: at, median, min, max, note })
        };
        Series { colour, points: cases.iter().filter_map(point).collect() }
    };
    let series = [
        series(0, |_| Way::Tcp.name(), |figure| figure.tcp),
        series(1, |case| case.other.name(), |figure| figure.other),
    ];
    let drawn = chart::draw_over(axes.title, axes.x, unit, &series)?;
    let caption = escaped(axes.title);
    Ok(drawn.map_or_else(String::new, |svg| {
        format!("<figure><figcaption>{caption}</figcaption>{svg}</figure>\n")
    }))
}

/// Placeholders for missing figures.
const DASHES: [&str; 3] = ["–", "–", "–"];

#[cfg(test)]
pub(crate) mod tests {
    use bench::unmodified::figures::Sample;

    use super::*;

    /// Returns a case of one repetition. Over the edge it has twice the rate and half the latency.
    pub(crate) fn case(group: &str, name: &str, at: f64) -> Case {
        let sample = |factor: f64, moved| Sample {
            values: [
                (Quantity::PerSecond, 1500.0 * factor),
                (Quantity::BytesPerSecond, 3e9 * factor),
                (Quantity::LatencyP99Us, 90.0 / factor),
                (Quantity::ConnectUs, 30.0),
                (Quantity::AnswerUs, 60.0 / factor),
                (Quantity::LatencyP50Us, 80.0 / factor),
                (Quantity::ServerCpuUs, 5.0),
            ]
            .into(),
            errors: 0,
            client_path: PathTaken { processes: 1, moved, ..PathTaken::default() },
        };
        let case = Case::new(group, name.to_string(), at, Way::Edge);
        case.measure(1, &mut Silent, |way| {
            Ok(if way == Way::Tcp { sample(1.0, 0) } else { sample(2.0, 8) })
        })
    }

    struct Silent;

    impl bench::run::Observer for Silent {
        fn on_note(&mut self, _: &str) {}
        fn on_start(&mut self, _: u64) {}
        fn on_sample(&mut self, _: &str) {}
    }

    #[test]
    fn a_case_is_shown_with_its_ratio_and_its_route() {
        let case = case("single file", "file-1024", 1024.0);
        assert_eq!(cells(&case, Quantity::PerSecond), ["1.50 k", "3.00 k", "2.00 ±0%"]);
        assert_eq!(cells(&case, Quantity::ClientCpuUs), DASHES);
        assert_eq!(way(&case), "8 moved");
    }

    #[test]
    fn a_route_that_was_not_taken_is_shown() {
        let mut case = case("single file", "file-1024", 1024.0);
        case.is_proven = false;
        case.client_path.left.insert("no offer".to_string(), 3);
        assert_eq!(way(&case), "NOT SHOWN; 8 moved, 3 left (no offer)");
        case.cannot_run = Some("no wrk".to_string());
        assert_eq!(way(&case), "cannot run: no wrk");
    }
}
