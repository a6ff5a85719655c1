//! Real servers and clients over a link that loses 1 % of packets.

use programs::{Documents, HttpClient, HttpServer, Loaded, Network, Stage};

/// Ten pairs of servers and clients of every kind.
const PAIRS: [(HttpServer, HttpClient); 10] = [
    (HttpServer::Nginx, HttpClient::Curl),
    (HttpServer::Nginx, HttpClient::Wrk),
    (HttpServer::Nginx, HttpClient::Ab),
    (HttpServer::ApachePrefork(2), HttpClient::Curl),
    (HttpServer::ApacheWorker, HttpClient::Python),
    (HttpServer::ApacheEvent, HttpClient::Node),
    (HttpServer::PythonThreads, HttpClient::Curl),
    (HttpServer::PythonAsyncio, HttpClient::Python),
    (HttpServer::Node, HttpClient::Curl),
    (HttpServer::Node, HttpClient::Python),
];

/// Sizes of the documents in bytes; the larger ones span many packets.
const SIZES: [usize; 4] = [0, 1, 1 << 10, 1 << 20];

#[test]
#[ignore = "slow: run by `./x acceptance sockets`"]
fn ten_pairs_pass_twenty_times() {
    let Some(network) = Network::namespaces() else { return };
    network.lose(1.0);
    let mut runs = 0;
    for (server, client) in PAIRS {
        if !server.is_installed() || !client.is_installed() {
            continue;
        }
        println!("{server:?} {client:?}");
        let Some(stage) = Stage::new(&network, Loaded::Both) else { return };
        let documents = Documents::of_sizes(&stage, &SIZES);
        let port = stage.free_port();
        let running = server.start(&stage, &documents, port);
        for _ in 0..20 {
            client.fetch(&stage, &documents, port);
            runs += 1;
        }
        running.stop();
        stage.expect_path();
    }
    println!("figure: runs of servers and clients under loss: {runs}");
}
