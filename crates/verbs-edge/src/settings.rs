//! Settings of the library. The library reads them from the environment of the program.

use std::env;
use std::fmt::Display;
use std::path::PathBuf;

use link::{FaultShares, StreamFaultShares};
use links::LinkSpec;
use verbs::{Error, LogLevel, Strictness};

/// Settings of the devices of a process. [`Settings::default`] returns the settings that an empty
/// environment stands for.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Protocol of the first device.
    pub kind: DeviceKind,
    /// Links of the first device. If the list is empty, the device uses all links that it finds.
    pub links: Vec<LinkSpec>,
    /// Name of the first device.
    pub device: String,
    /// The second and later devices, each with its own links.
    pub others: Vec<DeviceSettings>,
    /// Path of the file to which the library appends events of all levels; `None` for no such file.
    pub trace: Option<PathBuf>,
    /// Path of the file to which the library writes all frames (pcapng); `None` for no such file.
    pub pcap: Option<PathBuf>,
    /// Faults to inject into links.
    pub faults: FaultShares,
    /// Level of the log on standard error.
    pub log: LogLevel,
    /// UDP port of the first slot; `None` for the default port. A slot is a UDP port, and each
    /// started device claims one.
    pub slot_base: Option<u16>,
    /// The processor to which the devices pin their progress threads, numbered as in the kernel.
    /// `None` means any processor.
    pub progress_processor: Option<usize>,
    /// Whether the devices give programs more than they ask for, for example more inline bytes.
    pub strictness: Strictness,
    /// What the iWARP devices ask of their peers, and how they send.
    pub iwarp: IwarpSettings,
}

/// What iWARP devices ask of their peers when a connection is set up, and how they send.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct IwarpSettings {
    /// Whether to ask for CRCs. A connection also has them if only the peer asks.
    pub crc: bool,
    /// Whether to ask for markers in the bytes that the peer sends.
    pub markers: bool,
    /// Maximum length of the frames (FPDUs) to send, in bytes, from
    /// [`IwarpSettings::FPDU_BYTES_MIN`] to [`IwarpSettings::FPDU_BYTES_MAX`]. `None` follows what
    /// each peer is known to take.
    pub fpdu_bytes: Option<u16>,
    /// Faults to inject into the TCP streams.
    pub faults: StreamFaultShares,
}

impl IwarpSettings {
    /// Smallest maximum length of frames, in bytes.
    pub const FPDU_BYTES_MIN: u16 = 128;
    /// Largest maximum length of frames, in bytes. The length field of a frame has 16 bits.
    pub const FPDU_BYTES_MAX: u16 = 65_000;
}

/// The protocol that a device speaks.
#[derive(Clone, Copy, Debug, Default, Eq, Hash, PartialEq)]
pub enum DeviceKind {
    /// The edge protocol.
    #[default]
    Edge,
    /// iWARP, which is RDMA over TCP.
    Iwarp,
}

impl DeviceKind {
    /// Returns the kind with this name.
    fn of_name(name: &str) -> Option<Self> {
        match name {
            "edge" => Some(Self::Edge),
            "iwarp" => Some(Self::Iwarp),
            _ => None,
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Edge => "edge",
            Self::Iwarp => "iwarp",
        }
    }
}

/// Settings of the second or a later device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSettings {
    /// Protocol of the device.
    pub kind: DeviceKind,
    /// Name of the device.
    pub name: String,
    /// Links of the device. If this list is empty for every device, each interface is assigned to
    /// one of the devices.
    pub links: Vec<LinkSpec>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            kind: DeviceKind::Edge,
            links: Vec::new(),
            device: "edge0".into(),
            others: Vec::new(),
            trace: None,
            pcap: None,
            faults: FaultShares::default(),
            log: LogLevel::default(),
            slot_base: None,
            progress_processor: None,
            strictness: Strictness::default(),
            iwarp: IwarpSettings::default(),
        }
    }
}

impl Settings {
    /// Reads the settings from the environment of this process.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] with the name of the variable, if its value is invalid.
    pub fn from_environment() -> Result<Self, Error> {
        Self::read(|name| env::var_os(name).map(|value| value.to_string_lossy().into_owned()))
    }

