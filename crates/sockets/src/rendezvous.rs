//! The rendezvous of the processes at both ends of a connection: rendezvous sockets, offers, link
//! groups and joins.

pub(crate) mod background_thread;
pub(crate) mod connection_table;
pub(crate) mod doorbell;
pub(crate) mod endpoint;
pub(crate) mod exchange;
pub(crate) mod group;
pub(crate) mod groups;
pub(crate) mod hooks;
pub(crate) mod process;
pub(crate) mod round_robin;
pub(crate) mod shares;
pub(crate) mod stream_table;
