//! Rules for the numbers and flags of a connection frame (protocol.md §3.1 and §3.2).

use crate::error::DecodeError;
use crate::fields;
use crate::flags::{Flags, Kind};
use crate::frame::{Header, OPERATION_BYTES_MAX};
use crate::patch::{PATCH_WORD_BYTES, PatchRecords};

//= protocol.md: flag.1, send-invalidate.1, patch.4
/// Checks that a frame of this kind may have these flags. Checks the flags that announce parts of a
/// frame, and the flags that apply to a whole operation.
pub(crate) fn check_flags(kind: Kind, flags: Flags) -> Result<(), DecodeError> {
    let (required, forbidden) = match kind {
        Kind::Handshake => return Err(DecodeError::Handshake),
        Kind::Datagram => return Err(DecodeError::Datagram),
        Kind::Ack => (Flags::ACK, Flags::IMMEDIATE),
        Kind::Control | Kind::ReadResponse => (Flags::NONE, Flags::IMMEDIATE),
        Kind::Probe => (Flags::NONE, Flags::IMMEDIATE.with(Flags::ACK)),
        Kind::Write | Kind::Send if flags.contains(Flags::IMMEDIATE) => (Flags::LAST, Flags::NONE),
        Kind::Patch if flags.contains(Flags::IMMEDIATE) => (Flags::LAST, Flags::STRICT),
        Kind::Patch => (Flags::NONE, Flags::STRICT),
        Kind::SendInvalidate if flags.intersects(Flags::LAST.with(Flags::IMMEDIATE)) => {
            (Flags::LAST.with(Flags::IMMEDIATE), Flags::NONE)
        }
        Kind::Write | Kind::Send | Kind::SendInvalidate => (Flags::NONE, Flags::NONE),
        Kind::ReadRequest | Kind::Atomic | Kind::AtomicResponse => (Flags::LAST, Flags::IMMEDIATE),
    };
    if !flags.contains(required) {
        return Err(DecodeError::FlagMissing { kind, flag: required.without(flags) });
    }
    if flags.intersects(forbidden) {
        return Err(DecodeError::FlagForbidden { kind, flag: Flags(flags.0 & forbidden.0) });
    }
    Ok(())
}

//= protocol.md: length.1
/// Checks that the numbers in a header and the length of the payload are consistent.
pub(crate) fn check_ranges(
    flags: Flags,
    header: &Header,
    payload: usize,
) -> Result<(), DecodeError> {
    match *header {
        Header::Write { offset, address, .. } => check_write(flags, offset, address, payload),
        Header::Send { offset, .. }
        | Header::SendInvalidate { offset, .. }
        | Header::Patch { offset, .. }
        | Header::ReadResponse { offset, .. } => check_offset(flags, offset, payload),
        Header::ReadRequest { length, address, .. } => {
            if u64::from(length) > OPERATION_BYTES_MAX {
                return Err(DecodeError::OperationLength { end: length.into() });
            }
            check_address(address, length.into())?;
            check_end("ReadRequest", payload)
        }
        Header::Atomic { address, .. } => {
            check_address(address, 8)?;
            check_end("Atomic", payload)
        }
        Header::AtomicResponse { .. } => check_end("AtomicResponse", payload),
        Header::Ack => check_end("Ack", payload),
        Header::Control if payload == 0 => Err(DecodeError::ControlEmpty),
        Header::Control | Header::Probe => Ok(()),
    }
}

//= protocol.md: length.2
/// Checks that the bytes of a Write are within the operation, and that the operation is within the
/// address space.
#[inline]
pub(crate) fn check_write(
    flags: Flags,
    offset: u32,
    address: u64,
    payload: usize,
) -> Result<(), DecodeError> {
    check_offset(flags, offset, payload)?;
    if address < offset.into() {
        return Err(DecodeError::AddressBeforeStart { address, offset });
    }
    check_address(address, payload as u64)
}

//= protocol.md: length.1, length.3
/// Checks that the payload is within the operation. Only an empty operation may have an empty
/// payload.
#[inline]
fn check_offset(flags: Flags, offset: u32, payload: usize) -> Result<(), DecodeError> {
    let end = u64::from(offset) + payload as u64;
    if end > OPERATION_BYTES_MAX {
        return Err(DecodeError::OperationLength { end });
    }
    if payload == 0 && !(offset == 0 && flags.contains(Flags::LAST)) {
        return Err(DecodeError::PayloadEmpty { offset });
    }
    Ok(())
}

//= protocol.md: length.2
/// Checks that the bytes that a frame accesses at its receiver are within the address space.
#[inline]
fn check_address(address: u64, length: u64) -> Result<(), DecodeError> {
    match address.checked_add(length) {
        Some(_) => Ok(()),
        None => Err(DecodeError::AddressWraps { address, length }),
    }
}

//= protocol.md: length.4
/// Checks that no bytes follow `part`.
pub(crate) fn check_end(part: &'static str, rest: usize) -> Result<(), DecodeError> {
    if rest == 0 { Ok(()) } else { Err(DecodeError::Trailing { part, bytes: rest }) }
}

//= protocol.md: patch.1, patch.2, patch.3
/// Checks the address and the records of a Patch frame.
///
/// # Errors
/// Returns [`DecodeError`] in these cases:
///
/// * `address` is not a multiple of 4.
/// * The bytes are not whole records.
/// * The block numbers do not ascend.
/// * A named word is not in the address space.
pub(crate) fn check_records(address: u64, payload: &[u8]) -> Result<(), DecodeError> {
    if !address.is_multiple_of(PATCH_WORD_BYTES as u64) {
        return Err(DecodeError::Range { field: fields::ADDRESS.name, value: address });
    }
    let mut records = PatchRecords::new(payload);
    let mut before = None;
    let mut end = 0;
    for (record, _) in &mut records {
        if before >= Some(record.block) {
            return Err(DecodeError::PatchOrder { block: record.block });
        }
        before = Some(record.block);
        end = record.span().end;
    }
    if !records.rest().is_empty() {
        let offset = (payload.len() - records.rest().len()) as u32;
        return Err(DecodeError::PatchRecord { offset });
    }
    match address.checked_add(end) {
        Some(_) => Ok(()),
        None => Err(DecodeError::AddressWraps { address, length: end }),
    }
}
