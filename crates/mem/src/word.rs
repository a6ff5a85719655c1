//! Integers in buffers that peers and threads access concurrently.

use core::fmt;
use core::marker::PhantomData;
use core::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

use crate::buffer::Buffer;
use crate::error::BufferError;

/// An integer of 8, 16, 32 or 64 bits at an offset in a [`Buffer`], in native byte order. Meant for
/// integers that peers and threads read and change concurrently. [`Buffer::word`] returns this
/// type.
///
/// Each access through this type reads or writes the whole integer, so such accesses never tear it.
/// Remote atomics do not tear an integer of 64 bits either. The memory orders have the same meaning
/// as in the `std` atomics. They order accesses of the threads of this process, including the
/// engine's threads.
///
/// ```
/// use std::sync::atomic::Ordering;
/// use mem::Buffer;
///
/// let buffer = Buffer::new(4096);
/// let count = buffer.word::<u64>(8)?;
/// assert_eq!(count.fetch_add(3, Ordering::AcqRel), 0);
/// assert_eq!(count.compare_exchange(3, 10, Ordering::AcqRel, Ordering::Acquire), Ok(3));
/// assert_eq!(count.load(Ordering::Acquire), 10);
/// assert_eq!(count.swap(0, Ordering::AcqRel), 10);
///
/// let flag = buffer.word::<u8>(0)?;
/// flag.store_volatile(1);
/// assert_eq!(flag.load_volatile(), 1);
/// assert!(buffer.word::<u64>(12).is_err(), "a word of 8 bytes begins at a multiple of 8");
/// # Ok::<(), mem::BufferError>(())
/// ```
pub struct Word<'a, T> {
    buffer: &'a Buffer,
    /// Offset of the integer in bytes. The integer's address is a multiple of its length, and the
    /// whole integer is in the buffer.
    offset: usize,
    kind: PhantomData<T>,
}

/// An integer that processors load and store in one step: `u8`, `u16`, `u32` and `u64`.
///
/// ```
/// fn bytes_of<T: mem::Integer>() -> u64 {
///     T::BYTES
/// }
/// assert_eq!(bytes_of::<u32>(), 4);
/// ```
pub trait Integer: Atomic {
    /// Length of the integer in bytes.
    const BYTES: u64 = size_of::<Self>() as u64;
}

impl<'a, T: Integer> Word<'a, T> {
    pub(crate) fn new(buffer: &'a Buffer, offset: u64) -> Result<Self, BufferError> {
        buffer.check(offset, T::BYTES)?;
        if !buffer.address().wrapping_add(offset).is_multiple_of(T::BYTES) {
            return Err(BufferError::Misaligned { offset, alignment: T::BYTES });
        }
        Ok(Self { buffer, offset: offset as usize, kind: PhantomData })
    }

    /// Loads the value.
    ///
    /// # Panics
    /// Panics if `order` is a release order. The loads of `std` panic in this case, too.
    #[inline]
    pub fn load(&self, order: Ordering) -> T {
        // SAFETY: `place` returns a valid pointer for atomics.
        unsafe { T::load(self.place(), order) }
    }

    /// Stores a value.
    ///
    /// # Panics
    /// Panics if `order` is an acquire order. The stores of `std` panic in this case, too.
    #[inline]
    pub fn store(&self, value: T, order: Ordering) {
        // SAFETY: `place` returns a valid pointer for atomics.
        unsafe { T::store(self.place(), value, order) }
    }

    /// Loads the value. The compiler never removes this load. The load is not ordered with other
    /// accesses.
    #[inline]
    pub fn load_volatile(&self) -> T {
        // SAFETY: `place` returns a valid pointer for volatile accesses.
        unsafe { self.place().read_volatile() }
    }

    /// Stores a value. The compiler never removes this store, even if a later store overwrites the
    /// value. The store is not ordered with other accesses.
    #[inline]
    pub fn store_volatile(&self, value: T) {
        // SAFETY: `place` returns a valid pointer for volatile accesses.
        unsafe { self.place().write_volatile(value) }
    }

