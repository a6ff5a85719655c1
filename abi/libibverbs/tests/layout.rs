//! Compares the structures with the system's headers, if the headers are installed.

use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::{offset_of, size_of};
use std::path::Path;
use std::process::{Command, Stdio};

use ethernot_verbs::layout::*;
use ethernot_verbs::rdma_cm::layout::{
    ibv_sa_path_rec, rdma_addr, rdma_addrinfo, rdma_cm_event, rdma_cm_id, rdma_cm_join_mc_attr_ex,
    rdma_conn_param, rdma_event_channel, rdma_ib_addr, rdma_route, rdma_ud_param,
};

const HEADER: &str = "/usr/include/infiniband/verbs.h";
const MANAGER_HEADER: &str = "/usr/include/rdma/rdma_cma.h";

/// Returns C expressions for the sizes of structures and the offsets of fields, each with its value
/// in Rust. `$c` is the name of a field in C, and `$field` is its name in Rust.
macro_rules! layouts {
    ($($structure:ident { $($c:literal = $field:ident),* $(,)? })*) => {
        vec![$(
            (concat!("sizeof(struct ", stringify!($structure), ")"), size_of::<$structure>()),
            $((
                concat!("offsetof(struct ", stringify!($structure), ", ", $c, ")"),
                offset_of!($structure, $field),
            ),)*
        )*]
    };
}

/// Sizes and offsets must equal those of the headers. Three structures have more fields than in the
/// headers of 2022. The test takes the additional bytes of two of them into account. For the third,
/// another test compares the offsets from the end.
#[test]
fn structures_have_the_layout_that_programs_use() {
    if !Path::new(HEADER).exists() {
        println!("skipped: {HEADER} is not installed");
        return;
    }
    let mut expressions = devices();
    expressions.extend(memory());
    expressions.extend(queues());
    expressions.extend(queue_pairs());
    let found =
        evaluate("infiniband/verbs.h", &expressions.iter().map(|(c, _)| *c).collect::<Vec<_>>());
    assert_eq!(found.len(), expressions.len());
    for ((c, ours), theirs) in expressions.iter().zip(found) {
        let newer = match *c {
            "sizeof(struct ibv_port_attr)" => 4,
            "sizeof(struct ibv_qp_ex)" => 8,
            _ => 0,
        };
        assert_eq!(*ours, theirs + newer, "{c}");
    }
}

#[test]
fn connection_manager_structures_have_the_layout_that_programs_use() {
    if !Path::new(MANAGER_HEADER).exists() {
        println!("skipped: {MANAGER_HEADER} is not installed");
        return;
    }
    // Compare also with fixed numbers, to detect a change of the headers that was copied to the
    // structures.
    assert_eq!((size_of::<rdma_cm_id>(), size_of::<rdma_cm_event>()), (416, 80));
    assert_eq!((size_of::<rdma_conn_param>(), size_of::<rdma_addrinfo>()), (24, 96));
    let expressions = manager();
    let found =
        evaluate("rdma/rdma_cma.h", &expressions.iter().map(|(c, _)| *c).collect::<Vec<_>>());
    assert_eq!(found.len(), expressions.len());
    for ((c, ours), theirs) in expressions.iter().zip(found) {
        assert_eq!(*ours, theirs, "{c}");
    }
}

