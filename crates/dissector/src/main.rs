//! Prints the Wireshark dissector: `cargo run -p dissector > tools/wireshark/ethernot.lua`.
#![forbid(unsafe_code)]

use std::io::{self, Write};

fn main() -> io::Result<()> {
    io::stdout().lock().write_all(dissector::lua().as_bytes())
}
