//! The library `librdmacm.so.1`: ids (`rdma_cm_id`), events, blocking endpoints and `rsocket`.

mod addresses;
mod calls;
mod devices;
mod endpoints;
mod event_loop;
mod events;
mod groups;
mod ids;
#[expect(missing_docs, reason = "structures and fields have the names that programs know")]
pub mod layout;
mod pairs;
mod resolution;
mod sockets;
