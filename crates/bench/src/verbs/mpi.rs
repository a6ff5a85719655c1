//! The MPIs of this host: builds programs for them, and starts two ranks of a program on two hosts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Wishes;
use super::contender::{EDGE, TCP};
use super::hosts::Hosts;
use super::ranks::Ranks;
use super::traffic::Traffic;
use crate::unmodified::folder::Folder;
use crate::unmodified::running::{ProgramError, ProgramPlace, Running, find};

/// An implementation of MPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mpi {
    /// Open MPI 4 or 5.
    OpenMpi,
    /// MPICH 4.
    Mpich,
}

/// The transport that carries the messages of an MPI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Over {
    /// `edge0`.
    Edge,
    /// TCP, by the MPI's own code.
    Tcp,
}

/// A program with two ranks, built from its source in `tools/perf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tool {
    /// Measures bandwidth and latency.
    MpiPerf,
    /// Measures availability.
    CombMpi,
}

/// Why a program of two ranks has no result.
#[derive(Debug, thiserror::Error)]
pub(super) enum MpiError {
    #[error("{0}")]
    Missing(String),
    #[error(transparent)]
    Program(#[from] ProgramError),
    #[error(
        "{mpi} fell back to TCP: the hosts sent only {} datagrams of the device, which are too few \
         for the messages, and {} TCP segments; the value does not count",
        .sent.datagrams, .sent.segments
    )]
    FellBack { mpi: &'static str, sent: Traffic },
}

impl MpiError {
    /// Returns the error of a test that needs an MPI, if no MPI was prepared.
    pub(super) fn not_prepared() -> Self {
        Self::Missing(NOT_PREPARED.to_string())
    }
}

impl Mpi {
    /// All implementations.
    pub const ALL: [Self; 2] = [Self::OpenMpi, Self::Mpich];

    /// Returns the name in results.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OpenMpi => "open-mpi",
            Self::Mpich => "mpich",
        }
    }

    /// Returns pairs of compiler and launcher. The first pair has Debian's names. The second pair
    /// has the names under which a system installs its default MPI. Each program is listed with the
    /// package that contains it.
    const fn programs(self) -> [[(&'static str, &'static str); 2]; 2] {
        match self {
            Self::OpenMpi => [
                [("mpicc.openmpi", "libopenmpi-dev"), ("mpirun.openmpi", "openmpi-bin")],
                [("mpicc", "libopenmpi-dev"), ("mpirun", "openmpi-bin")],
            ],
            Self::Mpich => [
                [("mpicc.mpich", "libmpich-dev"), ("mpiexec.mpich", "mpich")],
                [("mpicc", "libmpich-dev"), ("mpiexec", "mpich")],
            ],
        }
    }

    /// Returns the text in the launcher's output that identifies the implementation.
    const fn sign(self) -> &'static str {
        match self {
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "HYDRA",
        }
    }

    /// Returns the launcher's options that select this transport.
    const fn options(self, over: Over) -> &'static str {
        match (self, over) {
            (Self::OpenMpi, Over::Edge) => "--mca pml cm",
            (Self::OpenMpi, Over::Tcp) => "--mca pml ob1 --mca btl tcp,self",
            (Self::Mpich, Over::Edge) => "",
            (Self::Mpich, Over::Tcp) => "-genv UCX_TLS tcp,self",
        }
    }
}

impl Over {
    /// Returns the name of the device, or of TCP.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Edge => EDGE,
            Self::Tcp => TCP,
        }
    }
}

impl Tool {
    const ALL: [Self; 2] = [Self::MpiPerf, Self::CombMpi];

    const fn name(self) -> &'static str {
        match self {
            Self::MpiPerf => "mpi-perf",
            Self::CombMpi => "comb-mpi",
        }
    }
}

/// The installed MPIs, each with the programs built for it. If an MPI cannot run, its entry
/// contains the reason.
#[derive(Debug)]
pub(super) struct Mpis {
    ranks: Ranks,
    found: [Result<Installed, String>; 2],
}

/// The results of a program of two ranks.
#[derive(Debug)]
pub(super) struct Ran {
    mpi: Mpi,
    over: Over,
    pub(super) printed: String,
    /// The traffic that both hosts together sent during the run.
    sent: Traffic,
}

