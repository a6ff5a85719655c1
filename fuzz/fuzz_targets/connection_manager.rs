//! Passes the fuzzer's input to `fuzz_cases::connection_manager`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_cases::connection_manager(bytes));
