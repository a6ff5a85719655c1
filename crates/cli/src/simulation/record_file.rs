//! Writes records as tables in CSV, JSON or Arrow files, depending on the extension.
//!
//! To save memory, no column is ever stored completely. Each column is a function from a row to its
//! value, and files are written row by row or in batches of rows.

mod arrow;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::rc::Rc;

use interconnect::configuration::Slowdowns;
use interconnect::cost::LinkRates;
use interconnect::records::{LinkRecord, MessageRecord, NEVER_PS, Records, Window};
use interconnect::topology::Topology;

use crate::Failure;
use crate::output::writing;

/// A table of columns with equal length.
pub(super) struct Table<'a> {
    rows: usize,
    columns: Vec<Column<'a>>,
}

struct Column<'a> {
    name: &'static str,
    /// The unit of the numbers; empty for names and for numbers without a unit.
    unit: &'static str,
    values: Values<'a>,
}

/// The values of a column by row.
enum Values<'a> {
    /// Integers below 2⁶³; `None` for unknown values.
    Number(Box<dyn Fn(usize) -> Option<u64> + 'a>),
    /// Numbers with a fraction.
    Fraction(Box<dyn Fn(usize) -> f64 + 'a>),
    /// Numbers with a fraction; `None` for unknown values.
    Ratio(Box<dyn Fn(usize) -> Option<f64> + 'a>),
    /// Names.
    Text(Box<dyn Fn(usize) -> String + 'a>),
}

impl<'a> Column<'a> {
    fn number(
        name: &'static str,
        unit: &'static str,
        value: impl Fn(usize) -> Option<u64> + 'a,
    ) -> Self {
        Self { name, unit, values: Values::Number(Box::new(value)) }
    }

    fn fraction(name: &'static str, unit: &'static str, value: impl Fn(usize) -> f64 + 'a) -> Self {
        Self { name, unit, values: Values::Fraction(Box::new(value)) }
    }

    fn ratio(name: &'static str, value: impl Fn(usize) -> Option<f64> + 'a) -> Self {
        Self { name, unit: "", values: Values::Ratio(Box::new(value)) }
    }

    fn text(name: &'static str, value: impl Fn(usize) -> String + 'a) -> Self {
        Self { name, unit: "", values: Values::Text(Box::new(value)) }
    }
}

/// Returns a table with one row per message. Times are in picoseconds since the start.
pub(super) fn messages<'a>(records: &'a Records, slowdowns: Option<&'a Slowdowns>) -> Table<'a> {
    let messages = &records.messages;
    let number = |name, unit, value: fn(&MessageRecord) -> u64| {
        Column::number(name, unit, move |row| {
            let value = value(&messages[row]);
            (value != NEVER_PS).then_some(value)
        })
    };
    Table {
        rows: messages.len(),
        columns: vec![
            number("source", HOST, |message| message.source.into()),
            number("destination", HOST, |message| message.destination.into()),
            number("bytes", BYTES, |message| message.bytes.into()),
            number("tag", "", |message| message.tag.into()),
            number("workload", "", |message| message.workload.into()),
            number("posted_ps", PS, |message| message.posted_ps),
            number("handed_ps", PS, |message| message.handed_ps),
            number("started_ps", PS, |message| message.started_ps),
            number("delivered_ps", PS, |message| message.delivered_ps),
            number("received_ps", PS, |message| message.received_ps),
            Column::number("latency_ps", PS, |row| {
                let MessageRecord { delivered_ps, posted_ps, .. } = messages[row];
                (delivered_ps != NEVER_PS).then(|| delivered_ps - posted_ps)
            }),
            Column::number("link_wait_ps", PS, |row| records.link_wait_ps(&messages[row])),
            Column::number("alone_ps", PS, move |row| slowdowns?.alone_ps(row)),
            Column::ratio("slowdown", move |row| slowdowns?.slowdown(row, &messages[row])),
        ],
    }
}

/// Returns a table with each link of the topology. With several rails (parallel networks), returns
/// the links of each rail.
pub(super) fn links<'a>(
    records: &'a Records,
    topology: &'a Topology,
    rates: Option<LinkRates>,
) -> Table<'a> {
    let links = &records.links;
    let end = |row: usize| topology.link(row as u32);
    let number = |name, unit, value: fn(&LinkRecord) -> u64| {
        Column::number(name, unit, move |row| Some(value(&links[row])))
    };
    Table {
        rows: links.len(),
        columns: vec![
            Column::text("link", |row| topology.link_name(row as u32)),
            Column::text("from", move |row| {
                end(row).map_or(String::new(), |end| topology.node_name(end.from))
            }),
            Column::text("to", move |row| {
                end(row).map_or(String::new(), |end| topology.node_name(end.to))
            }),
            Column::number("rate_bps", "bit/s", move |row| Some(rates?.of(topology, row as u32))),
            number("packets", "packets", |link| link.packets),
            number("bytes", BYTES, |link| link.bytes),
            number("busy_ps", PS, |link| link.busy_ps),
            Column::fraction("busy_share", "", |row| records.busy_share(&links[row])),
            Column::fraction("wait_mean_ps", PS, |row| links[row].wait_mean_ps()),
            number("wait_max_ps", PS, |link| link.wait_max_ps),
            number("wait_max_at_ps", PS, |link| link.wait_max_at_ps),
        ],
    }
}

/// Returns a table with the queue of each link in windows of time. The table measures a queue by
/// the longest wait of a packet that arrived in the window.
pub(super) fn queues<'a>(records: &'a Records, topology: &'a Topology) -> Table<'a> {
    let windows = Rc::new(Windows::new(records));
    let with = || Rc::clone(&windows);
    let (of_link, of_start, of_wait, of_busy) = (with(), with(), with(), with());
    let width_ps = records.window_ps;
    Table {
        rows: windows.rows,
        columns: vec![
            Column::text("link", move |row| topology.link_name(of_link.place(row).0 as u32)),
            Column::number("from_ps", PS, move |row| Some(of_start.place(row).1 as u64 * width_ps)),
            Column::number("wait_max_ps", PS, move |row| Some(of_wait.at(row).wait_max_ps)),
            Column::fraction("busy_share", "", move |row| {
                of_busy.at(row).busy_ps as f64 / width_ps as f64
            }),
        ],
    }
}

/// The windows of all links, one link after another.
struct Windows<'a> {
    links: &'a [LinkRecord],
    /// For each link, the row of its first window.
    firsts: Vec<usize>,
    rows: usize,
}

