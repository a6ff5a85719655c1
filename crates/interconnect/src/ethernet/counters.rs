//! Counters of ports, and a search for deadlocks.

use super::super::dependency;
use super::super::simulation::Stuck;
use super::super::topology::node_name;
use super::backlog::Backlog;
use super::{End, Ethernet};

/// Counters of a link's queue.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct PortCounters {
    /// Name of the link, such as `s1->s2`. The name of the second of two parallel cables ends with
    /// `#1`. Names on the second rail start with `rail 1 `.
    pub name: String,
    /// Number of frames lost because the buffer was full or the link was down.
    pub dropped: u64,
    /// Number of frames marked for congestion (ECN).
    pub marked: u64,
    /// Number of pause requests that this port has received. Each request is for one class.
    pub pauses: u64,
    /// Paused time, in picoseconds, summed over the classes.
    pub paused_ps: u64,
    /// Maximum length of the queue, in bytes.
    pub queue_bytes_max: u64,
    /// Maximum number of headroom bytes that one class has used at the other end of the link.
    pub headroom_bytes_max: u64,
}

/// Two links between which frames wait, and the number of these frames. The first entry is the link
/// on which the frames arrived, with their class. The second entry is the link through which the
/// frames will leave, with the class that is paused there.
pub(in super::super) type Wait = (Channel, Channel, u32);
type Channel = (u32, u8);

impl Ethernet {
    /// Returns the counters of the ports at which frames were lost, marked or paused.
    pub fn counters(&self) -> Vec<PortCounters> {
        let ports = 0..self.ports.len() as u32;
        let counted = ports.filter_map(|port| {
            let dropped = self.dropped.get(&port).copied().unwrap_or(0);
            let queues = self.queues.as_ref();
            let backlog = || {
                let backlog = self.backlogs.get(port as usize);
                let queue_bytes_max = backlog.map_or(0, Backlog::bytes_max);
                PortCounters { queue_bytes_max, ..PortCounters::default() }
            };
            let counters = queues.map_or_else(backlog, |queues| queues.counters(port));
            let counters = PortCounters { name: self.port_name(port), dropped, ..counters };
            let PortCounters { marked, pauses, headroom_bytes_max, .. } = counters;
            (dropped + marked + pauses + headroom_bytes_max > 0).then_some(counters)
        });
        counted.collect()
    }

    /// Adds the counters that another part of a divided network has for its ports.
    pub(in super::super) fn merge(&mut self, part: &Self) {
        self.hops += part.hops;
        for (port, lost) in &part.dropped {
            *self.dropped.entry(*port).or_default() += lost;
        }
        for (port, other) in self.ports.iter_mut().zip(&part.ports) {
            port.bytes += other.bytes;
        }
        for (backlog, other) in self.backlogs.iter_mut().zip(&part.backlogs) {
            backlog.merge(other);
        }
        if let (Some(queues), Some(other)) = (&mut self.queues, &part.queues) {
            queues.merge(other);
        }
        if let (Some(transport), Some(other)) = (&mut self.transport, &part.transport) {
            transport.merge(other);
        }
        if let (Some(homa), Some(other)) = (&mut self.homa, &part.homa) {
            homa.merge(other);
        }
    }

    /// Explains why no frame moves. `waits` contains the waits of all parts of the network.
    pub(in super::super) fn stuck(&self, waits: &[Wait], messages: usize) -> Stuck {
        let mut edges: Vec<_> = waits.iter().map(|&(held, wanted, _)| (held, wanted)).collect();
        edges.sort_unstable();
        let Some(circle) = dependency::find(&edges) else { return Stuck::Silent { messages } };
        let next = circle.iter().cycle().skip(1);
        let describe = |(held, wanted): (&Channel, &Channel)| {
            let found = waits.iter().find(|wait| wait.0 == *held && wait.1 == *wanted);
            let frames = found.map_or(0, |wait| wait.2);
            format!(
                "{} class {} is paused, because {frames} frames that arrived over it wait for {}",
                self.port_name(held.0),
                held.1,
                self.port_name(wanted.0)
            )
        };
        Stuck::Deadlock { circle: circle.iter().zip(next).map(describe).collect() }
    }

    fn port_name(&self, port: u32) -> String {
        let node = |end: End| node_name(self.names.as_deref(), self.hosts, end.node());
        let (to, from) = (self.ends[port as usize], self.ends[port as usize ^ 1]);
        let lane = if to.lane() > 0 { format!("#{}", to.lane()) } else { String::new() };
        let rail = match port / self.links {
            0 => String::new(),
            rail => format!("rail {rail} "),
        };
        format!("{rail}{}->{}{lane}", node(from), node(to))
    }
}