/// Programs locate an operation by its distance from the end of the structure.
#[test]
fn operations_have_their_fixed_offset_from_the_context() {
    if !Path::new(HEADER).exists() {
        println!("skipped: {HEADER} is not installed");
        return;
    }
    assert_eq!(size_of::<verbs_context>(), 696 + size_of::<ibv_context>() - 328);
    let ours = [
        ("query_port", offset_of!(verbs_context, query_port)),
        ("advise_mr", offset_of!(verbs_context, advise_mr)),
        ("alloc_null_mr", offset_of!(verbs_context, alloc_null_mr)),
        ("reg_dm_mr", offset_of!(verbs_context, reg_dm_mr)),
        ("alloc_dm", offset_of!(verbs_context, alloc_dm)),
        ("free_dm", offset_of!(verbs_context, free_dm)),
        ("alloc_parent_domain", offset_of!(verbs_context, alloc_parent_domain)),
        ("dealloc_td", offset_of!(verbs_context, dealloc_td)),
        ("alloc_td", offset_of!(verbs_context, alloc_td)),
        ("modify_cq", offset_of!(verbs_context, modify_cq)),
        ("query_rt_values", offset_of!(verbs_context, query_rt_values)),
        ("create_cq_ex", offset_of!(verbs_context, create_cq_ex)),
        ("query_device_ex", offset_of!(verbs_context, query_device_ex)),
        ("open_qp", offset_of!(verbs_context, open_qp)),
        ("create_qp_ex", offset_of!(verbs_context, create_qp_ex)),
        ("create_srq_ex", offset_of!(verbs_context, create_srq_ex)),
        ("open_xrcd", offset_of!(verbs_context, open_xrcd)),
        ("sz", offset_of!(verbs_context, sz)),
        ("context", offset_of!(verbs_context, context)),
    ];
    let expressions: Vec<String> = ours
        .iter()
        .map(|(name, _)| {
            format!("sizeof(struct verbs_context) - offsetof(struct verbs_context, {name})")
        })
        .collect();
    let expressions: Vec<&str> = expressions.iter().map(String::as_str).collect();
    let found = evaluate("infiniband/verbs.h", &expressions);
    for ((name, ours), theirs) in ours.iter().zip(found) {
        assert_eq!(size_of::<verbs_context>() - ours, theirs, "{name}");
    }
}

fn devices() -> Vec<(&'static str, usize)> {
    layouts! {
        ibv_device { "node_type" = node_type, "transport_type" = transport_type, "name" = name,
            "dev_name" = dev_name, "dev_path" = dev_path, "ibdev_path" = ibdev_path }
        ibv_context { "device" = device, "ops" = ops, "cmd_fd" = cmd_fd, "async_fd" = async_fd,
            "num_comp_vectors" = num_comp_vectors, "mutex" = mutex, "abi_compat" = abi_compat }
        ibv_context_ops { "alloc_mw" = alloc_mw, "bind_mw" = bind_mw, "dealloc_mw" = dealloc_mw,
            "poll_cq" = poll_cq, "req_notify_cq" = req_notify_cq, "post_srq_recv" = post_srq_recv,
            "post_send" = post_send, "post_recv" = post_recv }
        ibv_device_attr { "fw_ver" = fw_ver, "node_guid" = node_guid, "max_mr_size" = max_mr_size,
            "vendor_id" = vendor_id, "max_qp" = max_qp, "device_cap_flags" = device_cap_flags,
            "max_cqe" = max_cqe, "atomic_cap" = atomic_cap, "max_ah" = max_ah, "max_srq" = max_srq,
            "max_srq_sge" = max_srq_sge, "max_pkeys" = max_pkeys, "phys_port_cnt" = phys_port_cnt }
        ibv_query_device_ex_input { "comp_mask" = comp_mask }
        ibv_device_attr_ex { "comp_mask" = comp_mask, "odp_caps" = odp_caps,
            "completion_timestamp_mask" = completion_timestamp_mask, "hca_core_clock" = hca_core_clock,
            "device_cap_flags_ex" = device_cap_flags_ex, "tso_caps" = tso_caps, "rss_caps" = rss_caps,
            "max_wq_type_rq" = max_wq_type_rq, "packet_pacing_caps" = packet_pacing_caps,
            "raw_packet_caps" = raw_packet_caps, "tm_caps" = tm_caps, "cq_mod_caps" = cq_mod_caps,
            "max_dm_size" = max_dm_size, "pci_atomic_caps" = pci_atomic_caps,
            "xrc_odp_caps" = xrc_odp_caps, "phys_port_cnt_ex" = phys_port_cnt_ex }
        ibv_port_attr { "state" = state, "gid_tbl_len" = gid_tbl_len, "max_msg_sz" = max_msg_sz,
            "pkey_tbl_len" = pkey_tbl_len, "lid" = lid, "lmc" = lmc, "active_width" = active_width,
            "active_speed" = active_speed, "phys_state" = phys_state, "link_layer" = link_layer,
            "port_cap_flags2" = port_cap_flags2 }
        ibv_gid_entry { "gid" = gid, "gid_index" = gid_index, "port_num" = port_num,
            "gid_type" = gid_type, "ndev_ifindex" = ndev_ifindex }
        ibv_async_event { "element" = element, "event_type" = event_type }
        ibv_values_ex { "comp_mask" = comp_mask, "raw_clock" = raw_clock }
    }
}

