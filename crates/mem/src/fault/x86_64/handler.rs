//! The handler of the signals that an access to missing memory raises.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::mem::{MaybeUninit, size_of, transmute};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::Once;

use libc::{sigaction, siginfo_t, ucontext_t};

use crate::copy::read_fault_safe;

/// Installs the handler in front of the current handler, if the processor copies fast enough.
pub(in super::super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::arch::is_x86_feature_detected!("ermsb") {
            let is_installed = SIGNALS.iter().all(Signal::take_over);
            IS_INSTALLED.store(is_installed, Ordering::Release);
        }
    });
}

/// Returns whether [`install`] installed the handler. The program may have replaced the handler
/// after that.
#[inline]
pub(in super::super) fn is_installed() -> bool {
    IS_INSTALLED.load(Ordering::Relaxed)
}

/// Returns whether a fault on this thread would currently reach the handler. Costs three system
/// calls, and two more for each handler of another copy of this crate that was installed later.
pub(in super::super) fn catches_here() -> bool {
    let leads_here = |signal: &Signal| {
        action_of(signal.number).is_some_and(|action| signal.leads_here(action.sa_sigaction))
    };
    is_installed() && SIGNALS.iter().all(leads_here) && are_unblocked()
}

/// Returns whether this thread blocks none of the handled signals.
fn are_unblocked() -> bool {
    let mut mask = MaybeUninit::uninit();
    // SAFETY: the new mask is null, so the C library only writes the current mask. The code reads
    // the mask only after that.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr()) == 0
            && SIGNALS.iter().all(|signal| libc::sigismember(mask.as_ptr(), signal.number) == 0)
    }
}

/// A signal, and its action before this handler was installed.
struct Signal {
    number: c_int,
    /// Index of the signal in [`BEFORE`].
    place: usize,
    flags_before: AtomicI32,
}

impl Signal {
    const fn new(number: c_int, place: usize) -> Self {
        Self { number, place, flags_before: AtomicI32::new(0) }
    }

    /// Returns the action that was installed before this handler.
    fn action_before(&self) -> &AtomicUsize {
        &BEFORE[self.place]
    }

    /// Returns whether the action is this handler, or the handler of another copy of this crate
    /// that was installed after this handler. The other copy's handler passes on faults until they
    /// reach this handler.
    fn leads_here(&self, mut action: usize) -> bool {
        for _ in 0..COPIES_MAX {
            if action == our_action() {
                return true;
            }
            match before_copy(action, self.place) {
                Some(before) => action = before,
                None => return false,
            }
        }
        false
    }

    /// Installs this handler in front of the current handler. Returns false if the kernel refuses,
    /// which does not happen for these signals.
    fn take_over(&self) -> bool {
        // Store the current action before this handler can be called for the first time.
        let Some(before) = action_of(self.number) else { return false };
        self.note(&before);
        let mut ours = before;
        ours.sa_sigaction = our_action();
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
        if result == 0 {
            // Another thread may have changed the action after this function read it above. So
            // store the action that this handler really replaced.
            self.note(&replaced);
        }
        result == 0
    }

    fn note(&self, before: &sigaction) {
        self.flags_before.store(before.sa_flags, Ordering::SeqCst);
        self.action_before().store(before.sa_sigaction, Ordering::SeqCst);
    }

