//! Slowdowns: latencies of messages divided by their latencies on the empty network.
//!
//! The ideal time of a message is measured in another run, which sends only this message through
//! the same network. There is not such a run for each pair of hosts, because many pairs have equal
//! times. Two routes have equal times if they have equally many links and, at each switch, equally
//! many alternatives of equal length. One pair of hosts stands for all pairs with such routes.

use std::collections::BTreeMap;

use super::super::ethernet::{
    EthernetConfiguration, NicConfiguration, QueueConfiguration, Striping,
};
use super::super::receiving::ReceivingConfiguration;
use super::super::records::{MessageRecord, NEVER_PS, RecordLimits, Records};
use super::super::routing::RouteTable;
use super::super::simulation::{Limits, Watcher};
use super::super::topology::CableSettings;
use super::super::workload::{Actions, Received, Workload};
use super::{Configuration, ConfigurationError, FabricConfiguration, Watch};

/// Latencies of messages divided by their ideal times.
#[derive(Clone, Debug, PartialEq)]
pub struct Slowdowns {
    /// Ideal time of each recorded message, in picoseconds; [`NEVER_PS`] if the message has none.
    alone_ps: Vec<u64>,
    /// Slowdowns of measured messages, ascending.
    sorted: Vec<f64>,
}

impl Slowdowns {
    /// Returns the ideal time of the message at this index of [`Records::messages`], from posting
    /// to the last byte, in picoseconds. Returns `None` if a host sent the message to itself.
    pub fn alone_ps(&self, message: usize) -> Option<u64> {
        self.alone_ps.get(message).copied().filter(|&time_ps| time_ps != NEVER_PS)
    }

    /// Returns the slowdown of a message. Returns `None` if the message was not delivered, or if a
    /// host sent it to itself.
    pub fn slowdown(&self, message: usize, record: &MessageRecord) -> Option<f64> {
        let alone_ps = self.alone_ps(message)?;
        let latency_ps = (record.delivered_ps != NEVER_PS).then(|| latency_ps(record))?;
        Some(latency_ps as f64 / alone_ps.max(1) as f64)
    }

    /// Returns the number of messages that were posted after the warm-up and delivered.
    pub fn count(&self) -> usize {
        self.sorted.len()
    }

    /// Returns the mean slowdown; 0 without messages.
    pub fn mean(&self) -> f64 {
        self.sorted.iter().sum::<f64>() / self.sorted.len().max(1) as f64
    }

    /// Returns a quantile of the slowdowns. `share`, from 0 to 1, is the part of the messages whose
    /// slowdown does not exceed the result. Returns 0 without messages.
    pub fn quantile(&self, share: f64) -> f64 {
        let rank = (share * self.sorted.len() as f64).ceil().max(1.0) as usize;
        self.sorted.get(rank.min(self.sorted.len()).wrapping_sub(1)).copied().unwrap_or_default()
    }
}

impl Configuration {
    /// Measures the slowdown of each recorded message. The measurement handles about as many events
    /// as the recorded run, or fewer if messages have equal lengths. Every few thousand events,
    /// this function calls `watch` with the progress on one class of routes. If `watch` returns
    /// `Break`, the measurement stops.
    ///
    /// # Errors
    /// Returns [`ConfigurationError`]; each variant names one cause.
    pub fn slowdowns(
        &self,
        records: &Records,
        watch: &mut Watcher<'_>,
    ) -> Result<Slowdowns, ConfigurationError> {
        let empty = self.alone();
        let mut routes = Routes::new(&empty)?;
        let mut lengths: BTreeMap<usize, BTreeMap<u32, u64>> = BTreeMap::new();
        let route_of: Vec<Option<usize>> = records
            .messages
            .iter()
            .map(|message| {
                let route = routes.of(message.source, message.destination)?;
                lengths.entry(route).or_default().insert(message.bytes, NEVER_PS);
                Some(route)
            })
            .collect();
        for (&route, times) in &mut lengths {
            empty.measure_alone(routes.pairs[route], times, watch)?;
        }
        let alone_ps = |(message, route): (&MessageRecord, &Option<usize>)| {
            let times = route.and_then(|route| lengths.get(&route));
            times.and_then(|times| times.get(&message.bytes)).copied().unwrap_or(NEVER_PS)
        };
        let alone_ps = records.messages.iter().zip(&route_of).map(alone_ps).collect();
        let mut slowdowns = Slowdowns { alone_ps, sorted: Vec::new() };
        let measured = records.messages.iter().enumerate();
        let measured = measured.filter(|(_, record)| record.posted_ps >= self.limits.warmup_ps);
        let mut sorted: Vec<f64> =
            measured.filter_map(|(place, record)| slowdowns.slowdown(place, record)).collect();
        sorted.sort_unstable_by(f64::total_cmp);
        slowdowns.sorted = sorted;
        Ok(slowdowns)
    }

