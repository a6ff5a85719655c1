//! Bytes carried between a descriptor and its stream for those who call the kernel.
