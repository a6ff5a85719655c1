//! Tests that a runtime leaves no resources in forked children, and none in its own process after
//! it has ended.

use std::net::Ipv4Addr;
use std::time::Duration;

use link::{Link, UdpConfig, UdpLink};
use runtime::{Forked, Interest, Runtime, RuntimeConfig, forks};

fn start(progress_thread: bool) -> Runtime {
    let udp = UdpLink::bind((Ipv4Addr::LOCALHOST, 0).into(), &UdpConfig::default());
    let links: Vec<Box<dyn Link>> = vec![Box::new(udp.expect("a socket on loopback"))];
    let mut config = RuntimeConfig::from_entropy().expect("entropy");
    config.progress_thread = progress_thread;
    Runtime::start(config, links, Box::new(drop)).expect("it starts")
}

fn count(folder: &str) -> usize {
    std::fs::read_dir(folder).expect("Linux tells what a process has").count()
}

/// This is the only test in this file. Otherwise the descriptors that other tests open at the same
/// time would be counted too.
#[test]
fn a_child_is_refused_and_leaves_nothing_behind() {
    // The first runtime registers the fork handler and sets up everything else that stays open.
    drop(start(true));
    let before = [count("/proc/self/fd"), count("/proc/self/task")];
    for progress_thread in [true, false] {
        let runtime = start(progress_thread);
        assert!(runtime.drive().is_ok());
        assert_eq!(child_status(&runtime), 0, "the child was served");
        assert!(runtime.drive().is_ok(), "the parent is served as before");
        let nothing = runtime.wait(Interest::News, Some(Duration::from_millis(1)), || None::<()>);
        assert_eq!(nothing, Ok(None));
    }
    assert_eq!([count("/proc/self/fd"), count("/proc/self/task")], before);
}

/// Returns the exit status of a forked child that uses the runtime: 0 if every call was refused.
fn child_status(runtime: &Runtime) -> i32 {
    let forks_of_parent = forks();
    // SAFETY: the child makes calls that read atomics, runs drops that do nothing there, and exits.
    match unsafe { libc::fork() } {
        0 => {
            let refused = runtime.check_process() == Err(Forked)
                && runtime.drive() == Err(Forked)
                && runtime.counters() == Err(Forked)
                && forks() == forks_of_parent + 1
                && runtime.wait(Interest::News, None, || None::<()>) == Err(Forked);
            runtime.stop();
            // SAFETY: ends the child without the parent's exit handlers.
            unsafe { libc::_exit(i32::from(!refused)) }
        }
        child => {
            assert!(child > 0, "no process could be made");
            let mut status = 0;
            // SAFETY: `status` is writable until the call returns.
            let waited = unsafe { libc::waitpid(child, &raw mut status, 0) };
            assert_eq!(waited, child);
            status
        }
    }
}
