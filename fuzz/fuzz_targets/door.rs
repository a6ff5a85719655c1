//! Any bytes for `fuzz_cases::door`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_cases::door(bytes));
