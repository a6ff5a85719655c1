//! Descriptors that belong to no link, for example sockets of redirect ports and TCP connections of
//! other protocols.

use std::io;
use std::ops::RangeInclusive;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::fork::{Inherited, SOCKETS};

/// The operations for which a descriptor is ready, or should be watched.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Readiness {
    /// True if reading returns bytes, a connection, an end or an error.
    pub readable: bool,
    /// True if there is room to write.
    pub writable: bool,
}

impl Readiness {
    /// Ready for reading only.
    pub const READABLE: Self = Self { readable: true, writable: false };

    const fn events(self) -> u32 {
        let readable = if self.readable { libc::EPOLLIN } else { 0 };
        let writable = if self.writable { libc::EPOLLOUT } else { 0 };
        (readable | writable) as u32
    }

    fn of_events(events: u32) -> Self {
        let any = |wanted: i32| events & wanted as u32 != 0;
        Self {
            readable: any(libc::EPOLLIN | libc::EPOLLHUP | libc::EPOLLERR),
            writable: any(libc::EPOLLOUT | libc::EPOLLERR),
        }
    }
}

/// The epoll set of the descriptors that belong to no link. A sleeping thread passes the descriptor
/// of the set to `ppoll`, instead of all descriptors in the set.
#[derive(Debug, Default)]
pub(crate) struct Auxiliary {
    /// The epoll set, created at first use.
    set: OnceLock<OwnedFd>,
    watched: AtomicUsize,
    /// The descriptors in the set, which a forked child must close. A thread that changes the set
    /// holds this lock, so that two threads can change the entry of one descriptor at the same
    /// time. The kernel also makes such threads wait for each other.
    inherited: Mutex<Places>,
}

/// Descriptors with their keys, and the memory blocks in which a forked child finds the
/// descriptors.
#[derive(Debug, Default)]
struct Places {
    taken: Vec<Option<(RawFd, u64)>>,
    blocks: Vec<Inherited>,
}

impl Places {
    fn add(&mut self, fd: RawFd, key: u64) {
        let free = self.taken.iter().position(Option::is_none);
        let place = free.unwrap_or(self.taken.len());
        if free.is_none() {
            self.taken.push(None);
        }
        if self.blocks.len() * SOCKETS <= place {
            self.blocks.push(Inherited::claim());
        }
        self.set(place, Some((fd, key)));
    }

    /// Changes the key of a descriptor.
    fn change(&mut self, fd: RawFd, key: u64) {
        for taken in self.taken.iter_mut().flatten().filter(|taken| taken.0 == fd) {
            taken.1 = key;
        }
    }

    fn remove(&mut self, fd: RawFd) {
        if let Some(place) =
            self.taken.iter().position(|taken| taken.is_some_and(|taken| taken.0 == fd))
        {
            self.set(place, None);
        }
    }

    fn set(&mut self, place: usize, watched: Option<(RawFd, u64)>) {
        if let Some(taken) = self.taken.get_mut(place) {
            *taken = watched;
        }
        if let Some(block) = self.blocks.get(place / SOCKETS) {
            block.set(place % SOCKETS, watched.map(|(fd, _)| fd));
        }
    }
}

impl Auxiliary {
    /// Watches a descriptor, and reports it under `key` when it is `ready`. If the descriptor is
    /// already watched, replaces `key` and `ready`.
    pub(crate) fn watch(&self, fd: BorrowedFd<'_>, key: u64, ready: Readiness) -> io::Result<()> {
        self.watch_events(fd, key, ready.events())
    }

    /// Watches for reading like [`Auxiliary::watch`], but edge-triggered: reports each arrival
    /// once.
    pub(crate) fn watch_arrivals(&self, fd: BorrowedFd<'_>, key: u64) -> io::Result<()> {
        self.watch_events(fd, key, Readiness::READABLE.events() | libc::EPOLLET as u32)
    }

