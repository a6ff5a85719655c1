//! The contenders: a device, kernel TCP or an MPI, each with its way to wait.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::mpi::{Mpi, Over};
use super::{DeviceRow, Operation};

/// A verbs device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Device {
    /// `edge0`, the device that `ethernot run` provides.
    Edge,
    /// The host's own devices.
    System,
    /// A name that belongs to no known device.
    Unknown(String),
}

impl Device {
    /// Returns the device with this name.
    pub fn named(name: &str) -> Self {
        match name {
            EDGE => Self::Edge,
            SYSTEM => Self::System,
            other => Self::Unknown(other.to_string()),
        }
    }

    /// Returns the device's name.
    pub fn name(&self) -> &str {
        match self {
            Self::Edge => EDGE,
            Self::System => SYSTEM,
            Self::Unknown(name) => name,
        }
    }

    /// Returns the device's row. If the device cannot be measured between two namespaces, the row
    /// contains the reason.
    pub(super) fn row(&self) -> DeviceRow {
        let cannot_run = match self {
            Self::Edge => None,
            Self::System => Some(why_no_system_device(Path::new(SYSTEM_DEVICES))),
            Self::Unknown(name) => {
                let known = format!("known devices are {EDGE} and {SYSTEM}");
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
            "virtual hosts cannot use {}; run iwarp-perf between two real hosts, as \
             docs/verbs-benchmark.md shows",
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
    /// `iwarp-perf` on `edge0`.
    Edge(Operation, Manner),
    /// `tcp-perf`.
    Tcp(Manner),
    /// `mpi-perf`.
    Mpi(Mpi, Over),
}

impl Contender {
    /// Returns the name in results: the device, and the way in which the programs wait.
    pub fn name(&self) -> String {
        match self {
            Self::Edge(Operation::Write, manner) => format!("{EDGE}-{}", manner.name()),
            Self::Edge(operation, manner) => {
                format!("{EDGE}-{}-{}", operation.name(), manner.name())
            }
            Self::Tcp(manner) => format!("{TCP}-{}", manner.name()),
            Self::Mpi(mpi, over) => format!("{}-{}", mpi.name(), over.name()),
        }
    }

    /// Returns the name of the device, or of TCP.
    pub const fn device(&self) -> &'static str {
        match self {
            Self::Edge(..) => EDGE,
            Self::Tcp(_) => TCP,
            Self::Mpi(_, over) => over.name(),
        }
    }

    /// Returns the way in which the programs wait. MPI always polls.
    pub const fn manner(&self) -> Manner {
        match self {
            Self::Edge(_, manner) | Self::Tcp(manner) => *manner,
            Self::Mpi(..) => Manner::Polling,
        }
    }

    /// Returns whether results contain the ratio of `self` to `other`. All contenders are compared
    /// with TCP. An MPI is also compared with the device and with the same MPI over TCP.
    pub fn is_compared_with(&self, other: &Self) -> bool {
        match (self, other) {
            (one, other) if one == other => false,
            (_, Self::Tcp(_)) | (Self::Mpi(..), Self::Edge(..)) => true,
            (Self::Mpi(mpi, _), Self::Mpi(same, Over::Tcp)) => mpi == same,
            _ => false,
        }
    }

    /// Returns the number of operations in a round trip: 1 for reads, 2 for other operations.
    pub const fn halves(&self) -> f64 {
        if matches!(self, Self::Edge(Operation::Read, _)) { 1.0 } else { 2.0 }
    }
}

/// Name of the edge device in results.
pub(super) const EDGE: &str = "edge0";
pub(super) const TCP: &str = "tcp";
const SYSTEM: &str = "system";

/// Directory in which the kernel lists its verbs devices.
const SYSTEM_DEVICES: &str = "/sys/class/infiniband";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_device_has_a_row_with_the_reason() {
        assert_eq!(Device::named("edge0").row().cannot_run, None);
        let row = Device::named("mlx5_0").row();
        assert_eq!(row.name, "mlx5_0");
        assert!(row.cannot_run.is_some_and(|reason| reason.contains("no device mlx5_0;")));
        let none = why_no_system_device(Path::new("/nowhere"));
        assert!(none.starts_with("this host has no RDMA device"), "{none}");
    }

    #[test]
    fn contenders_of_one_point_have_distinct_names() {
        let names = [
            Contender::Edge(Operation::Write, Manner::Polling).name(),
            Contender::Edge(Operation::Send, Manner::Polling).name(),
            Contender::Tcp(Manner::Events).name(),
        ];
        assert_eq!(names, ["edge0-polling", "edge0-send-polling", "tcp-events"]);
        let names = [Over::Edge, Over::Tcp].map(|over| Contender::Mpi(Mpi::OpenMpi, over).name());
        assert_eq!(names, ["open-mpi-edge0", "open-mpi-tcp"]);
    }

    #[test]
    fn mpi_is_compared_with_its_transport_and_with_itself_over_tcp() {
        let verbs = Contender::Edge(Operation::Write, Manner::Polling);
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
