//! Environment variables that give programs the edge's RDMA device, or move their TCP connections.
//! The variables name the libraries, and contain their settings.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;
use ethernot::LinkSpec;
use verbs_edge::Settings;

pub(crate) use sockets_options::SocketsOptions;

use crate::Failure;
use crate::link_names::try_links;
use crate::output::check_writable;

mod sockets_options;

/// The libraries that a program gets, and their settings.
#[derive(Debug, Args)]
pub(crate) struct Options {
    #[command(flatten)]
    pub(crate) device: DeviceOptions,
    #[command(flatten)]
    pub(crate) sockets: SocketsOptions,
}

/// Settings of the device.
#[derive(Debug, Args)]
pub(crate) struct DeviceOptions {
    /// Links to use, such as eth0,packet:eth1; `//` separates the lists of several devices
    /// [default: UDP on every interface that leaves the host]
    #[arg(long, value_name = "LINKS")]
    links: Option<String>,
    /// Name of the device that programs see. With several names, such as edge0,edge1, programs see
    /// several devices, each with its own links. `iwarp` is a device that speaks iWARP, RDMA over
    /// TCP [default: edge0]
    #[arg(long, value_name = "NAMES")]
    device: Option<String>,
    /// Write a trace of the device's actions to this file
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Write all frames to this file, for Wireshark
    #[arg(long, value_name = "FILE")]
    pcap: Option<PathBuf>,
    /// Lose, duplicate and reorder arriving frames with these probabilities, such as
    /// loss=0.01,dup=0.01,reorder=0.05. For iWARP devices, delay and cut readings and writings of
    /// their streams, such as delay=0.05,cut=0.3
    #[arg(long, value_name = "SHARES")]
    faults: Option<String>,
    /// Log to standard error: off, error, warn, info or debug [default: warn]
    #[arg(long, value_name = "LEVEL")]
    log: Option<String>,
    /// Provide exactly the requested depths, inline bytes and retries, like RDMA adapters; a full
    /// completion queue is an error
    #[arg(long)]
    strict: bool,
    /// Ask the peers of an iWARP device for CRCs, which protect each frame; a connection also has
    /// them if only the peer asks
    #[arg(long)]
    iwarp_crc: bool,
    /// Ask the peers of an iWARP device for markers, for tests; siw refuses such a connection
    #[arg(long)]
    iwarp_markers: bool,
    /// Let an iWARP device send frames (FPDUs) of at most this length, in bytes, from 128 to 65000
    /// [default: as long as the peer is known to take]
    #[arg(long, value_name = "BYTES")]
    iwarp_fpdu: Option<String>,
}

/// Variables and their values.
#[derive(Debug, Default)]
pub(crate) struct Variables(pub(crate) Vec<(&'static str, OsString)>);

impl Options {
    /// Returns the libraries that a program gets. A program gets the libraries of the device,
    /// except if only sockets are requested.
    pub(crate) fn wanted(&self) -> Wanted {
        let Self { device, sockets } = self;
        let says_device = sockets.rdma
            || device.device.is_some()
            || device.trace.is_some()
            || device.pcap.is_some()
            || device.strict
            || device.iwarp_crc
            || device.iwarp_markers
            || device.iwarp_fpdu.is_some();
        Wanted { device: says_device || !sockets.sockets, sockets: sockets.sockets }
    }
}

/// The kinds of libraries that a program gets. At least one field is true.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Wanted {
    /// The libraries of the RDMA device.
    pub(crate) device: bool,
    /// The library that moves TCP connections to the edge.
    pub(crate) sockets: bool,
}

impl Wanted {
    /// Returns the libraries in the order in which the loader must load them.
    fn libraries(self) -> Vec<&'static str> {
        let device = if self.device { LIBRARIES.as_slice() } else { &[] };
        device.iter().copied().chain(self.sockets.then_some(SOCKETS_LIBRARY)).collect()
    }
}

