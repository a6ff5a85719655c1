//! `libethernot_paths.so`, which `ethernot run` loads before the C library. Programs that look for
//! an RDMA device in `/sys/class/infiniband` and `/dev/infiniband` find that of the loaded
//! `libibverbs.so.1`.
//!
//! UCX finds no device without `/dev/infiniband/…`; NCCL and pyverbs read files in `/sys`. These
//! files exist on no file system. `libibverbs.so.1` answers lookups of paths (`ethernot_path`). A
//! file is opened as a file in memory (`memfd`), a device as `/dev/null`. So no files remain,
//! however the process ends, and neither a container nor an ordinary user needs special rights. A
//! folder in a mount namespace would need such rights, and a process that cleans up.
//!
//! `/sys/class/infiniband/edge0` is a link to `/sys/devices/virtual/infiniband/edge0`, as for all
//! devices without hardware. Programs go from there to parent folders, so paths are [walked](walk),
//! including links and `..`. An open folder is a descriptor that other paths may be relative to
//! ([descriptors]).
//!
//! Programs also list devices by [netlink], which a kernel without RDMA does not support.
//!
//! If a program ends by `_exit`, the work that it posted last is sent first ([end]).
//!
//! Every other path goes to the C library after a check of its first bytes. The check takes no
//! lock, allocates no memory and leaves `errno` unchanged. So the functions can be used in signal
//! handlers, after a fork and in allocators, like those they replace.
//!
//! Not redirected are:
//!
//! - files that the C library itself opens (`glob`, `nftw`),
//! - paths that start in a folder of the host and lead here by a link or `..`,
//! - paths relative to the working directory, which cannot be a virtual folder.
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