    /// Returns the settings of each device, in order.
    pub fn devices(&self) -> Vec<DeviceSettings> {
        let first = DeviceSettings {
            kind: self.kind,
            name: self.device.clone(),
            links: self.links.clone(),
        };
        std::iter::once(first).chain(self.others.clone()).collect()
    }

    /// Checks that the kinds of the devices have what the other settings ask for.
    fn check_kinds(&self) -> Result<(), Error> {
        let kinds = || std::iter::once(self.kind).chain(self.others.iter().map(|one| one.kind));
        let has_iwarp = kinds().any(|kind| kind == DeviceKind::Iwarp);
        if has_iwarp && self.faults.is_any() {
            let what = "an iWARP device has no links that could lose, duplicate or reorder frames; use delay and cut, or `tc qdisc add dev DEV root netem`";
            return Err(wrong(FAULTS, what));
        }
        let IwarpSettings { crc, markers, fpdu_bytes, faults } = self.iwarp;
        if faults.is_any() && !has_iwarp {
            let what = "delay and cut are for iWARP devices; name one in ETHERNOT_DEVICE, or use loss, dup and reorder";
            return Err(wrong(FAULTS, what));
        }
        for (variable, is_on) in [(IWARP_CRC, crc), (IWARP_MARKERS, markers)] {
            if is_on && !has_iwarp {
                let what = "1 is for iWARP devices; name one in ETHERNOT_DEVICE, or use 0";
                return Err(wrong(variable, what));
            }
        }
        if fpdu_bytes.is_some() && !has_iwarp {
            let what = "a length is for iWARP devices; name one in ETHERNOT_DEVICE, or unset it";
            return Err(wrong(IWARP_FPDU, what));
        }
        Ok(())
    }

    /// Reads the settings from variables. `value_of` gets the name of a variable and returns its
    /// value. An empty value counts as unset.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] with the name of the variable, if its value is invalid.
    pub fn read(value_of: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let value_of = |name: &str| value_of(name).filter(|value| !value.is_empty());
        let mut settings = Self::default();
        let links = value_of(LINKS).map_or(Ok(Vec::new()), |links| read_links(&links))?;
        let names = value_of(DEVICE).map_or_else(
            || Ok(vec![(DeviceKind::Edge, settings.device)]),
            |names| read_names(&names),
        )?;
        let mut devices = assign(names, links)?.into_iter();
        let first = devices.next().ok_or_else(|| wrong(DEVICE, "names no device"))?;
        (settings.kind, settings.device, settings.links) = (first.kind, first.name, first.links);
        settings.others = devices.collect();
        settings.trace = value_of(TRACE).map(PathBuf::from);
        settings.pcap = value_of(PCAP).map(PathBuf::from);
        if let Some(faults) = value_of(FAULTS) {
            let shares = FaultShares::parse_with_streams(&faults);
            let (of_links, of_streams) = shares.map_err(|error| wrong(FAULTS, error))?;
            (settings.faults, settings.iwarp.faults) = (of_links, of_streams);
        }
        if let Some(log) = value_of(LOG) {
            settings.log = read_level(&log)?;
        }
        if let Some(base) = value_of(SLOT_BASE) {
            let port: u16 = base.parse().map_err(|error| wrong(SLOT_BASE, error))?;
            settings.slot_base = Some(port);
        }
        if let Some(processor) = value_of(PROGRESS_PROCESSOR) {
            settings.progress_processor = Some(read_processor(&processor)?);
        }
        let is_on = |name| value_of(name).map_or(Ok(false), |value| read_switch(name, &value));
        if is_on(STRICT)? {
            settings.strictness = Strictness::Strict;
        }
        let fpdu_bytes = value_of(IWARP_FPDU).map(|bytes| read_fpdu_bytes(&bytes)).transpose()?;
        let (crc, markers) = (is_on(IWARP_CRC)?, is_on(IWARP_MARKERS)?);
        settings.iwarp = IwarpSettings { crc, markers, fpdu_bytes, ..settings.iwarp };
        settings.check_kinds()?;
        Ok(settings)
    }
}

