//! `libethernot_paths.so`, which `ethernot run` loads before the C library. Some programs look for
//! an RDMA device in `/sys/class/infiniband` and `/dev/infiniband`. With this library they find the
//! device of the loaded `libibverbs.so.1`.
//!
//! UCX finds no device without `/dev/infiniband/…`; NCCL and pyverbs read files in `/sys`. These
//! files exist in no file system. `libibverbs.so.1` answers lookups of their paths
//! (`ethernot_path`). If a program opens such a file, this library opens a file in memory (`memfd`)
//! instead. If a program opens a device, this library opens `/dev/null`. So no file remains after
//! the process, even if the process is killed. A container or an ordinary user needs no special
//! rights. In contrast, a folder in a mount namespace would need such rights, and a process that
//! removes the folder.
//!
//! `/sys/class/infiniband/edge0` is a link to `/sys/devices/virtual/infiniband/edge0`. The kernel
//! uses such links for every device without hardware. Programs go from the target to its parent
//! folders. Therefore the library [walks](walk) along each path, including links and `..`. If a
//! program opens a folder, it gets a descriptor, and other paths may be relative to this descriptor
//! ([descriptors]).
//!
//! Programs also list devices by [netlink]. The library answers these requests itself, because a
//! kernel without RDMA does not answer them.
//!
//! If a program ends by `_exit`, the library first sends the work that the program posted last
//! ([end]).
//!
//! Every other path goes to the C library after a check of its first bytes. The check takes no
//! lock, allocates no memory and leaves `errno` unchanged. So a program may call these functions
//! wherever it may call those of the C library: in signal handlers, after a fork, and in
//! allocators.
//!
//! The library does not redirect:
//!
//! - files that the C library itself opens (`glob`, `nftw`),
//! - paths that start in a folder of the host and lead to a virtual file through a link or `..`,
//! - paths relative to the working directory, because a virtual folder cannot be the working
//!   directory.
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
