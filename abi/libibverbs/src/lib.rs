//! The C libraries `libibverbs.so.1` and `librdmacm.so.1`, over the crate `verbs`.
//!
//! Programs have been compiled against structures (`layout`) and link to names with versions (`names.txt`); what the
//! calls do is in `verbs`. Each call here checks what it was given, translates, and returns what the manual pages say;
//! a panic below becomes an error of the call and an event, never the end of the program.

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
