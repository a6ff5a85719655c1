//! Threads that wait for events in a loop while another thread destroys their channel.
//!
//! `rping` and similar programs end in this way: one thread calls `rdma_get_cm_event` in a loop,
//! and the main thread destroys the channel and exits. With a kernel device, the loop is inside a
//! system call when the channel is destroyed, and stays there until the process exits. With this
//! library, the loop may be between two calls. If its next call returned an error, the program
//! would end with a failure. Therefore that call blocks until the process exits.

use std::cell::Cell;
use std::ptr;
use std::thread;

use super::layout::rdma_event_channel;
use crate::failure::say;
use verbs_edge::LogLevel;

thread_local! {
    /// The channel from which this thread has got its last event. Null if the thread has got no
    /// event, or if that channel was non-blocking.
    static CHANNEL: Cell<*const rdma_event_channel> = const { Cell::new(ptr::null()) };
}

/// Records that the calling thread got an event from `channel`, whose descriptor is `fd`.
pub(super) fn on_event(channel: *const rdma_event_channel, fd: libc::c_int) {
    // SAFETY: the call only reads the flags of a descriptor.
    let flags = unsafe { libc::fcntl(fd, libc::F_GETFL) };
    let blocks = flags >= 0 && flags & libc::O_NONBLOCK == 0;
    CHANNEL.set(if blocks { channel } else { ptr::null() });
}

/// Records that the calling thread destroys `channel`. Later calls of this thread with the channel
/// return an error and do not block.
pub(super) fn on_destroy(channel: *const rdma_event_channel) {
    if CHANNEL.get() == channel {
        CHANNEL.set(ptr::null());
    }
}

/// Returns whether the calling thread has got its last event from `channel`. Such a thread probably
/// waits for events in a loop.
pub(super) fn takes_events_of(channel: *const rdma_event_channel) -> bool {
    !channel.is_null() && CHANNEL.get() == channel
}

/// Blocks the calling thread until the process exits, because another thread has destroyed the
/// channel from which this thread gets events.
pub(super) fn wait_for_exit() -> ! {
    say(
        LogLevel::Info,
        "rdma_get_cm_event: another thread destroyed the channel; waiting until the process exits",
    );
    loop {
        thread::park();
    }
}
