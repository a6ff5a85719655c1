//! `libethernot-sockets.so`, which `ethernot run --sockets` has the loader put before the C library: it moves the TCP
//! connections of unmodified programs to the edge.
//!
//! What moves and how is the crate `sockets`. Here are the functions of the C library that programs call, and the
//! `table` of descriptors. A call on a descriptor that is none of ours goes to the C library after one load.
//!
//! This library itself reads, writes, opens and closes; its calls are not those of the program. So the linker is told
//! (`cargo xtask libraries`, by the list in `names.txt`) that a name means one function for the program and another
//! for everything inside: there is no recursion, and no mark of a thread to look at.
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
mod giving;
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
mod room;
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

/// Before `main`, and before the constructors of the program: what is in the environment now may be gone later.
#[unsafe(no_mangle)]
extern "C" fn ethernot_sockets_begin() {
    inside::choose_numbers();
    instance::begin();
    processes::begin();
}
