//! The contenders: a device, kernel TCP or an MPI, each with its way to wait.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::mpi::{Mpi, Over};
use super::{DeviceRow, Operation};

/// A device on which programs can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Provided {
    /// `edge0`, over the edge protocol.
    Edge,
    /// `iwarp0`, over TCP.
    Iwarp,
    /// The adapter whose interface has a route to the peer.
    System,
}

impl Provided {
    /// The devices of `ethernot run`.
    const OF_RUN: [Self; 2] = [Self::Edge, Self::Iwarp];

    /// Returns the device's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Edge => EDGE,
            Self::Iwarp => IWARP,
            Self::System => SYSTEM,
        }
    }

    /// Returns whether a program that ran on a device of this name ran on this device.
    pub(super) fn is_named(self, device: &str) -> bool {
        self == Self::System || self.name() == device
    }

    /// Returns the words before the words of a program that make it use the device.
    pub(super) fn words(self, own_program: &Path) -> Vec<String> {
        let kind = match self {
            Self::Edge => "edge",
            Self::Iwarp => "iwarp",
            Self::System => return Vec::new(),
        };
        let program = own_program.display().to_string();
        vec![program, "run".into(), "--device".into(), kind.into(), "--".into()]
    }
}

/// A verbs device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Device {
    /// A device that `ethernot run` provides.
    Provided(Provided),
    /// The host's own devices.
    System,
    /// A name that belongs to no known device.
    Unknown(String),
}

impl Device {
    /// Returns the device with this name.
    pub fn named(name: &str) -> Self {
        let provided = Provided::OF_RUN.into_iter().find(|device| device.name() == name);
        match (provided, name) {
            (Some(device), _) => Self::Provided(device),
            (None, SYSTEM) => Self::System,
            (None, other) => Self::Unknown(other.to_string()),
        }
    }

    /// Returns the device's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Provided(device) => device.name(),
            Self::System => SYSTEM,
            Self::Unknown(name) => name,
        }
    }

    /// Returns the device's row. If the device cannot be measured, the row contains the reason.
    pub(super) fn row(&self, has_peer: bool) -> DeviceRow {
        let cannot_run = match self {
            Self::Provided(_) => None,
            Self::System if has_peer => None,
            Self::System => Some(why_no_system_device(Path::new(SYSTEM_DEVICES))),
            Self::Unknown(name) => {
                let known = format!("known devices are {EDGE}, {IWARP} and {SYSTEM}");
                Some(format!("this host has no device {name}; {known}"))
            }
        };
        DeviceRow { name: self.name().to_string(), transport: None, cannot_run }
    }
}

/// Returns the reason why the host's devices cannot be measured: they belong to the host's own
/// network namespace, so virtual hosts cannot use them.
fn why_no_system_device(folder: &Path) -> String {
    let names = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    if names.is_empty() {
        "this host has no RDMA device: neither an adapter nor rxe or siw, which `rdma link add` \
         creates"
            .to_string()
    } else {
        format!(
            "virtual hosts cannot use {}; name another host that has a device with --peer",
            names.join(", ")
        )
    }
}

/// How the programs wait for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Manner {
    /// The programs poll until a message arrives.
    Polling,
    /// The programs sleep until an event arrives. Over TCP, they block in system calls.
    Events,
}

impl Manner {
    /// Returns the name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Polling => "polling",
            Self::Events => "events",
        }
    }
}

/// A contender: the program that takes a sample, the device or transport that it uses, and its way
/// to wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Contender {
    /// `iwarp-perf` on a device.
    Verbs(Provided, Operation, Manner),
    /// `tcp-perf`.
    Tcp(Manner),
    /// `mpi-perf`.
    Mpi(Mpi, Over),
}

impl Contender {
    /// Returns the name in results: the device, and the way in which the programs wait.
    pub fn name(&self) -> String {
        match self {
            Self::Verbs(device, Operation::Write, manner) => {
                format!("{}-{}", device.name(), manner.name())
            }
            Self::Verbs(device, operation, manner) => {
                format!("{}-{}-{}", device.name(), operation.name(), manner.name())
            }
            Self::Tcp(manner) => format!("{TCP}-{}", manner.name()),
            Self::Mpi(mpi, over) => format!("{}-{}", mpi.name(), over.name()),
        }
    }

