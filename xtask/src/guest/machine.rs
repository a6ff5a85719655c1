//! The command line of qemu for a guest.

use std::ffi::OsString;
use std::path::Path;

use super::options::{Clock, Device, Forward, MachineOptions, Network, Side, Subnet};

/// The emulator.
pub(crate) const QEMU: &str = "qemu-system-x86_64";

/// Number of commands that run at once in a guest.
pub(crate) const PORTS: usize = 4;

/// File names in the folder of a running guest, in which qemu runs. Paths of sockets are relative,
/// because a Unix socket's path has at most 107 bytes.
pub(crate) const CONSOLE: &str = "console.log";
pub(crate) const PROCESS: &str = "pid";

/// Returns the socket of a port.
pub(crate) fn port(index: usize) -> String {
    format!("port{index}")
}

/// Returns the name of a guest of a pair.
pub(crate) fn name_in_pair(pair: &str, side: Side) -> String {
    match side {
        Side::A => format!("{pair}-a"),
        Side::B => format!("{pair}-b"),
    }
}

/// Returns qemu's arguments. `name` is the guest's name; for a guest of a pair it ends with `-a` or
/// `-b`. The emulation of instructions is the same on every host, with or without hardware support,
/// so that figures are comparable.
pub(crate) fn arguments(
    vmlinux: &Path,
    archive: &Path,
    name: &str,
    options: &MachineOptions,
) -> Vec<OsString> {
    let mut line = Line::default();
    // Without `erms` and `fsrm` the guest copies by wide instructions: qemu executes `rep movsb`
    // byte by byte.
    line.add("-cpu max,-erms,-fsrm");
    match options.clock {
        Clock::Host => line.add("-accel tcg,thread=multi"),
        Clock::Instructions => {
            line.add("-accel tcg,thread=single -icount shift=0,align=off,sleep=off");
        }
    }
    line.add("-M q35,usb=off,sata=off,smbus=off,hpet=off -no-user-config -nodefaults");
    line.add("-display none -no-reboot");
    line.add(&format!("-smp {} -m {}", options.processors, options.memory_mib));
    line.pair("-kernel", vmlinux);
    line.pair("-initrd", archive);
    line.add(&format!("-serial file:{CONSOLE}"));
    line.add("-device virtio-serial-pci");
    for index in 0..PORTS {
        let socket = port(index);
        line.add(&format!("-chardev socket,id={socket},path={socket},server=on,wait=off"));
        line.add(&format!("-device virtserialport,chardev={socket},name=guest.command.{index}"));
    }
    if let Some(backend) = backend(name, &options.network) {
        line.pair("-netdev", backend);
        line.pair("-device", card(&options.network));
    }
    if let Some(file) = &options.capture {
        let file = escaped(file);
        line.pair("-object", format!("filter-dump,id=capture,netdev=n0,file={file},maxlen=65535"));
    }
    if let Some(folder) = &options.share {
        let folder = escaped(folder);
        line.pair(
            "-virtfs",
            format!("local,path={folder},mount_tag=share,security_model=none,multidevs=remap"),
        );
    }
    line.pair("-append", settings(name, options));
    line.0
}

#[derive(Default)]
struct Line(Vec<OsString>);

impl Line {
    /// Adds words that are separated by blanks.
    fn add(&mut self, words: &str) {
        self.0.extend(words.split(' ').map(OsString::from));
    }

    fn pair(&mut self, option: &str, value: impl Into<OsString>) {
        self.0.extend([option.into(), value.into()]);
    }
}

/// Returns the network behind the card.
fn backend(name: &str, network: &Network) -> Option<String> {
    match network {
        Network::None => None,
        Network::User(forwards) => {
            let forward = |Forward { host, guest }: &Forward| {
                format!(",hostfwd=tcp:127.0.0.1:{host}-:{guest}")
            };
            let forwards: String = forwards.iter().map(forward).collect();
            Some(format!("user,id=n0{forwards}"))
        }
        Network::Tap { interface, .. } => {
            // With a header of virtio before each frame, tshark cannot read a capture.
            Some(format!("tap,id=n0,ifname={interface},script=no,downscript=no,vnet_hdr=off"))
        }
        Network::Wire(side) => {
            let pair = name.rsplit_once('-').map_or(name, |(pair, _)| pair);
            let other = name_in_pair(pair, other(*side));
            Some(format!(
                "dgram,id=n0,local.type=unix,local.path=wire,remote.type=unix,remote.path=../{other}/wire"
            ))
        }
    }
}

/// Returns the network card. It offers no checksums and no segmentation, so that a capture shows
/// the frames that a real cable would carry.
fn card(network: &Network) -> String {
    let last = if *network == Network::Wire(Side::B) { 2 } else { 1 };
    let off = "csum=off,gso=off,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ufo=off,\
        host_tso4=off,host_tso6=off,host_ufo=off";
    // An empty `romfile` leaves out the firmware for starting from the network.
    format!("virtio-net-pci,netdev=n0,mac=52:54:00:00:00:{last:02x},romfile=,{off}")
}

