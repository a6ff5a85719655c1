//! What the library tells whoever looks for it.
