//! Parses links in the form in which users write them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use thiserror::Error;

use link::XdpMode;

use crate::nearest::nearest;
use crate::spec::{LinkSpec, RawOptions, UdpPlace, XdpOptions};

impl LinkSpec {
    /// Parses a list of at least one link. Commas separate the links.
    ///
    /// # Errors
    /// Returns [`LinkSpecError`] with the part of the text that is not a link.
    pub fn parse_list(text: &str) -> Result<Vec<Self>, LinkSpecError> {
        list(text)
    }
}

impl FromStr for LinkSpec {
    type Err = LinkSpecError;

    fn from_str(text: &str) -> Result<Self, LinkSpecError> {
        one(text)
    }
}

/// An error in the names of links.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[error("{part:?} (character {position} of the links {text:?}): {problem}")]
pub struct LinkSpecError {
    /// The whole text.
    pub text: String,
    /// The part that is wrong.
    pub part: String,
    /// Position of the part in the text, in characters from 1.
    pub position: usize,
    /// The error in the part.
    pub problem: LinkSpecProblem,
}

/// The error in a part of a link's name.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
#[non_exhaustive]
pub enum LinkSpecProblem {
    /// The name is empty.
    #[error("a name is missing here; separate links by single commas, such as eth0,packet:eth1")]
    Empty,
    /// There is no such kind of link.
    #[error("no kind of link has this name{}; the kinds are udp, packet, xdp and shm", meant(*.nearest))]
    Kind {
        /// The kind that was probably meant.
        nearest: Option<&'static str>,
    },
    /// No interface can have this name.
    #[error(
        "no interface can have this name; use 1 to 15 characters, none of them blank, `:` or `/`"
    )]
    InterfaceName,
    /// The text looks like an IP address but is not valid.
    #[error("this is not an IP address; write 10.0.0.1, [2001:db8::1] or [fe80::1%eth0]")]
    Address,
    /// A zone follows an address that is not link-local.
    #[error(
        "only link-local IPv6 addresses (fe80::/10) can name an interface; remove `%` and everything after it"
    )]
    Zone,
    /// The text is not a port.
    #[error("not a port; write a number from 0 (any free one) to 65535")]
    Port,
    /// The text is not the number of a receive queue.
    #[error(
        "not a receive queue; write a number from 0 and less than the number of queues (`ethtool -l` shows it)"
    )]
    Queue,
    /// The kind of link has no such option.
    #[error("{kind} links have no such option{}; they have {existing}", meant(*.nearest))]
    Option {
        /// The kind of the link.
        kind: &'static str,
        /// The option that was probably meant.
        nearest: Option<&'static str>,
        /// The options of this kind.
        existing: &'static str,
    },
    /// The text is not a VLAN identifier.
    #[error("not a VLAN identifier; write a number from 1 to 4094")]
    Vlan,
    /// The text is not an `EtherType`.
    #[error("not an EtherType; write a number from 0x600 to 0xffff, such as 0x88b5")]
    EtherType,
    /// The text is not a mode.
    #[error("not a mode; write generic, native or zero-copy{}", meant(*.nearest))]
    Mode {
        /// The mode that was probably meant.
        nearest: Option<&'static str>,
    },
    /// The text is neither `yes` nor `no`.
    #[error("not a choice; write `yes` or `no`: whether polling drives the queue")]
    BusyPoll,
    /// Text follows `shm`. An endpoint has at most one link over shared memory, so `shm` has no
    /// interface and no options.
    #[error("`shm` takes no options; remove everything after it")]
    AfterSharedMemory,
}

fn meant(nearest: Option<&'static str>) -> String {
    nearest.map_or_else(String::new, |nearest| format!(", did you mean {nearest:?}?"))
}

/// Parses a list of links.
pub(crate) fn list(text: &str) -> Result<Vec<LinkSpec>, LinkSpecError> {
    let reader = Reader { text };
    text.split(',').map(|item| reader.link(item)).collect()
}

/// Parses one link.
pub(crate) fn one(text: &str) -> Result<LinkSpec, LinkSpecError> {
    Reader { text }.link(text)
}

/// Holds the whole text. Every part is a slice of the text, so an error can contain the position of
/// the part that is wrong.
#[derive(Clone, Copy)]
struct Reader<'a> {
    text: &'a str,
}

