//! The handler of the signals that a missing page raises.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::mem::{MaybeUninit, size_of, transmute};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::Once;

use libc::{sigaction, siginfo_t, ucontext_t};

use crate::copy::read_fault_safe;

/// Installs the handler in front of the current one, if the processor copies fast enough.
pub(in super::super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::arch::is_x86_feature_detected!("ermsb") {
            let is_installed = SIGNALS.iter().all(Signal::take_over);
            IS_INSTALLED.store(is_installed, Ordering::Release);
        }
    });
}

/// Returns whether [`install`] installed the handler. The program may have replaced it since.
#[inline]
pub(in super::super) fn is_installed() -> bool {
    IS_INSTALLED.load(Ordering::Relaxed)
}

/// Returns whether a fault on this thread would reach the handler now. Costs three system calls,
/// and two more for each copy of this crate in another shared object whose handler is in front.
pub(in super::super) fn catches_here() -> bool {
    let leads_here = |signal: &Signal| {
        action_of(signal.number).is_some_and(|action| signal.leads_here(action.sa_sigaction))
    };
    is_installed() && SIGNALS.iter().all(leads_here) && are_unblocked()
}

/// Returns whether this thread blocks none of the signals.
fn are_unblocked() -> bool {
    let mut mask = MaybeUninit::uninit();
    // SAFETY: with a null new mask, the C library only writes the current mask. The mask is read
    // only after that.
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

    /// Returns whether the action is this handler, or a handler of another copy of this crate in
    /// front of it. Such a handler passes on foreign faults.
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

    /// Installs this handler in front of the current one. Returns false if the kernel refuses,
    /// which does not happen for these signals.
    fn take_over(&self) -> bool {
        // The action in force must be known before this handler is called for the first time.
        let Some(before) = action_of(self.number) else { return false };
        self.note(&before);
        let mut ours = before;
        ours.sa_sigaction = our_action();
        // The previous handler must run under the same conditions as before: on the same stack and
        // with the same signals blocked. Without a previous handler, use the alternate stack, so
        // that a thread with an overflowed stack can die of the signal.
        ours.sa_flags = libc::SA_SIGINFO
            | match before.sa_sigaction {
                libc::SIG_DFL | libc::SIG_IGN => libc::SA_ONSTACK | libc::SA_RESTART,
                _ => before.sa_flags & (libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER),
            };
        let mut replaced = before;
        // SAFETY: both actions are valid for the call, and the handler is async-signal-safe.
        let result = unsafe { sigaction(self.number, &raw const ours, &raw mut replaced) };
        if result == 0 {
            // Another thread may have installed an action meanwhile.
            self.note(&replaced);
        }
        result == 0
    }

    fn note(&self, before: &sigaction) {
        self.flags_before.store(before.sa_flags, Ordering::SeqCst);
        self.action_before().store(before.sa_sigaction, Ordering::SeqCst);
    }

    /// Does what would happen without this handler.
    ///
    /// # Safety
    /// The caller is a signal handler that was called for this signal with these arguments.
    unsafe fn pass_on(&self, info: *mut siginfo_t, context: *mut c_void, is_fault: bool) {
        let flags = self.flags_before.load(Ordering::SeqCst);
        match self.action_before().load(Ordering::SeqCst) {
            libc::SIG_DFL => {
                self.set_simple_action(libc::SIG_DFL);
                // After a fault, the instruction raises the signal again.
                if !is_fault {
                    // SAFETY: touches no memory of this program. The signal is blocked until the
                    // handler returns.
                    unsafe { libc::raise(self.number) };
                }
            }
            // A signal is ignored only if a process sent it. For a fault the kernel ends the
            // process instead.
            libc::SIG_IGN if is_fault => self.set_simple_action(libc::SIG_IGN),
            libc::SIG_IGN => {}
            action => {
                if flags & libc::SA_RESETHAND != 0 {
                    self.set_simple_action(libc::SIG_DFL);
                }
                // SAFETY: the code that installed the action gave the kernel the address of such a
                // function, and the kernel would have called it with these arguments. The function
                // may leave by a long jump, because no frame in between has a destructor.
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

    /// Sets one of the two actions for which the kernel calls no handler.
    fn set_simple_action(&self, action: usize) {
        // SAFETY: all-zero bytes are a valid `sigaction` without flags that blocks no other signals.
        unsafe {
            let mut simple: sigaction = MaybeUninit::zeroed().assume_init();
            simple.sa_sigaction = action;
            sigaction(self.number, &raw const simple, ptr::null_mut());
        }
    }
}

/// Handles a signal. Uses only the registers of the interrupted code, atomics, and calls that are
/// allowed in a signal handler.
///
/// The stack may be unwound through this function, because a handler that it calls may unwind.
unsafe extern "C-unwind" fn on_signal(number: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both pointers, and the context belongs to the interrupted code
    // only.
    let (code, instruction) = unsafe {
        let registers = &raw mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs;
        ((*info).si_code, registers.cast::<i64>().add(libc::REG_RIP as usize))
    };
    // The other codes mean that a process sent the signal, or that hardware found a broken page
    // that the program has not touched.
    let is_fault = code > 0 && !(number == libc::SIGBUS && code == libc::BUS_MCEERR_AO);
    // SAFETY: the pointers are valid as above. A `ret` may replace an instruction that may fault,
    // because it is the first of its function.
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

/// The function that the kernel calls. It begins with a mark, by which other copies of this crate
/// recognize it, and the distance from the mark's end to [`BEFORE`]; then it jumps to
/// [`on_signal`]. The first jump is encoded in two bytes, so the offset of the mark is fixed.
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

/// Returns the action that preceded another copy of this crate, whose handler begins at `action`.
/// Returns `None` for any other handler. Reads through the kernel, because the memory at `action`
/// may be anything.
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
    // SAFETY: with a null new action, the kernel only writes the current action. The action is read
    // only after success.
    unsafe {
        (sigaction(number, ptr::null(), action.as_mut_ptr()) == 0).then(|| action.assume_init())
    }
}

type PlainHandler = unsafe extern "C-unwind" fn(c_int);
type FullHandler = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// The handled signals. Missing pages raise `SIGSEGV`; pages beyond the end of a file and broken
/// pages raise `SIGBUS`.
static SIGNALS: [Signal; 2] = [Signal::new(libc::SIGSEGV, 0), Signal::new(libc::SIGBUS, 1)];

/// The action of each of [`SIGNALS`] before this handler: `SIG_DFL`, `SIG_IGN`, or the address of a
/// function. Other copies of this crate read it, so its layout is part of the format that the mark
/// of [`entry`] names.
static BEFORE: [AtomicUsize; 2] = [const { AtomicUsize::new(libc::SIG_DFL) }; 2];

/// The beginning of the handler: a jump over the data, and the mark.
const MARK: &[u8; 18] = b"\xeb\x18ethernot fault 1";

/// Length of the mark and the distance after it, in bytes.
const HEAD_BYTES: usize = MARK.len() + size_of::<i64>();

/// Largest number of copies of this crate in one process that are followed. Each shared object that
/// contains the crate has one, and so have some programs.
const COPIES_MAX: usize = 8;
