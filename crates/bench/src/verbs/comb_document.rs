//! The document that `comb --json` and `comb-mpi --json` print.

use serde::Deserialize;

use super::document::{DocumentError, first_document};

/// The results of one run of a program.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct CombDocument {
    pub(super) version: u32,
    pub(super) work: CombWork,
    pub(super) device: CombDevice,
    /// The points in the order of the command line: for each size, all intervals.
    pub(super) points: Vec<CombPoint>,
}

/// The quality of the fit: how closely the time of the work is proportional to its iterations.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(super) struct CombWork {
    /// The largest relative error of the fit, as a fraction.
    pub(super) fit_error: f64,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct CombDevice {
    pub(super) name: String,
}

/// The runs at one size and interval.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct CombPoint {
    pub(super) size: u64,
    pub(super) iterations: u64,
    /// Time of the work alone, in microseconds.
    pub(super) interval_us: f64,
    pub(super) runs: Vec<CombRun>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
pub(super) struct CombRun {
    pub(super) availability: f64,
    pub(super) seconds: f64,
    /// Payload bytes of both directions together.
    pub(super) bytes: u64,
    /// Difference between the times of the work alone before and after the point, relative to the
    /// shorter of these times.
    pub(super) alone_variation: f64,
    /// Number of attempts until `alone_variation` was small enough.
    pub(super) attempts: u32,
    /// Times to post, to work and to wait in a round of the method post-work-wait, in microseconds;
    /// 0 in the method polling.
    pub(super) post_us: f64,
    pub(super) work_us: f64,
    pub(super) wait_us: f64,
    /// CPU seconds that the program's CPU spent in softirq; `None` if the program was not
    /// restricted to one CPU.
    pub(super) cpu_softirq_s: Option<f64>,
    pub(super) interrupts_elsewhere_s: Option<f64>,
    /// Fraction of the time in which the program's CPU was not idle.
    pub(super) accounted: Option<f64>,
}

impl CombDocument {
    /// Parses a document. Checks that every point has a run with a positive duration.
    pub(super) fn parse(text: &str) -> Result<Self, DocumentError> {
        let document: Self = first_document(text)?;
        if document.version != VERSION {
            return Err(DocumentError::Version(document.version));
        }
        let is_whole = |point: &&CombPoint| point.runs.first().is_some_and(|run| run.seconds > 0.0);
        match document.points.iter().find(|point| !is_whole(point)) {
            Some(point) => Err(DocumentError::Empty { size: point.size }),
            None => Ok(document),
        }
    }

    /// Returns the bytes of all runs, in both directions together.
    pub(super) fn bytes(&self) -> u64 {
        self.points.iter().flat_map(|point| &point.runs).map(|run| run.bytes).sum()
    }
}

/// Version of the document.
const VERSION: u32 = 1;

#[cfg(test)]
mod tests {
    use super::*;

    fn text(version: u32, seconds: f64) -> String {
        format!(
            "{{\n \"program\": \"comb\", \"version\": {version}, \"device\": {{ \"name\": \"edge0\" }}, \"work\": {{ \"fit_error\": 0.01 }},
            \"points\": [{{ \"size\": 8, \"iterations\": 100, \"interval_us\": 0.1, \"runs\": [{{ \"availability\": 0.5, \"seconds\": {seconds},
            \"bytes\": 16, \"alone_variation\": 0.02, \"attempts\": 1, \"post_us\": 0, \"work_us\": 0, \"wait_us\": 0 }}] }}]\n}}\n"
        )
    }

    #[test]
    fn a_run_that_took_no_time_is_refused() {
        let document = CombDocument::parse(&text(1, 0.1)).unwrap();
        assert_eq!(document.points[0].runs[0].accounted, None);
        let error = CombDocument::parse(&text(1, 0.0)).unwrap_err().to_string();
        assert!(error.contains("a run with messages of 8 bytes"), "{error}");
        let error = CombDocument::parse(&text(2, 0.1)).unwrap_err().to_string();
        assert!(error.contains("has version 2"), "{error}");
    }
}
