//! The memory of an end, and an oracle that knows what may be placed in it.

use std::collections::VecDeque;

use iwarp::{Access, Memory, Piece, Refusal};
use wire_iwarp::Stag;

use crate::input::Input;

/// Address of the first byte of every region.
pub(super) const BASE: u64 = 0x1_0000;

/// Length of every region in bytes.
pub(super) const REGION_BYTES: u32 = 1024;

/// The region with the pieces of own operations and receives. The peer has no rights to it.
pub(super) const OWN: u32 = 0x100;
/// The region that the peer may read.
pub(super) const READABLE: u32 = 0x200;
/// The region that the peer may write.
pub(super) const WRITABLE: u32 = 0x300;
/// A region of another queue pair.
const FOREIGN: u32 = 0x400;

/// The keys of all regions, and one that no region has.
const KEYS: [u32; 5] = [OWN, READABLE, WRITABLE, FOREIGN, 0x500];

/// Returns the key of a region, or rarely any number.
pub(super) fn any_key(input: &mut Input<'_>) -> u32 {
    let choice = input.u8();
    KEYS.get(usize::from(choice & 7)).copied().unwrap_or_else(|| input.small())
}

/// Returns an address in a region, near its end, or rarely any number.
pub(super) fn any_address(input: &mut Input<'_>) -> u64 {
    match input.u8() {
        byte @ 0..=0xdf => BASE + u64::from(byte),
        0xe0..=0xef => BASE + u64::from(REGION_BYTES) - u64::from(input.u8()),
        _ => u64::MAX - u64::from(input.u16()),
    }
}

/// The operation or receive to which pieces belong.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) enum Owner {
    Operation(u64),
    Receive(u64),
}

/// The memory of an end.
#[derive(Default)]
pub(super) struct OracleMemory {
    removed: Vec<u32>,
    /// The pieces of outstanding operations and of receives that the stream has taken.
    owned: Vec<(Owner, Piece)>,
    receives: VecDeque<(u64, Vec<Piece>)>,
    /// The receives that the stream has taken and not reported, oldest first.
    pub(super) taken: VecDeque<(u64, u32)>,
    /// Whether the check of a sink has been refused. Nothing may be placed after that.
    is_refused: bool,
    /// Whether the stream has reported its end.
    pub(super) is_ended: bool,
}

impl OracleMemory {
    /// Removes a region, as a program does that deregisters it.
    pub(super) fn remove(&mut self, input: &mut Input<'_>) {
        self.removed.push(any_key(input));
    }

    pub(super) fn has_all_regions(&self) -> bool {
        self.removed.is_empty()
    }

    /// Posts a receive.
    pub(super) fn post_receive(&mut self, id: u64, pieces: Vec<Piece>) {
        self.receives.push_back((id, pieces));
    }

    /// Takes note that pieces belong to an operation.
    pub(super) fn own(&mut self, owner: Owner, pieces: &[Piece]) {
        self.owned.extend(pieces.iter().map(|piece| (owner, *piece)));
    }

    /// Takes note that an operation or receive has ended: its pieces are the program's again.
    pub(super) fn disown(&mut self, owner: Owner) {
        self.owned.retain(|(other, _)| *other != owner);
    }

    fn permit(&self, piece: Piece, access: Access) -> Result<(), Refusal> {
        if !KEYS[..4].contains(&piece.key) || self.removed.contains(&piece.key) {
            return Err(Refusal::Key);
        }
        if piece.key == FOREIGN {
            return Err(Refusal::Stream);
        }
        let end = piece.address.checked_add(u64::from(piece.bytes)).ok_or(Refusal::Bounds)?;
        if piece.address < BASE || end > BASE + u64::from(REGION_BYTES) {
            return Err(Refusal::Bounds);
        }
        let is_allowed = match access {
            Access::LocalRead | Access::LocalWrite | Access::Receive => true,
            Access::RemoteRead => piece.key == READABLE,
            Access::RemoteWrite => piece.key == WRITABLE,
        };
        if is_allowed { Ok(()) } else { Err(Refusal::Rights) }
    }

    /// Checks that a local access touches only pieces of what is outstanding.
    fn expect_owned(&self, piece: Piece, access: Access) {
        if matches!(access, Access::RemoteRead | Access::RemoteWrite) {
            return;
        }
        let holds = |owned: &Piece| {
            let (start, end) = (owned.address, owned.address.saturating_add(owned.bytes.into()));
            let last = piece.address.saturating_add(piece.bytes.into());
            owned.key == piece.key && start <= piece.address && last <= end
        };
        let is_owned = self.owned.iter().any(|(_, owned)| holds(owned));
        assert!(is_owned, "{access:?} of {piece:?}, which nothing outstanding has");
    }
}

impl Memory for OracleMemory {
    fn check(&mut self, piece: Piece, access: Access) -> Result<(), Refusal> {
        assert!(piece.bytes > 0, "an empty piece is checked");
        let checked = self.permit(piece, access);
        let is_sink = matches!(access, Access::LocalWrite | Access::Receive | Access::RemoteWrite);
        self.is_refused |= checked.is_err() && is_sink;
        checked
    }

    fn place(
        &mut self,
        piece: Piece,
        access: Access,
        bytes: &[u8],
        _is_tail: bool,
    ) -> Result<(), Refusal> {
        assert_eq!(bytes.len(), piece.bytes as usize);
        assert!(!bytes.is_empty() && !self.is_ended && !self.is_refused, "{piece:?} is placed");
        assert!(matches!(access, Access::LocalWrite | Access::Receive | Access::RemoteWrite));
        self.expect_owned(piece, access);
        let permitted = self.permit(piece, access);
        // The stream has checked the piece, so only the end of a region can refuse it now.
        assert!(permitted.is_ok() || !self.has_all_regions(), "{piece:?} was not checked");
        permitted
    }

    fn read(&mut self, piece: Piece, access: Access, out: &mut [u8]) -> Result<(), Refusal> {
        assert_eq!(out.len(), piece.bytes as usize);
        assert!(!out.is_empty() && matches!(access, Access::LocalRead | Access::RemoteRead));
        self.expect_owned(piece, access);
        self.permit(piece, access)?;
        out.fill(piece.address as u8);
        Ok(())
    }

    fn invalidate(&mut self, stag: Stag) -> Result<(), Refusal> {
        if stag.0 != WRITABLE || self.removed.contains(&WRITABLE) {
            return Err(Refusal::Rights);
        }
        self.removed.push(stag.0);
        Ok(())
    }

    fn take_receive(&mut self, pieces: &mut Vec<Piece>) -> Option<u64> {
        assert!(pieces.is_empty() && !self.is_ended);
        let (id, own) = self.receives.pop_front()?;
        pieces.extend(&own);
        self.taken.push_back((id, own.iter().map(|piece| piece.bytes).sum()));
        self.own(Owner::Receive(id), &own);
        Some(id)
    }
}
