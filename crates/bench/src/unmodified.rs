//! Unmodified programs, over kernel TCP and over the edge in turn: how they are run, what is measured
//! of them, and how it compares.

pub mod apache_server;
pub mod clients;
pub mod fetch;
pub mod figures;
pub mod folder;
pub mod gatherer;
pub mod gmond;
pub mod running;
pub mod servers;
pub mod way;
pub mod wrk;
