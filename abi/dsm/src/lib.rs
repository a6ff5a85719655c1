//! `libethernot-dsm.so`: shared memory over Ethernet for programs in C and C++, by the crate `dsm`.
//!
//! cbindgen makes the header `include/ethernot_dsm.h` from this crate. The header is the reference
//! for programs; [the guide](../../../docs/dsm-c.md) explains its use. Three rules apply to all
//! calls:
//!
//! * Outputs may be in the shared memory, so that writing them fetches a page. A call therefore
//!   writes its outputs when it holds no lock of this library.
//! * A panic is a bug in the library. It does not leave the call: the call returns
//!   `ETHERNOT_DSM_RESULT_FAULT`.
//! * A call writes its outputs only if it succeeds.
#![expect(
    clippy::missing_safety_doc,
    reason = "what C must keep to is said once, in the header: pointers are null or valid for the call"
)]

pub mod atomic;
pub mod created;
pub mod failure;
mod fixed_addresses;
mod image;
pub mod joined;
mod loaded;
pub mod memory;
#[path = "../../c/src/options.rs"]
mod options;
mod outputs;
mod rank;
pub mod synchronization;
pub mod version;
