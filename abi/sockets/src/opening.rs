//! Handles calls of the program that create descriptors.
//!
//! A new descriptor may get a number for which the table has an entry. In that case, the program
//! has closed the old descriptor by a call that is not intercepted, so this module clears the
//! entry. Descriptors that this library creates are [private](crate::table::Kind::Private).

use libc::{DIR, FILE, c_char, c_int, c_uint, c_void, mode_t, pid_t};

use crate::handling::Inside;
use crate::inside::kept;
use crate::next::{call_next, errno, set_errno};
use crate::table::{self, Kind, is_known};
use crate::{closing, this_process};

/// Clears the table's entry for the number of a new descriptor, and returns the number.
pub(crate) fn made(fd: c_int) -> c_int {
    if is_known(fd) {
        clear(fd);
    }
    fd
}

#[cold]
fn clear(fd: c_int) {
    // A process that shares the memory of another process (`vfork`) has descriptors of its own, so
    // the table must not change.
    if !this_process::is_home() {
        return;
    }
    let before = errno();
    let _inside = Inside::enter();
    if table::kind(fd) == Kind::Private {
        table::set(fd, Kind::Plain);
    } else {
        closing::released(closing::forgotten(fd).as_ref());
    }
    set_errno(before);
}

/// Defines functions that return a descriptor. The variant for the program clears the table's entry
/// for the number. The variant for this library makes the descriptor private.
macro_rules! opening {
    ($($symbol:ident ($($argument:ident: $kind:ty),*);)*) => {
        $(
            const _: () = {
                #[unsafe(export_name = concat!("ethernot_sockets_", stringify!($symbol)))]
                unsafe extern "C" fn of_program($($argument: $kind),*) -> c_int {
                    made(call_next!($symbol($($argument: $kind),*) -> c_int, else -1))
                }

                #[unsafe(export_name = concat!("ethernot_inside_", stringify!($symbol)))]
                unsafe extern "C" fn of_ours($($argument: $kind),*) -> c_int {
                    kept(call_next!($symbol($($argument: $kind),*) -> c_int, else -1))
                }
            };
        )*
    };
}

opening! {
    eventfd(first: c_uint, flags: c_int);
    timerfd_create(clock: c_int, flags: c_int);
    signalfd(fd: c_int, mask: *const c_void, flags: c_int);
    inotify_init();
    inotify_init1(flags: c_int);
    fanotify_init(flags: c_uint, kind: c_uint);
    memfd_create(name: *const c_char, flags: c_uint);
    pidfd_open(of: pid_t, flags: c_uint);
    open(path: *const c_char, flags: c_int, mode: mode_t);
    open64(path: *const c_char, flags: c_int, mode: mode_t);
    openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t);
    __open_2(path: *const c_char, flags: c_int);
    __open64_2(path: *const c_char, flags: c_int);
    __openat_2(folder: c_int, path: *const c_char, flags: c_int);
    __openat64_2(folder: c_int, path: *const c_char, flags: c_int);
    open_by_handle_at(mount: c_int, handle: *mut c_void, flags: c_int);
    creat(path: *const c_char, mode: mode_t);
    creat64(path: *const c_char, mode: mode_t);
    mkstemp(template: *mut c_char);
    mkstemp64(template: *mut c_char);
    mkostemp(template: *mut c_char, flags: c_int);
    mkostemp64(template: *mut c_char, flags: c_int);
    mkstemps(template: *mut c_char, suffix: c_int);
    mkstemps64(template: *mut c_char, suffix: c_int);
    mkostemps(template: *mut c_char, suffix: c_int, flags: c_int);
    mkostemps64(template: *mut c_char, suffix: c_int, flags: c_int);
    shm_open(name: *const c_char, flags: c_int, mode: mode_t);
    mq_open(name: *const c_char, flags: c_int, mode: mode_t, attributes: *mut c_void);
    fsopen(kind: *const c_char, flags: c_uint);
    fsmount(fd: c_int, flags: c_uint, attributes: c_uint);
    fspick(folder: c_int, path: *const c_char, flags: c_uint);
    open_tree(folder: c_int, path: *const c_char, flags: c_uint);
    pidfd_getfd(process: c_int, fd: c_int, flags: c_uint);
    posix_openpt(flags: c_int);
    getpt();
}

