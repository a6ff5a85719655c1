//! The payload of the Terminate that ends a stream.

use wire_iwarp::{
    Cause, Layer, READ_REQUEST_BYTES, TERMINATE_BYTES_MAX, Terminate, TerminatedHeader,
};

/// The payload of the Terminate to send.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TerminatePayload {
    bytes: [u8; TERMINATE_BYTES_MAX],
    length: usize,
}

impl TerminatePayload {
    pub(crate) fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length).unwrap_or_default()
    }
}

/// The segment that a Terminate is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Blamed<'a> {
    /// The ULPDU, or its first bytes.
    pub(crate) ulpdu: &'a [u8],
    /// Length of the ULPDU in bytes.
    pub(crate) length: u16,
}

/// Opcode of a Read Request, which is in the low bits of the second byte of a ULPDU.
const READ_REQUEST: u8 = 1;

//= RFC 5040 section 4.8: M, D and R say which headers follow
/// Returns the payload of a Terminate. Errors of MPA are about no segment.
pub(crate) fn payload(cause: Cause, blamed: Option<Blamed<'_>>) -> Option<TerminatePayload> {
    let mut terminate = Terminate::new(cause);
    let blamed = blamed.filter(|_| cause.layer() != Layer::Mpa);
    let header = blamed.and_then(|blamed| TerminatedHeader::at_start_of(blamed.ulpdu));
    if let Some((blamed, header)) = blamed.zip(header) {
        terminate = terminate.with_segment(blamed.length, header);
        let [first, second, ..] = blamed.ulpdu else { return None };
        let is_read_request = first & 0x80 == 0 && second & 0x0f == READ_REQUEST;
        let request = blamed.ulpdu.get(header.as_bytes().len()..);
        let request = request.and_then(|rest| rest.first_chunk::<READ_REQUEST_BYTES>());
        if let Some(request) = request.filter(|_| is_read_request && cause.layer() == Layer::Rdmap)
        {
            terminate = terminate.with_read_request(*request);
        }
    }
    let mut bytes = [0; TERMINATE_BYTES_MAX];
    let length = terminate.encode(&mut bytes).ok()?;
    Some(TerminatePayload { bytes, length })
}
