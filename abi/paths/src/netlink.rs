//! Netlink sockets for RDMA. Programs use them to list the kernel's devices.
//!
//! A virtual netlink socket is a Unix socket that is connected to itself. When a program sends a
//! request, the library writes the answer into the socket at once. The program then reads the
//! answer from the socket. So `poll`, `recv` and `close` need not be intercepted. Real netlink
//! sockets for RDMA cannot be used instead, because a kernel without RDMA refuses to open them.

use std::mem::zeroed;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use libc::{
    c_char, c_int, c_void, msghdr, sa_family_t, size_t, sockaddr, sockaddr_nl, sockaddr_un,
    socklen_t, ssize_t,
};

use crate::next::call_next;
use crate::nldev;
use crate::standing::{errno, fail, set_errno};

#[unsafe(no_mangle)]
unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    if domain == libc::AF_NETLINK
        && protocol == NETLINK_RDMA
        && let Some(made) = open(kind)
    {
        return made;
    }
    call_next!(socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int, else -1)
}

/// Defines functions that take a socket. For a virtual netlink socket, each function returns the
/// result of the expression after `by`. For other sockets, the function calls the C library.
macro_rules! of_socket {
    ($($symbol:ident ($socket:ident: c_int $(, $argument:ident: $kind:ty)*) -> $result:ty, by $answer:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $symbol($socket: c_int $(, $argument: $kind)*) -> $result {
                if is_ours($socket) {
                    // SAFETY: the caller passes the arguments that the function of this name
                    // requires.
                    return unsafe { $answer };
                }
                call_next!($symbol($socket: c_int $(, $argument: $kind)*) -> $result, else -1)
            }
        )*
    };
}

