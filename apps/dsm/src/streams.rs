//! Bytes of shared memory from and to files, sockets and other streams.

use std::io::{self, Read, Write};

use crate::slice::DsmSlice;

impl DsmSlice<'_, u8> {
    /// Fills the bytes from a stream. Returns the number of bytes, which is smaller than the length
    /// if the stream ends.
    ///
    /// Copies by way of memory of the process, so the pages need not be present.
    /// [`Dsm::pin`](crate::Dsm::pin) avoids the copy.
    ///
    /// # Errors
    /// Those of the stream. Bytes before the error are in place.
    pub fn read_from(&self, stream: &mut impl Read) -> io::Result<usize> {
        let mut buffer = vec![0; BUFFER_BYTES.min(self.len())];
        let mut done = 0;
        while done < self.len() {
            let wanted = buffer.len().min(self.len() - done);
            let Some(space) = buffer.get_mut(..wanted) else { break };
            let found = match stream.read(space) {
                Ok(0) => break,
                Ok(found) => found.min(wanted),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            self.slice(done..done + found).copy_from(buffer.get(..found).unwrap_or_default());
            done += found;
        }
        Ok(done)
    }

    /// Writes all bytes to a stream, by way of memory of the process.
    ///
    /// # Errors
    /// Those of the stream.
    pub fn write_to(&self, stream: &mut impl Write) -> io::Result<()> {
        let mut buffer = vec![0; BUFFER_BYTES.min(self.len())];
        let mut done = 0;
        while done < self.len() {
            let wanted = buffer.len().min(self.len() - done);
            let Some(space) = buffer.get_mut(..wanted) else { break };
            self.slice(done..done + wanted).copy_to(space);
            stream.write_all(space)?;
            done += wanted;
        }
        Ok(())
    }
}

/// Bytes that one call of a stream transfers.
const BUFFER_BYTES: usize = 64 << 10;
