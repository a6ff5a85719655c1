//! `libethernot.so`: remote memory for programs in C and C++, with the objects of the Rust API.
//!
//! The header `include/ethernot.h` is made of this crate by cbindgen and says all that programs need to know; how is in
//! [the guide](../../../docs/c-api.md). Three rules hold everywhere:
//!
//! * Handles are numbers in the form of pointers, and are never dereferenced. So one that is null, of another kind or was
//!   freed before is an error of the call, and one that another thread frees meanwhile stays good until the call returns.
//! * A panic is a fault of ours. It ends at the call, which returns `ETHERNOT_RESULT_FAULT`.
//! * What a call returns besides its result is written when it succeeds, and only then.
#![expect(
    clippy::missing_safety_doc,
    reason = "what C must keep to is said once, in the header: pointers are null or valid for the call"
)]

pub mod attempt;
mod bytes;
pub mod connection;
pub mod endpoint;
pub mod failure;
mod handle;
pub mod memory;
pub mod operation;
mod options;
pub mod receive;
pub mod version;
pub mod waiting;
