//! Kinds of errors, for programs that handle all errors of one kind in the same way, and for
//! bindings to other languages.

use links::BindError;
use mem::RegisterError;
use runtime::{StartError, SubmitError};

use crate::error::{
    AcceptError, ConnectError, Error, LinkError, ListenError, OperationFailure, PollError,
    PostError, WaitError,
};

/// The kind of an [`Error`]. Errors of one kind have the same remedy.
///
/// ```
/// use ethernot::{Endpoint, Error, ErrorKind};
///
/// let endpoint = Endpoint::bind("127.0.0.1:0")?;
/// let _first = endpoint.listen(1)?;
/// let second = endpoint.listen(1).map_err(Error::from);
/// assert_eq!(second.err().map(|error| error.kind()), Some(ErrorKind::InUse));
/// # Ok::<(), Error>(())
/// ```
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The request is impossible or contradictory. Remedy: change the request.
    Invalid,
    /// The limit of a wait has expired. The operation continues. Remedy: wait again.
    TimedOut,
    /// A table or queue is full, or another thread is inside the engine. Remedy: poll, wait until
    /// operations end, and retry.
    Busy,
    /// The connection or the endpoint has ended. Remedy: make another.
    Closed,
    /// The peer is reachable, but it refused the connection. Remedy: check the service number.
    Refused,
    /// No route leads to the peer, or no process answers there. Remedy: check that the peer's
    /// process runs and that the network carries the frames.
    Unreachable,
    /// The name or number is already in use. Remedy: choose another.
    InUse,
    /// An operation failed. The error text contains the cause: the peer refused the operation, the
    /// connection to the peer was lost, or the peer had no room.
    Failed,
    /// The operating system refused a request. The error text names the request.
    System,
    /// The process is a forked child. Remedy: make a new endpoint in the child.
    Forked,
}

impl Error {
    /// Returns the kind of the error.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Bind(error) => of_bind(error),
            Self::Listen(ListenError::InUse(_)) => ErrorKind::InUse,
            Self::Connect(error) => of_connect(error),
            Self::Accept(error) => of_accept(error),
            Self::Post(error) => of_post(error),
            Self::Operation(OperationFailure::Failed(_)) => ErrorKind::Failed,
            Self::Operation(OperationFailure::TimedOut { .. })
            | Self::Wait(WaitError::TimedOut { .. }) => ErrorKind::TimedOut,
            Self::Wait(WaitError::Closed(_) | WaitError::ShutDown)
            | Self::Listen(ListenError::ShutDown) => ErrorKind::Closed,
            Self::Forked(_)
            | Self::Listen(ListenError::Forked(_))
            | Self::Operation(OperationFailure::Forked(_))
            | Self::Poll(PollError::Forked(_))
            | Self::Wait(WaitError::Forked(_))
            | Self::Link(LinkError::Forked(_)) => ErrorKind::Forked,
            _ => ErrorKind::Invalid,
        }
    }
}

fn of_bind(error: &BindError) -> ErrorKind {
    match error {
        BindError::Start(StartError::Setting(_)) => ErrorKind::Invalid,
        BindError::Start(_)
        | BindError::Entropy(_)
        | BindError::Interfaces(_)
        | BindError::Packet(_)
        | BindError::Xdp(_)
        | BindError::Shm(_)
        | BindError::Udp(_) => ErrorKind::System,
        _ => ErrorKind::Invalid,
    }
}

fn of_connect(error: &ConnectError) -> ErrorKind {
    use engine::Closed;
    match error {
        ConnectError::Link(error) => of_bind(error),
        ConnectError::Neighbour(_)
        | ConnectError::NoWay { .. }
        | ConnectError::Closed { reason: Closed::Unreachable { .. }, .. } => ErrorKind::Unreachable,
        ConnectError::Closed { .. } => ErrorKind::Refused,
        ConnectError::ShutDown => ErrorKind::Closed,
        ConnectError::TimedOut { .. } => ErrorKind::TimedOut,
        ConnectError::Forked(_) => ErrorKind::Forked,
        _ => ErrorKind::Invalid,
    }
}

fn of_accept(error: &AcceptError) -> ErrorKind {
    match error {
        AcceptError::Refused(_) | AcceptError::Closed(_) | AcceptError::ShutDown => {
            ErrorKind::Closed
        }
        AcceptError::TimedOut { .. } => ErrorKind::TimedOut,
        AcceptError::Forked(_) => ErrorKind::Forked,
        _ => ErrorKind::Invalid,
    }
}

fn of_post(error: &PostError) -> ErrorKind {
    use semantics::PostError as Engine;
    match error {
        PostError::Closed(_) | PostError::Submit(SubmitError::Post(Engine::NotConnected)) => {
            ErrorKind::Closed
        }
        PostError::NoHandleLeft
        | PostError::Register(RegisterError::TableFull { .. })
        | PostError::Submit(
            SubmitError::Busy(_)
            | SubmitError::Post(
                Engine::CompletionQueueFull(_)
                | Engine::NoOperationLeft(_)
                | Engine::NoListLeft(_)
                | Engine::ReceiveQueueFull(_),
            ),
        ) => ErrorKind::Busy,
        PostError::Submit(SubmitError::Forked(_)) => ErrorKind::Forked,
        _ => ErrorKind::Invalid,
    }
}
