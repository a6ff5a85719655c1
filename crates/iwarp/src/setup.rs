//! What the set-up frames of both ends agree on (RFC 5044 section 7.1, RFC 6581).
//!
//! All functions are pure; [`crate::Stream`] sends and receives the frames.

use wire_iwarp::{
    Cause, DEPTH_MAX, DEPTH_NOT_NEGOTIATED, EnhancedSetup, Revision, SetupFlags, SetupFrame,
    SetupKind,
};

use crate::config::{Config, PeerKind, Rtr, RtrKinds, Terms};
use crate::event::SetupFault;

/// Returns the request of an initiator.
///
/// The reserved bit `gso` is set, because Linux siw and this project echo it, and an echo shows that
/// the peer takes FPDUs that are longer than a TCP segment. [`SetupFlags::ETHERNOT_REQUEST`] shows a
/// responder of this project that the initiator is one, too.
pub(crate) fn request<'a>(config: &Config, private_data: &'a [u8]) -> SetupFrame<'a> {
    let is_enhanced = config.revision == Revision::Two;
    let kinds = config.peer_to_peer.filter(|_| is_enhanced);
    let enhanced = EnhancedSetup {
        ird: config.ird.min(DEPTH_MAX),
        ord: config.ord.min(DEPTH_MAX),
        peer_to_peer: kinds.is_some(),
        rtr_send: kinds.is_some_and(|kinds| kinds.send),
        rtr_write: kinds.is_some_and(|kinds| kinds.write),
        // The RTR message is a read of this end, for which it needs ORD.
        rtr_read: kinds.is_some_and(|kinds| kinds.read) && config.ord > 0,
    };
    SetupFrame {
        kind: SetupKind::Request,
        revision: config.revision,
        flags: SetupFlags {
            markers: config.markers,
            crc: config.crc,
            enhanced: is_enhanced,
            gso: true,
            reserved: SetupFlags::ETHERNOT_REQUEST,
            ..SetupFlags::default()
        },
        enhanced: is_enhanced.then_some(enhanced),
        private_data,
    }
}

/// The parts of a request that the answer depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asked {
    revision: Revision,
    flags: SetupFlags,
    enhanced: Option<EnhancedSetup>,
}

impl Asked {
    pub(crate) const fn of(request: &SetupFrame<'_>) -> Self {
        Self { revision: request.revision, flags: request.flags, enhanced: request.enhanced }
    }

    /// Returns the number of reads that the initiator answers at a time.
    pub(crate) fn ird(&self) -> Option<u16> {
        self.enhanced.and_then(|words| negotiated(words.ird))
    }

    /// Returns the number of reads that the initiator wants to have outstanding.
    pub(crate) fn ord(&self) -> Option<u16> {
        self.enhanced.and_then(|words| negotiated(words.ord))
    }

    /// Returns what the request says about the initiator. An initiator of siw sets `gso` if it sends
    /// long FPDUs, and no other reserved bit.
    const fn peer(&self) -> PeerKind {
        if self.flags.reserved & SetupFlags::ETHERNOT_REQUEST != 0 {
            PeerKind::Ethernot
        } else if self.flags.gso {
            PeerKind::Siw
        } else {
            PeerKind::Unknown
        }
    }
}

/// Returns the number of reads in a word, or `None` if it is not negotiated.
fn negotiated(depth: u16) -> Option<u16> {
    (depth != DEPTH_NOT_NEGOTIATED).then_some(depth)
}

//= RFC 6581 section 9: the responder lowers its ORD to the IRD of the initiator
//= RFC 6581 section 9: the responder picks one of the offered RTR messages
/// Returns the reply of a responder that accepts, and the terms.
pub(crate) fn accept<'a>(
    config: &Config,
    asked: &Asked,
    private_data: &'a [u8],
    ird: u16,
    ord: u16,
) -> (SetupFrame<'a>, Terms) {
    let offered = asked.enhanced.filter(|words| words.peer_to_peer).map(RtrKinds::of);
    // An initiator that can only read as its RTR message needs a responder that answers a read, also
    // if the program answers none.
    let is_read_only = offered.is_some_and(|kinds| kinds.read && !kinds.write && !kinds.send);
    let ird = ird.max(is_read_only.into()).min(config.ird_max).min(DEPTH_MAX);
    let ord = ord.min(DEPTH_MAX).min(asked.ird().unwrap_or(DEPTH_MAX));
    let usable = offered.map(|kinds| RtrKinds { read: kinds.read && ird > 0, ..kinds });
    let picked = usable.and_then(RtrKinds::preferred);
    let enhanced = asked.enhanced.map(|_| EnhancedSetup {
        ird,
        ord,
        peer_to_peer: offered.is_some(),
        rtr_send: picked == Some(Rtr::Send),
        rtr_write: picked == Some(Rtr::Write),
        rtr_read: picked == Some(Rtr::Read),
    });
    let terms = Terms {
        revision: asked.revision,
        crc: asked.flags.crc || config.crc,
        sends_markers: asked.flags.markers,
        receives_markers: config.markers,
        // The initiator did not learn our limit, or may have not.
        ird: if asked.ord().is_some() { ird } else { config.ird_max },
        ord,
        long_fpdus: config.long_fpdus || asked.flags.gso,
        peer_to_peer: picked.is_some(),
        peer: asked.peer(),
    };
    let frame = SetupFrame {
        kind: SetupKind::Reply,
        revision: asked.revision,
        flags: reply_flags(config, asked, terms.crc, false),
        enhanced,
        private_data,
    };
    (frame, terms)
}

