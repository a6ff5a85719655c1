//! Servers of the suite of programs, each with our own configuration.

use std::net::SocketAddr;
use std::path::PathBuf;

use nix::unistd::{Group, User};

use super::folder::Folder;
use super::running::{ProgramError, ProgramPlace, Running, find};
use super::way::{Side, Way};

/// A server program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Server {
    /// nginx, which serves files.
    Nginx,
    /// Redis, a key-value store.
    Redis,
    /// `iperf3`, which receives streams of bytes.
    Iperf3,
    /// `sockperf`, which echoes messages.
    Sockperf,
}

impl Server {
    /// Starts the server and waits until it listens. nginx serves `documents`, a subfolder of
    /// `folder`.
    ///
    /// # Errors
    /// Returns [`ProgramError`]; each variant names one cause.
    pub fn start(
        self,
        place: &ProgramPlace<'_>,
        way: Way,
        address: SocketAddr,
        folder: &Folder,
        documents: &str,
    ) -> Result<(Running, PathBuf), ProgramError> {
        let name = self.name();
        let failed = |source| ProgramError::Io { program: name.to_string(), source };
        let (ip, port) = (address.ip().to_string(), address.port().to_string());
        let counters = folder.counters().map_err(failed)?;
        let file = find(name, self.package())?;
        let root = folder.path().display().to_string();
        let words: Vec<String> = match self {
            Self::Nginx => {
                let text = nginx(address, &root, documents);
                let text = folder.write(&format!("nginx-{port}.conf"), text).map_err(failed)?;
                let text = text.display().to_string();
                vec![file, "-e".into(), "stderr".into(), "-p".into(), root, "-c".into(), text]
            }
            Self::Redis => {
                let kept = ["--save", "", "--appendonly", "no", "--daemonize", "no"];
                let kept = kept.into_iter().chain(["--protected-mode", "no", "--dir", &root]);
                let place = ["--bind", &ip, "--port", &port];
                [file.as_str()].into_iter().chain(place).chain(kept).map(String::from).collect()
            }
            Self::Iperf3 => [&file, "-s", "-B", &ip, "-p", &port].map(String::from).to_vec(),
            Self::Sockperf => {
                [&file, "server", "--tcp", "-i", &ip, "-p", &port].map(String::from).to_vec()
            }
        };
        let words = way.words(Side::Server, place.own_program, &counters, words);
        let mut running = Running::start(place, &format!("{name}-{port}"), words)?;
        running.await_listening(address.port())?;
        Ok((running, counters))
    }

    /// Returns the name of the program.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Redis => "redis-server",
            Self::Iperf3 => "iperf3",
            Self::Sockperf => "sockperf",
        }
    }

    const fn package(self) -> &'static str {
        self.name()
    }
}

/// Returns the unprivileged user and group of this system, if they exist. Servers that were started
/// by root switch to this user and group.
pub(crate) fn unprivileged() -> (Option<&'static str>, Option<&'static str>) {
    let is_user = |name: &&&str| User::from_name(name).is_ok_and(|user| user.is_some());
    let is_group = |name: &&&str| Group::from_name(name).is_ok_and(|group| group.is_some());
    (USERS.iter().find(is_user).copied(), GROUPS.iter().find(is_group).copied())
}

/// Returns a configuration of nginx that writes all its files below `root`.
fn nginx(address: SocketAddr, root: &str, documents: &str) -> String {
    let port = address.port();
    let user = match unprivileged() {
        (Some(user), Some(group)) => format!("user {user} {group};\n"),
        _ => String::new(),
    };
    let folders = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("{kind}_temp_path {root}/nginx-{port}-{kind};\n"))
        .concat();
    format!(
        "daemon off;\nworker_processes 1;\npid {root}/nginx-{port}.pid;\n{user}\
         events {{ worker_connections 1024; }}\n\
         http {{\naccess_log off;\nsendfile on;\nkeepalive_requests 1000000000;\nkeepalive_timeout 60;\n{folders}\
         server {{ listen {address}; root {root}/{documents}; }}\n}}\n"
    )
}

const USERS: [&str; 4] = ["www-data", "apache", "http", "nobody"];
const GROUPS: [&str; 5] = ["www-data", "apache", "http", "nogroup", "nobody"];
