//! Sends a batch: chooses the socket and handles errors.

use std::io;

use delivery::TxBatch;

use super::failure::Sending;
use super::transmit::{Run, SEGMENTS_SAFE};
use super::{PayloadUnmapped, UdpLink, Which, fd_of};

impl UdpLink {
    /// Returns the socket for this batch.
    #[inline]
    pub(super) fn choose(&mut self, batch: &TxBatch) -> Which {
        let is_hot = self.hot.as_ref().is_some_and(|hot| hot.peer == batch.to() && !hot.has_failed);
        self.transmitter.set_connected(is_hot);
        if is_hot { Which::Hot } else { Which::Main }
    }

    pub(super) fn note_sent(&mut self, batch: &TxBatch, first: usize, frames: usize, run: Run) {
        self.statistics.send_frames += frames as u64;
        if run.frames == frames && run.bytes > 0 {
            self.statistics.send_messages += 1;
            self.statistics.send_bytes += run.bytes as u64;
        } else {
            self.statistics.send_messages += frames as u64;
            let bytes: usize = (first..first + frames).map(|index| batch.frame(index).len()).sum();
            self.statistics.send_bytes += bytes as u64;
        }
    }

    /// Sends the frames of a refused run one by one. The results show whether one frame cannot be
    /// sent, or the kernel cannot segment.
    #[cold]
    pub(super) fn send_singly(
        &mut self,
        batch: &TxBatch,
        first: usize,
        run: Run,
    ) -> io::Result<usize> {
        let mut frame = first;
        let mut attempts = 0;
        while frame < first + run.frames {
            let single = self.transmitter.gather(batch, frame, 1);
            let which = self.choose(batch);
            let socket = fd_of(&self.socket, self.hot.as_ref(), which);
            self.statistics.send_calls += 1;
            let Err(error) = self.transmitter.send_run(socket, single) else {
                self.refusals.on_taken();
                self.note_sent(batch, frame, 1, single);
                frame += 1;
                continue;
            };
            if error.raw_os_error() == Some(libc::EFAULT) {
                return Err(PayloadUnmapped { frame }.into());
            }
            attempts += 1;
            match self.on_send_error(&error, batch, frame, single, attempts) {
                Sending::Again => {}
                Sending::Full => {
                    self.statistics.send_full += 1;
                    return Ok(frame - first);
                }
                Sending::Lost | Sending::Singly => {
                    // One frame was refused, so segmentation may still work.
                    return Ok(frame + 1 - first);
                }
                Sending::Failed => return Err(error),
            }
        }
        if run.frames > SEGMENTS_SAFE {
            self.caps.segments = SEGMENTS_SAFE as u16;
        } else {
            self.features.segmentation = false;
            self.caps.segments = 1;
            self.caps.offloads = false;
        }
        self.fall_back();
        Ok(run.frames)
    }
}
