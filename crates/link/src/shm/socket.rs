//! Unix sockets between two processes. Over these sockets the processes find each other, agree on
//! shared memory, wake each other and lend memory. A closed socket shows that the other process has
//! ended.

use std::io;
use std::mem::{MaybeUninit, size_of};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;

use wire_edge::PeerAddr;

use super::ring::{FILE_BYTES, FRAME_BYTES_MAX};
use crate::credentials::is_trusted;

/// The first message from the connecting end, sent with the descriptor of the shared memory.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Greeting {
    /// The connecting endpoint.
    pub(super) from: PeerAddr,
    /// The endpoint to which it connects.
    pub(super) to: PeerAddr,
}

impl Greeting {
    fn encode(&self) -> [u8; GREETING_BYTES] {
        let mut bytes = [0; GREETING_BYTES];
        let parts: [&[u8]; 5] = [
            MAGIC,
            &self.from.0,
            &self.to.0,
            &(FILE_BYTES as u64).to_le_bytes(),
            &(FRAME_BYTES_MAX as u64).to_le_bytes(),
        ];
        for (to, from) in bytes.iter_mut().zip(parts.into_iter().flatten()) {
            *to = *from;
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let address = |at: usize| Some(PeerAddr(bytes.get(at..at + 20)?.try_into().ok()?));
        let greeting = Self { from: address(MAGIC.len())?, to: address(MAGIC.len() + 20)? };
        (bytes == greeting.encode()).then_some(greeting)
    }
}

/// Returns a number that identifies this host and network namespace: a hash of the running kernel's
/// boot identifier and of the namespace. Two processes with equal numbers can reach each other by
/// abstract Unix sockets.
pub(super) fn host_identity() -> io::Result<u64> {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id")?;
    let namespace = std::fs::metadata("/proc/self/ns/net")?;
    let mut hash = FNV_BASIS;
    let numbers = [namespace.dev().to_le_bytes(), namespace.ino().to_le_bytes()];
    for byte in boot.iter().chain(numbers.iter().flatten()) {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME);
    }
    Ok(hash)
}

/// Returns an unpredictable number.
pub(super) fn random() -> io::Result<u64> {
    let mut bytes = [0_u8; 8];
    // SAFETY: the kernel writes at most eight bytes.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == 8 { Ok(u64::from_ne_bytes(bytes)) } else { Err(io::Error::last_os_error()) }
}

/// Opens the listening socket of an endpoint. The socket has an abstract name, which the kernel
/// frees when the process ends in any way.
pub(super) fn listen(endpoint: u64) -> io::Result<OwnedFd> {
    let socket = open()?;
    let (name, len) = name_of(endpoint);
    // SAFETY: the name is a local variable of at least that length.
    check(unsafe { libc::bind(socket.as_raw_fd(), (&raw const name).cast(), len) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::listen(socket.as_raw_fd(), BACKLOG) })?;
    Ok(socket)
}

/// Connects to the endpoint with this number, if its process runs as the same user or as root.
pub(super) fn connect(endpoint: u64) -> io::Result<OwnedFd> {
    let socket = open()?;
    let (name, len) = name_of(endpoint);
    // SAFETY: the name is a local variable of at least that length.
    check(unsafe { libc::connect(socket.as_raw_fd(), (&raw const name).cast(), len) })?;
    if is_trusted(socket.as_fd())? {
        Ok(socket)
    } else {
        Err(io::ErrorKind::PermissionDenied.into())
    }
}

/// Accepts the next connection; `None` if no connection waits. Rejects processes of other users.
pub(super) fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    loop {
        // SAFETY: the address pointers are null, so no memory is passed.
        let socket = unsafe {
            libc::accept4(
                listener.as_raw_fd(),
                std::ptr::null_mut(),
                std::ptr::null_mut(),
                libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK,
            )
        };
        if socket < 0 {
            let error = io::Error::last_os_error();
            return if is_nothing(&error) { Ok(None) } else { Err(error) };
        }
        // SAFETY: the kernel just returned this descriptor; it has no other owner.
        let socket = unsafe { OwnedFd::from_raw_fd(socket) };
        if is_trusted(socket.as_fd()).unwrap_or(false) {
            return Ok(Some(socket));
        }
    }
}

