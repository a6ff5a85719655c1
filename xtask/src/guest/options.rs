//! The command line of `cargo xtask guest`.

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use super::error::GuestError;

/// A command of `cargo xtask guest`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum GuestCommand {
    /// Fetches packages and builds the kernel module and the file system.
    Build,
    /// Starts a guest, runs a command in it, and ends it.
    Run { machine: MachineOptions, command: String, limit: Duration },
    /// Starts two guests on one network, runs a command on the host, and ends them.
    Pair { machine: MachineOptions, command: String },
    /// Starts a guest that runs until `stop`.
    Start { name: String, machine: MachineOptions },
    /// Runs a command in a started guest.
    Exec { name: String, command: String, limit: Duration },
    /// Ends a started guest.
    Stop { name: String },
}

/// What a guest consists of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct MachineOptions {
    pub(crate) network: Network,
    /// The RDMA device on the network card. Without a card there is none.
    pub(crate) device: Device,
    pub(crate) clock: Clock,
    /// Number of virtual processors; 1 if the clock counts instructions.
    pub(crate) processors: u32,
    pub(crate) memory_mib: u32,
    /// A folder of the host that the guest sees as /share, absolute.
    pub(crate) share: Option<PathBuf>,
    /// The file that receives all frames of the network card, absolute.
    pub(crate) capture: Option<PathBuf>,
}

/// The network card of a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Network {
    /// No card. Tests use interfaces inside the guest.
    None,
    /// A network in user space, which needs no rights. The guest reaches the host as 10.0.2.2.
    User(Vec<Forward>),
    /// A tap interface, which needs root. It exists as long as the guest.
    Tap { interface: String, host: Subnet, guest: Ipv4Addr },
    /// The network of a pair. Only `pair` uses it.
    Wire(Side),
}

/// A TCP port of the host's loopback address that leads to a port of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forward {
    pub(crate) host: u16,
    pub(crate) guest: u16,
}

/// An address with the length of its network's prefix in bits (at most 32).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subnet {
    pub(crate) address: Ipv4Addr,
    pub(crate) prefix: u8,
}

/// One of the two guests of a pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    A,
    B,
}

/// An RDMA device of Linux that needs no hardware.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Device {
    /// iWARP over TCP.
    Siw,
    /// RoCE version 2.
    Rxe,
}

/// What advances the guest's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clock {
    /// The host's clock.
    Host,
    /// One nanosecond for each executed instruction, so that measured times do not depend on the
    /// load of the host.
    Instructions,
}

/// Parses the arguments after `guest`.
pub(crate) fn parse(arguments: &[String]) -> Result<GuestCommand, GuestError> {
    let Some((command, rest)) = arguments.split_first() else {
        return Err(usage("`guest` needs a command: build, run, pair, start, exec or stop"));
    };
    match command.as_str() {
        "build" => {
            Parsed::from(rest, &[])?.without_command()?;
            Ok(GuestCommand::Build)
        }
        "run" => {
            let parsed = Parsed::from(rest, &[MACHINE, &["--seconds"]])?;
            let (machine, limit) = (parsed.machine()?, parsed.limit()?);
            Ok(GuestCommand::Run { machine, command: parsed.command()?, limit })
        }
        "pair" => {
            let parsed = Parsed::from(rest, &[MACHINE])?;
            if parsed.value("--net").is_some() {
                return Err(usage("`pair` takes no --net: the guests have their own network"));
            }
            let machine = parsed.machine_on(Network::Wire(Side::A))?;
            Ok(GuestCommand::Pair { machine, command: parsed.command()? })
        }
        "start" => {
            let parsed = Parsed::from(rest, &[MACHINE, &["--name"]])?;
            let (name, machine) = (parsed.name()?, parsed.machine()?);
            parsed.without_command()?;
            Ok(GuestCommand::Start { name, machine })
        }
        "exec" => {
            let parsed = Parsed::from(rest, &[&["--name", "--seconds"]])?;
            let (name, limit) = (parsed.name()?, parsed.limit()?);
            Ok(GuestCommand::Exec { name, command: parsed.command()?, limit })
        }
        "stop" => {
            let parsed = Parsed::from(rest, &[&["--name"]])?;
            let name = parsed.name()?;
            parsed.without_command()?;
            Ok(GuestCommand::Stop { name })
        }
        other => Err(usage(&format!("unknown command `guest {other}`"))),
    }
}

/// Options with their values, and the words after `--`.
struct Parsed<'a> {
    options: Vec<(&'a str, &'a str)>,
    command: Option<&'a [String]>,
}

