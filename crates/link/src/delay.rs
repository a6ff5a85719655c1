//! A wrapper that delays the frames of a link by a fixed time.

use std::collections::VecDeque;
use std::io;

use delivery::{Instant, LinkCaps, RxFrame};
use mem::Payload;
use wire_edge::PeerAddr;

use crate::wrapper::Wrapper;
use crate::{Link, OnFrame};

/// A link that delivers each frame a fixed time after its arrival, like a link over a longer cable.
/// Frames keep their order.
///
/// Meant for hosts that poll, because no descriptor becomes readable when a delayed frame is due.
/// The link reuses buffers. It allocates only while the number of delayed frames reaches a new
/// maximum.
#[derive(Debug)]
pub struct Delay<L> {
    link: L,
    late_by_ns: u64,
    held: VecDeque<DelayedFrame>,
    free: Vec<Vec<u8>>,
}

#[derive(Debug)]
struct DelayedFrame {
    bytes: Vec<u8>,
    arrives_at: Instant,
    congestion_experienced: bool,
    from: PeerAddr,
}

impl<L: Link> Delay<L> {
    /// Delays the frames that `link` receives by `delay_ns` nanoseconds.
    pub const fn new(link: L, delay_ns: u64) -> Self {
        Self { link, late_by_ns: delay_ns, held: VecDeque::new(), free: Vec::new() }
    }
}

impl<L: Link> Wrapper for Delay<L> {
    type Inner = L;

    fn inner(&self) -> &L {
        &self.link
    }

    fn inner_mut(&mut self) -> &mut L {
        &mut self.link
    }

    fn caps_around(&self, inner: LinkCaps) -> LinkCaps {
        // Delayed frames wait in memory of this process and take no room in the socket's buffer.
        let receive_buffer_bytes = inner.receive_buffer_bytes.max(HELD_BYTES);
        LinkCaps { receive_buffer_bytes, ..inner }
    }

    fn let_in(&mut self, now: Instant, limit: usize, on_frame: OnFrame<'_>) -> io::Result<usize> {
        let Self { link, late_by_ns, held, free } = self;
        let received = link.receive(now, limit, &mut |frame| {
            let mut bytes = free.pop().unwrap_or_default();
            bytes.clear();
            frame.append_to(&mut bytes);
            held.push_back(DelayedFrame {
                bytes,
                arrives_at: frame.received_at.after_ns(*late_by_ns),
                congestion_experienced: frame.congestion_experienced,
                from: frame.from,
            });
        })?;
        let mut delivered = 0;
        while delivered < limit && held.front().is_some_and(|frame| frame.arrives_at <= now) {
            let Some(mut frame) = held.pop_front() else { break };
            on_frame(RxFrame {
                bytes: &mut frame.bytes,
                outside: Payload::EMPTY,
                received_at: frame.arrives_at,
                congestion_experienced: frame.congestion_experienced,
                from: frame.from,
            });
            free.push(frame.bytes);
            delivered += 1;
        }
        Ok(delivered.max(received))
    }
}

/// Bytes that can be in flight on the longer cable: 10 Gb/s × 10 ms.
const HELD_BYTES: u32 = 12_500_000;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};

    use delivery::TxBatch;

    use super::*;
    use crate::udp::{UdpConfig, UdpLink};

    #[test]
    fn frames_arrive_in_order_and_not_before_their_time() {
        let bind = || {
            UdpLink::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &UdpConfig::default())
                .expect("a socket on loopback")
        };
        let mut sender = bind();
        let mut receiver = Delay::new(bind(), 1_000_000_000_000);
        let mut batch = TxBatch::new(2, 64);
        batch.reset(receiver.caps().local);
        for byte in [1, 2] {
            batch.header_mut().extend_from_slice(&[byte; 8]);
            batch.finish_frame(mem::PayloadSlice::EMPTY);
        }
        assert_eq!(sender.send(&batch).expect("sent over loopback"), 2);
        let mut seen = Vec::new();
        let mut now = Instant(5_000_000_000_000);
        while receiver.held.len() < 2 {
            let mut early = |_: RxFrame<'_>| panic!("a frame came before its time");
            receiver.receive(now, 8, &mut early).expect("received over loopback");
        }
        now = now.after_ns(2_000_000_000_000);
        let mut on_frame = |frame: RxFrame<'_>| seen.push(frame.bytes[0]);
        assert_eq!(receiver.receive(now, 8, &mut on_frame).expect("received"), 2);
        assert_eq!(seen, [1, 2]);
    }
}
