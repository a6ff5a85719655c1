//! Finds out the rights of this process by trying operations that have no lasting effect.

use std::ffi::{CString, c_long};
use std::fs;
use std::io;
use std::mem::zeroed;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr;

use libc::c_int;
use thiserror::Error;

/// The reason why a probe failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ProbeError {
    /// The process lacks a right.
    #[error("not permitted")]
    NotPermitted,
    /// The kernel does not support the operation.
    #[error("this kernel does not have it")]
    NotThere,
    /// Any other error.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// A Linux capability: one of the rights of the superuser, each of which can be granted separately.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
#[non_exhaustive]
pub enum Capability {
    /// The process may configure interfaces, and attach programs to them.
    NetAdmin = 12,
    /// The process may use raw sockets.
    NetRaw = 13,
    /// The process may lock memory beyond its resource limit.
    IpcLock = 14,
    /// The process may do most administrative operations.
    SysAdmin = 21,
    /// The process may load programs into the kernel.
    Bpf = 39,
}

/// A set of capabilities.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Capabilities(u64);

impl Capabilities {
    /// Returns the effective capabilities of this process.
    ///
    /// # Errors
    /// Returns the error of the system call that failed.
    pub fn effective() -> io::Result<Self> {
        let status = fs::read_to_string("/proc/self/status")?;
        let found = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let set = found.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok());
        set.map(Self).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Returns whether the set contains `capability`.
    pub const fn has(self, capability: Capability) -> bool {
        self.0 >> capability as u8 & 1 != 0
    }
}

impl Capability {
    /// Returns the capability's name in manuals and for `setcap`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::NetRaw => "CAP_NET_RAW",
            Self::IpcLock => "CAP_IPC_LOCK",
            Self::SysAdmin => "CAP_SYS_ADMIN",
            Self::Bpf => "CAP_BPF",
        }
    }
}

/// Limits on locked memory of the process, in bytes; `None` means unlimited.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct MemoryLock {
    /// The limit in force.
    pub soft: Option<u64>,
    /// The highest value to which the process may raise `soft`.
    pub hard: Option<u64>,
}

/// Returns whether a program's file has capabilities (`setcap`), which the program receives when it
/// starts.
///
/// # Errors
/// Returns the error of the system call that failed.
pub fn has_file_capabilities(program: &Path) -> io::Result<bool> {
    let path = CString::new(program.as_os_str().as_bytes())?;
    // SAFETY: both names end with a zero. With a null buffer the call only returns the length.
    let length = unsafe {
        libc::getxattr(path.as_ptr(), c"security.capability".as_ptr(), ptr::null_mut(), 0)
    };
    if length >= 0 {
        return Ok(length > 0);
    }
    match io::Error::last_os_error() {
        error if matches!(error.raw_os_error(), Some(libc::ENODATA | libc::EOPNOTSUPP)) => {
            Ok(false)
        }
        error => Err(error),
    }
}

/// Returns the limits on locked memory (`ulimit -l`).
///
/// # Errors
/// Returns the error of the system call that failed.
pub fn memory_lock() -> io::Result<MemoryLock> {
    // SAFETY: all-zero bytes are a valid `rlimit`.
    let mut limit: libc::rlimit = unsafe { zeroed() };
    // SAFETY: `limit` outlives the call, which fills it.
    if unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } < 0 {
        return Err(io::Error::last_os_error());
    }
    let bytes = |value| (value != libc::RLIM_INFINITY).then_some(value);
    Ok(MemoryLock { soft: bytes(limit.rlim_cur), hard: bytes(limit.rlim_max) })
}

/// Opens a packet socket that receives no frames, and closes it.
///
/// # Errors
/// Returns [`ProbeError`]; each variant names one cause.
pub fn probe_packet_socket() -> Result<(), ProbeError> {
    open_socket(libc::AF_PACKET, libc::SOCK_RAW).map(drop)
}

/// Opens an unbound `AF_XDP` socket, and closes it.
///
/// # Errors
/// Returns [`ProbeError`]; each variant names one cause.
pub fn probe_xdp_socket() -> Result<(), ProbeError> {
    open_socket(libc::AF_XDP, libc::SOCK_RAW).map(drop)
}

