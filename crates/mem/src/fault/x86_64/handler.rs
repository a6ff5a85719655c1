//! The handler of the signals that a missing page raises.

use core::arch::naked_asm;
use core::ffi::{c_int, c_void};
use core::mem::{MaybeUninit, size_of, transmute};
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::Once;

use libc::{sigaction, siginfo_t, ucontext_t};

use crate::copy::read_fault_safe;

/// Puts the handler in front of what is installed, if the processor copies quickly enough.
pub(in super::super) fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::arch::is_x86_feature_detected!("ermsb") {
            let is_installed = SIGNALS.iter().all(Signal::take_over);
            IS_INSTALLED.store(is_installed, Ordering::Release);
        }
    });
}

/// Whether [`install`] has installed it. It may have been replaced since.
#[inline]
pub(in super::super) fn is_installed() -> bool {
    IS_INSTALLED.load(Ordering::Relaxed)
}

/// Whether the handler would be called, here and now. Costs three system calls, and two more for each copy of this crate
/// that another shared object has installed in front.
pub(in super::super) fn catches_here() -> bool {
    let leads_here = |signal: &Signal| {
        action_of(signal.number).is_some_and(|action| signal.leads_here(action.sa_sigaction))
    };
    is_installed() && SIGNALS.iter().all(leads_here) && are_unblocked()
}

/// Whether this thread blocks none of the signals.
fn are_unblocked() -> bool {
    let mut mask = MaybeUninit::uninit();
    // SAFETY: asked to change nothing, the C library writes the mask; and reads it only afterwards.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr()) == 0
            && SIGNALS.iter().all(|signal| libc::sigismember(mask.as_ptr(), signal.number) == 0)
    }
}

/// A signal, and what was to be done about it before us.
struct Signal {
    number: c_int,
    /// Its place in [`BEFORE`].
    place: usize,
    flags_before: AtomicI32,
}

impl Signal {
    const fn new(number: c_int, place: usize) -> Self {
        Self { number, place, flags_before: AtomicI32::new(0) }
    }

    /// What was to be done before us.
    fn action_before(&self) -> &AtomicUsize {
        &BEFORE[self.place]
    }

    /// Whether this action is our handler, or that of another copy of this crate in front of ours: that one passes on what
    /// is not its own.
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

    /// Puts our handler in front; false if the kernel refuses, which it does for no such signal.
    fn take_over(&self) -> bool {
        // What is in force must be known before ours is called for the first time.
        let Some(before) = action_of(self.number) else { return false };
        self.note(&before);
        let mut ours = before;
        ours.sa_sigaction = our_action();
        // A function runs as it would have run without us: on the same stack, with the same signals
        // blocked. In front of none, a thread whose stack has overflown must be able to die of it.
        ours.sa_flags = libc::SA_SIGINFO
            | match before.sa_sigaction {
                libc::SIG_DFL | libc::SIG_IGN => libc::SA_ONSTACK | libc::SA_RESTART,
                _ => before.sa_flags & (libc::SA_ONSTACK | libc::SA_RESTART | libc::SA_NODEFER),
            };
        let mut replaced = before;
        // SAFETY: both are valid for the call, and our handler is async-signal-safe.
        let result = unsafe { sigaction(self.number, &raw const ours, &raw mut replaced) };
        if result == 0 {
            // Another thread may have been quicker.
            self.note(&replaced);
        }
        result == 0
    }

    fn note(&self, before: &sigaction) {
        self.flags_before.store(before.sa_flags, Ordering::SeqCst);
        self.action_before().store(before.sa_sigaction, Ordering::SeqCst);
    }

