//! Switches address randomization off for programs that use `ethernot_dsm_create`, so that their
//! functions and variables have the same addresses on all ranks.

use std::env;
use std::ffi::{CString, c_char, c_int, c_ulong};
use std::os::unix::ffi::OsStringExt;

use crate::loaded;

/// Called by the loader before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: unsafe extern "C" fn(c_int, *const *const c_char, *const *const c_char) =
    restart_without_randomization;

/// Starts the program again without randomization, if it needs that. If the kernel refuses, the
/// program goes on: `ethernot_dsm_create` compares the addresses.
unsafe extern "C" fn restart_without_randomization(
    _count: c_int,
    arguments: *const *const c_char,
    environment: *const *const c_char,
) {
    let needs_it = loaded::program().is_some_and(|it| it.imports(c"ethernot_dsm_create"));
    // The kernel switches randomization on for programs that get privileges, each time.
    // SAFETY: these calls take and return numbers.
    let (is_privileged, persona) =
        unsafe { (libc::getauxval(libc::AT_SECURE) != 0, libc::personality(ASK)) };
    if !needs_it || is_privileged || persona < 0 || persona & libc::ADDR_NO_RANDOMIZE != 0 {
        return;
    }
    let Ok(path) = env::current_exe() else { return };
    let Ok(path) = CString::new(path.into_os_string().into_vec()) else { return };
    // SAFETY: the call takes and returns a number.
    if unsafe { libc::personality(number(persona | libc::ADDR_NO_RANDOMIZE)) } < 0 {
        return;
    }
    // SAFETY: the loader passes lists of strings that end with null pointers. If this returns, the
    // program goes on with the randomization that it has.
    unsafe {
        libc::execve(path.as_ptr(), arguments, environment);
        libc::personality(number(persona));
    }
}

/// Returns flags as a number that the kernel takes.
fn number(persona: c_int) -> c_ulong {
    c_ulong::from(persona.cast_unsigned())
}

/// Asks for the present value.
const ASK: c_ulong = 0xffff_ffff;
