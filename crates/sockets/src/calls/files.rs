//! Calls that send the bytes of a file.

use std::io::IoSlice;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::libc::off_t;
use nix::sys::sendfile::sendfile;
use nix::sys::uio::pread;
use nix::unistd::{Whence, lseek, read};

use crate::calls::connection::Connection;
use crate::calls::connection::Route;
use crate::calls::flags::SendFlags;

/// Calls `sendfile` in the kernel.
pub(crate) fn send_file_by_kernel(
    fd: BorrowedFd<'_>,
    file: BorrowedFd<'_>,
    offset: Option<&mut u64>,
    count: usize,
) -> Result<usize, Errno> {
    let Some(offset) = offset else { return sendfile(fd, file, None, count) };
    let mut at = off_t::try_from(*offset).map_err(|_| Errno::EINVAL)?;
    let sent = sendfile(fd, file, Some(&mut at), count)?;
    *offset = at as u64;
    Ok(sent)
}

impl Connection {
    /// Sends bytes of a file, like `sendfile`.
    ///
    /// # Errors
    /// Returns the errors of `sendfile`.
    pub fn send_file(
        &self,
        fd: BorrowedFd<'_>,
        file: BorrowedFd<'_>,
        offset: Option<&mut u64>,
        count: usize,
    ) -> Result<usize, Errno> {
        if self.is_relayed() || matches!(self.route(), Route::Left(_)) {
            return send_file_by_kernel(fd, file, offset, count);
        }
        self.send_file_by_copy(fd, file, offset, count)
    }

    /// Reads the file and sends the bytes. If some bytes cannot be sent, the next call reads them a
    /// second time.
    pub(crate) fn send_file_by_copy(
        &self,
        fd: BorrowedFd<'_>,
        file: BorrowedFd<'_>,
        offset: Option<&mut u64>,
        count: usize,
    ) -> Result<usize, Errno> {
        let mut bytes = vec![0; count.min(FILE_BYTES)];
        let begins = match &offset {
            Some(offset) => off_t::try_from(**offset).map_err(|_| Errno::EINVAL)?,
            // A file without offsets, such as a pipe, returns each byte only once. Such a file must
            // be read with `read` instead of `pread`.
            None => lseek(file, 0, Whence::SeekCur).unwrap_or(NOT_SEEKABLE),
        };
        let mut done = 0;
        let mut result = Ok(());
        while done < count {
            let length = bytes.len().min(count - done);
            let got = match begins {
                NOT_SEEKABLE => read(file, &mut bytes[..length]),
                begins => {
                    pread(file, &mut bytes[..length], begins.saturating_add_unsigned(done as u64))
                }
            };
            let length = match got {
                Ok(0) => break,
                Ok(length) => length,
                Err(error) => {
                    result = Err(error);
                    break;
                }
            };
            let more = done + length < count;
            let flags = SendFlags { more, ..SendFlags::default() };
            match self.send(fd, &[IoSlice::new(&bytes[..length])], flags) {
                Ok(sent) => {
                    done += sent;
                    if sent < length {
                        break;
                    }
                }
                Err(error) => {
                    result = Err(error);
                    break;
                }
            }
        }
        match offset {
            Some(offset) => *offset += done as u64,
            None if begins != NOT_SEEKABLE && done > 0 => {
                lseek(file, begins.saturating_add_unsigned(done as u64), Whence::SeekSet)?;
            }
            None => {}
        }
        if done > 0 { Ok(done) } else { result.map(|()| 0) }
    }
}

/// Maximum number of bytes of the file that one read takes.
const FILE_BYTES: usize = 64 * 1024;

/// Marks a file without offsets, such as a pipe.
const NOT_SEEKABLE: off_t = -1;
