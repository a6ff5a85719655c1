//! Decodes arbitrary bytes as a connection frame. Decoding must not panic. Encoding an accepted
//! frame must give the same bytes.

use wire_edge::{
    ACK_SECTION_BYTES_MAX, AckBlock, HEADER_BYTES_MAX, Header, OPERATION_BYTES_MAX, PatchRecords,
    ack_section_bytes, decode, decode_split, encode_acks, encode_header, peek,
};

/// Runs this fuzz target on one input.
pub(crate) fn run(bytes: &[u8]) {
    let peeked = peek(bytes);
    let Ok(frame) = decode(bytes) else { return };
    assert_eq!(peeked, Ok((frame.prefix.kind, frame.prefix.connection, frame.prefix.epoch)));
    assert_eq!(frame.prefix.kind, frame.header.kind());

    let mut header = [0; HEADER_BYTES_MAX];
    let header_bytes = encode_header(&frame.prefix, &frame.header, &mut header);
    // The decoder ignores the reserved bytes of an AtomicResponse, so they may differ after
    // encoding.
    if !matches!(frame.header, Header::AtomicResponse { .. }) {
        assert_eq!(header[..header_bytes], bytes[..header_bytes]);
    }
    let mut parts_bytes = header_bytes + frame.payload.len();
    if let Some(acks) = frame.acks {
        let blocks: Vec<AckBlock> = acks.blocks().collect();
        let mut section = [0; ACK_SECTION_BYTES_MAX];
        let length = encode_acks(acks.delivered(), acks.credit(), &blocks, &mut section);
        assert_eq!(length, ack_section_bytes(&blocks));
        assert_eq!(section[4..length], bytes[header_bytes + 4..header_bytes + length]);
        parts_bytes += length;
    }
    assert_eq!(parts_bytes, bytes.len());

    // Decodes the same frame with its payload in a separate buffer, if its kind permits this.
    let headers = &bytes[..bytes.len() - frame.payload.len()];
    match decode_split(headers, frame.payload.len()) {
        Ok(split) => {
            assert_eq!((split.prefix, split.header), (frame.prefix, frame.header));
            assert!(split.payload.is_empty());
        }
        Err(_) => {
            assert!(matches!(frame.header, Header::Control | Header::Probe | Header::Patch { .. }));
        }
    }

    if let Header::Patch { offset, address, .. } = frame.header {
        let payload_bytes = frame.payload.len() as u64;
        assert!(u64::from(offset) + payload_bytes <= OPERATION_BYTES_MAX && address % 4 == 0);
        let (mut records, mut blocks) = (PatchRecords::new(frame.payload), Vec::new());
        for (record, words) in &mut records {
            assert_eq!(words.len(), 4 * record.bitmap.count_ones() as usize);
            assert!(address.checked_add(record.span().end).is_some());
            blocks.push(record.block);
        }
        assert!(records.rest().is_empty() && blocks.is_sorted_by(|one, next| one < next));
    }
    if let Header::Write { offset, address, .. } = frame.header {
        let payload_bytes = frame.payload.len() as u64;
        assert!(u64::from(offset) + payload_bytes <= OPERATION_BYTES_MAX);
        assert!(address >= u64::from(offset) && address.checked_add(payload_bytes).is_some());
    }
}