    fn watch_events(&self, fd: BorrowedFd<'_>, key: u64, events: u32) -> io::Result<()> {
        let set = self.made()?;
        let mut places = self.places();
        match control(set, libc::EPOLL_CTL_ADD, fd, key, events) {
            Ok(()) => {
                self.watched.fetch_add(1, Ordering::Relaxed);
                places.add(fd.as_raw_fd(), key);
                Ok(())
            }
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
                control(set, libc::EPOLL_CTL_MOD, fd, key, events)?;
                places.change(fd.as_raw_fd(), key);
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Changes for what a watched descriptor is reported. `key` must be the key under which it is
    /// watched.
    pub(crate) fn change(&self, fd: BorrowedFd<'_>, key: u64, ready: Readiness) -> io::Result<()> {
        control(self.made()?, libc::EPOLL_CTL_MOD, fd, key, ready.events())
    }

    /// Undoes [`Auxiliary::watch`]. Returns false if the descriptor was not watched.
    pub(crate) fn unwatch(&self, fd: BorrowedFd<'_>) -> bool {
        self.unwatch_raw(fd.as_raw_fd())
    }

    /// Undoes [`Auxiliary::watch`] for all keys of a range.
    pub(crate) fn unwatch_keys(&self, keys: RangeInclusive<u64>) {
        let in_range = |&(_, key): &(RawFd, u64)| keys.contains(&key);
        let watched: Vec<_> =
            self.places().taken.iter().flatten().copied().filter(in_range).collect();
        for (fd, _) in watched {
            self.unwatch_raw(fd);
        }
    }

    fn unwatch_raw(&self, fd: RawFd) -> bool {
        let Some(set) = self.fd() else { return false };
        let (how, none) = (libc::EPOLL_CTL_DEL, std::ptr::null_mut());
        let mut places = self.places();
        // SAFETY: no memory is passed.
        let is_undone = unsafe { libc::epoll_ctl(set, how, fd, none) } == 0;
        if is_undone {
            self.watched.fetch_sub(1, Ordering::Relaxed);
            places.remove(fd);
        }
        is_undone
    }

    /// Returns whether the set contains a descriptor.
    #[inline]
    pub(crate) fn is_in_use(&self) -> bool {
        self.watched.load(Ordering::Relaxed) != 0
    }

    /// Returns the descriptor of the set, which is readable while a descriptor in it is ready.
    pub(crate) fn fd(&self) -> Option<RawFd> {
        self.set.get().map(AsRawFd::as_raw_fd)
    }

    /// Passes at most [`READY_MAX`] ready descriptors to `on_ready`. Returns how many were ready.
    pub(crate) fn poll(&self, mut on_ready: impl FnMut(u64, Readiness)) -> usize {
        let Some(set) = self.fd() else { return 0 };
        let mut ready = [libc::epoll_event { events: 0, u64: 0 }; READY_MAX as usize];
        // SAFETY: `ready` has room for `READY_MAX` events.
        let count = unsafe { libc::epoll_wait(set, ready.as_mut_ptr(), READY_MAX, 0) };
        let count = usize::try_from(count).unwrap_or(0);
        for event in ready.iter().take(count) {
            on_ready(event.u64, Readiness::of_events(event.events));
        }
        count
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.inherited.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the descriptor of the set. Creates the set if it does not exist yet.
    pub(crate) fn made(&self) -> io::Result<RawFd> {
        if let Some(fd) = self.fd() {
            return Ok(fd);
        }
        // SAFETY: no memory is passed.
        let made = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if made < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the kernel has just returned this descriptor, and nothing else has it.
        let made = unsafe { OwnedFd::from_raw_fd(made) };
        Ok(self.set.get_or_init(|| made).as_raw_fd())
    }
}

/// Adds a descriptor to the epoll set `set`, or changes it there.
fn control(set: RawFd, how: i32, fd: BorrowedFd<'_>, key: u64, events: u32) -> io::Result<()> {
    let mut wanted = libc::epoll_event { events, u64: key };
    // SAFETY: `wanted` is read during the call.
    match unsafe { libc::epoll_ctl(set, how, fd.as_raw_fd(), &raw mut wanted) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Maximum number of descriptors reported in one turn. The next turn reports the others.
pub(crate) const READY_MAX: i32 = 16;

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    fn ready(set: &Auxiliary) -> Vec<(u64, Readiness)> {
        let mut ready = Vec::new();
        set.poll(|key, readiness| ready.push((key, readiness)));
        ready
    }

    #[test]
    fn a_ready_descriptor_is_reported_with_its_key_while_ready() {
        let set = Auxiliary::default();
        let (mut ours, mut theirs) = UnixStream::pair().expect("two sockets");
        set.watch(ours.as_fd(), 7, Readiness::READABLE).expect("it is watched");
        assert_eq!(ready(&set), []);
        theirs.write_all(b"x").expect("there is room");
        assert_eq!(ready(&set), [(7, Readiness::READABLE)]);
        assert_eq!(ready(&set), [(7, Readiness::READABLE)]);
        ours.read_exact(&mut [0]).expect("a byte");
        assert_eq!(ready(&set), []);
        let both = Readiness { readable: true, writable: true };
        set.change(ours.as_fd(), 7, both).expect("it is watched");
        assert_eq!(ready(&set), [(7, Readiness { readable: false, writable: true })]);
        set.watch(ours.as_fd(), 8, both).expect("it is watched");
        assert_eq!(ready(&set), [(8, Readiness { readable: false, writable: true })]);
        drop(theirs);
        assert_eq!(ready(&set), [(8, both)]);
        assert!(set.unwatch(ours.as_fd()));
        assert!(!set.unwatch(ours.as_fd()));
        assert!(set.change(ours.as_fd(), 8, both).is_err());
        assert_eq!(ready(&set), []);
        assert!(!set.is_in_use());
    }

    #[test]
    fn edge_triggered_watches_report_each_arrival_once() {
        let set = Auxiliary::default();
        let (ours, mut theirs) = UnixStream::pair().expect("two sockets");
        set.watch_arrivals(ours.as_fd(), 7).expect("it is watched");
        for _ in 0..2 {
            theirs.write_all(b"x").expect("there is room");
            assert_eq!(ready(&set), [(7, Readiness::READABLE)]);
            assert_eq!(ready(&set), []);
        }
        assert!(set.unwatch(ours.as_fd()));
    }

    #[test]
    fn two_threads_can_watch_and_unwatch_a_descriptor_at_the_same_time() {
        let set = Auxiliary::default();
        let (ours, _theirs) = UnixStream::pair().expect("two sockets");
        std::thread::scope(|scope| {
            for key in 0..2 {
                let (set, ours) = (&set, ours.as_fd());
                scope.spawn(move || {
                    for _ in 0..20_000 {
                        set.watch(ours, key, Readiness::READABLE).expect("it is watched");
                        set.unwatch(ours);
                    }
                });
            }
        });
        assert!(!set.is_in_use());
        assert!(set.places().taken.iter().all(Option::is_none));
    }

    #[test]
    fn an_unpollable_descriptor_is_refused() {
        let file = std::fs::File::open("/proc/self/exe").expect("this program");
        let set = Auxiliary::default();
        assert!(set.watch(file.as_fd(), 1, Readiness::READABLE).is_err());
        assert!(!set.is_in_use());
    }
}
