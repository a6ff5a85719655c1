//! Faults that tests plant in the machine, to show that the torture test finds them.

/// A fault of the machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Planted {
    /// An interval publishes one notice too few.
    LosesNotice,
    /// A diff is taken against a twin that was made after the first write.
    MakesTwinLate,
    /// A lock is handed over before its interval has ended.
    HandsOverEarly,
    /// An acquire does not merge the clock, so later releases pass on too little.
    ForgetsClock,
    /// The old home of a page that has moved still takes itself for the home.
    ForgetsMove,
    /// A barrier leaves its last round out.
    LeavesRoundOut,
    /// An interval ends before its patches are placed.
    IgnoresPatches,
    /// A fetch that an acquire has overtaken is used.
    UsesStaleFetch,
    /// A home does not learn that its page is shared.
    HidesSharer,
    /// An acquire drops the changes of a page that it invalidates.
    DropsChanges,
    /// A home that has lost the claim of a page keeps its zeros.
    KeepsLostClaim,
    /// A patch may overtake the last patch of the same page.
    UnfencedPatch,
    /// An overwritten log entry is ignored.
    IgnoresOverwritten,
    /// An atomic leaves copies of its page as they are.
    HidesAtomic,
    /// An interval ignores writes that the memory has noted.
    ForgetsNotedWrites,
    /// A semaphore answers without the clock of the thread that posted.
    ForgetsPost,
}

/// Returns whether the running test has planted this fault.
#[cfg(not(test))]
pub(crate) const fn is_planted(_: Planted) -> bool {
    false
}

#[cfg(test)]
thread_local! {
    static NOW: std::cell::Cell<Option<Planted>> = const { std::cell::Cell::new(None) };
}

/// Returns whether the running test has planted this fault.
#[cfg(test)]
pub(crate) fn is_planted(fault: Planted) -> bool {
    NOW.get() == Some(fault)
}

/// Plants a fault in the nodes of this thread, or none.
#[cfg(test)]
pub(crate) fn plant(fault: Option<Planted>) {
    NOW.set(fault);
}
