//! Errors of callers that encode.

/// Why a frame cannot be encoded. The fault is the caller's.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// The buffer is too short.
    #[error("the frame needs {needed} bytes and the buffer has {found}")]
    Buffer {
        /// Length of the frame in bytes.
        needed: usize,
        /// Length of the buffer in bytes.
        found: usize,
    },
    /// The private data, with the words of enhanced set-up, is too long.
    #[error("{0} bytes of private data do not fit into a set-up frame")]
    PrivateDataLength(usize),
    /// The words of enhanced set-up are there without revision 2 and its flag, or the flag in
    /// revision 2 without the words.
    #[error("words of enhanced set-up need revision 2 and the flag, and belong to them")]
    Enhanced,
    /// A number of reads does not fit into 14 bits.
    #[error("{0} outstanding reads do not fit into 14 bits")]
    Depth(u16),
    /// A reserved field has bits outside its mask.
    #[error("reserved bits {bits:#06x} are outside of {mask:#06x}")]
    Reserved {
        /// The bits.
        bits: u16,
        /// The mask of the field.
        mask: u16,
    },
}
