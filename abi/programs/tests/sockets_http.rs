//! Unmodified HTTP servers and clients. The library for sockets runs on both sides, on one side,
//! and on no side. Documents must arrive unchanged, and the library's counters must show the
//! expected path of the connections.

use std::sync::atomic::{AtomicU32, Ordering};

use programs::{Documents, HttpClient, HttpServer, Loaded, Network, Stage};

/// Sizes in bytes: empty, one byte, less than a packet, enough to fill every queue, and many times
/// that.
const SIZES: [usize; 5] = [0, 1, 1 << 10, 1 << 20, 16 << 20];

/// Number of runs of all tests together.
static RUNS: AtomicU32 = AtomicU32::new(0);

/// Runs clients against a server, one after the other.
fn pairs(network: &Network, server: HttpServer, clients: &[HttpClient], loads: &[Loaded]) {
    if !server.is_installed() {
        return;
    }
    for &loaded in loads {
        for client in clients.iter().filter(|client| client.is_installed()) {
            println!("{server:?} {client:?} {loaded:?}");
            // On a busy host a connection may end before it has moved.
            for attempt in 1.. {
                let Some(stage) = Stage::new(network, loaded) else { return };
                let documents = Documents::of_sizes(&stage, &SIZES);
                let port = stage.free_port();
                let running = server.start(&stage, &documents, port);
                client.fetch(&stage, &documents, port);
                running.stop();
                if attempt == ATTEMPTS {
                    stage.expect_path();
                }
                if stage.has_path() {
                    break;
                }
            }
            let runs = RUNS.fetch_add(1, Ordering::Relaxed) + 1;
            println!("figure: runs of servers and clients of HTTP: {runs}");
        }
    }
}

/// Maximum number of runs until connections take the expected path.
const ATTEMPTS: u32 = 3;

/// Runs all clients against a server, between two hosts if possible.
fn matrix(server: HttpServer) {
    let network = Network::namespaces().unwrap_or(Network::Loopback);
    pairs(&network, server, &HttpClient::ALL, &Loaded::ALL);
}

#[test]
fn a_few_pairs() {
    let loads = [Loaded::Neither, Loaded::Both];
    pairs(&Network::Loopback, HttpServer::Nginx, &[HttpClient::Curl, HttpClient::Python], &loads);
    pairs(&Network::Loopback, HttpServer::ApachePrefork(2), &[HttpClient::Curl], &loads);
}

#[test]
fn a_few_pairs_of_which_one_has_the_library_stay_on_tcp() {
    let loads = [Loaded::Server, Loaded::Client];
    pairs(&Network::Loopback, HttpServer::Nginx, &[HttpClient::Curl], &loads);
}

#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn apache_prefork() {
    matrix(HttpServer::ApachePrefork(2));
}

#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn apache_worker() {
    matrix(HttpServer::ApacheWorker);
}

#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn apache_event() {
    matrix(HttpServer::ApacheEvent);
}

#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn nginx() {
    matrix(HttpServer::Nginx);
}

#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn python_threads() {
    matrix(HttpServer::PythonThreads);
}

#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn python_asyncio() {
    matrix(HttpServer::PythonAsyncio);
}

#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn node() {
    matrix(HttpServer::Node);
}

#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn java() {
    matrix(HttpServer::Java);
}
