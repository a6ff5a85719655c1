//! Captures the bytes of streams as they are read and written.

use std::net::SocketAddr;

use link::tcp::StreamPart;
use link::{CaptureOutput, CapturedConnection, Direction, TcpCapture};

/// The capture of a device.
#[derive(Debug)]
pub(crate) struct StreamCapture {
    file: TcpCapture,
    /// Room for the bytes of one writing.
    bytes: Vec<u8>,
}

/// The ends of a stream, for its first captured bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ends {
    pub(crate) local: Option<SocketAddr>,
    pub(crate) peer: SocketAddr,
    pub(crate) is_initiator: bool,
}

impl StreamCapture {
    pub(crate) fn new(output: &CaptureOutput, device: &str) -> Self {
        Self { file: TcpCapture::new(output, device), bytes: Vec::new() }
    }

    /// Captures received bytes.
    pub(crate) fn received(
        &mut self,
        captured: &mut Option<CapturedConnection>,
        ends: Ends,
        bytes: &[u8],
    ) {
        if let Some(connection) = self.begun(captured, ends) {
            self.file.add(connection, Direction::Inbound, bytes);
        }
    }

    /// Captures the first `written` bytes of the parts.
    pub(crate) fn sent<'a>(
        &mut self,
        captured: &mut Option<CapturedConnection>,
        ends: Ends,
        parts: impl Iterator<Item = StreamPart<'a>>,
        written: usize,
    ) {
        let mut bytes = std::mem::take(&mut self.bytes);
        bytes.clear();
        let mut is_whole = true;
        for part in parts {
            if bytes.len() >= written || !is_whole {
                break;
            }
            is_whole = part.append_to(&mut bytes);
        }
        if let Some(connection) = self.begun(captured, ends) {
            match bytes.get(..written).filter(|_| is_whole) {
                Some(bytes) => self.file.add(connection, Direction::Outbound, bytes),
                // The program has unmapped the memory that TCP has taken.
                None => self.file.skip(connection, Direction::Outbound, written as u32),
            }
        }
        self.bytes = bytes;
    }

    /// Captures that one end sends no more.
    pub(crate) fn ended(&mut self, captured: &mut Option<CapturedConnection>, end: Direction) {
        if let Some(connection) = captured {
            self.file.end(connection, end);
        }
    }

    /// Captures that the connection was reset, or is given up.
    pub(crate) fn reset(&mut self, captured: &mut Option<CapturedConnection>) {
        if let Some(connection) = captured.take() {
            self.file.reset(&connection, Direction::Inbound);
        }
    }

    /// Returns the connection. Begins it if these are its first bytes. Returns `None` if its own
    /// address is unknown because the connection has ended.
    fn begun<'a>(
        &mut self,
        captured: &'a mut Option<CapturedConnection>,
        ends: Ends,
    ) -> Option<&'a mut CapturedConnection> {
        if captured.is_none() {
            *captured = Some(self.file.begin(ends.local?, ends.peer, ends.is_initiator));
        }
        captured.as_mut()
    }
}
