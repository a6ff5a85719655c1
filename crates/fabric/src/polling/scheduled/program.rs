//! The program of a host's application, which never ends.

/// A program and its progress.
#[derive(Clone, Debug)]
pub(super) enum Program {
    /// Does nothing; the peer writes to its memory.
    Target,
    /// A write goes back and forth.
    PingPong(PingPong),
    /// Keeps a number of writes in flight.
    Stream(Stream),
}

/// Writes to the peer when the polled word contains the number of the round.
#[derive(Clone, Debug, Default)]
pub(super) struct PingPong {
    /// Whether this host starts each round and measures its time.
    pub(super) begins: bool,
    pub(super) done: u64,
    /// Whether this host has written and now waits for the answer.
    pub(super) is_waiting: bool,
    pub(super) started_ns: u64,
    pub(super) latencies_ns: Vec<u64>,
}

/// Posts a write whenever fewer writes than allowed are in flight.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stream {
    pub(super) posted: u64,
    pub(super) done: u64,
}

impl Program {
    pub(super) fn ping_pong(begins: bool) -> Self {
        Self::PingPong(PingPong { begins, ..PingPong::default() })
    }

    pub(super) fn stream() -> Self {
        Self::Stream(Stream::default())
    }

    /// Returns the number of completed operations that count in the result.
    pub(super) const fn done(&self) -> u64 {
        match self {
            Self::PingPong(PingPong { begins: true, done, .. }) => *done,
            Self::Stream(stream) => stream.done,
            Self::PingPong(_) | Self::Target => 0,
        }
    }
}

impl PingPong {
    /// Returns the number of the next message if the program must write it now; otherwise `None`.
    /// `found` is the polled word in memory.
    pub(super) fn next(&mut self, found: u64, now_ns: u64) -> Option<u64> {
        let round = self.done + 1;
        if self.begins && !self.is_waiting {
            (self.is_waiting, self.started_ns) = (true, now_ns);
            return Some(round);
        }
        if found != round {
            return None;
        }
        self.done = round;
        if !self.begins {
            return Some(round);
        }
        self.latencies_ns.push((now_ns - self.started_ns) / 2);
        self.started_ns = now_ns;
        Some(round + 1)
    }
}
