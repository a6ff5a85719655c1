//! Passes the fuzzer's input to `fuzz_cases::iwarp_streams`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_cases::iwarp_streams(bytes));
