//! Signals, while a thread of the program spins.

use nix::sys::signal::{SigSet, SigmaskHow, Signal};

/// Keeps signals from the calling thread until it is dropped: a wait that looks at descriptors lets them in, and ends then.
#[derive(Debug)]
pub(crate) struct HeldBack {
    before: SigSet,
}

impl HeldBack {
    /// `None` if the system refuses.
    pub(crate) fn begin() -> Option<Self> {
        let mut held = SigSet::all();
        // What an instruction of the thread itself causes cannot wait.
        for signal in BY_INSTRUCTIONS {
            held.remove(signal);
        }
        held.thread_swap_mask(SigmaskHow::SIG_BLOCK).ok().map(|before| Self { before })
    }

    /// What the thread has blocked otherwise.
    pub(crate) fn before(&self) -> &libc::sigset_t {
        self.before.as_ref()
    }
}

impl Drop for HeldBack {
    fn drop(&mut self) {
        let restored = self.before.thread_set_mask();
        debug_assert!(restored.is_ok(), "a mask that the thread has had: {restored:?}");
    }
}

const BY_INSTRUCTIONS: [Signal; 6] = [
    Signal::SIGSEGV,
    Signal::SIGBUS,
    Signal::SIGFPE,
    Signal::SIGILL,
    Signal::SIGTRAP,
    Signal::SIGSYS,
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_are_held_back_for_as_long_as_it_is_there() {
        let blocked = || SigSet::thread_get_mask().expect("a mask").contains(Signal::SIGUSR1);
        assert!(!blocked());
        let held = HeldBack::begin().expect("a mask");
        assert!(blocked());
        let mask = SigSet::thread_get_mask().expect("a mask");
        assert!(!mask.contains(Signal::SIGSEGV));
        drop(held);
        assert!(!blocked());
    }
}
