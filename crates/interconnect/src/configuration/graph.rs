//! Reads graphs in `[topology]`: names of hosts and switches, and cables between them.

use std::fmt::Write as _;

use toml::{Table, Value};

use super::super::ethernet::EthernetConfiguration;
use super::super::nearest::nearest;
use super::super::topology::{Cable, CableSettings, Topology};
use super::ethernet::BUFFER_MAX_BYTES;
use super::reader::{Reader, meant, number, range, written};
use super::units::Unit;
use super::{
    Configuration, ConfigurationError, FabricConfiguration, RATE_MAX_BPS, RATE_MIN_BPS, TIME_MAX_PS,
};

/// Reads hosts, switches and cables.
pub(super) fn read(keys: &mut Reader) -> Result<Topology, ConfigurationError> {
    let hosts = read_names(keys, "hosts", "h", 2)?;
    let switches = read_names(keys, "switches", "s", 1)?;
    let cables = read_cables(keys, &hosts, &switches)?;
    Ok(Topology::graph(&hosts, &switches, &cables)?)
}

/// Reads the names of nodes: a list of names, or a number of nodes.
fn read_names(
    keys: &mut Reader,
    key: &str,
    letter: &str,
    default: u64,
) -> Result<Vec<String>, ConfigurationError> {
    let values = "a list of names, or a number of nodes";
    let numbered = |count: u64| (0..count).map(|number| format!("{letter}{number}")).collect();
    let Some(value) = keys.take(key, default.to_string(), values.to_owned()) else {
        keys.note(key, default);
        return Ok(numbered(default));
    };
    if let Some(count) = value.as_integer().and_then(|count| u64::try_from(count).ok())
        && (1..=NAMES_MAX).contains(&count)
    {
        keys.note(key, count);
        return Ok(numbered(count));
    }
    let names = value.as_array().map(|list| {
        list.iter().map(|name| name.as_str().map(ToOwned::to_owned)).collect::<Option<Vec<_>>>()
    });
    let names = names.flatten().filter(|names| (1..=NAMES_MAX).contains(&(names.len() as u64)));
    let names = names.ok_or_else(|| {
        let expected = format!("{values}; [\"{letter}0\", \"{letter}1\"] would do");
        keys.wrong_text(key, written(&value), expected)
    })?;
    keys.note(key, format!("{names:?}"));
    Ok(names)
}

/// Reads cables, each from a table. Without cables, each host is connected to the first switch.
fn read_cables(
    keys: &mut Reader,
    hosts: &[String],
    switches: &[String],
) -> Result<Vec<Cable>, ConfigurationError> {
    let values = "a list of tables with `ends`, and optionally `rate_bps`, `propagation_ps`, \
                  `buffer_bytes` and `count`";
    let cables = match keys.take("cables", String::new(), values.to_owned()) {
        None => {
            let first = switches.first().cloned().unwrap_or_default();
            let settings = CableSettings::default();
            let cable =
                |host: &String| Cable { ends: [host.clone(), first.clone()], settings, count: 1 };
            hosts.iter().map(cable).collect()
        }
        Some(value) => {
            let list = value.as_array().filter(|list| !list.is_empty()).ok_or_else(|| {
                let expected = format!("{values}; [{EXAMPLE}] would do");
                keys.wrong_text("cables", written(&value), expected)
            })?;
            let cables = (1..).zip(list).map(|(number, value)| read_cable(keys, number, value));
            cables.collect::<Result<Vec<_>, _>>()?
        }
    };
    let all: Vec<String> = cables.iter().map(as_toml).collect();
    keys.note("cables", format!("[{}]", all.join(", ")));
    Ok(cables)
}

/// Formats a cable for the effective configuration.
fn as_toml(cable: &Cable) -> String {
    let [a, b] = &cable.ends;
    let mut text = format!("{{ ends = [{a:?}, {b:?}]");
    let CableSettings { rate_bps, propagation_ps, buffer_bytes } = cable.settings;
    let count = (cable.count > 1).then_some(cable.count.into());
    for (key, value) in [
        ("rate_bps", rate_bps),
        ("propagation_ps", propagation_ps),
        ("buffer_bytes", buffer_bytes),
        ("count", count),
    ] {
        if let Some(value) = value {
            // Writing to a `String` cannot fail.
            let _ = write!(text, ", {key} = {value}");
        }
    }
    text + " }"
}

fn read_cable(keys: &Reader, place: usize, value: &Value) -> Result<Cable, ConfigurationError> {
    let of_cable = |key: &str| format!("{key} of cable {place}");
    let table = value.as_table().ok_or_else(|| {
        let expected = format!("a table, as {EXAMPLE}");
        keys.wrong_text(&of_cable("value"), written(value), expected)
    })?;
    if let Some(key) = table.keys().find(|key| !CABLE_KEYS.contains(&key.as_str())) {
        let begun = CABLE_KEYS.iter().copied().find(|known| known.starts_with(key.as_str()));
        let remedy = match begun.or_else(|| nearest(key, &CABLE_KEYS)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("known are {}", CABLE_KEYS.join(", ")),
        };
        return Err(keys.unknown_key(&of_cable(key), remedy));
    }
    let ends = table.get("ends");
    let ends = ends.and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let [Some(a), Some(b)] = [0, 1].map(|end| ends.get(end).and_then(Value::as_str)) else {
        let value = table.get("ends").map_or("absent".to_owned(), written);
        let expected = "the names of two nodes; [\"h0\", \"s0\"] would do";
        return Err(keys.wrong_text(&of_cable("ends"), value, expected.to_owned()));
    };
    if ends.len() > 2 {
        let value = table.get("ends").map_or(String::new(), written);
        let expected = format!("the names of two nodes; [\"{a}\", \"{b}\"] would do");
        return Err(keys.wrong_text(&of_cable("ends"), value, expected));
    }
    let own = |key: &str, least, most| own_number(keys, table, (place, key), least, most);
    Ok(Cable {
        ends: [a.to_owned(), b.to_owned()],
        settings: CableSettings {
            rate_bps: own("rate_bps", RATE_MIN_BPS, RATE_MAX_BPS)?,
            propagation_ps: own("propagation_ps", 0, TIME_MAX_PS)?,
            buffer_bytes: own("buffer_bytes", 0, BUFFER_MAX_BYTES)?,
        },
        count: own("count", 1, PARALLEL_MAX)?.unwrap_or(1) as u32,
    })
}

