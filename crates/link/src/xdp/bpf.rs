//! The system call `bpf`, for programs in the kernel.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use super::instruction::Instruction;

/// A map from receive queues to sockets, for programs that redirect frames.
#[derive(Debug)]
pub(super) struct SocketMap(OwnedFd);

impl SocketMap {
    /// Creates an empty map for queues below `queues`.
    pub(super) fn new(queues: u32) -> io::Result<Self> {
        let request = MapCreate {
            map_type: MAP_TYPE_SOCKETS,
            key_size: 4,
            value_size: 4,
            max_entries: queues,
            ..MapCreate::default()
        };
        call(MAP_CREATE, &request).map(Self)
    }

    /// Permits frames of `queue` to be redirected to `socket`.
    pub(super) fn insert(&self, queue: u32, socket: BorrowedFd<'_>) -> io::Result<()> {
        let value = socket.as_raw_fd();
        let request = MapUpdate {
            map: self.0.as_raw_fd() as u32,
            reserved: 0,
            key: (&raw const queue).addr() as u64,
            value: (&raw const value).addr() as u64,
            flags: 0,
        };
        status(MAP_UPDATE, &request)
    }

    /// Returns the descriptor by which programs refer to the map.
    pub(super) fn descriptor(&self) -> i32 {
        self.0.as_raw_fd()
    }
}

/// A program that the kernel has verified and loaded.
#[derive(Debug)]
pub(super) struct Program(OwnedFd);

impl Program {
    /// Loads a program that runs on frames from the driver.
    pub(super) fn load(code: &[Instruction]) -> io::Result<Self> {
        let mut request = ProgramLoad {
            program_type: PROGRAM_TYPE_XDP,
            instructions: code.len() as u32,
            code: code.as_ptr().addr() as u64,
            license: LICENSE.as_ptr().addr() as u64,
            flags: HAS_FRAGMENTS,
            name: PROGRAM_NAME,
            ..ProgramLoad::default()
        };
        match call(PROGRAM_LOAD, &request) {
            // The flag is invalid on kernels before 5.18, which do not support frames in several
            // buffers.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                request.flags = 0;
                call(PROGRAM_LOAD, &request).map(Self)
            }
            loaded => loaded.map(Self),
        }
    }

    /// Attaches the program to an interface until the attachment is dropped. If the process ends in
    /// any way, the kernel closes the descriptor of the attachment and so detaches the program.
    pub(super) fn attach(&self, interface: u32, mode: AttachMode) -> io::Result<Attachment> {
        let request = LinkCreate {
            program: self.0.as_raw_fd() as u32,
            interface,
            attach_type: ATTACH_TYPE_XDP,
            flags: mode as u32,
            ..LinkCreate::default()
        };
        call(LINK_CREATE, &request).map(Attachment)
    }

    /// Runs the program once on `frame`, without an interface, and returns its result.
    #[cfg(test)]
    pub(super) fn run(&self, frame: &[u8]) -> io::Result<u32> {
        let mut request = TestRun {
            program: self.0.as_raw_fd() as u32,
            data_in_bytes: frame.len() as u32,
            data_in: frame.as_ptr().addr() as u64,
            repeat: 1,
            ..TestRun::default()
        };
        let answer = &raw mut request;
        // SAFETY: the request is a local variable of the size given, which the kernel may write.
        // The kernel reads the frame within the bounds in the request.
        let result =
            unsafe { libc::syscall(libc::SYS_bpf, TEST_RUN, answer, size_of::<TestRun>() as u32) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(request.answer) }
    }
}

/// The place at which a program on an interface runs.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub(super) enum AttachMode {
    /// The program runs in the network stack, which works with any driver.
    Generic = 1 << 1,
    /// The program runs in the driver.
    Native = 1 << 2,
}

/// The attachment of a program to an interface.
#[derive(Debug)]
pub(super) struct Attachment(OwnedFd);

impl Attachment {
    /// Replaces the program atomically: the old program or the new program handles each frame.
    pub(super) fn replace(&self, program: &Program) -> io::Result<()> {
        let request = LinkUpdate {
            link: self.0.as_raw_fd() as u32,
            program: program.0.as_raw_fd() as u32,
            ..LinkUpdate::default()
        };
        status(LINK_UPDATE, &request)
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        // Detach explicitly. Closing the descriptor might not detach the program at once: a child
        // process between `fork` and `exec` has a copy of the descriptor. If the interface is gone,
        // the call fails without effect.
        let _ = status(LINK_DETACH, &LinkDetach { link: self.0.as_raw_fd() as u32 });
    }
}