impl Variables {
    /// Returns the variables that must be set for these options, in addition to the variables of
    /// the environment. Fails if an option is invalid.
    pub(crate) fn of(options: &Options) -> Result<Self, Failure> {
        let wanted = options.wanted();
        let names = wanted.libraries();
        let libraries = Libraries::find(&names)?;
        let mut variables = Self::default();
        variables.preload(&libraries, &names);
        if wanted.device {
            variables.loader(&libraries);
            variables.device(&options.device)?;
        }
        if wanted.sockets {
            variables.sockets(options)?;
        }
        variables.launchers(&crate::own_program()?, wanted);
        if wanted.device {
            variables.frameworks();
            let settings = variables.settings()?;
            let files = [&settings.trace, &settings.pcap];
            check_writable(files.into_iter().flatten().map(PathBuf::as_path))?;
        }
        if wanted.sockets {
            sockets_options::check(&variables.sockets_settings()?)?;
        }
        Ok(variables)
    }

    /// Adds our libraries to those that the loader preloads.
    fn preload(&mut self, libraries: &Libraries, names: &[&str]) {
        let ours: Vec<OsString> =
            names.iter().map(|name| libraries.folder.join(name).into_os_string()).collect();
        let found = env::var_os("LD_PRELOAD").unwrap_or_default();
        self.set("LD_PRELOAD", in_front(&ours.join(OsStr::new(":")), &found, b": "));
    }

    /// Sets the other variables by which programs find our libraries and tools: the search path of
    /// the loader, the variable by which NCCL finds libibverbs, and the search path of programs.
    fn loader(&mut self, libraries: &Libraries) {
        let folder = &libraries.folder;
        let found = env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        self.set("LD_LIBRARY_PATH", in_front(folder.as_os_str(), &found, b":"));
        self.set("NCCL_IBVERBS_LIB", folder.join(LIBRARIES[0]).into_os_string());
        let tools = folder.join(TOOLS);
        if tools.is_dir() {
            let found = env::var_os("PATH").unwrap_or_default();
            self.set("PATH", in_front(tools.as_os_str(), &found, b":"));
        }
    }

    /// Sets the variables for the device's settings. Makes paths absolute, because programs may
    /// change their folder.
    fn device(&mut self, options: &DeviceOptions) -> Result<(), Failure> {
        let texts = [
            ("ETHERNOT_LINKS", &options.links),
            ("ETHERNOT_DEVICE", &options.device),
            ("ETHERNOT_FAULTS", &options.faults),
            ("ETHERNOT_LOG", &options.log),
            ("ETHERNOT_IWARP_FPDU", &options.iwarp_fpdu),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                self.set(name, text.into());
            }
        }
        let switches = [
            ("ETHERNOT_STRICT", options.strict),
            ("ETHERNOT_IWARP_CRC", options.iwarp_crc),
            ("ETHERNOT_IWARP_MARKERS", options.iwarp_markers),
        ];
        for (name, _) in switches.into_iter().filter(|(_, is_on)| *is_on) {
            self.set(name, "1".into());
        }
        for (name, path) in [("ETHERNOT_TRACE", &options.trace), ("ETHERNOT_PCAP", &options.pcap)] {
            if let Some(path) = path {
                let path = std::path::absolute(path)
                    .map_err(|error| format!("{}: {error}", path.display()))?;
                self.set(name, path.into_os_string());
            }
        }
        Ok(())
    }

    /// Makes MPI launchers start their daemons on other hosts by `ethernot run`. This is necessary,
    /// because daemons on other hosts do not inherit the variables of this command. The ranks
    /// inherit the variables from the daemons. Does not change a launcher's variable that the user
    /// has set.
    fn launchers(&mut self, own_program: &Path, wanted: Wanted) {
        let is_ours = |name: &OsStr| name.as_bytes().starts_with(PREFIX.as_bytes());
        let mut settings: Vec<_> = env::vars_os().filter(|(name, _)| is_ours(name)).collect();
        for (name, value) in self.0.iter().filter(|(name, _)| is_ours(OsStr::new(name))) {
            settings.retain(|(known, _)| known != name);
            settings.push((name.into(), value.clone()));
        }
        settings.sort();
        for (name, daemon) in LAUNCHERS {
            let before = env::var_os(name).unwrap_or_default();
            let is_free = before.is_empty() || is_own_agent(&before, daemon);
            if let Some(agent) = agent(&settings, own_program, wanted, daemon).filter(|_| is_free) {
                self.set(name, agent.into());
            }
        }
    }

    /// Sets variables that make frameworks choose the device. Does not change variables that the
    /// user has set.
    fn frameworks(&mut self) {
        for (name, value) in FRAMEWORKS {
            if env::var_os(name).is_none() {
                self.set(name, value.into());
            }
        }
    }

    /// Returns the settings that the library of the device will read.
    pub(crate) fn settings(&self) -> Result<Settings, Failure> {
        Ok(Settings::read(|name| Some(self.value(name)?.to_string_lossy().into_owned()))?)
    }

    /// Returns the settings that the library for sockets will read.
    pub(crate) fn sockets_settings(&self) -> Result<sockets::Settings, Failure> {
        let value = |name: &str| Some(self.value(name)?.to_string_lossy().into_owned());
        Ok(sockets::Settings::read(value)?)
    }

    /// Returns the value that the program will see for a variable.
    pub(crate) fn value(&self, name: &str) -> Option<OsString> {
        let set = self.0.iter().find(|(known, _)| *known == name);
        set.map(|(_, value)| value.clone()).or_else(|| env::var_os(name))
    }

    /// Checks the links. Finds the links in the same way as the device does. Opens and drops those
    /// links that need privileges.
    pub(crate) fn try_links(&self, wanted: Wanted) -> Result<(), Failure> {
        let mut specs = Vec::new();
        if wanted.device {
            let settings = self.settings()?;
            verbs_edge::devices(&settings)?;
            specs.extend(settings.links);
            specs.extend(settings.others.into_iter().flat_map(|device| device.links));
        }
        if wanted.sockets {
            specs.extend_from_slice(self.sockets_settings()?.links());
        }
        let is_raw =
            |link: &&LinkSpec| matches!(link, LinkSpec::Packet { .. } | LinkSpec::Xdp { .. });
        let mut links: Vec<_> = specs.iter().filter(is_raw).map(ToString::to_string).collect();
        links.dedup();
        try_links(&links)
    }

    fn set(&mut self, name: &'static str, value: OsString) {
        self.0.push((name, value));
    }
}

