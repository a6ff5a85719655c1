//! Records as tables in files: CSV or JSON, by the extension of their names.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use fabric::interconnect::cost::LinkRates;
use fabric::interconnect::records::{LinkRecord, MessageRecord, NEVER_PS, Records};
use fabric::interconnect::topology::{LinkKind, Topology};

use super::writing;
use crate::Failure;

/// A table by columns, all of the same length.
pub(super) struct Table {
    columns: Vec<(&'static str, Column)>,
}

/// The values of a column.
pub(super) enum Column {
    /// Whole numbers; nothing for what is not known.
    Number(Vec<Option<u64>>),
    /// Numbers with a fraction.
    Fraction(Vec<f64>),
    /// Names.
    Text(Vec<String>),
}

/// Each message. Times are picoseconds since the start.
pub(super) fn messages(records: &Records) -> Table {
    let number = |value: fn(&MessageRecord) -> u64| {
        let values = records.messages.iter().map(|message| {
            let value = value(message);
            (value != NEVER_PS).then_some(value)
        });
        Column::Number(values.collect())
    };
    let waits = records.messages.iter().map(|message| records.link_wait_ps(message));
    let latencies = records.messages.iter().map(|message| {
        (message.delivered_ps != NEVER_PS).then(|| message.delivered_ps - message.posted_ps)
    });
    Table {
        columns: vec![
            ("source", number(|message| message.source.into())),
            ("destination", number(|message| message.destination.into())),
            ("bytes", number(|message| message.bytes.into())),
            ("tag", number(|message| message.tag.into())),
            ("posted_ps", number(|message| message.posted_ps)),
            ("handed_ps", number(|message| message.handed_ps)),
            ("started_ps", number(|message| message.started_ps)),
            ("delivered_ps", number(|message| message.delivered_ps)),
            ("received_ps", number(|message| message.received_ps)),
            ("latency_ps", Column::Number(latencies.collect())),
            ("link_wait_ps", Column::Number(waits.collect())),
        ],
    }
}

/// Each link of the topology.
pub(super) fn links(records: &Records, topology: &Topology, rates: Option<LinkRates>) -> Table {
    let number = |value: fn(&LinkRecord) -> u64| {
        Column::Number(records.links.iter().map(|link| Some(value(link))).collect())
    };
    let busy = records.links.iter().map(|link| records.busy_share(link));
    let rate = topology.links().iter().map(|link| {
        let rates = rates?;
        Some(if link.kind == LinkKind::Host { rates.host_bps } else { rates.trunk_bps })
    });
    let node = |node: u32| topology.node_name(node);
    Table {
        columns: vec![
            ("link", names(topology)),
            ("from", Column::Text(topology.links().iter().map(|link| node(link.from)).collect())),
            ("to", Column::Text(topology.links().iter().map(|link| node(link.to)).collect())),
            ("rate_bps", Column::Number(rate.collect())),
            ("packets", number(|link| link.packets)),
            ("bytes", number(|link| link.bytes)),
            ("busy_ps", number(|link| link.busy_ps)),
            ("busy_share", Column::Fraction(busy.collect())),
            (
                "wait_mean_ps",
                Column::Fraction(records.links.iter().map(LinkRecord::wait_mean_ps).collect()),
            ),
            ("wait_max_ps", number(|link| link.wait_max_ps)),
            ("wait_max_at_ps", number(|link| link.wait_max_at_ps)),
        ],
    }
}

/// The queue before each link in windows of time, as the longest wait of a packet that came to it.
pub(super) fn queues(records: &Records, topology: &Topology) -> Table {
    let mut link = Vec::new();
    let (mut start, mut wait, mut busy) = (Vec::new(), Vec::new(), Vec::new());
    for (number, record) in (0..).zip(&records.links) {
        for (window, index) in record.windows.iter().zip(0_u64..) {
            link.push(topology.link_name(number));
            start.push(Some(index * records.window_ps));
            wait.push(Some(window.wait_max_ps));
            busy.push(window.busy_ps as f64 / records.window_ps as f64);
        }
    }
    Table {
        columns: vec![
            ("link", Column::Text(link)),
            ("from_ps", Column::Number(start)),
            ("wait_max_ps", Column::Number(wait)),
            ("busy_share", Column::Fraction(busy)),
        ],
    }
}

fn names(topology: &Topology) -> Column {
    Column::Text((0..topology.links().len() as u32).map(|link| topology.link_name(link)).collect())
}

/// Writes a table in the form that the extension says.
pub(super) fn write(path: &Path, table: &Table) -> Result<(), Failure> {
    match Form::of(path) {
        Some(Form::Json) => writing(path, |file| table.write_json(file)),
        _ => writing(path, |file| table.write_csv(file)),
    }
}

/// A path whose extension is that of a form.
pub(super) fn parse_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match Form::of(&path) {
        Some(_) => Ok(path),
        None => Err("the name must end in .csv or .json, which says what is written".to_owned()),
    }
}

