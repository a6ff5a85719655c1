//! Servers and clients that talk by TCP, each with the library for sockets or without it, and what the library counted.

use std::fs::{self, Permissions};
use std::net::{IpAddr, Ipv4Addr, TcpListener};
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
use crate::process::{Finished, Program, Running};

/// Which sides have the library for sockets.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Loaded {
    /// Both are as they would be without the project.
    Neither,
    /// Connections move.
    Both,
    /// The server alone: connections stay on TCP.
    Server,
    /// The client alone: connections stay on TCP.
    Client,
}

impl Loaded {
    /// All of them: what does not work over plain TCP says nothing about the library.
    pub const ALL: [Self; 4] = [Self::Neither, Self::Both, Self::Server, Self::Client];

    /// Whether that side has the library.
    pub fn is_on(self, side: Side) -> bool {
        match self {
            Self::Neither => false,
            Self::Both => true,
            Self::Server => side == Side::Server,
            Self::Client => side == Side::Client,
        }
    }
}

/// A server and its clients on a network, with a folder of their own that all of them may write to. Dropping it removes
/// the folder.
#[derive(Debug)]
pub struct Stage<'a> {
    network: &'a Network,
    loaded: Loaded,
    folder: PathBuf,
    variables: Vec<(String, String)>,
}

impl<'a> Stage<'a> {
    /// Prepares a folder and what is loaded on each side. Returns `None` and prints the reason if the library is to
    /// be loaded and is not there.
    ///
    /// # Panics
    /// If there can be no temporary folder.
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

    /// Sets a variable for the library, on both sides.
    #[must_use]
    pub fn variable(mut self, name: &str, value: &str) -> Self {
        self.variables.push((name.into(), value.into()));
        self
    }

    /// Returns a folder that programs of any user may write to.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns which sides have the library.
    pub const fn loaded(&self) -> Loaded {
        self.loaded
    }

    /// Returns the address of the server.
    pub fn address(&self) -> IpAddr {
        self.network.server_address()
    }

    /// Writes a file in the folder, with that text, and returns its path.
    ///
    /// # Panics
    /// If it cannot be written.
    pub fn file(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.join(name);
        fs::write(&path, text).expect("a file in a folder of our own");
        path
    }

    /// Finds a port at which no program listens on the server's host.
    ///
    /// # Panics
    /// If there is none.
    pub fn free_port(&self) -> u16 {
        // Also free in a network of its own, where no program listens at all.
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port that is free");
        listener.local_addr().expect("the address of a listener").port()
    }

    /// Starts a program on a side, as a user without rights.
    pub fn start(&self, program: &Program, side: Side) -> Running {
        program.start_behind(self.words_before(side))
    }

    /// Starts both sides of a plain client of ours, the server first, of a kind that it knows; `warm_ms` after the
    /// connection is there they begin. `None` if it cannot be compiled.
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

    /// Runs a program on a side, as a user without rights.
    pub fn run(&self, program: &Program, side: Side) -> Finished {
        self.start(program, side).finish()
    }