    /// Adds `operand` to the value and returns the old value. The sum wraps.
    #[inline]
    pub fn fetch_add(&self, operand: T, order: Ordering) -> T {
        // SAFETY: `place` returns a valid pointer for atomics.
        unsafe { T::fetch_add(self.place(), operand, order) }
    }

    /// Stores `value` and returns the old value.
    #[inline]
    pub fn swap(&self, value: T, order: Ordering) -> T {
        // SAFETY: `place` returns a valid pointer for atomics.
        unsafe { T::swap(self.place(), value, order) }
    }

    /// Stores `new` if the value equals `current`, and returns the old value.
    ///
    /// # Panics
    /// Panics if `failure` is a release order. The function of `std` panics in this case, too.
    ///
    /// # Errors
    /// Returns the old value if it differs from `current`.
    #[inline]
    pub fn compare_exchange(
        &self,
        current: T,
        new: T,
        success: Ordering,
        failure: Ordering,
    ) -> Result<T, T> {
        // SAFETY: `place` returns a valid pointer for atomics.
        unsafe { T::compare_exchange(self.place(), current, new, success, failure) }
    }

    /// Returns the integer's address. It is aligned, and readable and writable while the buffer is
    /// borrowed.
    #[inline]
    const fn place(&self) -> *mut T {
        // SAFETY: `new` checked that the integer is aligned and in the buffer. The only references
        // to the bytes are those of atomics, each for one access. Atomics and volatile accesses
        // tolerate concurrent writes, like the copies of the engine.
        unsafe { self.buffer.as_ptr().add(self.offset).cast() }
    }
}

impl<T> Clone for Word<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Word<'_, T> {}

impl<T> fmt::Debug for Word<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Word({} bytes at offset {})", size_of::<T>(), self.offset)
    }
}

/// The atomic operations on an integer. Code in other crates cannot name this trait.
///
/// Each function requires an aligned `place` that is readable and writable.
pub trait Atomic: Copy + 'static {
    /// Loads the value at `place`.
    #[doc(hidden)]
    unsafe fn load(place: *mut Self, order: Ordering) -> Self;
    /// Stores `value` at `place`.
    #[doc(hidden)]
    unsafe fn store(place: *mut Self, value: Self, order: Ordering);
    /// Adds `operand` to the value at `place`, and returns the old value.
    #[doc(hidden)]
    unsafe fn fetch_add(place: *mut Self, operand: Self, order: Ordering) -> Self;
    /// Stores `value` at `place`, and returns the old value.
    #[doc(hidden)]
    unsafe fn swap(place: *mut Self, value: Self, order: Ordering) -> Self;
    /// Stores `new` at `place` if the value there equals `current`, and returns the old value.
    ///
    /// # Errors
    /// Returns the old value if it differs from `current`.
    #[doc(hidden)]
    unsafe fn compare_exchange(
        place: *mut Self,
        current: Self,
        new: Self,
        success: Ordering,
        failure: Ordering,
    ) -> Result<Self, Self>;
}

macro_rules! integers {
    ($($integer:ty: $atomic:ty),*) => {$(
        impl Integer for $integer {}

        impl Atomic for $integer {
            #[inline]
            unsafe fn load(place: *mut Self, order: Ordering) -> Self {
                // SAFETY: the caller promises this.
                unsafe { <$atomic>::from_ptr(place) }.load(order)
            }

            #[inline]
            unsafe fn store(place: *mut Self, value: Self, order: Ordering) {
                // SAFETY: the caller promises this.
                unsafe { <$atomic>::from_ptr(place) }.store(value, order);
            }

            #[inline]
            unsafe fn fetch_add(place: *mut Self, operand: Self, order: Ordering) -> Self {
                // SAFETY: the caller promises this.
                unsafe { <$atomic>::from_ptr(place) }.fetch_add(operand, order)
            }

            #[inline]
            unsafe fn swap(place: *mut Self, value: Self, order: Ordering) -> Self {
                // SAFETY: the caller promises this.
                unsafe { <$atomic>::from_ptr(place) }.swap(value, order)
            }

            #[inline]
            unsafe fn compare_exchange(
                place: *mut Self,
                current: Self,
                new: Self,
                success: Ordering,
                failure: Ordering,
            ) -> Result<Self, Self> {
                // SAFETY: the caller promises this.
                unsafe { <$atomic>::from_ptr(place) }.compare_exchange(current, new, success, failure)
            }
        }
    )*};
}

