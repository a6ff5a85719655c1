//! The data that ranks exchange when they connect: greetings, and the table of rank 0.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ethernot::RemoteRegion;
use thiserror::Error;

use crate::network::PeerMemory;

/// The settings that must be equal on all ranks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Settings {
    pub(crate) size: u32,
    pub(crate) pages: u32,
    pub(crate) threads: u32,
    /// Whether races are detected.
    pub(crate) races: bool,
}

/// The private data of a connection.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Greeting {
    pub(crate) rank: u32,
    pub(crate) settings: Settings,
    pub(crate) process: u32,
    pub(crate) memory: PeerMemory,
    /// The name of the sender's host, as [`shown`] returns it.
    pub(crate) host: String,
}

impl Greeting {
    /// Encodes the greeting: magic, six numbers of 4 bytes, three regions, the name of the host.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        let Settings { size, pages, threads, races } = self.settings;
        for number in [self.rank, size, pages, threads, races.into(), self.process] {
            bytes.extend(number.to_le_bytes());
        }
        bytes.extend(self.memory.frames.to_bytes());
        bytes.extend(self.memory.control.to_bytes());
        bytes.extend(self.memory.masters.unwrap_or(self.memory.control).to_bytes());
        bytes.extend(shown(&self.host).into_bytes());
        bytes
    }

    /// Decodes a greeting.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, GreetingError> {
        let (name, rest) = bytes.split_first_chunk::<7>().ok_or(GreetingError::Malformed)?;
        let (version, rest) = rest.split_first().ok_or(GreetingError::Malformed)?;
        if name[..] != MAGIC[..7] {
            return Err(GreetingError::Malformed);
        }
        if *version != VERSION {
            return Err(GreetingError::Version(*version));
        }
        Self::decode(rest).ok_or(GreetingError::Malformed)
    }

    /// Decodes what follows the version.
    fn decode(rest: &[u8]) -> Option<Self> {
        let (numbers, rest) = rest.split_first_chunk::<24>()?;
        let (frames, rest) = rest.split_at_checked(RemoteRegion::BYTES)?;
        let (control, rest) = rest.split_at_checked(RemoteRegion::BYTES)?;
        let (masters, host) = rest.split_at_checked(RemoteRegion::BYTES)?;
        let mut numbers = numbers.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes));
        let mut number = || numbers.next();
        let (rank, size, pages) = (number()?, number()?, number()?);
        let (threads, races, process) = (number()?, number()? != 0, number()?);
        let frames = RemoteRegion::from_bytes(frames).ok()?;
        let control = RemoteRegion::from_bytes(control).ok()?;
        let masters = RemoteRegion::from_bytes(masters).ok().filter(|_| races);
        Some(Self {
            rank,
            settings: Settings { size, pages, threads, races },
            process,
            memory: PeerMemory { frames, control, masters },
            host: shown(&String::from_utf8_lossy(host)),
        })
    }

    /// Returns why a rank with these settings refuses the sender, or `None` if it does not.
    pub(crate) fn refusal(&self, own: Settings) -> Option<String> {
        let found = self.settings;
        let differs = |what, found: u32, own: u32| {
            let text = format!("it has {found} {what}, this rank {own}; use the same on all ranks");
            (found != own).then_some(text)
        };
        differs("ranks", found.size, own.size)
            .or_else(|| differs("pages", found.pages, own.pages))
            .or_else(|| differs("threads", found.threads, own.threads))
            .or_else(|| (found.races != own.races).then(|| RACES_DIFFER.to_owned()))
            .or_else(|| (self.rank >= own.size).then(|| format!("there is no rank {}", self.rank)))
    }

    /// Returns where the sender runs, for messages to people.
    pub(crate) fn place(&self) -> String {
        format!("process {} on {}", self.process, self.host)
    }
}

/// Returns the part of a host's name that is sent and printed: the first [`HOST_BYTES_MAX`] bytes,
/// without control characters, by which a peer could change what a terminal shows.
fn shown(host: &str) -> String {
    let mut name = String::new();
    for character in host.chars().filter(|character| !character.is_control()) {
        if name.len() + character.len_utf8() > HOST_BYTES_MAX {
            break;
        }
        name.push(character);
    }
    name
}

/// Returns the addresses of a table, by rank. Lines that are malformed are left out.
pub(crate) fn parse_table(table: &str) -> BTreeMap<usize, SocketAddr> {
    let parse = |line: &str| {
        let (rank, address) = line.split_once(' ')?;
        Some((rank.parse().ok()?, address.parse().ok()?))
    };
    table.lines().filter_map(parse).collect()
}

/// Decodes arbitrary bytes as a greeting, and as a table of addresses, for fuzzing. If the decoder
/// accepts a greeting, encodes it, decodes it again, and panics if the result differs.
#[doc(hidden)]
pub fn fuzz_greeting(bytes: &[u8]) {
    let _addresses = parse_table(&String::from_utf8_lossy(bytes));
    let Ok(greeting) = Greeting::from_bytes(bytes) else { return };
    assert_eq!(Greeting::from_bytes(&greeting.to_bytes()).as_ref(), Ok(&greeting));
    assert!(!greeting.place().contains(char::is_control));
}

/// Why a greeting cannot be decoded.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
pub(crate) enum GreetingError {
    #[error(
        "it is no rank of a program with shared memory; let each program meet at its own address"
    )]
    Malformed,
    #[error(
        "it speaks version {0} of the shared memory, this rank version {VERSION}; install the same release on all hosts"
    )]
    Version(u8),
}

