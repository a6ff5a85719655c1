//! Files that programs read to learn of devices, as a kernel with a device of this kind would have them.
//!
//! A table and nothing else: the C library answers from it when it is asked for a file, and what redirects paths asks that
//! library what [stands](find) at one.

use std::collections::{BTreeMap, BTreeSet};

use crate::attributes::{DeviceAttributes, GidEntry, PortAttributes, PortState};

/// Where devices are listed.
pub const DEVICES: &str = "/sys/class/infiniband";

/// Where the descriptors of devices are listed.
pub const DESCRIPTORS: &str = "/sys/class/infiniband_verbs";

/// Where the descriptors themselves are.
pub const NODES: &str = "/dev/infiniband";

/// Everything below these belongs to this library, also what is not there.
pub const ROOTS: [&str; 4] = [DEVICES, DESCRIPTORS, "/sys/class/infiniband_mad", NODES];

/// What a path leads to.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Entry {
    /// A file with this text, which ends with a line feed.
    File(String),
    /// A character device that programs look for, but need not open: `/dev/null` will do.
    Node,
}

/// Name of the `index`-th device's descriptor, such as `uverbs0`.
pub fn descriptor_name(index: usize) -> String {
    format!("uverbs{index}")
}

/// Every path of the `index`-th device, by full name.
pub fn entries(
    index: usize,
    device: &DeviceAttributes,
    port: &PortAttributes,
    gids: &[GidEntry],
) -> Vec<(String, Entry)> {
    let name = &device.name;
    let descriptor = descriptor_name(index);
    let mut table = Table { folder: format!("{DEVICES}/{name}"), entries: Vec::new() };
    for (path, text) in device_files(device) {
        table.add(path, &text);
    }
    for (path, text) in port_files(port) {
        table.add(&format!("ports/1/{path}"), &text);
    }
    let names = interface_names();
    for entry in gids {
        table.add_gid(entry, names.get(&entry.interface));
    }
    table.folder = format!("{DESCRIPTORS}/{descriptor}");
    table.add("ibdev", name);
    table.add("abi_version", "1");
    table.folder = DESCRIPTORS.into();
    table.add("abi_version", "6");
    // Programs look for what the device calls its descriptor, for its name, and for that of the connection manager.
    for node in [&descriptor, name, "rdma_cm"] {
        table.entries.push((format!("{NODES}/{node}"), Entry::Node));
    }
    table.entries
}

/// What stands at a path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Found {
    /// A folder with these names in it.
    Folder(BTreeSet<String>),
    /// Something else.
    Entry(Entry),
}

/// What stands at an absolute path, in a table of all devices; `None` if nothing does, or the path is not one of
/// [`ROOTS`] or below.
///
/// Slashes at the end and twice in a row, `.` and `..` mean what they mean to the kernel.
pub fn find(entries: &[(String, Entry)], path: &str) -> Option<Found> {
    let path = normalized(path)?;
    if let Some((_, entry)) = entries.iter().find(|(other, _)| *other == path) {
        return Some(Found::Entry(entry.clone()));
    }
    let below = |other: &str| {
        let rest = other.strip_prefix(&path)?.strip_prefix('/')?;
        rest.split('/').next().map(str::to_owned)
    };
    let names: BTreeSet<String> = entries.iter().filter_map(|(other, _)| below(other)).collect();
    let is_there = !names.is_empty() || ROOTS.contains(&path.as_str());
    is_there.then_some(Found::Folder(names))
}

/// The path without what says nothing; `None` if it is none of [`ROOTS`] or below.
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

/// The text of one of them, if it is a file.
pub fn file<'a>(entries: &'a [(String, Entry)], path: &str) -> Option<&'a str> {
    entries.iter().find_map(|(other, entry)| match entry {
        Entry::File(text) if other == path => Some(text.as_str()),
        _ => None,
    })
}

struct Table {
    folder: String,
    entries: Vec<(String, Entry)>,
}

impl Table {
    fn add(&mut self, path: &str, text: &str) {
        self.entries.push((format!("{}/{path}", self.folder), Entry::File(format!("{text}\n"))));
    }

