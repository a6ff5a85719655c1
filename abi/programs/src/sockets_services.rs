//! Servers with protocols other than HTTP.

use std::process::Command;

use crate::network::Side;
use crate::process::{Program, Running};
use crate::sockets::Stage;
use crate::sockets_documents::Documents;
use crate::sockets_http::PYTHON;

/// A server that does not speak HTTP.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Service {
    /// redis, without storage on disk.
    Redis,
    /// memcached, for values of up to 32 MiB.
    Memcached,
    /// iperf3.
    Iperf3,
    /// gmond, with itself as its only peer.
    Gmond,
}

impl Service {
    /// Returns the program.
    pub const fn program(self) -> &'static str {
        match self {
            Self::Redis => "redis-server",
            Self::Memcached => "memcached",
            Self::Iperf3 => "iperf3",
            Self::Gmond => "gmond",
        }
    }

    /// Starts the server and waits until it listens on `port`. Returns `None` if gmond does not
    /// print its default configuration.
    pub fn start(self, stage: &Stage<'_>, port: u16) -> Option<Running> {
        let address = stage.address();
        let folder = stage.folder().display();
        let words = match self {
            Self::Redis => format!(
                "--port {port} --bind {address} --protected-mode no --dir {folder} --save --loglevel warning"
            ),
            Self::Memcached => format!("-l {address} -p {port} -U 0 -m 256 -I 32m -t 2"),
            Self::Iperf3 => format!("--server --bind {address} --port {port}"),
            Self::Gmond => format!("--conf={}", gmond_configuration(stage, port)?),
        };
        let mut running = stage.start(&Program::new(self.program(), &words), Side::Server);
        running.wait_for_listener(port);
        Some(running)
    }
}

/// Writes gmond's default configuration with changes: gmond stays in the foreground and sends its
/// metrics to itself only. Returns the path.
fn gmond_configuration(stage: &Stage<'_>, port: u16) -> Option<String> {
    let shown = Command::new("gmond").arg("--default_config").output().ok()?;
    let address = stage.address();
    let mut text = String::from_utf8_lossy(&shown.stdout)
        .replace("daemonize = yes", "daemonize = no")
        .replace("setuid = yes", "setuid = no")
        .replace(
            "mcast_join = 239.2.11.71\n  port = 8649\n  ttl = 1",
            "host = ADDRESS\n  port = 8649",
        )
        .replace("mcast_join = 239.2.11.71\n", "")
        .replace("bind = 239.2.11.71", "bind = ADDRESS")
        .replace("ADDRESS", &address.to_string())
        .replace("port = 8649", &format!("port = {port}"));
    text.push('\n');
    Some(stage.file("gmond.conf", &text).display().to_string())
}

/// Returns `clients/sockets_services.py` with the arguments `what`, the server's address and
/// `port`.
pub fn python_client(stage: &Stage<'_>, what: &str, port: u16) -> Program {
    let file = stage.file("services.py", include_str!("../clients/sockets_services.py"));
    let program = Program::new(PYTHON, "").argument(&file.display()).argument(&what);
    program.argument(&stage.address()).argument(&port)
}

/// Returns the program of [`python_client`], set up to store these documents and fetch them again.
pub fn python_store(stage: &Stage<'_>, what: &str, port: u16, documents: &Documents) -> Program {
    let program = python_client(stage, what, port);
    let program = program.argument(&documents.folder().display());
    let program = program.argument(&documents.fetched().display());
    documents.all().iter().map(|document| &document.name).fold(program, Program::argument)
}
