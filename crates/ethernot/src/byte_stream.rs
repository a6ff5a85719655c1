//! A byte stream over a connection, for programs that expect a TCP stream.

use std::collections::VecDeque;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use mem::{Buffer, Rights};
use runtime::{ChangedBy, Enlisted, SpinBudget};

use crate::connection::{Connection, OperationOptions};
use crate::error::{Error, OperationFailure, PostError};
use crate::handle::OperationHandle;
use crate::receive::ReceiveHandle;
use crate::region::MemoryRegion;
use crate::room::unless_busy;

/// A byte stream in both directions over a connection. The stream owns the connection. Each end of
/// the connection creates its own stream.
///
/// With the feature `tokio` the stream implements `AsyncRead` and `AsyncWrite` of tokio. With the
/// feature `futures` the stream implements the traits of the same names of the crate `futures-io`.
/// hyper, tonic and rustls can then use the stream. Without these features, use
/// [`ByteStream::poll_receive`], [`ByteStream::poll_send`] and [`ByteStream::poll_end`].
///
/// The stream copies bytes into messages of at most [`ByteStream::MESSAGE_BYTES`]. In each
/// direction, at most [`ByteStream::MESSAGES`] messages can be in flight. The stream registers the
/// memory for these messages once. If the peer does not read, its receives run out and the writer
/// blocks, as when a TCP window is closed.
///
/// An empty message ends one direction of the stream. [`ByteStream::poll_end`] sends this message
/// (`shutdown` of tokio, `close` of futures). The other direction stays open.
///
/// If a stream is dropped before `poll_end`, the connection is reset, and bytes that the peer has
/// not received are lost. A TCP socket, in contrast, still sends such bytes after the drop.
///
/// ```
/// # #[cfg(feature = "tokio")]
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # use ethernot::{ByteStream, ConnectOptions, Endpoint};
/// use tokio::io::{AsyncReadExt, AsyncWriteExt};
/// # tokio::runtime::Builder::new_current_thread().build()?.block_on(async {
/// # let server = Endpoint::bind("127.0.0.1:0")?;
/// # let (listener, address) = (server.listen(0)?, server.local_addresses()?[0]);
///
/// let serving = tokio::spawn(async move {
///     let request = listener.next_request().await?;
///     let mut stream = ByteStream::new(request.start_accept(ConnectOptions::new())?.await?)?;
///     let mut question = String::new();
///     stream.read_to_string(&mut question).await?;
///     stream.write_all(question.to_uppercase().as_bytes()).await?;
///     stream.shutdown().await?;
///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// });
///
/// let client = Endpoint::bind("127.0.0.1:0")?;
/// let connection = client.start_connect(address, ConnectOptions::new())?.await?;
/// let mut stream = ByteStream::new(connection)?;
/// stream.write_all(b"hello").await?;
/// stream.shutdown().await?;
/// let mut answer = String::new();
/// stream.read_to_string(&mut answer).await?;
/// assert_eq!(answer, "HELLO");
/// # serving.await?.map_err(|error| error.to_string())?;
/// # Ok::<_, Box<dyn std::error::Error>>(())
/// # })
/// # }
/// # #[cfg(not(feature = "tokio"))]
/// # fn main() {}
/// ```
#[derive(Debug)]
pub struct ByteStream {
    connection: Connection,
    sending: Sending,
    receiving: Receiving,
}

/// The sending direction.
#[derive(Debug)]
struct Sending {
    buffer: Arc<Buffer>,
    region: MemoryRegion,
    /// Messages in flight, oldest first. They complete in this order. When a message completes, its
    /// place in the buffer is free again.
    posted: VecDeque<OperationHandle>,
    /// Index of the place in the buffer for the next message.
    place: u64,
    /// Whether the end of the stream was sent.
    has_ended: bool,
    room: Room,
}

