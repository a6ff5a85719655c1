//! How a connection moves: what either side does when.
