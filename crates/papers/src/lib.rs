//! The values that five papers print, and their comparison with our results.
//!
//! The printed values are data: `papers/*.toml`, one file per paper. [`printed`] reads them.
//! [`document`] is the format of a measured item. [`judge`] compares both in the manner given in
//! the data, and [`difference`] compares two sets of documents. The crate reads no files and no
//! clock.

#![forbid(unsafe_code)]

pub mod difference;
pub mod document;
pub mod judge;
pub mod printed;
pub mod reading;
pub mod reasons;
pub mod statement;
