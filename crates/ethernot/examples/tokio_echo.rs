//! An echo service on tokio, with one task for each client. The clients are tasks as well. No call
//! blocks a thread.
//!
//! Futures of this crate run on any executor. If a wait was cancelled, for example by a timeout,
//! the task can wait again.
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

/// Accepts clients, and waits until all clients have closed their connections.
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

/// Returns every message to its sender, until the client closes the connection.
async fn echo(endpoint: Endpoint, accepting: Accepting) -> Result<(), Error> {
    let connection = accepting.await?;
    let inbox = endpoint.register(Buffer::new(MESSAGE_BYTES.into()), Rights::LOCAL_WRITE)?;
    loop {
        // Posting and awaiting both fail when the connection has ended.
        let posted: Result<ReceiveHandle, _> = connection.receive(&inbox, 0, MESSAGE_BYTES);
        let Ok(next) = posted else { return Ok(()) };
        let Ok(message): Result<Received, _> = next.await else { return Ok(()) };
        let mut bytes = [0; MESSAGE_BYTES as usize];
        let length = message.copy_to(&mut bytes).expect("the memory is registered");
        // The send continues after its handle is dropped. The client waits for the answer.
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
        // Sends the question and posts a receive for the answer, in one call.
        let answer =
            connection.call(question.as_bytes(), &answers, 0, MESSAGE_BYTES, none)?.await?;
        assert_eq!(answer.to_vec().expect("the memory is registered"), question.as_bytes());
    }

    // Send from registered memory, and await the completion. The completion is in the connection's
    // own queue or in a shared queue.
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
    // A program can also sleep on the endpoint's file descriptor. It then arms the descriptor
    // before each sleep, and may drain it after the sleep.
    endpoint.drain()?;
    connection.close(b"thanks")?;
    connection.ended().await?;
    Ok(())
}
