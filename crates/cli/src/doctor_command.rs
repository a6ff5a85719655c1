//! `ethernot doctor`: reports which links are possible here, and what prevents other links.

use std::fmt::Write as _;
use std::io::{self, Write};

use clap::Args;
use comfy_table::{ContentArrangement, LineStyle, Table, TableStyle};
use console::Term;
use link::host::{Interface, ProgramMode};
use serde_json::{Value, json};

use crate::Failure;
use crate::doctor::{Diagnosis, Finding, InterfaceDiagnosis, Verdict};

/// Report which links each interface of this host can have, and what prevents other links.
///
/// Checks interfaces, drivers, privileges and limits, and whether TCP connections can move to the
/// edge. Opens sockets, and loads a program into the kernel without attaching it. Changes nothing.
/// Needs no privileges; the report is valid for the user who runs the command. Ends with status 1
/// if no link is possible.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot doctor\n  \
    ethernot doctor eth0\n  \
    ethernot doctor --json | jq '.interfaces[] | {name, links}'")]
pub(crate) struct Arguments {
    /// Report only these interfaces
    #[arg(value_name = "INTERFACE")]
    interfaces: Vec<String>,
    /// Print JSON instead of tables
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let made = Diagnosis::make();
    let mut diagnosis =
        made.map_err(|error| format!("read the list of interfaces from the kernel: {error}"))?;
    for name in &arguments.interfaces {
        let names = || diagnosis.interfaces.iter().map(|i| i.interface.name.as_str());
        if !names().any(|known| known == name) {
            let known = names().collect::<Vec<_>>().join(", ");
            return Err(format!("there is no interface {name:?}; this host has {known}").into());
        }
    }
    if !arguments.interfaces.is_empty() {
        diagnosis.interfaces.retain(|i| arguments.interfaces.contains(&i.interface.name));
    }
    let text = if arguments.json {
        format!("{:#}\n", to_json(&diagnosis))
    } else {
        let columns = Term::stdout().size_checked().map(|(_, columns)| columns);
        to_text(&diagnosis, columns)
    };
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
        outcome => outcome?,
    }
    if diagnosis.is_any_usable() { Ok(()) } else { Err("no link is possible here".into()) }
}

