//! What a node knows of each page.

use crate::identity::{PageNumber, Rank};

/// The state of a page on this node.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub(crate) enum State {
    /// The frame has nothing of use; accesses fault.
    #[default]
    Absent,
    /// The frame is valid; writes fault.
    Clean,
    /// The present interval has written the page. The page has a twin, unless its home is this
    /// node.
    Dirty,
    /// The home is this node and no other node has ever read the page: writes do not fault, and
    /// need no notice.
    Open,
}

/// One page. 8 bytes for each page of the region.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Page {
    /// The home, if this node has learned it.
    pub(crate) home: Option<Rank>,
    pub(crate) state: State,
    /// Whether this node has set its byte in the home's table of sharers.
    pub(crate) is_announced: bool,
    /// Whether the home must publish every write, because other nodes may have copies.
    pub(crate) is_tracked: bool,
    /// Pins that hold the page.
    pub(crate) pins: u16,
    /// Patches of the page that are in flight.
    pub(crate) patches: u8,
}

const _: () = assert!(size_of::<Page>() == 8);

/// The pages of the region.
#[derive(Debug)]
pub(crate) struct PageTable {
    pages: Vec<Page>,
    /// Takes the place of a page that the region does not have. Calls and messages with such pages
    /// are refused, so the machine never reads it.
    spare: Page,
}

impl PageTable {
    pub(crate) fn new(pages: u32) -> Self {
        Self { pages: vec![Page::default(); pages as usize], spare: Page::default() }
    }

    /// Returns whether the region has the page.
    pub(crate) const fn has(&self, page: PageNumber) -> bool {
        page.index() < self.pages.len()
    }

    pub(crate) fn get(&self, page: PageNumber) -> Page {
        self.pages.get(page.index()).copied().unwrap_or_default()
    }

    pub(crate) fn at(&mut self, page: PageNumber) -> &mut Page {
        self.pages.get_mut(page.index()).unwrap_or(&mut self.spare)
    }

    /// Returns the pages whose frames are valid.
    pub(crate) fn present(&self) -> Vec<PageNumber> {
        let numbered = self.pages.iter().zip(0..);
        numbered
            .filter(|(page, _)| page.state != State::Absent)
            .map(|(_, number)| PageNumber(number))
            .collect()
    }
}
