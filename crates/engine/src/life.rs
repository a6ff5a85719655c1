//! The role of a link on its connection.

use delivery::{Pack, Packer, Unpacker};

/// The role of a link on its connection. A separate state, [`delivery::PathState`], says whether
/// the link carries data.
///
/// | role    | answered | lost    | back    |
/// |---------|----------|---------|---------|
/// | Trial   | Settled  | (gone)  | –       |
/// | Offered | Settled  | (gone)  | –       |
/// | Settled | –        | Lost    | –       |
/// | Lost    | –        | –       | Settled |
///
/// "(gone)" means that the connection removes the link. A connection keeps a link without an
/// interface only if the peer has answered on no other link. A removed link
/// [retires](crate::link_set::Retired) its index.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) enum Life {
    /// This end tests by challenges whether the link reaches the peer. The peer has not answered
    /// yet.
    Trial,
    /// The peer opened the link and has not answered on it yet. The address of the link may belong
    /// to the peer or to another host.
    Offered,
    /// The peer has answered. Both ends should have the link.
    Settled,
    /// The last link on which the peer has answered, after its interface disappeared. Another link
    /// replaces this link when the connection finds one.
    Lost,
}

impl Life {
    /// Returns the role after the peer has answered on the link.
    pub(crate) const fn on_answered(self) -> Self {
        match self {
            Self::Trial | Self::Offered | Self::Settled => Self::Settled,
            Self::Lost => Self::Lost,
        }
    }

    /// Returns the role after the interface of the link is gone. The connection keeps the link only
    /// if the peer has answered on no other link.
    pub(crate) const fn on_lost(self) -> Self {
        assert!(self.has_answered(), "the link that stays is one on which the peer has answered");
        Self::Lost
    }

    /// Returns the role after the interface has returned.
    pub(crate) const fn on_back(self) -> Self {
        match self {
            Self::Lost => Self::Settled,
            Self::Trial | Self::Offered | Self::Settled => self,
        }
    }

    /// Returns whether the peer has answered on this link.
    #[inline]
    pub(crate) const fn has_answered(self) -> bool {
        matches!(self, Self::Settled | Self::Lost)
    }
}

impl Pack for Life {
    fn pack(&self, to: &mut Packer) {
        (*self as u8).pack(to);
    }

    fn unpack(from: &mut Unpacker<'_>) -> Self {
        match u8::unpack(from) {
            0 => Self::Trial,
            1 => Self::Offered,
            2 => Self::Settled,
            _ => Self::Lost,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Life::{Lost, Offered, Settled, Trial};

    #[test]
    fn transitions_are_those_of_the_table() {
        let table = [
            (Trial, [Settled, Trial], None),
            (Offered, [Settled, Offered], None),
            (Settled, [Settled, Settled], Some(Lost)),
            (Lost, [Lost, Settled], Some(Lost)),
        ];
        for (life, after, lost) in table {
            assert_eq!([life.on_answered(), life.on_back()], after, "{life:?}");
            assert_eq!(life.has_answered(), lost.is_some(), "only an answered link is lost");
            assert_eq!(life.has_answered().then(|| life.on_lost()), lost, "{life:?}");
        }
    }

    #[test]
    fn a_packed_life_unpacks_to_the_same_state() {
        for life in [Trial, Offered, Settled, Lost] {
            let mut to = Packer::new(delivery::Instant(0));
            life.pack(&mut to);
            assert_eq!(Life::unpack(&mut Unpacker::new(&to.finish())), life);
        }
    }
}
