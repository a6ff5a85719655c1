//! What five papers print, and how results of ours are compared with it.
//!
//! The printed values are data: `papers/*.toml`, one file a paper. [`printed`] reads them, [`document`] is
//! the form of a measured item, [`judge`] compares the two in the manner that the data name, and
//! [`difference`] compares two sets of documents. The crate reads no files and knows no clock.

#![forbid(unsafe_code)]

pub mod difference;
pub mod document;
pub mod judge;
pub mod printed;
pub mod reading;
pub mod reasons;
pub mod statement;