    /// What is to stand before a command, to start it on that side, over the library if that side has it.
    fn words_before(&self, side: Side) -> Vec<String> {
        let mut words = self.network.prefix(side, false);
        if words.is_empty() && nix::unistd::geteuid().is_root() {
            words.extend(UNPRIVILEGED.map(str::to_owned));
        }
        // Programs look for their own files at home, and this user has none.
        words.extend(["env".to_owned(), format!("HOME={}", self.folder.display())]);
        if let (true, Some(library)) = (self.loaded.is_on(side), library()) {
            let counters = self.counters_folder(side);
            words.push(format!("ETHERNOT_SOCKETS_COUNTERS={}", counters.display()));
            // What the library does is seen best where it does as much as it can.
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

    /// Returns what the library counted on a side, in all processes.
    pub fn counters(&self, side: Side) -> Counters {
        let mut sum = Counters::default();
        let Ok(files) = fs::read_dir(self.counters_folder(side)) else { return sum };
        for file in files.flatten() {
            // One that is being replaced is not there for a moment.
            let Ok(text) = fs::read_to_string(file.path()) else { continue };
            let Ok(value) = serde_json::from_str::<Value>(&text) else { continue };
            sum.add(&value);
        }
        sum
    }

    /// Checks by the counters that connections took the path they should: moved if both sides have the library, and
    /// left to TCP for want of an answer otherwise.
    ///
    /// # Panics
    /// If they say something else for longer than a process may take to write them down.
    #[track_caller]
    pub fn expect_path(&self) {
        self.expect_counted(Self::wrong_path);
    }

    /// Whether connections took the way they should. On a busy host one may stay on TCP, as a peer has a second to answer.
    pub fn has_path(&self) -> bool {
        let since = Instant::now();
        while self.wrong_path().is_some() {
            if since.elapsed() > COUNTERS_LATE {
                return false;
            }
            thread::sleep(LOOK);
        }
        true
    }

    /// Checks by the counters that the library has had connections on each side that has it, moved or not: those
    /// that a server closes at once may end before they are decided.
    ///
    /// # Panics
    /// If they say something else for longer than a process may take to write them down.
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

    /// Checks that connections have gone back to TCP on both sides.
    ///
    /// # Panics
    /// If none has for longer than an edge connection that is lost is waited for.
    #[track_caller]
    pub fn expect_home(&self) {
        let since = Instant::now();
        let is_there = |side| self.counters(side).left > 0;
        while !(is_there(Side::Server) && is_there(Side::Client)) {
            assert!(since.elapsed() < HOME_LATE, "no connection has gone back to TCP");
            thread::sleep(LOOK);
        }
    }

    fn wrong_path(&self) -> Option<String> {
        let [server, client] = [Side::Server, Side::Client].map(|side| self.counters(side));
        let is_right = match self.loaded {
            Loaded::Neither => true,
            // Another process of the host may have the UDP port of a rendezvous socket.
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

/// What the library counted.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counters {
    /// Processes that wrote it down.
    pub processes: u64,
    /// Connections that were moved to the edge.
    pub moved: u64,
    /// Connections that were left to TCP.
    pub left: u64,
    /// Reasons for that, and how often each was.
    pub reasons: Vec<(String, u64)>,
    /// Bytes sent over the edge.
    pub sent: u64,
    /// Bytes received over the edge.
    pub received: u64,
    /// Connections that were reset.
    pub resets: u64,
}

impl Counters {
    /// Whether a connection stayed on TCP because the UDP port with its number was taken.
    fn had_no_rendezvous_socket(&self) -> bool {
        self.reasons.iter().any(|(reason, _)| reason == "no-door")
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

/// The library for sockets; nothing, and a printed reason, if it was not built.
fn library() -> Option<&'static Path> {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    let path = LIBRARY.get_or_init(|| Libraries::built().folder().join(LIBRARY_NAME));
    let is_there = path.is_file();
    if !is_there {
        println!("skipped: {LIBRARY_NAME} was not built");
    }
    is_there.then_some(path)
}

/// A folder that everyone may write to.
///
/// # Panics
/// If it cannot be made.
pub(crate) fn make_open_folder(folder: &Path) {
    fs::create_dir_all(folder).expect("a folder below that of temporary files");
    fs::set_permissions(folder, Permissions::from_mode(0o777)).expect("a folder of our own");
}

const LIBRARY_NAME: &str = "libethernot-sockets.so";

/// Servers that find themselves to be root want to become somebody else.
const UNPRIVILEGED: [&str; 4] = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];

/// Processes write their counters down once a second.
const COUNTERS_LATE: Duration = Duration::from_secs(5);

/// How long it may take until connections have gone back to TCP: the silence of an edge connection, many times.
const HOME_LATE: Duration = Duration::from_mins(1);

/// Time between two looks at the counters.
const LOOK: Duration = Duration::from_millis(20);
