//! Atomics of all ranks, which the home of a page performs.

use dsm_protocol::{AtomicOperation, Call};

use crate::error::Error;
use crate::handle::Dsm;
use crate::slice::DsmSlice;

/// Atomics are single steps among all ranks, and order no other accesses. An element that is used by
/// atomics must not be accessed by loads and stores at the same time. Each atomic costs one round
/// trip to the home of the page, and drops the rank's copy of it: elements for atomics belong to
/// pages of their own.
impl Dsm {
    /// Performs an atomic on the 8 bytes at an address of the region. Returns the former value.
    ///
    /// # Errors
    /// [`Error::Misuse`] if the address is not a multiple of 8, [`Error::Outside`] if it is not in
    /// the region, [`Error::Failed`] if a rank has failed.
    pub fn atomic(&self, address: usize, operation: AtomicOperation) -> Result<u64, Error> {
        let address = self.core().offset(address..address.saturating_add(8))? as u64;
        self.core().call(Call::Atomic { address, operation })
    }

    /// Returns an element.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    ///
    /// # Panics
    /// If `index` is out of bounds. So do the other atomics.
    pub fn load(&self, elements: DsmSlice<'_, u64>, index: usize) -> Result<u64, Error> {
        self.fetch_add(elements, index, 0)
    }

    /// Replaces an element.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    pub fn store(
        &self,
        elements: DsmSlice<'_, u64>,
        index: usize,
        value: u64,
    ) -> Result<(), Error> {
        self.swap(elements, index, value).map(drop)
    }

    /// Replaces an element. Returns the former value.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    pub fn swap(
        &self,
        elements: DsmSlice<'_, u64>,
        index: usize,
        value: u64,
    ) -> Result<u64, Error> {
        self.atomic(address_of(elements, index), AtomicOperation::Swap(value))
    }

    /// Adds to an element, wrapping around. Returns the former value.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    pub fn fetch_add(
        &self,
        elements: DsmSlice<'_, u64>,
        index: usize,
        operand: u64,
    ) -> Result<u64, Error> {
        self.atomic(address_of(elements, index), AtomicOperation::FetchAdd(operand))
    }

    /// Replaces an element if it has the expected value. Returns the former value, which is the
    /// expected one if the element was replaced.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    pub fn compare_swap(
        &self,
        elements: DsmSlice<'_, u64>,
        index: usize,
        expected: u64,
        desired: u64,
    ) -> Result<u64, Error> {
        let operation = AtomicOperation::CompareSwap { expected, desired };
        self.atomic(address_of(elements, index), operation)
    }

    /// Adds to an element. Returns the former value. Costs two round trips, and one more each time
    /// another thread is faster.
    ///
    /// # Errors
    /// [`Error::Failed`] if a rank has failed.
    pub fn fetch_add_f64(
        &self,
        elements: DsmSlice<'_, f64>,
        index: usize,
        operand: f64,
    ) -> Result<f64, Error> {
        let address = address_of(elements, index);
        let mut expected = self.atomic(address, AtomicOperation::FetchAdd(0))?;
        loop {
            let desired = (f64::from_bits(expected) + operand).to_bits();
            let operation = AtomicOperation::CompareSwap { expected, desired };
            let found = self.atomic(address, operation)?;
            if found == expected {
                return Ok(f64::from_bits(found));
            }
            expected = found;
        }
    }
}

fn address_of<T: bytemuck::Pod>(elements: DsmSlice<'_, T>, index: usize) -> usize {
    elements.slice(index..=index).as_ptr().addr()
}
