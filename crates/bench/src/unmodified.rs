//! Unmodified programs, over kernel TCP and over the edge in turn: how they are run, what is measured
//! of them, and how it compares.

pub mod folder;
pub mod running;
pub mod way;
