//! Tests of servers whose application makes no calls. The tests check on which processor the
//! progress thread runs. They measure how much processor time this thread takes, and how much it
//! reduces latency.
#![forbid(unsafe_code)]

#[expect(dead_code, reason = "other tests use what this one does not")]
mod pair;

use std::fs;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ethernot::{BindError, Endpoint, OperationOptions, Polling, Rights, StartError};
use pair::{LIMIT, Pair, Side, loopback};

#[test]
fn the_progress_thread_stays_on_the_configured_processor() {
    let allowed =
        fs::read_to_string("/proc/thread-self/status").expect("the status of this thread");
    let Some(processor) = last_allowed(&allowed) else {
        println!("skipped: the system does not tell which processors this process may use");
        return;
    };
    let endpoint: Endpoint =
        loopback().progress_processor(processor).build().expect("the processor may be used");
    let keeps = || {
        let allowed = of_progress_threads("status").into_iter().filter_map(|it| allowed_of(&it));
        allowed.into_iter().any(|allowed| allowed == processor.to_string())
    };
    // Wait until the progress thread has its name, which it gets only when it starts to run.
    while of_progress_threads("status").is_empty() {
        thread::yield_now();
    }
    assert!(keeps());
    drop(endpoint);
}

#[test]
fn a_missing_processor_is_an_error_that_names_it() {
    for processor in [1023, usize::MAX] {
        let refused = loopback().progress_processor(processor).build();
        let Err(error) = refused else { panic!("it keeps to processor {processor}") };
        assert!(
            matches!(&error, BindError::Start(StartError::Processor { processor: named, .. }) if *named == processor),
            "{error:?}"
        );
        assert!(error.to_string().contains(&processor.to_string()), "{error}");
    }
}

/// Prints the latency of gets and the processor time of the server, for each polling policy and
/// each pause of the client between two gets.
#[test]
#[ignore = "slow: run by hand, in release mode with --ignored --nocapture, on a quiet host; prints a table"]
fn gets_from_a_passive_server() {
    let policies = [
        ("adaptive", Polling::ADAPTIVE),
        ("never", Polling::NEVER),
        ("50 us", Polling::for_at_most(Duration::from_micros(50))),
        ("always", Polling::ALWAYS),
    ];
    println!(
        "| policy | pause of the client | get p50, us | p99, us | processor of the server, % |"
    );
    println!("|---|---|---|---|---|");
    let (mut slower, mut dearer) = (0.0_f64, f64::NEG_INFINITY);
    for pause_us in [0, 20, 100, 1000, 10_000] {
        let mut found = Vec::new();
        for (name, polling) in policies {
            let pause = Duration::from_micros(pause_us);
            let (mut times, busy) = measure(polling, pause);
            times.sort_unstable();
            let at = |share: f64| times[(times.len() as f64 * share) as usize] as f64 / 1000.0;
            let (median, tail) = (at(0.5), at(0.99));
            println!("| {name} | {pause_us} us | {median:.1} | {tail:.1} | {:.1} |", busy * 100.0);
            found.push((median, busy * 100.0));
        }
        let [adaptive, never, spin, _] = found[..] else { panic!("four policies") };
        if pause_us <= 1000 {
            let better = if never.0 < spin.0 { never } else { spin };
            slower = slower.max(adaptive.0 / better.0);
            dearer = dearer.max(adaptive.1 - better.1);
        }
    }
    println!("figure: latency of a passive server against the better: {slower:.3}");
    println!("figure: processor of a passive server beyond the better: {dearer:.1}");
}

/// Returns the latencies of gets, in nanoseconds, and the fraction of a processor that the server
/// used. After each get, the client pauses for `pause`.
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn measure(polling: Polling, pause: Duration) -> (Vec<u64>, f64) {
    let client = loopback().progress_thread(false).polling(Polling::ALWAYS);
    let pair = Pair::build(client, loopback().polling(polling), Rights::REMOTE_READ);
    let Side { endpoint, connection, buffer, .. } = &pair.client;
    let local = endpoint.register(Arc::clone(buffer), Rights::LOCAL_WRITE).expect("registered");
    let get = || {
        let began = Instant::now();
        let read = connection.read(&local, 0, &pair.remote, 0, 64, OperationOptions::NONE);
        assert_eq!(read.expect("it is posted").wait(Some(LIMIT)), Ok(0));
        let took = began.elapsed();
        if pause >= Duration::from_millis(1) {
            thread::sleep(pause);
        } else {
            while began.elapsed() < took + pause {
                std::hint::spin_loop();
            }
        }
        took.as_nanos() as u64
    };
    for _ in 0..100 {
        get();
    }
    let (began, before) = (Instant::now(), processor_ns());
    let mut times = Vec::new();
    while began.elapsed() < Duration::from_millis(1500) {
        times.push(get());
    }
    let busy = (processor_ns() - before) as f64 / began.elapsed().as_nanos() as f64;
    (times, busy)
}

/// Returns the processor time of all progress threads in nanoseconds. Only servers have such
/// threads.
fn processor_ns() -> u64 {
    let first = |text: String| text.split(' ').next().and_then(|ns| ns.parse::<u64>().ok());
    of_progress_threads("schedstat").into_iter().filter_map(first).sum()
}

/// Returns the content of a file in `/proc` for each progress thread of this process.
fn of_progress_threads(file: &str) -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("the threads of this process");
    let of_task = |task: fs::DirEntry| {
        let name = fs::read_to_string(task.path().join("comm")).ok()?;
        (name == "ethernot\n").then(|| fs::read_to_string(task.path().join(file)).ok())?
    };
    tasks.flatten().filter_map(of_task).collect()
}

/// Returns the processors that a thread may use, in the kernel's notation, such as `0-3,7`.
fn allowed_of(status: &str) -> Option<String> {
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(line.trim().to_owned())
}

fn last_allowed(status: &str) -> Option<usize> {
    allowed_of(status)?.rsplit(['-', ',']).next()?.parse().ok()
}
