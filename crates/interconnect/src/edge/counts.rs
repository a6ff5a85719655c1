//! Counters of a run whose hosts have engines.

use delivery::LinkCounters;

/// Sums of the counters of all hosts. Counters of hosts start at the beginning of the run; counters
/// of a connection start when the connection is created.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Counters of the connections, separately for each rail.
    pub rails: Vec<LinkCounters>,
    /// Number of pairs of hosts with a connection.
    pub connections: u64,
    /// Number of operations posted.
    pub operations: u64,
    /// Number of frames of all kinds that hosts handed to links.
    pub frames_sent: u64,
    /// Number of frames that reached the receive queue of their host.
    pub frames_received: u64,
    /// Number of frames that reached the receive queue with a congestion mark that the host can
    /// see.
    pub frames_marked: u64,
    /// Number of frames lost in full switch queues, or on links that were down.
    pub frames_lost_in_network: u64,
    /// Number of frames lost at random.
    pub frames_lost_at_random: u64,
    /// Number of frames lost because the receive queue of their host was full.
    pub frames_lost_at_hosts: u64,
    /// Number of frames sent to an address on another rail.
    pub frames_astray: u64,
    /// Number of bytes placed more than once before their operation was complete. Always 0 if
    /// payloads have real bytes.
    pub bytes_placed_again: u64,
}

impl Counts {
    /// Returns the sum of the connections' counters over all rails.
    pub fn links(&self) -> LinkCounters {
        let mut all = LinkCounters::default();
        for rail in &self.rails {
            all.add(rail);
        }
        all
    }

    /// Returns the number of frames without new bytes of an operation, per hundred frames with new
    /// bytes.
    pub fn extra_frames_percent(&self) -> f64 {
        let links = self.links();
        let first = links.data_frames_sent.saturating_sub(links.retransmissions);
        100.0 * links.frames_sent.saturating_sub(first) as f64 / first.max(1) as f64
    }

    /// Returns the number of data frames that a later frame has overtaken, per hundred data frames.
    pub fn out_of_order_percent(&self) -> f64 {
        let links = self.links();
        100.0 * links.out_of_order as f64 / links.data_frames_received.max(1) as f64
    }
}
