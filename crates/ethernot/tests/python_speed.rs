//! Compares the time of a get in an asyncio program with that of a get in a Rust program.
#![forbid(unsafe_code)]

#[expect(dead_code, reason = "other tests use what this one does not")]
mod pair;

use std::env;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use ethernot::{OperationOptions, Rights};
use pair::{LIMIT, Pair, loopback};

const GETS: usize = 20_000;
const TURNS: usize = 5;

/// Prints medians of gets of 128 bytes from a passive server in Rust. The Python client and the
/// Rust client alternate. The test needs the package that `./x python` installs. Run it alone:
///
/// ```sh
/// cargo test --release -p ethernot --test python_speed -- --ignored --nocapture
/// ```
#[test]
#[ignore = "slow: run by hand, alone, after `./x python`; measures"]
fn gets_of_asyncio_against_those_of_rust() {
    let python = env::var_os("ETHERNOT_PYTHON").map_or_else(built, PathBuf::from);
    if !has_package(&python) {
        println!(
            "skipped: {} cannot import the package `ethernot`; to build and install it there: ./x python",
            python.display()
        );
        return;
    }
    let pair = Pair::build(loopback(), loopback(), Rights::REMOTE_READ | Rights::LOCAL_WRITE);
    let mut ratios: Vec<f64> = (0..TURNS)
        .map(|_| {
            let rust = rust_ns(&pair);
            let ratio = python_ns(&python, &pair) / rust;
            println!("Rust {rust} ns, asyncio {ratio:.2} times as long");
            ratio
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!("figure: Python's asyncio get against Rust's, p50: {:.2}", ratios[TURNS / 2]);
}

/// Returns the path of the environment that `./x python` makes.
fn built() -> PathBuf {
    let program = env::current_exe().expect("a program knows where it is");
    let target = program.ancestors().nth(3).expect("test programs lie in target/PROFILE/deps");
    target.join("python/venv/bin/python")
}

/// Returns whether the interpreter runs and has the package.
fn has_package(python: &Path) -> bool {
    let mut imports = Command::new(python);
    imports.args(["-c", "import ethernot"]).stderr(Stdio::null());
    imports.status().is_ok_and(|status| status.success())
}

#[expect(clippy::disallowed_methods, reason = "it measures")]
fn rust_ns(pair: &Pair) -> f64 {
    let (client, region) = (&pair.client.connection, &pair.client.region);
    let mut times: Vec<u128> = (0..GETS)
        .map(|_| {
            let began = Instant::now();
            let read = client.read(region, 0, &pair.remote, 0, 128, OperationOptions::NONE);
            assert_eq!(read.expect("it is posted").wait(Some(LIMIT)), Ok(0));
            began.elapsed().as_nanos()
        })
        .collect();
    times.sort_unstable();
    times[GETS / 2] as f64
}

/// Returns the time of a get by an asyncio client from the same server, in nanoseconds.
fn python_ns(python: &PathBuf, pair: &Pair) -> f64 {
    let server = &pair.server;
    let listener = server.endpoint.listen(8).expect("the service is free");
    let address = server.endpoint.local_addresses().expect("not forked")[0];
    let key = server.region.remote().to_bytes();
    thread::scope(|scope| {
        let accepting = scope.spawn(|| {
            let request = listener.accept(Some(LIMIT)).expect("a request");
            request.accept(&key).expect("the peer is there")
        });
        let mut client = Command::new(python);
        client.args(["-c", CLIENT, &address.to_string(), &GETS.to_string()]);
        let output = client.output().expect("Python runs");
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{error}");
        drop(accepting.join().expect("it accepts"));
        String::from_utf8_lossy(&output.stdout).trim().parse().expect("nanoseconds")
    })
}

const CLIENT: &str = "
import asyncio, sys, time
from ethernot import Endpoint, RemoteMemory, Rights

async def main(address, gets):
    with Endpoint('127.0.0.1:0') as endpoint:
        connection = await endpoint.connecting(address, service=8, timeout=20)
        remote = RemoteMemory.from_bytes(connection.peer_data)
        memory = endpoint.allocate(4096, Rights.LOCAL_WRITE)
        times = []
        for _ in range(gets):
            began = time.perf_counter_ns()
            await connection.read(memory, 0, remote, 0, 128)
            times.append(time.perf_counter_ns() - began)
        print(sorted(times)[gets // 2])

asyncio.run(main(sys.argv[1], int(sys.argv[2])))
";