enum Form {
    Csv,
    Json,
}

impl Form {
    fn of(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "csv" => Some(Self::Csv),
            "json" => Some(Self::Json),
            _ => None,
        }
    }
}

impl Table {
    fn rows(&self) -> usize {
        self.columns.first().map_or(0, |(_, column)| column.len())
    }

    /// Names of nodes and links need no quotes.
    fn write_csv(&self, file: &mut dyn Write) -> io::Result<()> {
        let names: Vec<&str> = self.columns.iter().map(|(name, _)| *name).collect();
        writeln!(file, "{}", names.join(","))?;
        for row in 0..self.rows() {
            for (index, (_, column)) in self.columns.iter().enumerate() {
                if index > 0 {
                    file.write_all(b",")?;
                }
                column.write(file, row, ("", ""))?;
            }
            file.write_all(b"\n")?;
        }
        Ok(())
    }

    /// A list of objects.
    fn write_json(&self, file: &mut dyn Write) -> io::Result<()> {
        file.write_all(b"[")?;
        for row in 0..self.rows() {
            file.write_all(if row > 0 { b",\n{" } else { b"\n{" })?;
            for (index, (name, column)) in self.columns.iter().enumerate() {
                write!(file, "{}\"{name}\": ", if index > 0 { ", " } else { "" })?;
                column.write(file, row, ("null", "\""))?;
            }
            file.write_all(b"}")?;
        }
        file.write_all(b"\n]\n")
    }
}

impl Column {
    fn len(&self) -> usize {
        match self {
            Self::Number(values) => values.len(),
            Self::Fraction(values) => values.len(),
            Self::Text(values) => values.len(),
        }
    }

    /// A value, or `nothing`; texts between `quotes`.
    fn write(
        &self,
        file: &mut dyn Write,
        row: usize,
        (nothing, quotes): (&str, &str),
    ) -> io::Result<()> {
        match self {
            Self::Number(values) => match values.get(row).copied().flatten() {
                Some(value) => write!(file, "{value}"),
                None => file.write_all(nothing.as_bytes()),
            },
            Self::Fraction(values) => {
                write!(file, "{:.6}", values.get(row).copied().unwrap_or_default())
            }
            Self::Text(values) => {
                write!(file, "{quotes}{}{quotes}", values.get(row).map_or("", String::as_str))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table {
            columns: vec![
                ("link", Column::Text(vec!["h0->s0".into(), "s0->h0#1".into()])),
                ("wait_ps", Column::Number(vec![Some(3), None])),
                ("share", Column::Fraction(vec![0.25, 1.0])),
            ],
        }
    }

    #[test]
    fn unknown_values_are_empty_or_null() {
        let (mut csv, mut json) = (Vec::new(), Vec::new());
        table().write_csv(&mut csv).unwrap();
        table().write_json(&mut json).unwrap();
        let csv = String::from_utf8(csv).unwrap();
        assert_eq!(csv, "link,wait_ps,share\nh0->s0,3,0.250000\ns0->h0#1,,1.000000\n");
        let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(json[0]["wait_ps"], 3);
        assert_eq!(json[1]["wait_ps"], serde_json::Value::Null);
        assert_eq!(json[1]["link"], "s0->h0#1");
    }

    #[test]
    fn the_extension_says_the_form() {
        assert!(parse_path("a.csv").is_ok() && parse_path("b/c.json").is_ok());
        assert!(parse_path("a.txt").unwrap_err().contains(".csv"));
    }
}
