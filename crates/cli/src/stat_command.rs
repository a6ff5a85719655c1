//! `ethernot stat`: reports the activity of devices in this host's processes, and the TCP
//! connections that moved.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::thread;
use std::time::Duration;

use clap::Args;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, TableStyle, Width};
use serde_json::{Value, json};
use sockets::Reason;
use sockets::counters::Report;
use sockets::statistics::SOCKET as SOCKETS_SOCKET;
use verbs_edge::statistics::{
    DeviceReport, FORMAT, QueuePairReport, SOCKET, StreamPeerKind, StreamReport,
};

use crate::Failure;
use crate::output::terminal_columns;
use crate::reports::{self, Unreported};

/// Report the activity of running programs over the edge: RDMA devices, and TCP connections that
/// moved.
///
/// Queries every process of this network namespace that runs under `ethernot run`. Processes of
/// other users answer only root. For a device, reports queue pairs, traffic and losses. For a
/// program with --sockets, reports how many TCP connections moved, how many stayed on TCP, and the
/// reasons. Does not disturb the programs.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot stat\n  \
    ethernot stat -w\n  \
    ethernot stat --json | jq '.devices[].queue_pairs[] | {number, state, peer}'\n  \
    ethernot stat --json | jq '.sockets[] | {program, pid, moved, left}'")]
pub(crate) struct Arguments {
    /// Refresh every second, until Ctrl-C
    #[arg(short, long)]
    watch: bool,
    /// Print JSON instead of tables; with --watch one line per second
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut before = Found::default();
    loop {
        let found = Found::ask()?;
        let text = match (arguments.json, arguments.watch) {
            (true, true) => format!("{}\n", found.to_json()),
            (true, false) => format!("{:#}\n", found.to_json()),
            (false, true) => {
                let home = if io::stdout().is_terminal() { CLEAR } else { "" };
                format!("{home}{}", found.to_text(Some(&before), terminal_columns(WIDTH)))
            }
            (false, false) => found.to_text(None, terminal_columns(WIDTH)),
        };
        if !reports::print_now(&text)? {
            return Ok(());
        }
        if !arguments.watch {
            return Ok(());
        }
        before = found;
        thread::sleep(INTERVAL);
    }
}

/// The reports of all processes.
#[derive(Debug, Default)]
struct Found {
    devices: Vec<DeviceReport>,
    /// Reports of programs whose TCP connections may move.
    sockets: Vec<Report>,
    unreported: Unreported,
}

impl Found {
    /// Queries all processes.
    fn ask() -> Result<Self, Failure> {
        let mut found = Self::default();
        found.unreported =
            reports::ask_all(&[SOCKET, SOCKETS_SOCKET], |name, report| found.add(name, report))?;
        found.devices.sort_by(|a, b| (a.process, &a.device).cmp(&(b.process, &b.device)));
        found.sockets.sort_by_key(|report| report.pid);
        Ok(found)
    }

    /// Adds the report of the process with this name. Returns false if this version cannot parse the
    /// report.
    fn add(&mut self, name: &str, value: Value) -> bool {
        if name.starts_with(SOCKETS_SOCKET) {
            let report = serde_json::from_value::<Report>(value).ok();
            let report = report.filter(|report| report.format == sockets::counters::FORMAT);
            report.map(|report| self.sockets.push(report)).is_some()
        } else {
            let report = serde_json::from_value::<DeviceReport>(value).ok();
            let report = report.filter(|report| report.format == FORMAT);
            report.map(|report| self.devices.push(report)).is_some()
        }
    }

    fn to_json(&self) -> Value {
        json!({
            "format": FORMAT,
            "devices": self.devices,
            "sockets": self.sockets,
            "silent": self.unreported.silent,
            "of_other_users": self.unreported.refused,
        })
    }

