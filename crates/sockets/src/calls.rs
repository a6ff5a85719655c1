//! The program's calls on connections.

pub(crate) mod connection;
pub(crate) mod descriptor_table;
pub(crate) mod expected;
pub(crate) mod files;
pub(crate) mod flags;
pub(crate) mod hidden;
pub(crate) mod peeking;
pub(crate) mod receive;
pub(crate) mod send;
pub(crate) mod slices;
pub(crate) mod tcp;
pub(crate) mod undecided;
pub(crate) mod waiting;
