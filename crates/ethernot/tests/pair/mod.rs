//! Two connected endpoints on loopback.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ethernot::{
    Buffer, ConnectOptions, Connection, Endpoint, EndpointBuilder, EngineConfig, MemoryRegion,
    RemoteRegion, Rights,
};

/// Limit of waits. It is far longer than any step of a test, and only limits the time of a failing
/// test.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// A client and a server, each with a region of `BYTES` bytes, and a connection between them.
pub(crate) struct Pair {
    pub(crate) client: Side,
    pub(crate) server: Side,
    /// The server's region, as announced to the client.
    pub(crate) remote: RemoteRegion,
}

pub(crate) struct Side {
    pub(crate) connection: Connection,
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) region: MemoryRegion,
    pub(crate) endpoint: Endpoint,
}

pub(crate) const BYTES: u64 = 1 << 20;

pub(crate) const EVERYTHING: [Rights; 4] =
    [Rights::LOCAL_WRITE, Rights::REMOTE_READ, Rights::REMOTE_WRITE, Rights::REMOTE_ATOMIC];

impl Pair {
    /// Makes a pair with one link, and with all rights granted.
    pub(crate) fn new() -> Self {
        let rights = EVERYTHING.into_iter().fold(Rights::NONE, Rights::union);
        Self::build(loopback(), loopback(), rights)
    }

    pub(crate) fn build(client: EndpointBuilder, server: EndpointBuilder, rights: Rights) -> Self {
        let server = server.build().expect("a server on loopback");
        let client = client.build().expect("a client on loopback");
        let (buffer, region) = memory(&server, rights);
        let (accepted, connected) = connect(&client, &server, region.remote());
        let remote = RemoteRegion::from_bytes(&connected.peer_data()).expect("a remote region");
        let server = Side { connection: accepted, buffer, region, endpoint: server };
        let (buffer, region) = memory(&client, rights);
        let client = Side { connection: connected, buffer, region, endpoint: client };
        Self { client, server, remote }
    }
}

/// Returns a builder with one link and a silence budget of 3 s instead of 5 s.
pub(crate) fn loopback() -> EndpointBuilder {
    let engine = EngineConfig::default().silence_budget_ns(3_000_000_000);
    Endpoint::builder().bind("127.0.0.1:0").engine(engine)
}

pub(crate) fn memory(endpoint: &Endpoint, rights: Rights) -> (Arc<Buffer>, MemoryRegion) {
    let buffer = Buffer::new(BYTES);
    let region = endpoint.register(Arc::clone(&buffer), rights).expect("memory is registered");
    (buffer, region)
}

/// Connects `client` to `server`. The server announces `region`. Returns the server's connection
/// first.
pub(crate) fn connect(
    client: &Endpoint,
    server: &Endpoint,
    region: RemoteRegion,
) -> (Connection, Connection) {
    let listener = server.listen(7).expect("the service is free");
    let addresses = server.local_addresses().expect("not forked");
    thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            let request = listener.accept(Some(LIMIT)).expect("a request");
            request.accept(&region.to_bytes()).expect("the peer is there")
        });
        let options = ConnectOptions::new().service(7).limit(Some(LIMIT));
        let connected = client.connect_with(&*addresses, options).expect("the server accepts");
        (accepted.join().expect("the server accepts"), connected)
    })
}
