//! Packing, which is the compression of idle connections: writes the state of an idle connection
//! into few bytes, and restores it when the connection becomes active.
//!
//! An idle connection still has much state: round trips, rates, windows, packet numbers, counters.
//! Most values are small, zero or close to another value. The packed state therefore takes a fifth
//! of the memory. Packing is exact: a restored value equals the value that was written.

use wire_edge::{
    ConnectionId, Epoch, Features, LinkIndex, LinkStatus, MessageNumber, OperationNumber,
    PacketNumber, Parameters, PeerAddr,
};

use crate::boundary::LinkId;
use crate::time::Instant;

/// A value that can be packed and unpacked.
pub trait Pack: Sized {
    /// Appends the value to `to`.
    fn pack(&self, to: &mut Packer);

    /// Reads a value that [`Pack::pack`] wrote.
    ///
    /// # Panics
    /// Panics if the bytes were not written for the same types in the same order. This is a bug in
    /// the caller.
    fn unpack(from: &mut Unpacker<'_>) -> Self;
}

/// Packs values one after another.
///
/// To a number, the packer adds 1 modulo 2^64, and then stores seven bits in each byte. With this
/// addition, the largest number, which often means "none", takes one byte. The packer stores a time
/// as its difference from a base time.
#[derive(Debug)]
pub struct Packer {
    bytes: Vec<u8>,
    base: Instant,
}

impl Packer {
    /// Creates an empty packer. Times near `base` take the fewest bytes. All times except
    /// [`Instant::NEVER`] must be within 2^62 ns of `base`.
    pub fn new(base: Instant) -> Self {
        let mut packer = Self { bytes: Vec::with_capacity(BYTES_AT_FIRST), base };
        packer.number(base.0);
        packer
    }

    /// Returns the packed bytes.
    pub fn finish(self) -> Box<[u8]> {
        self.bytes.into_boxed_slice()
    }

    fn byte(&mut self, byte: u8) {
        self.bytes.push(byte);
    }

    fn number(&mut self, mut number: u64) {
        while number > 0x7f {
            self.byte(number as u8 | 0x80);
            number >>= 7;
        }
        self.byte(number as u8);
    }
}

/// Unpacks values in the order in which a [`Packer`] packed them.
#[derive(Debug)]
pub struct Unpacker<'a> {
    bytes: &'a [u8],
    base: Instant,
}

impl<'a> Unpacker<'a> {
    /// Creates an unpacker that starts at the first value.
    pub fn new(bytes: &'a [u8]) -> Self {
        let mut unpacker = Self { bytes, base: Instant::default() };
        unpacker.base = Instant(unpacker.number());
        unpacker
    }

    /// Returns whether all bytes were read.
    pub const fn is_at_end(&self) -> bool {
        self.bytes.is_empty()
    }

    #[inline]
    fn byte(&mut self) -> u8 {
        let (&byte, rest) = self.bytes.split_first().expect("what is read was written");
        self.bytes = rest;
        byte
    }

    #[inline]
    fn number(&mut self) -> u64 {
        let (mut number, mut shift) = (0, 0);
        loop {
            let byte = self.byte();
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return number;
            }
            shift += 7;
        }
    }
}

/// Implements packing for a struct, field by field. The call must name all fields, so that no field
/// is forgotten. Packing writes the fields inside the braces. It does not write the fields after
/// the braces; unpacking sets them to the given values. An optional function completes the unpacked
/// struct.
#[macro_export]
macro_rules! pack_fields {
    (
        $type:ident $(<$parameter:ident: $bound:ident>)? { $($field:ident),* $(,)? }
        $($fresh:ident = $value:expr),* $(,)?
        $(; $complete:path)?
    ) => {
        impl$(<$parameter: $bound>)? $crate::Pack for $type$(<$parameter>)? {
            fn pack(&self, to: &mut $crate::Packer) {
                let Self { $($field,)* $($fresh: _,)* } = self;
                $($crate::Pack::pack($field, to);)*
            }

            fn unpack(from: &mut $crate::Unpacker<'_>) -> Self {
                $(let $field = $crate::Pack::unpack(from);)*
                let read = Self { $($field,)* $($fresh: $value,)* };
                $(let read = $complete(read);)?
                read
            }
        }
    };
}

macro_rules! pack_numbers {
    ($($number:ty),*) => {
        $(impl Pack for $number {
            fn pack(&self, to: &mut Packer) {
                to.number(self.wrapping_add(1) as u64);
            }

            fn unpack(from: &mut Unpacker<'_>) -> Self {
                (from.number() as Self).wrapping_sub(1)
            }
        })*
    };
}

macro_rules! pack_wrapped {
    ($($name:ident),*) => {
        $(impl Pack for $name {
            fn pack(&self, to: &mut Packer) {
                self.0.pack(to);
            }

            fn unpack(from: &mut Unpacker<'_>) -> Self {
                Self(Pack::unpack(from))
            }
        })*
    };
}

pack_numbers!(u16, u32, u64, usize);
pack_wrapped!(ConnectionId, Epoch, Features, LinkId, LinkIndex);
pack_wrapped!(MessageNumber, OperationNumber, PacketNumber);

pack_fields!(Parameters {
    incarnation,
    features,
    epoch,
    links_max,
    frame_bytes_max,
    read_depth,
    operation_window,
    order_pool_bytes,
    receive_buffer_bytes,
    ack_delay_max_ns,
    receive_credit,
    service,
});

impl Pack for u8 {
    fn pack(&self, to: &mut Packer) {
        to.byte(*self);
    }

    fn unpack(from: &mut Unpacker<'_>) -> Self {
        from.byte()
    }
}

impl Pack for bool {
    fn pack(&self, to: &mut Packer) {
        to.byte(u8::from(*self));
    }

