//! Any bytes as what a process says over the Unix socket that goes with shared memory: no panic, and what
//! is accepted is what an encoder makes.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| link::fuzz_shm_messages(bytes));
