//! Polls completions, for a program that has thousands of operations in flight but no thread for
//! each of them.
//!
//! The example also shows three more things: how a server decides which clients it accepts, how it
//! limits the memory that they can access, and which counters an endpoint has.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use ethernot::{
    AccessFault, Buffer, Closed, Completion, CompletionKind, CompletionQueue, ConnectError,
    ConnectOptions, Connection, ConnectionRequest, Endpoint, Error, Grants, Operation,
    OperationError, OperationFlags, OperationHandle, OperationOptions, OperationStatus, Owner,
    PieceListError, RegionSlice, RemoteRegion, Request, Rights, Source, Terms,
};

const WRITES: u64 = 100;
const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

pub(crate) fn main() -> Result<(), Error> {
    let server = Endpoint::builder().bind("127.0.0.1:0").handles_max(100).build()?;
    // Peers of this domain can access the regions registered in it, and no other memory of the
    // endpoint.
    let domain = server.memory().allocate_domain();
    let memory = Buffer::new(4096);
    let rights = Rights::REMOTE_WRITE.union(Rights::LOCAL_WRITE);
    let region = server.register_in(domain, memory.clone(), rights)?;
    assert!(region.region().rights.contains(Rights::REMOTE_WRITE));
    let listener = server.listen(0)?;
    let address = server.local_addresses()?[0];
    let offered = region.remote().to_bytes();
    let accepting = thread::spawn(move || -> Result<Connection, Error> {
        let request: ConnectionRequest = loop {
            let request = listener.accept(LIMIT)?;
            if request.private_data() == b"me" {
                break request;
            }
            request.reject(b"say who you are")?;
        };
        println!("{} asks, {:?}", request.peer(), request.private_data());
        let options = ConnectOptions::new().private_data(offered).domain(domain);
        // Grant all rights of the regions, but permit only one pending read at a time.
        let grants = Grants::default().read_depth(Some(1)).rights(Some(rights));
        Ok(request.accept_with(options.terms(Terms::default().grants(grants)))?)
    });

    let client = Endpoint::bind("127.0.0.1:0")?;
    let refused = client.connect(address).map(drop);
    let Err(ConnectError::Closed { private_data, .. }) = refused else { panic!("{refused:?}") };
    assert_eq!(private_data, b"say who you are");
    let queue = Arc::new(CompletionQueue::new(256));
    let options = ConnectOptions::new().private_data(*b"me").queue(Arc::clone(&queue));
    let connection = client.connect_with(address, options)?;
    let accepted = accepting.join().expect("it does not panic")?;
    let remote = RemoteRegion::from_bytes(&connection.peer_data())?;
    assert!(queue.is_empty() && queue.capacity() >= 256);

    write_much(&client, &connection, &queue, &remote)?;
    assert_eq!(memory.load_u64(8 * (WRITES - 1)), WRITES - 1);
    send_in_pieces(&server, &accepted, &client, &connection)?;
    count(&client)?;
    be_refused(&connection, &remote)?;

    // When this call returns, all posted operations are complete, and the peers have confirmed that
    // their connections are closed.
    client.shutdown(LIMIT)?;
    assert!(accepted.wait_closed(LIMIT)?.0 != Closed::Here);
    Ok(())
}

/// Posts many writes, so that several writes share a frame, and polls until all are complete.
fn write_much(
    client: &Endpoint,
    connection: &Connection,
    queue: &CompletionQueue,
    remote: &RemoteRegion,
) -> Result<(), Error> {
    let owner: Owner = connection.owner();
    for number in 0..WRITES {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&number.to_ne_bytes());
        let (source, address) = (Source::Inline(bytes), remote.address + 8 * number);
        connection.post_later(&Operation {
            request: Request::Write { source, key: remote.key, address },
            length: 8,
            flags: OperationFlags { signalled: true, ..OperationFlags::default() },
            immediate: None,
            context: number,
            status: None,
        })?;
    }
    let mut next = 0;
    while next < WRITES {
        // A poll sends deferred frames and receives frames that have arrived.
        let Some(done): Option<Completion> = client.poll(queue)? else { continue };
        assert_eq!((done.owner, done.context, done.kind), (owner, next, CompletionKind::Write));
        assert_eq!(done.result, Ok(()));
        next += 1;
    }
    assert_eq!((queue.poll(), connection.poll()?), (None, None));
    Ok(())
}

/// Sends a message from two pieces of memory. The peer receives it in two pieces of memory.
fn send_in_pieces(
    server: &Endpoint,
    accepted: &Connection,
    client: &Endpoint,
    connection: &Connection,
) -> Result<(), Error> {
    let inbox = server.register(Buffer::new(64), Rights::LOCAL_WRITE)?;
    let pieces = [inbox.slice(..4)?, inbox.slice(32..)?];
    let many = [inbox.slice(..1)?; Connection::PIECES_MAX + 1];
    let too_many = PieceListError::TooMany(many.len());
    assert_eq!(accepted.post_receive_list(&many, 5), Err(too_many.into()));
    accepted.post_receive_list(&pieces, 5)?;
    let outbox = client.register(Buffer::new(64), Rights::NONE)?;
    let pieces: [RegionSlice<'_>; 2] = [outbox.slice(..8)?, outbox.slice(60..)?];
    assert!(pieces[1].offset() == 60 && !pieces[1].is_empty());
    let sent: OperationHandle = connection.send_list(&pieces, OperationOptions::SIGNALLED)?;
    let message = accepted.wait_completion(LIMIT)?;
    assert_eq!((message.context, message.bytes), (5, 12));
    sent.wait(LIMIT)?;
    assert!(sent.is_done() && matches!(sent.status(), OperationStatus::Done { .. }));
    connection.wait_completion(LIMIT)?;
    Ok(())
}

/// Prints the counters of an endpoint and its threads.
fn count(endpoint: &Endpoint) -> Result<(), Error> {
    let (shared, threads) = (endpoint.pool_use()?, endpoint.runtime_counters()?);
    println!("{} connections, {shared:?}, {threads:?}", endpoint.connection_count()?);
    println!("strangers: {:?}", endpoint.counters()?);
    Ok(())
}

/// Shows that a peer loses its connection if it accesses memory without the necessary right.
fn be_refused(connection: &Connection, remote: &RemoteRegion) -> Result<(), Error> {
    assert_eq!(connection.closed(), None);
    let add = connection.fetch_add(remote, 0, 1, OperationOptions::NOTIFY)?;
    let refused = OperationError::RemoteAccess(AccessFault::Right);
    assert_eq!(add.wait(LIMIT), Err(refused.into()));
    connection.wait_closed(LIMIT)?;
    Ok(())
}
