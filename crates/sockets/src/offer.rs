//! Offers: how the side that accepted tells the other of its endpoint.
