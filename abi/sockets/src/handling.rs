//! Runs the program's signal handlers between its calls on connections, and never within such a
//! call: see [`sockets::handlers`].
//!
//! For each signal that the program handles, the kernel calls a function of this library. If the
//! thread is within a call on a connection, this function queues the signal a second time with its
//! data. The signal then stays blocked until the call ends.

use std::cell::Cell;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};

use libc::{c_int, c_void, sigaction, sighandler_t, siginfo_t, sigset_t, ucontext_t};
use sockets::handlers;

use crate::next::{call_next, errno, set_errno};

/// Marks the calling thread as being within a call on a connection. When this value is dropped,
/// deferred signal handlers run.
#[derive(Debug)]
pub(crate) struct Inside(());

impl Inside {
    #[inline]
    pub(crate) fn enter() -> Self {
        handlers::enter();
        Self(())
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        let deferred = handlers::leave();
        if deferred != 0 {
            let_in(deferred);
        }
    }
}

/// Runs `work`, which may block. During `work`, the thread counts as outside a call on a
/// connection, so that signal handlers can run. The caller must hold no lock.
pub(crate) fn outside<T>(work: impl FnOnce() -> T) -> T {
    let error = errno();
    let deferred = handlers::leave();
    if deferred != 0 {
        let_in(deferred);
    }
    set_errno(error);
    let result = work();
    handlers::enter();
    result
}

/// Runs deferred signal handlers.
#[cold]
fn let_in(deferred: u64) {
    let before = errno();
    for signal in (1..64).filter(|signal| deferred >> signal & 1 == 1) {
        let set = only(signal);
        let mut mask = empty();
        // SAFETY: both sets are valid. The signal handler runs before this call returns. It may
        // leave the call by a jump (`longjmp`).
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, &raw mut mask) };
        if WAS_BLOCKED.with(|blocked| take_bit(blocked, signal)) {
            // The program had blocked this signal. The signal arrived only because a wait used
            // another mask, so block the signal again.
            // SAFETY: the set is valid.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        }
    }
    set_errno(before);
}

thread_local! {
    /// Signals that the program had blocked, and that arrived while the thread waited with another
    /// mask.
    static WAS_BLOCKED: Cell<u64> = const { Cell::new(0) };
    /// True while the thread waits with a signal mask that the program has passed to the waiting
    /// call.
    static HAS_OTHER_MASK: Cell<bool> = const { Cell::new(false) };
}

/// Calls `wait`, which waits with a signal mask from the program. During the wait, signals may
/// arrive that the thread blocks at other times.
pub(crate) fn with_other_mask<T>(wait: impl FnOnce() -> T) -> T {
    HAS_OTHER_MASK.set(true);
    let result = wait();
    HAS_OTHER_MASK.set(false);
    result
}

fn take_bit(bits: &Cell<u64>, signal: c_int) -> bool {
    let all = bits.get();
    bits.set(all & !(1 << signal));
    all >> signal & 1 == 1
}

/// Runs the program's handler, or defers it. The kernel calls this function for each signal.
unsafe extern "C" fn came(signal: c_int, about: *mut siginfo_t, context: *mut c_void) {
    let before = errno();
    if handlers::is_inside() {
        // SAFETY: the kernel passes the arguments of a handler.
        unsafe { defer_signal(signal, about, context.cast()) };
    } else {
        // SAFETY: the kernel passes the arguments of a handler.
        unsafe { handled(signal, about, context) };
    }
    set_errno(before);
}

