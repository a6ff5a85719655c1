//! Tests that the kernel delivers no signals of the program to the progress thread.

use std::mem::MaybeUninit;
use std::net::Ipv4Addr;

use link::{Link, UdpConfig, UdpLink};
use runtime::{Runtime, RuntimeConfig};

/// Signals that programs handle: from timers, terminals, child processes, profilers and other
/// processes.
const SIGNALS: [libc::c_int; 6] =
    [libc::SIGALRM, libc::SIGUSR1, libc::SIGINT, libc::SIGTERM, libc::SIGCHLD, libc::SIGPROF];

/// Runs in a process of its own, so that no thread of the test harness can take the signal.
#[test]
fn a_signal_to_the_process_is_never_taken_by_the_progress_thread() {
    // SAFETY: the allocator works in a child, and the child ends without the parent's exit
    // handlers.
    match unsafe { libc::fork() } {
        // SAFETY: ends the child without the parent's exit handlers.
        0 => unsafe { libc::_exit(i32::from(!is_left_to_the_program())) },
        child => {
            assert!(child > 0, "no process could be made");
            let mut status = 0;
            // SAFETY: `status` is writable until the call returns.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "killed by a signal, or taken by another thread");
        }
    }
}

/// Returns whether signals to the process stay pending, although only this thread has blocked them.
/// If the progress thread could take such a signal, the signal would end the process.
fn is_left_to_the_program() -> bool {
    let udp = UdpLink::bind((Ipv4Addr::LOCALHOST, 0).into(), &UdpConfig::default());
    let links: Vec<Box<dyn Link>> = vec![Box::new(udp.expect("a socket on loopback"))];
    let config = RuntimeConfig::from_entropy().expect("entropy");
    let runtime = Runtime::start(config, links, Box::new(drop)).expect("it starts");
    let mut set = MaybeUninit::uninit();
    // SAFETY: the set is filled before it is used, and lives until the end of each call.
    let set = unsafe {
        libc::sigemptyset(set.as_mut_ptr());
        for signal in SIGNALS {
            libc::sigaddset(set.as_mut_ptr(), signal);
        }
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
        set.assume_init()
    };
    let is_ours = SIGNALS.iter().all(|&signal| {
        let mut taken = 0;
        // SAFETY: sends a signal that this thread has blocked, and takes it.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::kill(libc::getpid(), signal) == 0
                && runtime.drive().is_ok()
                && libc::sigwait(&raw const set, &raw mut taken) == 0
                && taken == signal
        }
    });
    drop(runtime);
    is_ours
}