    /// Returns the network on which a message is measured alone. Hosts have no windows, so that a
    /// message does not wait for acknowledgements. Buffers are unlimited, because otherwise even a
    /// single message could overflow the buffer in front of a slower trunk.
    fn alone(&self) -> Self {
        let fabric = match self.fabric {
            FabricConfiguration::Ethernet(ethernet) => {
                // The real engine spreads a message over all links of its host.
                let nic = self.edge.as_ref().map_or(ethernet.nic, |edge| NicConfiguration {
                    rails: edge.rails.into(),
                    striping: Striping::PerPacket,
                    ..ethernet.nic
                });
                FabricConfiguration::Ethernet(EthernetConfiguration {
                    transport: None,
                    homa: None,
                    jitter_percent: 0,
                    buffer_bytes: 0,
                    queues: QueueConfiguration::NONE,
                    nic,
                    ..ethernet
                })
            }
            other => other,
        };
        let topology = self
            .topology
            .with_cable_settings(|cable| CableSettings { buffer_bytes: None, ..cable });
        let receiving = ReceivingConfiguration { interrupts: None, ..self.receiving };
        let limits = Limits { warmup_ps: 0, stop_ps: u64::MAX, ..self.limits };
        Self { topology, fabric, receiving, limits, edge: None, threads: 1, ..self.clone() }
    }

    /// Sends messages of these lengths from the first host to the second, and returns their times.
    fn measure_alone(
        &self,
        (from, to): (u32, u32),
        times: &mut BTreeMap<u32, u64>,
        watch: &mut Watcher<'_>,
    ) -> Result<(), ConfigurationError> {
        let pause_ps = match &self.fabric {
            FabricConfiguration::Ethernet(ethernet) => {
                ethernet.nic.frame_interval_ps.max(ethernet.host_frame_interval_ps)
            }
            FabricConfiguration::LogGp(loggp) => loggp.gap_ps,
            _ => 0,
        };
        let lengths = times.keys().copied().collect();
        let solo = Solo { from, to, lengths, next: 0, asked_ps: 0, pause_ps };
        let limits = RecordLimits { messages: 2 * times.len(), crossings: 0 };
        let mut report = |progress| watch(progress);
        let watch = Watch { records: Some(limits), progress: Some(&mut report), tap: None };
        let outcome = self.run_workload_watched(solo, self.topology.hosts(), watch)?;
        let messages = outcome.records.map(|records| records.messages).unwrap_or_default();
        let own = messages.iter().filter(|message| message.source == from);
        for (time_ps, message) in times.values_mut().zip(own) {
            *time_ps = latency_ps(message);
        }
        Ok(())
    }
}

const fn latency_ps(message: &MessageRecord) -> u64 {
    message.delivered_ps.saturating_sub(message.posted_ps)
}

/// Classes of routes. Routes of one class have equal times.
struct Routes<'a> {
    configuration: &'a Configuration,
    table: RouteTable,
    /// For each class, its index in `pairs`. The key of a class lists, for each switch of its
    /// routes, how many alternative links the switch has.
    known: BTreeMap<Vec<usize>, usize>,
    /// For each class, a pair of hosts that stands for it.
    pairs: Vec<(u32, u32)>,
}

impl<'a> Routes<'a> {
    fn new(configuration: &'a Configuration) -> Result<Self, ConfigurationError> {
        let table = RouteTable::new(&configuration.topology, configuration.routing)?;
        Ok(Self { configuration, table, known: BTreeMap::new(), pairs: Vec::new() })
    }

