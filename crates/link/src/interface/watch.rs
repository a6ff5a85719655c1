//! What all drivers that follow an interface do in the same way: when they ask for its state, and what they report.

use std::os::fd::{AsFd, BorrowedFd};

use delivery::{Instant, LinkCaps, LinkEvent};

use super::retry::RetryTimer;
use crate::events::Events;
use crate::host::netlink::Socket;

/// Follows the interface of a driver: its MTU, carrier, address, its going and coming back.
///
/// The kernel says that something has changed, not what: it is asked afterwards, since news can be lost
/// when many come at once, and the answer is then still right.
#[derive(Debug)]
pub(crate) struct Watch {
    /// Readable when some interface of the network namespace has changed; `None` if the kernel refused it.
    news: Option<Socket>,
    /// Wakes who sleeps while the interface is there and cannot be used.
    retry: Option<RetryTimer>,
    /// When news were last looked for.
    looked_at: Instant,
    /// When the interface was last asked how it is.
    asked_at: Instant,
    /// A send has failed as if the interface had changed.
    is_suspect: bool,
    is_down: bool,
    events: Events,
}

impl Watch {
    /// From now on; to be made before the interface is first asked, so that no change is missed.
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

    /// Whether the interface is to be asked how it is, as there is news or it was not asked for
    /// `every_ns`. If there can be no news, it is asked every [`ASK_NS`] at least.
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

    /// Has the interface asked soon, as if there were news.
    pub(crate) const fn suspect(&mut self) {
        self.is_suspect = true;
    }

    /// Whether the last report said that the link can carry nothing.
    pub(crate) const fn is_down(&self) -> bool {
        self.is_down
    }

    /// Reports the present state of the interface, if it has changed: the link can carry nothing, or again something,
    /// or something else.
    pub(crate) fn report(&mut self, is_down: bool, is_changed: bool, caps: LinkCaps) {
        let was_down = std::mem::replace(&mut self.is_down, is_down);
        if is_down && !was_down {
            self.push(LinkEvent::Down);
        } else if !is_down && (was_down || is_changed) {
            self.push(LinkEvent::Changed(caps));
        }
    }

    /// Sees to it that the interface is asked again although everybody sleeps, or not any more.
    pub(crate) fn retry(&mut self, wanted: bool) {
        if wanted != self.retry.is_some() {
            // Without a timer, whatever else happens on the endpoint brings about the next attempt.
            self.retry = wanted.then(|| RetryTimer::new(RETRY_NS).ok()).flatten();
            self.push(LinkEvent::Descriptors);
        }
    }

    /// Adds an event behind those that wait.
    pub(crate) fn push(&mut self, event: LinkEvent) {
        self.events.push(event);
    }

    /// The next event.
    #[inline]
    pub(crate) fn pop(&mut self) -> Option<LinkEvent> {
        self.events.pop()
    }

    /// Events dropped because they were not polled.
    pub(crate) const fn events_dropped(&self) -> u64 {
        self.events.dropped()
    }

    /// Readable when there is news.
    pub(crate) fn news(&self) -> Option<BorrowedFd<'_>> {
        self.news.as_ref().map(AsFd::as_fd)
    }

    /// Readable when it is time to [retry](Self::retry).
    pub(crate) fn timer(&self) -> Option<BorrowedFd<'_>> {
        self.retry.as_ref().map(AsFd::as_fd)
    }
}

/// How often news are looked for: a thread that sleeps is woken by them, and one that polls pays a
/// thousandth of its time, while a change is known before a probe times out.
const NEWS_NS: u64 = 1_000_000;

/// How often an interface is asked without news: two requests of a microsecond together, 0.001 % of a core.
pub(crate) const ASK_NS: u64 = 100_000_000;

/// How often what cannot be had is tried for.
pub(crate) const RETRY_NS: u64 = 50_000_000;

/// Events that were not polled: one per peer in the worst case, and the engine polls after every turn.
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
    fn what_changes_nothing_is_not_reported() {
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
    fn an_interface_is_asked_when_it_is_suspect_or_was_not_for_long() {
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
