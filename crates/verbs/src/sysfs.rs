//! The files in which programs look up devices. They have the names and contents of the files that
//! the kernel shows for an InfiniBand device.
//!
//! This module only creates the table of files. Another library redirects the program's accesses to
//! these paths, and looks them up in the table with [`find`].

use std::collections::BTreeMap;

use crate::attributes::{DeviceAttributes, GidEntry, PortAttributes, PortCounters, PortState};
use crate::transport::Transport;

/// Folder with an entry for each device.
pub const DEVICES: &str = "/sys/class/infiniband";

/// Folder with an entry for the `uverbs` descriptor of each device.
pub const DESCRIPTORS: &str = "/sys/class/infiniband_verbs";

/// Folder of the device nodes.
pub const NODES: &str = "/dev/infiniband";

/// Folder with a folder for each device. [`DEVICES`] has links to these folders. The kernel uses
/// the same parent folder for all devices without hardware.
pub const DEVICE_FOLDERS: &str = "/sys/devices/virtual/infiniband";

/// Folder with a folder for the `uverbs` descriptor of each device. [`DESCRIPTORS`] has links to
/// these folders.
pub const DESCRIPTOR_FOLDERS: &str = "/sys/devices/virtual/infiniband_verbs";

/// Folders that this library provides. If a program accesses one of these folders or a path below
/// one of them, the library answers, even if the path does not exist.
pub const ROOTS: [&str; 6] =
    [DEVICES, DESCRIPTORS, "/sys/class/infiniband_mad", DEVICE_FOLDERS, DESCRIPTOR_FOLDERS, NODES];

/// The entry that a path names.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum SysfsEntry {
    /// A file with this text. The text ends with a line feed.
    File(String),
    /// A symbolic link to this path. The path is relative to the folder that contains the link.
    Link(String),
    /// A character device. Programs only check that the device exists and need not open it. The
    /// library can therefore open `/dev/null` instead.
    Node,
}

/// Returns the name of the `index`-th device's descriptor, such as `uverbs0`.
pub fn descriptor_name(index: usize) -> String {
    format!("uverbs{index}")
}

/// Returns all entries of the `index`-th device with their absolute paths.
pub fn entries(
    index: usize,
    device: &DeviceAttributes,
    port: &PortAttributes,
    counters: &PortCounters,
    gids: &[GidEntry],
) -> Vec<(String, SysfsEntry)> {
    let name = &device.name;
    let descriptor = descriptor_name(index);
    let mut table = Table { folder: format!("{DEVICE_FOLDERS}/{name}"), entries: Vec::new() };
    for (path, text) in device_files(device) {
        table.add(path, &text);
    }
    for (path, text) in port_files(device.transport(), port) {
        table.add(&format!("ports/1/{path}"), &text);
    }
    for (path, value) in port_counters(counters) {
        table.add(&format!("ports/1/{path}"), &value.to_string());
    }
    let names = interface_names();
    for entry in gids {
        table.add_gid(entry, names.get(&entry.interface));
    }
    table.link("subsystem", "../../../../class/infiniband");
    table.folder = format!("{DESCRIPTOR_FOLDERS}/{descriptor}");
    table.add("ibdev", name);
    table.add("abi_version", "1");
    table.link("device", &format!("../../infiniband/{name}"));
    table.link("subsystem", "../../../../class/infiniband_verbs");
    table.folder = DEVICES.into();
    table.link(name, &format!("../../devices/virtual/infiniband/{name}"));
    table.folder = DESCRIPTORS.into();
    table.link(&descriptor, &format!("../../devices/virtual/infiniband_verbs/{descriptor}"));
    table.add("abi_version", "6");
    // Programs look for three nodes: the node of the `uverbs` descriptor, a node with the device's
    // name, and the node of the connection manager.
    for node in [&descriptor, name, "rdma_cm"] {
        table.entries.push((format!("{NODES}/{node}"), SysfsEntry::Node));
    }
    table.entries
}

/// Result of looking up a path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Found {
    /// A folder, with the name and the kind of each of its entries.
    Folder(BTreeMap<String, Kind>),
    /// A file, link or node.
    Entry(SysfsEntry),
}

