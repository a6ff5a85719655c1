//! Two endpoints in one process, and TCP connections between them over the loopback interface.

mod by_hand;
mod idle;
mod moving;
mod pair;
mod protocol;
mod shares;
mod staying;
