//! Records flits in routers with a clock.

use super::{Context, End, RouterFabric};
use crate::records::Grant;

impl RouterFabric {
    /// Records that a router sends a flit over a channel of a link in a cycle. The flit can be a
    /// head, a tail or both.
    #[cold]
    pub(super) fn record(
        &self,
        context: &mut Context,
        (link, channel): (u32, u8),
        index: u32,
        (is_head, is_tail): (bool, bool),
        cycle: u64,
    ) {
        let now_ps = context.wheel.now_ps();
        let wire = &self.wires[link as usize];
        let (sent_ps, there_ps) = (self.time_ps(cycle), self.time_ps(cycle + wire.flit_cycles));
        let end_ps = sent_ps + self.configuration.flit_ps;
        let packet = self.packets.get(index);
        let Some(recorder) = &mut context.recorder else { return };
        if is_head {
            let is_first = matches!(wire.from, End::Host(_));
            let handed_ps = || recorder.handed_ps(packet.message).unwrap_or(now_ps);
            recorder.on_granted(Grant {
                packet: index,
                message: packet.message,
                link,
                channel,
                is_first,
                bytes: packet.bytes,
                ready_ps: is_first.then(handed_ps),
                started_ps: sent_ps,
                sent_ps,
                arrived_ps: there_ps,
                busy_until_ps: None,
                is_counted: true,
            });
        }
        recorder.on_busy(link, sent_ps, end_ps);
        if is_tail {
            recorder.on_released(link, channel, end_ps);
            if matches!(wire.to, End::Host(_)) {
                recorder.on_tail(index, sent_ps, there_ps);
            }
        }
    }
}
