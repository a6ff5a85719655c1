//! The phase of a connection.

/// The phase of a connection (protocol.md §4).
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
/// Every phase can also change to `Gone` directly.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Phase {
    /// This end has sent Hello and waits for an answer.
    Connecting,
    /// The application decides about the peer's Hello.
    Requested,
    /// This end has sent Accept. No frame of the peer has proved yet that the Accept arrived.
    Accepted,
    /// Operations can be posted.
    Established,
    /// This end has sent Close and waits for the acknowledgement.
    Closing,
    /// The peer has closed the connection. This end only answers repetitions of the Close.
    Drained,
    /// The connection has ended. The engine drops it instead of returning it to the table.
    Gone,
}

impl Phase {
    /// Returns the phase after the application accepted the request.
    pub(crate) const fn on_accepted(self) -> Self {
        assert!(matches!(self, Self::Requested), "only a request is accepted");
        Self::Accepted
    }

    /// Returns the phase after the peer accepted, or after a frame proved that the peer received
    /// this end's Accept.
    pub(crate) const fn on_established(self) -> Self {
        assert!(matches!(self, Self::Connecting | Self::Accepted), "it is established once");
        Self::Established
    }

    /// Returns the phase after this end began to close the connection.
    pub(crate) const fn on_closing(self) -> Self {
        assert!(matches!(self, Self::Accepted | Self::Established), "it is closed once");
        Self::Closing
    }

    /// Returns the phase after the peer closed the connection.
    pub(crate) const fn on_drained(self) -> Self {
        let was_known = !matches!(self, Self::Connecting | Self::Requested | Self::Gone);
        assert!(was_known, "the peer closes only a connection that it may know");
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