/// The folder with our libraries.
#[derive(Debug)]
struct Libraries {
    folder: PathBuf,
}

/// Returns the path of the library that moves connections, or the reason why it cannot be used.
pub(crate) fn find_sockets_library() -> Result<PathBuf, Failure> {
    Ok(Libraries::find(&[SOCKETS_LIBRARY])?.folder.join(SOCKETS_LIBRARY))
}

impl Libraries {
    /// Finds the libraries in the folder that the environment names, or near this program.
    fn find(names: &[&str]) -> Result<Self, Failure> {
        let folders = match env::var_os(PLACE).filter(|place| !place.is_empty()) {
            Some(place) => {
                let place = std::path::absolute(&place)
                    .map_err(|error| format!("{PLACE}={}: {error}", place.display()))?;
                vec![place]
            }
            None => beside(&crate::own_program()?),
        };
        let has_all = |folder: &&PathBuf| names.iter().all(|name| folder.join(name).is_file());
        let Some(folder) = folders.iter().find(has_all) else {
            let places: Vec<_> =
                folders.iter().map(|folder| folder.display().to_string()).collect();
            return Err(format!(
                "the libraries for programs ({}) are not in {}; build them with `cargo xtask \
                 libraries --release`, or name their folder in {PLACE}",
                names.join(", "),
                places.join(" nor in ")
            )
            .into());
        };
        for name in names {
            let path = folder.join(name);
            File::open(&path).map_err(|error| {
                format!(
                    "read the library {}: {error}; make the file readable for every user",
                    path.display()
                )
            })?;
        }
        if folder.as_os_str().as_bytes().iter().any(|byte| b": ".contains(byte)) {
            return Err(format!(
                "the libraries are in {}, but LD_PRELOAD permits no path with a space or a colon: \
                 copy the libraries to another folder, and name this folder in {PLACE}",
                folder.display()
            )
            .into());
        }
        Ok(Self { folder: folder.clone() })
    }
}

