//! Links that wrap other links.

use std::io;

use delivery::{Instant, LinkCaps, LinkEvent, TxBatch};

use crate::ethernet::EthernetHeader;
use crate::{Link, LinkStatistics, OnFrame, WaitFds};

/// A link that wraps another link. By default it forwards each call to the inner link.
pub(crate) trait Wrapper: Send {
    /// The type of the inner link.
    type Inner: Link + ?Sized;

    /// Returns the inner link.
    fn inner(&self) -> &Self::Inner;

    /// Returns the inner link.
    fn inner_mut(&mut self) -> &mut Self::Inner;

    /// Returns this link's capabilities. `inner` is the capabilities of the inner link.
    fn caps_around(&self, inner: LinkCaps) -> LinkCaps {
        inner
    }

    /// Receives like [`Link::receive`].
    fn let_in(&mut self, now: Instant, limit: usize, on_frame: OnFrame<'_>) -> io::Result<usize> {
        self.inner_mut().receive(now, limit, on_frame)
    }

    /// Sends like [`Link::send`].
    fn let_out(&mut self, batch: &TxBatch) -> io::Result<usize> {
        self.inner_mut().send(batch)
    }
}

impl<W: Wrapper> Link for W {
    fn caps(&self) -> LinkCaps {
        self.caps_around(self.inner().caps())
    }

    fn receive(&mut self, now: Instant, limit: usize, on_frame: OnFrame<'_>) -> io::Result<usize> {
        self.let_in(now, limit, on_frame)
    }

    fn send(&mut self, batch: &TxBatch) -> io::Result<usize> {
        self.let_out(batch)
    }

    fn doubtful(&self) -> usize {
        self.inner().doubtful()
    }

    fn poll_event(&mut self) -> Option<LinkEvent> {
        match self.inner_mut().poll_event() {
            Some(LinkEvent::Changed(caps)) => Some(LinkEvent::Changed(self.caps_around(caps))),
            event => event,
        }
    }

    fn wait_fds(&self) -> WaitFds<'_> {
        self.inner().wait_fds()
    }

    fn prepare_sleep(&mut self) -> bool {
        self.inner_mut().prepare_sleep()
    }

    fn statistics(&self) -> LinkStatistics {
        self.inner().statistics()
    }

    fn ethernet_header(&self) -> Option<EthernetHeader> {
        self.inner().ethernet_header()
    }
}

impl<L: Link + ?Sized> Wrapper for Box<L> {
    type Inner = L;

    fn inner(&self) -> &L {
        self
    }

    fn inner_mut(&mut self) -> &mut L {
        self
    }
}