    /// Returns the class of the route between two hosts; `None` if both are the same host.
    fn of(&mut self, source: u32, destination: u32) -> Option<usize> {
        if source == destination {
            return None;
        }
        let topology = &self.configuration.topology;
        let mut ways = Vec::new();
        if topology.has_cable_settings() {
            // If cables have settings of their own, the time depends on the exact pair of hosts.
            ways.extend([source as usize, destination as usize]);
        }
        let mut switch = topology.host_switch(source);
        while !self.table.is_local(switch, destination) && ways.len() < topology.nodes() as usize {
            let links = self.table.candidates(switch, destination);
            ways.push(links.len());
            let link = links.first().and_then(|&link| topology.link(link))?;
            switch = link.to.checked_sub(topology.hosts())?;
        }
        let next = self.pairs.len();
        let route = *self.known.entry(ways).or_insert(next);
        if route == next {
            self.pairs.push((source, destination));
        }
        Some(route)
    }
}

/// A workload in which one host sends messages to another. It sends each message when the network
/// is empty again. The receiver answers each message with one byte.
struct Solo {
    from: u32,
    to: u32,
    lengths: Vec<u32>,
    next: usize,
    asked_ps: u64,
    /// Maximum time for which interfaces and switches remain busy after the last byte, in
    /// picoseconds.
    pause_ps: u64,
}

impl Solo {
    fn send(&mut self, actions: &mut Actions) {
        if let Some(&bytes) = self.lengths.get(self.next) {
            self.next += 1;
            self.asked_ps = actions.now_ps;
            actions.send(self.to, bytes, 0);
        }
    }
}

impl Workload for Solo {
    fn start(&mut self, rank: u32, actions: &mut Actions) {
        if rank == self.from {
            self.send(actions);
        }
    }

    fn on_wake(&mut self, rank: u32, _tag: u32, actions: &mut Actions) {
        if rank == self.from {
            self.send(actions);
        } else {
            actions.send(self.from, 1, 0);
        }
    }

    /// Schedules the next message, or the answer, for a time when all queues are empty. A message
    /// leaves queues behind in interfaces and switches. These queues are empty at the latest after
    /// the time that the message itself took, plus `pause_ps`.
    fn on_received(&mut self, _rank: u32, _received: Received, actions: &mut Actions) {
        let taken_ps = actions.now_ps - self.asked_ps;
        actions.wake_at(actions.now_ps + taken_ps + self.pause_ps, 0);
    }

    fn is_finished(&self) -> bool {
        self.next == self.lengths.len()
    }

    fn done(&self, _now_ps: u64) -> Option<f64> {
        Some(self.next as f64 / self.lengths.len().max(1) as f64)
    }
}

#[cfg(test)]
mod tests {
    use std::ops::ControlFlow;

    use super::super::super::simulation::{InTurns, Outcome};
    use super::*;

    fn slowdowns(text: &str) -> (Outcome, Slowdowns) {
        let configuration = Configuration::parse("a.toml", text).expect("it is valid");
        let watch = Watch { records: Some(RecordLimits::default()), ..Watch::default() };
        let outcome = configuration.run_watched(&InTurns, watch).expect("it ends");
        let records = outcome.records.as_deref().expect("it was recorded");
        let slowdowns = configuration.slowdowns(records, &mut |_| ControlFlow::Continue(()));
        let slowdowns = slowdowns.expect("they end");
        (outcome, slowdowns)
    }

    /// Sends messages of many lengths one after the other, over short and long routes.
    #[test]
    fn a_single_message_has_no_slowdown() {
        let flows: Vec<String> = (0..40_u64)
            .map(|flow| {
                let (source, by, bytes) = (flow % 16, 1 + flow * 7 % 15, 1 + flow * flow * 37);
                format!("[{source}, {}, {bytes}, \"{} ms\"]", (source + by) % 16, 1 + flow)
            })
            .collect();
        for (topology, fabric) in [
            ("kind = \"fat_tree\"\nradix = 4", "ethernet"),
            (
                "kind = \"leaf_spine\"\nleaves = 4\nhosts = 4",
                "ethernet\"\nrails = 2\nstriping = \"per_packet",
            ),
            (
                "kind = \"leaf_spine\"\nleaves = 4\nhosts = 4\ntrunks = 3",
                "ethernet\"\ntrunk_rate_bps = \"1 Gb/s\"\necn_max_bytes = 3000\ncut_through_bytes = \"64 B",
            ),
            ("kind = \"torus\"\nsizes = [4, 4]\nlanes = 2", "wormhole"),
            ("kind = \"torus\"\nsizes = [4, 4]\nlanes = 2", "flit"),
            ("kind = \"cascade\"\nswitches = 4\nhosts = 4", "fluid"),
            ("hosts = 16", "loggp"),
        ] {
            let text = format!(
                "[topology]\n{topology}\n[fabric]\nkind = \"{fabric}\"\n[host]\nsend_ps = 700\nreceive_ps = \
                 900\n[workload]\nkind = \"flows\"\nflows = [{}]\n",
                flows.join(", ")
            );
            let (outcome, slowdowns) = slowdowns(&text);
            assert_eq!((outcome.delivered, slowdowns.count()), (40, 40), "{fabric}");
            let ends = [slowdowns.quantile(0.0), slowdowns.quantile(1.0)];
            assert!(
                ends.iter().all(|end| (end - 1.0).abs() < 1e-3),
                "{topology} {fabric}: {ends:?}"
            );
        }
    }

