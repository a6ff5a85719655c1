//! Listens on an abstract Unix socket, at which other processes of the host ask this process for a
//! report.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use link::is_trusted;

/// A listening abstract Unix socket whose name contains the number of this process. It leaves no
/// file behind when the process ends.
#[derive(Debug)]
pub struct LocalListener {
    listener: UnixListener,
}

impl LocalListener {
    /// Listens at a name of `prefix` and the number of this process.
    ///
    /// The name may already be in use: by another user of the prefix in this process, or by a
    /// process with the same number in another container of this network namespace. In this case,
    /// another number precedes the process number.
    ///
    /// # Errors
    /// Returns the error of the system call that failed, or [`io::ErrorKind::AddrInUse`] if 64
    /// names are in use.
    pub fn listen(prefix: &str) -> io::Result<Self> {
        let process = std::process::id();
        let names = (1..=NAMES_MAX).map(|place| match place {
            1 => format!("{prefix}{process}"),
            place => format!("{prefix}{place}-{process}"),
        });
        let mut refused = io::ErrorKind::AddrInUse.into();
        for name in names {
            let address = SocketAddr::from_abstract_name(name)?;
            match UnixListener::bind_addr(&address) {
                Ok(listener) => {
                    listener.set_nonblocking(true)?;
                    return Ok(Self { listener });
                }
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => refused = error,
                Err(error) => return Err(error),
            }
        }
        Err(refused)
    }

    /// Accepts the next process that waits and that runs as the user of this process or as root.
    /// The connections of other processes are closed. Returns `None` if no process waits. Never
    /// blocks.
    pub fn accept(&self) -> Option<UnixStream> {
        while let Ok((stream, _)) = self.listener.accept() {
            if is_trusted(stream.as_fd()).unwrap_or(false) {
                return Some(stream);
            }
        }
        None
    }

    /// Returns the descriptor, for [`Runtime::watch_listener`](crate::Runtime::watch_listener).
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    /// Returns the name at which the socket listens.
    ///
    /// # Errors
    /// Returns the error of `getsockname`.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// Maximum number of names with the same process number, for several users of a prefix and for
/// several containers.
const NAMES_MAX: u32 = 64;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listeners_of_one_process_have_different_names_that_end_with_its_number() {
        let prefix = "ethernot-test-";
        let all = [(); 3].map(|()| LocalListener::listen(prefix).unwrap());
        let names = all.each_ref().map(|one| {
            let address = one.address().unwrap();
            String::from_utf8(address.as_abstract_name().unwrap().to_vec()).unwrap()
        });
        assert!(names[0] != names[1] && names[1] != names[2] && names[0] != names[2]);
        let number = std::process::id().to_string();
        assert!(names.iter().all(|name| name.starts_with(prefix) && name.ends_with(&number)));
    }

    #[test]
    fn each_connection_of_the_same_user_is_accepted_once() {
        let listener = LocalListener::listen("ethernot-test-").unwrap();
        assert!(listener.accept().is_none());
        let _stream = UnixStream::connect_addr(&listener.address().unwrap()).unwrap();
        assert!(listener.accept().is_some());
        assert!(listener.accept().is_none());
    }
}
