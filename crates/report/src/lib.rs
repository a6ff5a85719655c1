//! Shows results of the benchmark: a table for a terminal, and a self-contained page with curves.

#![forbid(unsafe_code)]

mod format;
mod table;

use bench::results::Results;

pub use table::table;

/// temporary
pub fn page(_results: &Results) -> Result<String, std::fmt::Error> {
    Ok(String::new())
}
