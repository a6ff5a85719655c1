//! The load of each link, and the waits for the link, over time.

/// Load of a link, and how long packets waited for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LinkRecord {
    /// Number of packets that got the link.
    pub packets: u64,
    /// Number of bytes of these packets on the link.
    pub bytes: u64,
    /// Time for which the link was occupied, in picoseconds.
    pub busy_ps: u64,
    /// Sum of the waits of all packets, in picoseconds.
    pub wait_ps: u64,
    /// The longest wait of a packet, in picoseconds. It shows the maximum length of the queue,
    /// measured as time.
    pub wait_max_ps: u64,
    /// Time when the packet that waited longest became ready, in picoseconds.
    pub wait_max_at_ps: u64,
    /// Load and longest wait in successive windows of time. Empty windows at the end are omitted.
    pub windows: Vec<Window>,
}

/// Load of a link in one window of time. All windows of a run have the same length.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Window {
    /// Time for which the link was occupied, in picoseconds.
    pub busy_ps: u64,
    /// The longest wait of a packet that became ready in the window, in picoseconds.
    pub wait_max_ps: u64,
}

impl LinkRecord {
    /// Returns the mean wait of a packet, in picoseconds.
    pub fn wait_mean_ps(&self) -> f64 {
        if self.packets == 0 { 0.0 } else { self.wait_ps as f64 / self.packets as f64 }
    }
}

/// Records of all links, in windows that become longer during the run.
#[derive(Clone, Debug)]
pub(super) struct LinkTable {
    links: Vec<LinkRecord>,
    /// Binary logarithm of the width of a window in picoseconds.
    shift: u32,
}

impl LinkTable {
    pub(super) fn new(links: usize) -> Self {
        Self { links: vec![LinkRecord::default(); links], shift: FIRST_SHIFT }
    }

    pub(super) fn finish(self) -> (Vec<LinkRecord>, u64) {
        (self.links, 1 << self.shift)
    }

    /// Records that a packet that was ready at `ready_ps` gets a link after `wait_ps`.
    pub(super) fn on_packet(&mut self, link: u32, ready_ps: u64, wait_ps: u64, bytes: u32) {
        let Some(window) = self.window(link, ready_ps) else { return };
        window.wait_max_ps = window.wait_max_ps.max(wait_ps);
        let Some(record) = self.links.get_mut(link as usize) else { return };
        record.packets += 1;
        record.bytes += u64::from(bytes);
        record.wait_ps = record.wait_ps.saturating_add(wait_ps);
        if wait_ps > record.wait_max_ps {
            (record.wait_max_ps, record.wait_max_at_ps) = (wait_ps, ready_ps);
        }
    }

    /// Records that a link is occupied for a time.
    pub(super) fn on_busy(&mut self, link: u32, from_ps: u64, until_ps: u64) {
        let mut at_ps = from_ps;
        // If necessary, this call doubles the width of windows first, so that the loop takes only a
        // few steps.
        self.window(link, until_ps);
        while at_ps < until_ps {
            let end_ps = (((at_ps >> self.shift) + 1) << self.shift).min(until_ps);
            if let Some(window) = self.window(link, at_ps) {
                window.busy_ps += end_ps - at_ps;
            }
            at_ps = end_ps;
        }
        if let Some(record) = self.links.get_mut(link as usize) {
            record.busy_ps = record.busy_ps.saturating_add(until_ps.saturating_sub(from_ps));
        }
    }

    fn window(&mut self, link: u32, at_ps: u64) -> Option<&mut Window> {
        while at_ps >> self.shift >= WINDOWS as u64 {
            self.fold();
        }
        let index = (at_ps >> self.shift) as usize;
        let windows = &mut self.links.get_mut(link as usize)?.windows;
        if windows.len() <= index {
            windows.resize(index + 1, Window::default());
        }
        windows.get_mut(index)
    }

    /// Doubles the width of windows: joins pairs of neighbouring windows.
    fn fold(&mut self) {
        self.shift += 1;
        for record in &mut self.links {
            let pairs = record.windows.chunks(2).map(|pair| Window {
                busy_ps: pair.iter().map(|window| window.busy_ps).sum(),
                wait_max_ps: pair.iter().map(|window| window.wait_max_ps).max().unwrap_or(0),
            });
            record.windows = pairs.collect();
        }
    }
}

/// The first windows are about 1 µs long.
const FIRST_SHIFT: u32 = 20;
/// Maximum number of windows. Doubling their width leaves half of them, which are still enough to
/// show a trend.
const WINDOWS: usize = 64;

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        /// The windows contain all occupied time, no matter how often their width doubles.
        #[test]
        fn windows_contain_all_busy_time(
            spans in proptest::collection::vec((0_u64..1 << 40, 0_u64..1 << 32), 1..40),
        ) {
            let mut table = LinkTable::new(2);
            for &(from_ps, length_ps) in &spans {
                table.on_busy(1, from_ps, from_ps + length_ps);
                table.on_packet(1, from_ps, length_ps, 100);
            }
            let (links, window_ps) = table.finish();
            let windows = &links[1].windows;
            proptest::prop_assert!(windows.len() <= WINDOWS);
            let total: u64 = spans.iter().map(|span| span.1).sum();
            let longest = spans.iter().map(|span| span.1).max().unwrap_or(0);
            proptest::prop_assert_eq!(windows.iter().map(|window| window.busy_ps).sum::<u64>(), total);
            proptest::prop_assert_eq!(links[1].busy_ps, total);
            proptest::prop_assert_eq!(windows.iter().map(|window| window.wait_max_ps).max(), Some(longest));
            let last = spans.iter().map(|span| span.0 + span.1).max().unwrap_or(0);
            proptest::prop_assert!(last / window_ps < WINDOWS as u64);
            proptest::prop_assert_eq!(&links[0].windows, &Vec::new());
        }
    }
}
