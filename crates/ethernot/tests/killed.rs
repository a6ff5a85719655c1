//! Tests of a peer whose process is killed.
#![forbid(unsafe_code)]

mod copy;

use std::time::Duration;

use ethernot::{
    Buffer, Closed, ConnectOptions, Endpoint, EndpointBuilder, EngineConfig, OperationError,
    OperationFailure, OperationOptions, RemoteRegion, Rights, Terms, WaitError,
};
use nix::sys::signal::Signal;

/// Limit of waits. It is far longer than any step of the test, and only limits the time of a
/// failing test.
const LIMIT: Duration = Duration::from_secs(20);

/// Returns a builder with one UDP link and a silence budget far longer than the test.
fn patient() -> EndpointBuilder {
    let engine = EngineConfig::default().silence_budget_ns(1_000_000_000_000);
    Endpoint::builder().bind("127.0.0.1:0").engine(engine)
}

#[test]
fn operations_and_receives_fail_when_their_peer_is_killed() {
    if copy::argument().is_some() {
        serve_until_killed();
    }
    let name = "operations_and_receives_fail_when_their_peer_is_killed";
    let (server, address) = copy::start(name, "serve");
    let endpoint = patient().build().expect("an endpoint");
    let options = ConnectOptions::new().limit(Some(LIMIT));
    let connection = endpoint.connect_with(address, options).expect("the copy accepts");
    let remote = RemoteRegion::from_bytes(&connection.peer_data()).expect("a remote region");
    let sink = endpoint.register(Buffer::new(64), Rights::LOCAL_WRITE).expect("registered");
    connection.post_receive(&sink, 0, 64, 7).expect("it is posted");
    copy::end(server, Signal::SIGKILL);
    let write = connection.write_bytes(b"x", &remote, 0, OperationOptions::NONE);
    let unreachable = OperationError::Unreachable;
    assert_eq!(
        write.expect("it is posted").wait(Some(LIMIT)),
        Err(OperationFailure::Failed(unreachable))
    );
    // An operation may report the end of its connection before the connection does.
    let closed = connection.wait_closed(Some(LIMIT)).expect("it ends");
    assert!(matches!(closed, (Closed::Refused(_), _)), "{closed:?}");
    let ended = std::iter::from_fn(|| connection.queue().poll());
    let ended: Vec<_> = ended.map(|done| (done.context, done.result)).collect();
    assert!(ended.contains(&(7, Err(unreachable))), "{ended:?}");
}

#[test]
fn an_idle_queue_pair_ends_when_its_peer_is_killed() {
    if copy::argument().is_some() {
        serve_until_killed();
    }
    let name = "an_idle_queue_pair_ends_when_its_peer_is_killed";
    let (server, address) = copy::start(name, "serve");
    let endpoint = patient().build().expect("an endpoint");
    let terms = Terms::default().queue_pair(true);
    let options = ConnectOptions::new().limit(Some(LIMIT)).terms(terms);
    let connection = endpoint.connect_with(address, options).expect("the copy accepts");
    // After this wait, both ends have compared their links. After that they send only keep-alives.
    let limit = Duration::from_millis(3_500);
    let none = connection.wait_completion(Some(limit));
    assert_eq!(none, Err(WaitError::TimedOut { limit }));
    copy::end(server, Signal::SIGKILL);
    // The killed process ran on this host. So this kernel refuses the next frame of the connection,
    // because no process has the port. The connection must end before an ordinary keep-alive is
    // due.
    let closed = connection.wait_closed(Some(LIMIT)).expect("it ends");
    assert!(matches!(closed, (Closed::Refused(_), _)), "{closed:?}");
}

fn serve_until_killed() -> ! {
    let endpoint = patient().build().expect("an endpoint");
    let region = endpoint.register(Buffer::new(64), Rights::REMOTE_WRITE).expect("registered");
    let listener = endpoint.listen(0).expect("the service is free");
    copy::say(&endpoint.local_addresses().expect("not forked")[0].to_string());
    let request = listener.accept(Some(LIMIT)).expect("a request");
    let connection = request.accept(&region.remote().to_bytes()).expect("the peer is there");
    loop {
        connection.wait_completion(Some(LIMIT)).expect("not forked");
    }
}