/// Returns the tables.
fn to_text(diagnosis: &Diagnosis, columns: Option<u16>) -> String {
    let mut table = Table::new();
    table.load_style(LINES);
    if let Some(columns) = columns {
        table.set_width(columns).set_content_arrangement(ContentArrangement::Dynamic);
    }
    table.set_header(HEADER);
    for found in &diagnosis.interfaces {
        table.add_row(row(found));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{table}");
    let _ =
        writeln!(text, "\nshm, between processes of this host: {}", diagnosis.shared_memory.word);
    let _ = writeln!(
        text,
        "moving TCP connections of programs (ethernot run --sockets): {}",
        diagnosis.sockets.word
    );
    let obstacles = obstacles(diagnosis);
    if !obstacles.is_empty() {
        let _ = writeln!(text, "\nWhat is missing:");
        for (places, obstacle, remedy) in obstacles {
            let _ = writeln!(text, "  {}: {obstacle}", places.join(", "));
            if let Some(remedy) = remedy {
                let _ = writeln!(text, "      {remedy}");
            }
        }
    }
    let _ = writeln!(text, "\nThis host:");
    let width = diagnosis.findings.iter().map(|finding| finding.name.len()).max().unwrap_or(0);
    for finding in &diagnosis.findings {
        let advice = finding.advice.as_deref().map_or(String::new(), |a| format!(": {a}"));
        let _ = writeln!(text, "  {:width$}  {}{advice}", finding.name, finding.value);
        if let Some(remedy) = &finding.remedy {
            let _ = writeln!(text, "      {remedy}");
        }
    }
    text
}

fn row(found: &InterfaceDiagnosis) -> [String; HEADER.len()] {
    let interface = &found.interface;
    let addresses: Vec<_> =
        interface.addresses.iter().map(|a| format!("{}/{}", a.ip, a.prefix_bits)).collect();
    let or_dash = |text: String| if text.is_empty() { "–".into() } else { text };
    [
        interface.name.clone(),
        state(interface).into(),
        interface.mtu_bytes.to_string(),
        interface.rate.filter(|_| interface.kind.is_none()).map_or_else(|| "–".into(), rate),
        or_dash(driver(interface).unwrap_or_default().into()),
        queues(interface),
        or_dash(interface.queueing_discipline.clone()),
        or_dash(addresses.join("\n")),
        found.udp.word.clone(),
        found.packet.word.clone(),
        found.xdp.word.clone(),
    ]
}

/// Returns each obstacle once, with the links that it affects.
fn obstacles(diagnosis: &Diagnosis) -> Vec<(Vec<String>, String, Option<String>)> {
    let mut list: Vec<(Vec<String>, String, Option<String>)> = Vec::new();
    let mut note = |place: String, verdict: &Verdict| {
        let Some(obstacle) = &verdict.obstacle else { return };
        let known = list.iter_mut().find(|(_, o, r)| o == obstacle && *r == verdict.remedy);
        match known {
            Some((places, ..)) => places.push(place),
            None => list.push((vec![place], obstacle.clone(), verdict.remedy.clone())),
        }
    };
    for found in &diagnosis.interfaces {
        let name = &found.interface.name;
        if !found.interface.is_running {
            // Report only this obstacle, because an obstacle to UDP links prevents all kinds of
            // links.
            note(name.clone(), &found.udp);
            continue;
        }
        for (kind, verdict) in [("udp", &found.udp), ("packet", &found.packet), ("xdp", &found.xdp)]
        {
            note(format!("{kind}:{name}"), verdict);
        }
    }
    note("shm".into(), &diagnosis.shared_memory);
    note("run --sockets".into(), &diagnosis.sockets);
    list
}

/// Returns the diagnosis as JSON.
fn to_json(diagnosis: &Diagnosis) -> Value {
    let interfaces: Vec<Value> = diagnosis.interfaces.iter().map(interface_to_json).collect();
    let findings: Vec<Value> = diagnosis.findings.iter().map(finding_to_json).collect();
    json!({
        "format": FORMAT,
        "usable": diagnosis.is_any_usable(),
        "interfaces": interfaces,
        "shm": verdict_to_json(&diagnosis.shared_memory),
        "sockets": verdict_to_json(&diagnosis.sockets),
        "host": findings,
    })
}

fn interface_to_json(found: &InterfaceDiagnosis) -> Value {
    let interface = &found.interface;
    let addresses: Vec<_> =
        interface.addresses.iter().map(|a| format!("{}/{}", a.ip, a.prefix_bits)).collect();
    let programs: Vec<_> = found
        .programs
        .iter()
        .map(|(program, name)| {
            let mode = match program.mode {
                ProgramMode::Generic => "generic",
                ProgramMode::Offloaded => "offloaded",
                _ => "native",
            };
            json!({ "id": program.id, "name": name, "mode": mode })
        })
        .collect();
    json!({
        "name": interface.name,
        "index": interface.index,
        "kind": interface.kind,
        "state": state(interface),
        "mac": interface.mac.map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":")),
        "mtu_bytes": interface.mtu_bytes,
        "mtu_bytes_max": interface.mtu_bytes_max,
        "rate_bits_per_second": interface.rate,
        "driver": driver(interface),
        "queues": { "transmit": interface.queues.0, "receive": interface.queues.1 },
        "queueing_discipline": interface.queueing_discipline,
        "addresses": addresses,
        "xdp_programs": programs,
        "links": {
            "udp": verdict_to_json(&found.udp),
            "packet": verdict_to_json(&found.packet),
            "xdp": verdict_to_json(&found.xdp),
        },
    })
}

fn verdict_to_json(verdict: &Verdict) -> Value {
    json!({
        "possible": verdict.works,
        "how": verdict.word,
        "obstacle": verdict.obstacle,
        "remedy": verdict.remedy,
    })
}

fn finding_to_json(finding: &Finding) -> Value {
    json!({
        "name": finding.name,
        "value": finding.value,
        "advice": finding.advice,
        "remedy": finding.remedy,
    })
}

fn state(interface: &Interface) -> &'static str {
    match (interface.is_up, interface.is_running) {
        (_, true) => "up",
        (true, false) => "no carrier",
        (false, false) => "down",
    }
}

fn driver(interface: &Interface) -> Option<&str> {
    interface.driver.as_deref().or(interface.kind.as_deref())
}

/// Returns the numbers of receive and transmit queues as text. Counts the queues in use if the
/// driver reports them, and otherwise all queues of the interface.
fn queues(interface: &Interface) -> String {
    let (transmit, receive) = interface.channels.map_or(interface.queues, |channels| {
        (channels.transmit + channels.combined, channels.receiving())
    });
    if transmit == receive { receive.to_string() } else { format!("{receive} rx, {transmit} tx") }
}

fn rate(bits_per_second: u64) -> String {
    let megabits = bits_per_second / 1_000_000;
    if megabits >= 1000 && megabits.is_multiple_of(100) {
        format!("{} Gb/s", megabits as f64 / 1000.0)
    } else {
        format!("{megabits} Mb/s")
    }
}

const HEADER: [&str; 11] = [
    "interface",
    "state",
    "MTU",
    "rate",
    "driver",
    "queues",
    "qdisc",
    "addresses",
    "udp",
    "packet",
    "xdp",
];

/// Name of the JSON format.
const FORMAT: &str = "ethernot-doctor-1";

/// Lines above and below the header, and at the end.
const LINES: TableStyle = TableStyle::new()
    .top_border(LineStyle::none().fill('─').junction('─'))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));