fn memory() -> Vec<(&'static str, usize)> {
    layouts! {
        ibv_pd { "context" = context, "handle" = handle }
        ibv_td { "context" = context }
        ibv_td_init_attr { "comp_mask" = comp_mask }
        ibv_parent_domain_init_attr { "pd" = pd, "td" = td, "comp_mask" = comp_mask, "alloc" = alloc,
            "free" = free, "pd_context" = pd_context }
        ibv_mr { "pd" = pd, "addr" = addr, "length" = length, "handle" = handle, "lkey" = lkey,
            "rkey" = rkey }
        ibv_dm { "memcpy_to_dm" = memcpy_to_dm, "memcpy_from_dm" = memcpy_from_dm,
            "comp_mask" = comp_mask, "handle" = handle }
        ibv_alloc_dm_attr { "length" = length, "log_align_req" = log_align_req }
        ibv_mw { "pd" = pd, "rkey" = rkey, "handle" = handle, "type" = mw_type }
        ibv_mw_bind_info { "mr" = mr, "addr" = addr, "length" = length,
            "mw_access_flags" = mw_access_flags }
        ibv_mw_bind { "wr_id" = wr_id, "send_flags" = send_flags, "bind_info" = bind_info }
        ibv_ah { "pd" = pd, "handle" = handle }
        ibv_ah_attr { "grh" = grh, "dlid" = dlid, "sl" = sl, "src_path_bits" = src_path_bits,
            "static_rate" = static_rate, "is_global" = is_global, "port_num" = port_num }
        ibv_global_route { "dgid" = dgid, "flow_label" = flow_label, "sgid_index" = sgid_index,
            "hop_limit" = hop_limit, "traffic_class" = traffic_class }
        ibv_grh { "version_tclass_flow" = version_tclass_flow, "hop_limit" = hop_limit,
            "sgid" = sgid, "dgid" = dgid }
    }
}

fn queues() -> Vec<(&'static str, usize)> {
    layouts! {
        ibv_comp_channel { "context" = context, "fd" = fd, "refcnt" = refcnt }
        ibv_cq { "channel" = channel, "cq_context" = cq_context, "handle" = handle, "cqe" = cqe,
            "mutex" = mutex, "cond" = cond, "comp_events_completed" = comp_events_completed,
            "async_events_completed" = async_events_completed }
        ibv_cq_ex { "comp_mask" = comp_mask, "status" = status, "wr_id" = wr_id,
            "start_poll" = start_poll, "next_poll" = next_poll, "end_poll" = end_poll,
            "read_opcode" = read_opcode, "read_vendor_err" = read_vendor_err,
            "read_byte_len" = read_byte_len, "read_imm_data" = read_imm_data,
            "read_qp_num" = read_qp_num, "read_src_qp" = read_src_qp,
            "read_wc_flags" = read_wc_flags, "read_slid" = read_slid, "read_sl" = read_sl,
            "read_dlid_path_bits" = read_dlid_path_bits, "read_completion_ts" = read_completion_ts,
            "read_cvlan" = read_cvlan, "read_flow_tag" = read_flow_tag, "read_tm_info" = read_tm_info,
            "read_completion_wallclock_ns" = read_completion_wallclock_ns }
        ibv_cq_init_attr_ex { "cqe" = cqe, "cq_context" = cq_context, "channel" = channel,
            "comp_vector" = comp_vector, "wc_flags" = wc_flags, "comp_mask" = comp_mask,
            "flags" = flags, "parent_domain" = parent_domain }
        ibv_modify_cq_attr { "attr_mask" = attr_mask, "moderate.cq_count" = cq_count,
            "moderate.cq_period" = cq_period }
        ibv_poll_cq_attr { "comp_mask" = comp_mask }
        ibv_wc { "wr_id" = wr_id, "status" = status, "opcode" = opcode, "vendor_err" = vendor_err,
            "byte_len" = byte_len, "imm_data" = imm_data, "qp_num" = qp_num, "src_qp" = src_qp,
            "wc_flags" = wc_flags, "pkey_index" = pkey_index, "slid" = slid, "sl" = sl,
            "dlid_path_bits" = dlid_path_bits }
        ibv_srq { "srq_context" = srq_context, "pd" = pd, "handle" = handle, "mutex" = mutex,
            "cond" = cond, "events_completed" = events_completed }
        ibv_srq_attr { "max_wr" = max_wr, "max_sge" = max_sge, "srq_limit" = srq_limit }
        ibv_srq_init_attr { "srq_context" = srq_context, "attr" = attr }
        ibv_srq_init_attr_ex { "attr" = attr, "comp_mask" = comp_mask, "srq_type" = srq_type,
            "pd" = pd, "xrcd" = xrcd, "cq" = cq, "tm_cap" = tm_cap }
    }
}

