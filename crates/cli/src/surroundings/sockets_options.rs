//! Options for TCP connections that move, and the environment variables for these options.

use std::path::{Path, PathBuf};

use clap::Args;
use sockets::Settings;

use super::{Options, Variables};
use crate::Failure;
use crate::output::check_writable;

/// Which connections move, and how threads wait for them.
#[derive(Debug, Args)]
#[command(next_help_heading = "TCP connections that move")]
pub(crate) struct SocketsOptions {
    /// Move TCP connections to the edge if the peer supports it
    #[arg(long)]
    pub(super) sockets: bool,
    /// Also give the program the RDMA device
    #[arg(long, requires = "sockets")]
    pub(super) rdma: bool,
    /// When connections move: always (at the first use), never, or when-it-pays (after a connection
    /// has lasted, and only within a host, over several links or with --poll) [default:
    /// when-it-pays]
    #[arg(long = "move", value_name = "WHEN", requires = "sockets")]
    moving: Option<String>,
    /// Spin for data instead of sleeping: always, never, adaptive, or for this number of
    /// microseconds [default: adaptive; --poll without a value means always]
    #[arg(
        long,
        value_name = "WHEN",
        requires = "sockets",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "always"
    )]
    poll: Option<String>,
    /// Peers to which connections may move: networks, host (the networks of this host's
    /// interfaces), all or none [default: host]
    #[arg(long, value_name = "NETWORKS", requires = "sockets")]
    networks: Option<String>,
    /// Ports of services whose connections stay on TCP, such as 22,8000-8099
    #[arg(long, value_name = "PORTS", requires = "sockets")]
    except_ports: Option<String>,
    /// File of rules, one per line, such as `tcp port 22` or `edge 10.0.0.0/8`; the first rule that
    /// matches a connection decides
    #[arg(long, value_name = "FILE", requires = "sockets")]
    rules: Option<PathBuf>,
    /// Log events of connections to FILE, instead of to standard error
    #[arg(long, value_name = "FILE", requires = "sockets")]
    log_file: Option<PathBuf>,
    /// Make each process write its counters to a file in this folder
    #[arg(long, value_name = "FOLDER", requires = "sockets")]
    counters: Option<PathBuf>,
}

impl Variables {
    /// Sets the variables of the library that moves connections. Makes paths absolute, because
    /// programs may change their folder.
    pub(super) fn sockets(&mut self, options: &Options) -> Result<(), Failure> {
        let Options { device, sockets } = options;
        let texts = [
            ("ETHERNOT_SOCKETS_LINKS", &device.links),
            ("ETHERNOT_SOCKETS_FAULTS", &device.faults),
            ("ETHERNOT_SOCKETS_LOG", &device.log),
            ("ETHERNOT_SOCKETS_MOVE", &sockets.moving),
            ("ETHERNOT_SOCKETS_POLL", &sockets.poll),
            ("ETHERNOT_SOCKETS_NETWORKS", &sockets.networks),
            ("ETHERNOT_SOCKETS_EXCEPT_PORTS", &sockets.except_ports),
        ];
        for (name, text) in texts {
            if let Some(text) = text {
                self.set(name, text.into());
            }
        }
        let paths = [
            ("ETHERNOT_SOCKETS_RULES", &sockets.rules),
            ("ETHERNOT_SOCKETS_LOG_FILE", &sockets.log_file),
            ("ETHERNOT_SOCKETS_COUNTERS", &sockets.counters),
        ];
        for (name, path) in paths {
            if let Some(path) = path {
                let path = std::path::absolute(path)
                    .map_err(|error| format!("{}: {error}", path.display()))?;
                self.set(name, path.into_os_string());
            }
        }
        Ok(())
    }
}

/// Checks the settings before the program starts. The library could report an error only on
/// standard error of the program, which the user may not see.
pub(super) fn check(settings: &Settings) -> Result<(), Failure> {
    check_writable(settings.log_file())?;
    match settings.counters() {
        Some(folder) if !folder.is_dir() => Err(no_folder(folder)),
        _ => Ok(()),
    }
}

fn no_folder(folder: &Path) -> Failure {
    format!("ETHERNOT_SOCKETS_COUNTERS: {} is not a folder; make it first", folder.display()).into()
}
