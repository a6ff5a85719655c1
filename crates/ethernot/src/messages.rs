//! Messages for which the library allocates and frees the memory.

use mem::{Buffer, Rights};

use crate::connection::{Connection, OperationOptions};
use crate::endpoint::Endpoint;
use crate::error::PostError;
use crate::handle::OperationHandle;
use crate::receive::ReceiveHandle;

/// Messages for which the caller needs no registered memory. The library allocates and registers
/// memory for each message, and frees this memory when the message no longer needs it. Programs
/// that send many large messages should instead register a [`Buffer`] once and use
/// [`Connection::send`].
///
/// ```
/// # use std::{thread, time::Duration};
/// # use ethernot::{Endpoint, Error, OperationOptions};
/// # fn main() -> Result<(), Error> {
/// # const LIMIT: Option<Duration> = Some(Duration::from_secs(5));
/// # let server = Endpoint::bind("127.0.0.1:0")?;
/// # let (listener, address) = (server.listen(0)?, server.local_addresses()?[0]);
/// let serving = thread::spawn(move || {
///     let connection = listener.accept(None)?.accept(&[])?;
///     let message = connection.receive_message(1 << 20)?.wait(LIMIT)?;
///     assert_eq!(message.to_vec().expect("it is kept"), [7; 100_000]);
///     Ok::<_, Error>(connection)
/// });
/// # let client = Endpoint::bind("127.0.0.1:0")?;
/// let connection = client.connect(address)?;
/// connection.send_message(&vec![7; 100_000], OperationOptions::NONE)?.wait(LIMIT)?;
/// # serving.join().expect("it does not panic")?;
/// # Ok(())
/// # }
/// ```
impl Connection {
    /// Sends a copy of `bytes` as one message. The message consumes a receive that the peer has
    /// posted or will post.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::send`], and [`PostError::Register`] if no more regions
    /// can be registered.
    pub fn send_message(
        &self,
        bytes: &[u8],
        options: OperationOptions,
    ) -> Result<OperationHandle, PostError> {
        if bytes.len() <= semantics::INLINE_BYTES_MAX {
            return self.send_bytes(bytes, options);
        }
        let length = bytes.len() as u64;
        if length > u64::from(semantics::OPERATION_BYTES_MAX) {
            return Err(PostError::TooLong(length));
        }
        let buffer = Buffer::new(length);
        buffer.write(0, bytes);
        // The pending message keeps the memory registered after this function drops `region`.
        let region = self.endpoint().register(buffer, Rights::NONE)?;
        self.send(&region, 0, length, options)
    }

    /// Posts a receive for one message of at most `length` bytes, like [`Connection::receive`]. The
    /// library allocates the memory, and frees it when both the handle and the message are dropped.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::receive`], and [`PostError::Register`] if no more
    /// regions can be registered.
    pub fn receive_message(&self, length: u32) -> Result<ReceiveHandle, PostError> {
        let region = self.endpoint().register(Buffer::new(length.into()), Rights::LOCAL_WRITE)?;
        self.receive(&region, 0, length)
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint { inner: std::sync::Arc::clone(&self.inner().endpoint) }
    }
}
