//! Two engines, and bytes that decide what happens to them and between them.
#![no_main]

#[path = "../../crates/fuzz-cases/tests/engine_frames/mod.rs"]
mod engine_frames;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| engine_frames::run(bytes));