    /// Two messages need the same port, so the second waits for the first.
    #[test]
    fn a_message_that_waits_for_another_has_a_slowdown() {
        let (outcome, slowdowns) = slowdowns(
            "[topology]\nhosts = 3\n[fabric]\nlatency_ps = 0\npropagation_ps = 0\n[workload]\nkind = \
             \"flows\"\nflows = [[0, 2, 1462, 0], [1, 2, 1462, 0], [0, 1, 100, \"1 ms\"]]\n",
        );
        // A frame of 1488 bytes crosses two links at 10 Gb/s. The next frame waits for this frame
        // and its gap.
        let alone_ps = 2 * 1_488 * 800;
        let records = outcome.records.expect("it was recorded");
        assert_eq!(
            (slowdowns.alone_ps(0), slowdowns.alone_ps(1)),
            (Some(alone_ps), Some(alone_ps))
        );
        let found: Vec<f64> = (0..)
            .zip(&records.messages)
            .filter_map(|(place, message)| slowdowns.slowdown(place, message))
            .collect();
        assert!((found[0] - 1.0).abs() < 1e-9 && (found[2] - 1.0).abs() < 1e-9, "{found:?}");
        let behind = (alone_ps + 1_500 * 800) as f64 / alone_ps as f64;
        assert!((found[1] - behind).abs() < 1e-9, "{found:?}");
        assert!((slowdowns.mean() - (2.0 + behind) / 3.0).abs() < 1e-9);
        let quantiles = [0.5, 0.66, 0.67, 1.0].map(|share| slowdowns.quantile(share));
        for (quantile, place) in quantiles.into_iter().zip([0, 0, 1, 1]) {
            assert!((quantile - found[place]).abs() < 1e-9, "{quantiles:?}");
        }
    }

    #[test]
    fn the_ideal_time_excludes_windows_engines_and_warm_up() {
        let network = "[topology]\nhosts = 2\n[workload]\nkind = \"flows\"\nflows = [[0, 1, 60_000, 0], \
                       [0, 1, 60_000, \"20 ms\"]]\n";
        let (_, plain) = slowdowns(network);
        let (_, windows) = slowdowns(&format!(
            "{network}[host]\ntransport = \"go_back_n\"\nwindow_frames = 1\n[run]\nwarmup_ps = \"10 ms\"\n"
        ));
        assert_eq!(windows.alone_ps(0), plain.alone_ps(0));
        assert_eq!((plain.count(), windows.count()), (2, 1));
        assert!(windows.quantile(0.5) > 2.0, "{windows:?}");
        let (_, engines) = slowdowns(&format!("{network}[host]\nkind = \"edge\"\nrails = 2\n"));
        assert!(engines.alone_ps(0) < plain.alone_ps(0));
        assert!((1.0..3.0).contains(&engines.quantile(0.0)), "{engines:?}");
    }

    #[test]
    fn lost_and_host_local_messages_have_no_slowdown() {
        let (outcome, slowdowns) = slowdowns(
            "[topology]\nhosts = 4\n[fabric]\nbuffer_bytes = 3000\n[workload]\npattern = \
             \"any\"\nload_percent = 150\nuntil_ps = 300_000_000\n",
        );
        let records = outcome.records.expect("it was recorded");
        assert!(outcome.dropped > 0);
        for (place, message) in records.messages.iter().enumerate() {
            let has_one = message.source != message.destination && message.delivered_ps != NEVER_PS;
            assert_eq!(slowdowns.slowdown(place, message).is_some(), has_one, "{message:?}");
        }
        assert!(slowdowns.quantile(0.0) >= 1.0);
    }
}
