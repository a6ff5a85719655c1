//! The files that programs look for where a kernel has RDMA devices: below `/sys/class` and in `/dev/infiniband`.
//!
//! Here is what stands in them. A file of the host is none of them: whoever answers for one of these paths
//! (`ibv_read_sysfs_file`, or the library that redirects paths) asks [`find`].

use std::collections::BTreeMap;

use link::Interface;

use crate::attributes::{DeviceAttributes, GidEntry, PortAttributes, PortState};

/// Everything below these belongs to this library, also what is not there.
pub const ROOTS: [&str; 4] =
    [DEVICES, "/sys/class/infiniband_verbs", "/sys/class/infiniband_mad", NODES];

/// Where devices have their folders, each under its name.
pub const DEVICES: &str = "/sys/class/infiniband";

/// Where devices are opened.
pub const NODES: &str = "/dev/infiniband";

/// What is known of a device.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The device.
    pub attributes: &'a DeviceAttributes,
    /// Its place among the devices: what is opened is called `uverbs` and this number.
    pub place: u32,
    /// Its port.
    pub port: PortAttributes,
    /// Its addresses.
    pub gids: &'a [GidEntry],
}

/// What stands at a path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Found {
    /// A folder with these names in it, each once.
    Folder(Vec<String>),
    /// A file with this text.
    File(String),
    /// A character device that everybody may read and write.
    Device,
}

/// The name of what is opened of a device, in [`NODES`] and below `/sys/class/infiniband_verbs`.
pub fn node_name(place: u32) -> String {
    format!("uverbs{place}")
}

