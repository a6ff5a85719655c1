//! Runs a program on four ranks of this host without the rights of root and without userfaultfd,
//! which containers forbid.
//!
//! `confined PROGRAM` ends as the program does. If the host does not permit this, prints why and ends
//! with status 77. A user other than root stays who it is.

use std::io;
use std::process::ExitCode;
use std::sync::atomic::AtomicU32;

use dsm::launch::{Launch, LaunchError, Streams};

fn main() -> Result<ExitCode, LaunchError> {
    if let Err(error) = give_up_rights().and_then(|()| forbid_userfaultfd()) {
        eprintln!("give up the rights of root, and userfaultfd: {error}");
        return Ok(ExitCode::from(77));
    }
    let program = std::env::args_os().nth(1).unwrap_or_default();
    let streams = Streams { output: &mut io::stdout(), errors: &mut io::stderr() };
    let ended = Launch::new(4, program).run(streams, &AtomicU32::new(0))?;
    Ok(ExitCode::from(ended.exit_code()))
}

/// Gives up the rights of root.
fn give_up_rights() -> io::Result<()> {
    // SAFETY: the calls take numbers, and an empty list.
    unsafe {
        if libc::geteuid() != 0 {
            return Ok(());
        }
        succeeds(libc::setgroups(0, std::ptr::null()))?;
        succeeds(libc::setgid(UNPRIVILEGED))?;
        succeeds(libc::setuid(UNPRIVILEGED))
    }
}

/// Lets the kernel answer userfaultfd with `EPERM`, in this process and those that it starts.
fn forbid_userfaultfd() -> io::Result<()> {
    let load = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
    let jump = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
    let answer = (libc::BPF_RET | libc::BPF_K) as u16;
    let step = |code, jf, k| libc::sock_filter { code, jt: 0, jf, k };
    let mut steps = [
        // The number of the system call is at the start of what the filter sees.
        step(load, 0, 0),
        step(jump, 1, libc::SYS_userfaultfd as u32),
        step(answer, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(answer, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: steps.len() as u16, filter: steps.as_mut_ptr() };
    let (yes, none): (libc::c_ulong, libc::c_ulong) = (1, 0);
    let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
    // SAFETY: the kernel copies the filter before the call returns, and its length is that of `steps`.
    unsafe {
        succeeds(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, yes, none, none, none))?;
        succeeds(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter))
    }
}

fn succeeds(result: libc::c_int) -> io::Result<()> {
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Number of a user and of a group without files.
const UNPRIVILEGED: u32 = 65534;