/// Defines functions that create an `epoll` set.
macro_rules! opening_set {
    ($($symbol:ident ($argument:ident);)*) => {
        $(
            const _: () = {
                #[unsafe(export_name = concat!("ethernot_sockets_", stringify!($symbol)))]
                unsafe extern "C" fn of_program($argument: c_int) -> c_int {
                    let set = made(call_next!($symbol($argument: c_int) -> c_int, else -1));
                    if set >= 0 && this_process::is_home() {
                        table::set(set, Kind::OtherEpoll);
                    }
                    set
                }

                #[unsafe(export_name = concat!("ethernot_inside_", stringify!($symbol)))]
                unsafe extern "C" fn of_ours($argument: c_int) -> c_int {
                    kept(call_next!($symbol($argument: c_int) -> c_int, else -1))
                }
            };
        )*
    };
}

opening_set! {
    epoll_create(size);
    epoll_create1(flags);
}

/// Defines functions that return a stream. They clear the table's entry for the descriptor of the
/// stream.
macro_rules! opening_stream {
    ($($symbol:ident ($($argument:ident: $kind:ty),*);)*) => {
        $(
            const _: () = {
                #[unsafe(export_name = concat!("ethernot_sockets_", stringify!($symbol)))]
                unsafe extern "C" fn of_program($($argument: $kind),*) -> *mut FILE {
                    let stream = call_next!(
                        $symbol($($argument: $kind),*) -> *mut FILE, else std::ptr::null_mut()
                    );
                    if !stream.is_null() {
                        // SAFETY: the C library has just created the stream.
                        made(unsafe { libc::fileno(stream) });
                    }
                    stream
                }

                #[unsafe(export_name = concat!("ethernot_inside_", stringify!($symbol)))]
                unsafe extern "C" fn of_ours($($argument: $kind),*) -> *mut FILE {
                    call_next!(
                        $symbol($($argument: $kind),*) -> *mut FILE, else std::ptr::null_mut()
                    )
                }
            };
        )*
    };
}

opening_stream! {
    fopen(path: *const c_char, mode: *const c_char);
    fopen64(path: *const c_char, mode: *const c_char);
    freopen(path: *const c_char, mode: *const c_char, stream: *mut FILE);
    freopen64(path: *const c_char, mode: *const c_char, stream: *mut FILE);
    tmpfile();
    tmpfile64();
}

#[unsafe(export_name = "ethernot_sockets_opendir")]
unsafe extern "C" fn opendir_of_program(path: *const c_char) -> *mut DIR {
    let folder = call_next!(opendir(path: *const c_char) -> *mut DIR, else std::ptr::null_mut());
    if !folder.is_null() {
        // SAFETY: the C library has just opened the folder.
        made(unsafe { libc::dirfd(folder) });
    }
    folder
}

#[unsafe(export_name = "ethernot_inside_opendir")]
unsafe extern "C" fn opendir_of_ours(path: *const c_char) -> *mut DIR {
    call_next!(opendir(path: *const c_char) -> *mut DIR, else std::ptr::null_mut())
}

/// Defines functions that write two descriptors to memory.
macro_rules! opening_two {
    ($($symbol:ident ($($argument:ident: $kind:ty),*);)*) => {
        $(
            const _: () = {
                #[unsafe(export_name = concat!("ethernot_sockets_", stringify!($symbol)))]
                unsafe extern "C" fn of_program($($argument: $kind,)* ends: *mut c_int) -> c_int {
                    let result = call_next!(
                        $symbol($($argument: $kind,)* ends: *mut c_int) -> c_int, else -1
                    );
                    // SAFETY: the caller passes the arguments that the C function requires.
                    unsafe { both(result, ends, made) }
                }

                #[unsafe(export_name = concat!("ethernot_inside_", stringify!($symbol)))]
                unsafe extern "C" fn of_ours($($argument: $kind,)* ends: *mut c_int) -> c_int {
                    let result = call_next!(
                        $symbol($($argument: $kind,)* ends: *mut c_int) -> c_int, else -1
                    );
                    // SAFETY: the caller passes the arguments that the C function requires.
                    unsafe { both(result, ends, kept) }
                }
            };
        )*
    };
}

