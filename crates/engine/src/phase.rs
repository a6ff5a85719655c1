//! Where a connection stands.

/// Where a connection stands (protocol.md §4).
///
/// | phase       | accepted | established | closing | drained |
/// |-------------|----------|-------------|---------|---------|
/// | Connecting  | –        | Established | –       | –       |
/// | Requested   | Accepted | –           | –       | –       |
/// | Accepted    | –        | Established | Closing | Drained |
/// | Established | –        | –           | Closing | Drained |
/// | Closing     | –        | –           | –       | Drained |
/// | Drained     | –        | –           | –       | Drained |
///
/// From each it may be over at once.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// Hello was sent; no answer yet.
    Connecting,
    /// The peer's Hello is with the application.
    Requested,
    /// Accept was sent; nothing proves yet that it arrived.
    Accepted,
    /// Usable.
    Established,
    /// Close was sent; waits for its acknowledgement.
    Closing,
    /// The peer closed; only repeats its acknowledgement of that.
    Drained,
    /// Over: the engine drops it when it puts it back into the table.
    Gone,
}

impl Phase {
    /// The application accepts the request.
    pub(crate) const fn on_accepted(self) -> Self {
        assert!(matches!(self, Self::Requested), "only a request is accepted");
        Self::Accepted
    }

    /// The peer accepts, or is known to have heard that this end did.
    pub(crate) const fn on_established(self) -> Self {
        assert!(matches!(self, Self::Connecting | Self::Accepted), "it is established once");
        Self::Established
    }

    /// This end closes.
    pub(crate) const fn on_closing(self) -> Self {
        assert!(matches!(self, Self::Accepted | Self::Established), "it is closed once");
        Self::Closing
    }

    /// The peer closes.
    pub(crate) const fn on_drained(self) -> Self {
        let was_known = !matches!(self, Self::Connecting | Self::Requested | Self::Gone);
        assert!(was_known, "only an accepted or established connection is closed by the peer");
        Self::Drained
    }
}

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;

    use super::Phase::{
        self, Accepted, Closing, Connecting, Drained, Established, Gone, Requested,
    };

    #[test]
    fn transitions_are_those_of_the_table() {
        let table = [
            (Connecting, [None, Some(Established), None, None]),
            (Requested, [Some(Accepted), None, None, None]),
            (Accepted, [None, Some(Established), Some(Closing), Some(Drained)]),
            (Established, [None, None, Some(Closing), Some(Drained)]),
            (Closing, [None, None, None, Some(Drained)]),
            (Drained, [None, None, None, Some(Drained)]),
            (Gone, [None; 4]),
        ];
        let steps: [fn(Phase) -> Phase; 4] =
            [Phase::on_accepted, Phase::on_established, Phase::on_closing, Phase::on_drained];
        for (phase, after) in table {
            let found = steps.map(|step| catch_unwind(|| step(phase)).ok());
            assert_eq!(found, after, "{phase:?}");
        }
    }
}