/// Kind of an entry in a folder.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Kind {
    /// A folder.
    Folder,
    /// A file.
    File,
    /// A symbolic link.
    Link,
    /// A character device.
    Node,
}

/// Looks up an absolute path in a table of all devices. Returns `None` if the path does not exist,
/// or if it is not at or below one of [`ROOTS`].
///
/// Like the kernel, ignores double slashes, slashes at the end and `.`. Follows links in the middle
/// of the path. If the path ends at a link, returns the link.
///
/// If `..` follows a link in the path, it leads to the folder of the link, not to the parent of the
/// link's target as in the kernel. So the caller must resolve the links of such a path before it
/// calls this function.
pub fn find(entries: &[(String, SysfsEntry)], path: &str) -> Option<Found> {
    let path = physical(entries, normalized(path)?);
    if let Some((_, entry)) = entries.iter().find(|(other, _)| *other == path) {
        return Some(Found::Entry(entry.clone()));
    }
    let below = |(other, entry): &(String, SysfsEntry)| {
        let rest = other.strip_prefix(&path)?.strip_prefix('/')?;
        let kind = match (rest.split_once('/'), entry) {
            (Some(_), _) => Kind::Folder,
            (None, SysfsEntry::File(_)) => Kind::File,
            (None, SysfsEntry::Link(_)) => Kind::Link,
            (None, SysfsEntry::Node) => Kind::Node,
        };
        Some((rest.split('/').next()?.to_owned(), kind))
    };
    let names: BTreeMap<String, Kind> = entries.iter().filter_map(below).collect();
    let is_there = !names.is_empty() || ROOTS.contains(&path.as_str());
    is_there.then_some(Found::Folder(names))
}

/// Returns the path with all its links resolved, except a link at its end.
fn physical(entries: &[(String, SysfsEntry)], mut path: String) -> String {
    let passes = |(link, entry): &(String, SysfsEntry), path: &str| {
        let SysfsEntry::Link(target) = entry else { return None };
        let rest = path.strip_prefix(link)?.strip_prefix('/')?;
        normalized(&format!("{link}/../{target}/{rest}"))
    };
    // This loop resolves all links, because no link of the table leads back to itself, and no path
    // has more than `LINKS_MAX` links.
    for _ in 0..LINKS_MAX {
        match entries.iter().find_map(|entry| passes(entry, &path)) {
            Some(further) => path = further,
            None => break,
        }
    }
    path
}

