//! A TCP connection of an ordinary program, either blocking or polling.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;

use super::work::Style;

/// A TCP connection.
#[derive(Debug)]
pub(super) struct Wire {
    stream: TcpStream,
}

impl Wire {
    /// Prepares a connected stream. Turns off Nagle's algorithm, like most programs that wait for
    /// answers.
    pub(super) fn new(stream: TcpStream, style: Style) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(style == Style::Polling)?;
        Ok(Self { stream })
    }

    /// Returns the socket.
    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Reads at least one byte. Returns the number of bytes; 0 at the end of the stream.
    pub(super) fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.stream.read(into) {
                Err(error) if is_again(&error) => std::hint::spin_loop(),
                outcome => return outcome,
            }
        }
    }

    /// Fills `into`. Returns false if the stream ended before the first byte.
    pub(super) fn read_exact(&mut self, into: &mut [u8]) -> io::Result<bool> {
        let mut filled = 0;
        while let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.read(rest)? {
                0 if filled == 0 => return Ok(false),
                0 => return Err(ErrorKind::UnexpectedEof.into()),
                bytes => filled += bytes,
            }
        }
        Ok(true)
    }

    /// Fills `into`. Returns an error if the stream ended.
    pub(super) fn read_answer(&mut self, into: &mut [u8]) -> io::Result<()> {
        if self.read_exact(into)? { Ok(()) } else { Err(ErrorKind::UnexpectedEof.into()) }
    }

    /// Writes all of `from`.
    pub(super) fn write_all(&mut self, mut from: &[u8]) -> io::Result<()> {
        while !from.is_empty() {
            match self.stream.write(from) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(bytes) => from = from.get(bytes..).unwrap_or_default(),
                Err(error) if is_again(&error) => std::hint::spin_loop(),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

fn is_again(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