/// `ENTDSMG` and the version.
const MAGIC: &[u8; 8] = b"ENTDSMG\x01";
const VERSION: u8 = MAGIC[7];

/// Why a rank is refused that alone detects races, or alone does not.
const RACES_DIFFER: &str = "only one of the ranks detects races; use the same options on all ranks";

/// Bytes of a host's name that are sent. A name of Linux has at most 64.
const HOST_BYTES_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use ethernot::RemoteKey;
    use proptest::prelude::*;

    use super::*;

    fn greeting() -> Greeting {
        let region = |key| RemoteRegion { key: RemoteKey(key), address: 4096, len: 8192 };
        Greeting {
            rank: 3,
            settings: Settings { size: 4, pages: 100, threads: 1, races: true },
            process: 77,
            memory: PeerMemory { frames: region(5), control: region(6), masters: Some(region(7)) },
            host: "node7".into(),
        }
    }

    #[test]
    fn a_greeting_comes_back_and_a_cut_one_is_none() {
        let bytes = greeting().to_bytes();
        let decoded = Greeting::from_bytes(&bytes).unwrap();
        assert_eq!((decoded.rank, decoded.settings), (3, greeting().settings));
        assert_eq!(decoded.memory.control, greeting().memory.control);
        assert_eq!(decoded.memory.masters, greeting().memory.masters);
        assert_eq!(decoded.place(), "process 77 on node7");
        let malformed = Some(GreetingError::Malformed);
        assert!((0..92).all(|length| Greeting::from_bytes(&bytes[..length]).err() == malformed));
        assert_eq!(Greeting::from_bytes(&[0; 100]).err(), malformed);
    }

    #[test]
    fn the_name_of_a_host_is_cut_between_characters_and_has_no_control_characters() {
        let of = |host: &str| {
            let bytes = Greeting { host: host.into(), ..greeting() }.to_bytes();
            Greeting::from_bytes(&bytes).unwrap().host
        };
        assert_eq!(of("node7\u{1b}[31m\n"), "node7[31m");
        assert_eq!(of(&"é".repeat(40)), "é".repeat(32));
        assert_eq!(of(&format!("x{}", "é".repeat(40))), format!("x{}", "é".repeat(31)));
        let mut bytes = Greeting { host: String::new(), ..greeting() }.to_bytes();
        bytes.extend([0xff; 64]);
        assert!(Greeting::from_bytes(&bytes).unwrap().host.len() <= HOST_BYTES_MAX);
    }

    fn region() -> impl Strategy<Value = RemoteRegion> {
        (any::<u32>(), any::<u64>(), any::<u64>()).prop_map(|(key, address, len)| RemoteRegion {
            key: RemoteKey(key),
            address,
            len,
        })
    }

    fn greetings() -> impl Strategy<Value = Greeting> {
        let settings = (any::<u32>(), any::<u32>(), any::<u32>(), any::<bool>());
        let regions = (region(), region(), region());
        (any::<[u32; 2]>(), settings, regions, "\\PC{0,16}").prop_map(
            |([rank, process], (size, pages, threads, races), regions, host)| {
                let (frames, control, masters) = regions;
                let masters = races.then_some(masters);
                let memory = PeerMemory { frames, control, masters };
                let settings = Settings { size, pages, threads, races };
                Greeting { rank, settings, process, memory, host }
            },
        )
    }

    proptest! {
        #[test]
        fn a_decoded_greeting_is_the_encoded_one(greeting in greetings()) {
            prop_assert_eq!(Greeting::from_bytes(&greeting.to_bytes()), Ok(greeting));
        }

        #[test]
        fn any_bytes_behind_a_greeting_or_instead_of_it_are_decoded_or_refused(
            greeting in greetings(),
            cut in 0_usize..100,
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            fuzz_greeting(&bytes);
            let mut changed = greeting.to_bytes();
            changed.truncate(cut);
            changed.extend(&bytes);
            fuzz_greeting(&changed);
        }
    }

    #[test]
    fn a_table_has_the_addresses_by_rank_and_skips_what_is_none() {
        let table = parse_table("1 127.0.0.1:80\nx 127.0.0.1:81\n2 nowhere\n\n3 [::1]:9\n");
        assert_eq!(table.keys().copied().collect::<Vec<_>>(), [1, 3]);
        assert_eq!(table[&1], "127.0.0.1:80".parse().unwrap());
    }

    #[test]
    fn another_version_is_refused_with_both_numbers() {
        let mut bytes = greeting().to_bytes();
        bytes[7] = 9;
        let error = Greeting::from_bytes(&bytes).unwrap_err();
        assert_eq!(error, GreetingError::Version(9));
        assert!(error.to_string().contains("version 9") && error.to_string().contains("version 1"));
    }

    #[test]
    fn other_settings_and_impossible_ranks_are_refused_with_both_numbers() {
        let own = greeting().settings;
        assert_eq!(greeting().refusal(own), None);
        let other = Settings { pages: 200, ..own };
        let text = greeting().refusal(other).unwrap();
        assert!(text.contains("100 pages") && text.contains("200"), "{text}");
        let text = greeting().refusal(Settings { races: false, ..own }).unwrap();
        assert!(text.contains("detects races"), "{text}");
        let beyond = Greeting { rank: 4, ..greeting() };
        assert!(beyond.refusal(own).unwrap().contains("no rank 4"));
    }
}
