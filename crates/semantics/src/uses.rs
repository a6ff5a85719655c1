//! Finds the regions that pending work of this side uses. The caller scans them before it
//! deregisters a region. Without such a scan, each region would need a counter that every operation
//! updates.

use mem::RegionId;

use crate::inbound::{Inbound, InboundAtRest};
use crate::pools::Pools;
use crate::receive_queue::{Destination, ReceiveQueue};

impl Pools {
    /// Calls `visit` with the regions that operations of this side use, and with the regions in all
    /// lists of pieces (scatter/gather entries). The lists include those of receives.
    ///
    /// The regions of answers to peers are not visited. Answers do not keep a region in use,
    /// because deregistering a region ends the rights of peers first.
    pub fn visit_regions(&self, visit: &mut dyn FnMut(RegionId)) {
        for operation in self.operations.iter() {
            operation.region().into_iter().for_each(&mut *visit);
        }
        for list in self.lists.iter() {
            list.pieces().iter().for_each(|piece| visit(piece.region));
        }
    }

    /// Returns the number of records that [`Pools::visit_regions`] visits.
    pub const fn visited_count(&self) -> u32 {
        self.operations.used() + self.lists.used()
    }
}

impl Inbound {
    /// Calls `visit` with the region of each posted receive. Omits receives with lists of pieces,
    /// because [`Pools::visit_regions`] visits all lists.
    pub fn visit_regions(&self, visit: &mut dyn FnMut(RegionId)) {
        visit_receives(self.receives.as_deref(), visit);
    }
}

impl InboundAtRest {
    /// Calls `visit` with each region that the receives use, like [`Inbound::visit_regions`].
    pub fn visit_regions(&self, visit: &mut dyn FnMut(RegionId)) {
        visit_receives(self.receives(), visit);
    }
}

fn visit_receives(receives: Option<&ReceiveQueue>, visit: &mut dyn FnMut(RegionId)) {
    for posted in receives.into_iter().flat_map(ReceiveQueue::iter) {
        if let Destination::Region { region, .. } = posted.destination {
            visit(region);
        }
    }
}
