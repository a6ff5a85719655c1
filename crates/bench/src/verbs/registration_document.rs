//! The document that `memory-registration --json` prints.

use serde::Deserialize;

use super::document::{DocumentError, first_document};

/// The results of one run of the program.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct RegistrationDocument {
    pub(super) version: u32,
    pub(super) device: RegistrationDevice,
    pub(super) points: Vec<RegistrationRun>,
}

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct RegistrationDevice {
    pub(super) name: String,
}

/// The results for a kind of memory, a number of regions alive, a number of threads and a size.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub(super) struct RegistrationRun {
    pub(super) size: u64,
    pub(super) memory: String,
    pub(super) alive: u64,
    pub(super) threads: u64,
    pub(super) samples: u64,
    pub(super) register: Quantity,
    pub(super) deregister: Quantity,
    pub(super) register_and_deregister: Quantity,
    pub(super) r#move: Quantity,
    pub(super) register_and_move: Quantity,
    pub(super) deregister_after_move: Quantity,
    pub(super) sum_to_move: SumToMove,
}

/// The statistics of a timed quantity, over all samples of a run.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[expect(
    clippy::struct_field_names,
    reason = "the names are those of the document, with their unit"
)]
pub(super) struct Quantity {
    pub(super) mean_us: f64,
    pub(super) deviation_us: f64,
    pub(super) median_us: f64,
    pub(super) p99_us: f64,
}

/// Statistics of the time to register and move memory, divided by the time to move it.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
pub(super) struct SumToMove {
    pub(super) median: f64,
}

impl RegistrationDocument {
    /// Parses a document. Checks that every point has samples.
    pub(super) fn parse(text: &str) -> Result<Self, DocumentError> {
        let document: Self = first_document(text)?;
        if document.version != VERSION {
            return Err(DocumentError::Version(document.version));
        }
        match document.points.iter().find(|point| point.samples == 0) {
            Some(point) => Err(DocumentError::Empty { size: point.size }),
            None => Ok(document),
        }
    }
}

/// Version of the document.
const VERSION: u32 = 1;
