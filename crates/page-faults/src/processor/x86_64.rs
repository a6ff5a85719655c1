//! The handler of `SIGSEGV` and `SIGBUS` of a process.

mod handler;
mod marked;
mod signal;
mod stack;

use core::ffi::c_int;
use core::mem::MaybeUninit;
use core::ptr;
use std::sync::{Mutex, PoisonError};

use crate::claims::RANGES_MAX;
use crate::error::{ClaimError, NotInForce};
use crate::own;
use handler::CLAIMS;
use signal::{SIGNALS, Signal, action_of};

/// Installs the handler in front of the current handler, or adds the claims of this copy of the
/// crate to the list of the handler that another copy has installed.
pub(crate) fn install() -> Result<(), ClaimError> {
    static INSTALLED: Mutex<bool> = Mutex::new(false);
    let mut is_installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *is_installed {
        return Ok(());
    }
    let claims = if let Some(claims) = marked::claims_in_force() {
        claims
    } else {
        for signal in &SIGNALS {
            signal
                .take_over(marked::entry as signal::FullHandler as usize)
                .map_err(|source| ClaimError::Refused { signal: signal.number, source })?;
        }
        &CLAIMS
    };
    if !own::join(claims) {
        return Err(ClaimError::TooMany { most: RANGES_MAX });
    }
    *is_installed = true;
    Ok(())
}

/// Checks whether a fault on this thread would reach a handler with this copy's claims.
pub(crate) fn check() -> Result<(), NotInForce> {
    if !own::has_joined() {
        return Err(NotInForce::NotInstalled);
    }
    let claims = marked::claims_in_force().ok_or_else(replaced)?;
    if !own::join(claims) {
        return Err(NotInForce::ListFull);
    }
    match blocked() {
        Some(signal) => Err(NotInForce::Blocked { signal }),
        None => Ok(()),
    }
}

/// Returns which action hides the handler.
fn replaced() -> NotInForce {
    let hides = |signal: &Signal| {
        let action = action_of(signal.number)?.sa_sigaction;
        marked::claims_of(action).is_none().then_some((signal.number, action))
    };
    match SIGNALS.iter().find_map(hides) {
        Some((signal, action)) => NotInForce::Replaced { signal, action },
        None => NotInForce::NotInstalled,
    }
}

/// Returns a handled signal that this thread blocks.
fn blocked() -> Option<c_int> {
    let mut mask = MaybeUninit::uninit();
    // SAFETY: the new mask is null, so the C library only writes the current mask. The code reads
    // the mask only after success.
    unsafe {
        if libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), mask.as_mut_ptr()) != 0 {
            return None;
        }
        let is_blocked = |number| libc::sigismember(mask.as_ptr(), number) == 1;
        SIGNALS.iter().map(|signal| signal.number).find(|&number| is_blocked(number))
    }
}