fn queue_pairs() -> Vec<(&'static str, usize)> {
    layouts! {
        ibv_qp { "qp_context" = qp_context, "pd" = pd, "send_cq" = send_cq, "recv_cq" = recv_cq,
            "srq" = srq, "handle" = handle, "qp_num" = qp_num, "state" = state, "qp_type" = qp_type,
            "mutex" = mutex, "cond" = cond, "events_completed" = events_completed }
        ibv_qp_ex { "comp_mask" = comp_mask, "wr_id" = wr_id, "wr_flags" = wr_flags,
            "wr_atomic_cmp_swp" = wr_atomic_cmp_swp, "wr_atomic_fetch_add" = wr_atomic_fetch_add,
            "wr_bind_mw" = wr_bind_mw, "wr_local_inv" = wr_local_inv, "wr_rdma_read" = wr_rdma_read,
            "wr_rdma_write" = wr_rdma_write, "wr_rdma_write_imm" = wr_rdma_write_imm,
            "wr_send" = wr_send, "wr_send_imm" = wr_send_imm, "wr_send_inv" = wr_send_inv,
            "wr_send_tso" = wr_send_tso, "wr_set_ud_addr" = wr_set_ud_addr,
            "wr_set_xrc_srqn" = wr_set_xrc_srqn, "wr_set_inline_data" = wr_set_inline_data,
            "wr_set_inline_data_list" = wr_set_inline_data_list, "wr_set_sge" = wr_set_sge,
            "wr_set_sge_list" = wr_set_sge_list, "wr_start" = wr_start, "wr_complete" = wr_complete,
            "wr_abort" = wr_abort, "wr_atomic_write" = wr_atomic_write }
        ibv_data_buf { "addr" = addr, "length" = length }
        ibv_qp_cap { "max_send_wr" = max_send_wr, "max_inline_data" = max_inline_data }
        ibv_qp_init_attr { "send_cq" = send_cq, "recv_cq" = recv_cq, "srq" = srq, "cap" = cap,
            "qp_type" = qp_type, "sq_sig_all" = sq_sig_all }
        ibv_qp_init_attr_ex { "sq_sig_all" = sq_sig_all, "comp_mask" = comp_mask, "pd" = pd,
            "xrcd" = xrcd, "create_flags" = create_flags, "max_tso_header" = max_tso_header,
            "rwq_ind_tbl" = rwq_ind_tbl, "rx_hash_conf.rx_hash_key" = rx_hash_key,
            "rx_hash_conf.rx_hash_fields_mask" = rx_hash_fields_mask, "source_qpn" = source_qpn,
            "send_ops_flags" = send_ops_flags }
        ibv_qp_attr { "qp_state" = qp_state, "path_mtu" = path_mtu, "qkey" = qkey,
            "dest_qp_num" = dest_qp_num, "qp_access_flags" = qp_access_flags, "cap" = cap,
            "ah_attr" = ah_attr, "alt_ah_attr" = alt_ah_attr, "pkey_index" = pkey_index,
            "max_rd_atomic" = max_rd_atomic, "max_dest_rd_atomic" = max_dest_rd_atomic,
            "min_rnr_timer" = min_rnr_timer, "port_num" = port_num, "timeout" = timeout,
            "retry_cnt" = retry_cnt, "rnr_retry" = rnr_retry, "rate_limit" = rate_limit }
        ibv_sge { "addr" = addr, "length" = length, "lkey" = lkey }
        ibv_send_wr { "next" = next, "sg_list" = sg_list, "num_sge" = num_sge, "opcode" = opcode,
            "send_flags" = send_flags, "imm_data" = imm_data, "wr" = wr,
            "qp_type.xrc.remote_srqn" = remote_srqn, "bind_mw" = bind_mw }
        ibv_recv_wr { "next" = next, "sg_list" = sg_list, "num_sge" = num_sge }
        ibv_ece { "vendor_id" = vendor_id, "options" = options, "comp_mask" = comp_mask }
    }
}

