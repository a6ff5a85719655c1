//! The program of a host, which is one of the two programs of the benchmark.

/// A program and its progress.
#[derive(Clone, Debug)]
pub(super) enum Program {
    /// A write goes back and forth.
    PingPong(PingPong),
    /// Posts writes one after another, or waits for the peer's writes.
    Stream(Stream),
}

/// Writes to the peer when the polled word contains the number of the round.
#[derive(Clone, Debug)]
pub(super) struct PingPong {
    /// Whether this host starts each round and measures its time.
    pub(super) begins: bool,
    pub(super) rounds: u64,
    /// Number of completed rounds.
    pub(super) done: u64,
    /// Whether the host that starts rounds has written and now waits for the answer.
    pub(super) is_waiting: bool,
    pub(super) started_ps: u64,
    pub(super) latencies_ps: Vec<u64>,
}

/// Posts `count` writes, of which several are outstanding. The last write notifies the peer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stream {
    pub(super) count: u64,
    pub(super) posted: u64,
    pub(super) done: u64,
    /// Whether the program still waits for the notification of the peer's last write.
    pub(super) expects: bool,
}

/// The results of a program on one host.
#[derive(Clone, Copy, Debug)]
pub(super) struct Finished {
    /// Number of round trips, or of writes that this host sent.
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

    /// Returns the results of the time from `from_ps` to `until_ps`.
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
