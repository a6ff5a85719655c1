//! Any bytes for `fuzz_cases::greeting`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_cases::greeting(bytes));
