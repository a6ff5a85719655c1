// The beginning of the code in the guides: a server that offers 64 KiB of memory, a client, and a
// connection between them.

use std::{sync::Arc, thread, time::Duration};

use ethernot::{Buffer, Connection, Endpoint, Error, MemoryRegion, RemoteRegion, Rights};

pub const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

pub struct Server {
    pub endpoint: Endpoint,
    pub memory: Arc<Buffer>,
    pub region: MemoryRegion,
    pub connection: Connection,
}

pub struct Client {
    pub endpoint: Endpoint,
    pub connection: Connection,
    pub remote: RemoteRegion,
}

pub fn pair() -> Result<(Server, Client), Error> {
    let server = Endpoint::bind("127.0.0.1:0")?;
    let memory = Buffer::new(1 << 16);
    let region = server.register(Arc::clone(&memory), Rights::ALL)?;
    let listener = server.listen(0)?;
    let (address, offered) = (server.local_addresses()?[0], region.remote().to_bytes());
    let accepting =
        thread::spawn(move || Ok::<_, Error>(listener.accept(LIMIT)?.accept(&offered)?));
    let endpoint = Endpoint::bind("127.0.0.1:0")?;
    let connection = endpoint.connect(address)?;
    let remote = RemoteRegion::from_bytes(&connection.peer_data())?;
    let accepted = accepting.join().expect("it does not panic")?;
    let server = Server { endpoint: server, memory, region, connection: accepted };
    Ok((server, Client { endpoint, connection, remote }))
}
