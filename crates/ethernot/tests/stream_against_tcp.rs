//! Runs hyper and tonic over the byte stream between two hosts, and compares their speed with TCP.
#![forbid(unsafe_code)]
#![expect(clippy::disallowed_methods, reason = "measures time")]

#[expect(dead_code, reason = "other tests use what this one does not")]
mod hosts;

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::{TcpListener, TcpStream};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::thread;
use std::time::Instant;

use bytes::{Buf as _, BufMut as _, Bytes};
use ethernot::{ByteStream, ConnectOptions, Endpoint};
use hosts::LIMIT;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::{http1, http2};
use hyper::http::uri::{PathAndQuery, Uri};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use testbed::host::Host;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

#[test]
fn hyper_and_tonic_run_over_the_stream_between_hosts() {
    let Some(hosts) = hosts() else { return };
    for protocol in [Protocol::Http, Protocol::Grpc] {
        let streams = connect(&hosts, protocol);
        run(async {
            let mut callers = streams.into_callers(protocol).await;
            for length in [0, 1, 1000, 100_000, 3 << 20] {
                let body: Bytes = (0..length).map(|index| (index * 7 + length) as u8).collect();
                for caller in &mut callers {
                    assert!(
                        caller.call(body.clone()).await == body,
                        "{protocol:?}, {length} bytes"
                    );
                }
            }
        });
    }
}

#[test]
#[ignore = "slow: run by `./x acceptance faults`; measures"]
fn calls_over_the_stream_against_tcp() {
    let Some(hosts) = hosts() else { return };
    for (protocol, name) in [(Protocol::Http, "hyper"), (Protocol::Grpc, "tonic")] {
        let streams = connect(&hosts, protocol);
        let measured = run(async {
            let mut callers = streams.into_callers(protocol).await;
            let mut measured = Vec::new();
            for (length, calls) in [(64, 2000), (1 << 20, 40)] {
                let body = Bytes::from(vec![7; length]);
                let mut ratios = Vec::new();
                for _ in 0..TURNS {
                    let mut took = Vec::new();
                    for caller in &mut callers {
                        let began = Instant::now();
                        for _ in 0..calls {
                            assert_eq!(caller.call(body.clone()).await.len(), length);
                        }
                        took.push(began.elapsed());
                    }
                    ratios.push(took[0].as_secs_f64() / took[1].as_secs_f64());
                }
                ratios.sort_by(f64::total_cmp);
                measured.push((length, ratios));
            }
            measured
        });
        for (length, ratios) in measured {
            println!("{name}, {length} B: {:.3} to {:.3} of TCP", ratios[0], ratios[TURNS - 1]);
            let median = ratios[TURNS / 2];
            println!(
                "figure: {name} over the stream, {length} B both ways, time against TCP: {median:.3}"
            );
        }
    }
}

/// Number of measurements for each transport. The two transports alternate.
const TURNS: usize = 7;

#[derive(Clone, Copy, Debug)]
enum Protocol {
    Http,
    Grpc,
}

/// Makes two hosts with IP addresses, and a link between the hosts. Returns `None` if this process
/// lacks the permission to make hosts.
fn hosts() -> Option<[Host; 2]> {
    let hosts = Host::pair()?;
    for (host, address) in hosts.iter().zip(["10.99.0.1/24", "10.99.0.2/24"]) {
        host.ip(&format!("addr add {address} dev edge0"));
    }
    Some(hosts)
}

/// The client's ends of the streams to both servers.
struct Streams {
    edge: ByteStream,
    tcp: TcpStream,
}

/// Connects the second host to servers on the first host. The servers run until their streams are
/// closed.
fn connect([server, client]: &[Host; 2], protocol: Protocol) -> Streams {
    let (listener, address) = server.run(|| {
        let endpoint = Endpoint::bind("10.99.0.1:0").expect("the address is there");
        let address = endpoint.local_addresses().expect("not forked")[0];
        (endpoint.listen(80).expect("nothing listens there"), address)
    });
    let tcp_listener = server.run(|| TcpListener::bind("10.99.0.1:0").expect("it is there"));
    let tcp_address = tcp_listener.local_addr().expect("it is bound");
    thread::spawn(move || {
        run(async {
            let request = listener.next_request().await.expect("a request");
            let accepting = request.start_accept(ConnectOptions::new()).expect("not forked");
            let connection = accepting.await.expect("the client is there");
            serve(protocol, ByteStream::new(connection).expect("there is room")).await;
        });
    });
    thread::spawn(move || {
        let (stream, _) = tcp_listener.accept().expect("a client");
        run(async { serve(protocol, of_tokio(stream)).await });
    });
    let endpoint = client.run(|| Endpoint::bind("10.99.0.2:0").expect("the address is there"));
    let options = ConnectOptions::new().service(80).limit(Some(LIMIT));
    let connection = endpoint.connect_with(address, options).expect("the server listens");
    let edge = ByteStream::new(connection).expect("there is room");
    let tcp = client.run(move || TcpStream::connect(tcp_address).expect("the server listens"));
    Streams { edge, tcp }
}