/// # Safety
/// The caller must be a signal handler, and pass its own arguments.
unsafe fn defer_signal(signal: c_int, about: *mut siginfo_t, context: *mut ucontext_t) {
    // SAFETY: the caller passes the context of a signal handler. The thread gets this mask when the
    // handler returns.
    let mask = unsafe { &raw mut (*context).uc_sigmask };
    // SAFETY: the mask belongs to the context of a signal handler, so it is valid.
    unsafe {
        // Check the mask only if this signal is not already deferred. Deferring a signal blocks it
        // too, so after that the mask does not show whether the program had blocked the signal. The
        // signal may still arrive a second time during a wait with another mask.
        let is_first = !handlers::is_deferred(signal.cast_unsigned());
        if is_first && HAS_OTHER_MASK.get() && libc::sigismember(mask, signal) == 1 {
            WAS_BLOCKED.with(|blocked| blocked.set(blocked.get() | 1 << signal));
        }
        libc::sigaddset(mask, signal);
    }
    handlers::defer(signal.cast_unsigned());
    // Queue the signal again. It stays pending, because the kernel blocks a signal while its
    // handler runs, and the mask above blocks it after that.
    // SAFETY: passes the data of the signal.
    unsafe {
        let (process, thread) = (libc::getpid(), libc::gettid());
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, about);
    }
}

/// A signal handler. A handler of the program that takes only the signal number ignores the other
/// arguments.
type Handler = unsafe extern "C" fn(c_int, *mut siginfo_t, *mut c_void);

/// Runs the program's handler.
///
/// # Safety
/// The caller must be a signal handler, and pass its own arguments.
unsafe fn handled(signal: c_int, about: *mut siginfo_t, context: *mut c_void) {
    let Some(action) = action(signal) else { return };
    let handler = action.handler.load(Ordering::Acquire);
    let flags = action.flags.load(Ordering::Acquire);
    if handler == libc::SIG_DFL || handler == libc::SIG_IGN {
        return;
    }
    if flags & libc::SA_RESETHAND != 0 {
        let mut usual = as_usual();
        usual.sa_sigaction = libc::SIG_DFL;
        // SAFETY: the action is valid.
        unsafe { next(signal, &raw const usual, std::ptr::null_mut()) };
    }
    if flags & libc::SA_NODEFER != 0 {
        let set = only(signal);
        // SAFETY: the set is valid.
        unsafe {
            libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        }
    }
    // SAFETY: the program has installed this address as a handler.
    let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
    // SAFETY: the caller passes the arguments of a signal handler.
    unsafe { handler(signal, about, context) };
}

#[unsafe(export_name = "ethernot_sockets_sigaction")]
unsafe extern "C" fn sigaction_of_program(
    signal: c_int,
    new: *const sigaction,
    old: *mut sigaction,
) -> c_int {
    let Some(known) = action(signal).filter(|_| is_deferred(signal)) else {
        // SAFETY: the caller passes the arguments that the C function requires.
        return unsafe { next(signal, new, old) };
    };
    let before = (known.handler.load(Ordering::Acquire), known.flags.load(Ordering::Acquire));
    let mut replaced = as_usual();
    // SAFETY: the caller passes null or a valid pointer.
    let given = unsafe { new.as_ref() }.map(|new| {
        let mut given = *new;
        if !matches!(new.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN) {
            known.flags.store(new.sa_flags, Ordering::Release);
            known.handler.store(new.sa_sigaction, Ordering::Release);
            handlers::note_any();
            given.sa_sigaction = came as *const () as usize;
            given.sa_flags |= libc::SA_SIGINFO;
            given.sa_flags &= !(libc::SA_NODEFER | libc::SA_RESETHAND);
        }
        given
    });
    let pointer = given.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both pointers are valid or null.
    let result = unsafe { next(signal, pointer, &raw mut replaced) };
    if result != 0 {
        known.flags.store(before.1, Ordering::Release);
        known.handler.store(before.0, Ordering::Release);
    } else if !old.is_null() {
        if replaced.sa_sigaction == came as *const () as usize {
            (replaced.sa_sigaction, replaced.sa_flags) = before;
        }
        // SAFETY: the caller passes the arguments that the C function requires.
        unsafe { old.write(replaced) };
    }
    result
}

