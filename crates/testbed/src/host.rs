//! Hosts for a test: threads that each have a network namespace, and Ethernet links between them.

use std::panic::resume_unwind;
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use nix::sched::{CloneFlags, unshare};
use nix::unistd::gettid;

type Job = Box<dyn FnOnce() + Send>;

/// A thread with its own network namespace. The namespace is removed when the thread ends.
#[derive(Debug)]
pub struct Host {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
    /// The number by which `ip` finds the namespace.
    id: i32,
}

impl Host {
    /// Makes a host. If this process lacks the permission to create namespaces, or if the command
    /// `ip` is missing, prints the reason and returns `None`.
    ///
    /// # Panics
    /// If the kernel refuses a thread.
    pub fn new() -> Option<Self> {
        let (jobs, todo) = channel::<Job>();
        let (sender, receiver) = channel();
        let thread = thread::spawn(move || {
            if sender.send(enter_own_namespace().map(|()| gettid().as_raw())).is_ok() {
                for job in todo {
                    job();
                }
            }
        });
        let id = receiver.recv().ok().flatten()?;
        let host = Self { jobs: Some(jobs), thread: Some(thread), id };
        host.ip("link set lo up");
        Some(host)
    }

    /// Makes two hosts with an Ethernet link `edge0` between them, without IP. If this is not
    /// possible, prints the reason and returns `None`.
    pub fn pair() -> Option<[Self; 2]> {
        let pair = [Self::new()?, Self::new()?];
        pair[0].connect_to(&pair[1], "edge0");
        Some(pair)
    }

    /// Makes an Ethernet link between two hosts, with the same interface name on both. The MAC
    /// addresses of `edgeN` are 02:00:00:00:0N:01 and 02:00:00:00:0N:02.
    ///
    /// # Panics
    /// If `ip` fails.
    pub fn connect_to(&self, other: &Self, name: &str) {
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

    /// Runs `job` on this host, and returns its result.
    ///
    /// # Panics
    /// If the job panics.
    pub fn run<R: Send + 'static>(&self, job: impl FnOnce() -> R + Send + 'static) -> R {
        let (sender, receiver) = channel();
        let job = Box::new(move || {
            // The thread that waits for the result is the only receiver, and cannot have ended.
            let _ = sender.send(job());
        });
        let jobs = self.jobs.as_ref().expect("the sender exists until drop");
        jobs.send(job).expect("the host's thread runs until drop");
        receiver.recv().expect("the job has panicked")
    }

    /// Runs `ip` with `arguments`, separated by spaces, on this host. Returns its output.
    ///
    /// # Panics
    /// If `ip` fails.
    pub fn ip(&self, arguments: &str) -> String {
        let arguments = arguments.to_owned();
        self.run(move || ip(&arguments))
    }

    /// Waits until `condition` returns true for the output of `ip`.
    ///
    /// # Panics
    /// If the condition is still false after about 20 seconds.
    #[track_caller]
    pub fn until(&self, condition: impl Fn(&str) -> bool, arguments: &str) {
        until(|| condition(&self.ip(arguments)));
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

/// Runs a test on a thread in a network namespace of its own, which ends with the thread. If this
/// is not possible, prints the reason.
///
/// # Panics
/// If the test panics.
pub fn in_namespace(test: impl FnOnce() + Send + 'static) {
    let thread = thread::spawn(move || {
        if enter_own_namespace().is_some() {
            test();
        }
    });
    if let Err(panic) = thread.join() {
        resume_unwind(panic);
    }
}

/// Runs `ip` with `arguments`, separated by spaces, in the namespace of the calling thread. Returns
/// its output.
///
/// # Panics
/// If `ip` fails.
pub fn ip(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.unwrap_or_else(|error| panic!("ip {arguments}: {error}"));
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Waits until `condition` returns true.
///
/// # Panics
/// If the condition is still false after about 20 seconds.
#[track_caller]
pub fn until(condition: impl Fn() -> bool) {
    for _ in 0..4000 {
        if condition() {
            return;
        }
        thread::park_timeout(Duration::from_millis(5));
    }
    panic!("the condition is still false after 20 seconds");
}

/// Moves the calling thread to a new network namespace. If this is not possible, prints the reason
/// and returns `None`.
fn enter_own_namespace() -> Option<()> {
    if let Err(error) = unshare(CloneFlags::CLONE_NEWNET) {
        println!("skipped: a network namespace needs root ({error})");
        return None;
    }
    if Command::new("ip").arg("-V").output().is_err() {
        println!("skipped: the command `ip` is not installed");
        return None;
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_hosts_see_only_the_link_between_them() {
        let Some([one, other]) = Host::pair() else { return };
        for host in [&one, &other] {
            let shown = host.ip("-o link");
            assert_eq!(shown.lines().count(), 2, "{shown}");
            assert!(shown.contains("edge0"), "{shown}");
        }
        assert_eq!(one.run(|| 7), 7);
    }

    #[test]
    fn a_test_in_a_namespace_fails_if_it_panics() {
        let failed = std::panic::catch_unwind(|| in_namespace(|| panic!("on purpose")));
        let is_possible = crate::namespace::are_possible();
        assert!(failed.is_err() || !is_possible || Command::new("ip").output().is_err());
    }
}
