//! `libethernot-sockets.so`: moves the TCP connections of unmodified programs to the edge.
//! `ethernot run --sockets` preloads this library before the C library.
//!
//! The crate `sockets` decides which connections move, and moves them. This crate replaces the
//! functions of the C library that programs call, and has the `table` of descriptors. A call on a
//! descriptor that is not in the table goes to the C library after a single load from that table.
//!
//! This library itself also calls `read`, `write`, `open` and `close`. These calls must not be
//! handled like calls of the program. Therefore the linker (`cargo xtask libraries`, with the list
//! in `names.txt`) binds each name twice: to one function for the program, and to another function
//! for code in this library. Without the two bindings, the library would need a flag for each
//! thread to detect its own calls.
#![deny(unsafe_op_in_unsafe_fn)]

mod addresses;
mod answering;
mod armed;
mod asking;
mod begun;
mod chosen;
mod closing;
mod connection_table;
mod control;
mod copying;
mod counted;
mod epoll;
mod executable;
mod files;
mod first_use;
mod handling;
mod hidden;
mod information;
mod inherited;
mod inside;
mod instance;
mod iovecs;
mod listed;
mod making;
mod nested;
mod next;
mod numbered;
mod opening;
mod options;
mod passing;
mod polling;
mod printing;
mod processes;
mod receiving;
mod reservation;
mod results;
mod selecting;
mod sending;
mod services;
mod sharing;
mod signals;
mod socket;
mod table;
mod this_process;
mod trial;
mod waiting;

/// Initialises the library. Runs before `main` and before the constructors of the program, because
/// a constructor may change the environment, from which the library reads its settings.
#[unsafe(no_mangle)]
extern "C" fn ethernot_sockets_begin() {
    inside::choose_numbers();
    instance::begin();
    processes::begin();
}
