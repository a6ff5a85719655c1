//! A signal that the handler handles, and what happened at this signal before.

use core::ffi::{c_int, c_void};
use core::mem::{MaybeUninit, transmute};
use core::ptr;
use core::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::io;

use libc::{sigaction, siginfo_t};

/// A signal, and its action before this handler was installed.
pub(super) struct Signal {
    pub(super) number: c_int,
    flags_before: AtomicI32,
    /// The action before this handler: `SIG_DFL`, `SIG_IGN`, or the address of a function.
    action_before: AtomicUsize,
}

impl Signal {
    const fn new(number: c_int) -> Self {
        Self {
            number,
            flags_before: AtomicI32::new(0),
            action_before: AtomicUsize::new(libc::SIG_DFL),
        }
    }

    /// Installs the handler at `handler` in front of the current handler.
    pub(super) fn take_over(&self, handler: usize) -> io::Result<()> {
        // Store the current action before this handler can be called for the first time.
        let before = action_of(self.number).ok_or_else(io::Error::last_os_error)?;
        self.note(&before);
        let mut ours = before;
        ours.sa_sigaction = handler;
        // When this handler calls the previous handler, that handler must find the conditions that
        // it asked for: its choice of stack and of blocked signals. If there is no previous
        // handler, use the alternate stack. Without the alternate stack, a thread whose stack has
        // overflowed could not run this handler.
        ours.sa_flags = libc::SA_SIGINFO
            | match before.sa_sigaction {
                libc::SIG_DFL | libc::SIG_IGN => libc::SA_ONSTACK | libc::SA_RESTART,
                _ => before.sa_flags & (libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER),
            };
        let mut replaced = before;
        // SAFETY: both actions are valid for the call, and the handler is async-signal-safe.
        let result = unsafe { sigaction(self.number, &raw const ours, &raw mut replaced) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        // Another thread may have changed the action after this function read it above. So store
        // the action that this handler really replaced.
        self.note(&replaced);
        Ok(())
    }

    fn note(&self, before: &sigaction) {
        self.flags_before.store(before.sa_flags, Ordering::SeqCst);
        self.action_before.store(before.sa_sigaction, Ordering::SeqCst);
    }

    /// Handles a signal in the same way as the process would without this handler.
    ///
    /// # Safety
    /// The caller must be a signal handler that was called for this signal with these arguments.
    pub(super) unsafe fn pass_on(
        &self,
        info: *mut siginfo_t,
        context: *mut c_void,
        is_fault: bool,
    ) {
        let flags = self.flags_before.load(Ordering::SeqCst);
        match self.action_before.load(Ordering::SeqCst) {
            libc::SIG_DFL => {
                self.set_simple_action(libc::SIG_DFL);
                // After a fault, the instruction runs again and raises the signal again. So raise
                // the signal only if it was not caused by a fault.
                if !is_fault {
                    // SAFETY: accesses no memory of this program. The signal is blocked until the
                    // handler returns.
                    unsafe { libc::raise(self.number) };
                }
            }
            // With `SIG_IGN`, the kernel ignores a signal that a process sent, so do nothing for
            // such a signal. If a fault raised the signal, the kernel ends the process. So set this
            // action, which takes effect when the instruction faults again.
            libc::SIG_IGN if is_fault => self.set_simple_action(libc::SIG_IGN),
            libc::SIG_IGN => {}
            action => {
                if flags & libc::SA_RESETHAND != 0 {
                    self.set_simple_action(libc::SIG_DFL);
                }
                // SAFETY: the code that installed the action gave the kernel the address of such a
                // function. The kernel would have called that function with these arguments. The
                // function may leave by a long jump, because the frames in between have no
                // destructors.
                unsafe {
                    if flags & libc::SA_SIGINFO == 0 {
                        transmute::<usize, PlainHandler>(action)(self.number);
                    } else {
                        transmute::<usize, FullHandler>(action)(self.number, info, context);
                    }
                }
            }
        }
    }

    /// Sets `SIG_DFL` or `SIG_IGN` as the action.
    fn set_simple_action(&self, action: usize) {
        // SAFETY: all-zero bytes are a valid `sigaction` without flags, which blocks no other
        // signals.
        unsafe {
            let mut simple: sigaction = MaybeUninit::zeroed().assume_init();
            simple.sa_sigaction = action;
            sigaction(self.number, &raw const simple, ptr::null_mut());
        }
    }
}

/// Returns the current action of a signal.
pub(super) fn action_of(number: c_int) -> Option<sigaction> {
    let mut action = MaybeUninit::uninit();
    // SAFETY: the new action is null, so the kernel only writes the current action. The action is
    // read only after success.
    unsafe {
        (sigaction(number, ptr::null(), action.as_mut_ptr()) == 0).then(|| action.assume_init())
    }
}

type PlainHandler = unsafe extern "C-unwind" fn(c_int);
pub(super) type FullHandler = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

/// The handled signals. Missing and protected pages raise `SIGSEGV`. Pages after the end of a file,
/// broken pages, and pages that userfaultfd watches raise `SIGBUS`.
pub(super) static SIGNALS: [Signal; 2] = [Signal::new(libc::SIGSEGV), Signal::new(libc::SIGBUS)];