    /// Returns the tables. With an earlier report, they also contain amounts per second.
    fn to_text(&self, before: Option<&Self>, columns: u16) -> String {
        let mut text = String::new();
        for device in &self.devices {
            let is_same = |old: &&DeviceReport| {
                (old.process, &old.device) == (device.process, &device.device)
            };
            let before = before.map(|before| Before(before.devices.iter().find(is_same)));
            show(&mut text, device, before.as_ref(), columns);
        }
        for report in &self.sockets {
            let before = before.map(|before| {
                before.sockets.iter().find(|old| old.pid == report.pid).unwrap_or(report)
            });
            show_sockets(&mut text, report, before);
        }
        if self.devices.is_empty() && self.sockets.is_empty() {
            text.push_str(
                "no program has a device or moves connections; start a program with: ethernot run \
                 -- PROGRAM, or ethernot run --sockets -- PROGRAM\n",
            );
        }
        for silent in &self.unreported.silent {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{silent}");
        }
        if self.unreported.refused > 0 {
            let _ = writeln!(
                text,
                "{} of other users, which only root can see",
                self.unreported.refused
            );
        }
        text
    }
}

/// The earlier report of a device, if there was one.
struct Before<'a>(Option<&'a DeviceReport>);

/// Adds a line for the device, and one for each of its queue pairs.
fn show(text: &mut String, device: &DeviceReport, before: Option<&Before<'_>>, columns: u16) {
    let addresses: Vec<_> = device.addresses.iter().map(ToString::to_string).collect();
    // The kernel chooses the addresses of an iWARP device.
    let at =
        if addresses.is_empty() { String::new() } else { format!(" at {}", addresses.join(", ")) };
    let waiting: u32 = device.completion_queues.iter().map(|queue| queue.waiting).sum();
    let overrun = device.completion_queues.iter().filter(|queue| queue.is_overrun).count();
    let _ = write!(
        text,
        "{} ({}): {}{at}; {}, {} with {waiting} unfetched completions",
        device.program,
        device.process,
        device.device,
        counted(device.queue_pairs.len(), "queue pair"),
        counted(device.completion_queues.len(), "completion queue"),
    );
    if overrun > 0 {
        let _ = write!(text, ", {overrun} of them overrun");
    }
    text.push('\n');
    let counters: Vec<_> = device
        .counters
        .iter()
        .filter(|(_, value)| **value > 0)
        .map(|(name, value)| format!("{} {value}", name.replace('_', " ")))
        .collect();
    if !counters.is_empty() {
        let _ = writeln!(text, "  {}", counters.join(", "));
    }
    if device.queue_pairs.iter().any(|pair| pair.stream.is_some()) {
        let _ = writeln!(text, "{}", stream_table(device, before, columns));
    } else if !device.queue_pairs.is_empty() {
        let _ = writeln!(text, "{}", table(device, before, columns));
    }
    text.push('\n');
}

/// Adds a line for the program, and one for each reason why connections stayed on TCP.
fn show_sockets(text: &mut String, report: &Report, before: Option<&Report>) {
    let Report { program, pid, moved, open, resets, .. } = report;
    let since = |of: fn(&Report) -> u64| of(report).saturating_sub(before.map_or(0, of));
    let unit = if before.is_some() { "/s" } else { "" };
    let _ = write!(
        text,
        "{program} ({pid}): TCP connections: {moved} moved to the edge, {open} of them open; {}{unit} sent, {}{unit} received",
        bytes(since(|report| report.edge_bytes_sent)),
        bytes(since(|report| report.edge_bytes_received)),
    );
    if *resets > 0 {
        let _ = write!(text, "; {resets} reset");
    }
    let _ = writeln!(text, "; {} stayed on TCP", report.left_in_all());
    for (name, count) in &report.left {
        let known = Reason::ALL.iter().find(|reason| reason.name() == name);
        let sentence = known.map_or("a reason unknown to this version", |r| r.sentence());
        let _ = writeln!(text, "  {count} {name}: {sentence}");
    }
    text.push('\n');
}

