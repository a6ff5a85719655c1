//! What happens at a signal.

use core::ffi::{c_int, c_void};
use core::mem::{MaybeUninit, transmute};
use core::ptr;
use std::io;

use libc::{siginfo_t, ucontext_t};

use super::signal::SIGNALS;
use super::stack;
use crate::claims::{Claims, FORBIDDEN, OnFault, ResumeAt, WRITES};

/// Handles a signal. If no claim is concerned, accesses only the registers of the interrupted code
/// and atomics, and makes only calls that a signal handler may make.
///
/// This function has the ABI `C-unwind`, because a handler that this function calls may unwind the
/// stack through it.
pub(super) unsafe extern "C-unwind" fn on_signal(
    number: c_int,
    info: *mut siginfo_t,
    context: *mut c_void,
) {
    // SAFETY: the kernel passes both pointers. No other code uses the context of the interrupted
    // code.
    let (code, address, registers) = unsafe {
        let registers = &mut (*context.cast::<ucontext_t>()).uc_mcontext.gregs;
        ((*info).si_code, (*info).si_addr().addr(), registers)
    };
    // With any other `si_code`, a process sent the signal, or the hardware found a broken page that
    // the program has not accessed.
    let is_fault = code > 0 && !(number == libc::SIGBUS && code == libc::BUS_MCEERR_AO);
    if is_fault {
        let instruction = registers[libc::REG_RIP as usize] as usize;
        if let Some(resume) = resume_at(instruction) {
            registers[libc::REG_RIP as usize] = (resume as u64).cast_signed();
            return;
        }
        let is_write = registers[libc::REG_ERR as usize] & PAGE_FAULT_WRITE != 0;
        let writes = if is_write { WRITES } else { 0 };
        let forbidden = if number == libc::SIGSEGV { FORBIDDEN } else { 0 };
        let stack = registers[libc::REG_RSP as usize] as usize;
        if repair(address, writes | forbidden, stack) {
            return;
        }
    }
    if let Some(signal) = SIGNALS.iter().find(|signal| signal.number == number) {
        // SAFETY: these are the arguments that the kernel passed.
        unsafe { signal.pass_on(info, context, is_fault) }
    }
}

/// Returns where a thread goes on after a fault of a claimed instruction.
fn resume_at(instruction: usize) -> Option<usize> {
    CLAIMS.instructions().find_map(|function| {
        // SAFETY: only functions of this type are in the list, and their libraries stay loaded.
        let resume_at = unsafe { transmute::<usize, ResumeAt>(function) };
        Some(resume_at(instruction)).filter(|&resume| resume != 0)
    })
}

/// Lets the claim with this address repair the memory. `stack` is the stack pointer of the
/// interrupted code. Returns false if there is no claim, or if it does not want the fault.
fn repair(address: usize, kind: u32, stack: usize) -> bool {
    let Some(inside) = CLAIMS.enter(address) else { return false };
    let errno = io::Error::last_os_error().raw_os_error().unwrap_or(0);
    unblock();
    let mut call = Call {
        // SAFETY: only functions of this type are in the list, and their libraries stay loaded.
        on_fault: unsafe { transmute::<usize, OnFault>(inside.on_fault) },
        context: inside.context,
        address,
        kind,
        is_repaired: 0,
    };
    stack::run_on_stack_of(stack, Call::run, (&raw mut call).cast());
    // SAFETY: the C library returns the address of the thread's own variable.
    unsafe { *libc::__errno_location() = errno };
    call.is_repaired != 0
}

/// A call of a claim's handler.
struct Call {
    on_fault: OnFault,
    context: usize,
    address: usize,
    kind: u32,
    is_repaired: u32,
}

impl Call {
    unsafe extern "C" fn run(call: *mut c_void) {
        // SAFETY: `repair` passes a pointer to a `Call` of its own, which no other code uses.
        let call = unsafe { &mut *call.cast::<Self>() };
        // SAFETY: the context belongs to the function, and `Inside` keeps it valid.
        call.is_repaired = unsafe { (call.on_fault)(call.context, call.address, call.kind) };
    }
}

/// Unblocks the handled signals for the rest of the handler. The kernel restores the mask of the
/// interrupted code when the handler returns.
fn unblock() {
    // SAFETY: the set is initialized before its use. The mask belongs to this thread.
    unsafe {
        let mut set = MaybeUninit::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        for signal in &SIGNALS {
            libc::sigaddset(set.as_mut_ptr(), signal.number);
        }
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut());
    }
}

/// The claims for which the handler of this copy of the crate is responsible.
pub(super) static CLAIMS: Claims = Claims::new();

/// The bit of the processor's error code that distinguishes a write from a read.
const PAGE_FAULT_WRITE: i64 = 1 << 1;
