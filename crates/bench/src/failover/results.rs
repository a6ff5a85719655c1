//! What a run of failovers yields, and how a series is judged.

use serde::{Deserialize, Serialize};

use super::stream::Series;
use crate::machine::Machine;

/// Everything measured by one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FailoverResults {
    /// [`FORMAT`].
    pub format: String,
    /// Version of the program.
    pub version: String,
    /// When the run was started.
    pub unix_seconds: u64,
    /// The host.
    pub machine: Machine,
    /// Kind of the links: `packet`, `udp` or `xdp`.
    pub link: String,
    /// Rate of each of the two links, in bits per second.
    pub bits_per_second: u64,
    /// The worst of all cuts.
    pub worst: Worst,
    /// One entry per cut.
    pub cuts: Vec<Cut>,
}

/// The worst of all cuts, each figure by itself. No figure if a cut has none.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Worst {
    /// Writes lost or corrupted, all cuts together.
    pub bad_operations: Option<u64>,
    /// Longest gap.
    pub gap_ms: Option<u64>,
    /// Longest time until both links were in use again.
    pub back_ms: Option<u64>,
}

/// One cut of one of two links.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cut {
    /// What was cut.
    pub name: String,
    /// Why there are no figures, if so.
    pub failure: Option<String>,
    /// When it began to be cut, in milliseconds since the first write arrived.
    pub cut_ms: u64,
    /// When it was restored.
    pub restored_ms: u64,
    /// Payload rate with both links, before the cut.
    pub bytes_per_second: f64,
    /// Longest time between cut and restoration below 80 % of half that rate, over
    /// [`WINDOW_MS`] each.
    pub gap_ms: Option<u64>,
    /// Time from the restoration until the rate stays at 80 % of that of both links.
    pub back_ms: Option<u64>,
    /// What the target saw.
    pub series: Series,
}

impl Cut {
    /// Judges a series.
    pub fn judge(name: &str, cut_ms: u64, restored_ms: u64, series: Series) -> Self {
        let rates = &series.bytes_per_ms;
        let mean = |from: u64, to: u64| {
            let range = rates.get(from as usize..to as usize).filter(|range| !range.is_empty());
            range.map(|range| range.iter().sum::<u64>() as f64 / range.len() as f64)
        };
        let full = mean(cut_ms / 2, cut_ms).unwrap_or_default();
        let window = |at: u64| mean(at, at + WINDOW_MS);
        let mut longest = 0;
        let mut below = 0;
        for at in cut_ms..restored_ms.saturating_sub(WINDOW_MS) {
            let is_below = window(at).is_none_or(|rate| rate < ENOUGH * full / 2.0);
            below = if is_below { below + 1 } else { 0 };
            longest = longest.max(below);
        }
        let is_back = |&at: &u64| {
            let stays = mean(at, at + STAYS_MS).is_some_and(|rate| rate >= ENOUGH * full);
            stays && window(at).is_some_and(|rate| rate >= ENOUGH * full)
        };
        let back = (restored_ms..rates.len() as u64).find(is_back);
        Self {
            name: name.to_string(),
            failure: None,
            cut_ms,
            restored_ms,
            bytes_per_second: full * 1000.0,
            gap_ms: (full > 0.0 && restored_ms > cut_ms).then_some(longest),
            back_ms: back.filter(|_| full > 0.0).map(|at| at - restored_ms),
            series,
        }
    }

    /// A cut without figures.
    pub fn failed(name: &str, failure: String) -> Self {
        let cut = Self::judge(name, 0, 0, Series::default());
        Self { failure: Some(failure), ..cut }
    }
}

impl Worst {
    /// The worst of `cuts`.
    pub fn of(cuts: &[Cut]) -> Self {
        let worst = |value: &dyn Fn(&Cut) -> Option<u64>| {
            let values: Option<Vec<u64>> = cuts.iter().map(value).collect();
            values?.into_iter().max()
        };
        let bad = |cut: &Cut| {
            let bad = cut.series.lost_operations + cut.series.corrupted_operations;
            cut.failure.is_none().then_some(bad)
        };
        Self {
            bad_operations: cuts.iter().map(bad).sum(),
            gap_ms: worst(&|cut| cut.gap_ms),
            back_ms: worst(&|cut| cut.back_ms),
        }
    }
}

/// Name and version of the document's shape.
pub const FORMAT: &str = "ethernot-failover/1";
/// Rates are taken over this long: 38 writes of one 1 Gb/s link.
pub const WINDOW_MS: u64 = 5;
/// For this long the rate must hold to count as back.
const STAYS_MS: u64 = 50;
/// Share of a rate that is enough.
const ENOUGH: f64 = 0.8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gap_and_return_are_found_in_a_series() {
        let rate = |ms: u64| match ms {
            100..120 => 0,
            120..330 => 100,
            _ => 200,
        };
        let series = Series { bytes_per_ms: (0..600).map(rate).collect(), ..Series::default() };
        let cut = Cut::judge("both", 100, 300, series);
        // Windows of 5 ms that hold less than 80: those from 100 to 117.
        assert_eq!(cut.gap_ms, Some(17));
        assert!(cut.back_ms.is_some_and(|back| (20..=30).contains(&back)), "{:?}", cut.back_ms);
    }

    #[test]
    fn what_never_comes_back_has_no_time() {
        let series = Series {
            bytes_per_ms: (0..600).map(|ms| if ms < 100 { 200 } else { 0 }).collect(),
            ..Series::default()
        };
        let cut = Cut::judge("both", 100, 300, series);
        assert_eq!((cut.gap_ms, cut.back_ms), (Some(195), None));
        assert_eq!(Worst::of(&[cut]).back_ms, None);
        assert_eq!(Worst::of(&[Cut::failed("x", "y".into())]).bad_operations, None);
    }
}
