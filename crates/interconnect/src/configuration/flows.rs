//! Reads flows of `[workload]`, from a list in the configuration or from a file of lines.

use std::fmt::Write as _;

use toml::{Table, Value};

use super::super::workload::Flow;
use super::reader::{Reader, meant, number, range, written};
use super::units::Unit;
use super::{
    Configuration, ConfigurationError, MESSAGE_MAX_BYTES, TIME_MAX_PS, WorkloadConfiguration,
};

/// Reads `flows`, or the contents of `flows_file`, which [`file_value`] has inserted.
pub(super) fn read_flows(
    keys: &mut Reader,
    hosts: u32,
) -> Result<WorkloadConfiguration, ConfigurationError> {
    let values = "a list of [SOURCE, DESTINATION, BYTES, START]";
    let list = keys.take("flows", "[]".to_owned(), values.to_owned());
    let file = keys.take("flows_file", String::new(), "the name of a file".to_owned());
    let flows = match (&list, &file) {
        (Some(_), Some(Value::Table(file))) => {
            let path = file.get(PATH).and_then(Value::as_str).unwrap_or_default();
            let expected = "absent if flows is given; remove one of the two keys";
            return Err(keys.wrong_word("flows_file", path, expected));
        }
        (Some(value), _) => {
            let wrong = |flow: &Value, what: &str| {
                keys.wrong_text("flows", written(flow), format!("{values}; {what}"))
            };
            let list =
                value.as_array().ok_or_else(|| wrong(value, "[[0, 1, 1500, 0]] would do"))?;
            let flow = |flow: &Value| {
                let columns = flow.as_array().map(Vec::as_slice).unwrap_or_default();
                read_flow(columns, hosts).map_err(|what| wrong(flow, &what))
            };
            list.iter().map(flow).collect::<Result<Vec<Flow>, _>>()?
        }
        (None, Some(Value::Table(file))) => {
            let text = |key| file.get(key).and_then(Value::as_str).unwrap_or_default();
            parse(text(PATH), text(TEXT), hosts)?
        }
        _ => Vec::new(),
    };
    let mut effective = String::from("[");
    for (at, Flow { source, destination, bytes, start_ps }) in flows.iter().enumerate() {
        let comma = if at == 0 { "" } else { ", " };
        // Writing to a `String` cannot fail.
        let _ = write!(effective, "{comma}[{source}, {destination}, {bytes}, {start_ps}]");
    }
    keys.note("flows", effective + "]");
    Ok(WorkloadConfiguration::Flows(flows.into()))
}

impl Configuration {
    /// Checks that a workload of flows is not empty.
    pub(super) fn check_flows(&self) -> Result<(), ConfigurationError> {
        let is_empty = |workload: &WorkloadConfiguration| match workload {
            WorkloadConfiguration::Flows(flows) => flows.is_empty(),
            _ => false,
        };
        let is_wrong = match &self.workload {
            WorkloadConfiguration::Several(members) => {
                members.iter().any(|member| is_empty(&member.workload))
            }
            workload => is_empty(workload),
        };
        if !is_wrong {
            return Ok(());
        }
        let expected = "a list of at least one flow; [[0, 1, 1500, 0]] or flows_file = \"web.flows\" \
                        would do";
        Err(self.written.value("workload", "flows", "[]".to_owned(), expected.to_owned()))
    }
}

/// Returns the value that replaces `flows_file`: the path and the text of the file.
pub(super) fn file_value(path: &str, text: String) -> Value {
    let path = (PATH.to_owned(), Value::String(path.to_owned()));
    Value::Table(Table::from_iter([path, (TEXT.to_owned(), Value::String(text))]))
}

