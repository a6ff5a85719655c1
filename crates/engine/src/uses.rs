//! Lists the regions that pending work uses. The caller must not deregister these regions.

use mem::RegionId;

use crate::engine::Engine;

impl Engine {
    /// Calls `visit` with each region that operations, receives and datagrams use. May visit the
    /// same region several times. Omits receives in a shared queue until a connection takes them.
    ///
    /// Visits every record and every connection. [`Engine::visited_count`] returns their number.
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

    /// Returns the number of records and connections that [`Engine::visit_regions`] visits.
    /// Receives are not counted.
    pub fn visited_count(&self) -> u32 {
        let (connections, pools, _) = self.users_of_regions();
        connections.used() + pools.visited_count()
    }
}
