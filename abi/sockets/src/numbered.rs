//! `syscall`: kernel calls by their numbers.
//!
//! A call that uses or creates a descriptor behaves like the C function for that call. A query for
//! the address of a descriptor goes to the kernel. `io_uring` would bypass this library. Therefore
//! `io_uring_setup` fails like on a kernel without `io_uring`, and programs use `epoll` instead.

use std::arch::asm;

use libc::{
    c_char, c_int, c_long, c_uint, c_ulong, c_void, epoll_event, iovec, mmsghdr, msghdr, nfds_t,
    off64_t, pollfd, sigset_t, size_t, sockaddr, socklen_t, ssize_t, timespec,
};

use crate::next::{fail, set_errno};
use crate::opening::{both, made};

#[unsafe(export_name = "ethernot_sockets_syscall")]
unsafe extern "C" fn of_program(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_long {
    let registers = [first, second, third, fourth, fifth, sixth];
    // SAFETY: the program passes the arguments that the call of this number requires.
    match unsafe { by_name(number, registers).or_else(|| only_here(number, registers)) } {
        Some(result) => result,
        // SAFETY: the program passes the arguments that the call of this number requires.
        None => unsafe { of_ours(number, first, second, third, fourth, fifth, sixth) },
    }
}

/// Calls the kernel without the C library, because allocators use `syscall` before the dynamic
/// linker can look up names of functions.
#[unsafe(export_name = "ethernot_inside_syscall")]
unsafe extern "C" fn of_ours(
    number: c_long,
    first: usize,
    second: usize,
    third: usize,
    fourth: usize,
    fifth: usize,
    sixth: usize,
) -> c_long {
    // SAFETY: the caller passes the arguments that the C function requires.
    let result = unsafe { of_kernel(number, [first, second, third, fourth, fifth, sixth]) };
    if (-ERRNO_MAX..0).contains(&result) {
        set_errno(-result as c_int);
        return -1;
    }
    result
}

/// # Safety
/// The arguments must be those that the call with this number requires.
#[cfg(target_arch = "x86_64")]
unsafe fn of_kernel(
    number: c_long,
    [first, second, third, fourth, fifth, sixth]: [usize; 6],
) -> c_long {
    let result;
    // SAFETY: the caller passes valid arguments. The kernel changes only these two registers and
    // the result.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") first, in("rsi") second, in("rdx") third, in("r10") fourth, in("r8") fifth, in("r9") sixth,
            lateout("rcx") _, lateout("r11") _,
            options(nostack)
        );
    }
    result
}

/// # Safety
/// The arguments must be those that the call with this number requires.
#[cfg(target_arch = "aarch64")]
unsafe fn of_kernel(
    number: c_long,
    [first, second, third, fourth, fifth, sixth]: [usize; 6],
) -> c_long {
    let result;
    // SAFETY: the caller passes valid arguments. The kernel changes only the result.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") first => result,
            in("x1") second, in("x2") third, in("x3") fourth, in("x4") fifth, in("x5") sixth,
            options(nostack)
        );
    }
    result
}

/// A type whose values are passed to the kernel in one register.
trait Register {
    fn of(value: usize) -> Self;
}

macro_rules! integers {
    ($($integer:ty),*) => {
        $(
            impl Register for $integer {
                fn of(value: usize) -> Self {
                    value as Self
                }
            }
        )*
    };
}

integers!(c_uint, c_ulong, usize);

impl Register for c_int {
    fn of(value: usize) -> Self {
        (value as c_uint).cast_signed()
    }
}

impl<T> Register for *const T {
    fn of(value: usize) -> Self {
        std::ptr::with_exposed_provenance(value)
    }
}

impl<T> Register for *mut T {
    fn of(value: usize) -> Self {
        std::ptr::with_exposed_provenance_mut(value)
    }
}

/// Defines a function that maps the number of a kernel call to the interposed function with the
/// same name, and calls that function.
macro_rules! by_name {
    ($function:ident; $($number:ident => $symbol:ident($($kind:ty),*) -> $result:ty;)*) => {
        unsafe fn $function(number: c_long, registers: [usize; 6]) -> Option<c_long> {
            unsafe extern "C" {
                $(
                    #[link_name = concat!("ethernot_sockets_", stringify!($symbol))]
                    fn $symbol($(_: $kind),*) -> $result;
                )*
            }
            let mut registers = registers.into_iter();
            let mut next = || registers.next().unwrap_or_default();
            let result = match number {
                $(
                    // SAFETY: the caller passes the arguments that the call requires.
                    libc::$number => unsafe { $symbol($(<$kind>::of(next())),*) as c_long },
                )*
                _ => return None,
            };
            Some(result)
        }
    };
}