impl<'a> Reader<'a> {
    fn link(self, item: &'a str) -> Result<LinkSpec, LinkSpecError> {
        let item = item.trim();
        if item.is_empty() {
            return Err(self.wrong(item, LinkSpecProblem::Empty));
        }
        let (kind, rest) = item.split_once(':').unwrap_or((item, ""));
        match kind {
            "shm" if kind.len() == item.len() => Ok(LinkSpec::SharedMemory),
            "shm" => Err(self.wrong(rest, LinkSpecProblem::AfterSharedMemory)),
            "udp" => self.udp(rest),
            "packet" => self.packet(rest),
            "xdp" => self.xdp(rest),
            _ => self.bare(item),
        }
    }

    fn udp(self, rest: &'a str) -> Result<LinkSpec, LinkSpecError> {
        let (place, port) = self.place(self.without_options(rest, "udp")?)?;
        Ok(LinkSpec::Udp { place, port })
    }

    fn packet(self, rest: &'a str) -> Result<LinkSpec, LinkSpecError> {
        let (head, options) = rest.split_once('/').unwrap_or((rest, ""));
        let (name, port) = split_number(head);
        let mut raw = RawOptions::default();
        for (name, value) in options_in(options) {
            if !self.raw_option(&mut raw, name, value)? {
                let existing = "port=, vlan= and ethertype=";
                return Err(self.no_option("packet", name, &RAW_OPTIONS, existing));
            }
        }
        if let Some(port) = port {
            raw.port = Some(self.port(port)?);
        }
        Ok(LinkSpec::Packet { interface: self.interface(name)?, options: raw })
    }

    fn xdp(self, rest: &'a str) -> Result<LinkSpec, LinkSpecError> {
        let (head, options) = rest.split_once('/').unwrap_or((rest, ""));
        let (name, queue) = split_number(head);
        let mut said = XdpOptions::default();
        for (name, value) in options_in(options) {
            if !self.raw_option(&mut said.raw, name, value)?
                && !self.xdp_option(&mut said, name, value)?
            {
                let names = [&RAW_OPTIONS[..], &["mode", "busy-poll"]].concat();
                let existing = "port=, vlan=, ethertype=, mode= and busy-poll=";
                return Err(self.no_option("xdp", name, &names, existing));
            }
        }
        let queue = queue.map_or(Ok(0), |queue| {
            queue.parse().map_err(|_| self.wrong(queue, LinkSpecProblem::Queue))
        })?;
        Ok(LinkSpec::Xdp { interface: self.interface(name)?, queue, options: said })
    }

    /// Parses a link without a kind: an interface or an address.
    fn bare(self, item: &'a str) -> Result<LinkSpec, LinkSpecError> {
        let kinds = ["udp", "packet", "xdp", "shm"];
        if let Some((word, rest)) = item.split_once(':')
            && !item.starts_with('[')
            && word.parse::<Ipv4Addr>().is_err()
        {
            // Find a word that the user probably meant as a kind: a colon follows the word, the
            // word is not part of an address, and no port follows the colon.
            let is_in_address = word.chars().all(|c| c.is_ascii_hexdigit());
            let is_port = rest.chars().all(|c| c.is_ascii_digit());
            let is_wrong = if rest.contains(':') { !is_in_address } else { !is_port };
            if is_wrong {
                let nearest = nearest(word, kinds.into_iter());
                return Err(self.wrong(word, LinkSpecProblem::Kind { nearest }));
            }
        }
        let (place, port) = self.place(self.without_options(item, "udp")?)?;
        Ok(match place {
            UdpPlace::Interface(interface) => LinkSpec::Interface { interface, port },
            place @ UdpPlace::Address { .. } => LinkSpec::Udp { place, port },
        })
    }

