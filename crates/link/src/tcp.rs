//! TCP connections that carry the byte stream of a protocol, such as iWARP.
//!
//! No function blocks. A [`TcpPort`] reserves a port and later accepts connections; a [`TcpStream`]
//! is one connection. The stream sends registered memory and stores received bytes in registered
//! memory, without a copy in this process.

mod port;
mod silence;
mod stream;

pub use port::TcpPort;
pub use stream::{StreamPart, StreamWriter, TcpStream};
