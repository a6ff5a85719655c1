//! Checks every function of the C library that takes a descriptor. The function must be interposed,
//! or be listed as a function that can be left to the kernel.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::process::{Command, Stdio};

#[test]
fn every_function_with_a_descriptor_is_interposed_or_listed() {
    let Some(declared) = declared() else { return };
    assert!(declared.len() > 100 && declared.contains("read"), "{declared:?}");
    let put = put();
    let kernel: BTreeSet<_> = lines(KERNEL).flat_map(str::split_whitespace).collect();
    let both: Vec<_> = kernel.iter().filter(|&&name| put.contains(name)).collect();
    assert!(both.is_empty(), "in names.txt and in kernel.txt: {both:?}");
    let is_unknown =
        |name: &&String| !put.contains(name.as_str()) && !kernel.contains(name.as_str());
    let unknown: Vec<_> = declared.iter().filter(is_unknown).collect();
    assert!(unknown.is_empty(), "neither in names.txt nor in kernel.txt: {unknown:?}");
}

/// These functions take a descriptor in a structure, return a descriptor, or start programs that
/// inherit descriptors. The other test does not find them, because it looks only at the names of
/// arguments.
#[test]
fn functions_that_use_descriptors_internally_are_interposed() {
    let put = put();
    let wanted = "poll ppoll select pselect sendmsg recvmsg aio_read aio_write lio_listio \
        open openat creat fopen freopen tmpfile mkstemp opendir socket socketpair pipe pipe2 \
        eventfd epoll_create1 timerfd_create signalfd memfd_create inotify_init1 popen openpty \
        system wordexp posix_spawn posix_spawnp execve fexecve execveat execl execle execlp syscall fclose fdopen \
        __read_chk __recv_chk __recvfrom_chk __poll_chk __ppoll_chk __dprintf_chk __vdprintf_chk \
        __open_2 __open64_2 __openat_2 __openat64_2";
    let missing: Vec<_> = wanted.split_whitespace().filter(|&name| !put.contains(name)).collect();
    assert!(missing.is_empty(), "not in names.txt: {missing:?}");
}

/// Returns the names in `names.txt` that are interposed for programs.
fn put() -> BTreeSet<&'static str> {
    lines(include_str!("../names.txt")).filter_map(|line| line.strip_prefix("put ")).collect()
}

fn lines(text: &'static str) -> impl Iterator<Item = &'static str> {
    text.lines().filter(|line| !line.starts_with('#') && !line.trim().is_empty())
}

/// Returns the functions that have a descriptor among their arguments. If there is no compiler,
/// prints this and returns `None`.
fn declared() -> Option<BTreeSet<String>> {
    let mut command = Command::new("cc");
    command.args(["-E", "-P", "-xc", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let Ok(mut running) = command.spawn() else {
        println!("skipped: there is no compiler `cc`");
        return None;
    };
    let includes = HEADERS
        .split_whitespace()
        .map(|header| format!("#if __has_include(<{header}>)\n#include <{header}>\n#endif\n"));
    let source: String = std::iter::once("#define _GNU_SOURCE\n".into()).chain(includes).collect();
    // Drop the pipe after the write, so that the compiler sees the end of its input.
    let mut input = running.stdin.take().expect("it is piped");
    input.write_all(source.as_bytes()).expect("the compiler reads");
    drop(input);
    let output = running.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{command:?}: {}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    Some(text.split(';').filter_map(with_descriptor).collect())
}

/// Returns the name of a declared function if the function takes a descriptor; otherwise `None`.
fn with_descriptor(declaration: &str) -> Option<String> {
    let (before, behind) = declaration.split_once('(')?;
    let name = before.split_whitespace().next_back()?.trim_start_matches('*');
    let arguments = behind.split(['(', ')']).next()?;
    let is_descriptor = |argument: &str| {
        let words: Vec<_> = argument.split_whitespace().collect();
        matches!(words.as_slice(), ["int", of] if is_name(of.trim_start_matches('_')))
    };
    arguments.split(',').any(is_descriptor).then(|| name.to_owned())
}

/// Returns true if the headers use this argument name for descriptors.
fn is_name(name: &str) -> bool {
    name.contains("fd") || matches!(name, "fildes" | "filedes" | "fp" | "s" | "file_descriptor")
}

const KERNEL: &str = include_str!("../kernel.txt");

const HEADERS: &str = "aio.h arpa/inet.h dirent.h fcntl.h glob.h mqueue.h netdb.h poll.h pty.h \
    sched.h signal.h spawn.h stdio.h stdlib.h sys/epoll.h sys/eventfd.h sys/fanotify.h sys/file.h \
    sys/inotify.h sys/ioctl.h sys/mman.h sys/mount.h sys/pidfd.h sys/select.h sys/sendfile.h \
    sys/signalfd.h sys/socket.h sys/stat.h sys/statfs.h sys/statvfs.h sys/time.h sys/timerfd.h \
    sys/uio.h sys/wait.h sys/xattr.h termios.h unistd.h utime.h utmp.h wordexp.h";
