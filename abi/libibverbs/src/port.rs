//! Attributes of devices and ports.

use std::ffi::c_int;
use std::ptr;

use verbs::{
    DeviceAttributes, Error, GidEntry, GidKind, OnDemandPaging, Operation, Operations,
    PortAttributes, PortState, QueuePairType, Transport, sysfs,
};

use crate::clock;
use crate::device::{of, text};
use crate::failure::{code, invalid, number};
use crate::layout::{
    ibv_context, ibv_device_attr, ibv_device_attr_ex, ibv_gid, ibv_gid_entry, ibv_odp_caps,
    ibv_port_attr, ibv_query_device_ex_input, ibv_rss_caps, ibv_values_ex,
};

/// Implements `ibv_query_device`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_query_device")]
pub(crate) unsafe extern "C" fn ibv_query_device(
    context: *mut ibv_context,
    into: *mut ibv_device_attr,
) -> c_int {
    code("ibv_query_device", || {
        // SAFETY: the caller meets the requirements of this function.
        let context = unsafe { of(context) }?;
        let attributes = device_attributes(context.device().attributes());
        // SAFETY: the caller meets the requirements of this function.
        unsafe { write(into, &attributes, size_of::<ibv_device_attr>()) }
    })
}

/// Implements `ibv_query_device_ex`.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    input: *const ibv_query_device_ex_input,
    into: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    code("ibv_query_device_ex", || {
        // SAFETY: the caller meets the requirements of this function.
        let context = unsafe { of(context) }?;
        // SAFETY: the caller meets the requirements of this function.
        if unsafe { input.as_ref() }.is_some_and(|input| input.comp_mask != 0) {
            return invalid("unknown attributes of a device query");
        }
        if size < size_of::<ibv_device_attr>() {
            return invalid("the buffer for the attributes is too small");
        }
        let device = context.device().attributes();
        let attributes = ibv_device_attr_ex {
            orig_attr: device_attributes(device),
            comp_mask: 0,
            odp_caps: on_demand_paging(device),
            completion_timestamp_mask: u64::MAX,
            hca_core_clock: clock::KILOHERTZ,
            device_cap_flags_ex: u64::from(capabilities(device)),
            tso_caps: [0; 2],
            rss_caps: ibv_rss_caps {
                supported_qpts: 0,
                max_rwq_indirection_tables: 0,
                max_rwq_indirection_table_size: 0,
                rx_hash_fields_mask: 0,
                rx_hash_function: 0,
            },
            max_wq_type_rq: 0,
            packet_pacing_caps: [0; 3],
            raw_packet_caps: 0,
            tm_caps: [0; 5],
            cq_mod_caps: [0; 2],
            max_dm_size: crate::device_memory::BYTES_MAX as u64,
            pci_atomic_caps: [0; 3],
            xrc_odp_caps: 0,
            phys_port_cnt_ex: 1,
        };
        // SAFETY: the caller meets the requirements of this function.
        unsafe { write(into, &attributes, size) }
    })
}

/// Implements `ibv_query_rt_values_ex`.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    into: *mut ibv_values_ex,
) -> c_int {
    code("ibv_query_rt_values_ex", || {
        // SAFETY: the caller meets the requirements of this function.
        unsafe { of(context) }?;
        // SAFETY: the caller meets the requirements of this function.
        let Some(values) = (unsafe { into.as_mut() }) else {
            return invalid("the pointer for the values is null");
        };
        let wanted = values.comp_mask;
        values.comp_mask = 0;
        if wanted & VALUES_RAW_CLOCK != 0 {
            // Like drivers do, return ticks in the field for nanoseconds. Programs read only this
            // field.
            let tv_nsec = i64::try_from(clock::now_ns()).unwrap_or(i64::MAX);
            values.raw_clock = libc::timespec { tv_sec: 0, tv_nsec };
            values.comp_mask = VALUES_RAW_CLOCK;
        }
        Ok(())
    })
}

/// Implements `ibv_query_port` for programs that were compiled before 2019. In these programs, the
/// structure is smaller.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_query_port")]
pub(crate) unsafe extern "C" fn ibv_query_port(
    context: *mut ibv_context,
    port: u8,
    into: *mut ibv_port_attr,
) -> c_int {
    // SAFETY: the caller meets the requirements of this function.
    unsafe { query_port(context, port, into, OLD_PORT_BYTES) }
}

