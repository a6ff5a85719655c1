//! Scatter/gather: operations and receives with a list of memory pieces.

use semantics::{PIECES_MAX, Piece, PieceList, PieceListError, Request, Source};

use crate::connection::{Connection, OperationOptions};
use crate::error::PostError;
use crate::handle::OperationHandle;
use crate::region::{RegionSlice, RemoteRegion};

/// Operations and receives with scatter/gather lists. The pieces may lie in several regions or at
/// several places of one region, and may be empty. An operation transfers the bytes of all pieces,
/// in the order of the list. A list has at most [`Connection::PIECES_MAX`] pieces. The peer cannot
/// detect whether an operation has a list.
///
/// ```
/// # use std::{thread, time::Duration};
/// # use ethernot::{Buffer, Endpoint, Error, OperationOptions, RemoteRegion, Rights};
/// # fn main() -> Result<(), Error> {
/// # let target = Endpoint::bind("127.0.0.1:0")?;
/// # let memory = Buffer::new(4096);
/// # let offered = target.register(memory.clone(), Rights::REMOTE_WRITE | Rights::REMOTE_READ)?;
/// # let remote = offered.remote();
/// # let (listener, address) = (target.listen(0)?, target.local_addresses()?[0]);
/// # let accepting = thread::spawn(move || listener.accept(None)?.accept(&[]).map_err(Error::from));
/// # let endpoint = Endpoint::bind("127.0.0.1:0")?;
/// # let connection = endpoint.connect(address)?;
/// let (header, body) = (Buffer::new(16), Buffer::new(4096));
/// header.write(0, b"length 5");
/// body.write(100, b"hello");
/// let header = endpoint.register(header, Rights::LOCAL_WRITE)?;
/// let body = endpoint.register(body, Rights::LOCAL_WRITE)?;
///
/// // One write gathers both pieces, and one read scatters them in the other order.
/// let pieces = [header.slice(..8)?, body.slice(100..105)?];
/// let write = connection.write_list(&pieces, &remote, 0, OperationOptions::NONE)?;
/// write.wait(Some(Duration::from_secs(5)))?;
/// let pieces = [body.slice(..5)?, header.slice(8..16)?];
/// connection.read_list(&pieces, &remote, 8, OperationOptions::NONE)?.wait(Some(Duration::from_secs(5)))?;
/// let mut bytes = [0; 13];
/// memory.read(0, &mut bytes);
/// assert_eq!(&bytes, b"length 5hello");
/// # drop((connection, accepting.join().expect("it does not panic")?));
/// # Ok(())
/// # }
/// ```
impl Connection {
    /// Largest number of pieces of one operation or receive.
    pub const PIECES_MAX: usize = PIECES_MAX;

    /// Writes the bytes of `pieces`, in order, to the peer's memory from `remote_offset`.
    ///
    /// The bytes must not change until the operation is complete.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::write`], and [`PostError::Pieces`] for an invalid list.
    pub fn write_list(
        &self,
        pieces: &[RegionSlice<'_>],
        remote: &RemoteRegion,
        remote_offset: u64,
        options: OperationOptions,
    ) -> Result<OperationHandle, PostError> {
        let stored = Pieces::new(pieces)?;
        let list = stored.list()?;
        let address = remote.address_of(remote_offset, u64::from(list.length()))?;
        let request = Request::Write { source: ELSEWHERE, key: remote.key, address };
        self.start_bytes(request, u64::from(list.length()), Some(list), options)
    }

    /// Reads bytes of the peer's memory, from `remote_offset`, and stores them in `pieces`, in
    /// order. The length of the read is the total length of the pieces. The regions of the pieces
    /// need [`Rights::LOCAL_WRITE`](crate::Rights::LOCAL_WRITE).
    ///
    /// # Errors
    /// Returns the errors of [`Connection::write_list`].
    pub fn read_list(
        &self,
        pieces: &[RegionSlice<'_>],
        remote: &RemoteRegion,
        remote_offset: u64,
        options: OperationOptions,
    ) -> Result<OperationHandle, PostError> {
        let stored = Pieces::new(pieces)?;
        let list = stored.list()?;
        let address = remote.address_of(remote_offset, u64::from(list.length()))?;
        let Piece { region, offset, .. } = Piece::NOTHING;
        let request = Request::Read { sink: region, sink_offset: offset, key: remote.key, address };
        self.start_bytes(request, u64::from(list.length()), Some(list), options)
    }

    /// Sends the bytes of `pieces`, in order, as one message.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::write_list`].
    pub fn send_list(
        &self,
        pieces: &[RegionSlice<'_>],
        options: OperationOptions,
    ) -> Result<OperationHandle, PostError> {
        let stored = Pieces::new(pieces)?;
        let list = stored.list()?;
        let request = Request::Send { source: ELSEWHERE };
        self.start_bytes(request, u64::from(list.length()), Some(list), options)
    }

    /// Posts `pieces` as the buffer for one message. The message fills the pieces in order. A
    /// completion with `context` reports the arrival of the message.
    ///
    /// # Errors
    /// Returns the errors of [`Connection::write_list`].
    pub fn post_receive_list(
        &self,
        pieces: &[RegionSlice<'_>],
        context: u64,
    ) -> Result<(), PostError> {
        let stored = Pieces::new(pieces)?;
        self.submit_receive_list(stored.list()?, context)
    }
}

/// Placeholder for the source of an operation with a list. The engine ignores it.
const ELSEWHERE: Source =
    Source::Region { region: Piece::NOTHING.region, offset: Piece::NOTHING.offset };

/// Pieces in the form that the engine uses.
struct Pieces {
    kept: [Piece; PIECES_MAX],
    count: usize,
}

impl Pieces {
    fn new(slices: &[RegionSlice<'_>]) -> Result<Self, PostError> {
        if slices.len() > PIECES_MAX {
            return Err(PieceListError::TooMany(slices.len()).into());
        }
        let mut kept = [Piece::NOTHING; PIECES_MAX];
        for (piece, slice) in kept.iter_mut().zip(slices) {
            let length = u32::try_from(slice.len()).map_err(|_| PostError::TooLong(slice.len()))?;
            *piece = Piece { region: slice.region().region().id, offset: slice.offset(), length };
        }
        Ok(Self { kept, count: slices.len() })
    }

    fn list(&self) -> Result<PieceList<'_>, PostError> {
        Ok(PieceList::new(self.kept.get(..self.count).unwrap_or_default())?)
    }
}
