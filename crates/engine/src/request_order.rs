//! The furthest byte in the peer's requests so far. A fragment before this byte is out of order.

use wire_edge::OperationNumber;

/// The furthest byte in the peer's requests so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestOrder {
    operation: OperationNumber,
    offset: u32,
}

delivery::pack_fields!(RequestOrder { operation, offset });

impl RequestOrder {
    /// Creates the state before any fragment. `first` is the number of the first operation.
    pub(crate) const fn new(first: u32) -> Self {
        Self { operation: OperationNumber(first), offset: 0 }
    }

    /// Handles a fragment of a request. Returns whether a later fragment arrived before it.
    #[inline]
    pub(crate) fn is_behind(&mut self, operation: OperationNumber, offset: u32) -> bool {
        let ahead = operation.since(self.operation);
        let is_behind = ahead < 0 || ahead == 0 && offset < self.offset;
        if !is_behind {
            *self = Self { operation, offset };
        }
        is_behind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fragment_is_out_of_order_only_behind_the_newest_position() {
        let mut order = RequestOrder::new(u32::MAX);
        let arrivals =
            [(u32::MAX, 0), (u32::MAX, 9), (u32::MAX, 5), (0, 0), (u32::MAX, 9), (0, 0), (2, 1)];
        let found =
            arrivals.map(|(operation, offset)| order.is_behind(OperationNumber(operation), offset));
        assert_eq!(found, [false, false, true, false, true, false, false]);
    }
}