#[unsafe(export_name = "ethernot_inside_sigaction")]
unsafe extern "C" fn sigaction_of_ours(
    signal: c_int,
    new: *const sigaction,
    old: *mut sigaction,
) -> c_int {
    // SAFETY: the caller passes the arguments that the C function requires.
    unsafe { next(signal, new, old) }
}

/// # Safety
/// The arguments must satisfy the contract of the C function `sigaction`.
unsafe fn next(signal: c_int, new: *const sigaction, old: *mut sigaction) -> c_int {
    call_next!(
        sigaction(signal: c_int, new: *const sigaction, old: *mut sigaction) -> c_int, else -1
    )
}

/// Defines a variant of `signal`. `$flags` are the flags of the handler. `$blocks` is true if the
/// signal is blocked while its handler runs.
macro_rules! signal {
    ($($symbol:ident, $flags:expr, $blocks:expr;)*) => {
        $(
            const _: () = {
                #[unsafe(export_name = concat!("ethernot_sockets_", stringify!($symbol)))]
                unsafe extern "C" fn of_program(
                    signal: c_int,
                    handler: sighandler_t,
                ) -> sighandler_t {
                    let mut new = as_usual();
                    new.sa_sigaction = handler;
                    new.sa_flags = $flags;
                    if $blocks && signal > 0 {
                        // SAFETY: the set is valid.
                        unsafe { libc::sigaddset(&raw mut new.sa_mask, signal) };
                    }
                    let mut old = as_usual();
                    // SAFETY: both actions are valid. The caller is responsible for the handler.
                    match unsafe { sigaction_of_program(signal, &raw const new, &raw mut old) } {
                        0 => old.sa_sigaction,
                        _ => libc::SIG_ERR,
                    }
                }

                #[unsafe(export_name = concat!("ethernot_inside_", stringify!($symbol)))]
                unsafe extern "C" fn of_ours(
                    signal: c_int,
                    handler: sighandler_t,
                ) -> sighandler_t {
                    call_next!(
                        $symbol(signal: c_int, handler: sighandler_t) -> sighandler_t,
                        else libc::SIG_ERR
                    )
                }
            };
        )*
    };
}

signal! {
    signal, libc::SA_RESTART, true;
    bsd_signal, libc::SA_RESTART, true;
    ssignal, libc::SA_RESTART, true;
    sysv_signal, libc::SA_RESETHAND | libc::SA_NODEFER, false;
    __sysv_signal, libc::SA_RESETHAND | libc::SA_NODEFER, false;
}

/// The handler that the program has installed for a signal, and its flags.
#[derive(Debug)]
struct Action {
    handler: AtomicUsize,
    flags: AtomicI32,
}

fn action(signal: c_int) -> Option<&'static Action> {
    usize::try_from(signal).ok().and_then(|signal| ACTIONS.get(signal))
}

/// Returns true if handlers of this signal can be deferred. A handler cannot be deferred if an
/// instruction of the thread causes the signal, or if the handler inspects the code that the thread
/// is executing.
fn is_deferred(signal: c_int) -> bool {
    signal > 0 && !AT_ONCE.contains(&signal)
}

fn only(signal: c_int) -> sigset_t {
    let mut set = empty();
    // SAFETY: the set is valid.
    unsafe { libc::sigaddset(&raw mut set, signal) };
    set
}

fn empty() -> sigset_t {
    // SAFETY: all zero is a valid set: no signals.
    unsafe { std::mem::zeroed() }
}

fn as_usual() -> sigaction {
    // SAFETY: all zero is a valid action: no flags, and no signals to block.
    unsafe { std::mem::zeroed() }
}

const AT_ONCE: [c_int; 10] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGFPE,
    libc::SIGILL,
    libc::SIGTRAP,
    libc::SIGSYS,
    libc::SIGABRT,
    libc::SIGPROF,
    libc::SIGKILL,
    libc::SIGSTOP,
];

static ACTIONS: [Action; 64] =
    [const { Action { handler: AtomicUsize::new(0), flags: AtomicI32::new(0) } }; 64];