impl<'a> Windows<'a> {
    fn new(records: &'a Records) -> Self {
        let mut rows = 0;
        let first = |link: &LinkRecord| {
            let first = rows;
            rows += link.windows.len();
            first
        };
        let firsts = records.links.iter().map(first).collect();
        Self { links: &records.links, firsts, rows }
    }

    /// Returns the link of a row, and the index of the row's window.
    fn place(&self, row: usize) -> (usize, usize) {
        let link = self.firsts.partition_point(|&first| first <= row) - 1;
        (link, row - self.firsts[link])
    }

    fn at(&self, row: usize) -> Window {
        let (link, index) = self.place(row);
        self.links[link].windows[index]
    }
}

/// Writes a table in the format of the extension.
pub(super) fn write(path: &Path, table: &Table) -> Result<(), Failure> {
    match Form::of(path) {
        Some(Form::Json) => writing(path, |file| table.write_json(file)),
        Some(Form::Arrow) => writing(path, |file| arrow::write(table, file, arrow::BATCH_ROWS)),
        _ => writing(path, |file| table.write_csv(file)),
    }
}

/// Parses a path whose extension names a format.
pub(super) fn parse_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match Form::of(&path) {
        Some(_) => Ok(path),
        None => {
            Err("unknown format: the name of the file must end in .csv, .json or .arrow".to_owned())
        }
    }
}

enum Form {
    Csv,
    Json,
    Arrow,
}

