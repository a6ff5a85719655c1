//! What this process has of the crate `sockets`: one of it, started with the first connection that may move.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use libc::c_int;
use nix::sys::socket::{getsockopt, sockopt};
use sockets::log::{LogLevel, note};
use sockets::{Choice, Connection, Place, Role, Settings, Sockets};

use crate::socket::{Socket, borrowed};
use crate::{inherited, ledger};

/// Reads the settings. Called once, before `main`.
pub(crate) fn begin() {
    let settings = Settings::from_environment().unwrap_or_else(|error| {
        note(LogLevel::Error, format_args!("{error}; all connections stay on TCP"));
        Settings::off()
    });
    sockets::log::begin(&settings);
    sockets::counters::begin(&settings);
    SETTINGS.get_or_init(|| Arc::new(settings));
    HOME.store(pid(), Ordering::Relaxed);
    // SAFETY: the handler is a function without captured state.
    unsafe { libc::atexit(at_end) };
}

/// What becomes of a connection.
pub(crate) fn choice(socket: &Socket) -> Choice {
    match SETTINGS.get() {
        Some(settings) => settings.choice(socket.role, socket.local, socket.peer),
        None => Choice::Tcp(sockets::Reason::NoEndpoint),
    }
}

/// The one of this process, if it was started.
#[inline]
pub(crate) fn started() -> Option<&'static Sockets> {
    // SAFETY: null, or what `start` has leaked; it is taken away in a forked child only, where no other thread is.
    unsafe { STARTED.load(Ordering::Acquire).as_ref() }
}

/// Has a connection that the program begins to use move; `None` if it cannot.
pub(crate) fn connection(socket: &Socket, fd: c_int) -> Option<Arc<Connection>> {
    let Some(sockets) = started().or_else(start) else {
        ledger::lock().forget(socket.token);
        return None;
    };
    let moving = match socket.role {
        Role::Connecting => sockets.connected(socket.token, socket.local, socket.peer),
        Role::Accepting => sockets.accepted(socket.token, socket.local, socket.peer),
    };
    // The program may have put it into sets before it connected.
    let watching = ledger::lock().watching(socket.token);
    match watching {
        Some(true) => moving.watch_edges(),
        Some(false) => moving.watch(),
        None => {}
    }
    // The same of options, or at the listener.
    if getsockopt(&borrowed(fd), sockopt::TcpNoDelay) == Ok(true) {
        moving.set_no_delay(true);
    }
    Some(moving)
}

/// Whether this is the process whose table this is: not one that shares its memory (`vfork`), nor a copy that was
/// not told so (`clone`).
pub(crate) fn is_home() -> bool {
    HOME.load(Ordering::Relaxed) == pid()
}

/// What the program has written is driven out: it ends, or becomes another one.
pub(crate) fn finish() {
    if let Some(sockets) = started()
        && is_home()
    {
        inherited::hand_over();
        sockets.finish(FINISH_LIMIT);
        sockets::counters::finish();
    }
}

/// After all that the program does at its end.
extern "C" fn at_end() {
    if is_home() {
        sockets::counters::finish();
    }
}

/// Keeps others from starting one, while the process is forked.
pub(crate) fn hold() -> MutexGuard<'static, ()> {
    STARTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// In a forked child: the one of the parent is gone.
pub(crate) fn forget_in_child() {
    HOME.store(pid(), Ordering::Relaxed);
    HAS_FAILED.store(false, Ordering::Relaxed);
    let parents = STARTED.swap(std::ptr::null_mut(), Ordering::AcqRel);
    if !parents.is_null() {
        // SAFETY: `start` has leaked it, and nobody else has it: this process has one thread.
        let parents = unsafe { Box::from_raw(parents) };
        parents.forget_in_child();
    }
}

#[cold]
fn start() -> Option<&'static Sockets> {
    let _alone = hold();
    if started().is_some() || HAS_FAILED.load(Ordering::Relaxed) {
        return started();
    }
    let settings = Arc::clone(SETTINGS.get()?);
    match Sockets::start(settings, Arc::new(Numbers)) {
        Ok(sockets) => {
            STARTED.store(Box::into_raw(Box::new(sockets)), Ordering::Release);
            // After that of the runtime, so it is called before it.
            // SAFETY: the handler is a function without captured state.
            unsafe { libc::atexit(at_exit) };
            started()
        }
        Err(error) => {
            HAS_FAILED.store(true, Ordering::Relaxed);
            note(LogLevel::Error, format_args!("{error}; all connections stay on TCP"));
            None
        }
    }
}

extern "C" fn at_exit() {
    finish();
}

/// The program's descriptors.
struct Numbers;

impl Place for Numbers {
    fn duplicate(&self, token: u64) -> Option<OwnedFd> {
        ledger::lock().duplicate(token)
    }

    fn put(&self, token: u64, end: OwnedFd) -> bool {
        ledger::lock().put(token, &end)
    }

    fn is_shared(&self, token: u64) -> bool {
        ledger::lock().is_shared(token)
    }

    fn decided(&self, token: u64) {
        ledger::lock().forget(token);
    }

    fn closed(&self, token: u64) {
        ledger::lock().forget(token);
    }
}

fn pid() -> i32 {
    // SAFETY: takes nothing.
    unsafe { libc::getpid() }
}

static SETTINGS: OnceLock<Arc<Settings>> = OnceLock::new();
static STARTED: AtomicPtr<Sockets> = AtomicPtr::new(std::ptr::null_mut());
static STARTING: Mutex<()> = Mutex::new(());
static HAS_FAILED: AtomicBool = AtomicBool::new(false);
static HOME: AtomicI32 = AtomicI32::new(0);

/// For how long a program's end waits for the peers to have what it has written.
const FINISH_LIMIT: Duration = Duration::from_secs(2);