/// An installed MPI.
#[derive(Debug)]
struct Installed {
    launcher: String,
    has_prrte: bool,
    /// The folder with the built programs.
    folder: PathBuf,
}

impl Mpis {
    /// Finds the MPIs, and builds the programs for them.
    pub(super) fn prepare(ranks: Ranks, folder: &Folder) -> Self {
        Self { ranks, found: Mpi::ALL.map(|mpi| Installed::prepare(mpi, folder)) }
    }

    /// Runs a program of two ranks with these arguments.
    pub(super) fn run(
        &self,
        (hosts, wishes): (&Hosts, &Wishes),
        (mpi, over): (Mpi, Over),
        tool: Tool,
        arguments: &str,
        limit: Duration,
    ) -> Result<Ran, MpiError> {
        let at = Mpi::ALL.iter().position(|one| *one == mpi).unwrap_or_default();
        let installed =
            self.found[at].as_ref().map_err(|reason| MpiError::Missing(reason.clone()))?;
        let client = hosts.client(wishes);
        let mut words = installed.launch(mpi, over, &self.ranks);
        words.extend(program_words(&client, over));
        words.push(installed.folder.join(tool.name()).display().to_string());
        words.extend(arguments.split_whitespace().map(str::to_string));
        let before = hosts.traffic();
        let name = format!("{}-{}", tool.name(), mpi.name());
        let running = Running::start(&client, &name, words)?;
        let finished = running.finish_after(DOCUMENT_ENDS, PARTING, limit);
        // Kill all processes of the hosts, because ranks have their own process groups and survive
        // a killed launcher.
        hosts.end_all();
        let printed = finished?.printed;
        let [client, server] = hosts.traffic();
        let sent = (client - before[0]) + (server - before[1]);
        Ok(Ran { mpi, over, printed, sent })
    }
}

impl Ran {
    /// Checks that the device carried the messages. `bytes` is the number of bytes in total.
    /// `messages` is the number of messages each of which could be sent only after the message
    /// before it had arrived.
    pub(super) fn check(&self, bytes: u64, messages: u64) -> Result<(), MpiError> {
        let Self { mpi, over, sent, .. } = self;
        if *over == Over::Tcp || sent.can_have_carried(bytes, messages) {
            return Ok(());
        }
        Err(MpiError::FellBack { mpi: mpi.name(), sent: *sent })
    }
}

impl Installed {
    fn prepare(mpi: Mpi, folder: &Folder) -> Result<Self, String> {
        let ([compiler, launcher], said) = installed(mpi)?;
        let version = said.split(')').nth(1).and_then(|rest| rest.trim().split('.').next());
        let has_prrte = mpi == Mpi::OpenMpi && version.and_then(|text| text.parse().ok()) > Some(4);
        let source = write_sources(folder).map_err(|error| format!("write a source: {error}"))?;
        let programs = folder.path().join(mpi.name());
        fs::create_dir_all(&programs).map_err(|error| format!("make a folder: {error}"))?;
        for tool in Tool::ALL {
            build(&compiler, &source, &programs, tool)?;
        }
        Ok(Self { launcher, has_prrte, folder: programs })
    }

    /// Returns the command line that starts a rank on each host. The caller appends the program and
    /// its arguments.
    fn launch(&self, mpi: Mpi, over: Over, ranks: &Ranks) -> Vec<String> {
        let [first, second] = ranks.addresses();
        let stand_in = ranks.stand_in().display();
        let arguments = match mpi {
            Mpi::OpenMpi if self.has_prrte => format!(
                "--allow-run-as-root --bind-to none --leave-session-attached \
                 --prtemca plm_ssh_agent {stand_in} --host {first}:1,{second}:1 -np 2"
            ),
            // Make the daemons end with the launcher, so that no process is left running.
            Mpi::OpenMpi => format!(
                "--allow-run-as-root --bind-to none --leave-session-attached \
                 --mca plm_rsh_agent {stand_in} --host {first}:1,{second}:1 -np 2"
            ),
            Mpi::Mpich => format!(
                "-launcher ssh -launcher-exec {stand_in} -localhost {first} -hosts {first}:1,{second}:1 -n 2"
            ),
        };
        let mut words = ranks.on_first();
        words.push(self.launcher.clone());
        let options = mpi.options(over);
        words.extend(
            arguments.split_whitespace().chain(options.split_whitespace()).map(str::to_string),
        );
        words
    }
}

