//! Observes the frames that hosts send and receive.

use std::fmt::Debug;

use super::super::simulation::Message;
use super::EdgeFabric;
use super::frames::Frames;

/// An observer of frames, comparable to a packet capture on the interfaces of hosts. It does not
/// affect the run.
pub trait Tap: Debug {
    /// Returns whether the observer wants the frames of a host.
    fn wants(&self, host: u32) -> bool;

    /// Handles a frame that a host has sent or received. If the network loses a frame, the observer
    /// gets only the sent frame.
    fn on_frame(&mut self, frame: &TappedFrame<'_>);
}

/// A frame, as one of its two hosts sees it.
#[derive(Clone, Copy, Debug)]
pub struct TappedFrame<'a> {
    /// Time when the host handed the frame to the link, or when the frame arrived, in picoseconds
    /// since the start of the run.
    pub at_ps: u64,
    /// Host at which the frame is observed.
    pub host: u32,
    /// Host at the other end of the frame's route.
    pub peer: u32,
    /// Rail that carries the frame.
    pub rail: u8,
    /// Whether `host` sent the frame.
    pub is_sent: bool,
    /// Whether a switch marked the frame for congestion. Always false for a sent frame.
    pub is_marked: bool,
    /// The frame of the edge protocol. If payloads have no real bytes, the payload in this frame is
    /// the address of the payload (at most 8 bytes), followed by zeros.
    pub bytes: &'a [u8],
}

/// Reports a frame that a host is about to send, if the tap wants frames of this host.
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
    /// Sets the tap. The tap gets all later frames of the hosts that it wants.
    pub fn set_tap(&mut self, tap: Box<dyn Tap>) {
        self.tap = Some(tap);
    }

    /// Reports a frame that reached the receive queue of its destination.
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