/// Parses the name of a log level.
fn read_level(text: &str) -> Result<LogLevel, Error> {
    match text.trim().to_ascii_lowercase().as_str() {
        "off" => Ok(LogLevel::Off),
        "error" => Ok(LogLevel::Error),
        "warn" => Ok(LogLevel::Warn),
        "info" => Ok(LogLevel::Info),
        "debug" => Ok(LogLevel::Debug),
        other => Err(wrong(
            LOG,
            format!("{other:?} is not a log level; use off, error, warn, info or debug"),
        )),
    }
}

/// Reads devices that are separated by commas. Each is a kind (`iwarp`), a kind with a name
/// (`iwarp=mine0`), or the name of an edge device. A device without a name is called after its kind
/// and its number among the devices of this kind.
fn read_names(text: &str) -> Result<Vec<(DeviceKind, String)>, Error> {
    let mut devices: Vec<(DeviceKind, String)> = Vec::new();
    for word in text.split(',').map(str::trim) {
        let (kind, name) = match word.split_once('=') {
            None => (DeviceKind::of_name(word), None),
            Some((kind, name)) => {
                let known = DeviceKind::of_name(kind);
                let known = known.ok_or_else(|| {
                    let what = format!("{kind:?} is no kind of device; use edge or iwarp");
                    wrong(DEVICE, what)
                })?;
                (Some(known), Some(name))
            }
        };
        let (kind, name) = match (kind, name) {
            (Some(kind), None) => {
                let count = devices.iter().filter(|(other, _)| *other == kind).count();
                (kind, format!("{}{count}", kind.name()))
            }
            (Some(kind), Some(name)) => (kind, name.to_owned()),
            (None, _) => (DeviceKind::Edge, edge_name(word)?),
        };
        let name = check_device(name)?;
        if devices.iter().any(|(_, other)| *other == name) {
            return Err(wrong(
                DEVICE,
                format!("two devices have the name {name}; use each name once"),
            ));
        }
        devices.push((kind, name));
    }
    if devices.len() > DEVICES_MAX {
        let what =
            format!("too many devices, {}: a process has at most {DEVICES_MAX}", devices.len());
        return Err(wrong(DEVICE, what));
    }
    Ok(devices)
}

/// Returns a word as the name of an edge device, unless it is a slip of the pen for `iwarp`, such as
/// `iwrap`, `iWARP` or `iwarp0`. The user would get a device of another kind, and would only notice
/// when no peer answers.
fn edge_name(word: &str) -> Result<String, Error> {
    let stem = word.trim_end_matches(|c: char| c.is_ascii_digit()).to_ascii_lowercase();
    let kind = DeviceKind::Iwarp.name();
    if !is_one_slip_away(stem.as_bytes(), kind.as_bytes()) {
        return Ok(word.to_owned());
    }
    let what = format!(
        "{word:?} is no kind of device; did you mean {kind}, or {kind}=NAME? For an edge device with \
         this name, write edge={word}"
    );
    Err(wrong(DEVICE, what))
}

/// Returns whether at most one character of a text is wrong, missing, added, or exchanged with the
/// next one.
fn is_one_slip_away(text: &[u8], meant: &[u8]) -> bool {
    let same = text.iter().zip(meant).take_while(|(one, other)| one == other).count();
    let (text, meant) = (text.split_at(same).1, meant.split_at(same).1);
    match (text, meant) {
        ([], []) => true,
        ([a, b, rest @ ..], [c, d, others @ ..]) if (a, b) == (d, c) && rest == others => true,
        ([_, rest @ ..], [_, others @ ..]) if rest == others => true,
        ([_, rest @ ..], _) if rest == meant => true,
        (_, [_, others @ ..]) => text == others,
        _ => false,
    }
}

/// Reads a setting that is off (0) or on (1).
fn read_switch(variable: &str, value: &str) -> Result<bool, Error> {
    match value {
        "0" => Ok(false),
        "1" => Ok(true),
        other => Err(wrong(variable, format!("{other:?} is neither 0 nor 1; use one of them"))),
    }
}

/// Reads the number of a processor. Whether this host has the processor shows when a device starts.
fn read_processor(text: &str) -> Result<usize, Error> {
    text.trim().parse().map_err(|_| {
        let what = format!("{text:?} is no processor; use a number as in /proc/cpuinfo");
        wrong(PROGRESS_PROCESSOR, what)
    })
}

