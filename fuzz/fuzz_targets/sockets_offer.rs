//! Passes the fuzzer's input to `fuzz_cases::sockets_offer`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_cases::sockets_offer(bytes));
