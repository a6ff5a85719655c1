//! Tests work that waits in sources of the application.

mod pair;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::thread;
use std::time;

use delivery::Instant;
use engine::{ConnectionHandle, Engine};
use mem::{Buffer, MemoryAccess, Rights};
use pair::{Side, connect_with, small_write};
use runtime::{Posted, Rest, RuntimeConfig, SourceDoorbell, WorkSource};
use semantics::{CompletionQueue, Operation, PostError};

/// Number of connections. Each posts [`EACH`] operations, 10 000 in all.
const CONNECTIONS: u32 = 16;
const EACH: u64 = 625;

/// The operations of a connection, each with its number as context.
struct Queue {
    doorbell: SourceDoorbell,
    connection: ConnectionHandle,
    completions: Arc<CompletionQueue>,
    waiting: Mutex<VecDeque<Operation>>,
    in_flight: AtomicU32,
}

impl WorkSource for Queue {
    fn doorbell(&self) -> &SourceDoorbell {
        &self.doorbell
    }

    fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) == 0
    }

    fn post(
        &self,
        engine: &mut Engine,
        memory: &MemoryAccess<'_>,
        _now: Instant,
        limit: u32,
    ) -> Posted {
        let mut waiting = self.waiting.lock().expect("no thread panics");
        let (mut count, mut rest) = (0, Rest::Nothing);
        while let Some(operation) = waiting.front() {
            if count == limit {
                rest = Rest::More;
                break;
            }
            match engine.post(memory, self.connection, operation) {
                Ok(_) => {}
                Err(PostError::CompletionQueueFull(_) | PostError::NoOperationLeft(_)) => {
                    rest = Rest::Blocked;
                    break;
                }
                Err(error) => panic!("{error}"),
            }
            waiting.pop_front();
            count += 1;
        }
        self.in_flight.fetch_add(count, Ordering::Relaxed);
        Posted { count, rest }
    }
}

impl Queue {
    fn add(&self, operation: Operation) {
        self.waiting.lock().expect("no thread panics").push_back(operation);
    }

    /// Takes a completion, if there is one. Returns the number of its operation.
    fn poll(&self) -> Option<u64> {
        let done = self.completions.poll()?;
        done.result.expect("the operation succeeds");
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        Some(done.context)
    }
}

/// Both sides, the sources at the client, and the operation that each source posts.
struct Setting {
    client: Side,
    server: Side,
    sources: Vec<Arc<Queue>>,
    write: Operation,
}

impl Setting {
    /// Creates a setting in which the first connection has room for one completion. All connections
    /// together have room for fewer operations than the test posts.
    fn new() -> Self {
        Self::with_room(1)
    }

    /// Creates a setting in which the first connection has room for `places_of_first` completions.
    fn with_room(places_of_first: usize) -> Self {
        let mut config = RuntimeConfig::from_entropy().expect("entropy");
        config.progress_thread = false;
        config.engine.pools.operations = 100;
        let (client, server) = (Side::with(config), Side::new(false));
        let region =
            server.runtime.memory().register(server.domain, Buffer::new(64), Rights::REMOTE_WRITE);
        let region = region.expect("it is registered");
        let source = |index| {
            let places = if index == 0 { places_of_first } else { EACH as usize };
            let completions = Arc::new(CompletionQueue::new(places));
            Arc::new(Queue {
                doorbell: SourceDoorbell::new(),
                connection: connect_with(&client, &server, &completions),
                completions,
                waiting: Mutex::new(VecDeque::new()),
                in_flight: AtomicU32::new(0),
            })
        };
        let sources = (0..CONNECTIONS).map(source).collect();
        let write = small_write(region);
        Self { client, server, sources, write }
    }

    /// Adds an operation to a source and rings its doorbell.
    fn post(&self, source: &Arc<Queue>, context: u64) {
        source.add(Operation { context, ..self.write });
        let source: Arc<dyn WorkSource> = Arc::clone(source) as _;
        self.client.runtime.ring(&source).expect("not forked");
    }

    fn drive(&self) {
        self.client.runtime.drive().expect("not forked");
        self.server.runtime.drive().expect("not forked");
    }

