//! Servers and clients that communicate over TCP, each with or without the library for sockets, and
//! the counters of that library.

use std::fs::{self, Permissions};
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::client::build_plain_client;
use crate::libraries::Libraries;
use crate::network::{Network, Side};
use crate::ports::free_tcp_port;
use crate::process::{Finished, Program, Running};

/// Which sides run with the library for sockets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Loaded {
    /// Neither side: plain TCP.
    Neither,
    /// Both sides: connections move to the edge.
    Both,
    /// Only the server: connections stay on TCP.
    Server,
    /// Only the client: connections stay on TCP.
    Client,
}

impl Loaded {
    /// All variants. Plain TCP is included, because a failure with plain TCP shows that the library
    /// is not the cause.
    pub const ALL: [Self; 4] = [Self::Neither, Self::Both, Self::Server, Self::Client];

    /// Returns whether the program on that side runs with the library.
    pub fn is_on(self, side: Side) -> bool {
        match self {
            Self::Neither => false,
            Self::Both => true,
            Self::Server => side == Side::Server,
            Self::Client => side == Side::Client,
        }
    }
}

/// A server and its clients on a network, with a temporary folder to which all of them may write.
/// Dropping the stage removes the folder.
#[derive(Debug)]
pub struct Stage<'a> {
    network: &'a Network,
    loaded: Loaded,
    folder: PathBuf,
    variables: Vec<(String, String)>,
}

