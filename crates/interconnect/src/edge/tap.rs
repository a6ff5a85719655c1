//! A look at the frames that hosts send and receive.

use std::fmt::Debug;

use super::super::simulation::Message;
use super::EdgeFabric;
use super::frames::Frames;

/// Observes frames, as a capture on the interfaces of hosts does. Changes nothing of the run.
pub trait Tap: Debug {
    /// Whether frames of a host are of interest.
    fn wants(&self, host: u32) -> bool;

    /// Handles a frame that a host has sent or received. A frame that was lost in flight was sent and not received.
    fn on_frame(&mut self, frame: &TappedFrame<'_>);
}

/// A frame at one of its ends.
#[derive(Clone, Copy, Debug)]
pub struct TappedFrame<'a> {
    /// When it was handed to the link, or was there, in picoseconds since the run began.
    pub at_ps: u64,
    /// Host at which it was seen.
    pub host: u32,
    /// The number of the host at its other end.
    pub peer: u32,
    /// Rail that carries it.
    pub rail: u8,
    /// Whether `host` sent it.
    pub is_sent: bool,
    /// It was marked for congestion in the network; never of one that is sent.
    pub is_marked: bool,
    /// The frame of the edge protocol. Payload that is a ghost is its address, of at most 8 bytes, and
    /// then zeros.
    pub bytes: &'a [u8],
}

/// Reports a frame that is about to leave from the first of its ends.
pub(super) fn on_sent(
    tap: &mut dyn Tap,
    frames: &Frames,
    memory: &mut Vec<u8>,
    (host, peer): (u32, u32),
    message: &Message,
) {
    if !tap.wants(host) {
        return;
    }
    let (rail, at_ps) = (frames.rail(message.tag), message.posted_ps);
    frames.with_bytes(message.tag, memory, |bytes| {
        let (is_sent, is_marked) = (true, false);
        tap.on_frame(&TappedFrame { at_ps, host, peer, rail, is_sent, is_marked, bytes });
    });
}

impl EdgeFabric {
    /// Sets a tap that observes all frames from now on.
    pub fn set_tap(&mut self, tap: Box<dyn Tap>) {
        self.tap = Some(tap);
    }

    /// Reports a frame that reached the receive queue of the second of its ends.
    pub(super) fn tap_received(
        &mut self,
        frame: u32,
        (peer, host): (u32, u32),
        is_marked: bool,
        at_ps: u64,
    ) {
        let Self { tap: Some(tap), frames, work, configuration, .. } = self else { return };
        if !tap.wants(host) {
            return;
        }
        let (rail, is_sent) = (frames.rail(frame), false);
        let is_marked = is_marked && configuration.sees_marks;
        frames.with_bytes(frame, &mut work.received, |bytes| {
            tap.on_frame(&TappedFrame { at_ps, host, peer, rail, is_sent, is_marked, bytes });
        });
    }
}
