//! Tests of the byte stream: every byte arrives once and in order, either end can end its
//! direction, back-pressure limits the writer, and programs that expect TCP can use the stream.

#[expect(dead_code, reason = "other tests use what this one does not")]
mod pair;

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice};
use std::pin::Pin;
use std::task::Poll;

use ethernot::{ByteStream, Closed, OperationOptions, Polling, PostError, Rights};
use futures_io::{AsyncRead as _, AsyncWrite as _};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use pair::{LIMIT, Pair, loopback};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Makes the streams of the client and the server over one connection. The streams keep the
/// endpoints alive.
fn streams(pair: Pair) -> [ByteStream; 2] {
    [pair.client, pair.server].map(|side| ByteStream::new(side.connection).expect("there is room"))
}

/// Runs a future on an executor of this thread, together with the tasks that it spawns.
fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let limited = async { tokio::time::timeout(LIMIT, future).await.expect("it ends") };
    runtime.expect("a thread").block_on(limited)
}

fn bytes(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|index| (index * 7 + index / 251 + seed) as u8).collect()
}

#[test]
fn a_vectored_write_is_sent_as_one_message_up_to_its_limit() {
    let [mut client, mut server] =
        streams(Pair::build(loopback(), loopback(), Rights::LOCAL_WRITE));
    assert!(tokio::io::AsyncWrite::is_write_vectored(&client));
    run(async {
        for lengths in [
            &[1, 2, 0, 3][..],
            &[60, 4],
            &[60, 5],
            &[0, 1000, 30_000],
            &[32_768, 1],
            &[32_000, 1000, 1000],
            &[100_000, 7],
        ] {
            let parts: Vec<_> =
                lengths.iter().enumerate().map(|(at, &length)| bytes(length, at)).collect();
            let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
            let sent = client.write_vectored(&slices).await.expect("it is open");
            let all = parts.concat();
            assert_eq!(sent, all.len().min(ByteStream::MESSAGE_BYTES));
            let mut received = vec![0; sent];
            // One read returns the whole message.
            assert_eq!(server.read(&mut received).await.expect("it is open"), sent);
            assert_eq!(received, all[..sent]);
        }
        assert_eq!(client.write_vectored(&[]).await.expect("it is open"), 0);
        assert_eq!(client.write_vectored(&[IoSlice::new(b"")]).await.expect("it is open"), 0);
    });
}

#[test]
fn every_byte_arrives_once_in_order_in_both_directions() {
    for polling in [Polling::default(), Polling::NEVER] {
        let side = || loopback().polling(polling);
        let [client, server] = streams(Pair::build(side(), side(), Rights::LOCAL_WRITE));
        run(async {
            let (mut from_server, mut to_server) = tokio::io::split(client);
            let (mut from_client, mut to_client) = tokio::io::split(server);
            let echo = tokio::spawn(async move {
                tokio::io::copy(&mut from_client, &mut to_client).await.expect("it is open");
                to_client.shutdown().await.expect("the peer is there");
            });
            // Use lengths near the limits of inline messages and of full messages.
            let parts: Vec<_> = [1, 64, 65, 1000, 32_767, 32_768, 32_769, 300_000]
                .into_iter()
                .cycle()
                .take(40)
                .enumerate()
                .map(|(seed, length)| bytes(length, seed))
                .collect();
            let expected = parts.concat();
            let writing = tokio::spawn(async move {
                for part in parts {
                    to_server.write_all(&part).await.expect("it is open");
                    to_server.flush().await.expect("it is open");
                }
                to_server.shutdown().await.expect("the peer is there");
                let late = to_server.write(b"late").await.expect_err("it was ended");
                assert_eq!(late.kind(), ErrorKind::BrokenPipe);
            });
            let mut came = Vec::new();
            from_server.read_to_end(&mut came).await.expect("it ends well");
            assert!(came == expected, "{} of {} bytes", came.len(), expected.len());
            writing.await.expect("no panic");
            echo.await.expect("no panic");
        });
    }
}

#[test]
fn a_writer_waits_for_a_reader_that_does_not_read() {
    let [mut client, mut server] = streams(Pair::new());
    run(async {
        let mut written = 0;
        let part = bytes(ByteStream::MESSAGE_BYTES, 0);
        loop {
            let sent = poll_fn(|context| match client.poll_send(context, &part) {
                Poll::Ready(sent) => Poll::Ready(Some(sent)),
                Poll::Pending if written >= 2 * ByteStream::MESSAGES => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            });
            let Some(sent) = sent.await else { break };
            assert_eq!(sent.expect("it is open"), part.len());
            written += 1;
        }
        assert_eq!(written, 2 * ByteStream::MESSAGES, "as many as both ends have places for");
        let reading = tokio::spawn(async move {
            let mut came = Vec::new();
            server.read_to_end(&mut came).await.map(|_| came)
        });
        client.shutdown().await.expect("the peer reads now");
        let came = reading.await.expect("no panic").expect("it ends well");
        assert!(came == part.repeat(written), "{} bytes", came.len());
    });
}

#[test]
fn a_stream_dropped_without_an_end_is_reset() {
    let [mut client, server] = streams(Pair::new());
    run(async {
        client.write_all(b"unread").await.expect("it is open");
        drop(server);
        let mut byte = [0];
        let error = client.read(&mut byte).await.expect_err("there was no end");
        assert_eq!(error.kind(), ErrorKind::ConnectionReset);
        // A receive may report the end of its connection before the connection does.
        let ended = client.connection().wait_closed(Some(LIMIT)).expect("it ends");
        assert_eq!(ended.0, Closed::ByPeer);
        let error = client.write(b"x").await.expect_err("it is over");
        assert_eq!(error.kind(), ErrorKind::BrokenPipe);
        client.shutdown().await.expect("shutdown after the end does nothing");
    });
}

