//! Diagnoses one interface: which links are possible on it.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use link::host::{AttachedProgram, Interface, ProgramMode, program_name};
use link::{PacketConfig, PacketLink, UdpConfig, UdpLink, XdpConfig, XdpLink};

use super::{Rights, Trial, Verdict};

/// An interface, and which links are possible on it.
#[derive(Debug)]
pub(crate) struct InterfaceDiagnosis {
    /// The properties that the kernel and the driver report.
    pub(crate) interface: Interface,
    /// Attached XDP programs, with their names if this process may read them.
    pub(crate) programs: Vec<(AttachedProgram, Option<String>)>,
    /// Whether a link over UDP is possible.
    pub(crate) udp: Verdict,
    /// Whether a link on raw Ethernet over packet sockets is possible.
    pub(crate) packet: Verdict,
    /// Whether a link on raw Ethernet over `AF_XDP` is possible.
    pub(crate) xdp: Verdict,
}

impl InterfaceDiagnosis {
    pub(crate) fn of(interface: Interface, rights: &Rights) -> Self {
        let programs = interface.programs.iter();
        let programs: Vec<_> =
            programs.map(|&program| (program, program_name(program.id).ok())).collect();
        Self {
            udp: udp(&interface, try_udp),
            packet: packet(&interface, rights).and_then(|| try_packet(&interface)),
            xdp: xdp(&interface, &programs, rights).and_then(|| try_xdp(&interface)),
            programs,
            interface,
        }
    }
}

/// Returns whether a UDP link is possible. `attempt` opens a link on an address and drops it.
fn udp(
    interface: &Interface,
    attempt: impl Fn(&Interface, IpAddr) -> Result<(), String>,
) -> Verdict {
    if let Some(verdict) = not_running(interface) {
        return verdict;
    }
    let Some(address) = interface.addresses.first() else {
        let remedy = format!("sudo ip address add 10.0.0.1/24 dev {}", interface.name);
        return Verdict::no("no address", "the interface has no IP address", Some(remedy));
    };
    match attempt(interface, address.ip) {
        Ok(()) => Verdict::yes("yes"),
        Err(reason) => Verdict::no("no", reason, None),
    }
}

fn try_udp(interface: &Interface, ip: IpAddr) -> Result<(), String> {
    let address = match ip {
        IpAddr::V4(ip) => SocketAddr::from((ip, 0)),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, 0, 0, interface.index).into(),
    };
    UdpLink::bind(address, &UdpConfig::default()).map(drop).map_err(|error| error.to_string())
}

/// Makes a packet link on a free port and drops it.
fn try_packet(interface: &Interface) -> Result<(), String> {
    let config = PacketConfig::new(&*interface.name).receive_ring_bytes(PROBED_RING_BYTES);
    PacketLink::open(&config).map(drop).map_err(|error| error.to_string())
}

/// Makes only those parts of an XDP link that do not change the interface.
fn try_xdp(interface: &Interface) -> Result<(), String> {
    XdpLink::check(&XdpConfig::new(&*interface.name)).map_err(|error| error.to_string())
}

/// Derives from the privileges and the state of the interface whether a packet link is possible.
fn packet(interface: &Interface, rights: &Rights) -> Verdict {
    if interface.mac.is_none() {
        return Verdict::no("not Ethernet", "this is not an Ethernet interface", None);
    }
    if let Some(verdict) = not_running(interface) {
        return verdict;
    }
    match &rights.packet_socket {
        Trial::Worked => Verdict::yes("yes"),
        Trial::NotPermitted => Verdict::no(
            "needs a right",
            "packet sockets need CAP_NET_RAW",
            Some(rights.grant("cap_net_raw")),
        ),
        Trial::NotThere => Verdict::no(
            "not in kernel",
            "this kernel has no packet sockets (CONFIG_PACKET)",
            Some("sudo modprobe af_packet".into()),
        ),
        Trial::Failed(reason) => Verdict::no("no", format!("packet sockets: {reason}"), None),
    }
}

/// Derives from the privileges and the state of the interface whether an XDP link is possible, and
/// in which mode.
fn xdp(
    interface: &Interface,
    programs: &[(AttachedProgram, Option<String>)],
    rights: &Rights,
) -> Verdict {
    if interface.mac.is_none() {
        return Verdict::no("not Ethernet", "this is not an Ethernet interface", None);
    }
    if let Some(verdict) = not_running(interface) {
        return verdict;
    }
    if let Some(verdict) = kernel_refusal(rights) {
        return verdict;
    }
    if let Some((program, name)) = programs.first() {
        let name = name.as_deref().filter(|name| !name.is_empty());
        let name = name.map_or_else(String::new, |name| format!(" {name:?}"));
        let mode = match program.mode {
            ProgramMode::Generic => "xdpgeneric",
            ProgramMode::Offloaded => "xdpoffload",
            _ => "xdp",
        };
        return Verdict::no(
            "taken",
            format!(
                "the XDP program{name} (number {}) is attached, and an interface can have only \
                 one; if nothing needs this program, detach it",
                program.id
            ),
            Some(format!("sudo ip link set dev {} {mode} off", interface.name)),
        );
    }
    let word = match (interface.has_native_xdp(), interface.has_zero_copy_xdp()) {
        (_, Some(true)) => "zero-copy",
        (Some(true), _) => "native",
        (Some(false), _) => "generic",
        (None, _) => "yes",
    };
    Verdict::yes(word)
}

