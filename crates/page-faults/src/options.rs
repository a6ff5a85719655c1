//! Which view is made, and how its accesses are seen.

use core::fmt;

/// How accesses to a view are seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Method {
    /// userfaultfd with asynchronous write protection (Linux 6.7). An access to an absent page
    /// causes a fault. The first write to a page that was only readable causes none: the kernel
    /// notes it, and [`Pages::take_written`](crate::Pages::take_written) reports it.
    Asynchronous,
    /// userfaultfd with write protection (Linux 5.19). A write to a page that is only readable
    /// causes a fault.
    Synchronous,
    /// `mprotect`, on every Linux. Each change of a page may split a mapping, and the kernel limits
    /// the number of mappings of a process (`vm.max_map_count`).
    Protection,
}

impl Method {
    /// All methods, the cheapest first.
    pub const ALL: [Self; 3] = [Self::Asynchronous, Self::Synchronous, Self::Protection];

    /// Returns whether a write to a page that is only readable calls [`PageFaults::on_fault`](crate::PageFaults::on_fault).
    pub fn reports_writes(self) -> bool {
        self != Self::Asynchronous
    }
}

impl fmt::Display for Method {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Asynchronous => "userfaultfd with asynchronous write protection",
            Self::Synchronous => "userfaultfd with write protection",
            Self::Protection => "mprotect",
        })
    }
}

/// Which view is made.
#[derive(Clone, Copy, Debug)]
pub struct ViewOptions {
    /// Number of pages of 4096 bytes.
    pub pages: usize,
    /// The address of the view, a multiple of 4096. `None` lets the kernel choose.
    pub address: Option<usize>,
    /// How accesses are seen. `None` takes the first of [`Method::ALL`] that works here.
    pub method: Option<Method>,
}

/// Length of a page in bytes.
pub(crate) const PAGE_BYTES: usize = 4096;