/// Returns the name of program `id`. The name is empty if the program's loader gave none.
pub(super) fn program_name(id: u32) -> io::Result<String> {
    let program = call(PROGRAM_BY_ID, &ById { id, ..ById::default() })?;
    let mut info = MaybeUninit::<ProgramInfo>::zeroed();
    let request = InfoOf {
        descriptor: program.as_raw_fd() as u32,
        info_bytes: size_of::<ProgramInfo>() as u32,
        info: info.as_mut_ptr().addr() as u64,
    };
    status(OBJECT_INFO, &request)?;
    // SAFETY: the structure has only numbers, and was zeroed before the kernel wrote to it.
    let info = unsafe { info.assume_init() };
    let name = info.name.iter().take_while(|&&byte| byte != 0).copied().collect();
    Ok(String::from_utf8(name).unwrap_or_default())
}

/// Runs a command that returns a descriptor.
fn call<T>(command: i32, request: &T) -> io::Result<OwnedFd> {
    let result = raw(command, request)?;
    // SAFETY: the kernel just returned this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

/// Runs a command that returns no value.
fn status<T>(command: i32, request: &T) -> io::Result<()> {
    raw(command, request).map(drop)
}

fn raw<T>(command: i32, request: &T) -> io::Result<i32> {
    // SAFETY: `T` is one of the requests below, with its size. The addresses in the request point
    // to local variables and slices of the callers. These outlive the call and have the sizes given
    // in the request.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, command, ptr::from_ref(request), size_of::<T>() as u32)
    };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result as i32) }
}

// Requests, in the layout of `union bpf_attr` of linux/bpf.h, up to the last field used.

#[derive(Default)]
#[repr(C)]
struct MapCreate {
    map_type: u32,
    key_size: u32,
    value_size: u32,
    max_entries: u32,
    flags: u32,
}

#[repr(C)]
struct MapUpdate {
    map: u32,
    reserved: u32,
    key: u64,
    value: u64,
    flags: u64,
}

#[derive(Default)]
#[repr(C)]
struct ProgramLoad {
    program_type: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; 16],
    interface: u32,
    attach_type: u32,
}

#[derive(Default)]
#[repr(C)]
struct LinkCreate {
    program: u32,
    interface: u32,
    attach_type: u32,
    flags: u32,
    reserved: [u64; 4],
}

#[derive(Default)]
#[repr(C)]
struct LinkUpdate {
    link: u32,
    program: u32,
    flags: u32,
    old_program: u32,
}

#[repr(C)]
struct LinkDetach {
    link: u32,
}

#[derive(Default)]
#[repr(C)]
struct ById {
    id: u32,
    next: u32,
    flags: u32,
}

#[repr(C)]
struct InfoOf {
    descriptor: u32,
    info_bytes: u32,
    info: u64,
}

/// The first fields of the kernel's information about a program.
#[repr(C)]
struct ProgramInfo {
    program_type: u32,
    id: u32,
    tag: [u8; 8],
    native_bytes: u32,
    translated_bytes: u32,
    native: u64,
    translated: u64,
    loaded_at_ns: u64,
    user: u32,
    maps: u32,
    map_ids: u64,
    name: [u8; 16],
}

#[cfg(test)]
#[derive(Default)]
#[repr(C)]
struct TestRun {
    program: u32,
    answer: u32,
    data_in_bytes: u32,
    data_out_bytes: u32,
    data_in: u64,
    data_out: u64,
    repeat: u32,
    duration_ns: u32,
    context_in_bytes: u32,
    context_out_bytes: u32,
    context_in: u64,
    context_out: u64,
    flags: u32,
    processor: u32,
    batch: u32,
    reserved: u32,
}

// Commands of the system call and types of objects, from linux/bpf.h.
const MAP_CREATE: i32 = 0;
const MAP_UPDATE: i32 = 2;
const PROGRAM_LOAD: i32 = 5;
#[cfg(test)]
const TEST_RUN: i32 = 10;
const PROGRAM_BY_ID: i32 = 13;
const OBJECT_INFO: i32 = 15;
const LINK_CREATE: i32 = 28;
const LINK_UPDATE: i32 = 29;
const LINK_DETACH: i32 = 34;
const MAP_TYPE_SOCKETS: u32 = 17;
const PROGRAM_TYPE_XDP: u32 = 6;
const ATTACH_TYPE_XDP: u32 = 37;
/// The program accepts frames that are spread over several buffers.
const HAS_FRAGMENTS: u32 = 1 << 5;
/// The license of the program. Programs of any license may call the functions that this program
/// calls.
const LICENSE: &[u8] = b"Apache-2.0\0";
/// The name under which `ip -details link` and `bpftool` show the program.
const PROGRAM_NAME: [u8; 16] = *b"ethernot_rx\0\0\0\0\0";