impl Streams {
    async fn into_callers(self, protocol: Protocol) -> [Caller; 2] {
        let edge = Caller::new(protocol, self.edge).await;
        [edge, Caller::new(protocol, of_tokio(self.tcp)).await]
    }
}

fn of_tokio(stream: TcpStream) -> tokio::net::TcpStream {
    stream.set_nodelay(true).expect("it is TCP");
    stream.set_nonblocking(true).expect("it can be");
    tokio::net::TcpStream::from_std(stream).expect("within an executor")
}

/// Runs a future on an executor of this thread, together with the tasks that it spawns.
fn run<F: Future>(future: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.expect("a thread").block_on(future)
}

/// Serves one client until the client closes the stream. Each answer has the same bytes as its
/// question.
async fn serve(protocol: Protocol, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
    let stream = TokioIo::new(stream);
    let served = match protocol {
        Protocol::Http => {
            let serving = hyper::server::conn::http1::Builder::new();
            serving.serve_connection(stream, service_fn(echo)).await
        }
        Protocol::Grpc => {
            let serving = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            let call = |request: Request<Incoming>| async {
                let answer = tonic::server::Grpc::new(BytesCodec).unary(Echo, request).await;
                Ok::<_, Infallible>(answer)
            };
            serving.serve_connection(stream, service_fn(call)).await
        }
    };
    // Ignore the result: a cancelled connection may end with an error.
    drop(served);
}

async fn echo(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    Ok(Response::new(Full::from(body)))
}

/// A client that sends requests to a server.
enum Caller {
    Http(http1::SendRequest<Full<Bytes>>),
    Grpc(tonic::client::Grpc<Sender>),
}

impl Caller {
    async fn new(
        protocol: Protocol,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Self {
        let stream = TokioIo::new(stream);
        match protocol {
            Protocol::Http => {
                let (sender, connection) = http1::handshake(stream).await.expect("it is open");
                tokio::spawn(connection);
                Self::Http(sender)
            }
            Protocol::Grpc => {
                let executor = TokioExecutor::new();
                let made = http2::handshake(executor, stream).await;
                let (sender, connection) = made.expect("it is open");
                tokio::spawn(connection);
                let origin = Uri::from_static("http://example");
                Self::Grpc(tonic::client::Grpc::with_origin(Sender(sender), origin))
            }
        }
    }

    async fn call(&mut self, body: Bytes) -> Bytes {
        match self {
            Self::Http(sender) => {
                let request = Request::post("/").header("host", "example").body(Full::new(body));
                sender.ready().await.expect("the server is there");
                let answer = sender.send_request(request.expect("a request")).await;
                let answer = answer.expect("an answer").into_body().collect().await;
                answer.expect("all of the answer").to_bytes()
            }
            Self::Grpc(grpc) => {
                grpc.ready().await.expect("the server is there");
                let path = PathAndQuery::from_static("/example.Echo/Echo");
                let answer = grpc.unary(tonic::Request::new(body), path, BytesCodec).await;
                answer.expect("an answer").into_inner()
            }
        }
    }
}

/// A hyper connection in the form that tonic accepts.
struct Sender(http2::SendRequest<tonic::body::Body>);

impl tower_service::Service<Request<tonic::body::Body>> for Sender {
    type Response = Response<Incoming>;
    type Error = hyper::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Self::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, request: Request<tonic::body::Body>) -> Self::Future {
        Box::pin(self.0.send_request(request))
    }
}

/// The method that the server offers.
struct Echo;

impl tower_service::Service<tonic::Request<Bytes>> for Echo {
    type Response = tonic::Response<Bytes>;
    type Error = Status;
    type Future = Ready<Result<Self::Response, Self::Error>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: tonic::Request<Bytes>) -> Self::Future {
        ready(Ok(tonic::Response::new(request.into_inner())))
    }
}

/// A codec whose messages are plain bytes.
#[derive(Clone, Copy)]
struct BytesCodec;

impl Codec for BytesCodec {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self::Encoder {
        *self
    }

    fn decoder(&mut self) -> Self::Decoder {
        *self
    }
}

impl Encoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put(item);
        Ok(())
    }
}

impl Decoder for BytesCodec {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}