/// Returns the possible folders of the libraries for a program at this path, for installed programs
/// and for a build folder.
fn beside(program: &Path) -> Vec<PathBuf> {
    let Some(folder) = program.parent() else { return Vec::new() };
    let installed = folder.parent().map(|above| above.join(FOLDER));
    [installed, Some(folder.join(FOLDER))].into_iter().flatten().collect()
}

/// Returns a command line that starts a daemon with a device. The launcher splits the line at
/// spaces, and on some hosts a shell interprets the line. So a setting with special characters
/// would not arrive unchanged, and the function omits such settings. Returns `None` if the path of
/// this command has special characters.
fn agent(
    settings: &[(OsString, OsString)],
    own_program: &Path,
    wanted: Wanted,
    daemon: &str,
) -> Option<String> {
    let plain = |text: &OsStr| -> Option<String> {
        let text = text.to_str().filter(|text| !text.is_empty())?;
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./,:=%+@".contains(c);
        text.chars().all(is_plain).then(|| text.to_owned())
    };
    let mut words = vec!["env".to_owned()];
    for (name, value) in settings {
        if let (Some(name), Some(value)) = (plain(name), plain(value)) {
            words.push(format!("{name}={value}"));
        }
    }
    words.push(plain(own_program.as_os_str())?);
    words.push("run".into());
    words.extend(wanted.sockets.then(|| "--sockets".into()));
    words.extend((wanted.sockets && wanted.device).then(|| "--rdma".into()));
    words.extend(["--", daemon].map(str::to_owned));
    Some(words.join(" "))
}

/// Returns whether `agent`, the value of a launcher's variable, was set by `ethernot run` to start
/// `daemon`. If a program under `ethernot run` starts `ethernot run` again, the variable already
/// has such a value.
fn is_own_agent(agent: &OsStr, daemon: &str) -> bool {
    let words: Vec<&[u8]> = agent.as_bytes().split(|&byte| byte == b' ').collect();
    let own = ["run", "--sockets", "--rdma", "--"].map(str::as_bytes);
    let mut words = words.into_iter().rev();
    words.next() == Some(daemon.as_bytes())
        && words.next() == Some(b"--")
        && words.find(|word| !own[1..].contains(word)) == Some(own[0])
}

/// Returns a list of `ours` followed by `found`, without repetitions.
fn in_front(ours: &OsStr, found: &OsStr, separators: &[u8]) -> OsString {
    let parts = |list: &OsStr| -> Vec<OsString> {
        let parts = list.as_bytes().split(|byte| separators.contains(byte));
        parts.filter(|part| !part.is_empty()).map(|part| OsStr::from_bytes(part).into()).collect()
    };
    let mut all = parts(ours);
    for part in parts(found) {
        if !all.contains(&part) {
            all.push(part);
        }
    }
    all.join(OsStr::new(":"))
}