/// Creates anonymous memory that can be sealed, and frees it.
///
/// # Errors
/// Returns [`ProbeError`]; each variant names one cause.
pub fn probe_shared_memory() -> Result<(), ProbeError> {
    // SAFETY: the name is terminated and outlives the call.
    let fd = unsafe {
        libc::memfd_create(c"ethernot-probe".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
    };
    owned(fd.into()).map(drop)
}

/// Loads an XDP program that passes every packet, and unloads it. The program is never attached.
///
/// # Errors
/// Returns [`ProbeError`]; each variant names one cause.
pub fn probe_bpf_program() -> Result<(), ProbeError> {
    // r0 = XDP_PASS; exit
    let instructions: [u64; 2] = [0x0000_0002_0000_00b7, 0x0000_0000_0000_0095];
    let license = c"GPL";
    // This is the part of `union bpf_attr` that `BPF_PROG_LOAD` reads here.
    let mut attributes = [0_u64; 16];
    let [kind_and_count, first, text, ..] = &mut attributes;
    *kind_and_count = pair(BPF_PROG_TYPE_XDP, instructions.len() as u32);
    *first = instructions.as_ptr().expose_provenance() as u64;
    *text = license.as_ptr().expose_provenance() as u64;
    // SAFETY: `attributes`, and the memory that it points to, outlive the call, which only reads
    // them.
    owned(unsafe { bpf(BPF_PROG_LOAD, &mut attributes) }).map(drop)
}

/// Returns the name of a program in the kernel. The caller needs the right to inspect programs of
/// other processes.
///
/// # Errors
/// Returns [`ProbeError`]; each variant names one cause.
pub fn program_name(id: u32) -> Result<String, ProbeError> {
    let mut attributes = [0_u64; 16];
    let [first, ..] = &mut attributes;
    *first = u64::from_ne_bytes(two(id, 0));
    // SAFETY: `attributes` outlives the call and holds no pointers.
    let program = owned(unsafe { bpf(BPF_PROG_GET_FD_BY_ID, &mut attributes) })?;
    let mut info = [0_u8; PROGRAM_INFO_BYTES];
    let mut attributes = [0_u64; 16];
    let [fd_and_length, address, ..] = &mut attributes;
    *fd_and_length =
        u64::from_ne_bytes(two(program.as_raw_fd().cast_unsigned(), PROGRAM_INFO_BYTES as u32));
    *address = info.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: `attributes` and `info` outlive the call, which writes at most the length given.
    let result = unsafe { bpf(BPF_OBJ_GET_INFO_BY_FD, &mut attributes) };
    if result < 0 {
        return Err(last_error());
    }
    Ok(crate::netlink::text(info.get(PROGRAM_NAME..PROGRAM_NAME + 16).unwrap_or_default()))
}

fn pair(first: u32, second: u32) -> u64 {
    u64::from_ne_bytes(two(first, second))
}

/// Returns two numbers in the layout of a structure: first `first`, then `second`, in host byte
/// order.
fn two(first: u32, second: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    let (low, high) = bytes.split_at_mut(4);
    low.copy_from_slice(&first.to_ne_bytes());
    high.copy_from_slice(&second.to_ne_bytes());
    bytes
}

/// # Safety
/// The memory to which `attributes` points must be valid for the accesses of `command`.
unsafe fn bpf(command: c_int, attributes: &mut [u64; 16]) -> c_long {
    // SAFETY: `attributes` outlives the call and has the length given. The caller guarantees the
    // rest.
    unsafe {
        libc::syscall(libc::SYS_bpf, command, attributes.as_mut_ptr(), size_of_val(attributes))
    }
}

fn open_socket(family: c_int, kind: c_int) -> Result<OwnedFd, ProbeError> {
    // SAFETY: takes no pointers.
    owned(unsafe { libc::socket(family, kind | libc::SOCK_CLOEXEC, 0) }.into())
}

/// Returns the descriptor that a system call returned, or the error of the call.
fn owned(result: c_long) -> Result<OwnedFd, ProbeError> {
    let fd = c_int::try_from(result).ok().filter(|&fd| fd >= 0).ok_or_else(last_error)?;
    // SAFETY: the call has just created the descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn last_error() -> ProbeError {
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => ProbeError::NotPermitted,
        Some(libc::EAFNOSUPPORT | libc::ENOSYS | libc::EPROTONOSUPPORT | libc::ESOCKTNOSUPPORT) => {
            ProbeError::NotThere
        }
        _ => ProbeError::Io(error),
    }
}

/// Numbers of `linux/bpf.h`.
const BPF_PROG_LOAD: c_int = 5;
const BPF_PROG_GET_FD_BY_ID: c_int = 13;
const BPF_OBJ_GET_INFO_BY_FD: c_int = 15;
const BPF_PROG_TYPE_XDP: u32 = 6;

/// Number of bytes of `struct bpf_prog_info` to request, and the offset of the name in it.
const PROGRAM_INFO_BYTES: usize = 80;
const PROGRAM_NAME: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_agree_with_capabilities() {
        let rights = Capabilities::effective().unwrap();
        if rights.has(Capability::NetRaw) {
            assert!(probe_packet_socket().is_ok());
        } else {
            assert!(matches!(probe_packet_socket(), Err(ProbeError::NotPermitted)));
        }
        if rights.has(Capability::SysAdmin) && rights.has(Capability::NetAdmin) {
            assert!(!matches!(probe_bpf_program(), Err(ProbeError::Io(_))));
        }
        assert!(probe_shared_memory().is_ok());
        assert!(program_name(u32::MAX).is_err());
    }

    #[test]
    fn an_ordinary_program_gets_no_capabilities_and_a_missing_one_is_an_error() {
        assert!(!has_file_capabilities(Path::new("/proc/self/exe")).unwrap());
        let absent = has_file_capabilities(Path::new("/absent/program"));
        assert_eq!(absent.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_limit_of_locked_memory_is_known() {
        let limit = memory_lock().unwrap();
        assert!(limit.hard.is_none() || limit.soft <= limit.hard);
    }
}