    /// Handles a signal in the same way as the process would without this handler.
    ///
    /// # Safety
    /// The caller must be a signal handler that was called for this signal with these arguments.
    unsafe fn pass_on(&self, info: *mut siginfo_t, context: *mut c_void, is_fault: bool) {
        let flags = self.flags_before.load(Ordering::SeqCst);
        match self.action_before().load(Ordering::SeqCst) {
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

/// Handles a signal. Accesses only the registers of the interrupted code and atomics, and makes
/// only calls that a signal handler may make.
///
/// This function has the ABI `C-unwind`, because a handler that this function calls may unwind the
/// stack through it.
unsafe extern "C-unwind" fn on_signal(number: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both pointers. No other code uses the context of the interrupted
    // code.
    let (code, instruction) = unsafe {
        let registers = &raw mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs;
        ((*info).si_code, registers.cast::<i64>().add(libc::REG_RIP as usize))
    };
    // With any other `si_code`, a process sent the signal, or the hardware found a broken page that
    // the program has not accessed.
    let is_fault = code > 0 && !(number == libc::SIGBUS && code == libc::BUS_MCEERR_AO);
    // SAFETY: the kernel passed the context, and no other code uses it. A `ret` may replace an
    // instruction that may fault, because that instruction is the first of its function.
    unsafe {
        if is_fault && super::may_fault(instruction.read() as usize) {
            instruction.write((super::behind_fault() as u64).cast_signed());
            return;
        }
    }
    if let Some(signal) = SIGNALS.iter().find(|signal| signal.number == number) {
        // SAFETY: these are the arguments that the kernel passed.
        unsafe { signal.pass_on(info, context, is_fault) }
    }
}

/// The function that the kernel calls. It begins with a jump over data. The data are a mark, by
/// which other copies of this crate recognize this function, and the distance from the mark's end
/// to [`BEFORE`]. After the data, the function jumps to [`on_signal`]. The first jump has two
/// bytes, so the offset of the mark is fixed.
#[unsafe(naked)]
unsafe extern "C-unwind" fn entry(number: c_int, info: *mut siginfo_t, context: *mut c_void) {
    naked_asm!(
        ".cfi_startproc",
        ".byte 0xeb, 24",
        ".ascii \"ethernot fault 1\"",
        "2:",
        ".quad {before} - 2b",
        "jmp {on_signal}",
        ".cfi_endproc",
        before = sym BEFORE,
        on_signal = sym on_signal,
    )
}

fn our_action() -> usize {
    entry as FullHandler as usize
}

/// Returns the action that was installed before the handler at `action`, if that handler belongs to
/// another copy of this crate. Returns `None` for any other handler. Reads through the kernel,
/// because the memory at `action` may be of any kind.
fn before_copy(action: usize, place: usize) -> Option<usize> {
    let mut head = [0; HEAD_BYTES];
    read_fault_safe(action as u64, &mut head).ok()?;
    let (mark, distance) = head.split_at(MARK.len());
    if mark != MARK {
        return None;
    }
    let distance = i64::from_le_bytes(distance.try_into().ok()?);
    let table = action.wrapping_add(MARK.len()).wrapping_add_signed(distance as isize);
    let mut before = [0; size_of::<usize>()];
    let at = table.wrapping_add(place * size_of::<usize>());
    read_fault_safe(at as u64, &mut before).ok()?;
    Some(usize::from_le_bytes(before))
}

/// Returns the current action of a signal.
fn action_of(number: c_int) -> Option<sigaction> {
    let mut action = MaybeUninit::uninit();
    // SAFETY: the new action is null, so the kernel only writes the current action. The action is
    // read only after success.
    unsafe {
        (sigaction(number, ptr::null(), action.as_mut_ptr()) == 0).then(|| action.assume_init())
    }
}

type PlainHandler = unsafe extern "C-unwind" fn(c_int);
type FullHandler = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// The handled signals. Missing pages raise `SIGSEGV`. Pages after the end of a file and broken
/// pages raise `SIGBUS`.
static SIGNALS: [Signal; 2] = [Signal::new(libc::SIGSEGV, 0), Signal::new(libc::SIGBUS, 1)];

/// The action of each of [`SIGNALS`] before this handler: `SIG_DFL`, `SIG_IGN`, or the address of a
/// function. Other copies of this crate read this array. If its layout changes, the mark of
/// [`entry`] must change, too.
static BEFORE: [AtomicUsize; 2] = [const { AtomicUsize::new(libc::SIG_DFL) }; 2];

/// The beginning of the handler: a jump over the data, then the mark.
const MARK: &[u8; 18] = b"\xeb\x18ethernot fault 1";

/// Length in bytes of the mark and of the distance that follows it.
const HEAD_BYTES: usize = MARK.len() + size_of::<i64>();

/// Largest number of handlers of copies of this crate that [`Signal::leads_here`] follows. Each
/// shared object that contains the crate has a copy; the program itself may have a copy, too.
const COPIES_MAX: usize = 8;