/// Creates memory to share: [`FILE_BYTES`] bytes of zero. No process can change its size.
pub(super) fn create_memory() -> io::Result<OwnedFd> {
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a literal that ends with 0.
    let file = check(unsafe { libc::memfd_create(c"ethernot".as_ptr(), flags) })?;
    // SAFETY: the kernel just returned this descriptor; it has no other owner.
    let file = unsafe { OwnedFd::from_raw_fd(file) };
    // Allocate all pages now, so that a shortage of memory is an error here and not a fault later.
    // SAFETY: no memory is passed.
    check(unsafe {
        libc::fallocate(file.as_raw_fd(), 0, 0, FILE_BYTES.cast_signed() as libc::off_t)
    })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, SEALS) })?;
    Ok(file)
}

/// Returns whether a descriptor is memory of [`FILE_BYTES`] whose size no process can change.
pub(super) fn is_sealed_memory(file: BorrowedFd<'_>) -> bool {
    let (seals, size) = seals_and_size(file);
    seals & SEALS == SEALS && size == FILE_BYTES as u64
}

/// Returns whether a descriptor is memory of at least `bytes` that cannot shrink. `bytes` must not
/// be 0.
pub(super) fn is_unshrinkable(file: BorrowedFd<'_>, bytes: u64) -> bool {
    let (seals, size) = seals_and_size(file);
    seals & libc::F_SEAL_SHRINK != 0 && (1..=size).contains(&bytes)
}

/// Returns the flags `F_SEAL_*` and the size of a memory file with pages of normal size. Returns
/// zeroes for any other file, including files with huge pages. The kernel can free huge pages of a
/// file although the file is sealed. If no huge page is available later, a read faults.
fn seals_and_size(file: BorrowedFd<'_>) -> (i32, u64) {
    // SAFETY: no memory is passed. Only files in memory can be sealed.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    if seals < 0 {
        // Do not examine another file: a process may implement its file system (FUSE), and may
        // delay the answer.
        return (0, 0);
    }
    let mut status = MaybeUninit::<libc::stat>::zeroed();
    let mut system = MaybeUninit::<libc::statfs>::zeroed();
    // SAFETY: each call writes one structure of the size it expects. Both were zeroed, and zero is
    // valid for them.
    let (results, status, system) = unsafe {
        let results = [
            libc::fstat(file.as_raw_fd(), status.as_mut_ptr()),
            libc::fstatfs(file.as_raw_fd(), system.as_mut_ptr()),
        ];
        (results, status.assume_init(), system.assume_init())
    };
    if results != [0, 0] || system.f_type != libc::TMPFS_MAGIC {
        return (0, 0);
    }
    (seals, u64::try_from(status.st_size).unwrap_or(0))
}

/// Sends the greeting and the memory. The socket was just connected, so it has room for them.
pub(super) fn greet(
    socket: BorrowedFd<'_>,
    greeting: &Greeting,
    memory: BorrowedFd<'_>,
) -> io::Result<()> {
    send(socket, &mut greeting.encode(), Some(memory))
}

/// Sends a message, optionally with a descriptor.
fn send(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    descriptor: Option<BorrowedFd<'_>>,
) -> io::Result<()> {
    let mut control = Control::default();
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = message(&mut piece, &mut control);
    message.msg_controllen = 0;
    if let Some(descriptor) = descriptor {
        // SAFETY: the control buffer is large enough and aligned for one descriptor, so the macros
        // stay within it.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(size_of::<RawFd>() as u32) as _;
            let header = libc::CMSG_FIRSTHDR(&raw const message);
            if header.is_null() {
                return Err(io::ErrorKind::InvalidInput.into());
            }
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(size_of::<RawFd>() as u32) as _;
            libc::CMSG_DATA(header)
                .cast::<[u8; size_of::<RawFd>()]>()
                .write(descriptor.as_raw_fd().to_ne_bytes());
        }
    }
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: all memory that the message points to outlives the call.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &raw const message, flags) };
    match usize::try_from(sent) {
        Ok(sent) if sent == bytes.len() => Ok(()),
        Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        Err(_) => Err(io::Error::last_os_error()),
    }
}

/// Result of reading a greeting.
#[derive(Debug)]
pub(super) enum Greeted {
    /// No message arrived yet.
    NotYet,
    /// A greeting and a descriptor. The descriptor is not checked yet.
    Well(Greeting, OwnedFd),
    /// Another message, or the end of the connection.
    Badly,
}

