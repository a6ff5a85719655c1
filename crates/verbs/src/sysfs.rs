//! Files that programs read to learn of devices, as a kernel with a device of this kind would have them.
//!
//! A table and nothing else: the C library answers from it when it is asked for a file, and what redirects paths writes
//! it to a folder.

use std::fs;

use crate::attributes::{DeviceAttributes, GidEntry, PortAttributes, PortState};

/// Where devices are listed.
pub const DEVICES: &str = "/sys/class/infiniband";

/// Where the descriptors of devices are listed.
pub const DESCRIPTORS: &str = "/sys/class/infiniband_verbs";

/// Where the descriptors themselves are.
pub const NODES: &str = "/dev/infiniband";

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
    for entry in gids {
        table.add_gid(entry);
    }
    table.folder = format!("{DESCRIPTORS}/{descriptor}");
    table.add("ibdev", name);
    table.add("abi_version", "1");
    table.folder = DESCRIPTORS.into();
    table.add("abi_version", "6");
    table.entries.push((format!("{NODES}/{descriptor}"), Entry::Node));
    table.entries
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

    fn add_gid(&mut self, entry: &GidEntry) {
        let index = entry.index;
        self.add(&format!("ports/1/gids/{index}"), &groups(&entry.gid.0));
        self.add(&format!("ports/1/gid_attrs/types/{index}"), "RoCE v2");
        if let Some(interface) = interface_name(entry.interface) {
            self.add(&format!("ports/1/gid_attrs/ndevs/{index}"), &interface);
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

/// Name of the interface with this number.
fn interface_name(number: u32) -> Option<String> {
    let interfaces = fs::read_dir("/sys/class/net").ok()?;
    interfaces.flatten().find_map(|interface| {
        let text = fs::read_to_string(interface.path().join("ifindex")).ok()?;
        (text.trim().parse() == Ok(number))
            .then(|| interface.file_name().to_string_lossy().into_owned())
    })
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
}
