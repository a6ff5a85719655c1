//! Records whether frames of the peer have arrived under a link index.

use delivery::{Pack, Packer, Unpacker};

/// Whether any frame of the peer has arrived under the index of a link.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum Heard {
    /// No frame has arrived.
    #[default]
    Never,
    /// Frames arrived only on an earlier link with this index. The peer may not know that the
    /// earlier link was removed.
    Before,
    /// A frame has arrived on the link that now has the index.
    Here,
}

impl Heard {
    /// Returns the state of a link index after this end uses the index for another link.
    pub(crate) const fn renewed(self) -> Self {
        match self {
            Self::Never => Self::Never,
            Self::Before | Self::Here => Self::Before,
        }
    }
}

impl Pack for Heard {
    fn pack(&self, to: &mut Packer) {
        (*self as u8).pack(to);
    }

    fn unpack(from: &mut Unpacker<'_>) -> Self {
        match u8::unpack(from) {
            0 => Self::Never,
            1 => Self::Before,
            _ => Self::Here,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Heard::{self, Before, Here, Never};
    use delivery::{Instant, Pack, Packer, Unpacker};

    #[test]
    fn a_renewed_index_remembers_that_the_peer_was_heard() {
        assert_eq!([Never, Before, Here].map(Heard::renewed), [Never, Before, Before]);
    }

    #[test]
    fn heard_state_survives_compression_while_idle() {
        for heard in [Never, Before, Here] {
            let mut packer = Packer::new(Instant(0));
            heard.pack(&mut packer);
            assert_eq!(Heard::unpack(&mut Unpacker::new(&packer.finish())), heard);
        }
    }
}
