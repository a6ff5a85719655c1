//! Connections of the parent, in a forked child.
//!
//! What a connection is made of stays in the parent. A child that begins to use one asks the parent, through a Unix
//! socket that was made before the fork, to carry its bytes: then both call the kernel. Most children never do: they
//! serve connections of their own, or write a snapshot and end.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use libc::c_int;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType, recvmsg,
    sendmsg, socketpair,
};
use sockets::Route;
use sockets::log::{LogLevel, note};

use crate::ledger;
use crate::socket::{Owner, Socket, borrowed};

/// The two ends of what a child asks its parent through.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) parent: OwnedFd,
    pub(crate) child: OwnedFd,
}

impl Channel {
    /// Made before the fork.
    pub(crate) fn open() -> Option<Self> {
        let made =
            socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        made.ok().map(|(parent, child)| Self { parent, child })
    }
}

/// In the parent: answers a child until it and all its children have ended.
pub(crate) fn serve(channel: OwnedFd, connections: Vec<Arc<Socket>>) {
    let serving = move || {
        while let Some((token, of_child)) = asked(&channel) {
            let found = connections.iter().find(|socket| socket.token == token);
            let answer = found.map_or(Answer::Left, |socket| carried(socket, of_child));
            if tell(&channel, answer).is_err() {
                return;
            }
        }
    };
    let started = thread::Builder::new().name("ethernot-forks".into()).spawn(serving);
    if let Err(error) = started {
        let what = format_args!("a child cannot use connections of this process: {error}");
        note(LogLevel::Error, what);
    }
}

/// In a child: where it asks.
pub(crate) fn begin_child(mut asking: Asking, channel: Option<OwnedFd>) {
    // That of the parent's own parent is of no use: what it had was fetched before the fork. It is closed.
    std::mem::forget(std::mem::replace(&mut *asking, channel));
}