/// Reads the maximum length of the frames of iWARP devices, in bytes.
fn read_fpdu_bytes(text: &str) -> Result<u16, Error> {
    let range = IwarpSettings::FPDU_BYTES_MIN..=IwarpSettings::FPDU_BYTES_MAX;
    text.trim().parse().ok().filter(|bytes| range.contains(bytes)).ok_or_else(|| {
        let (least, most) = (range.start(), range.end());
        wrong(IWARP_FPDU, format!("{text:?} is no length; use a number from {least} to {most}"))
    })
}

/// Reads lists of links, which are separated by two slashes.
fn read_links(text: &str) -> Result<Vec<Vec<LinkSpec>>, Error> {
    let list = |text: &str| LinkSpec::parse_list(text).map_err(|error| wrong(LINKS, error));
    text.split("//").map(list).collect()
}

/// Assigns a list of links to each edge device. If there is only one list, every edge device gets
/// this list. Devices of other kinds have no links.
fn assign(
    devices: Vec<(DeviceKind, String)>,
    lists: Vec<Vec<LinkSpec>>,
) -> Result<Vec<DeviceSettings>, Error> {
    let edges = devices.iter().filter(|(kind, _)| *kind == DeviceKind::Edge).count();
    if edges == 0 && !lists.is_empty() {
        return Err(wrong(LINKS, "only edge devices have links; name one in ETHERNOT_DEVICE"));
    }
    if lists.len() > 1 && lists.len() != edges {
        let lists = lists.len();
        let what = format!(
            "{lists} lists of links for {edges} devices; write one list for each device, with // between the lists"
        );
        return Err(wrong(LINKS, what));
    }
    let mut lists = lists.into_iter().cycle();
    let settings = |(kind, name)| {
        let links = if kind == DeviceKind::Edge { lists.next() } else { None };
        DeviceSettings { kind, name, links: links.unwrap_or_default() }
    };
    Ok(devices.into_iter().map(settings).collect())
}

/// Checks a device name. Programs store the name in 64 bytes and use it in file paths.
fn check_device(name: String) -> Result<String, Error> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte);
    if name.is_empty()
        || name.len() > DEVICE_NAME_BYTES_MAX
        || !name.bytes().all(fits)
        || name.starts_with('.')
    {
        let what =
            format!("invalid name {name:?}; use at most 63 bytes of letters, digits, _, - and .");
        return Err(wrong(DEVICE, what));
    }
    Ok(name)
}

fn wrong(variable: &str, what: impl Display) -> Error {
    Error::Invalid(format!("{variable}: {what}"))
}

/// Maximum length of a device name: `IBV_SYSFS_NAME_MAX` without the terminating zero.
const DEVICE_NAME_BYTES_MAX: usize = 63;

/// Maximum number of devices of a process. Each device has its own UDP port, its own threads and up
/// to 16 links. Few hosts have more than 8 network adapters.
const DEVICES_MAX: usize = 8;

