//! Shows results of the benchmarks as a table for a terminal, and as a self-contained page with
//! curves. Also creates pages of simulated runs.

#![forbid(unsafe_code)]

mod apache;
mod axes;
mod bars;
mod chart;
mod curve;
mod failover;
mod format;
mod ganglia;
mod lines;
mod multiedge;
mod page;
mod papers_page;
mod papers_table;
mod programs;
mod reality;
mod rows;
pub mod simulation;
mod sockets;
mod sockets_page;
mod table;
mod unmodified;
mod verbs;
mod verbs_availability;
mod verbs_registration;

pub use apache::{apache_page, apache_table};
pub use chart::ChartError;
pub use failover::{failover_page, failover_table};
pub use ganglia::{ganglia_page, ganglia_table};
pub use multiedge::{multiedge_page, multiedge_table};
pub use page::page;
pub use papers_page::papers_page;
pub use papers_table::{papers_list, papers_table};
pub use programs::{programs_page, programs_table};
pub use reality::{reality_page, reality_table};
pub use sockets::sockets_table;
pub use sockets_page::sockets_page;
pub use table::table;
pub use verbs::{verbs_page, verbs_table};
