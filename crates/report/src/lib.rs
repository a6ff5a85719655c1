//! Shows results of the benchmark: a table for a terminal, and a self-contained page with curves.

#![forbid(unsafe_code)]

mod chart;
mod format;
mod page;
mod table;

pub use chart::ChartError;
pub use page::page;
pub use table::table;
