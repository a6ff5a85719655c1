//! The values that five papers print, and the comparison of our results with them.
//!
//! The printed values are data in `papers/*.toml`, one file for each paper; [`printed`] parses
//! them. [`document`] defines the format for results of a measured item. [`judge`] compares results
//! with printed values; the data determine how. [`difference`] compares two sets of documents. The
//! crate contains the data files, so it reads no files at run time. It does not read the clock.

#![forbid(unsafe_code)]

pub mod difference;
pub mod document;
pub mod judge;
pub mod line;
pub mod printed;
pub mod reading;
pub mod reasons;
pub mod statement;