    /// Parses an address or an interface, and a port.
    fn place(self, text: &'a str) -> Result<(UdpPlace, Option<u16>), LinkSpecError> {
        if let Some(inside) = text.strip_prefix('[') {
            let not_closed = || self.wrong(text, LinkSpecProblem::Address);
            let (address, rest) = inside.split_once(']').ok_or_else(not_closed)?;
            let port = match rest.strip_prefix(':') {
                Some(port) => Some(self.port(port)?),
                None if rest.is_empty() => None,
                None => return Err(self.wrong(rest, LinkSpecProblem::Port)),
            };
            return Ok((self.v6(address)?, port));
        }
        if text.matches(':').count() > 1 {
            return Ok((self.v6(text)?, None));
        }
        let (host, port) = split_number(text);
        let port = port.map(|port| self.port(port)).transpose()?;
        if let Ok(ip) = host.parse::<Ipv4Addr>() {
            return Ok((UdpPlace::Address { ip: ip.into(), zone: None }, port));
        }
        let is_like_an_address =
            host.matches('.').count() == 3 && host.starts_with(|c: char| c.is_ascii_digit());
        if is_like_an_address {
            return Err(self.wrong(host, LinkSpecProblem::Address));
        }
        Ok((UdpPlace::Interface(self.interface(host)?), port))
    }

    /// Parses an IPv6 address, with or without a zone. Also accepts an IPv4 address, because users
    /// may write one in brackets.
    fn v6(self, text: &'a str) -> Result<UdpPlace, LinkSpecError> {
        let (address, zone) = match text.split_once('%') {
            Some((address, zone)) => (address, Some(zone)),
            None => (text, None),
        };
        let ip: IpAddr =
            address.parse().map_err(|_| self.wrong(address, LinkSpecProblem::Address))?;
        let is_local = |ip: &Ipv6Addr| ip.is_unicast_link_local();
        let zone = match (zone, ip) {
            (None, _) => None,
            (Some(zone), IpAddr::V6(ip)) if is_local(&ip) => Some(self.interface(zone)?),
            (Some(zone), _) => return Err(self.wrong(zone, LinkSpecProblem::Zone)),
        };
        Ok(UdpPlace::Address { ip, zone })
    }

