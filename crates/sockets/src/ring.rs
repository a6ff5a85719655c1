//! Rings of bytes.