integers!(u8: AtomicU8, u16: AtomicU16, u32: AtomicU32, u64: AtomicU64);

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn integers_of_every_length_are_the_bytes_of_the_buffer() {
        let buffer = Buffer::new(16);
        let order = Ordering::Relaxed;
        buffer.word::<u64>(8).expect("it fits").store(0x0102_0304_0506_0708, order);
        let mut bytes = [0; 8];
        buffer.read(8, &mut bytes);
        assert_eq!(u64::from_ne_bytes(bytes), 0x0102_0304_0506_0708);
        let [a, b, c, d, ..] = bytes;
        assert_eq!(buffer.word::<u8>(8).map(|word| word.load(order)), Ok(a));
        let (two, four) = (u16::from_ne_bytes([a, b]), u32::from_ne_bytes([a, b, c, d]));
        assert_eq!(buffer.word::<u16>(8).map(|word| word.load(order)), Ok(two));
        assert_eq!(buffer.word::<u32>(8).map(|word| word.load_volatile()), Ok(four));
        buffer.word::<u32>(12).expect("it fits").store_volatile(0);
        buffer.read(8, &mut bytes);
        assert_eq!(bytes, [a, b, c, d, 0, 0, 0, 0]);
    }

    #[test]
    fn words_beyond_the_buffer_or_misaligned_are_typed_errors() {
        let buffer = Buffer::new(20);
        let leaves = |offset, length| Err(BufferError::Bounds { offset, length, limit: 20 });
        assert_eq!(buffer.word::<u64>(16).map(|_| ()), leaves(16, 8));
        assert_eq!(buffer.word::<u8>(20).map(|_| ()), leaves(20, 1));
        assert_eq!(buffer.word::<u16>(u64::MAX).map(|_| ()), leaves(u64::MAX, 2));
        for (offset, alignment) in [(4, 8), (1, 8)] {
            let misaligned = Err(BufferError::Misaligned { offset, alignment });
            assert_eq!(buffer.word::<u64>(offset).map(|_| ()), misaligned);
        }
        let misaligned = Err(BufferError::Misaligned { offset: 6, alignment: 4 });
        assert_eq!(buffer.word::<u32>(6).map(|_| ()), misaligned);
        assert!(buffer.word::<u32>(16).is_ok() && buffer.word::<u8>(19).is_ok());
    }

    #[test]
    fn a_compare_exchange_stores_only_if_the_value_is_expected() {
        let buffer = Buffer::new(8);
        let word = buffer.word::<u32>(4).expect("it fits");
        let exchange =
            |current, new| word.compare_exchange(current, new, Ordering::AcqRel, Ordering::Acquire);
        assert_eq!((exchange(0, 5), exchange(0, 6)), (Ok(0), Err(5)));
        assert_eq!((word.swap(7, Ordering::AcqRel), word.load(Ordering::Acquire)), (5, 7));
        assert_eq!(word.fetch_add(u32::MAX, Ordering::Relaxed), 7);
        assert_eq!(word.load(Ordering::Relaxed), 6);
        assert_eq!(buffer.load_u64(0).to_ne_bytes()[..4], [0; 4]);
    }

    #[test]
    fn concurrent_additions_lose_nothing() {
        const THREADS: u64 = 4;
        const ROUNDS: u64 = if cfg!(miri) { 10 } else { 10_000 };
        let buffer = Buffer::new(64);
        thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    let word = buffer.word::<u64>(56).expect("it fits");
                    for _ in 0..ROUNDS {
                        word.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(buffer.load_u64(56), THREADS * ROUNDS);
    }
}
