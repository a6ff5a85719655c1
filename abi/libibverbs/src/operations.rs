//! The function tables of an open device.

use std::ffi::c_int;
use std::ptr;

use crate::layout::{ibv_context, ibv_context_ops, ibv_device, verbs_context};
use crate::{completion, device_memory, memory, pair, port, post, shared};

/// Returns the C structure of an open device. If the pointer to an operation is null in this
/// structure, the functions in the headers report that the operation is not supported.
pub(crate) fn context(device: *mut ibv_device, cmd_fd: c_int, async_fd: c_int) -> verbs_context {
    verbs_context {
        newest: [ptr::null(); 6],
        query_port: Some(port::query_port),
        advise_mr: Some(memory::advise_mr),
        alloc_null_mr: None,
        read_counters: ptr::null(),
        attach_counters_point_flow: ptr::null(),
        create_counters: ptr::null(),
        destroy_counters: ptr::null(),
        reg_dm_mr: Some(device_memory::reg_dm_mr),
        alloc_dm: Some(device_memory::alloc_dm),
        free_dm: Some(device_memory::free_dm),
        modify_flow_action_esp: ptr::null(),
        destroy_flow_action: ptr::null(),
        create_flow_action_esp: ptr::null(),
        modify_qp_rate_limit: ptr::null(),
        alloc_parent_domain: Some(memory::alloc_parent_domain),
        dealloc_td: Some(memory::dealloc_td),
        alloc_td: Some(memory::alloc_td),
        modify_cq: None,
        post_srq_ops: ptr::null(),
        destroy_rwq_ind_table: ptr::null(),
        create_rwq_ind_table: ptr::null(),
        destroy_wq: ptr::null(),
        modify_wq: ptr::null(),
        create_wq: ptr::null(),
        query_rt_values: Some(port::query_rt_values),
        create_cq_ex: Some(completion::create_cq_ex),
        private: ptr::null(),
        query_device_ex: Some(port::query_device_ex),
        destroy_flow: ptr::null(),
        unused_2: ptr::null(),
        create_flow: ptr::null(),
        unused_1: ptr::null(),
        open_qp: ptr::null(),
        create_qp_ex: Some(pair::create_qp_ex),
        get_srq_num: ptr::null(),
        create_srq_ex: Some(shared::create_srq_ex),
        open_xrcd: ptr::null(),
        close_xrcd: ptr::null(),
        unused_3: 0,
        sz: size_of::<verbs_context>(),
        context: ibv_context {
            device,
            ops: calls(),
            cmd_fd,
            async_fd,
            num_comp_vectors: completion::VECTORS.cast_signed(),
            mutex: libc::PTHREAD_MUTEX_INITIALIZER,
            abi_compat: ptr::without_provenance_mut(IS_EXTENDED),
        },
    }
}

fn calls() -> ibv_context_ops {
    ibv_context_ops {
        query_device: ptr::null(),
        query_port: ptr::null(),
        unused_2: [ptr::null(); 5],
        alloc_mw: Some(memory::alloc_mw),
        bind_mw: Some(post::bind_mw),
        dealloc_mw: Some(memory::dealloc_mw),
        unused_10: ptr::null(),
        poll_cq: Some(completion::poll_cq),
        req_notify_cq: Some(completion::req_notify_cq),
        unused_13: [ptr::null(); 7],
        post_srq_recv: Some(shared::post_srq_recv),
        unused_21: [ptr::null(); 4],
        post_send: Some(post::post_send),
        post_recv: Some(post::post_recv),
        unused_27: [ptr::null(); 5],
    }
}

/// The value of `abi_compat` in a context that is part of a `verbs_context`. The libibverbs of 2012
/// introduced this value.
const IS_EXTENDED: usize = usize::MAX;
