//! Tests of the device against peers that are plain TCP sockets.
#![forbid(unsafe_code)]

mod ending;
mod half_open;
mod host;
mod peer;
mod shared;