/// Parses a file of flows. Each line has a source, a destination, a length and a start; `#` starts
/// a comment.
fn parse(file: &str, text: &str, hosts: u32) -> Result<Vec<Flow>, ConfigurationError> {
    let mut flows = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let content = line.split('#').next().unwrap_or_default().trim();
        if content.is_empty() {
            continue;
        }
        let columns: Vec<Value> = columns(content).map(value).collect();
        let flow = read_flow(&columns, hosts).map_err(|what| ConfigurationError::Flow {
            file: file.to_owned(),
            line: index + 1,
            what: format!("`{content}` is not a flow: {what}"),
        })?;
        flows.push(flow);
    }
    if flows.is_empty() {
        let what = "the file contains no flow".to_owned();
        return Err(ConfigurationError::Flow { file: file.to_owned(), line: 1, what });
    }
    Ok(flows)
}

/// Parses a flow. The error describes what is wrong in the line.
fn read_flow(columns: &[Value], hosts: u32) -> Result<Flow, String> {
    let [source, destination, bytes, start] = columns else {
        return Err(format!("it has {} columns, but must have 4", columns.len()));
    };
    let host = |name, value| {
        let last = u64::from(hosts) - 1;
        read_column(name, Unit::Count, value, (0, last)).map(|host| host as u32)
    };
    let flow = Flow {
        source: host("source", source)?,
        destination: host("destination", destination)?,
        bytes: read_column("bytes", Unit::Size, bytes, (1, MESSAGE_MAX_BYTES))? as u32,
        start_ps: read_column("start", Unit::Time, start, (0, TIME_MAX_PS))?,
    };
    if flow.source == flow.destination {
        return Err(format!(
            "source and destination are both {}, but must be two hosts",
            flow.source
        ));
    }
    Ok(flow)
}

fn read_column(
    name: &str,
    unit: Unit,
    value: &Value,
    (least, most): (u64, u64),
) -> Result<u64, String> {
    let found = number(unit, value).filter(|number| (least..=most).contains(number));
    found.ok_or_else(|| {
        let near = meant(unit, value).unwrap_or(least);
        let near = unit.quoted(near.clamp(least, unit.below(most).max(least)));
        let (value, range) = (written(value), range(unit, least, most));
        format!("{name} is {value}, but must be {range}; {near} would do")
    })
}

/// Splits a line into columns. A number and its unit are one column, and so is a text in quotes.
fn columns(line: &str) -> impl Iterator<Item = &str> {
    let mut rest = line;
    std::iter::from_fn(move || {
        rest = rest.trim_start();
        if let Some((text, after)) = rest.strip_prefix('"').and_then(|text| text.split_once('"')) {
            rest = after;
            return Some(text);
        }
        let word = |text: &str| text.find(char::is_whitespace).unwrap_or(text.len());
        let mut end = word(rest);
        let after = rest[end..].trim_start();
        if rest[..end].ends_with(|letter: char| letter.is_ascii_digit())
            && after.starts_with(char::is_alphabetic)
        {
            end = rest.len() - after.len() + word(after);
        }
        let (column, after) = rest.split_at(end);
        rest = after;
        (!column.is_empty()).then_some(column)
    })
}

/// Returns the configuration value that a column denotes.
fn value(column: &str) -> Value {
    match column.replace('_', "").parse() {
        Ok(number) => Value::Integer(number),
        Err(_) => Value::String(column.to_owned()),
    }
}

const PATH: &str = "path";
const TEXT: &str = "text";

#[cfg(test)]
mod tests {
    use super::super::super::simulation::InTurns;
    use super::super::{Watch, parse_sweep};
    use super::*;

    const FILE: &str = "# source destination bytes start\n\n0 1 1500 0\n2 3 1 MiB 10 us # large\n\
                        \t4 5 \"2 kB\" \"0.5 us\"\n15 0 1_000B 250000\n";

    fn read(path: &str) -> Result<String, String> {
        match path {
            "a.flows" => Ok(FILE.to_owned()),
            "b.flows" => Ok("0 1 64 0\n".to_owned()),
            "empty.flows" => Ok("# nothing\n".to_owned()),
            _ => Err("no such file".to_owned()),
        }
    }

    fn flows(text: &str) -> Vec<(u32, u32, u32, u64)> {
        let configuration = Configuration::parse_with_files("a.toml", text, &read);
        match configuration.expect("it is valid").workload {
            WorkloadConfiguration::Flows(flows) => flows
                .iter()
                .map(|flow| (flow.source, flow.destination, flow.bytes, flow.start_ps))
                .collect(),
            other => panic!("{other:?}"),
        }
    }

