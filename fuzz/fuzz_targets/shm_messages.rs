//! Passes the fuzzer's input to `fuzz_cases::shm_messages`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_cases::shm_messages(bytes));
