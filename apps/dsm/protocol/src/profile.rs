//! Pages that cost much: those that are fetched often, and those that two nodes write.

use std::collections::{BTreeMap, BTreeSet};

use crate::identity::PageNumber;

/// How often something has happened to a page of a node, since its start.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[non_exhaustive]
pub struct PageCosts {
    /// Reads of the page from its home.
    pub fetches: u64,
    /// Barriers before which this node and another one have both changed the page. If they change
    /// different words, the page is shared falsely.
    pub conflicts: u64,
}

/// The costs of pages.
#[derive(Debug, Default)]
pub(crate) struct Profile {
    costs: BTreeMap<PageNumber, PageCosts>,
    /// Pages that this node has published since the last barrier.
    own: BTreeSet<PageNumber>,
    /// Pages that other nodes have published since the last barrier.
    others: BTreeSet<PageNumber>,
}

impl Profile {
    /// Returns the pages that have cost something, with their costs.
    pub(crate) fn costs(&self) -> impl Iterator<Item = (PageNumber, PageCosts)> {
        self.costs.iter().map(|(page, costs)| (*page, *costs))
    }

    pub(crate) fn fetched(&mut self, page: PageNumber) {
        self.costs.entry(page).or_default().fetches += 1;
    }

    pub(crate) fn wrote(&mut self, page: PageNumber) {
        self.own.insert(page);
    }

    pub(crate) fn was_written(&mut self, page: PageNumber) {
        self.others.insert(page);
    }

    /// Counts the pages that this node and another one have changed since the last barrier.
    pub(crate) fn end_barrier(&mut self) {
        for page in self.own.intersection(&self.others) {
            self.costs.entry(*page).or_default().conflicts += 1;
        }
        self.own.clear();
        self.others.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_that_this_node_and_another_one_write_between_two_barriers_is_a_conflict() {
        let mut profile = Profile::default();
        let [one, two, three] = [1, 2, 3].map(PageNumber);
        profile.wrote(one);
        profile.wrote(two);
        profile.was_written(two);
        profile.was_written(three);
        profile.end_barrier();
        profile.was_written(one);
        profile.end_barrier();
        profile.fetched(three);
        let two_costs = PageCosts { fetches: 0, conflicts: 1 };
        let three_costs = PageCosts { fetches: 1, conflicts: 0 };
        assert!(profile.costs().eq([(two, two_costs), (three, three_costs)]));
    }
}
