//! Remote direct memory access over ordinary Ethernet, in user space. A process writes, reads and
//! performs atomics on the memory of a process on another host, over UDP or raw Ethernet.
//!
//! ```
//! use std::{thread, time::Duration};
//! use ethernot::{Buffer, Endpoint, Error, OperationOptions, RemoteRegion, Rights};
//!
//! fn main() -> Result<(), Error> {
//!     // The target registers 4 KiB for remote writes. Its application does not take part in a write.
//!     let target = Endpoint::bind("127.0.0.1:0")?;
//!     let memory = Buffer::new(4096);
//!     let region = target.register(memory.clone(), Rights::REMOTE_WRITE)?;
//!     let listener = target.listen(0)?;
//!     let address = target.local_addresses()?[0];
//!     let accepting = thread::spawn(move || {
//!         let request = listener.accept(None)?;
//!         Ok::<_, Error>(request.accept(&region.remote().to_bytes())?.wait_closed(None)?)
//!     });
//!
//!     // The writer gets the description of the memory when it connects.
//!     let writer = Endpoint::bind("127.0.0.1:0")?;
//!     let connection = writer.connect(address)?;
//!     let remote = RemoteRegion::from_bytes(&connection.peer_data())?;
//!     let write = connection.write_bytes(b"hello", &remote, 0, OperationOptions::NONE)?;
//!     write.wait(Some(Duration::from_secs(5)))?;
//!     connection.close(b"done")?;
//!
//!     assert_eq!([memory.load_u8(0), memory.load_u8(4)], [b'h', b'o']);
//!     accepting.join().expect("the target does not panic")?;
//!     Ok(())
//! }
//! ```
//!
//! The [guides](guide) explain more, from getting started to tuning.
//!
//! # Progress
//!
//! Threads that poll or wait also make progress in the protocol. Without this, latencies of
//! microseconds would not be possible. While no application thread makes progress, a progress
//! thread does. So a target serves its peers even if its application makes no calls. See
//! [`EndpointBuilder::progress_thread`] and [`Polling`].
//!
//! # Many small operations
//!
//! [`Connection::post_later`] takes the least time per operation. It works with the connection's
//! own completion queue and with a shared queue. Operations that are posted between two polls are
//! sent together, and posting allocates no memory.
//!
//! # Programs that expect TCP
//!
//! [`ByteStream`] is a byte stream over a connection. With the features `tokio` and `futures` it
//! implements `AsyncRead` and `AsyncWrite` of tokio and of the crate `futures-io`.
//! `examples/http.rs` runs hyper over it.
#![forbid(unsafe_code)]

#[cfg(not(target_os = "linux"))]
compile_error!("Ethernot runs on Linux only; build for a target with `target_os = \"linux\"`");

/// Compiles and runs the example of the README.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

mod byte_stream;
mod connect;
mod connection;
mod endpoint;
mod error;
mod error_kind;
pub mod guide;
mod handle;
mod listener;
mod messages;
mod news;
mod patch;
mod pieces;
mod receive;
mod records;
mod region;
mod room;
mod tasks;
mod waiting;

pub use byte_stream::ByteStream;
pub use connect::{ConnectOptions, Connecting};
pub use connection::{Connection, OperationOptions};
pub use endpoint::{Endpoint, EndpointBuilder, LinkWrapper};
pub use error::{
    AcceptError, ConnectError, Error, LinkError, ListenError, OperationFailure, PollError,
    PostError, RemoteRegionError, WaitError,
};
pub use error_kind::ErrorKind;
pub use handle::OperationHandle;
pub use listener::{Accepting, ConnectionRequest, Listener};
pub use receive::{ReceiveHandle, Received};
pub use records::Records;
pub use region::{MemoryRegion, RangeError, RegionSlice, RemoteRegion};
pub use waiting::{Awaited, Completions, Occurred};

pub use delivery::{
    AckPolicy, CongestionAlgorithm, EndpointCounters, LinkCounters, LinkId, LinkState,
    SchedulingPolicy, SettingError,
};
pub use engine::{
    AcceptError as AcceptRefusal, Asking, Closed, ConnectError as ConnectRefusal, ConnectionInfo,
    EngineConfig, EngineLinkError, Grants, PathInfo, Terms,
};
pub use link::{
    Capture, CaptureClock, CaptureOutput, Delay, Fault, FaultConfig, Link, LinkStatistics,
    PacketConfig, PacketError, PacketLink, ShmError, UdpConfig, UdpError, UdpFeatures, UdpLink,
    XdpConfig, XdpError, XdpLink, XdpMode,
};
pub use links::{
    BindError, IntoPeers, LinkProblem, LinkSpec, LinkSpecError, LinkSpecProblem, PeerSpec,
    PeerSpecError, RawOptions, UdpPlace, XdpOptions,
};
pub use mem::{
    AccessError, Buffer, BufferError, Integer, MemoryTable, ProtectionDomain, Region, RegionId,
    RegisterError, Rights, TableLimits, Word,
};
pub use runtime::{AttachError, Drive, Forked, Polling, RuntimeCounters, StartError, SubmitError};
pub use semantics::{
    AccessFault, Completion, CompletionKind, CompletionQueue, Operation, OperationError,
    OperationFlags, OperationStatus, Order, Owner, PieceListError, PoolLimits, PoolUse,
    PostError as OperationRefusal, Receive, Request, Sink, Source,
};
pub use wire_edge::{
    CloseReason, PATCH_AREA_BYTES_MAX, PATCH_BLOCK_BYTES, PATCH_RECORD_BYTES_MAX, PeerAddr,
    RejectReason, RemoteKey, encode_patch,
};