of_socket! {
    bind(socket: c_int, address: *const sockaddr, length: socklen_t) -> c_int, by named(address, length);
    connect(socket: c_int, address: *const sockaddr, length: socklen_t) -> c_int, by named(address, length);
    getsockname(socket: c_int, address: *mut sockaddr, length: *mut socklen_t) -> c_int,
        by write_kernel_address(address, length, libc::getpid().cast_unsigned());
    setsockopt(socket: c_int, level: c_int, option: c_int, value: *const c_void, length: socklen_t) -> c_int,
        by set_option(socket, level, option, value, length);
    send(socket: c_int, bytes: *const c_void, length: size_t, flags: c_int) -> ssize_t,
        by sent(socket, bytes, length);
    sendto(socket: c_int, bytes: *const c_void, length: size_t, flags: c_int, to: *const sockaddr, to_length: socklen_t) -> ssize_t,
        by sent(socket, bytes, length);
    sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t,
        by sent_message(socket, message);
    recvfrom(socket: c_int, bytes: *mut c_void, length: size_t, flags: c_int, from: *mut sockaddr, from_length: *mut socklen_t) -> ssize_t,
        by received(socket, bytes, length, flags, from, from_length);
    recvmsg(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t,
        by received_message(socket, message, flags);
}

/// Creates a virtual netlink socket. Returns `None` if this fails, or if the descriptor is too high
/// to be recorded.
#[cold]
fn open(kind: c_int) -> Option<c_int> {
    let flags = kind & (libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK);
    let (address, length) = address_of(COUNT.fetch_add(1, Ordering::Relaxed));
    let before = errno();
    // SAFETY: the first call passes no memory, and the others pass an address with its length. Only
    // this function knows the socket that it closes. This code uses system calls, because this
    // library defines functions with the names of the C functions.
    let made = unsafe {
        let made = libc::syscall(libc::SYS_socket, libc::AF_UNIX, libc::SOCK_DGRAM | flags, 0);
        let made = c_int::try_from(made).unwrap_or(-1);
        let at = &raw const address;
        let is_connected = made >= 0
            && libc::syscall(libc::SYS_bind, made, at, length) == 0
            && libc::syscall(libc::SYS_connect, made, at, length) == 0;
        let place = usize::try_from(made).ok().and_then(|made| KNOWN.get(made / 64));
        match place {
            Some(word) if is_connected => {
                word.fetch_or(1 << (made % 64), Ordering::Relaxed);
                Some(made)
            }
            _ => {
                if made >= 0 {
                    libc::close(made);
                }
                None
            }
        }
    };
    set_errno(before);
    made
}

/// Returns the address of a virtual netlink socket of this process. `count` is a number that no
/// other such socket of the process has.
fn address_of(count: u32) -> (sockaddr_un, socklen_t) {
    // SAFETY: all fields are numbers, for which zeros are valid.
    let mut address: sockaddr_un = unsafe { zeroed() };
    address.sun_family = libc::AF_UNIX as sa_family_t;
    // SAFETY: no memory is passed.
    let process = unsafe { libc::getpid() };
    let name = format!("\0{PREFIX}{process}-{count}");
    for (into, &byte) in address.sun_path.iter_mut().zip(name.as_bytes()) {
        *into = c_char::from_ne_bytes([byte]);
    }
    (address, (size_of::<sa_family_t>() + name.len()) as socklen_t)
}

/// Returns true if this is a virtual netlink socket. Checks the socket's address only if the number
/// of the descriptor was ever recorded for a virtual netlink socket.
#[inline]
fn is_ours(socket: c_int) -> bool {
    let number = socket.cast_unsigned();
    let was = |word: &AtomicU64| word.load(Ordering::Relaxed) & 1 << (number % 64) != 0;
    KNOWN.get(number as usize / 64).is_some_and(was) && is_ours_still(socket)
}

#[cold]
fn is_ours_still(socket: c_int) -> bool {
    // SAFETY: all fields are numbers, for which zeros are valid.
    let mut address: sockaddr_un = unsafe { zeroed() };
    let mut length = size_of::<sockaddr_un>() as socklen_t;
    let before = errno();
    // SAFETY: the buffer has the length that is passed.
    unsafe { libc::syscall(libc::SYS_getsockname, socket, &raw mut address, &raw mut length) };
    set_errno(before);
    let path = address.sun_path.iter().map(|&byte| byte.to_ne_bytes()[0]);
    i32::from(address.sun_family) == libc::AF_UNIX
        && path.zip([b"\0", PREFIX.as_bytes()].concat()).all(|(there, wanted)| there == wanted)
}

/// Handles `bind` and `connect`. Returns 0 for every netlink address, without any effect. Returns
/// -1 for addresses of other families.
///
/// # Safety
/// `address` must have `length` bytes.
unsafe fn named(address: *const sockaddr, length: socklen_t) -> c_int {
    let has_family = length as usize >= size_of::<sa_family_t>() && !address.is_null();
    // SAFETY: the caller guarantees that `address` has `length` bytes, which include the family.
    if has_family && i32::from(unsafe { (*address).sa_family }) == libc::AF_NETLINK {
        0
    } else {
        fail(libc::EINVAL, -1)
    }
}

/// Writes the address of a netlink port, truncated to the length of the buffer. Returns 0.
///
/// # Safety
/// `length` must be null or contain the size of `address`. `address` must be null or writable.
unsafe fn write_kernel_address(address: *mut sockaddr, length: *mut socklen_t, port: u32) -> c_int {
    if address.is_null() || length.is_null() {
        return 0;
    }
    // SAFETY: all fields are numbers, for which zeros are valid.
    let mut own: sockaddr_nl = unsafe { zeroed() };
    own.nl_family = libc::AF_NETLINK as sa_family_t;
    own.nl_pid = port;
    let bytes = size_of::<sockaddr_nl>();
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    unsafe {
        let room = (length.read() as usize).min(bytes);
        std::ptr::copy_nonoverlapping((&raw const own).cast::<u8>(), address.cast::<u8>(), room);
        length.write(bytes as socklen_t);
    }
    0
}

/// # Safety
/// `value` must have `length` bytes.
unsafe fn set_option(
    socket: c_int,
    level: c_int,
    option: c_int,
    value: *const c_void,
    length: socklen_t,
) -> c_int {
    if level == libc::SOL_NETLINK {
        return 0;
    }
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    let set = unsafe { libc::syscall(libc::SYS_setsockopt, socket, level, option, value, length) };
    c_int::try_from(set).unwrap_or(-1)
}

/// Answers the requests in a message. Returns the length of the message, or -1 for an error.
///
/// # Safety
/// `bytes` must have `length` bytes.
unsafe fn sent(socket: c_int, bytes: *const c_void, length: size_t) -> ssize_t {
    if bytes.is_null() {
        return fail(libc::EFAULT, -1);
    }
    // SAFETY: the caller guarantees `length` bytes. The program does not write to them during the
    // call.
    let requests = unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), length) };
    respond(socket, requests)
}

