//! Patches and swaps (protocol.md §5.9).

use semantics::{Request, Source};

use crate::connection::{Connection, OperationOptions, WORD_BYTES, inline};
use crate::error::PostError;
use crate::handle::OperationHandle;
use crate::region::{MemoryRegion, RemoteRegion};

impl Connection {
    /// Copies scattered words of four bytes to the peer's memory, in one operation.
    ///
    /// The `length` bytes of `local`, from `local_offset` on, are records that
    /// [`encode_patch`](crate::encode_patch) made. They must not change until the operation is
    /// complete. The records name words of the area that begins at `remote_offset`. The address of
    /// the area must be a multiple of 4.
    ///
    /// A thread of the peer that reads a word sees the old word or the new word. Only the named
    /// words need to be in the remote region. A patch is always relaxed, but may have fences.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::write`]. Returns
    /// [`OperationRefusal::PatchesRefused`](crate::OperationRefusal::PatchesRefused) if the peer or
    /// this endpoint does not offer patches
    /// ([`EngineConfig::patches`](crate::EngineConfig::patches)), or if the connection is a queue
    /// pair. Then use writes. Other errors of this type that begin with `Patch` say what is wrong
    /// with the operation.
    ///
    /// # Examples
    /// ```no_run
    /// use ethernot::{
    ///     Buffer, Connection, Endpoint, OperationOptions, RemoteRegion, Rights, encode_patch,
    /// };
    ///
    /// fn publish(
    ///     endpoint: &Endpoint,
    ///     connection: &Connection,
    ///     remote: &RemoteRegion,
    ///     before: &[u8; 4096],
    ///     after: &[u8; 4096],
    /// ) -> Result<(), ethernot::Error> {
    ///     let mut records = [0; 4352];
    ///     let length = encode_patch(before, after, &mut records).expect("room for all words");
    ///     let buffer = Buffer::new(4352);
    ///     buffer.write(0, &records[..length]);
    ///     let region = endpoint.register(buffer, Rights::NONE)?;
    ///     let options = OperationOptions::NONE;
    ///     let patch = connection.patch(&region, 0, remote, 0, length as u64, options)?;
    ///     patch.wait(None)?;
    ///     Ok(())
    /// }
    /// ```
    pub fn patch(
        &self,
        local: &MemoryRegion,
        local_offset: u64,
        remote: &RemoteRegion,
        remote_offset: u64,
        length: u64,
        options: OperationOptions,
    ) -> Result<OperationHandle, PostError> {
        let source = Source::Region { region: local.region().id, offset: local_offset };
        self.start_patch(source, remote, remote_offset, length, options)
    }

    /// Copies scattered words like [`Connection::patch`], with up to 64 bytes of records. The call
    /// copies the records, so they may change after the call.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::patch`], and [`PostError::InlineTooLong`] for more than
    /// 64 bytes.
    ///
    /// # Examples
    /// ```no_run
    /// use ethernot::{Connection, OperationOptions, RemoteRegion, encode_patch};
    ///
    /// fn mark(connection: &Connection, remote: &RemoteRegion) -> Result<(), ethernot::Error> {
    ///     let (before, mut after, mut records) = ([0; 4096], [0; 4096], [0; 64]);
    ///     (after[0], after[2048]) = (1, 2);
    ///     let length = encode_patch(&before, &after, &mut records).expect("two short records");
    ///     let options = OperationOptions::NONE;
    ///     connection.patch_bytes(&records[..length], remote, 0, options)?.wait(None)?;
    ///     Ok(())
    /// }
    /// ```
    pub fn patch_bytes(
        &self,
        records: &[u8],
        remote: &RemoteRegion,
        remote_offset: u64,
        options: OperationOptions,
    ) -> Result<OperationHandle, PostError> {
        let length = records.len() as u64;
        self.start_patch(inline(records)?, remote, remote_offset, length, options)
    }

    fn start_patch(
        &self,
        source: Source,
        remote: &RemoteRegion,
        remote_offset: u64,
        length: u64,
        options: OperationOptions,
    ) -> Result<OperationHandle, PostError> {
        // The peer checks the range of the words. The area itself may end behind the region.
        let address = remote.address_of(remote_offset, 0)?;
        self.check_patches()?;
        self.start(Request::Patch { source, key: remote.key, address }, length, options)
    }

    /// Stores `value` in the 64-bit word at `remote_offset` of the peer's memory. The handle
    /// returns the previous value of the word.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::write`]. Returns
    /// [`OperationRefusal::PatchesRefused`](crate::OperationRefusal::PatchesRefused) like
    /// [`Connection::patch`]. Then use [`Connection::compare_swap`].
    ///
    /// # Examples
    /// ```no_run
    /// use ethernot::{Connection, OperationOptions, RemoteRegion};
    ///
    /// /// Appends this process to a queue of waiters, and returns the one before it.
    /// fn enqueue(
    ///     connection: &Connection,
    ///     queue: &RemoteRegion,
    ///     own: u64,
    /// ) -> Result<u64, ethernot::Error> {
    ///     Ok(connection.swap(queue, 0, own, OperationOptions::NONE)?.wait(None)?)
    /// }
    /// ```
    pub fn swap(
        &self,
        remote: &RemoteRegion,
        remote_offset: u64,
        value: u64,
        options: OperationOptions,
    ) -> Result<OperationHandle, PostError> {
        let address = remote.address_of(remote_offset, WORD_BYTES)?;
        self.check_patches()?;
        let request = Request::Swap { key: remote.key, address, value, sink: None };
        self.start(request, WORD_BYTES, options)
    }
}