impl<'a> Stage<'a> {
    /// Creates the folder. Returns `None` and prints the reason if a side needs the library and the
    /// library was not built.
    ///
    /// # Panics
    /// Panics if the folder cannot be created.
    pub fn new(network: &'a Network, loaded: Loaded) -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        if loaded != Loaded::Neither {
            let _there = library()?;
        }
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let name = format!("ethernot-sockets-{}-{number}", process::id());
        let stage = Self {
            network,
            loaded,
            folder: std::env::temp_dir().join(name),
            variables: Vec::new(),
        };
        make_open_folder(&stage.folder);
        for side in [Side::Server, Side::Client] {
            make_open_folder(&stage.counters_folder(side));
        }
        Some(stage)
    }

    /// Sets an environment variable for the library, on both sides.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Returns the folder, to which programs of any user may write.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns which of the sides run with the library.
    pub const fn loaded(&self) -> Loaded {
        self.loaded
    }

    /// Returns the address of the server.
    pub fn address(&self) -> IpAddr {
        self.network.server_address()
    }

    /// Writes a file with this text in the folder, and returns its path.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.join(name);
        fs::write(&path, text).expect("a file in a folder of our own");
        path
    }

    /// Finds a TCP port that no program uses on the server's host.
    ///
    /// # Panics
    /// Panics if there is no free port.
    pub fn free_port(&self) -> u16 {
        // The test looks for a free port in its own namespace. If the server has a separate
        // namespace, the port is free there too, because only this test uses that namespace.
        free_tcp_port()
    }

    /// Starts a program on a side, as an unprivileged user.
    pub fn start(&self, program: &Program, side: Side) -> Running {
        program.start_behind(self.words_before(side))
    }

    /// Starts both sides of the test client `clients/CLIENT.c`, the server first. `kind` is an
    /// argument of the client. Both sides begin their test case `warm_ms` ms after the connection
    /// is established. Returns `None` if there is no compiler.
    pub fn start_both(&self, client: &str, kind: &str, warm_ms: u32) -> Option<[Running; 2]> {
        let program = build_plain_client(client)?;
        let port = self.free_port();
        let side = |role: &str| {
            let program = Program::new(&program.display().to_string(), kind).argument(&role);
            program.argument(&self.address()).argument(&port).argument(&warm_ms)
        };
        let mut server = self.start(&side("server"), Side::Server);
        server.wait_for_listener(port);
        let client = self.start(&side("client"), Side::Client);
        Some([server, client])
    }

    /// Runs a program on a side, as an unprivileged user.
    pub fn run(&self, program: &Program, side: Side) -> Finished {
        self.start(program, side).finish()
    }

    /// Returns the words to put before a command so that the command runs on that side. If the side
    /// uses the library, the command runs with the library.
    fn words_before(&self, side: Side) -> Vec<String> {
        let mut words = self.network.prefix(side, false);
        if words.is_empty() && nix::unistd::geteuid().is_root() {
            words.extend(UNPRIVILEGED.map(str::to_owned));
        }
        // Set a home folder: programs look for files there, but the unprivileged user has none.
        words.extend(["env".to_owned(), format!("HOME={}", self.folder.display())]);
        if let (true, Some(library)) = (self.loaded.is_on(side), library()) {
            let counters = self.counters_folder(side);
            words.push(format!("ETHERNOT_SOCKETS_COUNTERS={}", counters.display()));
            // Moves every connection, so that the tests run as much code of the library as
            // possible.
            words.push("ETHERNOT_SOCKETS_MOVE=always".to_owned());
            words.extend(self.variables.iter().map(|(name, value)| format!("{name}={value}")));
            words.push(format!("LD_PRELOAD={}", library.display()));
        }
        words
    }

    fn counters_folder(&self, side: Side) -> PathBuf {
        self.folder.join(match side {
            Side::Server => "counters-of-server",
            Side::Client => "counters-of-client",
        })
    }

    /// Returns the sums of the library's counters on a side, over all processes.
    pub fn counters(&self, side: Side) -> Counters {
        let mut sum = Counters::default();
        let Ok(files) = fs::read_dir(self.counters_folder(side)) else { return sum };
        for file in files.flatten() {
            // Skip a missing file: while a process replaces a file, the file is missing for a
            // moment.
            let Ok(text) = fs::read_to_string(file.path()) else { continue };
            let Ok(value) = serde_json::from_str::<Value>(&text) else { continue };
            sum.add(&value);
        }
        sum
    }

    /// Checks by the counters that connections took the expected path. If both sides have the
    /// library, connections must move. If only one side has the library, connections must stay on
    /// TCP, because the peer does not answer.
    ///
    /// # Panics
    /// Panics if the counters do not show this path within the time that processes take to write
    /// them.
    #[track_caller]
    pub fn expect_path(&self) {
        self.expect_counted(Self::wrong_path);
    }

    /// Returns whether connections took the expected path. On a busy host a connection may stay on
    /// TCP, because a peer must answer within a second, or because the connection ends before it
    /// has moved. A test then tries again with the next of [`WARM_UPS_MS`].
    pub fn has_path(&self) -> bool {
        let since = Instant::now();
        while self.wrong_path().is_some() {
            if self.has_stayed() || since.elapsed() > COUNTERS_LATE {
                return false;
            }
            thread::sleep(LOOK);
        }
        true
    }

    /// Returns whether the counters of both sides show connections, and none that has moved.
    fn has_stayed(&self) -> bool {
        let counters = [Side::Server, Side::Client].map(|side| self.counters(side));
        counters.iter().all(|counters| counters.moved == 0 && counters.left > 0)
    }

    /// Checks by the counters that the library has seen connections on each side that has the
    /// library. Does not check whether the connections moved. Use this function for servers that
    /// close a connection immediately, because the connection may end before the library decides
    /// whether to move it.
    ///
    /// # Panics
    /// Panics if the counters do not show connections within the time that processes take to write
    /// them.
    #[track_caller]
    pub fn expect_seen(&self) {
        self.expect_counted(|stage| {
            let unseen = [Side::Server, Side::Client].into_iter().find(|side| {
                let counters = stage.counters(*side);
                stage.loaded.is_on(*side) && counters.moved + counters.left == 0
            });
            unseen.map(|side| format!("{side:?} has had no connection"))
        });
    }

    #[track_caller]
    fn expect_counted(&self, wrong: impl Fn(&Self) -> Option<String>) {
        let since = Instant::now();
        loop {
            let wrong = wrong(self);
            let Some(wrong) = wrong else { return };
            assert!(since.elapsed() < COUNTERS_LATE, "{wrong}");
            thread::sleep(LOOK);
        }
    }

    /// Checks that connections have returned to TCP on both sides.
    ///
    /// # Panics
    /// Panics if no connection has returned within a minute.
    #[track_caller]
    pub fn expect_home(&self) {
        let since = Instant::now();
        let is_there = |side| self.counters(side).left > 0;
        while !(is_there(Side::Server) && is_there(Side::Client)) {
            assert!(since.elapsed() < HOME_LATE, "no connection has gone back to TCP");
            thread::sleep(LOOK);
        }
    }

    /// Returns the counters if they do not show the expected path.
    pub(crate) fn wrong_path(&self) -> Option<String> {
        let [server, client] = [Side::Server, Side::Client].map(|side| self.counters(side));
        let is_right = match self.loaded {
            Loaded::Neither => true,
            // To move a connection, the library must bind the UDP port with the number of the
            // connection's TCP port. If another process has bound this UDP port, the connection
            // stays on TCP.
            Loaded::Both => {
                (server.moved > 0 && client.moved > 0) || client.had_no_rendezvous_socket()
            }
            Loaded::Server => server.moved == 0 && server.left > 0,
            Loaded::Client => client.moved == 0 && client.left > 0,
        };
        (!is_right).then(|| {
            format!("{:?} with the library: server {server:?}, client {client:?}", self.loaded)
        })
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Counters of the library, summed over processes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    /// Number of processes that wrote counters.
    pub processes: u64,
    /// Number of connections that moved to the edge.
    pub moved: u64,
    /// Number of connections that stayed on TCP.
    pub left: u64,
    /// The reasons why connections stayed on TCP, with the number of connections for each.
    pub reasons: Vec<(String, u64)>,
    /// Bytes sent over the edge.
    pub sent: u64,
    /// Bytes received over the edge.
    pub received: u64,
    /// Number of connections that were reset.
    pub resets: u64,
}

