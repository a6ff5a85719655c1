//! Records the actions of flits in a recorded run: heads that get channels, tails that leave, and
//! frames on the cables of hosts.

use super::{FlitFabric, Output};
use crate::records::Grant;
use crate::simulation::Context;

impl FlitFabric {
    /// Returns whether a link is the cable between a host and a port of the fabric. Frames cross
    /// this cable. Inside the fabric, flits cross the connection between the port and the router.
    fn is_port(&self, link: u32) -> bool {
        let is_of_host =
            self.links[link as usize].is_to_host || self.links[(link ^ 1) as usize].is_to_host;
        is_of_host && self.configuration.ports.rate_bps > 0
    }

    /// Records that the head of a packet gets a channel of a link.
    #[cold]
    pub(super) fn record_head(&self, context: &mut Context, input: u32, index: u32, link: u32) {
        let now_ps = context.wheel.now_ps();
        let packet = self.packets.get(index);
        let is_from_host = input as usize >= self.outputs.len();
        let is_first = is_from_host && self.configuration.ports.rate_bps == 0;
        let Some(recorder) = &mut context.recorder else { return };
        let handed_ps = is_first.then(|| recorder.handed_ps(packet.message).unwrap_or(now_ps));
        recorder.on_granted(Grant {
            packet: index,
            message: packet.message,
            link,
            channel: self.inputs[input as usize].channel,
            is_first,
            bytes: packet.frame_bytes,
            ready_ps: handed_ps,
            started_ps: now_ps,
            sent_ps: now_ps,
            arrived_ps: now_ps + self.links[link as usize].latency_ps,
            busy_until_ps: None,
            is_counted: !self.is_port(link),
        });
    }

    /// Records that a flit is sent over a channel of a link.
    #[cold]
    pub(super) fn record_flit(
        &self,
        context: &mut Context,
        channel: u32,
        index: u32,
        is_tail: bool,
    ) {
        let link = channel / u32::from(self.configuration.channels);
        let lane = (channel % u32::from(self.configuration.channels)) as u8;
        let now_ps = context.wheel.now_ps();
        let end_ps = now_ps + self.configuration.flit_ps;
        let Output { latency_ps, is_to_host, .. } = self.links[link as usize];
        let is_counted = !self.is_port(link);
        let Some(recorder) = &mut context.recorder else { return };
        if is_counted {
            recorder.on_busy(link, now_ps, end_ps);
        }
        if is_tail {
            recorder.on_released(link, lane, end_ps);
        }
        if is_tail && is_to_host {
            recorder.on_tail(index, now_ps, now_ps + latency_ps);
        }
    }

    /// Records that a frame crosses the cable between a host and its port. The three times say when
    /// the frame was ready, when it starts to cross, and when the other end has stored it.
    pub(super) fn record_port(
        &self,
        context: &mut Context,
        (link, index): (u32, u32),
        (ready_ps, started_ps, stored_ps): (u64, u64, u64),
        is_first: bool,
    ) {
        let Some(recorder) = &mut context.recorder else { return };
        if self.configuration.ports.rate_bps == 0 {
            return;
        }
        let packet = self.packets.get(index);
        let busy_until_ps = started_ps + self.port_ps(packet.frame_bytes);
        recorder.on_granted(Grant {
            packet: index,
            message: packet.message,
            link,
            channel: 0,
            is_first,
            bytes: packet.frame_bytes,
            ready_ps: Some(ready_ps),
            started_ps,
            sent_ps: busy_until_ps.min(stored_ps),
            arrived_ps: stored_ps,
            busy_until_ps: Some(busy_until_ps),
            is_counted: true,
        });
    }
}
