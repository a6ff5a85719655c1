//! The transport services of a device, and the operations that each service carries.

use std::fmt;
use std::ops::BitOr;

use crate::transport::Transport;

/// Transport service of a queue pair.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum QueuePairType {
    /// Reliable connection (RC).
    Reliable,
    /// Unreliable connection (UC), without reads and atomics. The library uses a reliable
    /// connection for it.
    Unreliable,
    /// Unreliable datagrams (UD).
    Datagram,
}

impl QueuePairType {
    /// All services.
    pub const ALL: [Self; 3] = [Self::Reliable, Self::Unreliable, Self::Datagram];
}

/// Kind of a send work request. Its number is the number in `ibv_wr_opcode`.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u8)]
pub enum Operation {
    /// RDMA write.
    Write = 0,
    /// RDMA write with an immediate.
    WriteImmediate = 1,
    /// Send.
    Send = 2,
    /// Send with an immediate.
    SendImmediate = 3,
    /// RDMA read.
    Read = 4,
    /// Atomic compare and swap.
    CompareSwap = 5,
    /// Atomic fetch and add.
    FetchAdd = 6,
    /// Invalidation of a local key.
    LocalInvalidate = 7,
    /// Bind of a memory window.
    BindWindow = 8,
    /// Send that invalidates a key of the peer.
    SendInvalidate = 9,
}

impl Operation {
    /// All operations, in the order of their numbers.
    pub const ALL: [Self; 10] = [
        Self::Write,
        Self::WriteImmediate,
        Self::Send,
        Self::SendImmediate,
        Self::Read,
        Self::CompareSwap,
        Self::FetchAdd,
        Self::LocalInvalidate,
        Self::BindWindow,
        Self::SendInvalidate,
    ];
}

impl fmt::Display for Operation {
    /// Writes the name of the operation for texts of errors.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Write => "RDMA write",
            Self::WriteImmediate => "RDMA write with an immediate",
            Self::Send => "send",
            Self::SendImmediate => "send with an immediate",
            Self::Read => "RDMA read",
            Self::CompareSwap => "atomic compare and swap",
            Self::FetchAdd => "atomic fetch and add",
            Self::LocalInvalidate => "local invalidate",
            Self::BindWindow => "bind of a memory window",
            Self::SendInvalidate => "send with invalidate",
        })
    }
}

/// A set of operations.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Operations(u16);

impl Operations {
    /// No operation.
    pub const NONE: Self = Self(0);
    /// All operations.
    pub const ALL: Self = Self(0x3ff);
    /// Both atomics.
    pub const ATOMICS: Self = Self::of(&[Operation::CompareSwap, Operation::FetchAdd]);
    /// The operations with an immediate.
    pub const IMMEDIATES: Self = Self::of(&[Operation::WriteImmediate, Operation::SendImmediate]);

    /// Returns the set of these operations.
    pub const fn of(operations: &[Operation]) -> Self {
        let mut bits = 0;
        let mut rest = operations;
        while let [first, others @ ..] = rest {
            bits |= 1 << *first as u8;
            rest = others;
        }
        Self(bits)
    }

    /// Returns whether the operation is in the set.
    #[inline]
    pub const fn contains(self, operation: Operation) -> bool {
        self.0 & 1 << operation as u8 != 0
    }

    /// Returns whether all operations of `other` are in the set.
    pub const fn contains_all(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the operations of this set that are not in `other`.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns the set as bits of `ibv_qp_create_send_ops_flags`. The bit of an operation has the
    /// operation's number.
    pub const fn bits(self) -> u64 {
        self.0 as u64
    }
}

impl BitOr for Operations {
    type Output = Self;

    fn bitor(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The transport of a device, the services that the device has, and the operations that each
/// service carries.
///
/// A value never has more than the specification of its transport defines, because it begins with
/// all of that ([`Services::of`]), and the other functions only remove operations. For example, no
/// iWARP device has datagrams or atomics.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Services {
    transport: Transport,
    reliable: Operations,
    unreliable: Operations,
    datagram: Operations,
}

impl Services {
    /// Returns all services of a transport with all their operations.
    ///
    /// For InfiniBand, these are the operations of IBA volume 1, table 36. iWARP has reliable
    /// connections only, because its transport is TCP. RFC 5040 section 1.2 lists its operations,
    /// which are writes, reads and sends without immediates. RFC 7306 adds immediates and atomics,
    /// but neither the kernel's software adapter nor this project implements that RFC.
    pub const fn of(transport: Transport) -> Self {
        match transport {
            Transport::InfiniBand => Self {
                transport,
                reliable: Operations::ALL,
                unreliable: Operations::ALL
                    .without(Operations::ATOMICS)
                    .without(Operations::of(&[Operation::Read])),
                datagram: Operations::of(&[Operation::Send, Operation::SendImmediate]),
            },
            Transport::Iwarp => Self {
                transport,
                reliable: Operations::ALL
                    .without(Operations::ATOMICS)
                    .without(Operations::IMMEDIATES),
                unreliable: Operations::NONE,
                datagram: Operations::NONE,
            },
        }
    }

