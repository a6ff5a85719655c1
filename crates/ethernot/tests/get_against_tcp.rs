//! Compares one-sided gets of the key-value store with gets from a TCP server that polls. The two
//! alternate, so that noise of the machine affects both equally. The server of the store is
//! passive: its application makes no calls while clients get.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_methods, reason = "measures time")]

#[expect(dead_code, reason = "others use the rest")]
mod hosts;
#[expect(dead_code, reason = "others use the rest")]
#[path = "../examples/key_value/store.rs"]
mod store;

use std::collections::HashMap;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use ethernot::{Connection, Endpoint};
use store::{Client, LIMIT, Server, VALUE_MAX, first_slot};
use testbed::host::Host;

/// Number of measurements for each variant.
const TURNS: usize = 7;
/// Number of gets in one measurement. A tenth of this number of gets precede them and are not
/// measured.
const GETS: u64 = 20_000;
const KEYS: u64 = 1000;

/// Tests tables of any size that are a quarter full. If the keys are consecutive, a get takes one
/// read. If the keys are not consecutive, a get takes little more than one read on average.
#[test]
fn consecutive_keys_are_in_their_first_slots() {
    let strides = [1, 2, 7, 64, 1000].map(|stride| (stride, KEYS));
    for (stride, reads_max) in strides.into_iter().chain([(8, KEYS * 3 / 2)]) {
        for slots in (4 * KEYS - 50)..(4 * KEYS + 50) {
            let mut taken = vec![false; slots as usize];
            let reads: usize = (0..KEYS)
                .map(|key| {
                    let first = first_slot(key * stride, slots) as usize;
                    let free = taken[first..].iter().position(|taken| !taken);
                    let free = free.expect("there is room");
                    taken[first + free] = true;
                    free + 1
                })
                .sum();
            assert!(reads as u64 <= reads_max, "{reads} reads of {KEYS} keys: {stride}, {slots}");
        }
    }
}

#[test]
#[ignore = "slow: run by `./x acceptance rust-api`; measures, with three processors free"]
fn get_over_loopback() {
    compare("loopback", "127.0.0.1", "127.0.0.1", None);
}

#[test]
#[ignore = "slow: run by `./x acceptance rust-api`; measures, with three processors free"]
fn get_over_veth() {
    let Some(hosts) = Host::pair() else { return };
    for (host, address) in hosts.iter().zip(["10.99.0.1/24", "10.99.0.2/24"]) {
        host.ip(&format!("addr add {address} dev edge0"));
    }
    compare("veth", "10.99.0.1", "10.99.0.2", Some(&hosts));
}

/// Measures gets of the store and of a TCP server alternately. Prints the median ratios of all
/// measurements.
fn compare(network: &str, server: &'static str, client: &'static str, hosts: Option<&[Host; 2]>) {
    let [at_server, at_client] = [0, 1].map(|side| hosts.map(|hosts| &hosts[side]));
    let (store, edge) = run(at_server, move || {
        let endpoint = Endpoint::bind(format!("{server}:0")).expect("the address is there");
        let address = endpoint.local_addresses().expect("not forked")[0];
        (Server::new(&endpoint, 4 * KEYS).expect("a table"), address)
    });
    let accepting: JoinHandle<(Server, Connection)> = thread::spawn(move || {
        let connection = store.accept(LIMIT).expect("a request").expect("in time");
        (store, connection)
    });
    let mut reader = run(at_client, move || {
        let endpoint = Endpoint::bind(format!("{client}:0")).expect("the address is there");
        Client::connect(&endpoint, edge).expect("the server is there")
    });
    let passive = accepting.join().expect("it accepts");
    for key in 0..KEYS {
        assert!(reader.put_by_swap(key, &value(key)).expect("it is put"), "no room");
    }
    let (tcp, serving) = run(at_server, move || serve_tcp(server));
    let mut ratios = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        let (edge, again) = run(at_client, move || {
            let latencies =
                measure(|key| reader.get(key).expect("it is read").expect("it is there"));
            (latencies, reader)
        });
        reader = again;
        let tcp = run(at_client, move || {
            let mut stream = TcpStream::connect(tcp).expect("the server listens");
            stream.set_nodelay(true).expect("it is TCP");
            stream.set_nonblocking(true).expect("it can be");
            measure(|key| ask(&mut stream, key))
        });
        println!("{network}: get {edge:?} ns, TCP {tcp:?} ns (50 %, 99 %)");
        ratios.iter_mut().zip(edge.iter().zip(tcp)).for_each(|(ratios, (edge, tcp))| {
            ratios.push(*edge as f64 / tcp as f64);
        });
    }
    serving.join().expect("it serves all turns");
    drop((reader, passive));
    for (name, mut ratios) in ["p50", "p99"].iter().zip(ratios) {
        ratios.sort_by(f64::total_cmp);
        println!("figure: get against TCP, {name}, {network}: {:.3}", ratios[TURNS / 2]);
    }
}

/// Runs a job on a host, or in the calling thread if `host` is `None`.
fn run<R: Send + 'static>(host: Option<&Host>, job: impl FnOnce() -> R + Send + 'static) -> R {
    match host {
        Some(host) => host.run(job),
        None => job(),
    }
}

fn value(key: u64) -> Vec<u8> {
    vec![key as u8; VALUE_MAX]
}

/// Returns the median and the 99th percentile, in nanoseconds.
fn measure(mut get: impl FnMut(u64) -> Vec<u8>) -> [u64; 2] {
    let mut latencies = Vec::with_capacity(GETS as usize);
    for number in 0..GETS + GETS / 10 {
        let key = number.wrapping_mul(7919) % KEYS;
        let started = Instant::now();
        let found = get(key);
        let took = started.elapsed().as_nanos() as u64;
        assert!(found == value(key), "another value");
        if number >= GETS / 10 {
            latencies.push(took);
        }
    }
    latencies.sort_unstable();
    [50, 99].map(|percent| latencies[latencies.len() * percent / 100])
}

/// Starts a server that polls one connection after the other. Returns its address.
fn serve_tcp(address: &str) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind((address, 0)).expect("the address is there");
    let bound = listener.local_addr().expect("it is bound");
    let table: HashMap<u64, Vec<u8>> = (0..KEYS).map(|key| (key, value(key))).collect();
    let serving = thread::spawn(move || {
        for _ in 0..TURNS {
            let (mut stream, _) = listener.accept().expect("a client");
            stream.set_nodelay(true).expect("it is TCP");
            stream.set_nonblocking(true).expect("it can be");
            let mut request = [0; 8];
            while read_polling(&mut stream, &mut request) {
                let found = table.get(&u64::from_le_bytes(request)).expect("it is asked for keys");
                stream.write_all(found).expect("a small answer has room");
            }
        }
    });
    (bound, serving)
}

fn ask(stream: &mut TcpStream, key: u64) -> Vec<u8> {
    stream.write_all(&key.to_le_bytes()).expect("a small request has room");
    let mut answer = vec![0; VALUE_MAX];
    assert!(read_polling(stream, &mut answer), "the server is gone");
    answer
}

/// Fills `bytes`. Returns false if the stream ends before `bytes` is full.
fn read_polling(stream: &mut TcpStream, bytes: &mut [u8]) -> bool {
    let mut filled = 0;
    while let Some(left) = bytes.get_mut(filled..).filter(|left| !left.is_empty()) {
        match stream.read(left) {
            Ok(0) => return false,
            Ok(count) => filled += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::hint::spin_loop(),
            Err(error) => panic!("{error}"),
        }
    }
    true
}
