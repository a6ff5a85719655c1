//! Handshake frames that wait to be sent.

use std::collections::VecDeque;

use delivery::{EndpointCounters, LinkId};
use wire_edge::{ConnectionId, HANDSHAKE_BYTES_MAX, Handshake, HandshakeFrame, PeerAddr, VERSION};

/// Handshake frames that wait, oldest first, at most [`REPLIES_MAX`]. The limit is necessary,
/// because strangers cause these frames.
#[derive(Debug)]
pub(crate) struct Replies {
    waiting: VecDeque<Reply>,
    /// Number of frames for which the queue keeps memory even while no frame waits.
    kept: usize,
}

/// A handshake frame to send.
#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) link: LinkId,
    pub(crate) to: PeerAddr,
    pub(crate) bytes: Vec<u8>,
}

impl Replies {
    /// Creates the queue, with its full capacity if `allocates_ahead`.
    pub(crate) fn new(allocates_ahead: bool) -> Self {
        let kept = if allocates_ahead { REPLIES_MAX } else { 0 };
        Self { waiting: VecDeque::with_capacity(kept), kept }
    }

    /// Returns whether no frame waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Returns whether the queue would drop a further frame.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= REPLIES_MAX
    }

    //= protocol.md: amplify.3, amplify.4
    /// Queues a handshake frame with these connection ids. Drops the frame if the protocol forbids
    /// sending it.
    pub(crate) fn push(
        &mut self,
        counters: &mut EndpointCounters,
        (link, to): (LinkId, PeerAddr),
        destination: ConnectionId,
        source: ConnectionId,
        body: Handshake<'_>,
    ) {
        if to.is_group() {
            // A frame from a group address is forged, because no peer sends from such an address.
            // Do not answer.
            counters.wrong_address += 1;
            return;
        }
        if self.is_full() {
            counters.rate_limited += 1;
            return;
        }
        let mut bytes = vec![0; HANDSHAKE_BYTES_MAX];
        let frame = HandshakeFrame { version: VERSION, destination, source, body };
        let len = frame.encode(&mut bytes);
        bytes.truncate(len);
        self.waiting.push_back(Reply { link, to, bytes });
    }

    /// Passes each waiting frame to `send` once. `send` returns true if the frame need not wait any
    /// longer. Returns whether some frames still wait.
    #[inline]
    pub(crate) fn offer(&mut self, send: impl FnMut(&Reply) -> bool) -> bool {
        !self.waiting.is_empty() && self.offer_all(send)
    }

    #[cold]
    fn offer_all(&mut self, mut send: impl FnMut(&Reply) -> bool) -> bool {
        for _ in 0..self.waiting.len() {
            let Some(reply) = self.waiting.pop_front() else { break };
            if !send(&reply) {
                self.waiting.push_back(reply);
            }
        }
        !self.waiting.is_empty()
    }

    /// Releases the memory that the queue allocated for a burst of frames.
    pub(crate) fn trim(&mut self) {
        if self.waiting.is_empty() && self.waiting.capacity() > self.kept {
            self.waiting.shrink_to(self.kept);
        }
    }
}

/// Maximum number of waiting answers to strangers, enough for a burst of requests in one turn. The
/// engine drops further answers, and the strangers ask again. Each answer has at most 944 bytes, so
/// 256 answers take 240 KB.
const REPLIES_MAX: usize = 256;

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> PeerAddr {
        PeerAddr::from(text.parse::<core::net::SocketAddr>().expect("a literal address"))
    }

    fn push(replies: &mut Replies, to: PeerAddr) -> EndpointCounters {
        let mut counters = EndpointCounters::default();
        let none = ConnectionId(0);
        replies.push(&mut counters, (LinkId(0), to), none, ConnectionId(1), Handshake::Pending);
        counters
    }

    //= protocol.md: amplify.4
    #[test]
    fn replies_beyond_the_maximum_are_rate_limited() {
        let mut replies = Replies::new(false);
        for _ in 0..REPLIES_MAX {
            assert_eq!(push(&mut replies, ip("10.0.0.1:1")).rate_limited, 0);
        }
        assert!(replies.is_full());
        assert_eq!(push(&mut replies, ip("10.0.0.1:1")).rate_limited, 1);
        assert!(!replies.offer(|_| true));
        assert!(replies.is_empty());
    }

    //= protocol.md: amplify.3
    #[test]
    fn no_reply_goes_to_a_multicast_address() {
        let mut replies = Replies::new(false);
        assert_eq!(push(&mut replies, ip("224.0.0.1:1")).wrong_address, 1);
        assert!(replies.is_empty());
    }

    #[test]
    fn a_reply_that_a_full_driver_refuses_waits_without_blocking_others() {
        let mut replies = Replies::new(true);
        let (full, other) = (ip("10.0.0.1:1"), ip("10.0.0.2:1"));
        for to in [full, other, full] {
            push(&mut replies, to);
        }
        assert!(replies.offer(|reply| reply.to == other));
        let mut left = Vec::new();
        replies.offer(|reply| {
            left.push(reply.to);
            true
        });
        assert_eq!(left, [full, full]);
    }
}
