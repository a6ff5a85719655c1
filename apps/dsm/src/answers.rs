//! The report of a rank for `ethernot dsm top`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Instant;
use std::{env, process};

use dsm_protocol::{Counters, PageCosts, PageNumber};

use crate::core::{Core, State};
use crate::heap::REGION;
use crate::statistics::{FORMAT, PageReport, ROWS_MAX, RankReport, send};

impl Core {
    /// Sends the report to a client that waits for it. Never blocks.
    pub(crate) fn answer_clients(&self, state: &mut State, now: Instant) {
        if let Some(stream) = state.statistics.accept(now) {
            let report = self.report_of(state, now);
            // The client may have closed its socket.
            let _gone = send(stream, &report);
        }
    }

    fn report_of(&self, state: &State, now: Instant) -> RankReport {
        let program = env::args_os().next().unwrap_or_default();
        let program = Path::new(&program).file_name().unwrap_or_default();
        RankReport {
            format: FORMAT.into(),
            meet: self.meet.clone(),
            program: program.to_string_lossy().into_owned(),
            pid: process::id(),
            rank: self.rank,
            size: self.size,
            method: self.view.pages().method().to_string(),
            milliseconds: now.duration_since(self.joined).as_millis() as u64,
            counters: named(state.node.counters()),
            pages: self.pages_of(state),
            waits: state.waits.report(),
        }
    }

    /// Returns the pages that cost most: half of the rows by fetches, half by conflicts.
    fn pages_of(&self, state: &State) -> Vec<PageReport> {
        let costs: Vec<_> = state.node.page_costs().collect();
        let most = |cost: fn(&PageCosts) -> u64| {
            let mut found: Vec<_> =
                costs.iter().copied().filter(|(_, costs)| cost(costs) > 0).collect();
            found.sort_by_key(|(_, costs)| Reverse(cost(costs)));
            found.truncate(ROWS_MAX / 2);
            found
        };
        let mut pages: BTreeMap<PageNumber, PageCosts> = BTreeMap::new();
        pages.extend(most(|costs| costs.fetches));
        pages.extend(most(|costs| costs.conflicts));
        let report = |(page, costs): (PageNumber, PageCosts)| PageReport {
            address: (REGION + page.index() * 4096) as u64,
            fetches: costs.fetches,
            conflicts: costs.conflicts,
            allocations: self
                .heap
                .of_page(page)
                .iter()
                .map(|made| made.place.to_string())
                .collect(),
        };
        pages.into_iter().map(report).collect()
    }
}

fn named(counters: Counters) -> BTreeMap<String, u64> {
    let Counters {
        faults,
        fetches,
        prefetches,
        stale_fetches,
        patches,
        intervals,
        notices,
        invalidations,
        overruns,
        handovers,
        moves,
        ..
    } = counters;
    let all = [
        ("faults", faults),
        ("fetches", fetches),
        ("prefetches", prefetches),
        ("stale_fetches", stale_fetches),
        ("patches", patches),
        ("intervals", intervals),
        ("notices", notices),
        ("invalidations", invalidations),
        ("overruns", overruns),
        ("handovers", handovers),
        ("moves", moves),
    ];
    all.into_iter().map(|(name, count)| (name.to_owned(), count)).collect()
}