/// Implements `ibv_query_port` for programs that were compiled in 2019 or later.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    into: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    code("ibv_query_port", || {
        // SAFETY: the caller meets the requirements of this function.
        let context = unsafe { of(context) }?;
        let attributes = port_attributes(context.device().attributes(), &context.query_port(port)?);
        // SAFETY: the caller meets the requirements of this function.
        unsafe { write(into, &attributes, size) }
    })
}

/// Implements `ibv_query_port_speed`. Returns the speed in units of 100 Mbit/s.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_query_port_speed")]
pub(crate) unsafe extern "C" fn ibv_query_port_speed(
    context: *mut ibv_context,
    port: u32,
    into: *mut u64,
) -> c_int {
    code("ibv_query_port_speed", || {
        let port = u8::try_from(port).unwrap_or(0);
        // SAFETY: the caller meets the requirements of this function.
        let attributes = unsafe { of(context) }?.query_port(port)?;
        let speed = attributes.rate.unwrap_or(sysfs::RATE_UNKNOWN) / 100_000_000;
        // SAFETY: the caller meets the requirements of this function.
        unsafe { write(into, &speed, size_of::<u64>()) }
    })
}

/// Implements `ibv_query_gid`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_query_gid")]
pub(crate) unsafe extern "C" fn ibv_query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    into: *mut ibv_gid,
) -> c_int {
    number("ibv_query_gid", || {
        // SAFETY: the caller meets the requirements of this function.
        let entry =
            unsafe { gid(context, u32::from(port), u32::try_from(index).unwrap_or(u32::MAX)) }?;
        // SAFETY: the caller meets the requirements of this function.
        unsafe { write(into, &entry.gid.0, size_of::<ibv_gid>()) }.map(|()| 0)
    })
}

/// Implements `ibv_query_gid_ex`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot__ibv_query_gid_ex")]
pub(crate) unsafe extern "C" fn ibv_query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    into: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    code("ibv_query_gid_ex", || {
        if flags != 0 {
            return Err(Error::NotSupported(format!("flags {flags:#x}")));
        }
        // SAFETY: the caller meets the requirements of this function.
        let entry = unsafe { gid(context, port, index) }?;
        // SAFETY: the caller meets the requirements of this function.
        unsafe { write(into, &c_entry(&entry), size) }
    })
}

/// Implements `ibv_query_gid_table`. Returns the number of entries, or a negative error number.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot__ibv_query_gid_table")]
pub(crate) unsafe extern "C" fn ibv_query_gid_table(
    context: *mut ibv_context,
    into: *mut ibv_gid_entry,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    let mut count = 0;
    let failure = code("ibv_query_gid_table", || {
        if flags != 0 {
            return Err(Error::NotSupported(format!("flags {flags:#x}")));
        }
        if size < size_of::<ibv_gid_entry>() {
            return invalid("the size of an entry is too small");
        }
        // SAFETY: the caller meets the requirements of this function.
        let gids = unsafe { of(context) }?.gids()?;
        if gids.len() > max {
            return invalid("the table has more entries than the array");
        }
        for entry in &gids {
            // SAFETY: the caller meets the requirements of this function. The entries are `size`
            // bytes apart.
            unsafe { write(into.wrapping_byte_add(count * size), &c_entry(entry), size) }?;
            count += 1;
        }
        Ok(())
    });
    if failure == 0 { count.cast_signed() } else { -(failure as isize) }
}

/// Implements `ibv_query_gid_type`, which tools use. Returns 1 for `RoCE` version 2, and 0 for all
/// other kinds. These are the numbers of the two texts that the kernel shows for a GID.
///
/// # Safety
/// The requirements are those of [`ibv_query_gid`].
#[unsafe(export_name = "ethernot_ibv_query_gid_type")]
pub(crate) unsafe extern "C" fn ibv_query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    into: *mut c_int,
) -> c_int {
    number("ibv_query_gid_type", || {
        // SAFETY: the caller meets the requirements of this function.
        let entry = unsafe { gid(context, u32::from(port), index) }?;
        let kind = c_int::from(entry.kind == GidKind::RoceV2);
        // SAFETY: the caller meets the requirements of this function.
        unsafe { write(into, &kind, size_of::<c_int>()) }.map(|()| 0)
    })
}

