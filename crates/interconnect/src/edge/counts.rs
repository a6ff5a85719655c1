//! Counters of a run with engines.

use delivery::LinkCounters;

/// Counters of all hosts together since the start of the run. Counters of connections start when
/// the connection is made.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// Counters of the connections, by rail.
    pub rails: Vec<LinkCounters>,
    /// Number of pairs of hosts with a connection.
    pub connections: u64,
    /// Number of operations posted.
    pub operations: u64,
    /// Frames of every kind that were handed to links.
    pub frames_sent: u64,
    /// Frames that reached the receive queue of their host.
    pub frames_received: u64,
    /// Frames that reached the receive queue with a congestion mark visible to their host.
    pub frames_marked: u64,
    /// Frames lost in full queues of switches or on links that were down.
    pub frames_lost_in_network: u64,
    /// Frames lost at random.
    pub frames_lost_at_random: u64,
    /// Frames lost because the receive queue of their host was full.
    pub frames_lost_at_hosts: u64,
    /// Frames sent to an address on another rail.
    pub frames_astray: u64,
    /// Bytes placed more than once before their operation was complete. Counted only with ghost
    /// payloads.
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

    /// Returns the number of data frames that arrived behind later ones, per hundred data frames.
    pub fn out_of_order_percent(&self) -> f64 {
        let links = self.links();
        100.0 * links.out_of_order as f64 / links.data_frames_received.max(1) as f64
    }
}