opening_two! {
    socketpair(domain: c_int, kind: c_int, of: c_int);
    pipe();
}

#[unsafe(export_name = "ethernot_sockets_pipe2")]
unsafe extern "C" fn pipe2_of_program(ends: *mut c_int, flags: c_int) -> c_int {
    let result = call_next!(pipe2(ends: *mut c_int, flags: c_int) -> c_int, else -1);
    // SAFETY: the caller passes the arguments that the C function requires.
    unsafe { both(result, ends, made) }
}

#[unsafe(export_name = "ethernot_inside_pipe2")]
unsafe extern "C" fn pipe2_of_ours(ends: *mut c_int, flags: c_int) -> c_int {
    let result = call_next!(pipe2(ends: *mut c_int, flags: c_int) -> c_int, else -1);
    // SAFETY: the caller passes the arguments that the C function requires.
    unsafe { both(result, ends, kept) }
}

#[unsafe(export_name = "ethernot_sockets_openpty")]
unsafe extern "C" fn openpty_of_program(
    first: *mut c_int,
    second: *mut c_int,
    name: *mut c_char,
    modes: *const c_void,
    size: *const c_void,
) -> c_int {
    let result = call_next!(
        openpty(first: *mut c_int, second: *mut c_int, name: *mut c_char, modes: *const c_void,
            size: *const c_void) -> c_int,
        else -1
    );
    if result == 0 {
        // SAFETY: the C library has written both numbers.
        let ends = unsafe { [first.read(), second.read()] };
        for end in ends {
            made(end);
        }
    }
    result
}

#[unsafe(export_name = "ethernot_inside_openpty")]
unsafe extern "C" fn openpty_of_ours(
    first: *mut c_int,
    second: *mut c_int,
    name: *mut c_char,
    modes: *const c_void,
    size: *const c_void,
) -> c_int {
    call_next!(
        openpty(first: *mut c_int, second: *mut c_int, name: *mut c_char, modes: *const c_void,
            size: *const c_void) -> c_int,
        else -1
    )
}

#[unsafe(export_name = "ethernot_sockets_forkpty")]
unsafe extern "C" fn forkpty_of_program(
    first: *mut c_int,
    name: *mut c_char,
    modes: *const c_void,
    size: *const c_void,
) -> pid_t {
    let child = call_next!(
        forkpty(first: *mut c_int, name: *mut c_char, modes: *const c_void, size: *const c_void)
            -> pid_t,
        else -1
    );
    if child > 0 {
        // SAFETY: the C library has written a number.
        made(unsafe { first.read() });
    }
    child
}

#[unsafe(export_name = "ethernot_inside_forkpty")]
unsafe extern "C" fn forkpty_of_ours(
    first: *mut c_int,
    name: *mut c_char,
    modes: *const c_void,
    size: *const c_void,
) -> pid_t {
    call_next!(
        forkpty(first: *mut c_int, name: *mut c_char, modes: *const c_void, size: *const c_void)
            -> pid_t,
        else -1
    )
}

/// Calls `with` for both descriptors that a successful call has written to `ends`, and stores the
/// results at the same place.
///
/// # Safety
/// If `result` is 0, `ends` must be null or point to two numbers.
pub(crate) unsafe fn both(result: c_int, ends: *mut c_int, with: fn(c_int) -> c_int) -> c_int {
    if result == 0 && !ends.is_null() {
        for at in 0..2 {
            // SAFETY: the caller fulfils the `# Safety` section of this function.
            unsafe { ends.add(at).write(with(ends.add(at).read())) };
        }
    }
    result
}
