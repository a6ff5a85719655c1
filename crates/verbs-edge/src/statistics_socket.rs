//! Serves the statistics of the device to other processes. [`verbs::statistics`] holds the format.

use std::net::IpAddr;
use std::sync::Arc;

use engine::Engine;
use runtime::{ReportSocket, Runtime};
use verbs::statistics::{CompletionQueueReport, DeviceReport, PeerReport, QueuePairReport, SOCKET};
use verbs::{CompletionQueue, QueuePair, QueuePairType, Registry};

use super::addresses::Places;
use super::connection_table::ConnectionTable;
use super::greeting::QueuePairPlace;
use super::work::Ends;
use crate::settings::Settings;

/// The statistics socket of a device. The socket is abstract, so no file is left when the process
/// ends.
#[derive(Debug)]
pub(crate) struct Statistics {
    socket: ReportSocket,
    registry: Arc<Registry>,
    device: String,
    addresses: Vec<IpAddr>,
}

impl Statistics {
    /// Opens the socket. Returns `None` if this fails, which is no error, because a device also
    /// works without statistics.
    pub(crate) fn listen(
        settings: &Settings,
        places: &Places,
        registry: &Arc<Registry>,
    ) -> Option<Arc<Self>> {
        Some(Arc::new(Self {
            socket: ReportSocket::listen(SOCKET).ok()?,
            registry: Arc::clone(registry),
            device: settings.device.clone(),
            addresses: places.addresses.iter().map(|address| address.ip).collect(),
        }))
    }

    /// Makes the runtime call the hooks when a process connects to the socket.
    pub(crate) fn watch(&self, runtime: &Runtime) {
        // If this fails, the device works, but answers no requests for statistics.
        let _unwatched = runtime.watch_listener(self.socket.descriptor(), KEY);
    }

    /// Answers the requests of those processes that may read the statistics.
    ///
    /// The runtime calls this function inside the engine, because the report must be made there.
    pub(crate) fn answer(&self, table: &ConnectionTable, engine: &Engine) {
        self.socket.answer(|| {
            let (report, kept) = self.report(table, engine);
            move || {
                let bytes = serde_json::to_vec(&report).unwrap_or_default();
                drop(kept);
                bytes
            }
        });
    }

    /// Returns the current statistics.
    fn report(&self, table: &ConnectionTable, engine: &Engine) -> (DeviceReport, Kept) {
        let mut queue_pairs = Vec::new();
        table.visit(|queue_pair, peer, ends| {
            queue_pairs.push(queue_pair_report(engine, queue_pair, peer, ends));
        });
        self.registry.visit_queue_pairs(|queue_pair| {
            if queue_pair.service() == QueuePairType::Datagram {
                queue_pairs.push(queue_pair_report(engine, queue_pair, None, None));
            }
        });
        queue_pairs.sort_unstable_by_key(|report| report.number);
        queue_pairs.dedup_by_key(|report| report.number);
        let counters = engine.counters().iter();
        let queues = self.registry.completion_queues();
        let report = DeviceReport {
            addresses: self.addresses.clone(),
            queue_pairs,
            completion_queues: queues
                .iter()
                .map(|queue| CompletionQueueReport::of(queue))
                .collect(),
            counters: counters.map(|(name, value, _)| (name.to_owned(), value)).collect(),
            ..DeviceReport::of_this_process(&self.device)
        };
        (report, queues)
    }
}

/// The completion queues in a report. If the program destroys a queue while a thread writes the
/// report, dropping this list frees the queue's memory. A thread inside the engine must not free
/// it, so it must not drop this list.
type Kept = Vec<Arc<CompletionQueue>>;

fn queue_pair_report(
    engine: &Engine,
    queue_pair: &QueuePair,
    peer: Option<QueuePairPlace>,
    ends: Option<Ends>,
) -> QueuePairReport {
    let mut report = QueuePairReport {
        peer: peer.map(|peer| PeerReport { address: peer.gid.address(), number: peer.number }),
        ..QueuePairReport::of(queue_pair)
    };
    let Some(ends) = ends else { return report };
    if let Some(sends) = engine.info(ends.sends) {
        report.is_connected = sends.established;
        report.outstanding = sends.outstanding;
        report.credits = sends.credits;
        let heard = sends.paths.iter().filter(|path| path.counters.frames_received > 0);
        report.round_trip_ns = heard.map(|path| path.srtt_ns).min();
        for counters in sends.paths.iter().map(|path| &path.counters) {
            report.bytes_sent += counters.payload_bytes_sent;
            report.frames_sent += counters.frames_sent;
            report.retransmissions += counters.retransmissions;
        }
    }
    // If a queue pair is its own peer, it has two connections. Its received frames are counted on
    // the second connection.
    for counters in engine.info(ends.receives).iter().flat_map(|info| &info.paths) {
        report.bytes_received += counters.counters.payload_bytes_received;
        report.frames_received += counters.counters.frames_received;
    }
    report
}

/// Key by which the hooks recognise a request for statistics.
pub(crate) const KEY: u64 = 0x7374_6174;
