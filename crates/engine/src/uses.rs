//! Which regions of this side work in progress uses: for a scan before a region is deregistered.

use mem::RegionId;

use crate::engine::Engine;

impl Engine {
    /// Calls `visit` with the regions that operations, receives and datagrams use, one after the other and some of them
    /// several times. Not among them are receives of shared queues that no connection has taken.
    ///
    /// It looks at every record and every connection: [`Engine::visited_count`] says how many these are.
    pub fn visit_regions(&self, visit: &mut dyn FnMut(RegionId)) {
        let (connections, pools, datagrams) = self.users_of_regions();
        pools.visit_regions(visit);
        for connection in connections.iter() {
            connection.inbound().visit_regions(visit);
        }
        for (_, resting) in connections.resting() {
            resting.inbound().visit_regions(visit);
        }
        if let Some(datagrams) = datagrams {
            datagrams.visit_regions(visit);
        }
    }

    /// Records and connections that [`Engine::visit_regions`] looks at, without their receives.
    pub fn visited_count(&self) -> u32 {
        let (connections, pools, _) = self.users_of_regions();
        connections.used() + pools.visited_count()
    }
}