/// Reads a numeric setting of a cable; `None` if the cable does not have this setting.
fn own_number(
    keys: &Reader,
    table: &Table,
    (place, key): (usize, &str),
    least: u64,
    most: u64,
) -> Result<Option<u64>, ConfigurationError> {
    let Some(value) = table.get(key) else { return Ok(None) };
    let unit = Unit::of(key);
    if let Some(number) = number(unit, value).filter(|number| (least..=most).contains(number)) {
        return Ok(Some(number));
    }
    let near = meant(unit, value).unwrap_or(least).clamp(least, most);
    let near = unit.quoted(unit.below(near).max(least));
    let expected = format!("{}; {near} would do", range(unit, least, most));
    Err(keys.wrong_text(&format!("{key} of cable {place}"), written(value), expected))
}

/// Rejects settings of cables that the fabric does not support.
pub(super) fn check_fabric(
    keys: &Reader,
    topology: &Topology,
    fabric: &FabricConfiguration,
) -> Result<(), ConfigurationError> {
    let is_fluid = matches!(fabric, FabricConfiguration::Fluid(_));
    if matches!(fabric, FabricConfiguration::Ethernet(_)) {
        return Ok(());
    }
    for link in (0..topology.links().len() as u32).step_by(2) {
        let CableSettings { rate_bps, propagation_ps, buffer_bytes } =
            topology.cable_settings(link);
        let rate_bps = if is_fluid { None } else { rate_bps };
        for (key, value) in [
            ("rate_bps", rate_bps),
            ("propagation_ps", propagation_ps),
            ("buffer_bytes", buffer_bytes),
        ] {
            let Some(value) = value else { continue };
            let found = format!("`{}` with {key} = {value}", topology.link_name(link));
            let kind = fabric.name();
            let expected = format!(
                "without {key} on a fabric of kind {kind}; remove it, or set kind = \"ethernet\" in \
                 [fabric]"
            );
            return Err(keys.wrong_text("cables", found, expected));
        }
    }
    Ok(())
}

impl Configuration {
    /// Rejects cable buffers that are smaller than a frame. Such a buffer would drop every full
    /// frame, and a transport would retransmit the frame forever.
    pub(super) fn check_cables(
        &self,
        ethernet: &EthernetConfiguration,
    ) -> Result<(), ConfigurationError> {
        let frame = u64::from(ethernet.frame_bytes_max());
        let is_short = |bytes: u64| bytes > 0 && bytes < frame;
        let Some((link, bytes)) = self.buffered_cable(is_short) else { return Ok(()) };
        let expected = format!(
            "with a buffer of 0 or at least one frame, {frame}, because [host] transport would \
             retransmit a dropped frame forever; buffer_bytes = {} would do",
            Unit::Size.quoted(frame)
        );
        Err(self.wrong_buffer(link, bytes, expected))
    }

    /// Returns an error for the first cable whose buffer can overflow. The error contains `remedy`.
    pub(super) fn lossy_cable(&self, remedy: &str) -> Option<ConfigurationError> {
        let (link, bytes) = self.buffered_cable(|bytes| bytes > 0)?;
        Some(self.wrong_buffer(link, bytes, format!("without buffer_bytes, or {remedy}")))
    }

    fn buffered_cable(&self, is_it: impl Fn(u64) -> bool) -> Option<(u32, u64)> {
        let links = 0..self.topology.links().len() as u32;
        let buffer = |link| Some((link, self.topology.cable_settings(link).buffer_bytes?));
        links.step_by(2).filter_map(buffer).find(|&(_, bytes)| is_it(bytes))
    }

    fn wrong_buffer(&self, link: u32, bytes: u64, expected: String) -> ConfigurationError {
        let value = format!("`{}` with buffer_bytes = {bytes}", self.topology.link_name(link));
        self.written.value("topology", "cables", value, expected)
    }
}

/// Returns the rate that counts as full load of a host, in bits per second. If there is a target,
/// this is the rate of the cable of host `target`. Otherwise it is the rate of the slowest host
/// cable.
pub(super) fn host_rate_bps(topology: &Topology, target: Option<u32>, default_bps: u64) -> u64 {
    let of = |host| {
        let own = topology.cable_settings(topology.host_link(host)).rate_bps;
        own.unwrap_or(default_bps)
    };
    match target.filter(|&target| target < topology.hosts()) {
        Some(target) => of(target),
        None if topology.has_cable_settings() => {
            (0..topology.hosts()).map(of).min().unwrap_or(default_bps)
        }
        None => default_bps,
    }
}

/// Keys that the table of a cable can have.
const CABLE_KEYS: [&str; 5] = ["ends", "rate_bps", "propagation_ps", "buffer_bytes", "count"];
const EXAMPLE: &str = "{ ends = [\"h0\", \"s0\"], rate_bps = \"10 Gb/s\" }";
/// The maximum number of nodes of a topology.
const NAMES_MAX: u64 = 1 << 20;
/// Maximum number of parallel cables between two switches.
const PARALLEL_MAX: u64 = 64;
