//! Tests processes of one host, one of which shares memory with several others.

mod pair;

use engine::ConnectionHandle;
use link::ShmLink;
use mem::{Buffer, Region, Rights};
use pair::{Side, connect};
use runtime::{Doorbell, RuntimeConfig};
use semantics::{Operation, OperationFlags, Request, Source};

/// A process, with memory that other processes may write.
struct Process {
    side: Side,
    region: Region,
}

impl Process {
    fn new() -> Self {
        let mut config = RuntimeConfig::from_entropy().expect("entropy");
        config.progress_thread = false;
        // Even if this host is very slow, no peer must count as unreachable during the test.
        config.engine.silence_budget_ns = 3_600_000_000_000;
        let side = Side::on(Box::new(ShmLink::open().expect("shared memory")), config);
        let buffer = Buffer::new(BYTES);
        let region = side.runtime.memory().register(side.domain, buffer, Rights::REMOTE_WRITE);
        Self { region: region.expect("it is registered"), side }
    }

    fn post(&self, to: ConnectionHandle, peer: &Self, source: Source, length: u32, context: u64) {
        let region = peer.region;
        let write = Operation {
            request: Request::Write { source, key: region.key, address: region.start },
            length,
            flags: OperationFlags { signalled: true, ..OperationFlags::default() },
            immediate: None,
            context,
            status: None,
        };
        self.side
            .runtime
            .post(to, &self.side.queue, &write, Doorbell::Ring)
            .expect("there is room");
    }
}

/// The ring to a stopped process becomes full. The client must still serve all other processes.
#[test]
fn a_stopped_process_blocks_no_other() {
    let (client, stopped, other) = (Process::new(), Process::new(), Process::new());
    let to_stopped = connect(&client.side, &stopped.side);
    let to_other = connect(&client.side, &other.side);
    // The bytes go through the rings, because this endpoint does not lend buffers of this size.
    let source = Buffer::new(SOURCE_BYTES);
    let source = client.side.runtime.memory().register(client.side.domain, source, Rights::NONE);
    let source = Source::Region { region: source.expect("it is registered").id, offset: 0 };
    for context in 0..32 {
        client.post(to_stopped, &stopped, source, SOURCE_BYTES as u32, context);
    }
    let (link, _) = client.side.runtime.link_addresses().expect("not forked")[0];
    let full = || {
        let statistics = client.side.runtime.link_statistics(link).expect("not forked");
        statistics.expect("the link is there").send_full
    };
    while full() == 0 {
        client.side.runtime.drive().expect("not forked");
    }
    for context in 100..200 {
        let before = full();
        client.post(to_other, &other, source, SOURCE_BYTES as u32, context);
        let mut completion = None;
        while completion.is_none() {
            client.side.runtime.drive().expect("not forked");
            other.side.runtime.drive().expect("not forked");
            completion = client.side.queue.poll();
        }
        let completion = completion.expect("the loop waited for a completion");
        assert_eq!((completion.context, completion.result), (context, Ok(())));
        assert!(full() > before, "the ring to the stopped endpoint is no longer full");
    }
}

const BYTES: u64 = 1 << 16;

/// Bytes of the source; less than the smallest size that is lent.
const SOURCE_BYTES: u64 = 40_000;