#[test]
fn bytes_sent_before_the_end_are_readable_after_the_connection_has_ended() {
    let [mut client, mut server] = streams(Pair::new());
    run(async {
        client.write_all(b"the last words").await.expect("it is open");
        client.shutdown().await.expect("the peer has them");
        drop(client);
        let (reason, _) = server.connection().ended().await.expect("not forked");
        assert_eq!(reason, Closed::ByPeer);
        let mut came = String::new();
        server.read_to_string(&mut came).await.expect("it ends well");
        assert_eq!(came, "the last words");
    });
}

/// Covers peers that send messages but use no stream.
#[test]
fn invalid_messages_end_the_stream_or_the_connection() {
    let begin = || {
        let pair = Pair::build(loopback(), loopback(), Rights::LOCAL_WRITE);
        let stream = ByteStream::new(pair.server.connection).expect("there is room");
        (pair.client, pair.server.endpoint, stream)
    };
    let send = |connection: &ethernot::Connection, length: usize| {
        connection.send_message(&bytes(length, 0), OperationOptions::NONE).expect("it is posted")
    };
    let (client, _server, mut stream) = begin();
    let longer = send(&client.connection, ByteStream::MESSAGE_BYTES + 1);
    let error = run(stream.read(&mut [0; 8])).expect_err("it does not fit");
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    longer.wait(Some(LIMIT)).expect_err("it does not fit");
    // The stream ignores messages that arrive after the end of the stream.
    let (client, _server, mut stream) = begin();
    let sent = [5, 0, 7].map(|length| send(&client.connection, length));
    let mut got = Vec::new();
    run(stream.read_to_end(&mut got)).expect("the peer has ended it");
    assert_eq!(got, bytes(5, 0));
    assert_eq!(run(stream.read(&mut [0; 8])).expect("it has ended"), 0);
    for message in sent {
        message.wait(Some(LIMIT)).expect("it is delivered");
    }
}

#[test]
fn streams_wait_for_handles_held_by_others() {
    let few = loopback().handles_max(2 + ByteStream::MESSAGES as u32);
    let pair = Pair::build(few, loopback(), Rights::REMOTE_ATOMIC | Rights::LOCAL_WRITE);
    let (_accepted, connected) =
        pair::connect(&pair.client.endpoint, &pair.server.endpoint, pair.remote);
    let remote = pair.remote;
    let [mut client, mut server] = [pair.client.connection, pair.server.connection]
        .map(|connection| ByteStream::new(connection).expect("there is room"));
    run(async {
        let mut held = Vec::new();
        let refused = loop {
            match connected.fetch_add(&remote, 0, 1, OperationOptions::NONE) {
                Ok(handle) => held.push(handle),
                Err(refused) => break refused,
            }
        };
        assert_eq!((refused, held.len()), (PostError::NoHandleLeft, 2));
        let sent = poll_fn(|context| match client.poll_send(context, b"x") {
            Poll::Ready(sent) => Poll::Ready(Some(sent)),
            Poll::Pending => Poll::Ready(None),
        });
        assert!(sent.await.is_none(), "no handle is left");
        drop(held);
        client.write_all(b"x").await.expect("there is room");
        assert_eq!(server.read_u8().await.expect("it is open"), b'x');
    });
}

#[test]
fn the_traits_of_the_futures_crate_read_write_and_close_a_stream() {
    let [mut client, mut server] = streams(Pair::new());
    run(async {
        let sent = poll_fn(|context| Pin::new(&mut client).poll_write(context, b"hello"));
        assert_eq!(sent.await.expect("it is open"), 5);
        poll_fn(|context| Pin::new(&mut client).poll_flush(context)).await.expect("it is open");
        poll_fn(|context| Pin::new(&mut client).poll_close(context)).await.expect("it is open");
        let mut into = [0; 8];
        for expected in [5, 0] {
            let came = poll_fn(|context| Pin::new(&mut server).poll_read(context, &mut into));
            assert_eq!(came.await.expect("it is open"), expected);
        }
        assert_eq!(into.get(..5), Some(&b"hello"[..]));
    });
}

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    Ok(Response::new(Full::new(body)))
}

#[test]
fn hyper_serves_requests_of_any_length_one_after_the_other() {
    let [client, server] = streams(Pair::new());
    run(async {
        let serving = tokio::spawn(
            hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(server), hyper::service::service_fn(echo)),
        );
        let (mut sender, connection) =
            hyper::client::conn::http1::handshake(TokioIo::new(client)).await.expect("it is open");
        let connecting = tokio::spawn(connection);
        for (seed, length) in [0, 1, 100, 40_000, 3_000_000].into_iter().enumerate() {
            let body = Bytes::from(bytes(length, seed));
            let request =
                Request::post("/").header("host", "example").body(Full::new(body.clone()));
            sender.ready().await.expect("it is open");
            let answer = sender.send_request(request.expect("a request")).await.expect("an answer");
            assert_eq!(answer.status(), 200);
            let came = answer.into_body().collect().await.expect("a body").to_bytes();
            assert!(came == body, "{} of {length} bytes", came.len());
        }
        drop(sender);
        connecting.await.expect("no panic").expect("it ends well");
        serving.await.expect("no panic").expect("it ends well");
    });
}