impl Form {
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "csv" => Some(Self::Csv),
            "json" => Some(Self::Json),
            "arrow" => Some(Self::Arrow),
            _ => None,
        }
    }
}

impl Table<'_> {
    /// Writes CSV. Names of nodes and links need no quotes.
    fn write_csv(&self, file: &mut dyn Write) -> io::Result<()> {
        let names: Vec<&str> = self.columns.iter().map(|column| column.name).collect();
        writeln!(file, "{}", names.join(","))?;
        for row in 0..self.rows {
            for (index, column) in self.columns.iter().enumerate() {
                if index > 0 {
                    file.write_all(b",")?;
                }
                column.values.write(file, row, ("", ""))?;
            }
            file.write_all(b"\n")?;
        }
        Ok(())
    }

    /// Writes a list of objects.
    fn write_json(&self, file: &mut dyn Write) -> io::Result<()> {
        file.write_all(b"[")?;
        for row in 0..self.rows {
            file.write_all(if row > 0 { b",\n{" } else { b"\n{" })?;
            for (index, Column { name, values, .. }) in self.columns.iter().enumerate() {
                write!(file, "{}\"{name}\": ", if index > 0 { ", " } else { "" })?;
                values.write(file, row, ("null", "\""))?;
            }
            file.write_all(b"}")?;
        }
        file.write_all(b"\n]\n")
    }
}

impl Values<'_> {
    /// Writes a value, or `nothing` for an unknown value. Texts are enclosed in `quotes`.
    fn write(
        &self,
        file: &mut dyn Write,
        row: usize,
        (nothing, quotes): (&str, &str),
    ) -> io::Result<()> {
        match self {
            Self::Number(value) => match value(row) {
                Some(value) => write!(file, "{value}"),
                None => file.write_all(nothing.as_bytes()),
            },
            // Prints the shortest number that parses to the same value.
            Self::Fraction(value) => write!(file, "{:?}", value(row)),
            Self::Ratio(value) => match value(row) {
                Some(value) => write!(file, "{value:?}"),
                None => file.write_all(nothing.as_bytes()),
            },
            Self::Text(value) => write!(file, "{quotes}{}{quotes}", value(row)),
        }
    }
}

const PS: &str = "ps";
const BYTES: &str = "bytes";
const HOST: &str = "host";

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn table() -> Table<'static> {
        Table {
            rows: 2,
            columns: vec![
                Column::text("link", |row| ["h0->s0", "s0->h0#1"][row].to_owned()),
                Column::number("wait_ps", PS, |row| [Some(3), None][row]),
                Column::fraction("share", "", |row| [0.25, 1.0][row]),
                Column::ratio("slowdown", |row| [None, Some(1.5)][row]),
            ],
        }
    }

    #[test]
    fn unknown_values_are_written_as_empty_or_null() {
        let (mut csv, mut json) = (Vec::new(), Vec::new());
        table().write_csv(&mut csv).unwrap();
        table().write_json(&mut json).unwrap();
        let csv = String::from_utf8(csv).unwrap();
        assert_eq!(csv, "link,wait_ps,share,slowdown\nh0->s0,3,0.25,\ns0->h0#1,,1.0,1.5\n");
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json[0]["wait_ps"], 3);
        assert_eq!(json[1]["wait_ps"], serde_json::Value::Null);
        assert_eq!(json[1]["link"], "s0->h0#1");
        assert_eq!(json[0]["slowdown"], serde_json::Value::Null);
        assert_eq!(json[1]["slowdown"], 1.5);
    }

    #[test]
    fn the_file_extension_selects_the_format() {
        assert!(parse_path("a.csv").is_ok() && parse_path("b/c.json").is_ok());
        assert!(parse_path("c.arrow").is_ok());
        for wrong in ["a.txt", "arrow", "a.parquet"] {
            let error = parse_path(wrong).unwrap_err();
            let forms = [".csv", ".json", ".arrow"];
            assert!(forms.iter().all(|form| error.contains(form)), "{error}");
        }
    }
}
