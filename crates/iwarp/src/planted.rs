//! Faults that tests plant in the machine, to show that the torture test finds them.

/// A fault of the machine.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Planted {
    /// A successful completion is not reported.
    LosesCompletion,
    /// An FPDU with a wrong CRC is handled.
    IgnoresCrc,
    /// Payload is placed although the memory is refused.
    PlacesUnchecked,
    /// A Read Response is placed whatever its offset is.
    IgnoresAnswerOffset,
    /// A Read Response that ends early completes the read.
    AcceptsShortAnswer,
    /// The last word of a message is not placed last.
    ForgetsTail,
    /// A responder sends FPDUs before it has received one.
    SpeaksFirst,
    /// An operation does not wait for earlier reads.
    IgnoresFence,
    /// Reads do not wait for answers.
    IgnoresOrd,
    /// The last segment of a Write is not marked.
    ForgetsLast,
    /// The rest of an FPDU begins with a byte that TCP has already taken.
    RepeatsByte,
    /// The peer is not nudged.
    ForgetsNudge,
    /// A read completes when its request is sent.
    CompletesReadEarly,
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

/// Plants a fault in the streams of this thread, or none.
#[cfg(test)]
pub(crate) fn plant(fault: Option<Planted>) {
    NOW.set(fault);
}
