//! Memory whose accesses its owner sees.

mod frames;
mod kernel;
mod pages;

use std::sync::Arc;

use crate::error::ViewError;
use crate::options::{PAGE_BYTES, ViewOptions};
use crate::range::{Access, Fault, FaultHandler, RangeClaim};

pub use pages::Pages;

/// Handles the faults of a view.
pub trait PageFaults: Send + Sync + 'static {
    /// Makes a page accessible by [`Pages::map`]. Runs on the thread that faulted; see
    /// [`FaultHandler`] for what it may do. Several threads may be here at the same time, also for
    /// the same page.
    ///
    /// Returns true if the thread is to repeat the access. Returns false if the access is an error
    /// of the program, which gets the signal then.
    fn on_fault(&self, pages: &Pages, page: usize, access: Access) -> bool;
}

/// Memory that is mapped twice: as the view, whose faults [`PageFaults`] handles, and as the frames,
/// which never fault. All pages of a new view are absent, and all bytes are 0.
///
/// A child of `fork` has neither mapping.
#[derive(Debug)]
pub struct PageView {
    // The claim ends before the mappings do.
    _claim: RangeClaim,
    pages: Arc<Pages>,
}

impl PageView {
    /// Makes a view.
    ///
    /// # Errors
    /// [`ViewError::Pages`], [`ViewError::Frames`] or [`ViewError::Address`] if the view cannot be
    /// mapped, [`ViewError::Method`] if the method does not work here, [`ViewError::NoMethod`] if no
    /// method does, [`ViewError::Claim`] if faults cannot be claimed.
    pub fn new<F: PageFaults>(options: &ViewOptions, faults: F) -> Result<Self, ViewError> {
        let pages = Arc::new(Pages::new(options)?);
        let start = pages.view().addr();
        let handler = Arc::new(Handler { pages: Arc::clone(&pages), faults });
        let claim = RangeClaim::new(start..start + pages.bytes(), handler)?;
        Ok(Self { _claim: claim, pages })
    }

    /// Returns the pages of the view.
    pub fn pages(&self) -> &Arc<Pages> {
        &self.pages
    }
}

/// Turns faults at addresses into faults of pages.
struct Handler<F> {
    pages: Arc<Pages>,
    faults: F,
}

impl<F: PageFaults> FaultHandler for Handler<F> {
    fn on_fault(&self, fault: Fault) -> bool {
        let offset = fault.address - self.pages.view().addr();
        self.faults.on_fault(&self.pages, offset / PAGE_BYTES, fault.access)
    }
}

#[cfg(all(test, target_arch = "x86_64", target_os = "linux", not(any(miri, loom))))]
mod tests;