    /// Does what would be done without us.
    ///
    /// # Safety
    /// The arguments are those of a signal handler, which the caller is, called for this signal.
    unsafe fn pass_on(&self, info: *mut siginfo_t, context: *mut c_void, is_fault: bool) {
        let flags = self.flags_before.load(Ordering::SeqCst);
        match self.action_before().load(Ordering::SeqCst) {
            libc::SIG_DFL => {
                self.set_simple_action(libc::SIG_DFL);
                // The instruction of a fault raises the signal again.
                if !is_fault {
                    // SAFETY: touches no memory of ours. The signal is blocked until we return.
                    unsafe { libc::raise(self.number) };
                }
            }
            // Ignored only if somebody sent it. The kernel does not ignore a fault, but ends the process.
            libc::SIG_IGN if is_fault => self.set_simple_action(libc::SIG_IGN),
            libc::SIG_IGN => {}
            action => {
                if flags & libc::SA_RESETHAND != 0 {
                    self.set_simple_action(libc::SIG_DFL);
                }
                // SAFETY: the code that installed it gave the kernel the address of such a function, which
                // would have called it with these arguments. It may also leave by a jump: no frame
                // between has anything to clean up.
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

    /// Does one of the two things for which the kernel calls no handler.
    fn set_simple_action(&self, action: usize) {
        // SAFETY: all-zero bytes are a valid `sigaction` without flags that blocks no other signals.
        unsafe {
            let mut simple: sigaction = MaybeUninit::zeroed().assume_init();
            simple.sa_sigaction = action;
            sigaction(self.number, &raw const simple, ptr::null_mut());
        }
    }
}

/// Called by the kernel. Uses nothing but the registers of the interrupted code, atomics, and calls
/// that are allowed in a signal handler.
///
/// It may be unwound through, as a handler that it calls might be if called directly.
unsafe extern "C-unwind" fn on_signal(number: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes both, and the context is the interrupted code's alone.
    let (code, instruction) = unsafe {
        let registers = &raw mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs;
        ((*info).si_code, registers.cast::<i64>().add(libc::REG_RIP as usize))
    };
    // The rest of the codes mean that somebody sent the signal, or that hardware found a broken page
    // which nothing has touched.
    let is_fault = code > 0 && !(number == libc::SIGBUS && code == libc::BUS_MCEERR_AO);
    // SAFETY: as above. Our instructions may be left at a `ret`, since they begin a function.
    unsafe {
        if is_fault && super::may_fault(instruction.read() as usize) {
            instruction.write((super::behind_fault() as u64).cast_signed());
            return;
        }
    }
    if let Some(signal) = SIGNALS.iter().find(|signal| signal.number == number) {
        // SAFETY: these are the arguments we were called with.
        unsafe { signal.pass_on(info, context, is_fault) }
    }
}

/// What the kernel calls: [`on_signal`], behind a mark by which other copies of this crate know it, and the distance from
/// there to [`BEFORE`]. The jump is one of two bytes, so the mark is always at the same place.
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

/// What was to be done before another copy of this crate was installed, whose handler begins at `action`; none if it is
/// another handler. The kernel reads, because nothing is known of what is there.
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

/// What is to be done about a signal.
fn action_of(number: c_int) -> Option<sigaction> {
    let mut action = MaybeUninit::uninit();
    // SAFETY: asked to change nothing, the kernel writes the action, and it is read only then.
    unsafe {
        (sigaction(number, ptr::null(), action.as_mut_ptr()) == 0).then(|| action.assume_init())
    }
}

type PlainHandler = unsafe extern "C-unwind" fn(c_int);
type FullHandler = unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void);

static IS_INSTALLED: AtomicBool = AtomicBool::new(false);

/// Missing pages raise `SIGSEGV`, pages of a file behind its end and broken ones `SIGBUS`.
static SIGNALS: [Signal; 2] = [Signal::new(libc::SIGSEGV, 0), Signal::new(libc::SIGBUS, 1)];

/// What was to be done about each of [`SIGNALS`] before us: `SIG_DFL`, `SIG_IGN`, or the address of a function. Other copies
/// of this crate read it, so its form belongs to the mark of [`entry`].
static BEFORE: [AtomicUsize; 2] = [const { AtomicUsize::new(libc::SIG_DFL) }; 2];

/// How the handler begins: a jump over what follows, and the mark.
const MARK: &[u8; 18] = b"\xeb\x18ethernot fault 1";

/// The mark and the distance behind it.
const HEAD_BYTES: usize = MARK.len() + size_of::<i64>();

/// Copies of this crate in one process that are looked through: as many shared objects contain it, and some of programs.
const COPIES_MAX: usize = 8;