fn manager() -> Vec<(&'static str, usize)> {
    layouts! {
        rdma_ib_addr { "sgid" = sgid, "dgid" = dgid, "pkey" = pkey }
        rdma_addr { "src_addr" = src_addr, "dst_addr" = dst_addr, "addr.ibaddr" = ibaddr }
        rdma_route { "addr" = addr, "path_rec" = path_rec, "num_paths" = num_paths }
        ibv_sa_path_rec { "dgid" = dgid, "sgid" = sgid, "dlid" = dlid, "slid" = slid,
            "raw_traffic" = raw_traffic, "flow_label" = flow_label, "hop_limit" = hop_limit,
            "traffic_class" = traffic_class, "reversible" = reversible, "numb_path" = numb_path,
            "pkey" = pkey, "sl" = sl, "mtu_selector" = mtu_selector, "mtu" = mtu,
            "rate_selector" = rate_selector, "rate" = rate,
            "packet_life_time_selector" = packet_life_time_selector,
            "packet_life_time" = packet_life_time, "preference" = preference }
        rdma_event_channel { "fd" = fd }
        rdma_cm_id { "verbs" = verbs, "channel" = channel, "context" = context, "qp" = qp,
            "route" = route, "ps" = ps, "port_num" = port_num, "event" = event,
            "send_cq_channel" = send_cq_channel, "send_cq" = send_cq,
            "recv_cq_channel" = recv_cq_channel, "recv_cq" = recv_cq, "srq" = srq, "pd" = pd,
            "qp_type" = qp_type }
        rdma_conn_param { "private_data" = private_data, "private_data_len" = private_data_len,
            "responder_resources" = responder_resources, "initiator_depth" = initiator_depth,
            "flow_control" = flow_control, "retry_count" = retry_count,
            "rnr_retry_count" = rnr_retry_count, "srq" = srq, "qp_num" = qp_num }
        rdma_ud_param { "private_data" = private_data, "private_data_len" = private_data_len,
            "ah_attr" = ah_attr, "qp_num" = qp_num, "qkey" = qkey }
        rdma_cm_event { "id" = id, "listen_id" = listen_id, "event" = event, "status" = status,
            "param" = param }
        rdma_addrinfo { "ai_flags" = ai_flags, "ai_family" = ai_family, "ai_qp_type" = ai_qp_type,
            "ai_port_space" = ai_port_space, "ai_src_len" = ai_src_len, "ai_dst_len" = ai_dst_len,
            "ai_src_addr" = ai_src_addr, "ai_dst_addr" = ai_dst_addr,
            "ai_src_canonname" = ai_src_canonname, "ai_dst_canonname" = ai_dst_canonname,
            "ai_route_len" = ai_route_len, "ai_route" = ai_route, "ai_connect_len" = ai_connect_len,
            "ai_connect" = ai_connect, "ai_next" = ai_next }
        rdma_cm_join_mc_attr_ex { "comp_mask" = comp_mask, "join_flags" = join_flags,
            "addr" = addr }
    }
}

/// Compiles and runs a C program that prints the values of the expressions.
fn evaluate(header: &str, expressions: &[&str]) -> Vec<usize> {
    let mut source = format!("#include <stdio.h>\n#include <{header}>\nint main(void) {{\n");
    for expression in expressions {
        let _ = writeln!(source, "printf(\"%zu\\n\", (size_t)({expression}));");
    }
    source += "return 0; }\n";
    let program = std::env::temp_dir().join(format!(
        "ethernot-layout-{}-{}",
        std::process::id(),
        expressions.len()
    ));
    let mut compiler = Command::new("cc")
        .args(["-x", "c", "-", "-o"])
        .arg(&program)
        .stdin(Stdio::piped())
        .spawn()
        .expect("a C compiler");
    compiler.stdin.take().expect("piped").write_all(source.as_bytes()).expect("the compiler reads");
    assert!(compiler.wait().expect("the compiler ends").success());
    let output = Command::new(&program).output().expect("the program runs");
    let _ = std::fs::remove_file(&program);
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .map(|line| line.parse().expect("a number"))
        .collect()
}
