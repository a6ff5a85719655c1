//! Receiving: chooses the socket to read, and passes frames to the engine.

use std::io;

use delivery::{Instant, LinkEvent, RxFrame};
use mem::Payload;
use wire_edge::PeerAddr;

use super::address::SocketName;
use super::failure::Receiving;
use super::hot::HotSocket;
use super::{ATTEMPTS_MAX, UdpLink, Which, fd_of};
use crate::OnFrame;

impl UdpLink {
    /// Reads messages from one of the sockets and passes their frames to `on_frame`, at most about
    /// `limit` frames.
    pub(super) fn receive_from(
        &mut self,
        which: Which,
        now: Instant,
        limit: usize,
        on_frame: OnFrame<'_>,
    ) -> io::Result<usize> {
        let mut delivered = 0;
        let mut errors = 0;
        while delivered < limit && errors < ATTEMPTS_MAX {
            let wanted = self.ring.messages_for(limit - delivered);
            self.statistics.receive_calls += 1;
            let socket = fd_of(&self.socket, self.hot.as_ref(), which);
            let messages = match self.ring.fill(socket, wanted) {
                Ok(messages) => messages,
                Err(error) => match self.on_receive_error(error)? {
                    Receiving::Empty => {
                        self.ring.note_found(false);
                        break;
                    }
                    Receiving::Again => {
                        errors += 1;
                        continue;
                    }
                },
            };
            if self.features.timestamps && messages > 0 {
                self.clock.refresh(now);
            }
            let mut fullest = 1;
            for index in 0..messages {
                let frames = self.deliver(which, index, now, on_frame);
                delivered += frames;
                fullest = fullest.max(frames);
            }
            self.ring.note_fullest(fullest);
            self.ring.note_found(true);
            if let (Some(hot), Which::Hot) = (&mut self.hot, which) {
                hot.note_frames(fullest, self.ring.streak());
            }
            // If this call requested only one message, do not request another: the next call reads
            // the remaining messages.
            if messages < wanted || wanted == 1 {
                break;
            }
        }
        Ok(delivered)
    }

    /// Reads the connected socket in each call, and the unconnected socket occasionally.
    pub(super) fn receive_from_both(
        &mut self,
        now: Instant,
        limit: usize,
        on_frame: OnFrame<'_>,
    ) -> io::Result<usize> {
        let mut delivered = 0;
        while self.traffic.has_older && delivered < limit {
            let frames = self.receive_from(Which::Main, now, limit - delivered, on_frame)?;
            delivered += frames;
            self.traffic.has_older = frames > 0;
        }
        if delivered < limit {
            delivered += self.receive_from(Which::Hot, now, limit - delivered, on_frame)?;
        }
        if self.traffic.is_main_due(now, delivered > 0) && delivered < limit {
            delivered += self.receive_from(Which::Main, now, limit - delivered, on_frame)?;
        }
        if self.traffic.is_elsewhere() || self.hot.as_ref().is_some_and(|hot| hot.has_failed) {
            delivered += self.give_up_hot(now, limit.saturating_sub(delivered), on_frame)?;
        }
        Ok(delivered)
    }

    /// Reads the remaining frames of the connected socket, and closes the socket when it is empty.
    #[cold]
    fn give_up_hot(
        &mut self,
        now: Instant,
        limit: usize,
        on_frame: OnFrame<'_>,
    ) -> io::Result<usize> {
        let mut delivered = 0;
        while delivered < limit {
            let frames = self.receive_from(Which::Hot, now, limit - delivered, on_frame)?;
            delivered += frames;
            if frames == 0 {
                self.hot = None;
                self.watch.push(LinkEvent::Descriptors);
                break;
            }
        }
        Ok(delivered)
    }

    /// Opens a connected socket for the peer that sent all of the latest messages.
    #[cold]
    pub(super) fn open_hot(&mut self, peer: PeerAddr) {
        let scope = self.transmitter.scope();
        let name = SocketName::of_peer(peer, self.family, scope);
        let opened = self.shareable.zip(name).and_then(|(local, name)| {
            let (config, features) = (&self.config, self.features);
            HotSocket::open(&self.socket, &local, (peer, &name), self.family, config, features).ok()
        });
        self.traffic.on_opened(opened.is_some());
        if opened.is_some() {
            self.statistics.connected += 1;
            self.watch.push(LinkEvent::Descriptors);
        } else {
            self.features.connected_peer = false;
        }
        self.hot = opened;
    }

    /// Passes the frames of message `index` in the ring to `on_frame`; returns their number.
    fn deliver(
        &mut self,
        which: Which,
        index: usize,
        now: Instant,
        on_frame: OnFrame<'_>,
    ) -> usize {
        let message = self.ring.message(index);
        self.statistics.receive_messages += 1;
        if let Some(drops) = message.ancillary.drops {
            let reported = match (&mut self.hot, which) {
                (Some(hot), Which::Hot) => &mut hot.drops_reported,
                _ => &mut self.drops_reported,
            };
            self.statistics.receive_kernel_drops += u64::from(drops.wrapping_sub(*reported));
            *reported = drops;
        }
        let Some(from) = message.from.peer().filter(|_| !message.is_truncated) else {
            self.statistics.receive_discarded += 1;
            return 0;
        };
        match which {
            Which::Main => self.traffic.note_main(from),
            Which::Hot => self.traffic.note_hot(),
        }
        let received_at = match message.ancillary.wall_ns {
            Some(wall_ns) => self.clock.instant(wall_ns, now),
            None => now,
        };
        let congestion_experienced = message.ancillary.congestion_experienced;
        let bytes = message.bytes.len();
        let segment_bytes = match message.ancillary.segment_bytes {
            0 => bytes.max(1),
            segment_bytes => segment_bytes as usize,
        };
        let mut frames = 0;
        for bytes in message.bytes.chunks_mut(segment_bytes) {
            frames += 1;
            let outside = Payload::EMPTY;
            on_frame(RxFrame { bytes, outside, received_at, congestion_experienced, from });
        }
        self.statistics.receive_frames += frames as u64;
        self.statistics.receive_bytes += bytes as u64;
        frames
    }
}