/// Returns the kernel's command line. `init` reads the settings that begin with `guest.`.
fn settings(name: &str, options: &MachineOptions) -> String {
    // `no_timer_check`: on a busy host the kernel takes the emulated timer for broken and stops.
    // `panic=-1`: a crash ends qemu at once.
    let mut line =
        format!("console=ttyS0 quiet panic=-1 no_timer_check tsc=reliable guest.name={name}");
    let mut add = |setting: &str| {
        line.push(' ');
        line.push_str(setting);
    };
    if let Some(address) = address(&options.network) {
        let Subnet { address, prefix } = address;
        add(&format!("guest.address={address}/{prefix}"));
        let device = match options.device {
            Device::Siw => "siw",
            Device::Rxe => "rxe",
        };
        add(&format!("guest.device={device}"));
    }
    if matches!(options.network, Network::User(_)) {
        add("guest.gateway=10.0.2.2");
    }
    if options.share.is_some() {
        add("guest.share=1");
    }
    line
}

/// Returns the address of the guest's card.
fn address(network: &Network) -> Option<Subnet> {
    match network {
        Network::None => None,
        // The address that qemu's network in user space expects.
        Network::User(_) => Some(Subnet { address: [10, 0, 2, 15].into(), prefix: 24 }),
        Network::Tap { host, guest, .. } => Some(Subnet { address: *guest, prefix: host.prefix }),
        Network::Wire(Side::A) => Some(Subnet { address: [10, 88, 0, 1].into(), prefix: 24 }),
        Network::Wire(Side::B) => Some(Subnet { address: [10, 88, 0, 2].into(), prefix: 24 }),
    }
}

fn other(side: Side) -> Side {
    match side {
        Side::A => Side::B,
        Side::B => Side::A,
    }
}

/// Returns a path for a value of qemu, in which a comma separates options unless it is doubled.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::super::options::{GuestCommand, parse};
    use super::*;

    fn line(options: &str, name: &str) -> String {
        let words: Vec<String> =
            format!("run {options} -- true").split_whitespace().map(String::from).collect();
        let Ok(GuestCommand::Run { machine, .. }) = parse(&words) else {
            panic!("{options} is refused");
        };
        joined(&machine, name)
    }

    fn joined(machine: &MachineOptions, name: &str) -> String {
        let arguments = arguments(Path::new("/k"), Path::new("/i"), name, machine);
        arguments.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_guest_without_network_has_no_card_and_no_address() {
        let line = line("", "g");
        assert!(line.contains("-kernel /k -initrd /i "), "{line}");
        assert!(line.contains("-smp 2 -m 768"), "{line}");
        for absent in
            ["-netdev", "virtio-net", "-virtfs", "filter-dump", "-icount", "guest.address"]
        {
            assert!(!line.contains(absent), "{absent}: {line}");
        }
        assert!(line.ends_with("guest.name=g"), "{line}");
    }

    #[test]
    fn every_port_has_a_socket_and_a_name() {
        let line = line("", "g");
        assert_eq!(line.matches("server=on,wait=off").count(), PORTS);
        assert_eq!(line.matches("name=guest.command.").count(), PORTS);
    }

    #[test]
    fn a_clock_of_instructions_runs_one_thread() {
        let line = line("--clock instructions", "g");
        assert!(line.contains("-accel tcg,thread=single -icount shift=0,"), "{line}");
        assert!(line.contains("-smp 1 "), "{line}");
    }

    #[test]
    fn ports_of_the_host_are_forwarded_from_loopback_only() {
        let line = line("--net user:1=2,3=4 --device rxe", "g");
        let forwards = "hostfwd=tcp:127.0.0.1:1-:2,hostfwd=tcp:127.0.0.1:3-:4 ";
        assert!(line.contains(forwards), "{line}");
        let guest = "guest.address=10.0.2.15/24 guest.device=rxe guest.gateway=10.0.2.2";
        assert!(line.ends_with(guest), "{line}");
    }

    #[test]
    fn a_tap_guest_takes_the_hosts_prefix() {
        let line = line("--net tap:t0,10.18.0.1/20,10.18.0.2", "g");
        assert!(
            line.contains("tap,id=n0,ifname=t0,script=no,downscript=no,vnet_hdr=off "),
            "{line}"
        );
        assert!(line.contains("guest.address=10.18.0.2/20 guest.device=siw"), "{line}");
    }

    #[test]
    fn the_guests_of_a_pair_have_each_others_socket_and_different_addresses() {
        let words: Vec<String> = ["pair", "--", "true"].map(String::from).into();
        let Ok(GuestCommand::Pair { machine, .. }) = parse(&words) else { panic!("refused") };
        let a = joined(&machine, "p-1-a");
        let machine = MachineOptions { network: Network::Wire(Side::B), ..machine };
        let b = joined(&machine, "p-1-b");
        assert!(a.contains("remote.path=../p-1-b/wire") && a.contains("10.88.0.1/24"), "{a}");
        assert!(b.contains("remote.path=../p-1-a/wire") && b.contains("10.88.0.2/24"), "{b}");
        assert!(a.contains("mac=52:54:00:00:00:01") && b.contains("mac=52:54:00:00:00:02"));
    }

    #[test]
    fn commas_in_paths_are_doubled() {
        let line = line("--net user --pcap /a,b --share /c,d", "g");
        assert!(line.contains("file=/a,,b,maxlen") && line.contains("path=/c,,d,mount_tag"));
        assert!(line.ends_with("guest.share=1"), "{line}");
    }
}