by_name! { on_every_architecture;
    SYS_close => close(c_int) -> c_int;
    SYS_close_range => close_range(c_uint, c_uint, c_int) -> c_int;
    SYS_dup => dup(c_int) -> c_int;
    SYS_dup3 => dup3(c_int, c_int, c_int) -> c_int;
    SYS_fcntl => fcntl(c_int, c_int, usize) -> c_int;
    SYS_ioctl => ioctl(c_int, c_ulong, usize) -> c_int;
    SYS_read => read(c_int, *mut c_void, size_t) -> ssize_t;
    SYS_readv => readv(c_int, *const iovec, c_int) -> ssize_t;
    SYS_write => write(c_int, *const c_void, size_t) -> ssize_t;
    SYS_writev => writev(c_int, *const iovec, c_int) -> ssize_t;
    SYS_recvfrom => recvfrom(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t)
        -> ssize_t;
    SYS_recvmsg => recvmsg(c_int, *mut msghdr, c_int) -> ssize_t;
    SYS_recvmmsg => recvmmsg(c_int, *mut mmsghdr, c_uint, c_int, *mut timespec) -> c_int;
    SYS_sendto => sendto(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t)
        -> ssize_t;
    SYS_sendmsg => sendmsg(c_int, *const msghdr, c_int) -> ssize_t;
    SYS_sendmmsg => sendmmsg(c_int, *mut mmsghdr, c_uint, c_int) -> c_int;
    SYS_sendfile => sendfile64(c_int, c_int, *mut off64_t, size_t) -> ssize_t;
    SYS_splice => splice(c_int, *mut off64_t, c_int, *mut off64_t, size_t, c_uint) -> ssize_t;
    SYS_accept => accept(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    SYS_accept4 => accept4(c_int, *mut sockaddr, *mut socklen_t, c_int) -> c_int;
    SYS_socket => socket(c_int, c_int, c_int) -> c_int;
    SYS_listen => listen(c_int, c_int) -> c_int;
    SYS_connect => connect(c_int, *const sockaddr, socklen_t) -> c_int;
    SYS_shutdown => shutdown(c_int, c_int) -> c_int;
    SYS_getsockopt => getsockopt(c_int, c_int, c_int, *mut c_void, *mut socklen_t) -> c_int;
    SYS_setsockopt => setsockopt(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
    SYS_ppoll => ppoll(*mut pollfd, nfds_t, *const timespec, *const sigset_t) -> c_int;
    SYS_epoll_ctl => epoll_ctl(c_int, c_int, c_int, *mut epoll_event) -> c_int;
    SYS_epoll_pwait => epoll_pwait(c_int, *mut epoll_event, c_int, c_int, *const sigset_t)
        -> c_int;
    SYS_epoll_pwait2 => epoll_pwait2(c_int, *mut epoll_event, c_int, *const timespec,
        *const sigset_t) -> c_int;
    SYS_execve => execve(*const c_char, *const *const c_char, *const *const c_char) -> c_int;
}

#[cfg(target_arch = "x86_64")]
by_name! { on_the_oldest;
    SYS_dup2 => dup2(c_int, c_int) -> c_int;
    SYS_poll => poll(*mut pollfd, nfds_t, c_int) -> c_int;
    SYS_select => select(c_int, *mut libc::fd_set, *mut libc::fd_set, *mut libc::fd_set,
        *mut libc::timeval) -> c_int;
    SYS_epoll_wait => epoll_wait(c_int, *mut epoll_event, c_int, c_int) -> c_int;
}

/// # Safety
/// The arguments must be those that the call with this number requires.
unsafe fn by_name(number: c_long, registers: [usize; 6]) -> Option<c_long> {
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let result = unsafe { on_every_architecture(number, registers) };
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let result = result.or_else(|| unsafe { on_the_oldest(number, registers) });
    result
}

/// Handles two kinds of kernel calls: those without a C function, and those whose arguments differ
/// from the arguments of the C function.
///
/// # Safety
/// The arguments must be those that the call with this number requires.
unsafe fn only_here(number: c_long, registers: [usize; 6]) -> Option<c_long> {
    if number == libc::SYS_io_uring_setup {
        return Some(fail(libc::ENOSYS, -1));
    }
    let place = match number {
        libc::SYS_socketpair => registers[3],
        libc::SYS_pipe2 => registers[0],
        #[cfg(target_arch = "x86_64")]
        libc::SYS_pipe => registers[0],
        _ if !is_opening(number) => return None,
        _ => 0,
    };
    let [first, second, third, fourth, fifth, sixth] = registers;
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let result = unsafe { of_ours(number, first, second, third, fourth, fifth, sixth) };
    if place == 0 {
        made(c_int::try_from(result).unwrap_or(-1));
    } else {
        // SAFETY: if the call has succeeded, the kernel has written two numbers.
        unsafe { both(c_int::try_from(result).unwrap_or(-1), <*mut c_int>::of(place), made) };
    }
    Some(result)
}

/// Returns true if the call returns a new descriptor.
fn is_opening(number: c_long) -> bool {
    #[cfg(target_arch = "x86_64")]
    let is_old = matches!(
        number,
        libc::SYS_open
            | libc::SYS_creat
            | libc::SYS_eventfd
            | libc::SYS_epoll_create
            | libc::SYS_signalfd
            | libc::SYS_inotify_init
    );
    #[cfg(not(target_arch = "x86_64"))]
    let is_old = false;
    is_old
        || matches!(
            number,
            libc::SYS_openat
                | libc::SYS_openat2
                | libc::SYS_open_by_handle_at
                | libc::SYS_eventfd2
                | libc::SYS_epoll_create1
                | libc::SYS_timerfd_create
                | libc::SYS_signalfd4
                | libc::SYS_inotify_init1
                | libc::SYS_fanotify_init
                | libc::SYS_memfd_create
                | libc::SYS_memfd_secret
                | libc::SYS_mq_open
                | libc::SYS_perf_event_open
                | libc::SYS_pidfd_open
                | libc::SYS_pidfd_getfd
                | libc::SYS_userfaultfd
                | libc::SYS_open_tree
                | libc::SYS_fsopen
                | libc::SYS_fsmount
                | libc::SYS_fspick
        )
}

/// The kernel returns errors as numbers from `-ERRNO_MAX` to -1.
const ERRNO_MAX: c_long = 4095;
