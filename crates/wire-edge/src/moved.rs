//! The endpoint to which a service has moved: the private data of a Reject with reason 5, `Moved`
//! (protocol.md §2.2).

use crate::address::decode_address;
use crate::error::DecodeError;
use crate::fields::{self, Layout, layout_end};
use crate::identity::PeerAddr;
use crate::octets::{get, put};

/// The endpoint that now has the service.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Moved {
    /// The address of the endpoint. If all bytes of the host in the address are 0, the endpoint is
    /// on the host that sent the Reject.
    pub address: PeerAddr,
    /// The number of the service at that endpoint.
    pub service: u32,
}

/// Size of a [`Moved`] on the wire, in bytes.
pub const MOVED_BYTES: usize = layout_end(Layout::Moved);

impl Moved {
    /// Encodes the private data of a Reject with reason `Moved`.
    pub fn encode(&self) -> [u8; MOVED_BYTES] {
        let mut bytes = [0; MOVED_BYTES];
        put!(&mut bytes, fields::MOVED_ADDRESS, self.address.0);
        put!(&mut bytes, fields::MOVED_SERVICE, self.service.to_le_bytes());
        bytes
    }

    //= protocol.md: moved.1
    /// Decodes the private data of a Reject with reason `Moved`.
    ///
    /// # Errors
    /// Returns [`DecodeError`] if the data has the wrong length, or if the address is malformed.
    pub fn decode(private_data: &[u8]) -> Result<Self, DecodeError> {
        let Ok(bytes) = <&[u8; MOVED_BYTES]>::try_from(private_data) else {
            let (needed, found) = (MOVED_BYTES, private_data.len());
            return Err(DecodeError::Truncated { part: "private data of moved", needed, found });
        };
        let address = decode_address(&get!(bytes, fields::MOVED_ADDRESS))?;
        let service = u32::from_le_bytes(get!(bytes, fields::MOVED_SERVICE));
        Ok(Self { address, service })
    }

    //= protocol.md: moved.1, moved.2
    /// Returns the address to connect to next, after a Reject with this `Moved` has arrived from
    /// the address `from`. Returns `None` for an address that must not be used: a group address, or
    /// an address of another family than `from`.
    pub fn seen_from(&self, from: PeerAddr) -> Option<PeerAddr> {
        let mut address = self.address;
        if address.0[4..] == [0; 16] {
            address.0[4..].copy_from_slice(&from.0[4..]);
        }
        let is_alike = address.0[0] == from.0[0];
        (is_alike && !address.is_group()).then_some(address)
    }
}

#[cfg(test)]
mod tests {
    use core::net::SocketAddr;

    use proptest::prelude::*;

    use super::*;
    use crate::generate::address;

    proptest! {
        //= protocol.md: moved.1
        #[test]
        fn decode_returns_what_was_encoded(address in address(), service: u32, other in 0..40_usize) {
            let moved = Moved { address, service };
            let bytes = moved.encode();
            prop_assert_eq!(Moved::decode(&bytes), Ok(moved));
            prop_assume!(other != bytes.len());
            let mut longer = bytes.to_vec();
            longer.resize(other, 0);
            prop_assert!(Moved::decode(&longer).is_err());
        }
    }

    fn ip(text: &str) -> PeerAddr {
        PeerAddr::from(text.parse::<SocketAddr>().unwrap())
    }

    //= protocol.md: moved.1, moved.2
    #[test]
    fn a_redirect_names_one_host_of_the_family_or_none() {
        let seen = |address, from| Moved { address: ip(address), service: 1 }.seen_from(ip(from));
        assert_eq!(seen("10.0.0.1:7", "10.0.0.2:9"), Some(ip("10.0.0.1:7")));
        assert_eq!(seen("0.0.0.0:7", "10.0.0.2:9"), Some(ip("10.0.0.2:7")));
        assert_eq!(seen("[::]:7", "[fd00::2]:9"), Some(ip("[fd00::2]:7")));
        assert_eq!(seen("[fd00::1]:7", "10.0.0.2:9"), None);
        assert_eq!(seen("239.0.0.1:7", "10.0.0.2:9"), None);
        assert_eq!(Moved::decode(&[9; MOVED_BYTES]), Err(DecodeError::Address([9; 20])));
    }
}
