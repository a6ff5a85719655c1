//! Runs two engines. The fuzzer's input decides what happens to the engines and to their frames.
#![no_main]

#[path = "../../crates/fuzz-cases/tests/engine_frames/mod.rs"]
mod engine_frames;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| engine_frames::run(bytes));