/// Keeps others from asking the parent, while the process is forked.
pub(crate) fn hold() -> Asking {
    PARENT.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a child: has the parent carry the bytes of a connection, as this process begins to use it.
pub(crate) fn fetch(socket: &Socket, fd: c_int) {
    // Other threads ask after this one.
    let parent = hold();
    if let Some(now) = crate::table::socket(fd)
        && now.owner != Owner::Inherited
    {
        return;
    }
    let answer =
        parent.as_ref().map_or(Ok(Answer::Carried(None)), |parent| ask(parent, socket, fd));
    let mut ledger = ledger::lock();
    match answer {
        Ok(Answer::Left) => ledger.forget(socket.token),
        Ok(Answer::Carried(end)) => {
            // It was TCP at the fork.
            if let Some(end) = end {
                ledger.put(socket.token, &end);
            }
            ledger.replace(&socket.of_other());
        }
        Err(error) => {
            let what = format_args!("the parent did not answer for a connection: {error}");
            note(LogLevel::Error, what);
            ledger.replace(&socket.of_other());
        }
    }
}

/// The right to ask the parent, and where.
pub(crate) type Asking = MutexGuard<'static, Option<OwnedFd>>;

/// What becomes of a connection that a child uses.
#[derive(Debug)]
enum Answer {
    /// It is on TCP.
    Left,
    /// The parent carries its bytes; the descriptor that the child is to use, if it has another.
    Carried(Option<OwnedFd>),
}

/// Has the bytes of a connection carried, whose descriptor in the child is `of_child`.
fn carried(socket: &Socket, of_child: Option<OwnedFd>) -> Answer {
    let Some(connection) = socket.begun() else { return Answer::Left };
    // It is decided soon, or was before the fork.
    for _ in 0..DECISION_LOOKS {
        if connection.route() != Route::Undecided {
            break;
        }
        #[expect(clippy::disallowed_methods, reason = "nothing tells this thread of it")]
        thread::sleep(DECISION_LOOK);
    }
    match (connection.route(), of_child) {
        (Route::Moved, Some(end)) if is_end(&end) => {
            connection.relay(borrowed(end.as_raw_fd()));
            Answer::Carried(None)
        }
        (Route::Moved, _) => match ledger::lock().duplicate(socket.token) {
            Some(end) => {
                connection.relay(borrowed(end.as_raw_fd()));
                Answer::Carried(Some(end))
            }
            None => Answer::Left,
        },
        (Route::Undecided | Route::Left(_), _) => Answer::Left,
    }
}

/// Whether a descriptor is an end of a socket pair, and not TCP.
fn is_end(fd: &OwnedFd) -> bool {
    let name = nix::sys::socket::getsockname::<nix::sys::socket::SockaddrStorage>(fd.as_raw_fd());
    name.is_ok_and(|name| name.as_sockaddr_in().is_none() && name.as_sockaddr_in6().is_none())
}

fn ask(parent: &OwnedFd, socket: &Socket, fd: c_int) -> Result<Answer, Errno> {
    let token = socket.token.to_ne_bytes();
    send(parent, &token, Some(fd))?;
    let mut wanted = [PollFd::new(as_borrowed(parent), PollFlags::POLLIN)];
    if poll(&mut wanted, PollTimeout::from(ANSWER_MS))? == 0 {
        return Err(Errno::ETIMEDOUT);
    }
    let mut answer = [0];
    match receive(parent, &mut answer)? {
        (1, _) if answer[0] == LEFT => Ok(Answer::Left),
        (1, end) => Ok(Answer::Carried(end)),
        _ => Err(Errno::ECONNRESET),
    }
}

fn asked(channel: &OwnedFd) -> Option<(u64, Option<OwnedFd>)> {
    let mut token = [0; 8];
    match receive(channel, &mut token) {
        Ok((8, of_child)) => Some((u64::from_ne_bytes(token), of_child)),
        _ => None,
    }
}

fn tell(channel: &OwnedFd, answer: Answer) -> Result<(), Errno> {
    match answer {
        Answer::Left => send(channel, &[LEFT], None),
        Answer::Carried(end) => send(channel, &[CARRIED], end.as_ref().map(AsRawFd::as_raw_fd)),
    }
}

fn send(channel: &OwnedFd, bytes: &[u8], fd: Option<RawFd>) -> Result<(), Errno> {
    let fds: Vec<_> = fd.into_iter().collect();
    let rights = [ControlMessage::ScmRights(&fds)];
    let rights = if fds.is_empty() { &[][..] } else { &rights[..] };
    let pieces = [IoSlice::new(bytes)];
    loop {
        match sendmsg::<()>(channel.as_raw_fd(), &pieces, rights, MsgFlags::MSG_NOSIGNAL, None) {
            Err(Errno::EINTR) => {}
            result => return result.map(drop),
        }
    }
}

fn receive(channel: &OwnedFd, into: &mut [u8]) -> Result<(usize, Option<OwnedFd>), Errno> {
    let mut control = nix::cmsg_space!(RawFd);
    let mut pieces = [IoSliceMut::new(into)];
    loop {
        let flags = MsgFlags::MSG_CMSG_CLOEXEC;
        let fd = channel.as_raw_fd();
        let message = match recvmsg::<()>(fd, &mut pieces, Some(&mut control), flags) {
            Err(Errno::EINTR) => continue,
            result => result?,
        };
        let mut end = None;
        for control in message.cmsgs()? {
            if let ControlMessageOwned::ScmRights(fds) = control {
                // SAFETY: the kernel has just made them, and nobody else has them.
                let mut fds = fds.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
                end = fds.next();
            }
        }
        return Ok((message.bytes, end));
    }
}

fn as_borrowed(fd: &OwnedFd) -> BorrowedFd<'_> {
    std::os::fd::AsFd::as_fd(fd)
}

/// In a child: where it asks its parent.
static PARENT: Mutex<Option<OwnedFd>> = Mutex::new(None);

const LEFT: u8 = 0;
const CARRIED: u8 = 1;

/// How long a child waits for its parent: longer than a connection stays undecided.
const ANSWER_MS: u16 = 5000;

/// How often, and for how long each, the parent looks whether a connection is decided: as long as it may take.
const DECISION_LOOKS: u32 = 1000;
const DECISION_LOOK: Duration = Duration::from_millis(1);
