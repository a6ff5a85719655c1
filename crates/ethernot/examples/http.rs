//! HTTP over a byte stream: hyper's client and server run over remote memory instead of TCP. Other
//! libraries that accept tokio's `AsyncRead` and `AsyncWrite`, such as tonic and rustls, work in
//! the same way.
#![forbid(unsafe_code)]

use std::error::Error;

use ethernot::{ByteStream, ConnectOptions, Endpoint, Listener};
use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;

#[tokio::main(flavor = "current_thread")]
pub(crate) async fn main() -> Result<(), Box<dyn Error>> {
    let server = Endpoint::bind("127.0.0.1:0")?;
    let (listener, address) = (server.listen(80)?, server.local_addresses()?[0]);
    let serving = tokio::spawn(serve(listener));

    let client = Endpoint::bind("127.0.0.1:0")?;
    let options = ConnectOptions::new().service(80);
    let stream = ByteStream::new(client.start_connect(address, options)?.await?)?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    let connecting = tokio::spawn(connection);
    let request =
        Request::post("/").header("host", "example").body(Full::new(Bytes::from("hello")))?;
    let answer = sender.send_request(request).await?;
    let (status, body) = (answer.status(), answer.into_body().collect().await?.to_bytes());
    println!("{status}: {}", String::from_utf8_lossy(&body));
    drop(sender);
    connecting.await??;
    serving.await?.map_err(|error| error.to_string())?;
    Ok(())
}

/// Serves one client.
async fn serve(listener: Listener) -> Result<(), Box<dyn Error + Send + Sync>> {
    let request = listener.next_request().await?;
    let stream = ByteStream::new(request.start_accept(ConnectOptions::new())?.await?)?;
    let service = hyper::service::service_fn(shout);
    hyper::server::conn::http1::Builder::new()
        .serve_connection(TokioIo::new(stream), service)
        .await?;
    Ok(())
}

async fn shout(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, hyper::Error> {
    let body = request.into_body().collect().await?.to_bytes();
    Ok(Response::new(Full::from(body.to_ascii_uppercase())))
}