/// Returns the path without empty parts and `.`, and with `..` resolved. Returns `None` if the
/// result is not at or below one of [`ROOTS`].
pub fn normalized(path: &str) -> Option<String> {
    if !path.starts_with('/') {
        return None;
    }
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    let path = format!("/{}", parts.join("/"));
    let is_below = |root: &&str| {
        path.strip_prefix(*root).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    ROOTS.iter().any(is_below).then_some(path)
}

/// Returns the text of the file at `path`, if the file exists.
pub fn file(entries: &[(String, SysfsEntry)], path: &str) -> Option<String> {
    match find(entries, path) {
        Some(Found::Entry(SysfsEntry::File(text))) => Some(text),
        _ => None,
    }
}

struct Table {
    folder: String,
    entries: Vec<(String, SysfsEntry)>,
}

impl Table {
    fn add(&mut self, path: &str, text: &str) {
        self.entries
            .push((format!("{}/{path}", self.folder), SysfsEntry::File(format!("{text}\n"))));
    }

    fn link(&mut self, path: &str, target: &str) {
        self.entries.push((format!("{}/{path}", self.folder), SysfsEntry::Link(target.into())));
    }

    fn add_gid(&mut self, entry: &GidEntry, interface: Option<&String>) {
        let index = entry.index;
        self.add(&format!("ports/1/gids/{index}"), &groups(&entry.gid.0));
        self.add(&format!("ports/1/gid_attrs/types/{index}"), entry.kind.text());
        if let Some(interface) = interface {
            self.add(&format!("ports/1/gid_attrs/ndevs/{index}"), interface);
            let path = format!("device/net/{interface}/ifindex");
            self.add(&path, &entry.interface.to_string());
        }
    }
}

fn device_files(device: &DeviceAttributes) -> Vec<(&'static str, String)> {
    let guid = groups(&device.node_guid);
    vec![
        ("node_type", device.transport().node_type().text().into()),
        ("node_guid", guid.clone()),
        ("sys_image_guid", guid),
        ("node_desc", device.name.clone()),
        ("fw_ver", FIRMWARE.into()),
        ("hw_rev", "0".into()),
        ("hca_type", MODEL.into()),
        ("board_id", MODEL.into()),
        ("device/numa_node", "-1".into()),
        ("device/local_cpus", ALL_PROCESSORS.into()),
    ]
}

fn port_files(transport: Transport, port: &PortAttributes) -> Vec<(&'static str, String)> {
    let is_up = port.state == PortState::Active;
    let (state, physical) =
        if is_up { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
    // Compute in tenths of Gbit/s, because 2.5 Gbit/s is a usual rate.
    let tenths = port.rate.unwrap_or(RATE_UNKNOWN) / 100_000_000;
    let rate = format!("{}.{} Gb/sec (1X)", tenths / 10, tenths % 10).replace(".0 ", " ");
    let mut files = vec![
        ("state", state.into()),
        ("phys_state", physical.into()),
        ("rate", rate),
        ("lid", "0x0".into()),
        ("lid_mask_count", "0".into()),
        ("sm_lid", "0x0".into()),
        ("sm_sl", "0".into()),
        ("cap_mask", format!("{:#010x}", transport.port_capabilities())),
        ("link_layer", "Ethernet".into()),
        ("tc/1/traffic_class", String::new()),
    ];
    // Like the kernel, show no folder `pkeys` for a transport without partitions.
    if transport.partition_keys() > 0 {
        files.push(("pkeys/0", "0xffff".into()));
    }
    files
}

/// Returns paths and values of counters: those that every InfiniBand driver has, and those that
/// only this device has (`hw_counters`). The counters of data (`port_xmit_data`, `port_rcv_data`)
/// count words of four bytes.
fn port_counters(counters: &PortCounters) -> Vec<(String, u64)> {
    let usual = [
        ("port_xmit_data", counters.sent_bytes / 4),
        ("port_rcv_data", counters.received_bytes / 4),
        ("port_xmit_packets", counters.sent_frames),
        ("port_rcv_packets", counters.received_frames),
        ("port_xmit_discards", counters.send_discards),
        ("port_xmit_wait", counters.send_waits),
        ("port_rcv_errors", counters.receive_errors),
    ];
    let usual = usual.into_iter().map(|(name, value)| (format!("counters/{name}"), value));
    let hardware = counters.hardware.iter();
    usual.chain(hardware.map(|(name, value)| (format!("hw_counters/{name}"), *value))).collect()
}

/// Formats bytes as hexadecimal numbers of 16 bits, separated by colons.
fn groups(bytes: &[u8]) -> String {
    let word = |pair: &[u8]| pair.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
    let words: Vec<String> = bytes.chunks(2).map(|pair| format!("{:04x}", word(pair))).collect();
    words.join(":")
}

/// Returns the names of the interfaces of this network namespace, by interface index. If the kernel
/// does not list them, the map is empty.
fn interface_names() -> BTreeMap<u32, String> {
    let interfaces = link::host::interfaces().unwrap_or_default().into_iter();
    interfaces.map(|interface| (interface.index, interface.name)).collect()
}

/// Maximum number of links in one path. The paths of the table have at most two.
const LINKS_MAX: usize = 8;

/// Model name of the device.
pub const MODEL: &str = "ethernot";

/// Version of this library, reported as the firmware version.
pub const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

/// CPU mask that contains all processors of any host. It means that all processors are equally near
/// to the device.
const ALL_PROCESSORS: &str = "ffffffff,ffffffff,ffffffff,ffffffff";

/// Rate in bits per second that is reported for a link of unknown rate: 10 Gbit/s.
pub const RATE_UNKNOWN: u64 = 10_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::{Gid, OnDemandPaging, Strictness, Vendor};
    use crate::services::Services;
    use crate::transport::GidKind;

    fn port(rate: Option<u64>) -> PortAttributes {
        PortAttributes { state: PortState::Active, active_mtu: 1024, gids: 1, rate }
    }

    #[test]
    fn numbers_are_written_as_the_kernel_writes_them() {
        let gid = Gid::of(std::net::Ipv4Addr::LOCALHOST.into());
        assert_eq!(groups(&gid.0), "0000:0000:0000:0000:0000:ffff:7f00:0001");
        let rate = |rate| {
            let files = port_files(Transport::InfiniBand, &port(rate));
            files.into_iter().find(|(path, _)| *path == "rate").map(|(_, text)| text)
        };
        assert_eq!(rate(Some(2_500_000_000)).as_deref(), Some("2.5 Gb/sec (1X)"));
        assert_eq!(rate(None).as_deref(), Some("10 Gb/sec (1X)"));
    }

    #[test]
    fn all_files_that_programs_read_exist() {
        let file = |path: &str| match found(path) {
            Some(Found::Entry(SysfsEntry::File(text))) => text,
            other => panic!("{path}: {other:?}"),
        };
        let port = "/sys/class/infiniband/edge0/ports/1";
        assert_eq!(file(&format!("{port}/gid_attrs/types/0")), "RoCE v2\n");
        assert_eq!(file(&format!("{port}/gid_attrs/ndevs/0")), "lo\n");
        assert_eq!(file(&format!("{port}/gids/0")), "0000:0000:0000:0000:0000:ffff:7f00:0001\n");
        assert_eq!(file(&format!("{port}/pkeys/0")), "0xffff\n");
        assert_eq!(file(&format!("{port}/cap_mask")), "0x04010000\n");
        assert_eq!(file(&format!("{port}/link_layer")), "Ethernet\n");
        assert_eq!(file(&format!("{port}/state")), "4: ACTIVE\n");
        // This counter counts words of four bytes.
        assert_eq!(file(&format!("{port}/counters/port_xmit_data")), "1024\n");
        assert_eq!(file(&format!("{port}/hw_counters/resets_sent")), "5\n");
        assert_eq!(file("/sys/class/infiniband/edge0/node_type"), "1: CA\n");
        assert_eq!(file("/sys/class/infiniband/edge0/node_guid"), "0123:4567:89ab:cdef\n");
        assert_eq!(file("/sys/class/infiniband_verbs/uverbs0/ibdev"), "edge0\n");
        assert_eq!(found("/dev/infiniband/uverbs0"), Some(Found::Entry(SysfsEntry::Node)));
        assert_eq!(found("/dev/infiniband/edge0"), Some(Found::Entry(SysfsEntry::Node)));
        assert_eq!(found("/dev/infiniband/rdma_cm"), Some(Found::Entry(SysfsEntry::Node)));
    }

    #[test]
    fn folders_list_each_entry_once() {
        let folder = |path: &str, names: &[(&str, Kind)]| {
            let names = names.iter().map(|&(name, kind)| (name.to_owned(), kind)).collect();
            assert_eq!(found(path), Some(Found::Folder(names)), "{path}");
        };
        folder("/sys/class/infiniband", &[("edge0", Kind::Link)]);
        folder("/sys/devices/virtual/infiniband", &[("edge0", Kind::Folder)]);
        let descriptors = [("abi_version", Kind::File), ("uverbs0", Kind::Link)];
        folder("/sys/class/infiniband_verbs", &descriptors);
        folder("/sys/class/infiniband/edge0/device/net/", &[("lo", Kind::Folder)]);
        folder("/sys/class/infiniband/edge0/ports", &[("1", Kind::Folder)]);
        folder("/dev/infiniband", &["edge0", "rdma_cm", "uverbs0"].map(|name| (name, Kind::Node)));
        assert_eq!(find(&[], "/sys/class/infiniband"), Some(Found::Folder(BTreeMap::new())));
    }

    #[test]
    fn devices_are_links_to_folders_of_devices_without_hardware() {
        let link = |path: &str, target: &str| {
            assert_eq!(found(path), Some(Found::Entry(SysfsEntry::Link(target.into()))), "{path}");
        };
        link("/sys/class/infiniband/edge0", "../../devices/virtual/infiniband/edge0");
        link(
            "/sys/class/infiniband_verbs/uverbs0",
            "../../devices/virtual/infiniband_verbs/uverbs0",
        );
        link("/sys/class/infiniband_verbs/uverbs0/device", "../../infiniband/edge0");
        let path = "/sys/class/infiniband_verbs/uverbs0/device/node_guid";
        assert_eq!(found(path), found("/sys/devices/virtual/infiniband/edge0/node_guid"));
        assert!(found(path).is_some());
    }

    #[test]
    fn paths_resolve_as_in_the_kernel_and_foreign_paths_are_not_intercepted() {
        let is_root = |path: &str| found(path) == found("/sys/class/infiniband");
        assert!(is_root("//sys/class//infiniband/"));
        assert!(is_root("/sys/./class/net/../infiniband/."));
        for path in [
            "/sys/class/infiniband_verbs_of_others",
            "/sys/class/net",
            "/sys/class/infiniband/..",
            "/sys/class/infiniband/edge1",
            "/sys/class/infiniband/edge0/node_guid/x",
            "sys/class/infiniband",
            "",
        ] {
            assert_eq!(found(path), None, "{path}");
        }
    }

    #[test]
    fn an_iwarp_device_looks_as_the_kernel_shows_one() {
        let gid = Gid::of_station([0x52, 0x54, 0, 0x12, 0x34, 0x56]);
        let file = |path: &str| {
            let path = format!("/sys/class/infiniband/iwarp0/{path}");
            match found_on("iwarp0", Transport::Iwarp, (gid, GidKind::Station), &path) {
                Some(Found::Entry(SysfsEntry::File(text))) => Some(text),
                Some(other) => panic!("{path}: {other:?}"),
                None => None,
            }
        };
        for (path, text) in [
            ("node_type", "4: RNIC\n"),
            ("ports/1/gids/0", "5254:0012:3456:0000:0000:0000:0000:0000\n"),
            ("ports/1/gid_attrs/types/0", "IB/RoCE v1\n"),
            ("ports/1/gid_attrs/ndevs/0", "lo\n"),
            ("ports/1/link_layer", "Ethernet\n"),
            ("ports/1/cap_mask", "0x00010000\n"),
            ("ports/1/state", "4: ACTIVE\n"),
        ] {
            assert_eq!(file(path).as_deref(), Some(text), "{path}");
        }
        assert_eq!(file("ports/1/pkeys/0"), None);
    }

    fn found(path: &str) -> Option<Found> {
        let gid = Gid::of(std::net::Ipv4Addr::LOCALHOST.into());
        found_on("edge0", Transport::InfiniBand, (gid, GidKind::RoceV2), path)
    }

    fn found_on(
        name: &str,
        transport: Transport,
        (gid, kind): (Gid, GidKind),
        path: &str,
    ) -> Option<Found> {
        let attributes = DeviceAttributes {
            name: name.into(),
            node_guid: [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef],
            vendor: Vendor::NONE,
            services: Services::of(transport),
            on_demand_paging: OnDemandPaging::Supported,
            message_bytes_max: 1,
            queue_pairs_max: 1,
            work_requests_max: 1,
            pieces_max: 1,
            read_pieces_max: 1,
            inline_max: 1,
            completion_queues_max: 1,
            completions_max: 1,
            regions_max: 1,
            windows_max: 1,
            region_bytes_max: 1,
            domains_max: 1,
            read_depth_max: 1,
            shared_queues_max: 1,
            shared_receives_max: 1,
            address_handles_max: 1,
            groups_max: 1,
            strictness: Strictness::Lenient,
        };
        let interface = link::Interface::named("lo").map_or(1, |interface| interface.index);
        let gids = [GidEntry { gid, kind, index: 0, interface }];
        let hardware = vec![("resets_sent", 5)];
        let counters = PortCounters { sent_bytes: 4099, hardware, ..PortCounters::default() };
        find(&entries(0, &attributes, &port(None), &counters, &gids), path)
    }
}
