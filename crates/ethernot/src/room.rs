//! Waits for room when all records, handles or queue entries are in use.

use std::future::Future;
use std::time::Duration;

use runtime::ChangedBy;

use crate::connection::Connection;
use crate::error::{Error, PostError, WaitError, in_time};
use crate::error_kind::ErrorKind;
use crate::tasks::UntilLook;

impl Connection {
    /// Repeats `post` while it is refused because there is no room ([`ErrorKind::Busy`]), and
    /// returns the result of `post`. So tasks may post more operations than there is room for.
    ///
    /// There is room again when operations end, handles are dropped or completions are polled. A
    /// task that waits for room does not drop the handles that it owns. So tasks may wait forever
    /// if each of them waits for handles that another of them owns.
    ///
    /// ```
    /// # use ethernot::{Buffer, ConnectOptions, Endpoint, Error, OperationOptions, RemoteRegion, Rights};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Error> {
    /// # let server = Endpoint::bind("127.0.0.1:0")?;
    /// # let region = server.register(Buffer::new(8), Rights::REMOTE_ATOMIC)?;
    /// # let (listener, address) = (server.listen(0)?, server.local_addresses()?[0]);
    /// # tokio::spawn(async move {
    /// #     let options = ConnectOptions::new().private_data(region.remote().to_bytes());
    /// #     let connection = listener.next_request().await?.start_accept(options)?.await?;
    /// #     connection.ended().await?;
    /// #     Ok::<_, Error>(drop(region))
    /// # });
    /// let client = Endpoint::builder().bind("127.0.0.1:0").handles_max(4).build()?;
    /// let connection = client.start_connect(address, ConnectOptions::new())?.await?;
    /// let counter = RemoteRegion::from_bytes(&connection.peer_data())?;
    /// let add = async || {
    ///     let add = || connection.fetch_add(&counter, 0, 1, OperationOptions::NONE);
    ///     let posted = connection.when_room(add).await?;
    ///     Ok::<_, Error>(posted.await?)
    /// };
    /// // Six operations at a time, but only four handles.
    /// tokio::try_join!(add(), add(), add(), add(), add(), add())?;
    /// connection.flushed().await?;
    /// assert_eq!(add().await?, 6);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns the errors of `post`, except those of kind [`ErrorKind::Busy`].
    pub fn when_room<'a, R, P>(
        &'a self,
        mut post: P,
    ) -> impl Future<Output = Result<R, PostError>> + use<'a, R, P>
    where
        P: FnMut() -> Result<R, PostError> + Unpin + 'a,
    {
        let runtime = &self.inner().endpoint.runtime;
        let posted = UntilLook::new(runtime, ChangedBy::Application, move || unless_busy(post()));
        async move {
            match posted.await {
                Ok(posted) => posted,
                Err(forked) => Err(PostError::Submit(forked.into())),
            }
        }
    }

    /// Waits in a task until there is room for an operation with a handle. Before the waiting task
    /// posts, another task may use this room. [`Connection::when_room`] waits and posts in one
    /// step.
    ///
    /// ```no_run
    /// # async fn f(connection: &ethernot::Connection) -> Result<(), ethernot::Error> {
    /// connection.room().await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`PostError::Closed`] if the connection has ended.
    pub fn room(&self) -> impl Future<Output = Result<(), PostError>> + Send + '_ {
        self.when_room(|| self.check_room())
    }

    /// Waits until all operations of the connection are complete, for at most `limit` (`None`:
    /// without a limit).
    ///
    /// ```no_run
    /// # fn f(connection: &ethernot::Connection, target: &ethernot::RemoteRegion) -> Result<(), ethernot::Error> {
    /// for word in 0..100 {
    ///     drop(connection.write_bytes(b"8 bytes.", target, 8 * word, ethernot::OperationOptions::NONE)?);
    /// }
    /// connection.flush(None)?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Returns [`WaitError::TimedOut`] if the limit expires, and [`WaitError::Closed`] if the
    /// connection has ended. Operations that were not complete when the connection ended have
    /// failed.
    pub fn flush(&self, limit: Option<Duration>) -> Result<(), WaitError> {
        let handle = self.handle();
        let endpoint = &self.inner().endpoint;
        let is_flushed = endpoint.until(limit, move |engine| engine.outstanding(handle) == 0)?;
        self.check_flushed()?;
        in_time(is_flushed.then_some(()), limit)
    }

    /// Waits in a task until all operations of the connection are complete, like
    /// [`Connection::flush`] in a thread.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::flush`].
    pub fn flushed(&self) -> impl Future<Output = Result<(), WaitError>> + Send + '_ {
        let handle = self.handle();
        async move {
            let endpoint = &self.inner().endpoint;
            endpoint.met(move |engine| engine.outstanding(handle) == 0).await?;
            self.check_flushed()
        }
    }

    fn check_flushed(&self) -> Result<(), WaitError> {
        match self.closed() {
            Some(reason) => Err(WaitError::Closed(reason)),
            None => Ok(()),
        }
    }

    /// Checks whether an operation with a handle can be posted.
    fn check_room(&self) -> Result<(), PostError> {
        self.check_open()?;
        let runtime = &self.inner().endpoint.runtime;
        let status = runtime.status();
        let slot = status.acquire().ok_or(PostError::NoHandleLeft)?;
        status.cancel(slot);
        status.release(slot);
        let handle = self.handle();
        let left = runtime.control(move |engine, _memory, _now| engine.check_room(handle));
        Ok(left.map_err(|forked| PostError::Submit(forked.into()))??)
    }
}

/// Returns the result of a post, or `None` if there was no room.
pub(crate) fn unless_busy<R>(posted: Result<R, PostError>) -> Option<Result<R, PostError>> {
    match posted {
        Err(error) if Error::from(error).kind() == ErrorKind::Busy => None,
        posted => Some(posted),
    }
}
