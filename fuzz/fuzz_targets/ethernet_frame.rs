//! Any bytes as an Ethernet frame: no panic, nothing is delivered that is not in it; and as the
//! content of one, which arrives as it was sent.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    link::fuzz_ethernet_frame(&mut bytes.to_vec());
});
