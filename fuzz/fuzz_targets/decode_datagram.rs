//! Passes the fuzzer's input to `fuzz_cases::decode_datagram`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| fuzz_cases::decode_datagram(bytes));