/// Implements `ibv_query_pkey`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_query_pkey")]
pub(crate) unsafe extern "C" fn ibv_query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    into: *mut u16,
) -> c_int {
    number("ibv_query_pkey", || {
        let index = u16::try_from(index).unwrap_or(u16::MAX);
        // SAFETY: the caller meets the requirements of this function.
        let key = unsafe { of(context) }?.query_partition_key(port, index)?;
        // SAFETY: the caller meets the requirements of this function.
        unsafe { write(into, &key.to_be(), size_of::<u16>()) }.map(|()| 0)
    })
}

/// Implements `ibv_get_pkey_index`.
///
/// # Safety
/// The arguments must meet the requirements of the function's manual page.
#[unsafe(export_name = "ethernot_ibv_get_pkey_index")]
pub(crate) unsafe extern "C" fn ibv_get_pkey_index(
    context: *mut ibv_context,
    port: u8,
    key: u16,
) -> c_int {
    number("ibv_get_pkey_index", || {
        // SAFETY: the caller meets the requirements of this function.
        let found = unsafe { of(context) }?.query_partition_key(port, 0)?;
        if found.to_be() == key { Ok(0) } else { invalid("the port has no such partition key") }
    })
}

/// Returns an entry of the GID table of a port.
unsafe fn gid(context: *mut ibv_context, port: u32, index: u32) -> Result<GidEntry, Error> {
    // SAFETY: the caller meets the requirements of this function.
    unsafe { of(context) }?.query_gid(u8::try_from(port).unwrap_or(0), index)
}

fn c_entry(entry: &GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: entry.gid.0,
        gid_index: entry.index,
        port_num: 1,
        gid_type: match entry.kind {
            GidKind::Station => GID_TYPE_IB,
            GidKind::RoceV2 => GID_TYPE_ROCE_2,
        },
        ndev_ifindex: entry.interface,
    }
}

/// Copies the first `size` bytes of a value to the program, or the whole value if it is smaller.
/// Returns an error if `into` is null.
///
/// # Safety
/// `into` must have room for `size` bytes, or be null.
pub(crate) unsafe fn write<T>(into: *mut T, value: &T, size: usize) -> Result<(), Error> {
    if into.is_null() {
        return invalid("the pointer for the result is null");
    }
    // SAFETY: the caller meets the requirements of this function. The copy is not longer than the
    // value, and copying bytes requires no alignment.
    unsafe {
        ptr::copy_nonoverlapping(
            ptr::from_ref(value).cast::<u8>(),
            into.cast(),
            size.min(size_of::<T>()),
        );
    };
    Ok(())
}

fn device_attributes(device: &DeviceAttributes) -> ibv_device_attr {
    let int = |number: u32| c_int::try_from(number).unwrap_or(c_int::MAX);
    let depth = c_int::from(device.read_depth_max);
    let groups = int(device.groups_max);
    let members = if groups > 0 { int(device.queue_pairs_max) } else { 0 };
    let is_infiniband = device.transport() == Transport::InfiniBand;
    ibv_device_attr {
        fw_ver: text(sysfs::FIRMWARE),
        node_guid: device.node_guid,
        sys_image_guid: device.node_guid,
        max_mr_size: device.region_bytes_max,
        page_size_cap: 0xffff_f000,
        vendor_id: device.vendor.id,
        vendor_part_id: device.vendor.part,
        hw_ver: 0,
        max_qp: int(device.queue_pairs_max),
        max_qp_wr: int(device.work_requests_max),
        device_cap_flags: capabilities(device),
        max_sge: int(device.pieces_max),
        max_sge_rd: int(device.read_pieces_max),
        max_cq: int(device.completion_queues_max),
        max_cqe: int(device.completions_max),
        max_mr: int(device.regions_max),
        max_pd: int(device.domains_max),
        max_qp_rd_atom: depth,
        max_ee_rd_atom: 0,
        max_res_rd_atom: depth.saturating_mul(int(device.queue_pairs_max)),
        max_qp_init_rd_atom: depth,
        max_ee_init_rd_atom: 0,
        atomic_cap: atomic_capability(device),
        max_ee: 0,
        max_rdd: 0,
        max_mw: int(device.windows_max),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: 0,
        max_mcast_grp: groups,
        max_mcast_qp_attach: members,
        max_total_mcast_qp_attach: groups.saturating_mul(members),
        max_ah: int(device.address_handles_max),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: int(device.shared_queues_max),
        max_srq_wr: int(device.shared_receives_max),
        max_srq_sge: int(device.pieces_max),
        max_pkeys: device.transport().partition_keys(),
        local_ca_ack_delay: if is_infiniband { ACKNOWLEDGEMENT_DELAY } else { 0 },
        phys_port_cnt: 1,
    }
}

