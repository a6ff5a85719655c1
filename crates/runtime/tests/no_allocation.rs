//! Tests that after set-up, writing and polling allocate no memory, on either side and on any
//! thread.

mod counting;
mod pair;

use counting::allocations;
use engine::ConnectionHandle;
use mem::{Buffer, Rights};
use pair::{Side, connect};
use runtime::{Doorbell, RuntimeConfig};
use semantics::{Operation, OperationFlags, Request, Source};

/// Makes `count` writes of `length` bytes with up to 64 outstanding, and polls on both sides.
fn write_many(sides: [&Side; 2], to: ConnectionHandle, write: Operation, count: u64) {
    let [client, server] = sides;
    let (mut posted, mut done) = (0, 0);
    while done < count {
        while posted < count && posted - done < 64 {
            let doorbell = if posted % 2 == 0 { Doorbell::Later } else { Doorbell::Ring };
            let result = client.runtime.post(to, &client.queue, &write, doorbell);
            result.expect("there is room for 64");
            posted += 1;
        }
        client.runtime.drive().expect("not forked");
        server.runtime.drive().expect("not forked");
        while let Some(completion) = client.queue.poll() {
            assert_eq!(completion.result, Ok(()));
            done += 1;
        }
    }
}

/// This is the only test in this file. Otherwise the allocations of other tests at the same time
/// would be counted too.
#[test]
fn ten_thousand_writes_allocate_nothing() {
    for progress_thread in [false, true] {
        let side = || {
            let mut config = RuntimeConfig::from_entropy().expect("entropy");
            config.progress_thread = progress_thread;
            // If the test were descheduled for long, the endpoint would compress the idle
            // connections, which allocates memory. This setting prevents the compression.
            config.engine.rest_ns = u64::MAX;
            Side::with(config)
        };
        let (client, server) = (side(), side());
        let handle = connect(&client, &server);
        let (target, source) = (Buffer::new(1 << 16), Buffer::new(1 << 16));
        let memory = server.runtime.memory();
        let region = memory.register(server.domain, target, Rights::REMOTE_WRITE);
        let region = region.expect("it is registered");
        let source = client.runtime.memory().register(client.domain, source, Rights::NONE);
        let source = source.expect("it is registered");
        let flags = OperationFlags { signalled: true, ..OperationFlags::default() };
        let write = |source, length| Operation {
            request: Request::Write { source, key: region.key, address: region.start },
            length,
            flags,
            immediate: None,
            context: 1,
            status: None,
        };
        let small = write(Source::Inline([5; 64]), 8);
        let large = write(Source::Region { region: source.id, offset: 0 }, 40_000);
        let sides = [&client, &server];
        // During the first writes, path MTU, rates and rings reach their final sizes.
        write_many(sides, handle, small, 2000);
        write_many(sides, handle, large, 2000);
        let before = allocations();
        assert!(before > 0, "nothing is counted");
        write_many(sides, handle, small, 8000);
        write_many(sides, handle, large, 2000);
        let allocations = allocations() - before;
        assert_eq!(allocations, 0, "with a progress thread: {progress_thread}");
    }
}