    fn add_gid(&mut self, entry: &GidEntry, interface: Option<&String>) {
        let index = entry.index;
        self.add(&format!("ports/1/gids/{index}"), &groups(&entry.gid.0));
        self.add(&format!("ports/1/gid_attrs/types/{index}"), "RoCE v2");
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
        ("node_type", "1: CA".into()),
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

fn port_files(port: &PortAttributes) -> Vec<(&'static str, String)> {
    let is_up = port.state == PortState::Active;
    let (state, physical) =
        if is_up { ("4: ACTIVE", "5: LinkUp") } else { ("1: DOWN", "3: Disabled") };
    // Tenths of Gbit/s, as 2.5 is a rate that counts.
    let tenths = port.rate.unwrap_or(RATE_UNKNOWN) / 100_000_000;
    let rate = format!("{}.{} Gb/sec (1X)", tenths / 10, tenths % 10).replace(".0 ", " ");
    vec![
        ("state", state.into()),
        ("phys_state", physical.into()),
        ("rate", rate),
        ("lid", "0x0".into()),
        ("lid_mask_count", "0".into()),
        ("sm_lid", "0x0".into()),
        ("sm_sl", "0".into()),
        ("cap_mask", "0x04010000".into()),
        ("link_layer", "Ethernet".into()),
        ("pkeys/0", "0xffff".into()),
        ("tc/1/traffic_class", String::new()),
    ]
}

/// Bytes as hexadecimal numbers of 16 bits with colons between them.
fn groups(bytes: &[u8]) -> String {
    let word = |pair: &[u8]| pair.iter().fold(0, |word, byte| word << 8 | u32::from(*byte));
    let words: Vec<String> = bytes.chunks(2).map(|pair| format!("{:04x}", word(pair))).collect();
    words.join(":")
}

/// The interfaces of this network namespace, by their numbers; none if nobody tells.
fn interface_names() -> BTreeMap<u32, String> {
    let interfaces = link::host::interfaces().unwrap_or_default().into_iter();
    interfaces.map(|interface| (interface.index, interface.name)).collect()
}

/// What the device calls itself.
pub const MODEL: &str = "ethernot";

/// Its version, in the place of firmware.
pub const FIRMWARE: &str = env!("CARGO_PKG_VERSION");

/// More processors than a program has: a device that none is nearer to than others.
const ALL_PROCESSORS: &str = "ffffffff,ffffffff,ffffffff,ffffffff";

/// Of a link that tells no rate: 10 Gbit/s.
pub const RATE_UNKNOWN: u64 = 10_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attributes::Gid;

    fn port(rate: Option<u64>) -> PortAttributes {
        PortAttributes { state: PortState::Active, active_mtu: 1024, gids: 1, rate }
    }

    #[test]
    fn numbers_are_written_as_the_kernel_writes_them() {
        let gid = Gid::of(std::net::Ipv4Addr::LOCALHOST.into());
        assert_eq!(groups(&gid.0), "0000:0000:0000:0000:0000:ffff:7f00:0001");
        let rate = |rate| {
            let files = port_files(&port(rate));
            files.into_iter().find(|(path, _)| *path == "rate").map(|(_, text)| text)
        };
        assert_eq!(rate(Some(2_500_000_000)).as_deref(), Some("2.5 Gb/sec (1X)"));
        assert_eq!(rate(None).as_deref(), Some("10 Gb/sec (1X)"));
    }

    #[test]
    fn what_programs_look_for_is_there() {
        let file = |path: &str| match found(path) {
            Some(Found::Entry(Entry::File(text))) => text,
            other => panic!("{path}: {other:?}"),
        };
        let port = "/sys/class/infiniband/edge0/ports/1";
        assert_eq!(file(&format!("{port}/gid_attrs/types/0")), "RoCE v2\n");
        assert_eq!(file(&format!("{port}/gid_attrs/ndevs/0")), "lo\n");
        assert_eq!(file(&format!("{port}/gids/0")), "0000:0000:0000:0000:0000:ffff:7f00:0001\n");
        assert_eq!(file(&format!("{port}/pkeys/0")), "0xffff\n");
        assert_eq!(file(&format!("{port}/state")), "4: ACTIVE\n");
        assert_eq!(file("/sys/class/infiniband/edge0/node_guid"), "0123:4567:89ab:cdef\n");
        assert_eq!(file("/sys/class/infiniband_verbs/uverbs0/ibdev"), "edge0\n");
        assert_eq!(found("/dev/infiniband/uverbs0"), Some(Found::Entry(Entry::Node)));
        assert_eq!(found("/dev/infiniband/edge0"), Some(Found::Entry(Entry::Node)));
        assert_eq!(found("/dev/infiniband/rdma_cm"), Some(Found::Entry(Entry::Node)));
    }

    #[test]
    fn folders_tell_what_is_in_them_once() {
        let folder = |path: &str, names: &[&str]| {
            let names = names.iter().map(|&name| name.to_owned()).collect();
            assert_eq!(found(path), Some(Found::Folder(names)), "{path}");
        };
        folder("/sys/class/infiniband", &["edge0"]);
        folder("/sys/class/infiniband_verbs", &["abi_version", "uverbs0"]);
        folder("/sys/class/infiniband/edge0/device/net/", &["lo"]);
        folder("/sys/class/infiniband/edge0/ports", &["1"]);
        folder("/dev/infiniband", &["edge0", "rdma_cm", "uverbs0"]);
        assert_eq!(find(&[], "/sys/class/infiniband"), Some(Found::Folder(BTreeSet::new())));
    }

    #[test]
    fn paths_mean_what_they_mean_to_the_kernel_and_others_are_not_ours() {
        let is_root = |path: &str| found(path) == found("/sys/class/infiniband");
        assert!(is_root("//sys/class//infiniband/"));
        assert!(is_root("/sys/./class/net/../infiniband/edge0/.."));
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

    fn found(path: &str) -> Option<Found> {
        let attributes = DeviceAttributes {
            name: "edge0".into(),
            node_guid: [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef],
            queue_pairs_max: 1,
            work_requests_max: 1,
            pieces_max: 1,
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
        };
        let gid = Gid::of(std::net::Ipv4Addr::LOCALHOST.into());
        let interface = link::Interface::named("lo").map_or(1, |interface| interface.index);
        let gids = [GidEntry { gid, index: 0, interface }];
        find(&entries(0, &attributes, &port(None), &gids), path)
    }
}
