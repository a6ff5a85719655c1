//! Slots of queue pair numbers. Each process of a host claims a slot, so no central allocator of
//! numbers is needed.

use std::net::{IpAddr, SocketAddr};

use wire_edge::QueuePairNumber;

use crate::udp::{UdpConfig, UdpError, UdpLink};

/// The mapping between queue pair numbers and UDP ports.
///
/// A queue pair number has 24 bits: a slot and an index of 12 bits each. Slot s of a host
/// corresponds to the UDP port whose number is the first port plus s. The process that has bound
/// the port owns the slot. The kernel ensures that only one process owns a slot, and frees the slot
/// when that process ends in any way. A sender computes the address for a datagram from the
/// receiving host's IP address and the queue pair number, and needs no other information.
///
/// All hosts of a network must use the same first port.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Slots {
    first_port: u16,
}

/// A claimed slot, with one link for each address. The links are bound to the port of the slot.
#[derive(Debug)]
pub struct ClaimedSlot {
    /// The number of the slot.
    pub slot: u16,
    /// The links, in the order of the addresses. The slot is free again when the links are dropped.
    pub links: Vec<UdpLink>,
}

/// The reason why no slot could be claimed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SlotError {
    /// Other processes own all slots.
    #[error(
        "all {SLOTS} slots of queue pair numbers are in use on this host (`ss -ulpn` shows by whom)"
    )]
    NoneLeft,
    /// No link can be opened on one of the addresses, on any port.
    #[error(transparent)]
    Link(#[from] UdpError),
}

impl Default for Slots {
    /// Returns the mapping that starts at port 0xf000, above the ports that Linux assigns
    /// automatically (32768 to 60999).
    fn default() -> Self {
        Self { first_port: 0xf000 }
    }
}

impl Slots {
    /// Creates the mapping with this first port. Returns `None` if the port is 0 or above 0xf000,
    /// because the mapping needs 4096 ports.
    pub fn new(first_port: u16) -> Option<Self> {
        (first_port > 0 && first_port <= 0xf000).then_some(Self { first_port })
    }

    //= protocol.md: slot.1
    /// Returns the address of a queue pair of the host `ip`, to which datagrams and requests are
    /// sent.
    pub fn address_of(&self, ip: IpAddr, number: QueuePairNumber) -> SocketAddr {
        SocketAddr::new(ip, self.port_of(number.slot()))
    }

    /// Returns the port of a slot. Only the low 12 bits of `slot` are used.
    const fn port_of(self, slot: u16) -> u16 {
        self.first_port + slot % SLOTS
    }

    //= protocol.md: slot.2
    /// Claims a slot that is free at all these addresses: the slot that `random` selects, or the
    /// next free slot. If `random` is a random value, a new process rarely reuses the numbers of a
    /// process that has just ended.
    ///
    /// # Errors
    /// Returns [`SlotError::NoneLeft`] if no slot is free; [`SlotError::Link`] if a link cannot be
    /// opened on any port.
    pub fn claim(
        &self,
        addresses: &[IpAddr],
        random: u16,
        config: &UdpConfig,
    ) -> Result<ClaimedSlot, SlotError> {
        for turn in 0..SLOTS {
            let slot = random.wrapping_add(turn) % SLOTS;
            let bind = |ip: &IpAddr| UdpLink::bind((*ip, self.port_of(slot)).into(), config);
            match addresses.iter().map(bind).collect() {
                Ok(links) => return Ok(ClaimedSlot { slot, links }),
                Err(UdpError::AddressInUse { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(SlotError::NoneLeft)
    }
}

/// Number of slots of a host, one for each port from `first_port` on.
const SLOTS: u16 = 1 << 12;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;
    use crate::Link;

    const LOCAL: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    //= protocol.md: slot.1
    #[test]
    fn a_queue_pair_number_and_a_host_give_an_address() {
        let number = QueuePairNumber::at(0xabc, 0x123).unwrap();
        assert_eq!((number.get(), number.slot(), number.index()), (0xab_c123, 0xabc, 0x123));
        assert_eq!(Slots::default().address_of(LOCAL, number), (LOCAL, 0xfabc).into());
        assert_eq!(Slots::new(0x8000).unwrap().address_of(LOCAL, number), (LOCAL, 0x8abc).into());
        assert_eq!((Slots::new(0), Slots::new(0xf001)), (None, None));
        // These numbers are reserved or invalid: the number that stands for groups (0xffffff), 0
        // and 1 (for network managers), and a slot or an index of more than 12 bits.
        for (slot, index) in [(0xfff, 0xfff), (0, 0), (0, 1), (0x1000, 5), (5, 0x1000)] {
            assert_eq!(QueuePairNumber::at(slot, index), None);
        }
    }

    //= protocol.md: slot.2
    #[test]
    fn an_occupied_slot_is_skipped() {
        let (slots, config) = (Slots::default(), UdpConfig::default());
        let other = IpAddr::V4(Ipv4Addr::new(127, 0, 0, 2));
        // The slot is not fixed, because other processes of this host may claim slots too.
        let first = slots.claim(&[LOCAL, other], 0xfff, &config).unwrap();
        assert_eq!(first.links.len(), 2);
        let local = first.links[1].caps().local;
        assert_eq!(local.to_socket(), Some((other, slots.port_of(first.slot)).into()));
        // If one address of a slot is in use, the slot is passed over.
        let second = slots.claim(&[other], first.slot, &config).unwrap();
        assert_ne!(second.slot, first.slot);
        let third = slots.claim(&[LOCAL, other], first.slot, &config).unwrap();
        assert!(third.slot != first.slot && third.slot != second.slot);
    }

    #[test]
    fn an_error_that_another_port_would_not_fix_ends_the_search() {
        let elsewhere = IpAddr::V4(Ipv4Addr::new(203, 0, 113, 1));
        let claimed = Slots::default().claim(&[elsewhere], 7, &UdpConfig::default());
        assert!(
            matches!(claimed, Err(SlotError::Link(UdpError::NoSuchAddress { .. }))),
            "{claimed:?}"
        );
    }
}
