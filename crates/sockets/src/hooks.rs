//! What the runtime tells a process of its groups.
