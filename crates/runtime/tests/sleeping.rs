//! Tests a thread that sleeps until each answer arrives.

mod pair;

use std::thread;
use std::time::Duration;

use link::LinkStatistics;
use mem::{Buffer, Rights};
use pair::{Side, connect, small_write};
use runtime::{Doorbell, Interest, Polling, RuntimeConfig};
use semantics::{Operation, OperationFlags, Request};

const READS: u64 = 2000;

/// Each read of a link is a system call. For a thread that sleeps, these calls are most of the cost
/// of an operation, so it should make few of them.
#[test]
fn a_thread_that_sleeps_for_each_answer_makes_few_empty_link_reads() {
    let mut config = RuntimeConfig::from_entropy().expect("entropy");
    config.polling = Polling::NEVER;
    config.progress_thread = false;
    let (client, server) = (Side::with(config), Side::new(true));
    let connection = connect(&client, &server);
    let register = |side: &Side, rights| {
        side.runtime.memory().register(side.domain, Buffer::new(64), rights).expect("memory")
    };
    let (source, target) =
        (register(&server, Rights::REMOTE_READ), register(&client, Rights::LOCAL_WRITE));
    let before = statistics(&client);
    for context in 0..READS {
        let read = Operation {
            request: Request::Read {
                sink: target.id,
                sink_offset: 0,
                key: source.key,
                address: source.start,
            },
            length: 8,
            flags: OperationFlags { signalled: true, ..OperationFlags::default() },
            immediate: None,
            context,
            status: None,
        };
        let posted = client.runtime.post(connection, &client.queue, &read, Doorbell::Ring);
        posted.expect("it is posted");
        let interest = Interest::Completion(&client.queue);
        let done = client.runtime.wait(interest, None, || client.queue.poll());
        assert_eq!(done.expect("not forked").map(|done| done.context), Some(context));
    }
    let after = statistics(&client);
    let calls = after.receive_calls - before.receive_calls;
    let frames = after.receive_frames - before.receive_frames;
    println!("{calls} calls for {frames} frames of {READS} reads");
    assert!(calls <= 3 * frames, "{calls} calls for {frames} frames");
}

/// While the thread sleeps, the progress thread is on watch. The progress thread does not know that
/// deferred work waits, so the thread must send this work before it sleeps.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "it waits until the progress thread has nothing to do"
)]
fn a_thread_that_goes_to_sleep_sends_work_deferred_by_its_doorbell() {
    let mut config = RuntimeConfig::from_entropy().expect("entropy");
    config.polling = Polling::NEVER;
    let (client, server) = (Side::with(config), Side::new(true));
    let connection = connect(&client, &server);
    let memory = server.runtime.memory();
    let target = memory.register(server.domain, Buffer::new(64), Rights::REMOTE_WRITE);
    let write = small_write(target.expect("it is registered"));
    for _ in 0..20 {
        // Wait until the progress thread sleeps on the links.
        thread::sleep(Duration::from_millis(50));
        let posted = client.runtime.post(connection, &client.queue, &write, Doorbell::Later);
        posted.expect("it is posted");
        let interest = Interest::Completion(&client.queue);
        let done = client.runtime.wait(interest, Some(LIMIT), || client.queue.poll());
        assert!(done.expect("not forked").is_some(), "the write was never sent");
    }
}

/// Limit of waits. It is far longer than a wait, and only limits the time of a failing test.
const LIMIT: Duration = Duration::from_secs(30);

fn statistics(side: &Side) -> LinkStatistics {
    let (link, _) = side.runtime.link_addresses().expect("not forked")[0];
    side.runtime.link_statistics(link).expect("not forked").expect("the link is there")
}
