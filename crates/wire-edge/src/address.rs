//! Link addresses in handshakes and control messages.

use crate::error::DecodeError;
use crate::fields::{self, Layout, layout_end};
use crate::identity::PeerAddr;
use crate::octets::get;

/// Size of an address on the wire, in bytes.
pub(crate) const ADDRESS_BYTES: usize = layout_end(Layout::Address);

//= protocol.md: address.1
/// Decodes an address. Rejects unknown families. Also rejects nonzero values in bytes that the
/// family does not use, because equal addresses must have equal bytes.
pub(crate) fn decode_address(bytes: &[u8; ADDRESS_BYTES]) -> Result<PeerAddr, DecodeError> {
    let host = get!(bytes, fields::HOST);
    let used = match u8::from_le_bytes(get!(bytes, fields::FAMILY)) {
        1 => 6,
        4 => 4,
        2 | 6 => host.len(),
        _ => return Err(DecodeError::Address(*bytes)),
    };
    let zero =
        get!(bytes, fields::FAMILY_ZERO) == [0] && host.iter().skip(used).all(|&byte| byte == 0);
    if zero { Ok(PeerAddr(*bytes)) } else { Err(DecodeError::Address(*bytes)) }
}

/// The addresses of an endpoint's links, in the order of link identifiers. The list contains either
/// addresses to encode, or bytes of a frame that the decoder has checked.
#[derive(Clone, Copy, Debug)]
pub struct Addresses<'a>(AddressSource<'a>);

#[derive(Clone, Copy, Debug)]
enum AddressSource<'a> {
    Slice(&'a [PeerAddr]),
    Wire(&'a [[u8; ADDRESS_BYTES]]),
}

impl<'a> Addresses<'a> {
    /// An empty list.
    pub const NONE: Self = Self(AddressSource::Slice(&[]));

    /// Creates a list of these addresses. A frame has room for at most [`crate::ADDRESSES_MAX`]
    /// addresses.
    pub const fn from_slice(addresses: &'a [PeerAddr]) -> Self {
        Self(AddressSource::Slice(addresses))
    }

    /// Decodes the addresses in the bytes of a frame.
    pub(crate) fn decode(addresses: &'a [[u8; ADDRESS_BYTES]]) -> Result<Self, DecodeError> {
        for address in addresses {
            decode_address(address)?;
        }
        Ok(Self(AddressSource::Wire(addresses)))
    }

    /// Returns the number of addresses.
    pub const fn len(&self) -> usize {
        match self.0 {
            AddressSource::Slice(addresses) => addresses.len(),
            AddressSource::Wire(addresses) => addresses.len(),
        }
    }

    /// Returns whether the list is empty.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns an iterator over the addresses.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = PeerAddr> + Clone + 'a {
        let source = self.0;
        (0..self.len()).map(move |index| match source {
            AddressSource::Slice(addresses) => addresses.get(index).copied().unwrap_or_default(),
            AddressSource::Wire(addresses) => {
                addresses.get(index).copied().map(PeerAddr).unwrap_or_default()
            }
        })
    }
}

impl PartialEq for Addresses<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Addresses<'_> {}
