//! An echo service on tokio: one task for each client, and clients that are tasks, too. Nothing here blocks a thread.
//!
//! Futures of this crate run on any executor; what is given up, as by a timeout, can be asked for again.
#![forbid(unsafe_code)]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ethernot::{
    Accepting, Buffer, CompletionQueue, ConnectOptions, Connecting, Connection, Endpoint, Error,
    Listener, OperationOptions, ReceiveHandle, Received, Rights,
};
use tokio::time::timeout;

const CLIENTS: usize = 8;
const ROUNDS: usize = 100;
const MESSAGE_BYTES: u32 = 64;
const LIMIT: Duration = Duration::from_secs(20);

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let endpoint = Endpoint::bind("127.0.0.1:0")?;
    let (listener, address) = (endpoint.listen(0)?, endpoint.local_addresses()?[0]);
    let serving = tokio::spawn(serve(endpoint, listener));
    let clients: Vec<_> = (0..CLIENTS).map(|number| tokio::spawn(ask(address, number))).collect();
    for client in clients {
        timeout(LIMIT, client).await???;
    }
    timeout(LIMIT, serving).await???;
    println!("{CLIENTS} clients asked {ROUNDS} times each");
    Ok(())
}

/// Takes clients, and waits until all of them have gone.
async fn serve(endpoint: Endpoint, listener: Listener) -> Result<(), Error> {
    let mut tasks = Vec::new();
    for _ in 0..CLIENTS {
        let request = listener.next_request().await?;
        let accepting: Accepting = request.start_accept(ConnectOptions::new())?;
        tasks.push(tokio::spawn(echo(endpoint.clone(), accepting)));
    }
    for task in tasks {
        task.await.expect("it does not panic")?;
    }
    Ok(())
}

/// Sends every message back, until the client closes.
async fn echo(endpoint: Endpoint, accepting: Accepting) -> Result<(), Error> {
    let connection = accepting.await?;
    let inbox = endpoint.register(Buffer::new(MESSAGE_BYTES.into()), Rights::LOCAL_WRITE)?;
    loop {
        // Both fail when the connection has ended.
        let posted: Result<ReceiveHandle, _> = connection.receive(&inbox, 0, MESSAGE_BYTES);
        let Ok(next) = posted else { return Ok(()) };
        let Ok(message): Result<Received, _> = next.await else { return Ok(()) };
        let mut bytes = [0; MESSAGE_BYTES as usize];
        let length = message.copy_to(&mut bytes).expect("the memory is registered");
        // It goes on by itself; who asked waits for it.
        drop(connection.send_bytes(&bytes[..length], OperationOptions::NONE)?);
    }
}

async fn ask(server: SocketAddr, number: usize) -> Result<(), Error> {
    let endpoint = Endpoint::bind("127.0.0.1:0")?;
    let queue = Arc::new(CompletionQueue::new(64));
    let options = ConnectOptions::new().queue(Arc::clone(&queue));
    let connecting: Connecting = endpoint.start_connect(server, options)?;
    let connection: Connection = connecting.await?;
    let answers = endpoint.register(Buffer::new(MESSAGE_BYTES.into()), Rights::LOCAL_WRITE)?;
    let none = OperationOptions::NONE;
    for round in 0..ROUNDS {
        let question = format!("{number} in round {round}");
        // The question, and a receive for its answer, as one.
        let answer =
            connection.call(question.as_bytes(), &answers, 0, MESSAGE_BYTES, none)?.await?;
        assert_eq!(answer.to_vec().expect("the memory is registered"), question.as_bytes());
    }

    // From registered memory, with completions that are awaited: of the connection, or of a queue that several share.
    let text = Buffer::new(5);
    text.write(0, b"twice");
    let text = endpoint.register(text, Rights::NONE)?;
    let signalled = OperationOptions::SIGNALLED;
    for is_shared in [false, true] {
        let call = connection.call_from(&text, 0, 5, &answers, 0, MESSAGE_BYTES, signalled)?;
        let sent = if is_shared {
            endpoint.next_completion(&queue).await?
        } else {
            connection.next_completion().await?
        };
        assert_eq!((sent.result, call.await?.len()), (Ok(()), 5));
    }
    // A thread that sleeps on the descriptor of the endpoint instead arms it before, and may drain it afterwards.
    endpoint.drain()?;
    connection.close(b"thanks")?;
    connection.ended().await?;
    Ok(())
}