const LINKS: &str = "ETHERNOT_LINKS";
const DEVICE: &str = "ETHERNOT_DEVICE";
const TRACE: &str = "ETHERNOT_TRACE";
const PCAP: &str = "ETHERNOT_PCAP";
const FAULTS: &str = "ETHERNOT_FAULTS";
const LOG: &str = "ETHERNOT_LOG";
const SLOT_BASE: &str = "ETHERNOT_SLOT_BASE";
const PROGRESS_PROCESSOR: &str = "ETHERNOT_PROGRESS_PROCESSOR";
const STRICT: &str = "ETHERNOT_STRICT";
const IWARP_CRC: &str = "ETHERNOT_IWARP_CRC";
const IWARP_MARKERS: &str = "ETHERNOT_IWARP_MARKERS";
const IWARP_FPDU: &str = "ETHERNOT_IWARP_FPDU";

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, Error> {
        let find = |name: &str| variables.iter().find(|(known, _)| *known == name);
        Settings::read(|name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn an_empty_environment_gives_the_usual_settings() {
        assert_eq!(read(&[]), Ok(Settings::default()));
        assert_eq!(read(&[(LINKS, ""), (FAULTS, "")]), Ok(Settings::default()));
    }

    #[test]
    fn every_variable_is_read() {
        let settings = read(&[
            (LINKS, "udp:127.0.0.1:0"),
            (DEVICE, "edge7"),
            (TRACE, "/tmp/trace"),
            (PCAP, "/tmp/frames"),
            (FAULTS, "loss=0.01, dup=0.5,reorder=1"),
            (LOG, "Debug"),
            (SLOT_BASE, "40000"),
            (PROGRESS_PROCESSOR, "3"),
            (STRICT, "1"),
        ]);
        let settings = settings.expect("all settings have a meaning");
        assert_eq!((settings.links.len(), settings.device.as_str()), (1, "edge7"));
        assert_eq!(settings.faults, FaultShares { loss: 0.01, duplication: 0.5, reordering: 1.0 });
        assert_eq!((settings.log, settings.slot_base), (LogLevel::Debug, Some(40000)));
        assert_eq!(
            (settings.strictness, settings.progress_processor),
            (Strictness::Strict, Some(3))
        );
        assert!(settings.trace.is_some() && settings.pcap.is_some() && settings.faults.is_any());
    }

    #[test]
    fn devices_have_their_own_links_or_share_one_list() {
        let devices = |names: &str, links: &str| {
            let settings = read(&[(DEVICE, names), (LINKS, links)]).expect("it means something");
            let devices = settings.devices().into_iter();
            let shown = |list: Vec<LinkSpec>| {
                list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
            };
            devices.map(|device| (device.name, shown(device.links))).collect::<Vec<_>>()
        };
        let expected = |list: &[(&str, &str)]| {
            list.iter().map(|&(a, b)| (a.to_owned(), b.to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(devices("a, b", ""), expected(&[("a", ""), ("b", "")]));
        assert_eq!(devices("a,b", "shm,eth0"), expected(&[("a", "shm,eth0"), ("b", "shm,eth0")]));
        let links = "packet:eth0/vlan=7//eth1,shm";
        assert_eq!(
            devices("a,b", links),
            expected(&[("a", "packet:eth0/vlan=7"), ("b", "eth1,shm")])
        );
    }

    #[test]
    fn a_device_may_be_named_by_its_kind() {
        let devices = |names: &str| {
            let settings = read(&[(DEVICE, names)]).expect("it means something");
            let devices = settings.devices().into_iter();
            devices.map(|device| (device.kind, device.name)).collect::<Vec<_>>()
        };
        let edge = |name: &str| (DeviceKind::Edge, name.to_owned());
        let iwarp = |name: &str| (DeviceKind::Iwarp, name.to_owned());
        assert_eq!(devices("iwarp"), [iwarp("iwarp0")]);
        assert_eq!(devices("edge,iwarp,iwarp"), [edge("edge0"), iwarp("iwarp0"), iwarp("iwarp1")]);
        assert_eq!(devices("iwarp=mine0,mine1"), [iwarp("mine0"), edge("mine1")]);
        let settings = read(&[(DEVICE, "iwarp,edge"), (LINKS, "udp:127.0.0.1")]);
        let settings = settings.expect("it means something");
        assert_eq!((settings.links.len(), settings.others[0].links.len()), (0, 1));
    }

    #[test]
    fn what_iwarp_devices_ask_for_is_read() {
        let asked = |device: &str, crc: &str, markers: &str| {
            read(&[(DEVICE, device), (IWARP_CRC, crc), (IWARP_MARKERS, markers)])
                .map(|settings| settings.iwarp)
        };
        let nothing = IwarpSettings::default();
        assert_eq!(asked("edge,iwarp", "1", "0"), Ok(IwarpSettings { crc: true, ..nothing }));
        assert_eq!(asked("iwarp", "", "1"), Ok(IwarpSettings { markers: true, ..nothing }));
        assert_eq!(asked("edge", "0", "0"), Ok(nothing));
        for (crc, markers, part) in [
            ("yes", "", "ETHERNOT_IWARP_CRC: \"yes\" is neither 0 nor 1; use one of them"),
            ("", "2", "ETHERNOT_IWARP_MARKERS: \"2\""),
        ] {
            let Err(Error::Invalid(what)) = asked("iwarp", crc, markers) else {
                panic!("{crc:?} and {markers:?} were accepted");
            };
            assert!(what.starts_with(part), "{what}");
        }
    }

    #[test]
    fn the_length_of_fpdus_is_read_within_its_bounds() {
        let length = |text: &str| {
            read(&[(DEVICE, "iwarp"), (IWARP_FPDU, text)]).map(|settings| settings.iwarp.fpdu_bytes)
        };
        for (text, bytes) in [("", None), ("128", Some(128)), (" 65000", Some(65_000))] {
            assert_eq!(length(text), Ok(bytes), "{text:?}");
        }
        for text in ["127", "65001", "65536", "-1", "1k", "long"] {
            let Err(Error::Invalid(what)) = length(text) else { panic!("{text} was accepted") };
            assert!(what.starts_with(IWARP_FPDU) && what.ends_with("from 128 to 65000"), "{what}");
        }
    }

    #[test]
    fn a_slip_of_the_pen_for_iwarp_is_no_name_of_an_edge_device() {
        for word in [
            "iwrap", "iwap", "iwarpp", "wiarp", "warp", "iwarp0", "iWARP", "iwrap1", "owarp",
            "iwar",
        ] {
            let Err(Error::Invalid(what)) = read(&[(DEVICE, word)]) else {
                panic!("{word} was accepted");
            };
            let parts = [DEVICE, "did you mean iwarp", &format!("edge={word}")];
            assert!(parts.iter().all(|part| what.contains(part)), "{what}");
            let named = read(&[(DEVICE, &format!("edge={word}"))]).expect("it has a kind");
            assert_eq!((named.kind, named.device.as_str()), (DeviceKind::Edge, word));
        }
        for word in ["edge0", "iw", "warp-7", "i40iw", "rwiap", "iwarpedge", "mlx5_0", "a", "7"] {
            let named = read(&[(DEVICE, word)]).expect("it is the name of an edge device");
            assert_eq!((named.kind, named.device.as_str()), (DeviceKind::Edge, word));
        }
    }

    #[test]
    fn settings_that_only_an_iwarp_device_has_are_refused() {
        for (variable, value) in [(IWARP_CRC, "1"), (IWARP_MARKERS, "1"), (IWARP_FPDU, "1000")] {
            let Err(Error::Invalid(what)) = read(&[(DEVICE, "edge"), (variable, value)]) else {
                panic!("{variable} was accepted");
            };
            assert!(what.starts_with(variable) && what.contains(DEVICE), "{what}");
        }
    }

    #[test]
    fn faults_of_streams_are_for_iwarp_devices() {
        let faults = |device: &str| read(&[(DEVICE, device), (FAULTS, "delay=0.25,cut=1")]);
        let read = faults("edge,iwarp").map(|settings| settings.iwarp.faults);
        assert_eq!(read, Ok(StreamFaultShares { delay: 0.25, cut: 1.0 }));
        let Err(Error::Invalid(what)) = faults("edge") else { panic!("it was accepted") };
        assert!(what.starts_with(FAULTS) && what.contains(DEVICE), "{what}");
    }

    #[test]
    fn settings_that_an_iwarp_device_lacks_are_refused() {
        for (variable, value) in [(FAULTS, "loss=0.1"), (LINKS, "udp:127.0.0.1")] {
            let Err(Error::Invalid(what)) = read(&[(DEVICE, "iwarp"), (variable, value)]) else {
                panic!("{variable}={value} was accepted");
            };
            assert!(what.starts_with(variable), "{what}");
        }
    }

    #[test]
    fn invalid_settings_are_refused_with_the_name_of_the_variable() {
        for (variable, value) in [
            (LINKS, "udp:::::"),
            (DEVICE, "a/b"),
            (DEVICE, ".."),
            (DEVICE, "edge0,"),
            (DEVICE, "siw=a"),
            (DEVICE, "iwarp="),
            (DEVICE, "edge0,edge0"),
            (DEVICE, "a,b,c,d,e,f,g,h,i"),
            (LINKS, "eth0//eth1"),
            (FAULTS, "loss"),
            (FAULTS, "loss=2"),
            (FAULTS, "luck=0.1"),
            (LOG, "loud"),
            (SLOT_BASE, "65536"),
            (PROGRESS_PROCESSOR, "-1"),
            (PROGRESS_PROCESSOR, "first"),
            (STRICT, "yes"),
        ] {
            let Err(Error::Invalid(what)) = read(&[(variable, value)]) else {
                panic!("{variable}={value} was accepted");
            };
            assert!(what.starts_with(variable), "{what}");
        }
    }
}