/// Reads the greeting from an accepted socket.
pub(super) fn be_greeted(socket: BorrowedFd<'_>) -> Greeted {
    let mut bytes = [0_u8; GREETING_BYTES + 1];
    match receive(socket, &mut bytes) {
        Ok((got, memory)) => match (bytes.get(..got).and_then(Greeting::decode), memory) {
            (Some(greeting), Some(memory)) => Greeted::Well(greeting, memory),
            _ => Greeted::Badly,
        },
        Err(error) if is_nothing(&error) => Greeted::NotYet,
        Err(_) => Greeted::Badly,
    }
}

/// Receives a message. Also returns its descriptor, if the message has exactly one.
fn receive(socket: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<(usize, Option<OwnedFd>)> {
    let mut control = Control::default();
    let mut piece = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut message = message(&mut piece, &mut control);
    let flags = libc::MSG_DONTWAIT | libc::MSG_CMSG_CLOEXEC;
    // SAFETY: all memory that the message points to outlives the call.
    let got = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, flags) };
    let got = usize::try_from(got).map_err(|_| io::Error::last_os_error())?;
    Ok((got, only_descriptor(&message)))
}

/// Takes ownership of the descriptors of a message. If the message has exactly one descriptor,
/// returns it. Otherwise closes all of them.
fn only_descriptor(message: &libc::msghdr) -> Option<OwnedFd> {
    let mut found = None;
    let mut count = 0;
    // SAFETY: the kernel filled the control buffer up to `msg_controllen` with whole headers, and
    // the macros stay within them. The call has made this process the owner of each descriptor
    // there.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(message);
        while !header.is_null() {
            let is_rights =
                (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS;
            let bytes = ((*header).cmsg_len as usize).saturating_sub(libc::CMSG_LEN(0) as usize);
            if is_rights {
                let data = libc::CMSG_DATA(header).cast::<[u8; size_of::<RawFd>()]>();
                for index in 0..bytes / size_of::<RawFd>() {
                    let number = RawFd::from_ne_bytes(data.add(index).read());
                    let descriptor = OwnedFd::from_raw_fd(number);
                    count += 1;
                    found = Some(descriptor);
                }
            }
            header = libc::CMSG_NXTHDR(message, header);
        }
    }
    found.filter(|_| count == 1 && message.msg_flags & libc::MSG_CTRUNC == 0)
}

/// Wakes the other end. Returns whether the other end still exists.
pub(super) fn wake(socket: BorrowedFd<'_>) -> bool {
    let byte = 1_u8;
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    // SAFETY: one byte is read from a local variable.
    let sent = unsafe { libc::send(socket.as_raw_fd(), (&raw const byte).cast(), 1, flags) };
    // If the socket is full, the other end has not read earlier wake-ups yet. One wake-up is
    // enough.
    sent == 1 || is_nothing(&io::Error::last_os_error())
}

/// A notice from one end to the other, sent over the socket.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Notice {
    /// The sender lends `len` bytes of the attached memory file, under the number `memory`.
    Lent { memory: u64, len: u64 },
    /// The sender no longer lends the memory with this number.
    Gone(u64),
    /// The sender cannot map lent memory, so the other end must copy payload.
    Refused,
}