/// Returns the bits of `ibv_device_cap_flags` of a device.
fn capabilities(device: &DeviceAttributes) -> u32 {
    let operations = device.services.all_operations();
    let invalidates = Operations::of(&[Operation::LocalInvalidate, Operation::SendInvalidate]);
    let is_infiniband = device.transport() == Transport::InfiniBand;
    let all = [
        (CURRENT_STATE | NOT_READY_NAK, is_infiniband),
        (PORT_ACTIVE_EVENT | SYSTEM_GUID, true),
        (WINDOW | WINDOW_TYPE_2B, operations.contains(Operation::BindWindow)),
        (MEMORY_EXTENSIONS, operations.contains_all(invalidates)),
    ];
    all.into_iter().filter(|(_, has)| *has).fold(0, |bits, (more, _)| bits | more)
}

/// Returns the value of `ibv_atomic_cap` of a device: `IBV_ATOMIC_HCA` or `IBV_ATOMIC_NONE`.
/// Atomics are atomic only with respect to other operations of this device.
fn atomic_capability(device: &DeviceAttributes) -> c_int {
    c_int::from(device.services.all_operations().contains_all(Operations::ATOMICS))
}

/// Returns the operations of each service that support on-demand paging. If the device supports
/// it, these are all operations that the service carries.
fn on_demand_paging(device: &DeviceAttributes) -> ibv_odp_caps {
    let of = |service| match device.on_demand_paging {
        OnDemandPaging::Supported => on_demand_operations(device, service),
        OnDemandPaging::Unsupported => 0,
    };
    ibv_odp_caps {
        general_caps: u64::from(device.on_demand_paging == OnDemandPaging::Supported),
        rc_odp_caps: of(QueuePairType::Reliable),
        uc_odp_caps: of(QueuePairType::Unreliable),
        ud_odp_caps: of(QueuePairType::Datagram),
    }
}

/// Returns the operations of a service as bits of `ibv_odp_transport_cap_bits`: sends, receives,
/// writes, reads, atomics and shared receives. The last bit is for connections only.
fn on_demand_operations(device: &DeviceAttributes, service: QueuePairType) -> u32 {
    let operations = device.services.operations(service);
    let is_connection = service != QueuePairType::Datagram;
    let all = [
        (1 << 0 | 1 << 1, operations.contains(Operation::Send)),
        (1 << 2, operations.contains(Operation::Write)),
        (1 << 3, operations.contains(Operation::Read)),
        (1 << 4, operations.contains_all(Operations::ATOMICS)),
        (1 << 5, !operations.is_empty() && is_connection && device.shared_queues_max > 0),
    ];
    all.into_iter().filter(|(_, has)| *has).fold(0, |bits, (more, _)| bits | more)
}

fn port_attributes(device: &DeviceAttributes, port: &PortAttributes) -> ibv_port_attr {
    let is_up = port.state == PortState::Active;
    let (active_width, active_speed) = width_and_speed(port.rate.unwrap_or(sysfs::RATE_UNKNOWN));
    ibv_port_attr {
        state: if is_up { 4 } else { 1 },
        max_mtu: mtu_code(4096),
        active_mtu: mtu_code(port.active_mtu),
        gid_tbl_len: c_int::try_from(port.gids).unwrap_or(c_int::MAX),
        port_cap_flags: device.transport().port_capabilities(),
        max_msg_sz: device.message_bytes_max,
        pkey_tbl_len: device.transport().partition_keys(),
        max_vl_num: 1,
        active_width,
        active_speed,
        phys_state: if is_up { 5 } else { 3 },
        link_layer: LINK_ETHERNET,
        active_speed_ex: u32::from(active_speed),
        ..ibv_port_attr::default()
    }
}