fn table(device: &DeviceReport, before: Option<&Before<'_>>, columns: u16) -> Table {
    let is_watched = before.is_some();
    let mut header = vec!["QP", "type", "state", "peer"];
    header.extend(if is_watched { ["sent/s", "received/s"] } else { ["sent", "received"] });
    header.extend(["frames", "again", "RTT", "in flight", "credits"]);
    let known = known(before);
    let row = |pair: &QueuePairReport| {
        let [sent, received] = traffic(pair, before, &known);
        let peer = pair.peer.as_ref();
        let peer = peer.map_or_else(none, |peer| format!("{}:{:06x}", peer.address, peer.number));
        vec![
            format!("{:06x}", pair.number),
            pair.service.clone(),
            if is_alone(pair) { format!("{}, alone", pair.state) } else { pair.state.clone() },
            peer,
            sent,
            received,
            (pair.frames_sent + pair.frames_received).to_string(),
            pair.retransmissions.to_string(),
            pair.round_trip_ns.map_or_else(none, duration),
            pair.outstanding.to_string(),
            pair.credits.to_string(),
        ]
    };
    lined_up(header, 4, device.queue_pairs.iter().map(row), columns)
}

/// Returns the table of the queue pairs of an iWARP device.
fn stream_table(device: &DeviceReport, before: Option<&Before<'_>>, columns: u16) -> Table {
    let mut header = vec!["QP", "state", "TCP to", "kind", "agreed"];
    header.extend(if before.is_some() { ["sent/s", "received/s"] } else { ["sent", "received"] });
    header.extend(["FPDUs sent", "received"]);
    let known = known(before);
    let row = |pair: &QueuePairReport| {
        let [sent, received] = traffic(pair, before, &known);
        let peer = pair.stream.as_ref().map_or_else(none, |stream| stream.peer.to_string());
        vec![
            format!("{:06x}", pair.number),
            pair.state.clone(),
            peer,
            pair.stream.as_ref().map_or_else(none, kind),
            pair.stream.as_ref().map_or_else(none, agreed),
            sent,
            received,
            pair.frames_sent.to_string(),
            pair.frames_received.to_string(),
        ]
    };
    lined_up(header, 5, device.queue_pairs.iter().map(row), columns)
}

/// Returns the software of the peer of a stream in one word.
fn kind(stream: &StreamReport) -> String {
    match stream.peer_kind {
        StreamPeerKind::Ours => "ours",
        StreamPeerKind::Siw => "siw",
        StreamPeerKind::Other => "other",
    }
    .into()
}

/// Returns what both ends of a stream have agreed on, in short words.
fn agreed(stream: &StreamReport) -> String {
    let markers = match (stream.sends_markers, stream.receives_markers) {
        (false, false) => "",
        (true, false) => ", markers sent",
        (false, true) => ", markers received",
        (true, true) => ", markers",
    };
    let crc = if stream.has_crc { "CRC, " } else { "" };
    let length = if stream.takes_long_fpdus { "long" } else { "one segment" };
    format!("{crc}{length}{markers}")
}

/// Returns the queue pairs of an earlier report by number.
fn known<'a>(before: Option<&Before<'a>>) -> BTreeMap<u32, &'a QueuePairReport> {
    let pairs = before.and_then(|before| before.0).into_iter().flat_map(|old| &old.queue_pairs);
    pairs.map(|pair| (pair.number, pair)).collect()
}

/// Returns the bytes that a queue pair has sent and received: since the earlier report, if there is
/// one, and otherwise in all.
fn traffic(
    pair: &QueuePairReport,
    before: Option<&Before<'_>>,
    known: &BTreeMap<u32, &QueuePairReport>,
) -> [String; 2] {
    let known = known.get(&pair.number);
    let both: [fn(&QueuePairReport) -> u64; 2] =
        [|pair| pair.bytes_sent, |pair| pair.bytes_received];
    both.map(|of| {
        let now = of(pair);
        let then = if before.is_some() { known.map_or(now, |pair| of(pair)) } else { 0 };
        bytes(now.saturating_sub(then))
    })
}