/// What stands at an absolute path; `None` if nothing does.
///
/// Slashes at the end and twice in a row, `.` and `..` mean what they mean to the kernel.
pub fn find(devices: &[Facts<'_>], path: &str) -> Option<Found> {
    let path = normalized(path)?;
    let files = files(devices);
    if let Some(found) = files.get(&path) {
        return Some(found.clone());
    }
    let inside = format!("{path}/");
    let mut names: Vec<String> = files
        .range(inside.clone()..)
        .map_while(|(file, _)| file.strip_prefix(&inside))
        .filter_map(|rest| rest.split('/').next())
        .map(str::to_owned)
        .collect();
    names.dedup();
    let is_root = ROOTS.contains(&path.as_str());
    (is_root || !names.is_empty()).then_some(Found::Folder(names))
}

/// The path without anything that says nothing; `None` if it is not one of those that belong here.
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

/// All files, by path.
fn files(devices: &[Facts<'_>]) -> BTreeMap<String, Found> {
    let mut files = BTreeMap::new();
    let mut text = |path: String, text: String| {
        files.insert(path, Found::File(format!("{text}\n")));
    };
    text("/sys/class/infiniband_verbs/abi_version".into(), "6".into());
    text("/sys/class/infiniband_mad/abi_version".into(), "5".into());
    for device in devices {
        for (name, value) in device_files(device) {
            text(format!("{DEVICES}/{}/{name}", device.attributes.name), value);
        }
        let node = format!("/sys/class/infiniband_verbs/{}", node_name(device.place));
        text(format!("{node}/abi_version"), "1".into());
        text(format!("{node}/ibdev"), device.attributes.name.clone());
        text(format!("{node}/dev"), format!("{NODE_MAJOR}:{}", NODE_MINOR + device.place));
    }
    for device in devices {
        // Programs open what the device says is its node, or what has its name.
        for name in [node_name(device.place), device.attributes.name.clone()] {
            files.insert(format!("{NODES}/{name}"), Found::Device);
        }
    }
    files.insert(format!("{NODES}/rdma_cm"), Found::Device);
    files
}

/// The files of a device, by their paths below its folder.
fn device_files(device: &Facts<'_>) -> Vec<(String, String)> {
    let Facts { attributes, port, gids, .. } = device;
    let guid = guid_text(attributes.node_guid);
    let (state, physical) = match port.state {
        PortState::Active => ("4: ACTIVE", "5: LinkUp"),
        PortState::Down => ("1: DOWN", "3: Disabled"),
    };
    let gigabits = port.rate.map_or(1.0, |rate| rate as f64 / 1e9);
    let mut files: Vec<(String, String)> = [
        ("board_id", "ethernot".into()),
        ("fw_ver", env!("CARGO_PKG_VERSION").into()),
        ("hca_type", "ethernot".into()),
        ("hw_rev", "0".into()),
        ("node_desc", "Ethernot".into()),
        ("node_guid", guid.clone()),
        ("sys_image_guid", guid),
        ("node_type", "1: CA".into()),
        // No interface is the only one: a device goes by all links, and memory is near to none of them.
        ("device/numa_node", "-1".into()),
        ("ports/1/cap_mask", "0x00010000".into()),
        ("ports/1/lid", "0x0".into()),
        ("ports/1/lid_mask_count", "0".into()),
        ("ports/1/link_layer", "Ethernet".into()),
        ("ports/1/phys_state", physical.into()),
        ("ports/1/pkeys/0", "0xffff".into()),
        ("ports/1/rate", format!("{gigabits} Gb/sec (1X)")),
        ("ports/1/sm_lid", "0x0".into()),
        ("ports/1/sm_sl", "0".into()),
        ("ports/1/state", state.into()),
    ]
    .map(|(name, value): (&str, String)| (name.into(), value))
    .into();
    let names = interface_names();
    for entry in *gids {
        let index = entry.index;
        files.push((format!("ports/1/gids/{index}"), gid_text(entry.gid.0)));
        files.push((format!("ports/1/gid_attrs/types/{index}"), "RoCE v2".into()));
        if let Some(name) = names.get(&entry.interface) {
            files.push((format!("ports/1/gid_attrs/ndevs/{index}"), name.clone()));
            let number = entry.interface.to_string();
            files.push((format!("device/net/{name}/ifindex"), number));
        }
    }
    files
}

/// The interfaces of the host by their numbers.
fn interface_names() -> BTreeMap<u32, String> {
    let names = Interface::names().into_iter();
    names.filter_map(|name| Some((Interface::named(&name).ok()?.index, name))).collect()
}

/// As the kernel writes it: four groups of four digits.
fn guid_text(guid: [u8; 8]) -> String {
    groups(&guid)
}

/// As the kernel writes it: eight groups of four digits.
fn gid_text(gid: [u8; 16]) -> String {
    groups(&gid)
}

fn groups(bytes: &[u8]) -> String {
    let pairs = bytes.chunks(2).map(|pair| {
        let digits: Vec<String> = pair.iter().map(|byte| format!("{byte:02x}")).collect();
        digits.concat()
    });
    pairs.collect::<Vec<_>>().join(":")
}

/// The numbers that Linux gives to such devices.
const NODE_MAJOR: u32 = 231;
const NODE_MINOR: u32 = 192;

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, Ipv4Addr};

    use super::*;
    use crate::attributes::Gid;

    #[test]
    fn what_programs_look_for_is_there() {
        let file = |path: &str| match found(path) {
            Some(Found::File(text)) => text,
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
        assert_eq!(found("/dev/infiniband/uverbs0"), Some(Found::Device));
        assert_eq!(found("/dev/infiniband/edge0"), Some(Found::Device));
        assert_eq!(found("/dev/infiniband/rdma_cm"), Some(Found::Device));
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
        assert_eq!(find(&[], "/sys/class/infiniband"), Some(Found::Folder(Vec::new())));
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
        let gid = Gid::of(IpAddr::V4(Ipv4Addr::LOCALHOST));
        let interface = Interface::named("lo").map_or(1, |interface| interface.index);
        let facts = Facts {
            attributes: &attributes,
            place: 0,
            port: PortAttributes {
                state: PortState::Active,
                active_mtu: 1024,
                gids: 1,
                rate: None,
            },
            gids: &[GidEntry { gid, index: 0, interface }],
        };
        find(&[facts], path)
    }
}
