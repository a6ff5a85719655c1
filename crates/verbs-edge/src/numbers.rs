//! Queue pair numbers of this process. A number consists of a slot and an index in the slot. A slot
//! is a UDP port that the process has claimed on this host.

use wire_edge::QueuePairNumber;

/// The queue pair numbers of one slot.
#[derive(Debug)]
pub(crate) struct Numbers {
    slot: u16,
    /// One bit for each index in use.
    used: [u64; (INDICES / 64) as usize],
    /// Index to try next. A number is reused only after all other numbers were used. Without this,
    /// late frames for the old queue pair could reach a new queue pair with the same number.
    next: u16,
}

impl Numbers {
    /// Creates the numbers of a slot. `random` chooses the first index.
    pub(crate) const fn new(slot: u16, random: u16) -> Self {
        Self { slot, used: [0; (INDICES / 64) as usize], next: random % INDICES }
    }

    /// Reserves a free number. Returns `None` if all numbers are in use.
    pub(crate) fn reserve(&mut self) -> Option<u32> {
        for _ in 0..INDICES {
            let index = self.next;
            self.next = (index + 1) % INDICES;
            let Some(number) = QueuePairNumber::at(self.slot, index) else { continue };
            let (word, bit) = self.place(index)?;
            if *word & bit == 0 {
                *word |= bit;
                return Some(number.get());
            }
        }
        None
    }

    /// Releases a number.
    pub(crate) fn release(&mut self, number: u32) {
        let Some(number) = QueuePairNumber::new(number) else { return };
        if number.slot() == self.slot
            && let Some((word, bit)) = self.place(number.index())
        {
            *word &= !bit;
        }
    }

    fn place(&mut self, index: u16) -> Option<(&mut u64, u64)> {
        let word = self.used.get_mut(usize::from(index / 64))?;
        Some((word, 1 << (index % 64)))
    }
}

/// Number of indices in a slot.
pub(crate) const INDICES: u16 = 1 << 12;

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_queue_pair_number_of_a_slot_is_allocated_once_until_released() {
        let mut numbers = Numbers::new(0xfff, 4000);
        let all: HashSet<u32> = std::iter::from_fn(|| numbers.reserve()).collect();
        assert_eq!(all.len(), 4095, "0xffffff is that of groups");
        assert!(all.iter().all(|number| number >> 12 == 0xfff));
        numbers.release(0xff_f123);
        numbers.release(0x12_3123);
        assert_eq!((numbers.reserve(), numbers.reserve()), (Some(0xff_f123), None));
        assert_eq!(std::iter::from_fn(|| Numbers::new(0, 0).reserve()).next(), Some(2));
    }

    #[test]
    fn a_released_number_is_not_reused_immediately() {
        let mut numbers = Numbers::new(7, 9);
        let first = numbers.reserve().unwrap();
        numbers.release(first);
        assert_ne!(numbers.reserve(), Some(first));
    }
}
