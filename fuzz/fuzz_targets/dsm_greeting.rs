//! Passes the fuzzer's input to `fuzz_cases::dsm_greeting`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_cases::dsm_greeting(bytes));
