//! The C libraries `libibverbs.so.1` and `librdmacm.so.1`, implemented by the crate `verbs`.
//!
//! Programs are compiled against C structures (`layout`) and linked to versioned symbols
//! (`names.txt`). Each call of this crate checks its arguments, converts them, and calls `verbs`.
//! It returns the values that its manual page specifies.
//!
//! If a call panics, it returns an error, and the program gets a device event. A panic never ends
//! the program.

mod address;
mod builder;
mod clock;
mod completion;
mod device;
mod device_memory;
mod end;
mod events;
mod failure;
#[expect(
    non_camel_case_types,
    missing_docs,
    reason = "structures and fields have the names that programs know"
)]
pub mod layout;
mod memory;
mod operations;
mod pair;
mod path;
mod port;
mod post;
mod rates;
pub mod rdma_cm;
mod shared;
mod shell;
mod strings;
mod stub;
mod turn;