    fn unpack(from: &mut Unpacker<'_>) -> Self {
        from.byte() != 0
    }
}

impl Pack for Instant {
    fn pack(&self, to: &mut Packer) {
        let apart = self.0.wrapping_sub(to.base.0).cast_signed();
        to.number(match *self {
            Self::NEVER => 0,
            Self(0) => 1,
            _ => (apart.unsigned_abs() << 1 | u64::from(apart < 0)) + 2,
        });
    }

    fn unpack(from: &mut Unpacker<'_>) -> Self {
        match from.number() {
            0 => Self::NEVER,
            1 => Self(0),
            number => {
                let apart = (number - 2) >> 1;
                let is_before = number & 1 != 0;
                let base = from.base.0;
                Self(if is_before { base.wrapping_sub(apart) } else { base.wrapping_add(apart) })
            }
        }
    }
}

impl Pack for PeerAddr {
    /// Omits the zeros at the end, because most addresses end with many zeros.
    fn pack(&self, to: &mut Packer) {
        let len = self.0.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        len.pack(to);
        to.bytes.extend_from_slice(&self.0[..len]);
    }

    fn unpack(from: &mut Unpacker<'_>) -> Self {
        let mut address = Self([0; 20]);
        let len = usize::unpack(from);
        for byte in &mut address.0[..len] {
            *byte = from.byte();
        }
        address
    }
}

impl Pack for LinkStatus {
    fn pack(&self, to: &mut Packer) {
        to.byte(*self as u8);
    }

    fn unpack(from: &mut Unpacker<'_>) -> Self {
        match from.byte() {
            1 => Self::Available,
            2 => Self::Backup,
            3 => Self::Down,
            _ => Self::Removed,
        }
    }
}

impl<T: Pack> Pack for Option<T> {
    fn pack(&self, to: &mut Packer) {
        self.is_some().pack(to);
        if let Some(value) = self {
            value.pack(to);
        }
    }

    fn unpack(from: &mut Unpacker<'_>) -> Self {
        bool::unpack(from).then(|| T::unpack(from))
    }
}

impl<T: Pack> Pack for Box<T> {
    fn pack(&self, to: &mut Packer) {
        T::pack(self, to);
    }

    fn unpack(from: &mut Unpacker<'_>) -> Self {
        Self::new(T::unpack(from))
    }
}

impl<T: Pack> Pack for Vec<T> {
    fn pack(&self, to: &mut Packer) {
        self.len().pack(to);
        for value in self {
            value.pack(to);
        }
    }

    fn unpack(from: &mut Unpacker<'_>) -> Self {
        (0..usize::unpack(from)).map(|_| T::unpack(from)).collect()
    }
}

impl<T: Pack, const N: usize> Pack for [T; N] {
    fn pack(&self, to: &mut Packer) {
        for value in self {
            value.pack(to);
        }
    }

    fn unpack(from: &mut Unpacker<'_>) -> Self {
        core::array::from_fn(|_| T::unpack(from))
    }
}

impl<A: Pack, B: Pack> Pack for (A, B) {
    fn pack(&self, to: &mut Packer) {
        self.0.pack(to);
        self.1.pack(to);
    }

    fn unpack(from: &mut Unpacker<'_>) -> Self {
        (A::unpack(from), B::unpack(from))
    }
}

/// Initial capacity of a packer, in bytes. A connection with one link takes about 300 bytes.
const BYTES_AT_FIRST: usize = 512;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn packed(base: Instant, value: &impl Pack) -> Box<[u8]> {
        let mut packer = Packer::new(base);
        value.pack(&mut packer);
        packer.finish()
    }

    fn again<T: Pack>(base: Instant, value: &T) -> T {
        let bytes = packed(base, value);
        let mut unpacker = Unpacker::new(&bytes);
        let read = T::unpack(&mut unpacker);
        assert!(unpacker.is_at_end());
        read
    }

    #[test]
    fn a_none_value_takes_one_byte() {
        for none in [u64::MAX, 0] {
            assert_eq!(packed(Instant(0), &none).len(), 2);
            assert_eq!(packed(Instant(0), &Instant(none)).len(), 2);
        }
        assert_eq!(packed(Instant(0), &u32::MAX).len(), 2);
    }

    #[test]
    fn an_address_takes_no_more_bytes_than_it_uses() {
        let address = PeerAddr::mac([2, 0, 0, 0, 7, 0], 1);
        assert_eq!(again(Instant(0), &address), address);
        assert!(packed(Instant(0), &address).len() <= 12);
        for full in [PeerAddr([0; 20]), PeerAddr([255; 20])] {
            assert_eq!(again(Instant(0), &full), full);
        }
    }

    #[test]
    fn a_packed_link_status_unpacks_to_the_same_value() {
        use LinkStatus::{Available, Backup, Down, Removed};
        for status in [Available, Backup, Down, Removed] {
            assert_eq!(again(Instant(0), &status), status);
        }
    }

    proptest! {
        #[test]
        fn unpacked_values_equal_packed_values(
            base in 0..1_u64 << 62,
            times in prop::collection::vec(
                prop_oneof![Just(u64::MAX), Just(0), 0..1_u64 << 62], 0..9
            ),
            numbers in any::<(u16, u32, u64, u8, bool)>(),
            option in any::<Option<u64>>(),
            array in any::<[u8; 20]>(),
        ) {
            let base = Instant(base);
            let times: Vec<Instant> = times.into_iter().map(Instant).collect();
            let (short, middle, long, byte, is_so) = numbers;
            let all = (((short, middle), (long, byte)), (is_so, (option, (array, times))));
            prop_assert_eq!(again(base, &all), all);
        }
    }
}
