//! Apache with our own configuration. It uses no files of the system except Apache's modules.

use std::fmt::Write as _;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::folder::Folder;
use super::running::{ProgramError, ProgramPlace, Running, find};
use super::servers::unprivileged;
use super::way::{Side, Way};

/// A multi-processing module of Apache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mpm {
    /// One process per connection.
    Prefork,
    /// One thread per connection.
    Worker,
    /// One thread per request. Another thread serves the idle connections.
    Event,
}

impl Mpm {
    /// All modules.
    pub const ALL: [Self; 3] = [Self::Prefork, Self::Worker, Self::Event];

    /// Returns the name that Apache gives the module.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Prefork => "prefork",
            Self::Worker => "worker",
            Self::Event => "event",
        }
    }

    /// Returns the configuration lines for `workers` workers. Apache starts this number of workers,
    /// and later has at most twice as many.
    fn lines(self, workers: u32) -> String {
        let most = workers * 2;
        match self {
            Self::Prefork => format!(
                "StartServers {workers}\nMinSpareServers 1\nMaxSpareServers {most}\n\
                 ServerLimit {most}\nMaxRequestWorkers {most}\n"
            ),
            Self::Worker | Self::Event => format!(
                "StartServers 2\nServerLimit 2\nThreadLimit {workers}\nThreadsPerChild {workers}\n\
                 MinSpareThreads 1\nMaxSpareThreads {most}\nMaxRequestWorkers {most}\n"
            ),
        }
    }
}

/// The parameters of an Apache server.
#[derive(Debug, Clone, Copy)]
pub struct Apache<'a> {
    /// The host on which the server runs.
    pub place: ProgramPlace<'a>,
    /// The multi-processing module.
    pub mpm: Mpm,
    /// The address on which the server listens.
    pub address: SocketAddr,
    /// Number of concurrent connections.
    pub connections: u32,
    /// The folder that the server serves, a subfolder of `folder`.
    pub documents: &'a str,
}

impl Apache<'_> {
    /// Starts the server and waits until it listens. Returns the server, and the folder to which
    /// the library writes the server's counters.
    ///
    /// # Errors
    /// Returns [`ProgramError`]; each variant names one cause.
    pub fn start(&self, way: Way, folder: &Folder) -> Result<(Running, PathBuf), ProgramError> {
        let failed = |source| ProgramError::Io { program: NAME.to_string(), source };
        let file =
            find(NAME, PACKAGE).or_else(|error| find("httpd", "httpd").map_err(|_| error))?;
        let name = format!("apache-{}-{}", way.name(), self.address.port());
        let configuration = self.configuration(folder, &name).map_err(failed)?;
        let configuration = folder.write(&format!("{name}.conf"), configuration).map_err(failed)?;
        let counters = folder.counters().map_err(failed)?;
        let words = [file, "-f".into(), configuration.display().to_string(), "-DFOREGROUND".into()];
        let words = way.words(Side::Server, self.place.own_program, &counters, words.into());
        let mut server = Running::start(&self.place, &name, words)?;
        server.await_listening(self.address.port())?;
        Ok((server, counters))
    }

    fn configuration(&self, folder: &Folder, name: &str) -> io::Result<String> {
        let modules = MODULE_FOLDERS.into_iter().find(|folder| PathBuf::from(folder).is_dir());
        let modules = modules.ok_or_else(|| {
            io::Error::other(format!(
                "the modules of Apache are not in any of these folders: {}",
                MODULE_FOLDERS.join(", ")
            ))
        })?;
        let (mpm, root) = (self.mpm.name(), folder.path().display());
        let mut text = format!(
            "ServerRoot \"{root}\"\nServerName ethernot.invalid\nDefaultRuntimeDir \"{root}\"\n\
             PidFile \"{root}/{name}.pid\"\nErrorLog \"{root}/{name}.log\"\nLogLevel warn\n\
             Listen {}\nDocumentRoot \"{root}/{}\"\n",
            self.address, self.documents
        );
        // On some systems a module is compiled into Apache. On others it is a separate file.
        for module in [&format!("mpm_{mpm}"), "unixd", "authz_core"] {
            // Writing to a string cannot fail, here and below.
            let _ = writeln!(
                text,
                "<IfModule !{module}_module>\nLoadModule {module}_module {modules}/mod_{module}.so\n</IfModule>"
            );
        }
        // If root starts Apache, Apache switches to an unprivileged user.
        let (user, group) = unprivileged();
        let lines = [("User", user), ("Group", group)];
        for (word, name) in lines.into_iter().filter_map(|(word, name)| Some((word, name?))) {
            let _ = writeln!(text, "{word} {name}");
        }
        text += &self.mpm.lines(self.connections.max(WORKERS_MIN));
        text += CONSTANT;
        Ok(text)
    }
}

/// Configuration lines that are equal in all runs. With these lines, connections stay open, the
/// kernel sends the files, and headers are short.
const CONSTANT: &str = "KeepAlive On\nMaxKeepAliveRequests 0\nKeepAliveTimeout 60\nTimeout 60\n\
    EnableSendfile On\nServerTokens Prod\nFileETag None\nHostnameLookups Off\nMaxConnectionsPerChild 0\n";

const NAME: &str = "apache2";
const PACKAGE: &str = "apache2-bin";

const MODULE_FOLDERS: [&str; 4] = [
    "/usr/lib/apache2/modules",
    "/usr/lib64/httpd/modules",
    "/usr/lib/httpd/modules",
    "/usr/libexec/apache2",
];

const WORKERS_MIN: u32 = 8;
