//! Errors of opening a UDP link and of sending a batch.

use std::io;
use std::net::SocketAddr;

use delivery::SettingError;
use thiserror::Error;

/// The reason why a UDP link could not be opened.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum UdpError {
    /// A setting is out of range.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// Another socket uses the address.
    #[error(
        "cannot bind UDP {address}: the address is in use by another socket \
         (`ss -ulpn` shows by whom); choose another port, or 0 for a free one"
    )]
    AddressInUse {
        /// The requested address.
        address: SocketAddr,
    },
    /// The host does not have the address.
    #[error(
        "cannot bind UDP {address}: no interface of this host has that address \
         (`ip address` lists them); use one of them, or the unspecified address for all"
    )]
    NoSuchAddress {
        /// The requested address.
        address: SocketAddr,
    },
    /// The process may not use the port, or may not use sockets at all.
    #[error(
        "cannot bind UDP {address}: permission denied; ports below \
         net.ipv4.ip_unprivileged_port_start (1024 by default) need CAP_NET_BIND_SERVICE, choose \
         a higher port"
    )]
    NoPermission {
        /// The requested address.
        address: SocketAddr,
    },
    /// The host does not support the address family.
    #[error(
        "cannot bind UDP {address}: this host has no sockets of that address family; use an \
         address of the other family"
    )]
    NoSuchFamily {
        /// The requested address.
        address: SocketAddr,
    },
    /// The process or the host has no free descriptor.
    #[error("cannot bind UDP {address}: no descriptor left; raise the limit with `ulimit -n`")]
    NoDescriptor {
        /// The requested address.
        address: SocketAddr,
        /// The error of the system call.
        source: io::Error,
    },
    /// Any other error of the system.
    #[error("cannot {attempt} UDP {address}")]
    Io {
        /// The operation that failed.
        attempt: &'static str,
        /// The requested address.
        address: SocketAddr,
        /// The error of the system call.
        source: io::Error,
    },
}

impl UdpError {
    pub(super) fn new(attempt: &'static str, address: SocketAddr, source: io::Error) -> Self {
        match source.raw_os_error() {
            Some(libc::EADDRINUSE) => Self::AddressInUse { address },
            Some(libc::EADDRNOTAVAIL) => Self::NoSuchAddress { address },
            Some(libc::EACCES | libc::EPERM) => Self::NoPermission { address },
            Some(libc::EAFNOSUPPORT) => Self::NoSuchFamily { address },
            Some(libc::EMFILE | libc::ENFILE) => Self::NoDescriptor { address, source },
            _ => Self::Io { attempt, address, source },
        }
    }
}

/// Payload memory of a frame could not be read, because the application has unmapped it.
///
/// An [`io::Error`] of kind [`io::ErrorKind::InvalidInput`] contains this error. The operation of
/// the frame has failed, but the link still works.
#[derive(Clone, Copy, Debug, Eq, Error, PartialEq)]
#[error("payload memory of frame {frame} of the batch cannot be read; was it unmapped?")]
pub struct PayloadUnmapped {
    /// Index of the frame in its batch. All frames before it were sent. No frame after it was sent.
    pub frame: usize,
}

impl PayloadUnmapped {
    /// Returns the `PayloadUnmapped` that `error` contains, or `None` if `error` contains none.
    pub fn from_io(error: &io::Error) -> Option<Self> {
        error.get_ref()?.downcast_ref().copied()
    }
}

impl From<PayloadUnmapped> for io::Error {
    fn from(error: PayloadUnmapped) -> Self {
        Self::new(io::ErrorKind::InvalidInput, error)
    }
}