    fn refused(text: &str) -> String {
        let read = Configuration::parse_with_files("a.toml", text, &read);
        read.expect_err(text).to_string()
    }

    #[test]
    fn flows_in_a_file_and_in_a_list_are_parsed_with_units() {
        let expected = [
            (0, 1, 1_500, 0),
            (2, 3, 1 << 20, 10_000_000),
            (4, 5, 2_000, 500_000),
            (15, 0, 1_000, 250_000),
        ];
        assert_eq!(flows("[workload]\nkind = \"flows\"\nflows_file = \"a.flows\"\n"), expected);
        // If `flows_file` is given, `kind` can be omitted.
        assert_eq!(flows("[workload]\nflows_file = \"a.flows\"\n"), expected);
        let list = "[workload]\nkind = \"flows\"\nflows = [[0, 1, 1500, 0], [2, 3, \"1 MiB\", \"10 us\"], \
                    [4, 5, \"2 kB\", \"0.5 us\"], [15, 0, 1000, 250000]]\n";
        assert_eq!(flows(list), expected);
    }

    #[test]
    fn the_written_configuration_needs_no_flow_file() {
        let text = "[workload]\nflows_file = \"a.flows\"\n";
        let configuration = Configuration::parse_with_files("a.toml", text, &read).expect("valid");
        let again = Configuration::parse("b.toml", &configuration.effective).expect("it is whole");
        assert_eq!(again.effective, configuration.effective);
        let outcome = configuration.run().expect("it ends");
        assert_eq!(again.run().expect("it ends").hash, outcome.hash);
        assert_eq!((outcome.delivered, outcome.delivered_bytes), (4, 1_500 + (1 << 20) + 3_000));
    }

    #[test]
    fn a_sweep_may_name_several_files() {
        let text = "[workload]\nkind = \"flows\"\n[sweep.workload]\nflows_file = [\"a.flows\", \
                    \"b.flows\"]\n";
        let points = parse_sweep("a.toml", text, &read).expect("it is valid");
        let names: Vec<&str> = points.iter().map(|point| point.name.as_str()).collect();
        assert_eq!(names, ["workload.flows_file=\"a.flows\"", "workload.flows_file=\"b.flows\""]);
        let messages: Vec<u64> = points
            .iter()
            .map(|point| point.configuration.run().expect("it ends").delivered)
            .collect();
        assert_eq!(messages, [4, 1]);
    }

    #[test]
    fn mistakes_in_a_file_are_reported_with_its_line() {
        for (line, what) in [
            ("0 1 1500", "it has 3 columns, but must have 4"),
            ("0 1 1500 0 3", "it has 5 columns, but must have 4"),
            (
                "0 16 1500 0",
                "destination is 16, but must be a whole number from 0 to 15; 15 would do",
            ),
            (
                "h0 1 1500 0",
                "source is \"h0\", but must be a whole number from 0 to 15; 0 would do",
            ),
            ("-1 1 1500 0", "source is -1, but must be a whole number from 0 to 15; 0 would do"),
            ("3 3 1500 0", "source and destination are both 3, but must be two hosts"),
            ("0 1 0 0", "bytes is 0, but must be from 1 B to 1 GiB; \"1 B\" would do"),
            (
                "0 1 1 mib 0",
                "bytes is \"1 mib\", but must be from 1 B to 1 GiB; \"1 MiB\" would do",
            ),
            (
                "0 1 2 TiB 0",
                "bytes is \"2 TiB\", but must be from 1 B to 1 GiB; \"1 GiB\" would do",
            ),
            ("0 1 1500 1.5", "start is \"1.5\", but must be from 0 to 1125 s; \"2 ps\" would do"),
            ("0 1 1500 2 Us", "start is \"2 Us\", but must be from 0 to 1125 s; \"2 us\" would do"),
        ] {
            let error = parse("x.flows", &format!("# flows\n\n{line} # here\n"), 16);
            let expected = format!(
                "x.flows:3: `{line}` is not a flow: {what}; a line is `SOURCE DESTINATION BYTES \
                 START`, as `0 1 1MiB 10us`"
            );
            assert_eq!(error.expect_err(line).to_string(), expected);
        }
        let empty = refused("[workload]\nflows_file = \"empty.flows\"\n");
        assert!(
            empty.starts_with("empty.flows:1: the file contains no flow; a line is"),
            "{empty}"
        );
    }

