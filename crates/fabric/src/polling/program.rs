//! What runs on a host: the two programs of the benchmark.

/// A program and how far it is.
#[derive(Clone, Debug)]
pub(super) enum Program {
    /// Writes back and forth.
    PingPong(PingPong),
    /// Writes one after the other, or waits for the peer's.
    Stream(Stream),
}

/// Writes to the peer when the word it polls has the number of the round.
#[derive(Clone, Debug)]
pub(super) struct PingPong {
    /// The one that begins, and takes the time.
    pub(super) begins: bool,
    pub(super) rounds: u64,
    /// Rounds done.
    pub(super) done: u64,
    /// The one that begins has written, and waits.
    pub(super) is_waiting: bool,
    pub(super) started_ps: u64,
    pub(super) latencies_ps: Vec<u64>,
}

/// As many writes as there are, several outstanding; the last notifies the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) count: u64,
    pub(super) posted: u64,
    pub(super) done: u64,
    /// The peer's last write has not been heard of.
    pub(super) expects: bool,
}

/// What a program came to on one host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finished {
    /// Round trips, or writes sent.
    pub(super) operations: u64,
    pub(super) seconds: f64,
    pub(super) latency_ns: Option<f64>,
}

impl Program {
    pub(super) const fn ping(rounds: u64) -> Self {
        Self::ping_pong(rounds, true)
    }

    pub(super) const fn pong(rounds: u64) -> Self {
        Self::ping_pong(rounds, false)
    }

    const fn ping_pong(rounds: u64, begins: bool) -> Self {
        Self::PingPong(PingPong {
            begins,
            rounds,
            done: 0,
            is_waiting: false,
            started_ps: 0,
            latencies_ps: Vec::new(),
        })
    }

    pub(super) const fn stream(count: u64, expects: bool) -> Self {
        Self::Stream(Stream { count, posted: 0, done: 0, expects })
    }

    pub(super) const fn is_finished(&self) -> bool {
        match self {
            Self::PingPong(ping_pong) => ping_pong.done == ping_pong.rounds,
            Self::Stream(stream) => stream.done == stream.count && !stream.expects,
        }
    }

    /// What it came to, from its start at `from_ps` until `until_ps`.
    pub(super) fn finished(&mut self, from_ps: u64, until_ps: u64) -> Finished {
        let seconds = until_ps.saturating_sub(from_ps) as f64 * 1e-12;
        match self {
            Self::PingPong(PingPong { begins, rounds, latencies_ps, .. }) => {
                latencies_ps.sort_unstable();
                let median = latencies_ps.get(latencies_ps.len() / 2);
                Finished {
                    operations: if *begins { *rounds } else { 0 },
                    seconds,
                    latency_ns: median.map(|&latency_ps| latency_ps as f64 / 2e3),
                }
            }
            Self::Stream(stream) => {
                Finished { operations: stream.count, seconds, latency_ns: None }
            }
        }
    }
}
