//! `libethernot_paths.so`, which `ethernot run` has the loader put before the C library: programs that look for an RDMA device
//! below `/sys/class/infiniband` and in `/dev/infiniband` find the one of the loaded `libibverbs.so.1`.
//!
//! UCX sees no device without `/dev/infiniband/…`, NCCL and pyverbs read files of `/sys`. The files exist nowhere: what
//! stands at a path is asked of `libibverbs.so.1` (`ethernot_path`), the text of a file is given as a file in memory
//! (`memfd`), a device as `/dev/null`. So nothing is left behind, whatever becomes of the process, and nothing is needed that a container or
//! an ordinary user might not have: a folder in a mount namespace would need both and a cleaner.
//!
//! `/sys/class/infiniband/edge0` is a link to `/sys/devices/virtual/infiniband/edge0`, as those of all devices without
//! hardware, and programs go from there to the folders above: so paths are [walked](walk), links and `..` included. A folder
//! that is opened is a descriptor that other paths may be relative to ([descriptors]).
//!
//! Programs also ask for devices by [netlink], which a kernel without RDMA does not have.
//!
//! Programs that end by `_exit` have what they have posted last sent ([end]).
//!
//! Every other path goes to the C library after a look at its first bytes: no lock, no memory, `errno` as it was; so the functions
//! are as good in signal handlers, after a fork and inside allocators as those they stand before. What the C library
//! itself opens (`glob`, `nftw`) is not redirected, nor is a path that begins in a folder of the host and leads here, as a link or
//! `..` may; the files are not the working directory's.
#![deny(unsafe_op_in_unsafe_fn)]

mod descriptors;
mod end;
mod files;
mod folders;
mod metadata;
mod netlink;
mod next;
mod nldev;
mod standing;
#[cfg(test)]
mod tests;
mod walk;
