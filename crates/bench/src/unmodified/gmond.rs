//! Ganglia's `gmond` with our own configuration, and a gatherer that connects to it.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::figures::{Quantity, Sample};
use super::folder::Folder;
use super::gatherer::{Gathered, Task};
use super::running::{ProgramError, ProgramPlace, Running, find};
use super::way::{PathTaken, Side, Way};
use crate::process::{ChildSpec, Role, SUBCOMMAND};
use testbed::clock::{self, Stopwatch};

/// A `gmond` that answers at an address and receives no reports from other hosts.
#[derive(Debug, Clone, Copy)]
pub struct Reporter<'a> {
    /// Name of the files that belong to this `gmond`.
    pub name: &'a str,
    /// The address at which this `gmond` answers.
    pub address: SocketAddr,
    /// Number of metrics that this `gmond` reports, 1 to [`METRICS_MAX`].
    pub metrics: usize,
}

/// Starts `reporter` and waits until it listens. Returns the program, and the folder to which the
/// library writes the program's counters.
///
/// # Errors
/// Returns [`ProgramError`]; each variant names one cause.
pub fn start(
    place: &ProgramPlace<'_>,
    way: Way,
    reporter: Reporter<'_>,
    folder: &Folder,
) -> Result<(Running, PathBuf), ProgramError> {
    let Reporter { name, address, metrics } = reporter;
    let failed = |source| ProgramError::Io { program: NAME.to_string(), source };
    let file = find(NAME, PACKAGE)?;
    let configuration = configuration(address, metrics).map_err(failed)?;
    let configuration = folder.write(&format!("{name}.conf"), configuration).map_err(failed)?;
    let counters = folder.counters().map_err(failed)?;
    let words = vec![file, "-c".to_string(), configuration.display().to_string()];
    let words = way.words(Side::Server, place.own_program, &counters, words);
    let mut running = Running::start(place, name, words)?;
    running.await_listening(address.port())?;
    Ok((running, counters))
}

/// A gatherer of reports.
#[derive(Debug, Clone, Copy)]
pub struct Gatherer<'a> {
    /// The host on which the gatherer runs.
    pub place: ProgramPlace<'a>,
    /// The configuration of the gatherer and the hosts.
    pub way: Way,
}

impl Gatherer<'_> {
    /// Runs the gatherer with `task`. Returns its results, its CPU seconds, and the library's
    /// counters in its process.
    ///
    /// # Errors
    /// Returns [`ProgramError`]; each variant names one cause.
    pub fn gather(
        &self,
        task: &Task,
        folder: &Folder,
    ) -> Result<(Gathered, f64, PathTaken), ProgramError> {
        let failed = |source| ProgramError::Io { program: GATHERER.to_string(), source };
        let counters = folder.counters().map_err(failed)?;
        let spec = ChildSpec {
            role: Role::Gatherer(task.clone()),
            namespace: None,
            cpu: self.place.cpu,
            parent: std::process::id(),
            links: Vec::new(),
        };
        let spec = serde_json::to_string(&spec).map_err(io::Error::from).map_err(failed)?;
        let own = self.place.own_program;
        let words = vec![own.display().to_string(), SUBCOMMAND.to_string(), spec];
        let words = self.way.words(Side::Client, own, &counters, words);
        let running = Running::start(&self.place, GATHERER, words)?;
        let finished = running.finish(Duration::from_secs_f64(task.seconds * 2.0 + 60.0))?;
        let gathered = finished.printed.lines().find_map(|line| serde_json::from_str(line).ok());
        let gathered = gathered.ok_or_else(|| ProgramError::NoResult {
            program: GATHERER.to_string(),
            line: finished.printed.lines().last().unwrap_or_default().to_string(),
        })?;
        let path = PathTaken::read(&counters).map_err(failed)?;
        Ok((gathered, finished.cpu_seconds, path))
    }

    /// Waits until all hosts report this number of metrics. The wait is needed because a host
    /// reports no metrics just after its start. Returns the bytes of the shortest and of the
    /// longest answer.
    ///
    /// # Errors
    /// Returns [`ProgramError`]; each variant names one cause.
    pub fn await_answers(
        &self,
        hosts: &[SocketAddr],
        metrics: usize,
        folder: &Folder,
    ) -> Result<[u64; 2], ProgramError> {
        let task = Task { hosts: hosts.to_vec(), is_parallel: false, seconds: 0.0 };
        let started = Stopwatch::start();
        loop {
            let (found, ..) = self.gather(&task, folder)?;
            if found.errors == 0 && found.metrics >= metrics as u64 {
                return Ok(found.bytes);
            }
            if started.has_passed(ANSWERS_WITHIN) {
                let said = found.first_error.unwrap_or_else(|| {
                    format!("the answer with the fewest metrics has {}", found.metrics)
                });
                let limit_seconds = ANSWERS_WITHIN.as_secs();
                return Err(ProgramError::TooSlow { program: NAME.into(), limit_seconds, said });
            }
            clock::sleep_until(clock::monotonic_ns() + BETWEEN_NS);
        }
    }

    /// Gathers for some time. Also measures the CPU time of `servers`, the processes of the hosts.
    ///
    /// # Errors
    /// Returns [`ProgramError`]; each variant names one cause.
    pub fn sample(
        &self,
        task: &Task,
        servers: &[Running],
        folder: &Folder,
    ) -> Result<Sample, ProgramError> {
        let seconds = || servers.iter().map(Running::cpu_seconds).sum::<f64>();
        let before = seconds();
        let (found, client_seconds, client_path) = self.gather(task, folder)?;
        let server_seconds = seconds() - before;
        let per_gather = |seconds: f64| seconds * 1e6 / found.gathers as f64;
        let answers = found.gathers * task.hosts.len() as u64;
        if found.errors >= answers {
            let said = found.first_error.unwrap_or_default();
            let status = "no answer from any host".to_string();
            return Err(ProgramError::Ended { program: GATHERER.to_string(), status, said });
        }
        let bytes = (found.bytes[0] + found.bytes[1]) as f64 / 2.0;
        let values = [
            (Quantity::PerSecond, found.gathers as f64 / found.seconds),
            (Quantity::BytesPerSecond, answers as f64 * bytes / found.seconds),
            (Quantity::LatencyP50Us, found.gather_us[0]),
            (Quantity::LatencyP99Us, found.gather_us[1]),
            (Quantity::ConnectUs, found.connect_us[0]),
            (Quantity::AnswerUs, found.answer_us[0]),
            (Quantity::ServerCpuUs, per_gather(server_seconds)),
            (Quantity::ClientCpuUs, per_gather(client_seconds)),
        ];
        Ok(Sample { values: values.into(), errors: found.errors, client_path })
    }
}

