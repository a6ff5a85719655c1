//! Two endpoints in one process, TCP connections between them over loopback, and what becomes of these.

mod moving;
mod pair;
mod staying;