/// The receiving direction.
#[derive(Debug)]
struct Receiving {
    buffer: Arc<Buffer>,
    region: MemoryRegion,
    posted: VecDeque<ReceiveHandle>,
    /// Indices of the places whose receives are not posted yet, because the connection had no room
    /// for the receives.
    unposted: VecDeque<u64>,
    /// The message that has been received but not completely read.
    unread: Option<Unread>,
    has_ended: bool,
    room: Room,
}

/// A message that has not been read completely.
#[derive(Debug)]
struct Unread {
    /// Index of the place in the buffer that contains the message.
    place: u64,
    taken: u64,
    length: u64,
}

/// A wait until the endpoint can store the state of another operation.
#[derive(Debug, Default)]
struct Room {
    spin_budget: SpinBudget,
    enlisted: Option<Enlisted>,
}

impl ByteStream {
    /// Largest number of bytes in one message.
    pub const MESSAGE_BYTES: usize = 32 * 1024;

    /// Largest number of messages in flight in each direction.
    pub const MESSAGES: usize = 8;

    /// Makes a stream from a connection that has not been used. Registers 512 KiB of memory.
    ///
    /// # Errors
    /// Returns [`Error::Register`] if the memory cannot be registered. Returns [`Error::Post`] if
    /// the endpoint has no handles left for the receives, or if the connection has ended.
    pub fn new(connection: Connection) -> Result<Self, Error> {
        let endpoint = connection.endpoint();
        let register = |rights| {
            let buffer = Buffer::new((Self::MESSAGES * Self::MESSAGE_BYTES) as u64);
            let region = endpoint.register(Arc::clone(&buffer), rights)?;
            Ok::<_, Error>((buffer, region))
        };
        let (buffer, region) = register(Rights::NONE)?;
        let posted = VecDeque::with_capacity(Self::MESSAGES);
        let (has_ended, room) = (false, Room::default());
        let sending = Sending { buffer, region, posted, place: 0, has_ended, room };
        let (buffer, region) = register(Rights::LOCAL_WRITE)?;
        let mut receiving = Receiving {
            buffer,
            region,
            posted: VecDeque::with_capacity(Self::MESSAGES),
            unposted: (0..Self::MESSAGES as u64).collect(),
            unread: None,
            has_ended,
            room: Room::default(),
        };
        receiving.post(&connection)?;
        Ok(Self { connection, sending, receiving })
    }

    /// Returns the connection.
    pub const fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Reads received bytes into `bytes`. Returns the number of bytes read; 0 at the end of the
    /// stream.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::ConnectionReset`] if the connection has ended before the peer ended
    /// the stream.
    pub fn poll_receive(
        &mut self,
        context: &mut Context<'_>,
        bytes: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        if bytes.is_empty() {
            return Poll::Ready(Ok(0));
        }
        let Self { connection, receiving, .. } = self;
        loop {
            // Post receives before reading, because the peer may wait for receives. Ignore an
            // error: if no receive is posted, the code below posts again.
            let _refused = receiving.post(connection);
            if let Some(length) = receiving.read(bytes) {
                return Poll::Ready(Ok(length));
            }
            if receiving.has_ended {
                return Poll::Ready(Ok(0));
            }
            if receiving.posted.is_empty() {
                ready!(receiving.poll_room(connection, context))?;
            }
            ready!(receiving.poll_message(context))?;
        }
    }

    /// Sends bytes from the start of `bytes`, at most [`ByteStream::MESSAGE_BYTES`]. Returns the
    /// number of bytes that the stream has accepted.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::BrokenPipe`] if this side ended the stream or the connection has
    /// ended.
    pub fn poll_send(
        &mut self,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send_vectored(context, &[IoSlice::new(bytes)])
    }

