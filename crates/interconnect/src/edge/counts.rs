//! What a run of engines counted.

use delivery::LinkCounters;

/// What happened at all hosts together since the run began; what connections counted is since they were
/// made.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Counts {
    /// What connections counted on each rail.
    pub rails: Vec<LinkCounters>,
    /// Pairs of hosts with a connection.
    pub connections: u64,
    /// Operations posted.
    pub operations: u64,
    /// Frames handed to links, of every kind.
    pub frames_sent: u64,
    /// Frames that reached the receive queue of their host.
    pub frames_received: u64,
    /// Frames that reached it with a mark of congestion that their host sees.
    pub frames_marked: u64,
    /// Frames lost in full queues of switches and on links that were down.
    pub frames_lost_in_network: u64,
    /// Frames lost at random.
    pub frames_lost_at_random: u64,
    /// Frames that found the receive queue of their host full.
    pub frames_lost_at_hosts: u64,
    /// Frames to an address that is on another rail.
    pub frames_astray: u64,
    /// Bytes that were placed more than once before their operation was complete.
    pub bytes_placed_again: u64,
}

impl Counts {
    /// Returns what connections counted on all rails.
    pub fn links(&self) -> LinkCounters {
        let mut all = LinkCounters::default();
        for rail in &self.rails {
            all.add(rail);
        }
        all
    }

    /// Returns the frames that carried no bytes of an operation for the first time, for a hundred that did.
    pub fn extra_frames_percent(&self) -> f64 {
        let links = self.links();
        let first = links.data_frames_sent.saturating_sub(links.retransmissions);
        100.0 * links.frames_sent.saturating_sub(first) as f64 / first.max(1) as f64
    }

    /// Returns the frames with bytes of an operation that arrived behind later ones, for a hundred.
    pub fn out_of_order_percent(&self) -> f64 {
        let links = self.links();
        100.0 * links.out_of_order as f64 / links.data_frames_received.max(1) as f64
    }
}
