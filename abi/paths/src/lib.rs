//! `libethernot_paths.so`, which `ethernot run` has the loader put before the C library: programs that look for an RDMA device
//! below `/sys/class/infiniband` and in `/dev/infiniband` find the one of the loaded `libibverbs.so.1`.
//!
//! UCX sees no device without `/dev/infiniband/…`, NCCL and pyverbs read files of `/sys`. The files exist nowhere: what
//! stands at a path is asked of `libibverbs.so.1` (`ethernot_path`), the text of a file is given as a file in memory
//! (`memfd`), a device as `/dev/null`. So nothing is left behind, whatever becomes of the process, and nothing is needed that a container or
//! an ordinary user might not have: a folder in a mount namespace would need both and a cleaner.
//!
//! Every other path goes to the C library after a look at its first bytes: no lock, no memory, `errno` as it was; so the functions
//! are as good in signal handlers, after a fork and inside allocators as those they stand before. What the C library
//! itself opens (`glob`, `nftw`) and paths relative to a folder's descriptor are not redirected.
#![deny(unsafe_op_in_unsafe_fn)]

mod files;
mod folders;
mod metadata;
mod next;
mod standing;
#[cfg(test)]
mod tests;