/// Returns two codes: the code for a number of lanes, and the code for the rate of each lane. Of
/// all pairs whose total rate does not exceed `rate` (in bits per second), chooses the pair with
/// the largest total rate.
fn width_and_speed(rate: u64) -> (u8, u8) {
    const WIDTHS: [(u8, u64); 4] = [(1, 1), (2, 4), (4, 8), (8, 12)];
    const SPEEDS: [(u8, u64); 7] =
        [(1, 25), (2, 50), (4, 100), (16, 140), (32, 250), (64, 500), (128, 1000)];
    let wanted = rate / 100_000_000;
    let mut best = (0, (1, 1));
    for (width, lanes) in WIDTHS {
        for (speed, each) in SPEEDS {
            let sum = lanes * each;
            if sum <= wanted && sum > best.0 {
                best = (sum, (width, speed));
            }
        }
    }
    best.1
}

/// Returns the code for an MTU in bytes. Rounds the MTU down to the next MTU with a code. For an
/// MTU below 256 bytes, returns the code for 256 bytes.
pub(crate) fn mtu_code(bytes: u32) -> c_int {
    match bytes {
        0..512 => 1,
        512..1024 => 2,
        1024..2048 => 3,
        2048..4096 => 4,
        _ => 5,
    }
}

/// Returns the MTU in bytes for a code. Returns `None` if the code is invalid.
pub(crate) fn mtu_bytes(code: c_int) -> Option<u32> {
    (1..=5).contains(&code).then(|| 128 << code)
}

/// Values of `IBV_DEVICE_CURR_QP_STATE_MOD`, `..._PORT_ACTIVE_EVENT`, `..._SYS_IMAGE_GUID`,
/// `..._RC_RNR_NAK_GEN`, `..._MEM_WINDOW`, `..._MEM_MGT_EXTENSIONS` and `..._MEM_WINDOW_TYPE_2B`.
const CURRENT_STATE: u32 = 1 << 7;
const PORT_ACTIVE_EVENT: u32 = 1 << 10;
const SYSTEM_GUID: u32 = 1 << 11;
const NOT_READY_NAK: u32 = 1 << 12;
const WINDOW: u32 = 1 << 17;
const MEMORY_EXTENSIONS: u32 = 1 << 21;
const WINDOW_TYPE_2B: u32 = 1 << 24;

/// Delay before an acknowledgement that a device of InfiniBand reports, as a timeout code: 4.096 µs
/// × 2^15.
const ACKNOWLEDGEMENT_DELAY: u8 = 15;

/// Value of `IBV_LINK_LAYER_ETHERNET`.
const LINK_ETHERNET: u8 = 2;

/// Values of `IBV_GID_TYPE_IB` and `IBV_GID_TYPE_ROCE_V2`.
const GID_TYPE_IB: u32 = 0;
const GID_TYPE_ROCE_2: u32 = 2;

/// Value of `IBV_VALUES_MASK_RAW_CLOCK`.
const VALUES_RAW_CLOCK: u32 = 1;

/// Size in bytes of `ibv_port_attr` in programs that were compiled before 2019.
const OLD_PORT_BYTES: usize = 48;

#[cfg(test)]
mod tests {
    use verbs::{Gid, Services, Vendor};
    use verbs_edge::Settings;

    use super::*;

    /// Returns the attributes of the edge device of this host. The device is not started.
    fn edge() -> DeviceAttributes {
        let devices = verbs_edge::devices(&Settings::default()).expect("devices");
        devices.first().expect("a device").device.attributes().clone()
    }

    /// Returns the attributes of a device like one of iWARP.
    fn iwarp() -> DeviceAttributes {
        DeviceAttributes {
            vendor: Vendor { id: 0x62_6d74, part: 1 },
            services: Services::of(Transport::Iwarp),
            on_demand_paging: OnDemandPaging::Unsupported,
            message_bytes_max: 1 << 30,
            read_pieces_max: 1,
            windows_max: 0,
            address_handles_max: 0,
            groups_max: 0,
            ..edge()
        }
    }

    fn port_of(device: &DeviceAttributes) -> ibv_port_attr {
        let state = PortState::Active;
        port_attributes(device, &PortAttributes { state, active_mtu: 1024, gids: 1, rate: None })
    }