/// Returns a negative verdict if the kernel denies this process XDP on all interfaces.
fn kernel_refusal(rights: &Rights) -> Option<Verdict> {
    let mut missing = Vec::new();
    if rights.xdp_socket == Trial::NotPermitted {
        missing.push("CAP_NET_RAW");
    }
    if rights.program == Trial::NotPermitted {
        missing.push("CAP_BPF");
    }
    if !rights.can_attach {
        missing.push("CAP_NET_ADMIN");
    }
    for (trial, what) in [
        (&rights.xdp_socket, "AF_XDP sockets (CONFIG_XDP_SOCKETS)"),
        (&rights.program, "programs for XDP (CONFIG_BPF_SYSCALL)"),
    ] {
        match trial {
            Trial::NotThere => {
                let obstacle =
                    format!("this kernel has no {what}; use another kernel, or packet links");
                return Some(Verdict::no("not in kernel", obstacle, None));
            }
            Trial::Failed(reason) => {
                return Some(Verdict::no("no", format!("{what}: {reason}"), None));
            }
            Trial::Worked | Trial::NotPermitted => {}
        }
    }
    if missing.is_empty() {
        return None;
    }
    let obstacle = format!("XDP links need {}", missing.join(", "));
    let remedy = rights.grant("cap_net_raw,cap_net_admin,cap_bpf");
    Some(Verdict::no("needs rights", obstacle, Some(remedy)))
}

fn not_running(interface: &Interface) -> Option<Verdict> {
    if interface.is_running {
        return None;
    }
    Some(if interface.is_up {
        Verdict::no(
            "no carrier",
            "the interface has no carrier: check the cable and the other end",
            None,
        )
    } else {
        let remedy = format!("sudo ip link set {} up", interface.name);
        Verdict::no("down", "it is down", Some(remedy))
    })
}

/// Ring size of a packet link that the diagnosis opens and drops, in bytes.
const PROBED_RING_BYTES: u32 = 256 << 10;

#[cfg(test)]
mod tests {
    use link::host::InterfaceAddress;

    use super::*;

    #[test]
    fn a_running_interface_with_all_rights_supports_every_link() {
        let (interface, rights) = (ethernet(), superuser());
        assert_eq!(udp(&interface, |_, _| Ok(())).word, "yes");
        assert_eq!(packet(&interface, &rights).word, "yes");
        for (features, word) in [
            (None, "yes"),
            (Some(0), "generic"),
            (Some(0b11), "native"),
            (Some(0b1011), "zero-copy"),
        ] {
            let mut interface = interface.clone();
            interface.xdp_features = features;
            assert_eq!(xdp(&interface, &[], &rights).word, word);
        }
    }

    #[test]
    fn the_missing_right_is_named_with_the_command_that_grants_it() {
        let rights = Rights {
            packet_socket: Trial::NotPermitted,
            xdp_socket: Trial::NotPermitted,
            program: Trial::NotPermitted,
            can_attach: false,
            program_path: "/usr/bin/ethernot".into(),
        };
        let packet = packet(&ethernet(), &rights);
        assert!(packet.obstacle.unwrap().contains("CAP_NET_RAW"));
        assert_eq!(packet.remedy.unwrap(), "sudo setcap cap_net_raw+ep /usr/bin/ethernot");
        let xdp = xdp(&ethernet(), &[], &rights);
        let obstacle = xdp.obstacle.unwrap();
        for capability in ["CAP_NET_RAW", "CAP_BPF", "CAP_NET_ADMIN"] {
            assert!(obstacle.contains(capability), "{obstacle}");
        }
        assert!(xdp.remedy.unwrap().contains("cap_net_raw,cap_net_admin,cap_bpf+ep"));
    }

    #[test]
    fn an_attached_program_is_named_with_the_command_that_detaches_it() {
        let program = AttachedProgram { id: 7, mode: ProgramMode::Generic };
        let verdict = xdp(&ethernet(), &[(program, Some("guard".into()))], &superuser());
        let obstacle = verdict.obstacle.unwrap();
        assert!(obstacle.contains("\"guard\"") && obstacle.contains('7'), "{obstacle}");
        assert_eq!(verdict.remedy.unwrap(), "sudo ip link set dev eth0 xdpgeneric off");
    }

    #[test]
    fn interfaces_down_without_address_or_not_ethernet_are_distinguished() {
        let mut down = ethernet();
        (down.is_up, down.is_running) = (false, false);
        assert_eq!(udp(&down, |_, _| Ok(())).remedy.unwrap(), "sudo ip link set eth0 up");
        let mut unplugged = ethernet();
        unplugged.is_running = false;
        assert_eq!(packet(&unplugged, &superuser()).word, "no carrier");
        let mut bare = ethernet();
        bare.addresses.clear();
        assert_eq!(udp(&bare, |_, _| Ok(())).word, "no address");
        let mut tunnel = ethernet();
        tunnel.mac = None;
        assert_eq!(packet(&tunnel, &superuser()).word, "not Ethernet");
        assert_eq!(xdp(&tunnel, &[], &superuser()).word, "not Ethernet");
    }

    fn superuser() -> Rights {
        Rights {
            packet_socket: Trial::Worked,
            xdp_socket: Trial::Worked,
            program: Trial::Worked,
            can_attach: true,
            program_path: "ethernot".into(),
        }
    }

    fn ethernet() -> Interface {
        let mut interface = Interface::default();
        interface.name = "eth0".into();
        interface.mac = Some([2, 0, 0, 0, 0, 1]);
        (interface.is_up, interface.is_running) = (true, true);
        interface.addresses = vec![InterfaceAddress { ip: [10, 0, 0, 1].into(), prefix_bits: 24 }];
        interface
    }
}
