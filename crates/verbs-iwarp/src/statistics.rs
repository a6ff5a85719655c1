//! The statistics of the device, which other processes read. [`verbs::statistics`] holds the
//! format.

use std::collections::BTreeMap;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use iwarp::Counters;
use runtime::ReportSocket;
use verbs::Registry;
use verbs::statistics::{CompletionQueueReport, DeviceReport, QueuePairReport, SOCKET};

/// What the streams of a device have done so far, and how many of them there are.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) struct Totals {
    pub(crate) counters: Counters,
    /// Streams that have carried messages.
    pub(crate) established: u64,
    /// Connections that a port has accepted.
    pub(crate) accepted: u64,
    /// Streams that have ended.
    pub(crate) ended: u64,
    /// Streams that ended because the peer broke a rule.
    pub(crate) broken_rules: u64,
}

/// The statistics socket of a device.
pub(crate) struct Statistics {
    socket: ReportSocket,
    registry: Arc<Registry>,
    device: String,
}

impl Statistics {
    /// Opens the socket. Returns `None` if this fails, which is no error, because a device also
    /// works without statistics.
    pub(crate) fn listen(device: &str, registry: &Arc<Registry>) -> Option<Self> {
        let (socket, registry) = (ReportSocket::listen(SOCKET).ok()?, Arc::clone(registry));
        Some(Self { socket, registry, device: device.into() })
    }

    pub(crate) fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.descriptor()
    }

    /// Answers the processes that ask. `queue_pairs` returns the reports of all queue pairs that
    /// have a stream.
    pub(crate) fn answer(
        &self,
        totals: &Totals,
        open: usize,
        queue_pairs: impl Fn() -> Vec<QueuePairReport>,
    ) {
        self.socket.answer(|| {
            let queues = self.registry.completion_queues();
            let completion_queues =
                queues.iter().map(|queue| CompletionQueueReport::of(queue)).collect();
            let report = DeviceReport {
                queue_pairs: queue_pairs(),
                completion_queues,
                counters: named(totals, open),
                ..DeviceReport::of_this_process(&self.device)
            };
            // The thread that writes drops the queues, because a turn must not free their memory.
            move || {
                let bytes = serde_json::to_vec(&report).unwrap_or_default();
                drop(queues);
                bytes
            }
        });
    }
}

fn named(totals: &Totals, open: usize) -> BTreeMap<String, u64> {
    let Totals { counters, established, accepted, ended, broken_rules } = *totals;
    let Counters { fpdus_sent, fpdus_received, bytes_sent, bytes_received, nudges } = counters;
    [
        ("streams_open", open as u64),
        ("streams_accepted", accepted),
        ("streams_established", established),
        ("streams_ended", ended),
        ("streams_ended_by_broken_rules", broken_rules),
        ("fpdus_sent", fpdus_sent),
        ("fpdus_received", fpdus_received),
        ("bytes_sent", bytes_sent),
        ("bytes_received", bytes_received),
        ("nudges", nudges),
    ]
    .into_iter()
    .map(|(name, value)| (name.to_owned(), value))
    .collect()
}
