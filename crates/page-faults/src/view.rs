//! Memory whose accesses its owner sees.

mod frames;
mod kernel;
mod missing;
mod pages;

use std::sync::Arc;

use crate::error::{MissingMemory, ViewError};
use crate::options::{Method, PAGE_BYTES, ViewOptions};
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

    /// Reports that memory of the view is missing, because the process has changed a mapping, or the
    /// host has no page. Runs on the thread that accesses the memory, which gets the signal when this
    /// function returns. The default does nothing else.
    ///
    /// If frames are missing, the thread may be inside of any code of the owner that accesses frames.
    /// So this function must not take a lock that the owner holds during such an access.
    fn on_missing(&self, _missing: &MissingMemory) {}
}

/// Memory that is mapped twice: as the view, whose faults [`PageFaults`] handles, and as the frames,
/// which never fault. All pages of a new view are absent, and all bytes are 0.
///
/// A child of `fork` has neither mapping.
#[derive(Debug)]
pub struct PageView {
    // The claims of the view and of the frames end before the mappings do.
    _claims: [RangeClaim; 2],
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
        let handler = Arc::new(Handler { pages: Arc::clone(&pages), faults });
        let claim = |start: *mut u8| {
            let addresses = start.addr()..start.addr() + pages.bytes();
            RangeClaim::new(addresses, Arc::clone(&handler))
        };
        let claims = [claim(pages.view())?, claim(pages.frames())?];
        Ok(Self { _claims: claims, pages })
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
        let Some(page) = self.page_at(self.pages.view(), fault.address) else {
            let frame = self.page_at(self.pages.frames(), fault.address);
            self.faults.on_missing(&self.pages.missing_frame(frame.unwrap_or(0)));
            return false;
        };
        // Faults that userfaultfd reports have another signal. If the page were mapped as the owner
        // wants it, the access would fault again and again.
        if fault.is_forbidden
            && self.pages.method() != Method::Protection
            && !self.pages.is_guarded(page)
            && let Some(missing) = self.pages.missing()
        {
            self.faults.on_missing(&missing);
            return false;
        }
        self.faults.on_fault(&self.pages, page, fault.access)
    }
}

impl<F> Handler<F> {
    /// Returns the page with an address in the mapping that begins at `start`.
    fn page_at(&self, start: *mut u8, address: usize) -> Option<usize> {
        let offset = address.checked_sub(start.addr())?;
        (offset < self.pages.bytes()).then_some(offset / PAGE_BYTES)
    }
}

#[cfg(all(test, target_arch = "x86_64", target_os = "linux", not(any(miri, loom))))]
mod tests;
