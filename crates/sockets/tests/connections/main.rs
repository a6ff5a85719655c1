//! Two endpoints in one process, TCP connections between them over loopback, and what becomes of these.

mod by_hand;
mod idle;
mod moving;
mod pair;
mod protocol;
mod shares;
mod staying;