    /// Sends bytes of several slices like [`ByteStream::poll_send`], in one message. Does not send
    /// bytes that exceed the largest message.
    ///
    /// # Errors
    /// Returns the errors of [`ByteStream::poll_send`].
    pub fn poll_send_vectored(
        &mut self,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Self { connection, sending, .. } = self;
        if sending.has_ended {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        // Do not send an empty message, because it would end the stream.
        if parts.iter().all(|part| part.is_empty()) {
            return Poll::Ready(Ok(0));
        }
        ready!(sending.poll_places(context, Self::MESSAGES - 1))?;
        sending.poll_post(connection, context, parts).map_err(pipe)
    }

    /// Ends the stream. After this call, this end cannot send. The result is ready when the peer
    /// has received all bytes.
    ///
    /// # Errors
    /// Returns [`io::ErrorKind::BrokenPipe`] if the connection ends before the peer has received
    /// all bytes. If the peer has closed the connection, there is no error, because the peer does
    /// not want the remaining bytes.
    pub fn poll_end(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { connection, sending, .. } = self;
        let outcome = ready!(sending.poll_end(connection, context));
        let is_closed_by_peer = connection.closed() == Some(engine::Closed::ByPeer);
        Poll::Ready(if is_closed_by_peer { Ok(()) } else { outcome })
    }
}

impl Drop for ByteStream {
    fn drop(&mut self) {
        // Close the connection now. Otherwise the handles of the posted messages and receives,
        // which are dropped after this function, would keep it open. In a forked child, this call
        // fails and changes nothing, because the connection belongs to the parent.
        let _forked = self.connection.close(&[]);
    }
}

impl Sending {
    /// Waits until no more than `left` messages are in flight.
    fn poll_places(&mut self, context: &mut Context<'_>, left: usize) -> Poll<io::Result<()>> {
        let mut in_flight = self.posted.len();
        while let Some(oldest) = self.posted.front_mut() {
            if in_flight <= left && !oldest.is_done() {
                break;
            }
            let ended = ready!(Pin::new(oldest).poll(context));
            self.posted.pop_front();
            in_flight -= 1;
            ended.map_err(broken)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Posts a message with as many bytes of `parts` as fit into a message. The caller ensures that
    /// a place in the buffer is free. Returns the number of bytes in the message.
    fn poll_post(
        &mut self,
        connection: &Connection,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<Result<usize, PostError>> {
        let at = self.place * ByteStream::MESSAGE_BYTES as u64;
        let mut inline = [0; semantics::INLINE_BYTES_MAX];
        let is_small = parts.iter().map(|part| part.len()).sum::<usize>() <= inline.len();
        let mut length = 0;
        for part in parts {
            let left = ByteStream::MESSAGE_BYTES - length;
            let part = part.get(..left).unwrap_or(part);
            match inline.get_mut(length..length + part.len()).filter(|_| is_small) {
                Some(place) => place.copy_from_slice(part),
                None => self.buffer.write(at + length as u64, part),
            }
            length += part.len();
        }
        let none = OperationOptions::NONE;
        let post = || match inline.get(..length).filter(|_| is_small) {
            Some(bytes) => connection.send_bytes(bytes, none),
            None => connection.send(&self.region, at, length as u64, none),
        };
        let posted = ready!(self.room.poll(connection, context, post))?;
        self.posted.push_back(posted);
        self.place = (self.place + 1) % ByteStream::MESSAGES as u64;
        Poll::Ready(Ok(length))
    }

    fn poll_end(
        &mut self,
        connection: &Connection,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.has_ended {
            ready!(self.poll_places(context, ByteStream::MESSAGES - 1))?;
            ready!(self.poll_post(connection, context, &[])).map_err(pipe)?;
            self.has_ended = true;
        }
        self.poll_places(context, 0)
    }
}

impl Receiving {
    /// Posts all receives that are not posted yet. If the connection has no room, the remaining
    /// receives stay unposted.
    fn post(&mut self, connection: &Connection) -> Result<(), PostError> {
        while let Some(&place) = self.unposted.front() {
            let at = place * ByteStream::MESSAGE_BYTES as u64;
            let posted = connection.receive(&self.region, at, ByteStream::MESSAGE_BYTES as u32)?;
            self.posted.push_back(posted);
            self.unposted.pop_front();
        }
        Ok(())
    }

    /// Copies unread bytes of the current message. Returns the number of copied bytes, or `None` if
    /// the program has read all messages that have arrived.
    fn read(&mut self, bytes: &mut [u8]) -> Option<usize> {
        let unread = self.unread.as_mut()?;
        let length = (unread.length - unread.taken).min(bytes.len() as u64);
        let at = unread.place * ByteStream::MESSAGE_BYTES as u64 + unread.taken;
        self.buffer.read(at, bytes.get_mut(..length as usize)?);
        unread.taken += length;
        if unread.taken == unread.length {
            self.unposted.push_back(unread.place);
            self.unread = None;
        }
        Some(length as usize)
    }

    /// Waits for the next message of the peer.
    fn poll_message(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(next) = self.posted.front_mut() else {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        };
        let message = ready!(Pin::new(next).poll(context)).map_err(gone)?;
        self.posted.pop_front();
        if message.is_empty() {
            self.has_ended = true;
        } else {
            let place = message.offset() / ByteStream::MESSAGE_BYTES as u64;
            self.unread = Some(Unread { place, taken: 0, length: message.len() as u64 });
        }
        Poll::Ready(Ok(()))
    }

    /// Waits until at least one receive is posted.
    fn poll_room(
        &mut self,
        connection: &Connection,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        let mut room = std::mem::take(&mut self.room);
        let posted = room.poll(connection, context, || match self.post(connection) {
            // One posted receive is enough to continue.
            Err(_) if !self.posted.is_empty() => Ok(()),
            posted => posted,
        });
        self.room = room;
        posted.map_err(reset)
    }
}

impl Room {
    /// Repeats `post` until the connection has room for the operation.
    fn poll<R>(
        &mut self,
        connection: &Connection,
        context: &Context<'_>,
        mut post: impl FnMut() -> Result<R, PostError>,
    ) -> Poll<Result<R, PostError>> {
        let Self { spin_budget, enlisted } = self;
        let runtime = &connection.inner().endpoint.runtime;
        let posted = ready!(runtime.poll_wait(
            context,
            spin_budget,
            || unless_busy(post()),
            |waker| {
                *enlisted = Some(runtime.enlist_looker(waker, ChangedBy::Application));
            }
        ));
        *self = Self::default();
        Poll::Ready(match posted {
            Ok(posted) => posted,
            Err(forked) => Err(PostError::Submit(forked.into())),
        })
    }
}

/// Returns the error for a message that the peer did not receive.
fn broken(failure: OperationFailure) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, failure)
}

/// Returns the error for a message that could not be posted.
fn pipe(error: PostError) -> io::Error {
    io::Error::new(io::ErrorKind::BrokenPipe, error)
}

/// Returns the error for a receive that no message will consume.
fn gone(failure: OperationFailure) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, failure)
}

/// Returns the error for a receive that could not be posted.
fn reset(error: PostError) -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionReset, error)
}

#[cfg(feature = "tokio")]
impl tokio::io::AsyncRead for ByteStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &mut tokio::io::ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let length = ready!(self.poll_receive(context, bytes.initialize_unfilled()))?;
        bytes.advance(length);
        Poll::Ready(Ok(()))
    }
}

#[cfg(feature = "tokio")]
impl tokio::io::AsyncWrite for ByteStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send_vectored(context, parts)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// Returns at once, because each write posts its message immediately.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_end(context)
    }
}

#[cfg(feature = "futures")]
impl futures_io::AsyncRead for ByteStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &mut [u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_receive(context, bytes)
    }
}

#[cfg(feature = "futures")]
impl futures_io::AsyncWrite for ByteStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_send(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.poll_send_vectored(context, parts)
    }

    /// Returns at once, because each write posts its message immediately.
    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_close(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_end(context)
    }
}
