//! Checks at the end of a run that no engine holds a record, slot or timer. Before the check, all
//! connections are closed.

use delivery::Instant;

use super::end::Stage;
use super::run::Run;
use crate::host::HostEngine;
use crate::oracle::Violation;
use crate::world::World;

impl<E: HostEngine> Run<'_, E> {
    /// Makes every application close its connections, and waits until the peers know that the
    /// connections are closed. Then checks that all resources are free.
    pub(super) fn expect_emptiness(&mut self, world: &mut World<E>) {
        self.is_closing = true;
        let now = world.now();
        for pair in 0..self.pairs.len() {
            for side in [0, 1] {
                let Some(end) = &mut self.pairs[pair].ends[side] else { continue };
                end.excused = true;
                if end.stage == Stage::Open && end.life == self.hosts[end.host].life {
                    world.engine_mut(end.host).close(now, end.connection);
                }
            }
        }
        self.advance(world, now.after_ns(CLOSING_NS));
        for host in 0..self.plan.hosts {
            let mut held = None;
            world.engine(host).occupancy(&mut |name, used, _| {
                if used > 0 && held.is_none() {
                    held = Some(Violation::Held { host, name, used });
                }
            });
            let is_armed = world.engine(host).poll_timeout() != Instant::NEVER;
            if held.is_none() && is_armed {
                held = Some(Violation::Held { host, name: "timers", used: 1 });
            }
            self.check(held.map_or(Ok(()), Err));
        }
    }
}

/// Time to wait until all resources must be free, in nanoseconds. If no peer answers, closing takes
/// 620 ms. After that, the engine remembers the closed end for 200 ms.
const CLOSING_NS: u64 = 1_000_000_000;
