//! Runs unmodified programs alternately over kernel TCP and over the edge, measures them, and
//! compares the results.

pub mod apache_server;
pub mod clients;
pub mod fetch;
pub mod figures;
pub mod folder;
pub mod gatherer;
pub mod gmond;
pub mod remote;
pub mod running;
pub mod servers;
pub mod way;
pub mod wrk;
