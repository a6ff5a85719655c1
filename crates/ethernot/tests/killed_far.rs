//! Tests of a peer on another host whose process is killed while no frame is in flight.
#![forbid(unsafe_code)]

mod copy;
#[expect(dead_code, reason = "other tests do more with hosts")]
mod hosts;

use std::time::{Duration, Instant};

use ethernot::{Closed, ConnectOptions, Endpoint, Terms, WaitError};
use hosts::LIMIT;
use nix::sys::signal::Signal;
use testbed::host::Host;

#[test]
#[expect(clippy::disallowed_methods, reason = "how long it took is printed, not judged")]
fn idle_queue_pairs_end_when_their_peer_on_another_host_is_killed() {
    if let Some(address) = copy::argument() {
        serve_until_killed(&address);
    }
    let name = "idle_queue_pairs_end_when_their_peer_on_another_host_is_killed";
    let Some([client, server]) = Host::pair() else { return };
    client.ip("addr add 10.9.0.1/24 dev edge0");
    server.ip("addr add 10.9.0.2/24 dev edge0");
    let (process, address) = server.run(move || copy::start(name, "10.9.0.2:0"));
    let connections = client.run(move || {
        let endpoint = Endpoint::builder().bind("10.9.0.1:0").build().expect("an endpoint");
        let terms = Terms::default().queue_pair(true);
        let options = ConnectOptions::new().limit(Some(LIMIT)).terms(terms);
        // After the kill, the server's kernel answers frames with ICMP errors, but only six frames
        // at once and one frame a second later. Use more connections than that, so that some of
        // them get no error.
        let connect = |_| endpoint.connect_with(&*address, options.clone()).expect("it listens");
        (0..8).map(connect).collect::<Vec<_>>()
    });
    // After this wait, the connections have compared their links and are idle.
    let limit = Duration::from_millis(3_500);
    let none = connections[0].wait_completion(Some(limit));
    assert_eq!(none, Err(WaitError::TimedOut { limit }));
    let killed_at = Instant::now();
    copy::end(process, Signal::SIGKILL);
    // The connections must end before an ordinary keep-alive is due.
    for connection in connections {
        let closed = connection.wait_closed(Some(LIMIT)).expect("it ends");
        assert!(matches!(closed, (Closed::Refused(_), _)), "{closed:?}");
    }
    println!("figure: killed peer noticed over UDP: {}", killed_at.elapsed().as_millis());
}

fn serve_until_killed(address: &str) -> ! {
    let endpoint = Endpoint::builder().bind(address).build().expect("an endpoint");
    let listener = endpoint.listen(0).expect("the service is free");
    copy::say(&endpoint.local_addresses().expect("not forked")[0].to_string());
    let mut connections = Vec::new();
    loop {
        if let Ok(request) = listener.accept(Some(LIMIT)) {
            connections.push(request.accept(&[]).expect("the peer is there"));
        }
    }
}
