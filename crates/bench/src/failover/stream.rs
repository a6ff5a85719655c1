//! The two processes of a transfer.

use std::sync::Arc;
use std::time::Duration;

use ethernot::{
    Buffer, CompletionKind, CompletionQueue, ConnectOptions, Connection, Endpoint, MemoryRegion,
    Operation, OperationFlags, OperationOptions, Ordering, PeerSpec, Polling, RemoteRegion,
    Request, Rights, Source,
};
use serde::{Deserialize, Serialize};

use crate::clock::Stopwatch;
use crate::transports::patience::Patience;

/// What one process of a transfer is to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StreamSpec {
    /// Which end it is.
    pub side: Side,
    /// Its links, by name.
    pub links: Vec<String>,
    /// How long the source sends.
    pub seconds: f64,
}

/// The ends of a transfer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Side {
    /// Is written to.
    Target,
    /// Writes to the target with these addresses.
    Source(String),
}

/// What the target saw.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Series {
    /// Bytes verified in each millisecond since the first write.
    pub bytes_per_ms: Vec<u64>,
    /// Writes notified.
    pub operations: u64,
    /// Writes sent that were never notified, or notified out of turn.
    pub lost_operations: u64,
    /// Writes of which a word was wrong.
    pub corrupted_operations: u64,
}

/// Runs one end. `tell_peers` is called with the target's addresses, `tell_flowing` when the first
/// write has arrived. Only the target has a series.
pub(crate) fn run(
    spec: &StreamSpec,
    tell_peers: impl FnOnce(String) -> Result<(), String>,
    tell_flowing: impl FnOnce() -> Result<(), String>,
) -> Result<Option<Series>, String> {
    let links = spec.links.join(",");
    let endpoint = Endpoint::builder().links(links).polling(Polling::ALWAYS).build();
    let endpoint = endpoint.map_err(text)?;
    match &spec.side {
        Side::Target => target(&endpoint, tell_peers, tell_flowing).map(Some),
        Side::Source(peers) => source(&endpoint, peers, spec.seconds).map(|()| None),
    }
}

fn target(
    endpoint: &Endpoint,
    tell_peers: impl FnOnce(String) -> Result<(), String>,
    tell_flowing: impl FnOnce() -> Result<(), String>,
) -> Result<Series, String> {
    let memory = Memory::new(endpoint)?;
    let listener = endpoint.listen(0).map_err(text)?;
    let links = endpoint.links().map_err(text)?;
    let peers = links.into_iter().filter_map(|(_, address)| PeerSpec::of_address(address));
    tell_peers(peers.map(|peer| peer.to_string()).collect::<Vec<_>>().join(","))?;
    let request = listener.accept(Some(SETUP_TIME_MAX)).map_err(text)?;
    let request = request.ok_or("no source has connected")?;
    let connection = request.accept_with(memory.options()).map_err(text)?;
    let remote = RemoteRegion::from_bytes(&connection.peer_data()).map_err(text)?;

    let mut series = Series::default();
    let mut tell_flowing = Some(tell_flowing);
    let mut since = Stopwatch::start();
    let mut patience = Patience::new("wait for writes");
    loop {
        let Some(completion) = connection.poll().map_err(text)? else {
            if let Some(reason) = connection.closed() {
                return Err(format!("the connection ended in mid-transfer: {reason:?}"));
            }
            patience.on_idle().map_err(text)?;
            continue;
        };
        patience.on_progress();
        completion.result.map_err(text)?;
        if completion.kind != CompletionKind::Notification {
            continue;
        }
        let number = completion.immediate.unwrap_or_default();
        if number == END {
            let sent = memory.buffer.load_u64(CONTROL_AT);
            series.lost_operations += sent.abs_diff(series.operations);
            return Ok(series);
        }
        if let Some(tell) = tell_flowing.take() {
            since = Stopwatch::start();
            tell()?;
        }
        series.lost_operations += u64::from(u64::from(number) != series.operations);
        series.corrupted_operations += u64::from(!memory.is_intact(u64::from(number)));
        series.operations += 1;
        let millisecond = (since.elapsed_ns() / 1_000_000) as usize;
        if series.bytes_per_ms.len() <= millisecond {
            series.bytes_per_ms.resize(millisecond + 1, 0);
        }
        if let Some(bytes) = series.bytes_per_ms.get_mut(millisecond) {
            *bytes += OPERATION_BYTES;
        }
        if series.operations.is_multiple_of(OPERATIONS_PER_CREDIT) {
            let credit = series.operations.to_le_bytes();
            // Whether it has arrived shows in the source's going on.
            drop(
                connection
                    .write_bytes(&credit, &remote, CONTROL_AT, OperationOptions::STRICT)
                    .map_err(text)?,
            );
        }
    }
}

