//! A peer whose process was killed.
#![forbid(unsafe_code)]

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Duration;

use ethernot::{
    Buffer, Closed, ConnectOptions, Endpoint, EndpointBuilder, EngineConfig, OperationError,
    OperationFailure, OperationOptions, RemoteRegion, Rights,
};

/// Far longer than anything here takes: it only bounds a test that fails.
const LIMIT: Duration = Duration::from_secs(20);

/// Set for a copy of this test that serves.
const CHILD: &str = "ETHERNOT_TEST_SERVES_UNTIL_KILLED";

/// One link over UDP; silence alone would end a connection long after the test.
fn patient() -> EndpointBuilder {
    let engine = EngineConfig { silence_budget_ns: 1_000_000_000_000, ..EngineConfig::default() };
    Endpoint::builder().bind("127.0.0.1:0").engine(engine)
}

#[test]
fn operations_and_receives_learn_that_their_peer_was_killed() {
    if env::var_os(CHILD).is_some() {
        serve_until_killed();
    }
    let mut child = Command::new(env::current_exe().expect("this test"))
        .args(["--exact", "operations_and_receives_learn_that_their_peer_was_killed"])
        .args(["--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .stdout(Stdio::piped())
        .spawn()
        .expect("a copy of this test");
    let output = BufReader::new(child.stdout.take().expect("a pipe"));
    let address = output
        .lines()
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("serves ").map(ToOwned::to_owned));
    let endpoint = patient().build().expect("an endpoint");
    let options = ConnectOptions::new().limit(LIMIT);
    let connection = endpoint.connect_with(address.expect("the copy serves"), options);
    let connection = connection.expect("the copy accepts");
    let remote = RemoteRegion::from_bytes(&connection.peer_data()).expect("a remote region");
    let sink = endpoint.register(Buffer::new(64), Rights::LOCAL_WRITE).expect("registered");
    connection.post_receive(&sink, 0, 64, 7).expect("it is posted");
    child.kill().expect("it runs");
    child.wait().expect("a child");
    let write = connection.write_bytes(b"x", &remote, 0, OperationOptions::NONE);
    let unreachable = OperationError::Unreachable;
    assert_eq!(
        write.expect("it is posted").wait(LIMIT),
        Err(OperationFailure::Failed(unreachable))
    );
    assert!(matches!(connection.closed(), Some(Closed::Refused(_))), "{:?}", connection.closed());
    let ended = std::iter::from_fn(|| connection.queue().poll());
    let ended: Vec<_> = ended.map(|done| (done.context, done.result)).collect();
    assert!(ended.contains(&(7, Err(unreachable))), "{ended:?}");
}

fn serve_until_killed() -> ! {
    let endpoint = patient().build().expect("an endpoint");
    let region = endpoint.register(Buffer::new(64), Rights::REMOTE_WRITE).expect("registered");
    let listener = endpoint.listen(0).expect("the service is free");
    println!("\nserves {}", endpoint.local_addresses().expect("not forked")[0]);
    let request = listener.accept(Some(LIMIT)).expect("not forked").expect("a request");
    let connection = request.accept(&region.remote().to_bytes()).expect("the peer is there");
    loop {
        connection.wait_completion(Some(LIMIT)).expect("not forked");
    }
}