    #[test]
    fn an_edge_device_reports_everything_that_roce_has() {
        let device = edge();
        let c = device_attributes(&device);
        assert_eq!(c.device_cap_flags, 0x0122_1c80);
        assert_eq!((c.vendor_id, c.vendor_part_id), (0xff_ffff, 0));
        assert_eq!((c.max_sge, c.max_sge_rd, c.atomic_cap), (32, 32, 1));
        assert_eq!((c.max_pkeys, c.local_ca_ack_delay), (1, 15));
        assert_eq!((c.max_mcast_grp, c.max_mcast_qp_attach), (64, c.max_qp));
        assert_eq!(c.max_total_mcast_qp_attach, 64 * c.max_qp);
        let port = port_of(&device);
        assert_eq!((port.port_cap_flags, port.max_msg_sz), (0x0401_0000, 1 << 31));
        assert_eq!((port.pkey_tbl_len, port.link_layer), (1, 2));
        let paging = on_demand_paging(&device);
        assert_eq!(paging.general_caps, 1);
        let of_services = [paging.rc_odp_caps, paging.uc_odp_caps, paging.ud_odp_caps];
        assert_eq!(of_services, [0x3f, 0x27, 0x3]);
    }

    #[test]
    fn an_iwarp_device_reports_no_atomics_partitions_datagrams_and_receiver_not_ready() {
        let device = iwarp();
        let c = device_attributes(&device);
        let both = WINDOW | WINDOW_TYPE_2B;
        let few = PORT_ACTIVE_EVENT | SYSTEM_GUID | MEMORY_EXTENSIONS;
        assert_eq!(c.device_cap_flags, few | both);
        assert_eq!((c.vendor_id, c.vendor_part_id), (0x62_6d74, 1));
        assert_eq!((c.max_sge, c.max_sge_rd, c.atomic_cap), (32, 1, 0));
        assert_eq!((c.max_pkeys, c.local_ca_ack_delay, c.max_ah), (0, 0, 0));
        assert_eq!(
            (c.max_mcast_grp, c.max_mcast_qp_attach, c.max_total_mcast_qp_attach),
            (0, 0, 0)
        );
        let port = port_of(&device);
        assert_eq!((port.port_cap_flags, port.max_msg_sz), (0x0001_0000, 1 << 30));
        assert_eq!((port.pkey_tbl_len, port.link_layer), (0, 2));
        let paging = on_demand_paging(&device);
        assert_eq!((paging.general_caps, paging.rc_odp_caps), (0, 0));
        let binds = Operations::of(&[Operation::BindWindow]);
        let without = DeviceAttributes { services: device.services.without(binds), ..device };
        assert_eq!(device_attributes(&without).device_cap_flags, few);
    }

    #[test]
    fn on_demand_paging_of_a_service_is_what_the_service_carries() {
        let device = DeviceAttributes { on_demand_paging: OnDemandPaging::Supported, ..iwarp() };
        let paging = on_demand_paging(&device);
        let of_services = [paging.rc_odp_caps, paging.uc_odp_caps, paging.ud_odp_caps];
        assert_eq!(of_services, [0x2f, 0, 0]);
    }

    #[test]
    fn the_kind_of_a_gid_has_the_number_of_the_headers() {
        let kind = |gid, kind| c_entry(&GidEntry { gid, kind, index: 0, interface: 1 }).gid_type;
        let address = Gid::of(std::net::Ipv4Addr::LOCALHOST.into());
        assert_eq!(kind(address, GidKind::RoceV2), 2);
        assert_eq!(kind(Gid::of_station([2, 0, 0, 0, 0, 1]), GidKind::Station), 0);
    }

    #[test]
    fn the_lanes_together_give_the_rate_or_slightly_less() {
        for (rate, lanes) in [
            (1_000_000_000, (1, 1)),
            (10_000_000_000, (1, 4)),
            (25_000_000_000, (1, 32)),
            (100_000_000_000, (1, 128)),
            (400_000_000_000, (2, 128)),
        ] {
            let (width, speed) = width_and_speed(rate);
            assert_eq!((width, speed), lanes, "{rate}");
        }
    }

    #[test]
    fn mtu_codes_are_the_inverse_of_mtu_sizes() {
        for code in 1..=5 {
            assert_eq!(mtu_bytes(code).map(mtu_code), Some(code));
        }
        assert_eq!((mtu_bytes(0), mtu_bytes(6), mtu_bytes(-1)), (None, None, None));
    }
}