fn source(endpoint: &Endpoint, peers: &str, seconds: f64) -> Result<(), String> {
    let memory = Memory::new(endpoint)?;
    let peers = PeerSpec::parse_list(peers).map_err(text)?;
    let connection = endpoint.connect_with(peers.as_slice(), memory.options()).map_err(text)?;
    let remote = RemoteRegion::from_bytes(&connection.peer_data()).map_err(text)?;
    await_links(endpoint, &connection, memory.links)?;

    let started = Stopwatch::start();
    let (mut posted, mut done, mut credit) = (0_u64, 0_u64, 0_u64);
    let mut is_sending = true;
    let mut patience = Patience::new("write to the target");
    loop {
        credit = credit.max(memory.buffer.load_u64(CONTROL_AT));
        is_sending = is_sending && started.elapsed_seconds() < seconds;
        // A slot is filled anew when its bytes are checked over there and no longer needed here.
        while is_sending && posted - credit < SLOTS && posted - done < SLOTS {
            memory.fill(posted);
            let operation = memory.write(&remote, posted);
            connection.post_later(&operation).map_err(text)?;
            posted += 1;
        }
        if !is_sending && done == posted {
            return end(&memory, &connection, &remote, posted);
        }
        let Some(completion) = connection.poll().map_err(text)? else {
            patience.on_idle().map_err(text)?;
            continue;
        };
        patience.on_progress();
        completion.result.map_err(text)?;
        if completion.kind != CompletionKind::Notification {
            done = done.max(completion.context);
        }
    }
}

/// Tells the target how many writes there were, and waits until it has closed.
fn end(
    memory: &Memory,
    connection: &Connection,
    remote: &RemoteRegion,
    posted: u64,
) -> Result<(), String> {
    let options = OperationOptions {
        fence_before: true,
        immediate: Some(END),
        notify: true,
        ..OperationOptions::STRICT
    };
    let last = connection.write_bytes(&posted.to_le_bytes(), remote, CONTROL_AT, options);
    last.map_err(text)?.wait(SETUP_TIME_MAX).map_err(text)?;
    // The target ends by itself; its memory stays registered here until then.
    let _closed = connection.wait_closed(Some(SETUP_TIME_MAX)).map_err(text)?;
    let _ = memory.region.len();
    Ok(())
}

/// Waits until every link carries data.
fn await_links(endpoint: &Endpoint, connection: &Connection, links: usize) -> Result<(), String> {
    let mut patience = Patience::new("bring up the links");
    loop {
        let info = connection.info().map_err(text)?;
        let up = |path: &&ethernot::PathInfo| path.state == ethernot::LinkState::Up;
        if info.is_some_and(|info| info.paths.iter().filter(up).count() >= links) {
            return Ok(());
        }
        endpoint.drive().map_err(text)?;
        patience.on_idle().map_err(text)?;
    }
}

/// Slots, and a word behind them: at the source the credit, at the target the count of writes.
struct Memory {
    buffer: Arc<Buffer>,
    region: MemoryRegion,
    queue: Arc<CompletionQueue>,
    links: usize,
}

impl Memory {
    fn new(endpoint: &Endpoint) -> Result<Self, String> {
        let buffer = Buffer::new(CONTROL_AT + 8);
        let region = endpoint.register(buffer.clone(), Rights::REMOTE_WRITE).map_err(text)?;
        let queue = Arc::new(CompletionQueue::new(QUEUE_ENTRIES));
        let links = endpoint.links().map_err(text)?.len();
        Ok(Self { buffer, region, queue, links })
    }

    fn options(&self) -> ConnectOptions {
        ConnectOptions::new()
            .private_data(self.region.remote().to_bytes())
            .queue(Arc::clone(&self.queue))
    }

    fn write(&self, remote: &RemoteRegion, number: u64) -> Operation {
        let offset = slot(number);
        Operation {
            request: Request::Write {
                source: Source::Region { region: self.region.region().id, offset },
                key: remote.key,
                address: remote.address + offset,
            },
            length: OPERATION_BYTES as u32,
            flags: OperationFlags {
                ordering: Ordering::Relaxed,
                signalled: true,
                ..OperationFlags::default()
            },
            immediate: Some(number as u32),
            context: number + 1,
            status: None,
        }
    }

    fn fill(&self, number: u64) {
        let start = slot(number);
        for word in 0..OPERATION_BYTES / 8 {
            self.buffer.store_u64(start + word * 8, pattern(number, word));
        }
    }

    fn is_intact(&self, number: u64) -> bool {
        let start = slot(number);
        (0..OPERATION_BYTES / 8)
            .all(|word| self.buffer.load_u64(start + word * 8) == pattern(number, word))
    }
}

const fn slot(number: u64) -> u64 {
    number % SLOTS * OPERATION_BYTES
}

/// What belongs at `word` of write `number`: different for every word of every write in sight.
const fn pattern(number: u64, word: u64) -> u64 {
    (number << 16 | word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// 131 µs of a 1 Gb/s link: fine enough to see milliseconds.
pub(crate) const OPERATION_BYTES: u64 = 16 << 10;
/// 8 MiB: what two 1 Gb/s links carry in 33 ms, so that one goes on while what the other took away is
/// sent again.
const SLOTS: u64 = 512;
const CONTROL_AT: u64 = SLOTS * OPERATION_BYTES;
const OPERATIONS_PER_CREDIT: u64 = 16;
/// More than the writes and credits under way.
const QUEUE_ENTRIES: usize = 4096;
/// Number of no write: 2^32 writes of 16 KiB would take days.
const END: u32 = u32::MAX;
const SETUP_TIME_MAX: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_neighbouring_writes_and_positions_differ() {
        assert_ne!(pattern(1, 0), pattern(0, 1));
        assert_ne!(pattern(3, 7), pattern(3 + SLOTS, 7));
        const { assert!(OPERATION_BYTES / 8 < 1 << 16) };
    }
}