/// Returns the reply of a responder that rejects.
pub(crate) fn reject<'a>(config: &Config, asked: &Asked, private_data: &'a [u8]) -> SetupFrame<'a> {
    SetupFrame {
        kind: SetupKind::Reply,
        revision: asked.revision,
        flags: reply_flags(config, asked, asked.flags.crc || config.crc, true),
        enhanced: asked.enhanced.map(|_| EnhancedSetup::default()),
        private_data,
    }
}

//= RFC 5044 section 7.1: a reply sets its own bits, and reserved bits to 0
/// Returns the flags of a reply. The bit `gso` is the only one that is echoed. Of the reserved bits,
/// a reply to an initiator of this project sets the one that shows that the responder is one, too.
fn reply_flags(config: &Config, asked: &Asked, crc: bool, reject: bool) -> SetupFlags {
    SetupFlags {
        markers: config.markers,
        crc,
        reject,
        enhanced: asked.enhanced.is_some(),
        gso: asked.flags.gso,
        reserved: match asked.peer() {
            PeerKind::Ethernot => SetupFlags::ETHERNOT_REPLY,
            PeerKind::Siw | PeerKind::Unknown => 0,
        },
    }
}

/// What an initiator makes of a reply that does not reject.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Agreed {
    pub(crate) terms: Terms,
    /// The RTR message to send.
    pub(crate) rtr: Option<Rtr>,
    /// What a Terminate is to say, if the reply cannot be accepted after all.
    pub(crate) fault: Option<Cause>,
}

/// Returns what the flags of a reply to [`request`] say about the responder.
const fn responder(flags: SetupFlags) -> PeerKind {
    if flags.reserved & SetupFlags::ETHERNOT_REPLY != 0 {
        PeerKind::Ethernot
    } else if flags.reserved & SetupFlags::ETHERNOT_REQUEST != 0 {
        PeerKind::Siw
    } else {
        PeerKind::Unknown
    }
}

//= RFC 5044 section 7.1: both ends use CRCs if either asks for them
//= RFC 6581 section 9: an initiator that cannot answer the ORD of the responder terminates
/// Returns what the reply to this request means.
pub(crate) fn agree(config: &Config, reply: &SetupFrame<'_>) -> Result<Agreed, SetupFault> {
    if reply.revision != config.revision {
        return Err(SetupFault::Revision(reply.revision));
    }
    if config.revision == Revision::Two && reply.enhanced.is_none() {
        return Err(SetupFault::NotEnhanced);
    }
    let mut terms = Terms {
        revision: reply.revision,
        crc: config.crc || reply.flags.crc,
        sends_markers: reply.flags.markers,
        receives_markers: config.markers,
        ird: config.ird_max,
        ord: config.ord,
        long_fpdus: config.long_fpdus || reply.flags.gso,
        peer_to_peer: false,
        peer: responder(reply.flags),
    };
    let Some(words) = reply.enhanced else {
        return Ok(Agreed { terms, rtr: None, fault: None });
    };
    let mut fault = None;
    if let Some(ord) = negotiated(words.ord) {
        terms.ird = config.ird.max(ord);
        if ord > config.ird_max {
            fault = Some(Cause::MpaInsufficientIrd);
        }
    }
    if let Some(ird) = negotiated(words.ird) {
        terms.ord = config.ord.min(ird);
    }
    let offered = config.peer_to_peer.filter(|_| words.peer_to_peer);
    let rtr = match offered {
        None => None,
        Some(offered) => {
            let offered = RtrKinds { read: offered.read && config.ord > 0, ..offered };
            let wanted = RtrKinds::of(words);
            // A responder that names no kind waits for any first message.
            let common = if wanted.is_empty() { offered } else { wanted.and(offered) };
            // A read that exceeds the IRD of the responder would be refused.
            let common = RtrKinds { read: common.read && terms.ord > 0, ..common };
            let rtr = common.preferred();
            if rtr.is_none() && !wanted.is_empty() {
                fault = fault.or(Some(Cause::MpaNoMatchingRtr));
            }
            rtr
        }
    };
    terms.peer_to_peer = offered.is_some();
    Ok(Agreed { terms, rtr, fault })
}
