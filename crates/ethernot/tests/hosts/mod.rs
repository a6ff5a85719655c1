//! Hosts for a test: threads that each have a network namespace, and Ethernet links between them.

use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use ethernot::{
    Buffer, Connection, Endpoint, IntoPeers, Listener, MemoryRegion, OperationOptions,
    RemoteRegion, Rights,
};
use nix::sched::{CloneFlags, unshare};
use nix::unistd::gettid;

/// Limit of waits. It is long enough for a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

type Job = Box<dyn FnOnce() + Send>;

/// A thread with its own network namespace. The namespace is removed when the thread ends.
pub(crate) struct Host {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// The number by which `ip` finds the namespace.
    id: i32,
}

impl Host {
    /// Makes a host. If this process lacks the permission to create namespaces, prints the reason
    /// and returns `None`.
    pub(crate) fn new() -> Option<Self> {
        let (jobs, todo) = channel::<Job>();
        let (sender, receiver) = channel();
        let thread = thread::spawn(move || {
            let made = unshare(CloneFlags::CLONE_NEWNET);
            sender.send(made.map(|()| gettid().as_raw())).unwrap();
            for job in todo {
                job();
            }
        });
        let id = match receiver.recv().unwrap() {
            Ok(id) => id,
            Err(error) => {
                println!("skipped: a network namespace needs root ({error})");
                return None;
            }
        };
        if Command::new("ip").arg("-V").output().is_err() {
            println!("skipped: the command `ip` is not installed");
            return None;
        }
        let host = Self { jobs: Some(jobs), thread: Some(thread), id };
        host.ip("link set lo up");
        Some(host)
    }

    /// Makes two hosts with an Ethernet link `edge0` between them, without IP.
    pub(crate) fn pair() -> Option<[Self; 2]> {
        let pair = [Self::new()?, Self::new()?];
        pair[0].connect_to(&pair[1], "edge0");
        Some(pair)
    }

    /// Makes an Ethernet link between two hosts, with the same interface name on both. The MAC
    /// addresses of `edgeN` are 02:00:00:00:0N:01 and 02:00:00:00:0N:02.
    pub(crate) fn connect_to(&self, other: &Self, name: &str) {
        let id = other.id;
        self.ip(&format!("link add {name} type veth peer name {name} netns {id}"));
        let number = name.trim_start_matches("edge");
        for (host, last) in [(self, 1), (other, 2)] {
            host.ip(&format!("link set {name} address 02:00:00:00:0{number}:0{last}"));
            host.ip(&format!("link set {name} addrgenmode none"));
            host.ip(&format!("link set {name} up"));
        }
        for host in [self, other] {
            host.until(move |host| host.contains("state UP"), &format!("link show {name}"));
        }
    }

    /// Runs `job` on this host.
    pub(crate) fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        let (sender, receiver) = channel();
        let job = Box::new(move || sender.send(job()).unwrap());
        self.jobs.as_ref().unwrap().send(job).unwrap();
        receiver.recv().expect("the job has panicked")
    }

    /// Runs `ip` with `arguments` on this host. Panics if `ip` fails.
    pub(crate) fn ip(&self, arguments: &str) -> String {
        let arguments = arguments.to_owned();
        self.run(move || {
            let output = Command::new("ip").args(arguments.split(' ')).output().unwrap();
            let error = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "ip {arguments}: {error}");
            String::from_utf8_lossy(&output.stdout).into_owned()
        })
    }

    /// Waits until `condition` returns true for the output of `ip`.
    pub(crate) fn until(&self, condition: impl Fn(&str) -> bool, arguments: &str) {
        until(|| condition(&self.ip(arguments)));
    }

    /// Makes an endpoint on this host. If that fails, returns the error text.
    pub(crate) fn endpoint(&self, links: &str) -> Result<Endpoint, String> {
        let links = links.to_owned();
        self.run(move || Endpoint::with_links(links).map_err(|error| error.to_string()))
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            // Ignore the result. If a job panicked, the thread that waited for the job has already
            // received the panic.
            drop(thread.join());
        }
    }
}

/// A server with memory to which peers may write.
pub(crate) struct Target {
    pub(crate) endpoint: Endpoint,
    pub(crate) memory: std::sync::Arc<Buffer>,
    region: MemoryRegion,
    listener: Option<Listener>,
}

impl Target {
    pub(crate) fn new(endpoint: Endpoint, bytes: u64) -> Self {
        let memory = Buffer::new(bytes);
        let region = endpoint.register(memory.clone(), Rights::REMOTE_WRITE).unwrap();
        let listener = Some(endpoint.listen(0).unwrap());
        Self { endpoint, memory, region, listener }
    }

    /// Connects `host` to the target at `peer` and writes into its memory. Returns both ends.
    pub(crate) fn is_written_by(
        &mut self,
        host: &Host,
        client: &Endpoint,
        peer: impl IntoPeers + Send + 'static,
    ) -> [Connection; 2] {
        let listener = self.listener.take().unwrap();
        let offered = self.region.remote().to_bytes();
        let accepting = thread::spawn(move || {
            let request = listener.accept(Some(LIMIT)).expect("a request in time");
            (request.accept(&offered).unwrap(), listener)
        });
        let client = client.clone();
        let connection = host.run(move || client.connect(peer).expect("the target listens"));
        let (accepted, listener) = accepting.join().unwrap();
        self.listener = Some(listener);
        write(&connection, 0, b"hello");
        assert_eq!([self.memory.load_u8(0), self.memory.load_u8(4)], [b'h', b'o']);
        [connection, accepted]
    }
}

/// Writes into the region that the peer has offered, and waits until the write is complete.
pub(crate) fn write(connection: &Connection, offset: u64, bytes: &[u8]) {
    let remote = RemoteRegion::from_bytes(&connection.peer_data()).unwrap();
    let write = connection.write_bytes(bytes, &remote, offset, OperationOptions::NONE);
    write.unwrap().wait(Some(LIMIT)).unwrap();
}

/// Waits until `condition` returns true, for at most about 20 seconds.
#[track_caller]
pub(crate) fn until(condition: impl Fn() -> bool) {
    for _ in 0..4000 {
        if condition() {
            return;
        }
        thread::park_timeout(Duration::from_millis(5));
    }
    panic!("it never came to pass");
}