impl<'a> Parsed<'a> {
    fn from(arguments: &'a [String], allowed: &[&[&str]]) -> Result<Self, GuestError> {
        let mut options: Vec<(&str, &str)> = Vec::new();
        let mut left = arguments.iter();
        while let Some(option) = left.next() {
            if option == "--" {
                return Ok(Self { options, command: Some(left.as_slice()) });
            }
            if !allowed.iter().any(|some| some.contains(&option.as_str())) {
                return Err(usage(&format!("unknown option `{option}`")));
            }
            if options.iter().any(|(other, _)| other == option) {
                return Err(usage(&format!("`{option}` occurs twice")));
            }
            let value = left.next().ok_or_else(|| usage(&format!("`{option}` needs a value")))?;
            options.push((option, value));
        }
        Ok(Self { options, command: None })
    }

    fn value(&self, option: &str) -> Option<&'a str> {
        self.options.iter().find(|(name, _)| *name == option).map(|(_, value)| *value)
    }

    /// Returns the words after `--` as one line for a shell.
    fn command(&self) -> Result<String, GuestError> {
        match self.command {
            Some(words) if !words.is_empty() => Ok(words.join(" ")),
            _ => Err(usage("the command to run is missing; write it after `--`")),
        }
    }

    fn without_command(&self) -> Result<(), GuestError> {
        self.command.map_or(Ok(()), |_| Err(usage("this command takes nothing after `--`")))
    }

    fn name(&self) -> Result<String, GuestError> {
        let name = self.value("--name").unwrap_or(NAME);
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || !name.chars().all(is_plain) {
            return Err(invalid("--name", name, "letters, digits, `-` and `_`"));
        }
        Ok(name.into())
    }

    fn limit(&self) -> Result<Duration, GuestError> {
        Ok(self.number("--seconds")?.map_or(LIMIT, |s| Duration::from_secs(s.into())))
    }

    fn number(&self, option: &str) -> Result<Option<u32>, GuestError> {
        let number = |value: &str| match value.parse() {
            Ok(number) if number > 0 => Ok(number),
            _ => Err(invalid(option, value, "a number from 1")),
        };
        self.value(option).map(number).transpose()
    }

    fn path(&self, option: &str) -> Result<Option<PathBuf>, GuestError> {
        let absolute =
            |value| std::path::absolute(value).map_err(|_| invalid(option, value, "a path"));
        self.value(option).map(absolute).transpose()
    }

    fn machine(&self) -> Result<MachineOptions, GuestError> {
        self.machine_on(self.value("--net").map_or(Ok(Network::None), parse_network)?)
    }

    fn machine_on(&self, network: Network) -> Result<MachineOptions, GuestError> {
        let capture = self.path("--pcap")?;
        if capture.is_some() && network == Network::None {
            return Err(usage(
                "`--pcap` needs a network card; add `--net user` or `--net tap:...`",
            ));
        }
        let device = match self.value("--device") {
            None | Some("siw") => Device::Siw,
            Some("rxe") => Device::Rxe,
            Some(other) => return Err(invalid("--device", other, "siw or rxe")),
        };
        let clock = match self.value("--clock") {
            None | Some("host") => Clock::Host,
            Some("instructions") => Clock::Instructions,
            Some(other) => return Err(invalid("--clock", other, "host or instructions")),
        };
        let processors = self.number("--processors")?;
        if clock == Clock::Instructions && processors.is_some_and(|number| number > 1) {
            return Err(usage("`--clock instructions` works with one processor only"));
        }
        Ok(MachineOptions {
            network,
            device,
            clock,
            processors: processors.unwrap_or(if clock == Clock::Host { PROCESSORS } else { 1 }),
            memory_mib: self.number("--memory")?.unwrap_or(MEMORY_MIB),
            share: self.path("--share")?,
            capture,
        })
    }
}

fn parse_network(value: &str) -> Result<Network, GuestError> {
    let parsed = match value.split_once(':') {
        None if value == "none" => Some(Network::None),
        None if value == "user" => Some(Network::User(Vec::new())),
        Some(("user", forwards)) => {
            forwards.split(',').map(parse_forward).collect::<Option<_>>().map(Network::User)
        }
        Some(("tap", tap)) => parse_tap(tap),
        _ => None,
    };
    parsed.ok_or_else(|| invalid("--net", value, "none, user, user:HOST=GUEST[,...] (TCP ports) or tap:NAME,HOST/PREFIX,GUEST (addresses)"))
}

fn parse_forward(value: &str) -> Option<Forward> {
    let (host, guest) = value.split_once('=')?;
    Some(Forward { host: host.parse().ok()?, guest: guest.parse().ok()? })
}

fn parse_tap(value: &str) -> Option<Network> {
    let mut parts = value.split(',');
    let (interface, host, guest) = (parts.next()?, parts.next()?, parts.next()?);
    let (address, prefix) = host.split_once('/')?;
    let prefix = prefix.parse().ok().filter(|prefix| *prefix <= 32)?;
    let host = Subnet { address: address.parse().ok()?, prefix };
    let is_interface = (1..=INTERFACE_BYTES_MAX).contains(&interface.len())
        && interface.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
    (is_interface && parts.next().is_none()).then_some(Network::Tap {
        interface: interface.into(),
        host,
        guest: guest.parse().ok()?,
    })
}