    #[test]
    fn mistakes_in_a_configuration_are_reported_with_its_line() {
        for (keys, expected) in [
            (
                "flows = [[0, 1, 64, 0],\n  [0, 16, 64, 0]]",
                "a.toml:3: flows in [workload] is [0, 16, 64, 0], but must be a list of [SOURCE, DESTINATION, BYTES, START]; destination is 16, but must be a whole number from 0 to 15; 15 would do",
            ),
            (
                "flows = [0, 1, 64, 0]",
                "a.toml:3: flows in [workload] is 0, but must be a list of [SOURCE, DESTINATION, BYTES, START]; it has 0 columns, but must have 4",
            ),
            (
                "flows = 3",
                "a.toml:3: flows in [workload] is 3, but must be a list of [SOURCE, DESTINATION, BYTES, START]; [[0, 1, 1500, 0]] would do",
            ),
            (
                "flows = []",
                "a.toml:3: flows in [workload] is [], but must be a list of at least one flow; [[0, 1, 1500, 0]] or flows_file = \"web.flows\" would do",
            ),
            (
                "",
                "a.toml: flows in [workload] is [], but must be a list of at least one flow; [[0, 1, 1500, 0]] or flows_file = \"web.flows\" would do",
            ),
            (
                "flows = [[0, 1, 64, 0]]\nflows_file = \"a.flows\"",
                "a.toml:4: flows_file in [workload] is \"a.flows\", but must be absent if flows is given; remove one of the two keys",
            ),
            (
                "flows_file = 3",
                "a.toml:3: flows_file in [workload] is 3, but must be the name of a file; \"web.flows\" would do",
            ),
            ("flows_file = \"x\"", "a.toml: read x: no such file"),
            (
                "bytes = 3",
                "a.toml:3: unknown key `bytes` in [workload]; it needs [workload] kind is not \"flows\" or \"barrier\", or [workload] kind = \"barrier\"",
            ),
        ] {
            assert_eq!(refused(&format!("[workload]\nkind = \"flows\"\n{keys}\n")), expected);
        }
        let other = refused("[workload]\nkind = \"ring\"\nflows_file = \"a.flows\"\n");
        assert!(other.contains("it needs [workload] kind = \"flows\""), "{other}");
    }

    /// On every fabric that can be divided, a run in two parts gives each flow the same time as an
    /// undivided run.
    #[test]
    fn flows_run_on_every_fabric_and_in_parts() {
        for fabric in ["ethernet", "wormhole", "flit", "fluid", "loggp"] {
            let text = format!(
                "[topology]\nkind = \"leaf_spine\"\nleaves = 4\nhosts = 4\n[fabric]\nkind = \
                 \"{fabric}\"\n[workload]\nflows_file = \"a.flows\"\n"
            );
            let configuration =
                Configuration::parse_with_files("a.toml", &text, &read).expect("it is valid");
            let outcome = configuration.run().expect("it ends");
            assert_eq!(outcome.delivered, 4, "{fabric}");
            assert!(outcome.completed_ps > 10_000_000, "{fabric}");
            if fabric == "ethernet" {
                let parts = Configuration { threads: 3, ..configuration };
                let divided = parts.run_watched(&InTurns, Watch::default());
                assert_eq!(divided.expect("it ends").hash, outcome.hash);
            }
        }
        let engines = "[host]\nkind = \"edge\"\n[workload]\nflows_file = \"a.flows\"\n";
        let configuration = Configuration::parse_with_files("a.toml", engines, &read);
        assert_eq!(configuration.expect("valid").run().expect("it ends").delivered, 4);
    }
}
