//! Reads from the socket of a stream.

use std::io;

use iwarp::Stream;
use link::tcp::TcpStream;

use crate::memory::TurnMemory;

/// Outcome of a reading.
pub(crate) struct Read {
    /// Number of bytes; 0 at the end of the connection.
    pub(crate) bytes: usize,
    /// Whether there was memory to store bytes in directly.
    pub(crate) is_direct: bool,
    /// Whether all room was used, so that the kernel may have more bytes.
    pub(crate) is_full: bool,
}

/// Reads what the kernel has, in one call: into its region if the rest of a long FPDU is next, and
/// then into the buffer. Passes the bytes to the stream. Returns `None` if nothing has arrived.
///
/// Behind the rest of a long FPDU, reads only the first bytes of what follows. They show where the
/// payload of the next FPDU belongs, and the next reading stores it there. If the buffer took
/// everything, the payload would be copied twice.
pub(crate) fn read_once(
    socket: &TcpStream,
    stream: &mut Stream,
    memory: &mut TurnMemory<'_>,
    buffer: &mut [u8],
) -> io::Result<Option<Read>> {
    let direct = stream.direct_sink().filter(|direct| direct.piece.bytes >= DIRECT_BYTES_MIN);
    let sink = direct.and_then(|direct| memory.sink(direct.piece, direct.access));
    let (room, read) = match &sink {
        Some(sink) => {
            let buffer = buffer.get_mut(..BEHIND_BYTES).unwrap_or_default();
            (sink.len() as usize + buffer.len(), socket.read_into(sink, buffer)?)
        }
        None => (buffer.len(), socket.read(buffer)?),
    };
    let Some(count) = read else { return Ok(None) };
    let is_direct = sink.is_some();
    let placed = sink.map_or(0, |sink| sink.len() as usize).min(count);
    if placed > 0 {
        stream.handle_placed(placed as u32);
    }
    if let Some(rest) = buffer.get(..count - placed).filter(|rest| !rest.is_empty()) {
        stream.handle_received(rest, memory);
    }
    Ok(Some(Read { bytes: count, is_direct, is_full: count == room }))
}

/// Like [`read_once`], but reads only into the buffer, and passes the bytes to `note` first.
pub(crate) fn read_captured(
    socket: &TcpStream,
    stream: &mut Stream,
    memory: &mut TurnMemory<'_>,
    buffer: &mut [u8],
    note: &mut dyn FnMut(&[u8]),
) -> io::Result<Option<Read>> {
    let Some(count) = socket.read(buffer)? else { return Ok(None) };
    if let Some(bytes) = buffer.get(..count).filter(|bytes| !bytes.is_empty()) {
        note(bytes);
        stream.handle_received(bytes, memory);
    }
    Ok(Some(Read { bytes: count, is_direct: false, is_full: count == buffer.len() }))
}

/// Bytes that are read behind the rest of a long FPDU: the headers of the next FPDU, or some short
/// messages.
pub(crate) const BEHIND_BYTES: usize = 1 << 10;

/// Rest of an FPDU, in bytes, from which on it is read into its region directly. For less, the
/// second element of the reading costs more than the copy.
const DIRECT_BYTES_MIN: u32 = 8 << 10;