/// Answers the requests in a message that consists of several parts. Returns the length of all
/// parts, or -1 for an error.
///
/// # Safety
/// The message must be one that `sendmsg` accepts.
unsafe fn sent_message(socket: c_int, message: *const msghdr) -> ssize_t {
    let mut requests = Vec::new();
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    unsafe {
        for at in 0..(*message).msg_iovlen {
            let part = (*message).msg_iov.add(at).read();
            if !part.iov_base.is_null() {
                let part = std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len);
                requests.extend_from_slice(part);
            }
        }
    }
    respond(socket, &requests)
}

fn respond(socket: c_int, requests: &[u8]) -> ssize_t {
    let answer = nldev::answer(requests);
    if !answer.is_empty() {
        let none = std::ptr::null::<sockaddr>();
        let (bytes, length) = (answer.as_ptr(), answer.len());
        // SAFETY: the bytes are read during the call.
        let sent = unsafe { libc::syscall(libc::SYS_sendto, socket, bytes, length, 0, none, 0) };
        if sent < 0 {
            return -1;
        }
    }
    requests.len().cast_signed()
}

/// # Safety
/// The arguments must be those that `recvfrom` requires.
unsafe fn received(
    socket: c_int,
    bytes: *mut c_void,
    length: size_t,
    flags: c_int,
    from: *mut sockaddr,
    from_length: *mut socklen_t,
) -> ssize_t {
    let none = std::ptr::null_mut::<sockaddr>();
    let no_length = std::ptr::null_mut::<socklen_t>();
    // SAFETY: the caller fulfils the `# Safety` section of this function.
    unsafe {
        let got = libc::syscall(libc::SYS_recvfrom, socket, bytes, length, flags, none, no_length);
        if got >= 0 {
            // Report the kernel as the sender. Its netlink port has number 0.
            write_kernel_address(from, from_length, 0);
        }
        got as ssize_t
    }
}

/// # Safety
/// The arguments must be those that `recvmsg` requires.
unsafe fn received_message(socket: c_int, message: *mut msghdr, flags: c_int) -> ssize_t {
    // SAFETY: the caller guarantees the arguments. The name is null during the call, so the kernel
    // writes no address.
    unsafe {
        let (name, length) = ((*message).msg_name, (*message).msg_namelen);
        (*message).msg_name = std::ptr::null_mut();
        let got = libc::syscall(libc::SYS_recvmsg, socket, message, flags);
        (*message).msg_name = name;
        (*message).msg_namelen = length;
        if got >= 0 {
            write_kernel_address(name.cast(), &raw mut (*message).msg_namelen, 0);
        }
        got as ssize_t
    }
}

/// One bit for each descriptor below 4096. The bit is set if the descriptor was ever a virtual
/// netlink socket.
static KNOWN: [AtomicU64; 64] = [const { AtomicU64::new(0) }; 64];

/// Number of sockets that this process has created.
static COUNT: AtomicU32 = AtomicU32::new(0);

/// Prefix of the names of the sockets' addresses. No other program uses this prefix.
const PREFIX: &str = "ethernot-netlink-";

const NETLINK_RDMA: c_int = 20;
