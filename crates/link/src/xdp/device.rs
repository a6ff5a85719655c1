//! Properties of an interface that only XDP needs.

use std::io;

use crate::ethtool::{Asker, Channels};
use crate::interface::Interface;
use crate::netlink::{Socket, attributes, u32_at};

/// The queues and the program of an interface.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(super) struct Device {
    /// The larger of the number of receive queues and the number of transmit queues.
    pub(super) queues: u32,
    /// Number of an XDP program that is attached to the interface.
    pub(super) program: Option<u32>,
    /// True if the interface is one of a pair of virtual interfaces (veth).
    pub(super) is_veth: bool,
}

impl Device {
    /// Queries the kernel about `interface`.
    pub(super) fn of(interface: &Interface) -> io::Result<Self> {
        // `struct ifinfomsg` of `linux/rtnetlink.h`: family, padding, type, number, flags, changes.
        let mut request = [0; IFINFOMSG_BYTES];
        if let Some(index) = request.get_mut(4..8) {
            index.copy_from_slice(&interface.index.to_ne_bytes());
        }
        let mut device = Self::default();
        Socket::route(0)?.ask(libc::RTM_GETLINK, 0, &request, &mut |answer: &[u8]| {
            for (kind, value) in attributes(answer.get(IFINFOMSG_BYTES..).unwrap_or_default()) {
                device.note(kind, value);
            }
        })?;
        // The attributes contain the driver's maximum number of queues. If the driver reports the
        // number in use, that number counts.
        let channels =
            Asker::open().ok().and_then(|asker| asker.channels(interface.name().as_bytes()));
        if let Some(queues) = channels.map(Channels::pairs).filter(|&queues| queues > 0) {
            device.queues = queues;
        }
        device.queues = device.queues.max(1);
        Ok(device)
    }

    fn note(&mut self, kind: u16, value: &[u8]) {
        match kind {
            libc::IFLA_NUM_RX_QUEUES | libc::IFLA_NUM_TX_QUEUES => {
                self.queues = self.queues.max(u32_at(value, 0).unwrap_or(0));
            }
            IFLA_XDP => {
                let mut programs = attributes(value)
                    .filter(|(kind, _)| PROGRAMS.contains(kind))
                    .filter_map(|(_, value)| u32_at(value, 0));
                self.program = programs.find(|&id| id != 0);
            }
            libc::IFLA_LINKINFO => {
                let mut parts = attributes(value);
                self.is_veth = parts.any(|(kind, value)| kind == KIND && value.starts_with(VETH));
            }
            _ => {}
        }
    }
}

/// Size of `struct ifinfomsg`.
const IFINFOMSG_BYTES: usize = 16;
/// The attribute about XDP programs, from `linux/if_link.h`. `PROGRAMS` are the attributes inside
/// it that contain the number of the program in each mode.
const IFLA_XDP: u16 = 43;
/// The attribute with the type of a virtual interface, inside the attribute `IFLA_LINKINFO`. `VETH`
/// is its value for virtual Ethernet pairs.
const KIND: u16 = 1;
const VETH: &[u8] = b"veth\0";
const PROGRAMS: [u16; 4] = [4, 5, 6, 7];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_a_queue() {
        let device = Device::of(&Interface::named("lo").unwrap()).unwrap();
        assert!(device.queues >= 1);
    }

    #[test]
    fn a_missing_interface_is_an_error() {
        let mut gone = Interface::named("lo").unwrap();
        gone.index = i32::MAX as u32;
        assert_eq!(Device::of(&gone).unwrap_err().raw_os_error(), Some(libc::ENODEV));
    }
}
