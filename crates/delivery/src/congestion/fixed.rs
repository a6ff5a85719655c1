//! Congestion control with a constant window, like in `MultiEdge`.

use super::{AckSample, CongestionController, LossSample, WINDOW_FRAMES_MIN};
use crate::time::Instant;

/// Allows a constant number of frames in flight. Losses, marks and delay do not change it.
#[derive(Clone, Copy, Debug)]
pub struct Fixed {
    frames: u32,
    frame_bytes: u32,
}

crate::pack_fields!(Fixed { frames, frame_bytes });

impl Fixed {
    /// Creates a window of `frames` frames of `frame_bytes` bytes.
    pub fn new(frames: u32, frame_bytes: u32) -> Self {
        Self { frames: frames.max(WINDOW_FRAMES_MIN), frame_bytes }
    }
}

impl CongestionController for Fixed {
    fn on_ack(&mut self, _now: Instant, _sample: &AckSample) {}

    fn on_loss(&mut self, _now: Instant, _loss: &LossSample) {}

    fn on_spurious_loss(&mut self) {}

    fn set_frame_bytes(&mut self, frame_bytes: u32) {
        self.frame_bytes = frame_bytes;
    }

    fn window(&self) -> u32 {
        self.frames.saturating_mul(self.frame_bytes)
    }
}