/// Returns the kernel's RDMA devices, which the preloaded library hides from a program.
pub(crate) fn hidden_devices() -> Vec<String> {
    // If this command runs under `ethernot run`, the visible devices are not the kernel's, but
    // those of the edge.
    let preloaded = env::var_os("LD_PRELOAD").unwrap_or_default();
    if preloaded.to_string_lossy().contains(PATHS) {
        return Vec::new();
    }
    let entries = fs::read_dir(verbs::sysfs::DEVICES).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// The libraries of the device, in the order in which the loader must load them.
const LIBRARIES: [&str; 3] = ["libibverbs.so.1", "librdmacm.so.1", PATHS];

/// The library that moves TCP connections of programs.
pub(crate) const SOCKETS_LIBRARY: &str = "libethernot-sockets.so";

/// The library that shows device files to programs.
const PATHS: &str = "libethernot_paths.so";

/// Folder in the folder of the libraries. It contains programs that other programs run to list
/// devices.
const TOOLS: &str = "bin";

/// Folder of the libraries, relative to the programs' folder or to the folder above it.
const FOLDER: &str = "lib/ethernot";

/// Prefix of the device's settings.
const PREFIX: &str = "ETHERNOT_";

/// For each launcher, the variable with the command by which the launcher starts its daemons on
/// other hosts, and the name of the daemon. The launchers are Open MPI up to 4, and PRRTE, which
/// starts the ranks of Open MPI 5.
const LAUNCHERS: [(&str, &str); 2] =
    [("OMPI_MCA_orte_launch_agent", "orted"), ("PRTE_MCA_prte_launch_agent", "prted")];

/// Variables that make frameworks choose the device.
///
/// Debian's Open MPI excludes libfabric (`mtl = ^ofi` in its configuration). If libfabric is
/// allowed, Open MPI prefers the device to TCP, and uses TCP if there is no device. By default,
/// Open MPI 5 would choose another provider of libfabric for the device, and hang.
///
/// UCX relies on the rates that interfaces report, and spreads large messages over all interfaces
/// that are nearly as fast as the fastest. TCP on the device's interface reports at least the rate
/// of the device. So the variable sets a low rate for TCP. UCX then uses TCP only for peers that
/// the device does not reach. UCX versions before 1.15 do not have this variable, and would print a
/// warning.
///
/// At the rates that interfaces report, UCX would send messages of up to 340 KB in pieces of 8 KB,
/// each of which costs a system call. From 64 KiB on, reading a message from the sender's memory is
/// faster (performance note 64).
const FRAMEWORKS: [(&str, &str); 5] = [
    ("OMPI_MCA_mtl", "ofi"),
    ("OMPI_MCA_mtl_ofi_provider_include", "verbs;ofi_rxm"),
    ("UCX_RNDV_THRESH", "64K"),
    ("UCX_TCP_MAX_BW", "1MBs"),
    ("UCX_WARN_UNUSED_ENV_VARS", "n"),
];

/// Variable with the folder of the libraries.
const PLACE: &str = "ETHERNOT_LIBRARIES";

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: Wanted = Wanted { device: true, sockets: false };

    #[test]
    fn launch_agents_set_by_this_command_are_recognized() {
        let is_own = |agent: &str| is_own_agent(OsStr::new(agent), "orted");
        assert!(is_own("env A=b /usr/bin/ethernot run -- orted"));
        assert!(is_own("env /usr/bin/ethernot run --sockets --rdma -- orted"));
        assert!(!is_own("my-orted") && !is_own("env ethernot run -- prted"));
        assert!(!is_own("wrapper --x -- orted"));
    }

    #[test]
    fn own_libraries_are_preloaded_first_and_existing_ones_are_kept() {
        let joined = |found: &str, separators: &[u8]| {
            in_front(OsStr::new("/o/a.so:/o/b.so"), OsStr::new(found), separators)
        };
        assert_eq!(joined("", b": "), "/o/a.so:/o/b.so");
        assert_eq!(joined("/x.so /y.so", b": "), "/o/a.so:/o/b.so:/x.so:/y.so");
        assert_eq!(joined("/x:/a folder::", b":"), "/o/a.so:/o/b.so:/x:/a folder");
        let once = joined("/x.so", b": ");
        assert_eq!(in_front(OsStr::new("/o/a.so:/o/b.so"), &once, b": "), once, "in itself");
    }

    #[test]
    fn a_daemon_gets_only_settings_that_need_no_quoting() {
        let settings = [("ETHERNOT_LINKS", "eth0,packet:eth1"), ("ETHERNOT_PCAP", "/a folder/x")];
        let settings = settings.map(|(name, value)| (name.into(), value.into()));
        let line = agent(&settings, Path::new("/usr/bin/ethernot"), DEVICE, "orted")
            .expect("a plain path");
        let expected = "env ETHERNOT_LINKS=eth0,packet:eth1 /usr/bin/ethernot run -- orted";
        assert_eq!(line, expected);
        assert_eq!(agent(&settings, Path::new("/a folder/ethernot"), DEVICE, "orted"), None);
    }

    #[test]
    fn libraries_are_beside_the_program_installed_or_built() {
        assert_eq!(
            beside(Path::new("/usr/bin/ethernot")),
            [Path::new("/usr/lib/ethernot"), Path::new("/usr/bin/lib/ethernot")]
        );
    }
}
