//! Serves the statistics of the device to other processes. The crate's `statistics` module holds
//! the format.

use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use engine::Engine;
use nix::unistd::geteuid;
use runtime::{LocalListener, Runtime};
use verbs::{CompletionQueue, QueuePair, QueuePairState, QueuePairType, Registry};

use super::addresses::Places;
use super::connection_table::ConnectionTable;
use super::greeting::QueuePairPlace;
use super::work::Ends;
use crate::settings::Settings;
use crate::statistics::{
    CompletionQueueReport, DeviceReport, FORMAT, PeerReport, QueuePairReport, SOCKET,
};

/// The statistics socket of a device. The socket is abstract, so no file is left when the process
/// ends.
#[derive(Debug)]
pub(crate) struct Statistics {
    listener: LocalListener,
    registry: Arc<Registry>,
    device: String,
    addresses: Vec<IpAddr>,
    /// Number of threads that are writing a report.
    writing: Arc<AtomicU32>,
}

impl Statistics {
    /// Opens the socket. Returns `None` if this fails, which is no error, because a device also
    /// works without statistics.
    pub(crate) fn listen(
        settings: &Settings,
        places: &Places,
        registry: &Arc<Registry>,
    ) -> Option<Arc<Self>> {
        let listener = LocalListener::listen(SOCKET).ok()?;
        Some(Arc::new(Self {
            listener,
            registry: Arc::clone(registry),
            device: settings.device.clone(),
            addresses: places.addresses.iter().map(|address| address.ip).collect(),
            writing: Arc::default(),
        }))
    }

    /// Makes the runtime call the hooks when a process connects to the socket.
    pub(crate) fn watch(&self, runtime: &Runtime) {
        // If this fails, the device works, but answers no requests for statistics.
        let _unwatched = runtime.watch_listener(self.listener.descriptor(), KEY);
    }

    /// Answers the requests of those processes that may read the statistics.
    ///
    /// The runtime calls this function inside the engine, because `report` must run there. A
    /// separate thread writes the report to the socket, because the write may block: the report may
    /// be larger than the socket's buffer.
    pub(crate) fn answer(&self, report: impl Fn() -> (DeviceReport, Kept)) {
        while let Some(stream) = self.listener.accept() {
            if self.writing.load(Ordering::Relaxed) < WRITING_MAX {
                self.write(stream, report());
            }
        }
    }

    fn write(&self, stream: UnixStream, (report, kept): (DeviceReport, Kept)) {
        let writing = Arc::clone(&self.writing);
        writing.fetch_add(1, Ordering::Relaxed);
        let is_started = link::start_thread("ethernot-stat", {
            let writing = Arc::clone(&writing);
            move || {
                // This fails if the requesting process is gone.
                let _gone = write(stream, &report);
                drop(kept);
                writing.fetch_sub(1, Ordering::Relaxed);
            }
        });
        if is_started.is_err() {
            writing.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Returns the current statistics.
    pub(crate) fn report(&self, table: &ConnectionTable, engine: &Engine) -> (DeviceReport, Kept) {
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
            format: FORMAT.into(),
            process: std::process::id(),
            program: program(),
            user: geteuid().as_raw(),
            device: self.device.clone(),
            addresses: self.addresses.clone(),
            queue_pairs,
            completion_queues: queues.iter().map(|queue| completion_queue_report(queue)).collect(),
            counters: counters.map(|(name, value, _)| (name.to_owned(), value)).collect(),
        };
        (report, queues)
    }
}

/// The completion queues in a report. If the program destroys a queue while a thread writes the
/// report, dropping this list frees the queue's memory. A thread inside the engine must not free
/// it, so it must not drop this list.
type Kept = Vec<Arc<CompletionQueue>>;

fn completion_queue_report(queue: &CompletionQueue) -> CompletionQueueReport {
    CompletionQueueReport {
        entries: queue.entries(),
        waiting: queue.work().len() as u32,
        is_overrun: queue.work().is_overrun(),
    }
}

fn queue_pair_report(
    engine: &Engine,
    queue_pair: &QueuePair,
    peer: Option<QueuePairPlace>,
    ends: Option<Ends>,
) -> QueuePairReport {
    let mut report = QueuePairReport {
        number: queue_pair.number(),
        service: match queue_pair.service() {
            QueuePairType::Reliable => "RC",
            QueuePairType::Unreliable => "UC",
            QueuePairType::Datagram => "UD",
        }
        .into(),
        state: match queue_pair.state() {
            QueuePairState::Reset => "RESET",
            QueuePairState::Init => "INIT",
            QueuePairState::ReadyToReceive => "RTR",
            QueuePairState::ReadyToSend => "RTS",
            QueuePairState::SendQueueDrained => "SQD",
            QueuePairState::SendQueueError => "SQE",
            QueuePairState::Error => "ERR",
        }
        .into(),
        peer: peer.map(|peer| PeerReport { address: peer.gid.address(), number: peer.number }),
        ..QueuePairReport::default()
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

/// Returns the name of this process's program. If the process has set a name for itself, returns
/// that name.
fn program() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.trim_end().into()
}

fn write(mut stream: UnixStream, report: &DeviceReport) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(PATIENCE))?;
    stream.write_all(&serde_json::to_vec(report)?)
}

/// Key by which the hooks recognise a request for statistics.
pub(crate) const KEY: u64 = 0x7374_6174;

/// Maximum number of threads that write reports at the same time. Requests are rare, and each
/// request needs one thread.
const WRITING_MAX: u32 = 4;

/// Maximum time for which the thread waits until the requesting process reads the report.
const PATIENCE: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::os::linux::net::SocketAddrExt;

    use super::*;

    fn listening() -> Arc<Statistics> {
        let (settings, registry) = (Settings::default(), Registry::new());
        Statistics::listen(&settings, &Places::default(), &registry).expect("a name is free")
    }

    fn ask(statistics: &Statistics) -> UnixStream {
        let address = statistics.listener.address().expect("it is bound");
        let name = address.as_abstract_name().expect("it has an abstract name");
        assert!(name.starts_with(SOCKET.as_bytes()));
        assert!(name.ends_with(std::process::id().to_string().as_bytes()));
        UnixStream::connect_addr(&address).expect("it listens")
    }

    fn read(mut stream: UnixStream) -> Vec<u8> {
        let mut text = Vec::new();
        stream.read_to_end(&mut text).expect("it is answered, or closed");
        text
    }

    #[test]
    fn a_report_larger_than_the_socket_buffer_arrives_completely() {
        let statistics = listening();
        let queue_pairs = (0..4096)
            .map(|number| QueuePairReport { number, service: "RC".into(), ..Default::default() })
            .collect();
        let report = DeviceReport { process: 7, queue_pairs, ..DeviceReport::default() };
        let stream = ask(&statistics);
        statistics.answer(|| (report.clone(), Vec::new()));
        let received: DeviceReport = serde_json::from_slice(&read(stream)).expect("it is a report");
        assert_eq!(received, report);
    }

    #[test]
    fn excess_statistics_requests_are_refused() {
        let statistics = listening();
        statistics.answer(|| unreachable!("no process asks"));
        statistics.writing.store(WRITING_MAX, Ordering::Relaxed);
        let stream = ask(&statistics);
        statistics.answer(|| unreachable!("too many ask"));
        assert_eq!(read(stream), b"");
    }
}
