//! Two links and a failover: a connection uses both links at the same time, continues after one
//! link is cut, and uses a link that is added later.
#![forbid(unsafe_code)]

use std::thread;
use std::time::Duration;

use ethernot::{
    Buffer, Connection, Endpoint, Error, LinkId, MemoryRegion, OperationOptions, RemoteRegion,
    Rights,
};

const BYTES: u64 = 1 << 20;
const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

pub(crate) fn main() -> Result<(), Error> {
    let server = Endpoint::builder().bind("127.0.0.1:0").bind("127.0.0.2:0").build()?;
    let memory = Buffer::new(BYTES);
    let region = server.register(memory.clone(), Rights::REMOTE_WRITE)?;
    let (listener, addresses) = (server.listen(0)?, server.local_addresses()?);
    let offered = region.remote().to_bytes();
    let accepting = thread::spawn(move || {
        let request = listener.accept(LIMIT)?;
        Ok::<_, Error>(request.accept(&offered)?)
    });

    // The client needs only one address of the server, because the server announces its other
    // addresses.
    let client = Endpoint::builder().bind("127.0.0.1:0").bind("127.0.0.2:0").build()?;
    let connection = client.connect(&*addresses)?;
    let accepted = accepting.join().expect("it does not panic")?;
    let source = Buffer::new(BYTES);
    let local = client.register(source.clone(), Rights::LOCAL_WRITE)?;
    let remote = RemoteRegion::from_bytes(&connection.peer_data())?;
    let write = |byte: u8| -> Result<(), Error> {
        source.write(0, &vec![byte; BYTES as usize]);
        write_all(&connection, &local, &remote)?;
        let mut bytes = vec![0; BYTES as usize];
        memory.read(0, &mut bytes);
        assert!(bytes.iter().all(|found| *found == byte), "bytes differ");
        Ok(())
    };

    write(1)?;
    println!("{} links", links(&connection)?);
    // Remove one link of the server. The client gets no notification, like after a cut cable.
    // Frames in flight on this link are retransmitted over the other link. No operation fails, and
    // no operation is performed twice.
    assert!(server.remove_link(LinkId(1))?);
    for byte in 2..10 {
        write(byte)?;
    }
    println!("after a cut all goes over the other link");

    // Add a link while the connection is in use. (A link that is named by its interface returns
    // automatically.)
    let link = server.add_link("127.0.0.3:0")?;
    let (_, address) = server.links()?.into_iter().find(|(id, _)| *id == link).expect("it is new");
    connection.add_link(LinkId(1), address)?;
    write(10)?;
    connection.close(b"")?;
    accepted.wait_closed(LIMIT)?;
    Ok(())
}

fn write_all(
    connection: &Connection,
    local: &MemoryRegion,
    remote: &RemoteRegion,
) -> Result<(), Error> {
    let write = connection.write(local, 0, remote, 0, BYTES, OperationOptions::NONE)?;
    write.wait(LIMIT)?;
    Ok(())
}

/// Returns the number of links of the connection, including those that do not carry data.
fn links(connection: &Connection) -> Result<usize, Error> {
    Ok(connection.info()?.map_or(0, |info| info.paths.len()))
}