impl Notice {
    fn encode(self) -> [u8; NOTICE_BYTES] {
        let (kind, first, second) = match self {
            Self::Lent { memory, len } => (2, memory, len),
            Self::Gone(memory) => (3, memory, 0),
            Self::Refused => (4, 0, 0),
        };
        let mut bytes = [kind; NOTICE_BYTES];
        bytes[1..9].copy_from_slice(&first.to_le_bytes());
        bytes[9..].copy_from_slice(&second.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let word = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let notice = match bytes.first()? {
            2 => Self::Lent { memory: word(1)?, len: word(9)? },
            3 => Self::Gone(word(1)?),
            4 => Self::Refused,
            _ => return None,
        };
        (bytes == notice.encode()).then_some(notice)
    }
}

/// Sends a notice to the other end. Returns false if the socket cannot send it now.
pub(super) fn send_notice(
    socket: BorrowedFd<'_>,
    notice: Notice,
    descriptor: Option<BorrowedFd<'_>>,
) -> bool {
    send(socket, &mut notice.encode(), descriptor).is_ok()
}

/// A message from the other end.
#[derive(Debug)]
pub(super) enum Heard {
    /// No message waits.
    Nothing,
    /// A wake-up.
    Call,
    /// A notice, and the descriptor that was attached to it.
    Notice(Notice, Option<OwnedFd>),
    /// The other end is gone, or violated the protocol.
    End,
}

/// Reads the next message from the other end.
pub(super) fn hear(socket: BorrowedFd<'_>) -> Heard {
    let mut bytes = [0_u8; NOTICE_BYTES + 1];
    match receive(socket, &mut bytes) {
        Ok((0, _)) => Heard::End,
        Ok((1, _)) => Heard::Call,
        Ok((got, descriptor)) => match bytes.get(..got).and_then(Notice::decode) {
            Some(notice) => Heard::Notice(notice, descriptor),
            None => Heard::End,
        },
        Err(error) if is_nothing(&error) => Heard::Nothing,
        Err(_) => Heard::End,
    }
}

/// Decodes any bytes as a greeting and as a notice (for fuzzing).
///
/// # Panics
/// Panics if a decoded message does not encode to the same bytes.
#[doc(hidden)]
pub fn fuzz_shm_messages(bytes: &[u8]) {
    if let Some(greeting) = Greeting::decode(bytes) {
        assert_eq!(greeting.encode(), bytes);
    }
    if let Some(notice) = Notice::decode(bytes) {
        assert_eq!(notice.encode(), bytes);
    }
}

fn open() -> io::Result<OwnedFd> {
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no memory is passed.
    let socket = check(unsafe { libc::socket(libc::AF_UNIX, kind, 0) })?;
    // SAFETY: the kernel just returned this descriptor; it has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(socket) })
}

fn name_of(endpoint: u64) -> (libc::sockaddr_un, libc::socklen_t) {
    let mut name = libc::sockaddr_un { sun_family: libc::AF_UNIX as u16, sun_path: [0; 108] };
    let text = format!("ethernot-{endpoint:016x}");
    // A name that starts with a zero byte is abstract.
    for (to, from) in name.sun_path.iter_mut().skip(1).zip(text.bytes()) {
        *to = libc::c_char::from_ne_bytes([from]);
    }
    (name, (size_of::<libc::sa_family_t>() + 1 + text.len()) as libc::socklen_t)
}

fn message(piece: &mut libc::iovec, control: &mut Control) -> libc::msghdr {
    // SAFETY: the structure has only integers and pointers, for which zero is valid.
    let mut message: libc::msghdr = unsafe { MaybeUninit::zeroed().assume_init() };
    message.msg_iov = piece;
    message.msg_iovlen = 1;
    message.msg_control = control.0.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>() as _;
    message
}

fn check(result: i32) -> io::Result<i32> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

fn is_nothing(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

/// A buffer for a few descriptors, aligned for control message headers.
#[derive(Default)]
struct Control([u64; 8]);

const MAGIC: &[u8] = b"ethernot shm 002";
const GREETING_BYTES: usize = MAGIC.len() + 2 * 20 + 2 * 8;
const SEALS: i32 = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;

/// Maximum number of connections that wait to be accepted. The kernel refuses further connections,
/// and their peers retry.
const BACKLOG: i32 = 32;

/// Bytes of a notice: its kind and two numbers.
const NOTICE_BYTES: usize = 1 + 2 * 8;

/// Constants of the 64-bit FNV-1a hash (Fowler, Noll, Vo).
const FNV_BASIS: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_encoded_notices_are_decoded_as_notices() {
        let notices =
            [Notice::Lent { memory: 1 << 40, len: 7 }, Notice::Gone(u64::MAX), Notice::Refused];
        for notice in notices {
            let bytes = notice.encode();
            assert_eq!(Notice::decode(&bytes), Some(notice));
            assert_eq!(Notice::decode(&bytes[..NOTICE_BYTES - 1]), None);
            assert_eq!(Notice::decode(&[bytes.as_slice(), &[0]].concat()), None);
            assert_eq!(Notice::decode(&[&[5], &bytes[1..]].concat()), None);
        }
    }
}
