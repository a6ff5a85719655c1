//! The comparison of a page with its twin, by the widest instructions that the processor has.

use dsm_protocol::diff::{self, Bitmap, PageBytes};

/// Compares a page with its twin, as [`diff::compare`] does.
///
/// Costs about 0.1 µs for pages in the cache, and as much for one changed word as for all.
/// Allocates only if `words` must grow.
pub(crate) fn compare(frame: &PageBytes, twin: &PageBytes, words: &mut Vec<u8>) -> Bitmap {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        if is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("popcnt") {
            // SAFETY: the processor has the instructions.
            return unsafe { x86_64::compare_by_16_words(frame, twin, words) };
        }
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
            // SAFETY: the processor has the instructions.
            return unsafe { x86_64::compare_by_8_words(frame, twin, words) };
        }
    }
    diff::compare(frame, twin, words)
}

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86_64 {
    use std::arch::x86_64::{
        __m256i, _mm256_castsi256_ps, _mm256_cmpeq_epi32, _mm256_loadu_si256, _mm256_movemask_ps,
        _mm256_permutevar8x32_epi32, _mm256_storeu_si256, _mm512_cmpneq_epi32_mask,
        _mm512_loadu_si512, _mm512_maskz_compress_epi32, _mm512_storeu_si512,
    };

    use dsm_protocol::diff::{BLOCKS, Bitmap, PAGE_BYTES, PageBytes, WORD_BYTES};

    /// Bytes behind the last word that the widest store may touch.
    const SLACK: usize = 64;

    /// Compares with AVX-512. A register keeps the changed words, because the instruction that
    /// stores them at once takes ten times as long on Zen 4.
    #[target_feature(enable = "avx512f,popcnt")]
    pub(super) fn compare_by_16_words(
        frame: &PageBytes,
        twin: &PageBytes,
        words: &mut Vec<u8>,
    ) -> Bitmap {
        const STEP: usize = 16 * WORD_BYTES;
        let mut blocks = [0_u32; BLOCKS];
        words.reserve(PAGE_BYTES + SLACK);
        let start = words.len();
        let mut end = start;
        for (half, (now, before)) in
            frame.as_chunks::<STEP>().0.iter().zip(twin.as_chunks::<STEP>().0).enumerate()
        {
            // SAFETY: both chunks have 64 bytes. The words of a page and 64 bytes fit behind
            // `start`, so a store behind at most a page of words stays inside of the vector.
            let changed = unsafe {
                let now = _mm512_loadu_si512(now.as_ptr().cast());
                let before = _mm512_loadu_si512(before.as_ptr().cast());
                let changed = _mm512_cmpneq_epi32_mask(now, before);
                let packed = _mm512_maskz_compress_epi32(changed, now);
                _mm512_storeu_si512(words.as_mut_ptr().add(end).cast(), packed);
                changed
            };
            blocks[half / 2] |= u32::from(changed) << (half % 2 * 16);
            end += changed.count_ones() as usize * WORD_BYTES;
        }
        // SAFETY: the bytes up to `end` are reserved, and the loop has written them.
        unsafe { words.set_len(end) };
        Bitmap::from_blocks(blocks)
    }

    /// Compares with AVX2.
    #[target_feature(enable = "avx2,popcnt")]
    pub(super) fn compare_by_8_words(
        frame: &PageBytes,
        twin: &PageBytes,
        words: &mut Vec<u8>,
    ) -> Bitmap {
        const STEP: usize = 8 * WORD_BYTES;
        let mut blocks = [0_u32; BLOCKS];
        words.reserve(PAGE_BYTES + SLACK);
        let start = words.len();
        let mut end = start;
        for (quarter, (now, before)) in
            frame.as_chunks::<STEP>().0.iter().zip(twin.as_chunks::<STEP>().0).enumerate()
        {
            // SAFETY: both chunks have 32 bytes; the store is as in `compare_by_16_words`.
            let changed = unsafe {
                let now = _mm256_loadu_si256(now.as_ptr().cast());
                let before = _mm256_loadu_si256(before.as_ptr().cast());
                let equal = _mm256_castsi256_ps(_mm256_cmpeq_epi32(now, before));
                let changed = !_mm256_movemask_ps(equal) as u8;
                let order: *const __m256i = (&raw const ORDERS[usize::from(changed)]).cast();
                let packed = _mm256_permutevar8x32_epi32(now, _mm256_loadu_si256(order));
                _mm256_storeu_si256(words.as_mut_ptr().add(end).cast(), packed);
                changed
            };
            blocks[quarter / 4] |= u32::from(changed) << (quarter % 4 * 8);
            end += changed.count_ones() as usize * WORD_BYTES;
        }
        // SAFETY: the bytes up to `end` are reserved, and the loop has written them.
        unsafe { words.set_len(end) };
        Bitmap::from_blocks(blocks)
    }

    /// For each set of 8 words: the words of the set in ascending order, then any. 8 KiB.
    static ORDERS: [[u32; 8]; 256] = orders();

    const fn orders() -> [[u32; 8]; 256] {
        let mut orders = [[0; 8]; 256];
        let mut set = 0;
        while set < 256 {
            let (mut word, mut place) = (0, 0);
            while word < 8 {
                if set >> word & 1 == 1 {
                    orders[set][place] = word;
                    place += 1;
                }
                word += 1;
            }
            set += 1;
        }
        orders
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dsm_protocol::diff::{PAGE_BYTES, PAGE_WORDS};

    /// Returns a page whose chosen words differ from those of a page of sevens.
    fn page(is_changed: impl Fn(usize) -> bool) -> Box<PageBytes> {
        let mut page = Box::new([7; PAGE_BYTES]);
        for (word, bytes) in page.as_chunks_mut::<4>().0.iter_mut().enumerate() {
            if is_changed(word) {
                *bytes = (word as u32 | 1 << 31).to_ne_bytes();
            }
        }
        page
    }

    type Compare = fn(&PageBytes, &PageBytes, &mut Vec<u8>) -> Bitmap;

    /// Returns the comparisons that the processor can do.
    fn comparisons() -> Vec<Compare> {
        let mut found: Vec<Compare> = vec![compare];
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("popcnt") {
            // SAFETY: the processor has the instructions.
            found.push(|frame, twin, words| unsafe {
                x86_64::compare_by_8_words(frame, twin, words)
            });
        }
        found
    }

    //= dsm-protocol.md: diff.1
    #[test]
    fn every_comparison_finds_the_words_that_the_plain_one_finds() {
        let twin = page(|_| false);
        let mut random = 1_u64;
        for round in 0..200_u64 {
            let mut sets = vec![0_u64; PAGE_WORDS / 64];
            for set in &mut sets {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(round);
                let mixed = random ^ random >> 29;
                *set = if round % 3 == 0 { mixed & mixed >> 7 & mixed >> 13 } else { mixed };
            }
            sets[0] |= u64::from(round == 0) * u64::MAX;
            let frame = page(|word| sets[word / 64] >> (word % 64) & 1 == 1);
            let mut expected = vec![1, 2, 3, 4];
            let bitmap = diff::compare(&frame, &twin, &mut expected);
            for compare in comparisons() {
                let mut words = vec![1, 2, 3, 4];
                assert_eq!(compare(&frame, &twin, &mut words), bitmap);
                assert_eq!(words, expected);
            }
        }
    }

    #[test]
    fn no_word_and_all_words_are_found() {
        let twin = page(|_| false);
        let all = page(|_| true);
        for compare in comparisons() {
            let mut words = Vec::new();
            assert!(compare(&twin, &twin, &mut words).is_empty() && words.is_empty());
            assert_eq!(compare(&all, &twin, &mut words).count(), PAGE_WORDS);
            assert_eq!(words, *all);
        }
    }
}