fn usage(what: &str) -> GuestError {
    GuestError::Usage { what: what.into() }
}

fn invalid(option: &str, value: &str, wanted: &str) -> GuestError {
    usage(&format!("invalid value `{value}` of `{option}`: not {wanted}"))
}

/// Options of `run`, `pair` and `start`.
const MACHINE: &[&str] =
    &["--net", "--device", "--clock", "--processors", "--memory", "--share", "--pcap"];

/// Name of a guest that has been given none.
const NAME: &str = "guest";

/// Time that a command may take by default.
const LIMIT: Duration = Duration::from_mins(10);

const PROCESSORS: u32 = 2;

/// Enough for the file system (about 50 MiB) and for regions of half a gibibyte.
const MEMORY_MIB: u32 = 768;

/// The longest name of an interface in Linux (`IFNAMSIZ` is 16 with the terminating zero).
const INTERFACE_BYTES_MAX: usize = 15;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<GuestCommand, String> {
        let words: Vec<String> = line.split_whitespace().map(String::from).collect();
        parse(&words).map_err(|error| error.to_string())
    }

    fn machine(line: &str) -> MachineOptions {
        match parsed(&format!("run {line} -- true")).expect("valid options") {
            GuestCommand::Run { machine, .. } => machine,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn run_without_options_has_no_card_and_the_hosts_clock() {
        let machine = machine("");
        assert_eq!(machine.network, Network::None);
        assert_eq!((machine.clock, machine.processors), (Clock::Host, PROCESSORS));
        assert_eq!((machine.share, machine.capture), (None, None));
    }

    #[test]
    fn the_words_after_the_dashes_become_one_line() {
        let command = parsed("exec --name a --seconds 7 -- echo --name b").expect("valid");
        let (name, limit) = ("a".into(), Duration::from_secs(7));
        assert_eq!(command, GuestCommand::Exec { name, command: "echo --name b".into(), limit });
    }

    #[test]
    fn every_kind_of_network_is_parsed() {
        assert_eq!(machine("--net none").network, Network::None);
        assert_eq!(machine("--net user").network, Network::User(vec![]));
        let forwards = vec![Forward { host: 1, guest: 2 }, Forward { host: 3, guest: 4 }];
        assert_eq!(machine("--net user:1=2,3=4").network, Network::User(forwards));
        let host = Subnet { address: Ipv4Addr::new(10, 18, 0, 1), prefix: 24 };
        let guest = Ipv4Addr::new(10, 18, 0, 2);
        let tap = Network::Tap { interface: "tap7".into(), host, guest };
        assert_eq!(machine("--net tap:tap7,10.18.0.1/24,10.18.0.2").network, tap);
    }

    #[test]
    fn malformed_networks_are_refused_with_the_forms() {
        for network in [
            "",
            "wire",
            "user:",
            "user:1",
            "user:1=70000",
            "user:x=1",
            "tap",
            "tap:t",
            "tap:t,10.0.0.1,10.0.0.2",
            "tap:t,10.0.0.1/33,10.0.0.2",
            "tap:,10.0.0.1/24,10.0.0.2",
            "tap:t,10.0.0.1/24,10.0.0.2,x",
            "tap:name-longer-than-15,10.0.0.1/24,10.0.0.2",
        ] {
            let error = parse_network(network).expect_err(network).to_string();
            assert!(error.contains("user:HOST=GUEST"), "{network}: {error}");
        }
    }

    #[test]
    fn an_instruction_clock_means_one_processor() {
        assert_eq!(machine("--clock instructions").processors, 1);
        let error = parsed("run --clock instructions --processors 2 -- true").expect_err("two");
        assert!(error.contains("one processor only"), "{error}");
    }

    #[test]
    fn a_capture_needs_a_card() {
        assert!(machine("--net user --pcap x").capture.is_some_and(|path| path.is_absolute()));
        assert!(parsed("run --net none --pcap x -- true").is_err());
        assert!(parsed("run --pcap x -- true").is_err());
        assert!(parsed("pair --pcap x -- true").is_ok());
    }

    #[test]
    fn malformed_command_lines_are_refused() {
        for line in [
            "",
            "boot",
            "run",
            "run --",
            "run true",
            "run --net",
            "run --name x -- true",
            "run --device ib -- true",
            "run --clock x -- true",
            "run --processors 0 -- true",
            "run --seconds -1 -- true",
            "run --device siw --device rxe -- true",
            "start -- true",
            "start --name a/b",
            "stop --seconds 3",
            "build --device siw",
            "pair --net user -- true",
            "pair --seconds 3 -- true",
        ] {
            assert!(parsed(line).is_err(), "{line}");
        }
    }
}
