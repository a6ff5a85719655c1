//! CRC-32C over the bytes that an envelope covers.

use wire_edge::{ENVELOPE_BYTES, ENVELOPE_BYTES_COVERED};

/// Returns the CRC-32C over the covered first bytes of the envelope and the frame that follows it.
///
/// For a short frame, this function computes the checksum itself, eight bytes at a time at any
/// alignment. For a long frame, it calls the crate `crc32c`. That crate would be slower for short
/// frames, because it processes the unaligned bytes at the start and the end one by one. A step for
/// one byte takes as long as a step for eight bytes.
#[inline]
pub(super) fn checksum(envelope: &[u8; ENVELOPE_BYTES], content: &[u8]) -> u32 {
    let Some(covered) = envelope.first_chunk::<ENVELOPE_BYTES_COVERED>() else { return 0 };
    #[cfg(target_arch = "x86_64")]
    if content.len() <= SHORT_BYTES_MAX && is_x86_feature_detected!("sse4.2") {
        // SAFETY: the processor has the instruction.
        return unsafe { of_short(*covered, content) };
    }
    crc32c::crc32c_append(crc32c::crc32c(covered), content)
}

/// # Safety
/// The processor must have SSE 4.2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "sse4.2")]
unsafe fn of_short(covered: [u8; ENVELOPE_BYTES_COVERED], content: &[u8]) -> u32 {
    use core::arch::x86_64::{_mm_crc32_u8, _mm_crc32_u32, _mm_crc32_u64};

    let mut long = _mm_crc32_u64(u64::from(u32::MAX), u64::from_le_bytes(covered));
    let (words, mut rest) = content.as_chunks();
    for word in words {
        long = _mm_crc32_u64(long, u64::from_le_bytes(*word));
    }
    let mut crc = long as u32;
    if let Some((word, behind)) = rest.split_first_chunk() {
        crc = _mm_crc32_u32(crc, u32::from_le_bytes(*word));
        rest = behind;
    }
    for byte in rest {
        crc = _mm_crc32_u8(crc, *byte);
    }
    !crc
}

/// Longest content, in bytes, for which one dependent chain of instructions is faster than three
/// parallel chains whose results must be combined.
#[cfg(target_arch = "x86_64")]
const SHORT_BYTES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_does_not_depend_on_the_alignment_of_a_frame() {
        let bytes: Vec<u8> = (0..400_u32).map(|i| (i * 7 % 251) as u8).collect();
        let envelope = [9; ENVELOPE_BYTES];
        for start in 0..9 {
            for len in 0..=300 {
                let content = &bytes[start..start + len];
                let mut covered = envelope[..ENVELOPE_BYTES_COVERED].to_vec();
                covered.extend_from_slice(content);
                assert_eq!(
                    checksum(&envelope, content),
                    crc32c::crc32c(&covered),
                    "{len} bytes from {start}"
                );
            }
        }
    }
}