    /// Removes operations from all services. A service without operations does not exist.
    #[must_use]
    pub const fn without(self, operations: Operations) -> Self {
        Self {
            transport: self.transport,
            reliable: self.reliable.without(operations),
            unreliable: self.unreliable.without(operations),
            datagram: self.datagram.without(operations),
        }
    }

    /// Removes a service.
    #[must_use]
    pub const fn without_service(mut self, service: QueuePairType) -> Self {
        match service {
            QueuePairType::Reliable => self.reliable = Operations::NONE,
            QueuePairType::Unreliable => self.unreliable = Operations::NONE,
            QueuePairType::Datagram => self.datagram = Operations::NONE,
        }
        self
    }

    /// Returns the transport.
    pub const fn transport(self) -> Transport {
        self.transport
    }

    /// Returns the operations that a service carries. The set is empty if the device does not have
    /// the service.
    pub const fn operations(self, service: QueuePairType) -> Operations {
        match service {
            QueuePairType::Reliable => self.reliable,
            QueuePairType::Unreliable => self.unreliable,
            QueuePairType::Datagram => self.datagram,
        }
    }

    /// Returns whether the device has the service.
    pub const fn has(self, service: QueuePairType) -> bool {
        !self.operations(service).is_empty()
    }

    /// Returns the operations that at least one service carries.
    pub fn all_operations(self) -> Operations {
        self.reliable | self.unreliable | self.datagram
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use proptest::prelude::*;

    fn bits(transport: Transport) -> [u64; 3] {
        QueuePairType::ALL.map(|service| Services::of(transport).operations(service).bits())
    }

    #[test]
    fn each_service_carries_the_operations_of_its_specification() {
        assert_eq!(bits(Transport::InfiniBand), [0x3ff, 0x38f, 0xc]);
        assert_eq!(bits(Transport::Iwarp), [0x395, 0, 0]);
    }

    #[test]
    fn each_operation_has_a_bit_of_its_own() {
        for (number, operation) in Operation::ALL.into_iter().enumerate() {
            assert_eq!(Operations::of(&[operation]).bits(), 1 << number, "{operation}");
        }
        assert_eq!(Operations::of(&Operation::ALL), Operations::ALL);
    }

    #[test]
    fn iwarp_has_reliable_connections_only() {
        let services = Services::of(Transport::Iwarp);
        assert_eq!(QueuePairType::ALL.map(|service| services.has(service)), [true, false, false]);
        assert!(
            QueuePairType::ALL.into_iter().all(|it| Services::of(Transport::InfiniBand).has(it))
        );
    }

    fn any_operations() -> impl Strategy<Value = Operations> {
        proptest::sample::subsequence(Operation::ALL.to_vec(), 0..=10)
            .prop_map(|operations| Operations::of(&operations))
    }

    proptest! {
        #[test]
        fn removing_operations_never_adds_any(
            transport in proptest::sample::select(Transport::ALL.to_vec()),
            removed in any_operations(),
            service in proptest::sample::select(QueuePairType::ALL.to_vec()),
        ) {
            let all = Services::of(transport);
            let fewer = all.without(removed);
            for of in QueuePairType::ALL {
                let (before, after) = (all.operations(of), fewer.operations(of));
                for operation in Operation::ALL {
                    let expected = before.contains(operation) && !removed.contains(operation);
                    prop_assert_eq!(after.contains(operation), expected);
                }
                prop_assert_eq!(fewer.has(of), !after.is_empty());
                let other = fewer.without_service(service).operations(of);
                prop_assert_eq!(other, if of == service { Operations::NONE } else { after });
            }
            prop_assert_eq!(fewer.transport(), transport);
            prop_assert!(all.all_operations().contains_all(fewer.all_operations()));
        }
    }
}