    /// Returns the name of the device, or of TCP.
    pub const fn device(&self) -> &'static str {
        match self {
            Self::Verbs(device, ..) => device.name(),
            Self::Tcp(_) => TCP,
            Self::Mpi(_, over) => over.name(),
        }
    }

    /// Returns the way in which the programs wait. MPI always polls.
    pub const fn manner(&self) -> Manner {
        match self {
            Self::Verbs(_, _, manner) | Self::Tcp(manner) => *manner,
            Self::Mpi(..) => Manner::Polling,
        }
    }

    /// Returns whether results contain the ratio of `self` to `other`. All contenders are compared
    /// with TCP. An MPI is also compared with the device and with the same MPI over TCP.
    pub fn is_compared_with(&self, other: &Self) -> bool {
        match (self, other) {
            (one, other) if one == other => false,
            (_, Self::Tcp(_)) | (Self::Mpi(..), Self::Verbs(..)) => true,
            (Self::Mpi(mpi, _), Self::Mpi(same, Over::Tcp)) => mpi == same,
            _ => false,
        }
    }

    /// Returns the number of operations in a round trip: 1 for reads, 2 for other operations.
    pub const fn halves(&self) -> f64 {
        if matches!(self, Self::Verbs(_, Operation::Read, _)) { 1.0 } else { 2.0 }
    }
}

/// Name of the edge device in results.
pub(super) const EDGE: &str = "edge0";
const IWARP: &str = "iwarp0";
pub(super) const TCP: &str = "tcp";
const SYSTEM: &str = "system";

/// Directory in which the kernel lists its verbs devices.
const SYSTEM_DEVICES: &str = "/sys/class/infiniband";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_device_has_a_row_with_the_reason() {
        for name in ["edge0", "iwarp0"] {
            let row = Device::named(name).row(false);
            assert_eq!((row.name.as_str(), row.cannot_run), (name, None));
        }
        let row = Device::named("mlx5_0").row(false);
        assert_eq!(row.name, "mlx5_0");
        assert!(row.cannot_run.is_some_and(|reason| reason.contains("no device mlx5_0;")));
        assert_eq!(Device::named("system").row(true).cannot_run, None);
        assert!(Device::named("system").row(false).cannot_run.is_some());
        let none = why_no_system_device(Path::new("/nowhere"));
        assert!(none.starts_with("this host has no RDMA device"), "{none}");
    }

    #[test]
    fn contenders_of_one_point_have_distinct_names() {
        let names = [
            Contender::Verbs(Provided::Edge, Operation::Write, Manner::Polling).name(),
            Contender::Verbs(Provided::Iwarp, Operation::Send, Manner::Polling).name(),
            Contender::Tcp(Manner::Events).name(),
        ];
        assert_eq!(names, ["edge0-polling", "iwarp0-send-polling", "tcp-events"]);
        let names = [Over::Edge, Over::Tcp].map(|over| Contender::Mpi(Mpi::OpenMpi, over).name());
        assert_eq!(names, ["open-mpi-edge0", "open-mpi-tcp"]);
    }

    #[test]
    fn mpi_is_compared_with_its_transport_and_with_itself_over_tcp() {
        let verbs = Contender::Verbs(Provided::Edge, Operation::Write, Manner::Polling);
        let tcp = Contender::Tcp(Manner::Polling);
        let [mpi, same, other] =
            [(Mpi::Mpich, Over::Edge), (Mpi::Mpich, Over::Tcp), (Mpi::OpenMpi, Over::Tcp)]
                .map(|(mpi, over)| Contender::Mpi(mpi, over));
        assert!(
            mpi.is_compared_with(&verbs)
                && mpi.is_compared_with(&same)
                && mpi.is_compared_with(&tcp)
        );
        assert!(!mpi.is_compared_with(&other) && !mpi.is_compared_with(&mpi));
        assert!(verbs.is_compared_with(&tcp) && !verbs.is_compared_with(&mpi));
    }
}