impl Counters {
    /// Returns whether a connection stayed on TCP because another process uses the UDP port with
    /// the number of the TCP port.
    fn had_no_rendezvous_socket(&self) -> bool {
        self.reasons.iter().any(|(reason, _)| reason == "no-rendezvous-socket")
    }

    fn add(&mut self, value: &Value) {
        let number = |name: &str| value.get(name).and_then(Value::as_u64).unwrap_or_default();
        self.processes += 1;
        self.moved += number("moved");
        self.sent += number("edge_bytes_sent");
        self.received += number("edge_bytes_received");
        self.resets += number("resets");
        for (reason, count) in value.get("left").and_then(Value::as_object).into_iter().flatten() {
            let count = count.as_u64().unwrap_or_default();
            self.left += count;
            match self.reasons.iter_mut().find(|(known, _)| known == reason) {
                Some((_, sum)) => *sum += count,
                None => self.reasons.push((reason.clone(), count)),
            }
        }
    }
}

/// Returns the path of the library for sockets. Returns `None` and prints the reason if the library
/// was not built.
fn library() -> Option<&'static Path> {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    let path = LIBRARY.get_or_init(|| Libraries::built().folder().join(LIBRARY_NAME));
    let is_there = path.is_file();
    if !is_there {
        println!("skipped: {LIBRARY_NAME} was not built");
    }
    is_there.then_some(path)
}

/// Creates a folder that every user may write to.
///
/// # Panics
/// Panics if the folder cannot be created.
pub(crate) fn make_open_folder(folder: &Path) {
    fs::create_dir_all(folder).expect("a folder below that of temporary files");
    fs::set_permissions(folder, Permissions::from_mode(0o777)).expect("a folder of our own");
}

/// Times in milliseconds for which both sides of a test client exchange messages before they begin
/// their test case, so that their connection moves. The first is enough on an idle host. A test
/// takes the next one if its connection has stayed on TCP.
pub const WARM_UPS_MS: [u32; 5] = [50, 200, 800, 1_600, 3_200];

const LIBRARY_NAME: &str = "libethernot-sockets.so";

/// Words before a command that make it run as an unprivileged user. A server that was started as
/// root would itself switch to another user.
const UNPRIVILEGED: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Time limit for counters to be written. Processes write them once a second, and later on a busy
/// host.
const COUNTERS_LATE: Duration = Duration::from_secs(30);

/// Time limit for connections to return to TCP. It is much longer than the silence after which the
/// library gives up an edge connection.
const HOME_LATE: Duration = Duration::from_mins(1);

/// Time between two reads of the counters.
const LOOK: Duration = Duration::from_millis(20);
