//! Names of statuses, events and states.

use std::ffi::{CStr, c_char, c_int};

/// Implements `ibv_wc_status_str`.
#[unsafe(export_name = "ethernot_ibv_wc_status_str")]
pub(crate) extern "C" fn ibv_wc_status_str(status: c_int) -> *const c_char {
    word(&STATUSES, status)
}

/// Implements `ibv_event_type_str`.
#[unsafe(export_name = "ethernot_ibv_event_type_str")]
pub(crate) extern "C" fn ibv_event_type_str(event: c_int) -> *const c_char {
    word(&EVENTS, event)
}

/// Implements `ibv_node_type_str`.
#[unsafe(export_name = "ethernot_ibv_node_type_str")]
pub(crate) extern "C" fn ibv_node_type_str(node_type: c_int) -> *const c_char {
    word(&NODE_TYPES, node_type)
}

/// Implements `ibv_port_state_str`.
#[unsafe(export_name = "ethernot_ibv_port_state_str")]
pub(crate) extern "C" fn ibv_port_state_str(state: c_int) -> *const c_char {
    word(&PORT_STATES, state)
}

/// Implements `rdma_event_str`.
#[unsafe(export_name = "ethernot_rdma_event_str")]
pub(crate) extern "C" fn rdma_event_str(event: c_int) -> *const c_char {
    word(&CONNECTION_EVENTS, event)
}

fn word(words: &[&'static CStr], number: c_int) -> *const c_char {
    let found = usize::try_from(number).ok().and_then(|number| words.get(number));
    found.map_or(c"unknown", |word| *word).as_ptr()
}

const STATUSES: [&CStr; 24] = [
    c"success",
    c"local length error",
    c"local QP operation error",
    c"local EE context operation error",
    c"local protection error",
    c"Work Request Flushed Error",
    c"memory management operation error",
    c"bad response error",
    c"local access error",
    c"remote invalid request error",
    c"remote access error",
    c"remote operation error",
    c"transport retry counter exceeded",
    c"RNR retry counter exceeded",
    c"local RDD violation error",
    c"remote invalid RD request",
    c"aborted error",
    c"invalid EE context number",
    c"invalid EE context state",
    c"fatal error",
    c"response timeout error",
    c"general error",
    c"TM error",
    c"TM software rendezvous",
];

const EVENTS: [&CStr; 20] = [
    c"CQ error",
    c"local work queue catastrophic error",
    c"invalid request local work queue error",
    c"local access violation work queue error",
    c"communication established",
    c"send queue drained",
    c"path migrated",
    c"path migration request error",
    c"local catastrophic error",
    c"port active",
    c"port error",
    c"LID change",
    c"P_Key change",
    c"SM change",
    c"SRQ catastrophic error",
    c"SRQ limit reached",
    c"last WQE reached",
    c"client reregistration",
    c"GID table change",
    c"WQ fatal",
];

const NODE_TYPES: [&CStr; 8] = [
    c"unknown",
    c"InfiniBand channel adapter",
    c"InfiniBand switch",
    c"InfiniBand router",
    c"iWARP NIC",
    c"usNIC",
    c"usNIC UDP",
    c"unspecified",
];

const PORT_STATES: [&CStr; 6] =
    [c"no state change (NOP)", c"down", c"init", c"armed", c"active", c"active defer"];

const CONNECTION_EVENTS: [&CStr; 16] = [
    c"RDMA_CM_EVENT_ADDR_RESOLVED",
    c"RDMA_CM_EVENT_ADDR_ERROR",
    c"RDMA_CM_EVENT_ROUTE_RESOLVED",
    c"RDMA_CM_EVENT_ROUTE_ERROR",
    c"RDMA_CM_EVENT_CONNECT_REQUEST",
    c"RDMA_CM_EVENT_CONNECT_RESPONSE",
    c"RDMA_CM_EVENT_CONNECT_ERROR",
    c"RDMA_CM_EVENT_UNREACHABLE",
    c"RDMA_CM_EVENT_REJECTED",
    c"RDMA_CM_EVENT_ESTABLISHED",
    c"RDMA_CM_EVENT_DISCONNECTED",
    c"RDMA_CM_EVENT_DEVICE_REMOVAL",
    c"RDMA_CM_EVENT_MULTICAST_JOIN",
    c"RDMA_CM_EVENT_MULTICAST_ERROR",
    c"RDMA_CM_EVENT_ADDR_CHANGE",
    c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_numbers_have_the_name_unknown() {
        // SAFETY: each pointer refers to a static text that ends with a zero.
        let text = |pointer| unsafe { CStr::from_ptr(pointer) };
        assert_eq!(text(ibv_wc_status_str(5)), c"Work Request Flushed Error");
        assert_eq!(text(ibv_wc_status_str(23)), c"TM software rendezvous");
        for number in [-1, 24, c_int::MAX, c_int::MIN] {
            assert_eq!(text(ibv_wc_status_str(number)), c"unknown");
            assert_eq!(text(ibv_event_type_str(number)), c"unknown");
        }
    }
}
