//! Passes the fuzzer's input to `fuzz_cases::redirect_port`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_cases::redirect_port(bytes));