/// Finds the compiler and the launcher of an MPI. Also returns the launcher's text about its
/// version.
fn installed(mpi: Mpi) -> Result<([String; 2], String), String> {
    let mut missing = String::new();
    for [compiler, launcher] in mpi.programs() {
        let found =
            find(compiler.0, compiler.1).and_then(|path| Ok([path, find(launcher.0, launcher.1)?]));
        match found {
            Ok(paths) => {
                let said = version_of(&paths[1]);
                if said.contains(mpi.sign()) {
                    return Ok((paths, said));
                }
            }
            Err(error) if missing.is_empty() => missing = error.to_string(),
            Err(_) => {}
        }
    }
    Err(if missing.is_empty() {
        format!("this host has no launcher of {}", mpi.name())
    } else {
        missing
    })
}

fn version_of(launcher: &str) -> String {
    let output = Command::new(launcher).arg("--version").output();
    output.map_or_else(|_| String::new(), |output| String::from_utf8_lossy(&output.stdout).into())
}

/// Writes the sources to a folder.
fn write_sources(folder: &Folder) -> std::io::Result<PathBuf> {
    for (name, text) in SOURCES {
        folder.write(&format!("{SOURCE_FOLDER}/{name}"), text)?;
    }
    Ok(folder.path().join(SOURCE_FOLDER))
}

fn build(compiler: &str, source: &Path, programs: &Path, tool: Tool) -> Result<(), String> {
    let output = Command::new(compiler)
        .args(["-std=gnu11", "-O2", "-o"])
        .arg(programs.join(tool.name()))
        .arg(source.join(tool.name()).with_extension("c"))
        .arg("-lm")
        .output()
        .map_err(|error| format!("run {compiler}: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let first = said.lines().find(|line| line.contains("error")).unwrap_or_default();
    Err(format!("{compiler} cannot build {}: {first}", tool.name()))
}

/// Returns the words that stand before a rank's program on the command line. They set environment
/// variables, because the launcher does not pass variables to other hosts.
fn program_words(place: &ProgramPlace<'_>, over: Over) -> Vec<String> {
    if over == Over::Tcp {
        return Vec::new();
    }
    let libraries = std::env::var(LIBRARIES).ok();
    let given = libraries.map(|folder| vec!["env".to_string(), format!("{LIBRARIES}={folder}")]);
    let run = [place.own_program.display().to_string(), "run".into(), "--".into()];
    given.into_iter().flatten().chain(run).collect()
}

/// The sources of the programs, and the files that they include.
const SOURCES: [(&str, &str); 8] = [
    ("comb-mpi.c", include_str!("../../../../tools/perf/comb-mpi.c")),
    ("comb.h", include_str!("../../../../tools/perf/comb.h")),
    ("command-line.h", include_str!("../../../../tools/perf/command-line.h")),
    ("library-name.h", include_str!("../../../../tools/perf/library-name.h")),
    ("mpi-perf.c", include_str!("../../../../tools/perf/mpi-perf.c")),
    ("option-values.h", include_str!("../../../../tools/perf/option-values.h")),
    ("runs.h", include_str!("../../../../tools/perf/runs.h")),
    ("windows.h", include_str!("../../../../tools/perf/windows.h")),
];

/// Name of the folder of sources in the folder of the run.
const SOURCE_FOLDER: &str = "mpi-sources";

/// Environment variable with the folder in which `ethernot run` finds its libraries.
const LIBRARIES: &str = "ETHERNOT_LIBRARIES";

/// The text at the end of a program's output.
const DOCUMENT_ENDS: &str = "\n}\n";

/// Time limit for a program to end after its output. MPICH over TCP sometimes does not end.
const PARTING: Duration = Duration::from_secs(5);

/// The reason why no MPI was prepared. Both ranks have the same command line, so they cannot have
/// different CPUs for the protocol.
const NOT_PREPARED: &str = "MPI is measured between namespaces only, and without --protocol-cpu";
