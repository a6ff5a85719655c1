//! Forks, and the end of the process.

use std::cell::RefCell;
use std::sync::{Arc, MutexGuard};

use libc::c_int;

use crate::ledger::{self, Ledger};
use crate::next::interpose;
use crate::socket::Owner;
use crate::{house, table};

interpose! {
    quick_exit(status: c_int) -> (), else (), if ledger::has_any(), by finished();
    _exit(status: c_int) -> (), else (), if ledger::has_any(), by finished();
    _Exit(status: c_int) -> (), else (), if ledger::has_any(), by finished();
}

/// Has forks told of.
pub(crate) fn begin() {
    // SAFETY: the handlers are functions without captured state. Failure (no memory) leaves forked children as copies,
    // which the comparison of process numbers finds out.
    unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
}

/// # Safety
/// As of `_exit`.
unsafe fn finished() -> Option<()> {
    if house::is_home() {
        house::finish();
    }
    None
}

thread_local! {
    /// What the forking thread keeps others from changing.
    static HELD: RefCell<Option<(MutexGuard<'static, ()>, MutexGuard<'static, Ledger>)>> =
        const { RefCell::new(None) };
}

extern "C" fn before() {
    let held = (house::hold(), ledger::lock());
    HELD.with(|place| place.replace(Some(held)));
}

extern "C" fn in_parent() {
    drop(HELD.with(RefCell::take));
}

extern "C" fn in_child() {
    let Some((starting, mut ledger)) = HELD.with(RefCell::take) else { return };
    let all: Vec<_> = ledger.all().map(|(socket, _)| Arc::clone(socket)).collect();
    for socket in &all {
        let owner = if socket.is_unused() { Owner::Own } else { Owner::Inherited };
        ledger.replace(&socket.owned_by(owner));
    }
    drop((ledger, starting));
    house::forget_in_child();
    sockets::counters::restart_in_child();
    // Nothing of the parent's is told that it ended: its threads, which would have to be asked, are not here.
    std::mem::forget(all);
    table::close_private();
}
