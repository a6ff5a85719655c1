//! A server with one thread for all connections, like a typical event-driven server. It uses
//! level-triggered `epoll` with non-blocking sockets, and echoes all bytes that it receives.

use std::collections::HashMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::work::{Exchange, Wanted};

/// Serves connections until accepting a connection fails.
pub(super) fn echo(listener: &TcpListener) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    epoll.add(listener, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))?;
    let mut connections: HashMap<u64, Connection> = HashMap::new();
    let mut events = [EpollEvent::empty(); EVENTS_MAX];
    loop {
        let count = match epoll.wait(&mut events, EpollTimeout::NONE) {
            Err(Errno::EINTR) => continue,
            outcome => outcome?,
        };
        for event in events.iter().take(count) {
            let token = event.data();
            if token == LISTENER {
                accept(listener, &epoll, &mut connections)?;
                continue;
            }
            let Some(connection) = connections.get_mut(&token) else { continue };
            let was_waiting = connection.has_unsent();
            if !connection.advance() {
                // Closing the socket removes it from the `epoll` set.
                connections.remove(&token);
            } else if connection.has_unsent() != was_waiting {
                let mut wanted = EpollEvent::new(connection.interest(), token);
                epoll.modify(&connection.stream, &mut wanted)?;
            }
        }
    }
}

fn accept(
    listener: &TcpListener,
    epoll: &Epoll,
    connections: &mut HashMap<u64, Connection>,
) -> io::Result<()> {
    loop {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(true)?;
                stream.set_nodelay(true)?;
                let token = stream.as_raw_fd() as u64;
                epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, token))?;
                connections.insert(token, Connection::new(stream));
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// A connection. The client sends a request, then its messages, then the next request.
#[derive(Debug)]
struct Connection {
    stream: TcpStream,
    request: [u8; Wanted::BYTES],
    requested: usize,
    /// Bytes of the request's messages that have not arrived yet.
    left: u64,
    buffer: Vec<u8>,
    /// The range of `buffer` that is still to be sent.
    unsent: std::ops::Range<usize>,
}

impl Connection {
    fn new(stream: TcpStream) -> Self {
        Self {
            stream,
            request: [0; Wanted::BYTES],
            requested: 0,
            left: 0,
            buffer: vec![0; BUFFER_BYTES],
            unsent: 0..0,
        }
    }

    fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    fn interest(&self) -> EpollFlags {
        if self.has_unsent() { EpollFlags::EPOLLOUT } else { EpollFlags::EPOLLIN }
    }

    /// Reads and writes until a call would block. Returns false if the connection has ended.
    fn advance(&mut self) -> bool {
        loop {
            let outcome = if self.has_unsent() { self.write() } else { self.read() };
            match outcome {
                Ok(goes_on) if !goes_on => return false,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return true,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
        }
    }

    fn write(&mut self) -> io::Result<bool> {
        let bytes = self.stream.write(&self.buffer[self.unsent.clone()])?;
        self.unsent.start += bytes;
        Ok(bytes > 0)
    }

    fn read(&mut self) -> io::Result<bool> {
        if self.left == 0 {
            let bytes = self.stream.read(&mut self.request[self.requested..])?;
            self.requested += bytes;
            if self.requested == Wanted::BYTES {
                self.requested = 0;
                let wanted = Wanted::decoded(&self.request);
                let echoed = wanted.filter(|wanted| wanted.exchange == Exchange::Echo);
                let wanted = echoed.ok_or(ErrorKind::InvalidData)?;
                self.left = wanted.count.saturating_mul(wanted.message_bytes);
            }
            return Ok(bytes > 0);
        }
        let most = self.buffer.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let bytes = self.stream.read(&mut self.buffer[..most])?;
        self.left -= bytes as u64;
        self.unsent = 0..bytes;
        Ok(bytes > 0)
    }
}

/// The token of the listener in `epoll` events. All other tokens are descriptors, and no descriptor
/// has this number.
const LISTENER: u64 = u64::MAX;

/// Highest number of events that one call of `epoll_wait` returns: the highest number of
/// connections.
const EVENTS_MAX: usize = super::work::STREAMS_MAX as usize;

/// Highest number of bytes that one call reads.
const BUFFER_BYTES: usize = 16 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;
    use std::thread;

    #[test]
    fn several_clients_get_their_bytes_back_in_any_fragments() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || echo(&listener));
        let mut clients = [0, 1, 2].map(|_| TcpStream::connect(address).unwrap());
        for round in 0..2 {
            let wanted = Wanted { exchange: Exchange::Echo, message_bytes: 40_000, count: 2 };
            for client in &mut clients {
                let request = wanted.encoded();
                client.write_all(&request[..5]).unwrap();
                client.write_all(&request[5..]).unwrap();
            }
            for (number, client) in clients.iter_mut().enumerate() {
                let message: Vec<u8> =
                    (0..80_000).map(|i| (i % 251 + number + round) as u8).collect();
                let mut answer = vec![0; message.len()];
                thread::scope(|scope| {
                    let mut sender = client.try_clone().unwrap();
                    scope.spawn(move || sender.write_all(&message).unwrap());
                    client.read_exact(&mut answer).unwrap();
                });
                let expected = (0..80_000).map(|i| (i % 251 + number + round) as u8);
                assert!(expected.eq(answer));
            }
        }
    }
}
