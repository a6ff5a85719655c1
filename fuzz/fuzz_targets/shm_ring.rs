//! Whatever a peer writes into shared memory, this end stays within it and does not panic.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| link::fuzz_shm_ring(bytes));
