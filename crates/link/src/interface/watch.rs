//! Follows the state of an interface for all drivers: decides when to query the state and which
//! events to report.

use std::os::fd::{AsFd, BorrowedFd};

use delivery::{Instant, LinkCaps, LinkEvent};

use super::retry::RetryTimer;
use crate::events::Events;
use crate::netlink::Socket;

/// Follows the interface of a driver: its MTU, carrier and address, and whether it exists.
///
/// The kernel notifies the driver of a change; the driver then queries the interface's state. The
/// driver ignores the content of notifications, because the kernel may lose some when many arrive
/// together.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Readable when an interface of the network namespace has changed; `None` if the kernel
    /// refused the socket.
    news: Option<Socket>,
    /// Wakes a sleeping thread at intervals while the interface exists but cannot be used.
    retry: Option<RetryTimer>,
    /// Time of the last check for notifications.
    looked_at: Instant,
    /// Time of the last query of the interface.
    asked_at: Instant,
    /// True if the next check must query the interface, because a failed send suggested that the
    /// interface has changed.
    is_suspect: bool,
    is_down: bool,
    events: Events,
}

impl Watch {
    /// Starts to watch. Call this before the first query of the interface. Otherwise a change
    /// before the watch would be missed.
    pub(crate) fn new() -> Self {
        Self {
            news: Socket::route(libc::RTMGRP_LINK as u32).ok(),
            retry: None,
            looked_at: Instant(0),
            asked_at: Instant(0),
            is_suspect: false,
            is_down: false,
            events: Events::new(EVENTS_MAX),
        }
    }

    /// Returns whether to query the interface: a notification arrived, or the last query is
    /// `every_ns` old. Without a notification socket, the interval is at most [`ASK_NS`].
    #[inline]
    pub(crate) fn is_due(&mut self, now: Instant, every_ns: u64) -> bool {
        now.since_ns(self.looked_at) >= NEWS_NS && self.look(now, every_ns)
    }

    #[cold]
    fn look(&mut self, now: Instant, every_ns: u64) -> bool {
        self.looked_at = now;
        if let Some(timer) = &self.retry {
            timer.clear();
        }
        let has_news = self.news.as_ref().is_some_and(|news| news.take_events().unwrap_or(false));
        let every_ns = if self.news.is_some() { every_ns } else { every_ns.min(ASK_NS) };
        let is_due = has_news || self.is_suspect || now.since_ns(self.asked_at) >= every_ns;
        if is_due {
            self.asked_at = now;
            self.is_suspect = false;
        }
        is_due
    }

    /// Makes the next check query the interface, like a notification.
    pub(crate) const fn suspect(&mut self) {
        self.is_suspect = true;
    }

    /// Returns whether the last event reported that the link is down.
    pub(crate) const fn is_down(&self) -> bool {
        self.is_down
    }

    /// Queues an event if the state has changed: [`LinkEvent::Down`] if the link goes down,
    /// [`LinkEvent::Changed`] if the link comes up. Also queues [`LinkEvent::Changed`] if the link
    /// is up and `is_changed` is true.
    pub(crate) fn report(&mut self, is_down: bool, is_changed: bool, caps: LinkCaps) {
        let was_down = std::mem::replace(&mut self.is_down, is_down);
        if is_down && !was_down {
            self.push(LinkEvent::Down);
        } else if !is_down && (was_down || is_changed) {
            self.push(LinkEvent::Changed(caps));
        }
    }

    /// Starts or stops the timer that makes a sleeping thread query the interface again.
    pub(crate) fn retry(&mut self, wanted: bool) {
        if wanted != self.retry.is_some() {
            // If no timer can be created, the next activity of the endpoint causes the next
            // attempt.
            self.retry = wanted.then(|| RetryTimer::new(RETRY_NS).ok()).flatten();
            self.push(LinkEvent::Descriptors);
        }
    }

    /// Queues an event.
    pub(crate) fn push(&mut self, event: LinkEvent) {
        self.events.push(event);
    }

    /// Removes and returns the oldest event.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<LinkEvent> {
        self.events.pop()
    }

    /// Returns the number of events dropped because the caller did not poll them.
    pub(crate) const fn events_dropped(&self) -> u64 {
        self.events.dropped()
    }

    /// Returns the descriptor that is readable when there are notifications.
    pub(crate) fn news(&self) -> Option<BorrowedFd<'_>> {
        self.news.as_ref().map(AsFd::as_fd)
    }

    /// Returns the descriptor that is readable when it is time to [retry](Self::retry).
    pub(crate) fn timer(&self) -> Option<BorrowedFd<'_>> {
        self.retry.as_ref().map(AsFd::as_fd)
    }
}

/// Interval between checks for notifications, in nanoseconds. Only polling threads make these
/// checks, because notifications wake a sleeping thread. A polling thread spends a thousandth of
/// its time on the checks. The interval is shorter than a probe timeout.
const NEWS_NS: u64 = 1_000_000;

/// Interval between queries of an interface if no notification arrives, in nanoseconds. A query
/// consists of two requests, which together take a microsecond: 0.001 % of a core.
pub(crate) const ASK_NS: u64 = 100_000_000;

/// Interval between attempts to use an unusable interface, in nanoseconds.
pub(crate) const RETRY_NS: u64 = 50_000_000;

/// Maximum number of queued events. The runtime always reads all queued events of a link at once.
/// Between two such reads, a link queues at most about one event per peer.
const EVENTS_MAX: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    const CAPS: LinkCaps = LinkCaps {
        frame_bytes_max: 1500,
        frame_bytes_safe: 1200,
        segments: 1,
        offloads: false,
        receive_buffer_bytes: 0,
        rate: None,
        local: wire_edge::PeerAddr([0; 20]),
    };

    #[test]
    fn an_update_without_a_change_is_not_reported() {
        let mut watch = Watch::new();
        watch.report(false, false, CAPS);
        assert!(watch.pop().is_none());
        watch.report(true, true, CAPS);
        watch.report(true, true, CAPS);
        assert!(matches!(watch.pop(), Some(LinkEvent::Down)));
        assert!(watch.is_down() && watch.pop().is_none());
        watch.report(false, false, CAPS);
        assert!(matches!(watch.pop(), Some(LinkEvent::Changed(_))));
        watch.report(false, true, CAPS);
        assert!(matches!(watch.pop(), Some(LinkEvent::Changed(_))));
    }

    #[test]
    fn an_interface_is_queried_when_suspect_or_after_a_long_time() {
        let mut watch = Watch { news: None, ..Watch::new() };
        let mut now = Instant(1_000 * ASK_NS);
        assert!(watch.is_due(now, u64::MAX), "without news it is asked now and then");
        now = now.after_ns(NEWS_NS);
        assert!(!watch.is_due(now, u64::MAX));
        watch.suspect();
        assert!(!watch.is_due(now, u64::MAX), "not yet");
        now = now.after_ns(NEWS_NS);
        assert!(watch.is_due(now, u64::MAX));
        now = now.after_ns(RETRY_NS);
        assert!(!watch.is_due(now, u64::MAX));
        assert!(!watch.is_due(now, RETRY_NS), "once in a while is enough");
        now = now.after_ns(NEWS_NS);
        assert!(watch.is_due(now, RETRY_NS));
    }
}