/// Returns a table whose first `texts` columns contain texts, and whose others contain numbers.
fn lined_up(
    header: Vec<&str>,
    texts: usize,
    rows: impl Iterator<Item = Vec<String>>,
    columns: u16,
) -> Table {
    let mut table = Table::new();
    table.load_style(TableStyle::new());
    table.set_width(columns).set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(header);
    table.add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((if index == 0 { 2 } else { 0 }, 2));
        column.set_constraint(ColumnConstraint::LowerBoundary(Width::Fixed(3)));
        if index >= texts {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Returns whether the queue pair has a peer, but no connection to this peer.
fn is_alone(pair: &QueuePairReport) -> bool {
    pair.peer.is_some() && !pair.is_connected
}

fn none() -> String {
    "–".into()
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// Formats a number of bytes with three digits and a unit.
fn bytes(count: u64) -> String {
    scaled(count as f64, 1000.0, &["B", "kB", "MB", "GB", "TB", "PB", "EB"])
}

fn duration(ns: u64) -> String {
    scaled(ns as f64, 1000.0, &["ns", "µs", "ms", "s"])
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut units = units.iter();
    let mut unit = units.next().unwrap_or(&"");
    for next in units {
        // If rounding gives 1000 or 1024, which is one step, use the next unit.
        if value < step - 0.5 {
            break;
        }
        value /= step;
        unit = next;
    }
    let digits = usize::from(value < 9.95 && value.fract() != 0.0);
    format!("{value:.digits$} {unit}")
}

/// Clears the terminal, so that the next output replaces the previous output.
const CLEAR: &str = "\x1b[H\x1b[2J";

const INTERVAL: Duration = Duration::from_secs(1);

/// Width if there is no terminal.
const WIDTH: u16 = 120;

#[cfg(test)]
mod tests {
    use super::*;
    use verbs_edge::statistics::PeerReport;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (count, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1_000, "1 kB"),
            (1_500, "1.5 kB"),
            (9_960, "10 kB"),
            (999_600, "1.0 MB"),
            (u64::MAX, "18 EB"),
        ] {
            assert_eq!(bytes(count), text, "{count}");
        }
        assert_eq!(duration(52_300), "52 µs");
    }

    #[test]
    fn control_characters_in_reports_do_not_reach_the_terminal() {
        let report = Report {
            format: sockets::counters::FORMAT.into(),
            program: "\x1b[2Jnginx\r\u{9b}31m".into(),
            left: [("\x1b]0;moon\x07".to_owned(), 1)].into(),
            ..Report::default()
        };
        let device = DeviceReport {
            format: FORMAT.into(),
            program: "a\nb".into(),
            device: "edge\x1b0".into(),
            counters: [("\x08".to_owned(), 1)].into(),
            queue_pairs: vec![QueuePairReport { state: "\x1bR".into(), ..Default::default() }],
            ..DeviceReport::default()
        };
        let mut found = Found::default();
        let mut add = |name, report: serde_json::Result<Vec<u8>>| {
            found.add(name, reports::parse(&report.unwrap()).unwrap())
        };
        assert!(add("ethernot-sockets-7", serde_json::to_vec(&report)));
        assert!(add("ethernot-stat-7", serde_json::to_vec(&device)));
        let shown = found.to_text(None, 100) + &reports::process("ethernot-stat-\x1b[2J");
        assert!(shown.contains("?[2Jnginx??31m") && shown.contains("a?b"), "{shown}");
        assert!(!shown.contains(|c: char| c.is_control() && c != '\n'), "{shown:?}");
    }

    #[test]
    fn a_queue_pair_fits_a_line_of_a_terminal_and_rates_are_differences() {
        let pair = QueuePairReport {
            number: 0x12_34,
            service: "RC".into(),
            state: "RTS".into(),
            peer: Some(PeerReport { address: "192.0.2.200".parse().unwrap(), number: 0x56_78 }),
            is_connected: true,
            bytes_sent: 3_000_000,
            ..QueuePairReport::default()
        };
        let later = QueuePairReport { bytes_sent: 5_000_000, ..pair.clone() };
        let of = |pair: QueuePairReport| DeviceReport {
            process: 7,
            program: "ib_write_bw".into(),
            device: "edge0".into(),
            queue_pairs: vec![pair],
            ..DeviceReport::default()
        };
        let before = Found { devices: vec![of(pair)], ..Found::default() };
        let found = Found { devices: vec![of(later)], ..Found::default() };
        let totals = found.to_text(None, 100);
        assert!(
            totals.lines().any(|line| line.contains("001234") && line.contains("5 MB")),
            "{totals}"
        );
        assert!(totals.contains("192.0.2.200:005678"), "{totals}");
        assert!(totals.lines().all(|line| line.chars().count() <= 100), "{totals}");
        let rates = found.to_text(Some(&before), 100);
        assert!(rates.contains("2 MB") && rates.contains("sent/s"), "{rates}");
    }

    #[test]
    fn a_queue_pair_over_tcp_is_shown_with_its_stream() {
        let stream = StreamReport {
            local: "192.0.2.1:7000".parse().unwrap(),
            peer: "192.0.2.200:40000".parse().unwrap(),
            is_initiator: false,
            revision: 2,
            has_crc: true,
            sends_markers: true,
            receives_markers: false,
            takes_long_fpdus: false,
            peer_kind: StreamPeerKind::Siw,
        };
        let pair = QueuePairReport {
            number: 0x12_34,
            state: "RTS".into(),
            bytes_sent: 5_000_000,
            frames_sent: 77,
            stream: Some(stream),
            ..QueuePairReport::default()
        };
        let device = DeviceReport { queue_pairs: vec![pair], ..DeviceReport::default() };
        let read: DeviceReport =
            serde_json::from_slice(&serde_json::to_vec(&device).unwrap()).unwrap();
        assert_eq!(read, device);
        let shown = Found { devices: vec![read], ..Found::default() }.to_text(None, 120);
        for part in ["192.0.2.200:40000  siw", "CRC, one segment, markers sent", "5 MB", "77"] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }

    #[test]
    fn reasons_are_sentences_and_rates_are_differences() {
        let mut found = Found::default();
        let left = [("no-offer".to_owned(), 2), ("moon".to_owned(), 1)].into();
        let report = Report {
            format: sockets::counters::FORMAT.into(),
            program: "nginx".into(),
            pid: 7,
            moved: 3,
            open: 1,
            left,
            edge_bytes_sent: 5_000_000,
            ..Report::default()
        };
        let earlier = Report { edge_bytes_sent: 3_000_000, ..report.clone() };
        let text = serde_json::to_vec(&report).unwrap();
        let value = || reports::parse(&text).unwrap();
        let mut add = |name| found.add(name, value());
        assert!(add("ethernot-sockets-7") && !add("ethernot-stat-7"));
        let totals = found.to_text(None, 100);
        for part in ["nginx (7)", "3 moved", "1 of them open", "5 MB sent", "3 stayed on TCP"] {
            assert!(totals.contains(part), "{part}: {totals}");
        }
        assert!(totals.contains(&format!("2 no-offer: {}", Reason::NoOffer)), "{totals}");
        assert!(totals.contains("1 moon: a reason unknown to this version"), "{totals}");
        let before = Found { sockets: vec![earlier], ..Found::default() };
        assert!(found.to_text(Some(&before), 100).contains("2 MB/s sent"));
    }
}
