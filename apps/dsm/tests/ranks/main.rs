//! Programs on several ranks, as processes of this host.

#![expect(clippy::disallowed_methods, reason = "processes that hang are killed")]

mod bad_input;
mod deaths;
mod missing_memory;
mod shared;
mod starters;
mod stencil;
