//! Calls that ask for and set options.

use libc::{c_int, c_ulong, c_void, sockaddr, socklen_t};

use crate::closing::refused;
use crate::next::{call_next, interpose};
use crate::table::is_known;

// A variable argument list is passed in the registers of ordinary arguments on the architectures there are: the third is
// whatever the register holds if the caller gave none, and then nobody reads it.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("say how a third argument after `...` is passed on this architecture");

interpose! {
    fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int,
        else -1, if is_known(fd), by refused(fd);
    ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int,
        else -1, if is_known(fd), by refused(fd);
    getsockopt(fd: c_int, level: c_int, name: c_int, value: *mut c_void, length: *mut socklen_t)
        -> c_int,
        else -1, if is_known(fd), by refused(fd);
    setsockopt(fd: c_int, level: c_int, name: c_int, value: *const c_void, length: socklen_t)
        -> c_int,
        else -1, if is_known(fd), by refused(fd);
    getsockname(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int,
        else -1, if is_known(fd), by refused(fd);
    getpeername(fd: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int,
        else -1, if is_known(fd), by refused(fd);
}

#[unsafe(export_name = "ethernot_sockets_fcntl")]
unsafe extern "C" fn fcntl_of_program(fd: c_int, command: c_int, argument: usize) -> c_int {
    if is_known(fd)
        // SAFETY: it takes no pointers.
        && let Some(answer) = unsafe { refused(fd) }
    {
        return answer;
    }
    call_next!(fcntl(fd: c_int, command: c_int, argument: usize) -> c_int, else -1)
}
