//! Rules that choose between TCP and the edge.
