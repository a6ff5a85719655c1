//! `libethernot.so`: remote memory for programs in C and C++. It has the same objects as the Rust
//! API.
//!
//! cbindgen makes the header `include/ethernot.h` from this crate. The header is the reference for
//! programs; [the guide](../../../docs/c-api.md) explains its use. Three rules apply to all calls:
//!
//! * Handles are numbers in the form of pointers. The library never dereferences them. If a handle
//!   is null, of another kind or freed, a call therefore returns an error. If another thread frees
//!   a handle during a call, the object stays valid until the call returns.
//! * A panic is a bug in the library. It does not leave the call: the call returns
//!   `ETHERNOT_RESULT_FAULT`.
//! * A call writes its outputs only if it succeeds.
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