fn configuration(address: SocketAddr, metrics: usize) -> io::Result<String> {
    let modules = module_folder().ok_or_else(|| {
        io::Error::other(
            "modcpu.so of Ganglia is not in a folder `ganglia` of /usr/lib or /usr/lib64",
        )
    })?;
    let own = IpAddr::from([127, 0, 0, 1]);
    let (ip, port) = (address.ip(), address.port());
    let mut text = format!(
        "globals {{\n daemonize = no\n setuid = no\n debug_level = 0\n mute = no\n deaf = no\n host_dmax = 0\n \
         cleanup_threshold = 300\n gexec = no\n send_metadata_interval = 1\n}}\n\
         cluster {{\n name = \"ethernot\"\n owner = \"unspecified\"\n}}\nhost {{\n location = \"unspecified\"\n}}\n\
         udp_send_channel {{\n host = {own}\n port = {port}\n}}\n\
         udp_recv_channel {{\n bind = {own}\n port = {port}\n family = inet4\n}}\n\
         tcp_accept_channel {{\n bind = {ip}\n port = {port}\n family = inet4\n}}\n\
         modules {{\n module {{\n  name = \"core_metrics\"\n }}\n",
    );
    for module in MODULES {
        let file = modules.join(format!("mod{module}.so"));
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(
            text,
            " module {{\n  name = \"{module}_module\"\n  path = \"{}\"\n }}",
            file.display()
        );
    }
    text += "}\ncollection_group {\n collect_once = yes\n time_threshold = 20\n metric {\n  name = \"heartbeat\"\n }\n}\n\
             collection_group {\n collect_every = 60\n time_threshold = 60\n";
    for metric in METRICS.iter().take(metrics) {
        let _ = writeln!(text, " metric {{\n  name = \"{metric}\"\n }}");
    }
    text += "}\n";
    Ok(text)
}

/// Returns the folder of Ganglia's modules. It is in the folder of libraries, or in a subfolder of
/// that folder for the machine type.
fn module_folder() -> Option<PathBuf> {
    let tops = ["/usr/lib", "/usr/lib64", "/usr/local/lib"].map(PathBuf::from);
    let below = |top: &Path| {
        let entries = fs::read_dir(top).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect::<Vec<_>>()
    };
    let inside = tops.iter().flat_map(|top| below(top));
    let mut folders = tops.iter().cloned().chain(inside).map(|folder| folder.join("ganglia"));
    folders.find(|folder| folder.join("modcpu.so").is_file())
}

const NAME: &str = "gmond";
const PACKAGE: &str = "ganglia-monitor";
const GATHERER: &str = "gatherer";

const MODULES: [&str; 7] = ["cpu", "disk", "load", "mem", "net", "proc", "sys"];

/// Highest number of metrics that a host can report. With Ganglia's own configuration, most hosts
/// report exactly the metrics in `METRICS`.
pub const METRICS_MAX: usize = METRICS.len();

/// The metrics that a host can report. An answer with all of them has about 12 KB, and `gmond`
/// writes it by about a hundred calls.
const METRICS: [&str; 32] = [
    "cpu_num",
    "cpu_speed",
    "mem_total",
    "swap_total",
    "boottime",
    "machine_type",
    "os_name",
    "os_release",
    "cpu_user",
    "cpu_system",
    "cpu_idle",
    "cpu_nice",
    "cpu_aidle",
    "cpu_wio",
    "cpu_steal",
    "load_one",
    "load_five",
    "load_fifteen",
    "proc_run",
    "proc_total",
    "mem_free",
    "mem_shared",
    "mem_buffers",
    "mem_cached",
    "swap_free",
    "bytes_out",
    "bytes_in",
    "pkts_in",
    "pkts_out",
    "disk_total",
    "disk_free",
    "part_max_used",
];

/// Time limit for the first complete answers after the start.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// Interval between checks of the answers: 200 ms.
const BETWEEN_NS: u64 = 200_000_000;
