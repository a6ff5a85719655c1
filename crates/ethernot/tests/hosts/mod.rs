//! Endpoints on hosts that are threads with a network namespace.

use std::thread;
use std::time::Duration;

use ethernot::{
    Buffer, Connection, Endpoint, IntoPeers, Listener, MemoryRegion, OperationOptions,
    RemoteRegion, Rights,
};
use testbed::host::Host;

/// Limit of waits. It is long enough for a busy machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// A host on which endpoints are made.
pub(crate) trait EndpointHost {
    /// Makes an endpoint on this host. If that fails, returns the error text.
    fn endpoint(&self, links: &str) -> Result<Endpoint, String>;
}

impl EndpointHost for Host {
    fn endpoint(&self, links: &str) -> Result<Endpoint, String> {
        let links = links.to_owned();
        self.run(move || Endpoint::with_links(links).map_err(|error| error.to_string()))
    }
}

/// A server with memory to which peers may write.
pub(crate) struct Target {
    pub(crate) endpoint: Endpoint,
    pub(crate) memory: std::sync::Arc<Buffer>,
    region: MemoryRegion,
    listener: Option<Listener>,
}

impl Target {
    pub(crate) fn new(endpoint: Endpoint, bytes: u64) -> Self {
        let memory = Buffer::new(bytes);
        let region = endpoint.register(memory.clone(), Rights::REMOTE_WRITE).unwrap();
        let listener = Some(endpoint.listen(0).unwrap());
        Self { endpoint, memory, region, listener }
    }

    /// Connects `client`, an endpoint on `host`, to this target at the address `peer`. Writes into
    /// the target's memory and checks the bytes. Returns both ends of the connection.
    pub(crate) fn is_written_by(
        &mut self,
        host: &Host,
        client: &Endpoint,
        peer: impl IntoPeers + Send + 'static,
    ) -> [Connection; 2] {
        let listener = self.listener.take().unwrap();
        let offered = self.region.remote().to_bytes();
        let accepting = thread::spawn(move || {
            let request = listener.accept(Some(LIMIT)).expect("a request in time");
            (request.accept(&offered).unwrap(), listener)
        });
        let client = client.clone();
        let connection = host.run(move || client.connect(peer).expect("the target listens"));
        let (accepted, listener) = accepting.join().unwrap();
        self.listener = Some(listener);
        write(&connection, 0, b"hello");
        assert_eq!([self.memory.load_u8(0), self.memory.load_u8(4)], [b'h', b'o']);
        [connection, accepted]
    }
}

/// Writes into the region that the peer has offered, and waits until the write is complete.
pub(crate) fn write(connection: &Connection, offset: u64, bytes: &[u8]) {
    let remote = RemoteRegion::from_bytes(&connection.peer_data()).unwrap();
    let write = connection.write_bytes(bytes, &remote, offset, OperationOptions::NONE);
    write.unwrap().wait(Some(LIMIT)).unwrap();
}
