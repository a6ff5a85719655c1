//! Frames through AF_XDP.

mod bpf;
mod instruction;
mod program;
mod rings;
mod socket;