    /// Polls all sources except the first until all their operations are complete. Checks that the
    /// operations of each source complete in order.
    fn complete_others(&self) {
        let mut done = vec![0; self.sources.len()];
        while done.iter().skip(1).any(|&done| done < EACH) {
            self.drive();
            for (source, done) in self.sources.iter().zip(&mut done).skip(1) {
                while let Some(context) = source.poll() {
                    assert_eq!(context, *done);
                    *done += 1;
                }
            }
        }
    }

    /// Polls the first source until all its operations are complete. Checks that they complete in
    /// order. The test must not have polled this source before.
    fn complete_first(&self) {
        let first = &self.sources[0];
        assert_eq!(first.waiting.lock().expect("no thread panics").len() as u64, EACH - 1);
        for expected in 0..EACH {
            let context = loop {
                self.drive();
                if let Some(context) = first.poll() {
                    break context;
                }
            };
            assert_eq!(context, expected);
            let first: Arc<dyn WorkSource> = Arc::clone(first) as _;
            self.client.runtime.ring(&first).expect("not forked");
        }
    }
}

#[test]
fn one_blocked_connection_delays_no_posts_to_fifteen_others() {
    let setting = Setting::new();
    thread::scope(|scope| {
        for sources in setting.sources.chunks(4) {
            let setting = &setting;
            scope.spawn(move || {
                for context in 0..EACH {
                    for source in sources {
                        setting.post(source, context);
                    }
                }
            });
        }
        setting.complete_others();
    });
    setting.complete_first();
}

#[test]
fn ten_thousand_posts_while_another_thread_is_inside_the_engine_are_all_performed() {
    let setting = Setting::new();
    let (entered, done) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let inside = (Arc::clone(&entered), Arc::clone(&done));
    thread::scope(|scope| {
        scope.spawn(|| {
            let occupied = setting.client.runtime.control(move |_, _, _| {
                inside.0.wait();
                inside.1.wait();
            });
            occupied.expect("not forked");
        });
        entered.wait();
        for context in 0..EACH {
            for source in &setting.sources {
                setting.post(source, context);
            }
        }
        done.wait();
    });
    setting.complete_others();
    setting.complete_first();
}

#[test]
fn deferred_work_is_sent_with_the_next_poll() {
    let setting = Setting::new();
    let source = &setting.sources[1];
    // An operation is outstanding, so the source is never idle. When its doorbell rings, the work
    // may therefore be deferred.
    source.in_flight.fetch_add(1, Ordering::Relaxed);
    for context in 0..10 {
        setting.drive();
        setting.post(source, context);
    }
    setting.client.runtime.ring_deferred().expect("not forked");
    assert!(source.waiting.lock().expect("no thread panics").is_empty());
    let counters = setting.client.runtime.counters().expect("not forked");
    assert_eq!(counters.pulled, 10);
}

/// Posts the same operations to all sixteen connections. Returns the seconds until fifteen of them
/// have completed all their operations. If `is_blocked` is true, the application does not poll the
/// first connection, so that this connection has no room for its operations.
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn seconds_of_fifteen(is_blocked: bool) -> f64 {
    let setting = Setting::with_room(if is_blocked { 1 } else { EACH as usize });
    let polled = usize::from(is_blocked);
    let poll = |done: &mut u64| {
        setting.drive();
        for (index, source) in setting.sources.iter().enumerate().skip(polled) {
            while source.poll().is_some() {
                *done += u64::from(index > 0);
            }
        }
    };
    let began = time::Instant::now();
    let mut done = 0;
    for context in 0..EACH {
        for source in &setting.sources {
            setting.post(source, context);
        }
        poll(&mut done);
    }
    while done < EACH * u64::from(CONNECTIONS - 1) {
        poll(&mut done);
    }
    began.elapsed().as_secs_f64()
}

#[test]
#[ignore = "slow: run by hand, in release mode with --ignored --nocapture; prints a figure"]
fn fifteen_connections_beside_a_blocked_one() {
    let mut ratios: Vec<f64> =
        (0..101).map(|_| seconds_of_fifteen(true) / seconds_of_fifteen(false)).collect();
    ratios.sort_by(f64::total_cmp);
    println!("quartiles {:.3} and {:.3}", ratios[25], ratios[75]);
    println!("figure: fifteen beside a blocked one: {:.3}", ratios[50]);
}