    /// Sets an option that all links on raw Ethernet have. Returns false if `name` is not such an
    /// option.
    fn raw_option(
        self,
        options: &mut RawOptions,
        name: &'a str,
        value: &'a str,
    ) -> Result<bool, LinkSpecError> {
        match name {
            "port" => options.port = Some(self.port(value)?),
            "vlan" => {
                let vlan = value.parse().ok().filter(|vlan| (1..=4094).contains(vlan));
                options.vlan = Some(vlan.ok_or_else(|| self.wrong(value, LinkSpecProblem::Vlan))?);
            }
            "ethertype" => {
                let number = match value.strip_prefix("0x") {
                    Some(digits) => u16::from_str_radix(digits, 16),
                    None => value.parse(),
                };
                let number = number.ok().filter(|number| *number >= 0x600);
                options.ethertype =
                    Some(number.ok_or_else(|| self.wrong(value, LinkSpecProblem::EtherType))?);
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Sets an option that only `AF_XDP` links have. Returns false if `name` is not such an option.
    fn xdp_option(
        self,
        options: &mut XdpOptions,
        name: &'a str,
        value: &'a str,
    ) -> Result<bool, LinkSpecError> {
        match name {
            "mode" => {
                let mode = XdpMode::ALL.into_iter().find(|mode| mode.to_string() == value);
                let names = ["generic", "native", "zero-copy"].into_iter();
                let problem = || LinkSpecProblem::Mode { nearest: nearest(value, names) };
                options.mode = Some(mode.ok_or_else(|| self.wrong(value, problem()))?);
            }
            "busy-poll" => {
                options.busy_poll = match value {
                    "yes" => true,
                    "no" => false,
                    _ => return Err(self.wrong(value, LinkSpecProblem::BusyPoll)),
                };
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn no_option(
        self,
        kind: &'static str,
        name: &'a str,
        names: &[&'static str],
        existing: &'static str,
    ) -> LinkSpecError {
        let nearest = nearest(name, names.iter().copied());
        self.wrong(name, LinkSpecProblem::Option { kind, nearest, existing })
    }

    /// Returns the text. Fails if the text contains an option.
    fn without_options(self, text: &'a str, kind: &'static str) -> Result<&'a str, LinkSpecError> {
        match text.split_once('/') {
            None => Ok(text),
            Some((_, option)) => {
                let existing = "a port only, behind a colon; vlan= and ethertype= belong to packet and xdp links";
                let problem = LinkSpecProblem::Option { kind, nearest: None, existing };
                Err(self.wrong(option, problem))
            }
        }
    }

    fn interface(self, name: &'a str) -> Result<String, LinkSpecError> {
        let is_possible = (1..=INTERFACE_NAME_BYTES_MAX).contains(&name.len())
            && !matches!(name, "." | "..")
            && !name.contains(|c: char| c.is_whitespace() || matches!(c, '/' | ':' | '[' | ']'));
        if is_possible {
            Ok(name.into())
        } else {
            Err(self.wrong(name, LinkSpecProblem::InterfaceName))
        }
    }

    fn port(self, digits: &'a str) -> Result<u16, LinkSpecError> {
        digits.parse().map_err(|_| self.wrong(digits, LinkSpecProblem::Port))
    }

    #[cold]
    fn wrong(self, part: &'a str, problem: LinkSpecProblem) -> LinkSpecError {
        // Every part is a slice of the text, so the difference of the two addresses is the offset
        // of the part.
        let offset = part.as_ptr().addr().wrapping_sub(self.text.as_ptr().addr());
        let before = self.text.get(..offset).unwrap_or_default();
        LinkSpecError {
            text: self.text.into(),
            part: part.into(),
            position: before.chars().count() + 1,
            problem,
        }
    }
}

/// Returns the names and values of the options in a text. Slashes separate the options.
fn options_in(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let named = text.split('/').filter(|option| !option.is_empty());
    // If an option has no `=`, its value is an empty slice of the text.
    named.map(|option| option.split_once('=').unwrap_or(option.split_at(option.len())))
}

const RAW_OPTIONS: [&str; 3] = ["port", "vlan", "ethertype"];

/// Splits a text at the last colon, after which a number should follow.
fn split_number(text: &str) -> (&str, Option<&str>) {
    text.rsplit_once(':').map_or((text, None), |(name, number)| (name, Some(number)))
}

/// Longest name of an interface in bytes: the kernel's limit without the terminating zero.
const INTERFACE_NAME_BYTES_MAX: usize = 15;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_documented_forms_are_parsed() {
        for (text, expected) in [
            ("eth0", "eth0"),
            ("eth0:7471", "eth0:7471"),
            ("10.0.0.1", "udp:10.0.0.1"),
            ("udp:10.0.0.1:7471", "udp:10.0.0.1:7471"),
            ("udp:[fe80::1%eth0]:7", "udp:[fe80::1%eth0]:7"),
            ("fe80::1%eth0", "udp:[fe80::1%eth0]"),
            ("[2001:db8::1]:9", "udp:[2001:db8::1]:9"),
            ("udp:eth0", "udp:eth0"),
            ("packet:eth1", "packet:eth1"),
            ("packet:eth1.100:7", "packet:eth1.100:7"),
            ("packet:eth1/vlan=100", "packet:eth1/vlan=100"),
            ("packet:eth1/port=7/ethertype=0x88b6", "packet:eth1:7/ethertype=0x88b6"),
            ("xdp:eth2", "xdp:eth2:0"),
            ("xdp:eth2:3/port=5/vlan=7", "xdp:eth2:3/port=5/vlan=7"),
            ("xdp:eth2/mode=native/busy-poll=yes", "xdp:eth2:0/mode=native/busy-poll=yes"),
            ("xdp:eth2/busy-poll=no", "xdp:eth2:0"),
            ("shm", "shm"),
        ] {
            assert_eq!(text.parse::<LinkSpec>().unwrap().to_string(), expected, "{text}");
        }
        let list = LinkSpec::parse_list("eth0, packet:eth1,shm").unwrap();
        assert_eq!(list.len(), 3);
    }

    #[test]
    fn the_names_in_the_documentation_are_parsed() {
        let text = include_str!("../../../docs/links.md");
        let (_, section) = text.split_once("## Names").unwrap();
        let (section, _) = section.split_once("```text").unwrap();
        let rows = section.lines().filter(|line| line.starts_with("| `"));
        let mut count = 0;
        for name in rows.flat_map(|row| row.split('|').nth(1).unwrap_or("").split('`')) {
            if name.chars().any(char::is_alphanumeric) {
                assert!(name.parse::<LinkSpec>().is_ok(), "{name}");
                count += 1;
            }
        }
        assert!(count >= 14, "{count} names were found");
    }

    #[test]
    fn the_error_names_the_wrong_part_and_its_position() {
        for (text, part, position, hint) in [
            ("eth0,,eth1", "", 6, "single commas"),
            ("eth0,paket:eth1", "paket", 6, "did you mean \"packet\""),
            ("xpd:lo:0", "xpd", 1, "did you mean \"xdp\""),
            ("fe80::g", "fe80::g", 1, "not an IP address"),
            ("10.0.0.1:x", "x", 10, "65535"),
            ("udp:10.0.0.300", "10.0.0.300", 5, "not an IP address"),
            ("udp:10.0.0.1:70000", "70000", 14, "65535"),
            ("eth0:70000", "70000", 6, "65535"),
            ("packet:eth1/vlan=4095", "4095", 18, "4094"),
            ("packet:eth1/valn=7", "valn", 13, "vlan="),
            ("packet:eth1/vlam=7", "vlam", 13, "did you mean \"vlan\""),
            ("packet:eth1/ethertype=5", "5", 23, "0x600"),
            ("xdp:eth1/mode=nativ", "nativ", 15, "did you mean \"native\""),
            ("xdp:eth1/busy-poll", "", 19, "`yes` or `no`"),
            ("xdp:eth1/bussy-poll=no", "bussy-poll", 10, "did you mean \"busy-poll\""),
            ("packet:eth1/mode=native", "mode", 13, "port=, vlan= and ethertype="),
            ("xdp:eth2:many", "many", 10, "ethtool -l"),
            ("xdp:", "", 5, "15 characters"),
            ("udp:eth0/vlan=3", "vlan=3", 10, "packet and xdp"),
            ("udp:[fe80::1", "[fe80::1", 5, "fe80::1%eth0"),
            ("udp:[2001:db8::1%eth0]", "eth0", 18, "link-local"),
            ("shm:0", "0", 5, "takes no options"),
            ("éth0é,x:y", "x", 7, "kinds are"),
        ] {
            let error = LinkSpec::parse_list(text).unwrap_err();
            let message = error.to_string();
            assert_eq!((error.part.as_str(), error.position), (part, position), "{message}");
            assert!(message.contains(hint), "{message}");
        }
    }

    proptest! {
        #[test]
        fn a_printed_link_parses_to_the_same_link(list in proptest::collection::vec(spec(), 1..5)) {
            let text = list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            prop_assert_eq!(LinkSpec::parse_list(&text).unwrap(), list);
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in "[a-z0-9:/.,%=\\[\\] é]{0,40}") {
            match LinkSpec::parse_list(&text) {
                Ok(list) => prop_assert!(!list.is_empty()),
                Err(error) => prop_assert!(text.contains(&error.part)),
            }
        }
    }

    fn spec() -> impl Strategy<Value = LinkSpec> {
        let port = || proptest::option::of(any::<u16>());
        let interface = || "e[a-z0-9.@+-]{0,14}";
        let options = || {
            (port(), proptest::option::of(1..=4094_u16), proptest::option::of(0x600..=u16::MAX))
                .prop_map(|(port, vlan, ethertype)| RawOptions { port, vlan, ethertype })
        };
        let place = prop_oneof![
            any::<Ipv4Addr>().prop_map(|ip| UdpPlace::Address { ip: ip.into(), zone: None }),
            any::<u128>()
                .prop_map(|bits| UdpPlace::Address { ip: Ipv6Addr::from(bits).into(), zone: None }),
            (any::<u64>(), interface()).prop_map(|(low, zone)| UdpPlace::Address {
                ip: Ipv6Addr::from(0xfe80_u128 << 112 | u128::from(low)).into(),
                zone: Some(zone),
            }),
            interface().prop_map(UdpPlace::Interface),
        ];
        let xdp_options = || {
            let mode = proptest::option::of(proptest::sample::select(&XdpMode::ALL[..]));
            (options(), mode, any::<bool>()).prop_map(|(raw, mode, busy_poll)| XdpOptions {
                raw,
                mode,
                busy_poll,
            })
        };
        prop_oneof![
            (interface(), port())
                .prop_map(|(interface, port)| LinkSpec::Interface { interface, port }),
            (place, port()).prop_map(|(place, port)| LinkSpec::Udp { place, port }),
            (interface(), options())
                .prop_map(|(interface, options)| LinkSpec::Packet { interface, options }),
            (interface(), any::<u32>(), xdp_options()).prop_map(|(interface, queue, options)| {
                LinkSpec::Xdp { interface, queue, options }
            }),
            Just(LinkSpec::SharedMemory),
        ]
    }
}
