//! The results of a measured item (a figure or table), as a JSON document. The document also
//! contains the facts that a reader needs to interpret the results.

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

/// The results of a measured item.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Name and version of the format: [`FORMAT`].
    pub format: String,
    /// Key of the paper, as in [`crate::printed::Paper::key`].
    pub paper: String,
    /// Id of the item.
    pub item: String,
    /// Version of the program.
    pub version: String,
    /// Commit from which the program was built, or `unknown`.
    pub commit: String,
    /// Time of the measurement, in seconds since 1970-01-01 UTC.
    pub unix_seconds: u64,
    /// Duration of the command, in seconds.
    pub seconds: f64,
    /// The command line that measured the item.
    pub command: String,
    /// Whether the results come from a quick run.
    pub is_quick: bool,
    /// The machine on which the item was measured.
    pub machine: Machine,
    /// Load average of one minute when the measurement started.
    pub load: f64,
    /// The measured curves.
    pub series: Vec<Series>,
    /// Statements that the measuring command itself has checked.
    #[serde(default)]
    pub seen: Vec<Seen>,
    /// Further facts for readers of the results.
    #[serde(default)]
    pub notes: Vec<String>,
    /// The reason why this machine could not measure the item, with the remedy; `None` if the item
    /// was measured.
    #[serde(default)]
    pub cannot_run: Option<String>,
}

/// The machine on which an item was measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The host name.
    pub host: String,
    /// Name of the processor.
    pub cpu: String,
    /// Number of processors.
    pub cpus: u32,
    /// Release of the kernel.
    pub kernel: String,
}

/// A curve, or the cells of a row of a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name of the diagram that contains the curve.
    pub panel: String,
    /// Name of the curve in the legend.
    pub name: String,
    /// The name of the horizontal axis.
    pub x: String,
    /// Unit of the values.
    pub unit: String,
    /// The points, ordered by [`Point::at`].
    pub points: Vec<Point>,
}

/// A point of a curve.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Position on the horizontal axis.
    pub at: f64,
    /// The measured value.
    pub value: f64,
    /// The lowest sample, without the samples that the command dropped.
    pub min: f64,
    /// The highest sample, without the samples that the command dropped.
    pub max: f64,
    /// The samples; empty if the command does not report them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<f64>,
    /// The reason for a deviation; `None` if the command knows no reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A statement that the measuring command has checked.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Id of the statement among the printed values.
    pub id: String,
    /// Whether the statement holds.
    pub holds: bool,
    /// The figures from which the command concluded whether the statement holds.
    pub saw: String,
    /// The reason why the statement does not hold; `None` if it holds or no reason is known.
    pub reason: Option<String>,
}

/// Why a document cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DocumentError {
    /// The text is not a complete JSON document of this format.
    #[error("incomplete, or not a result of `ethernot paper` ({0}); measure the item again")]
    Malformed(String),
    /// The document has another format.
    #[error("unsupported format {0:?}: this version reads {FORMAT:?}; measure the item again")]
    Format(String),
    /// The document was edited after it was written.
    #[error(
        "wrong checksum {found:?} instead of {expected:?}: the file was edited; measure the item again"
    )]
    Edited {
        /// The checksum in the document.
        found: String,
        /// The checksum of the document's contents.
        expected: String,
    },
    /// The document names an item that does not exist.
    #[error("there is no item {0:?}; the command `ethernot paper` lists all")]
    Unknown(String),
}

impl Document {
    /// Creates a document without results.
    pub fn new(paper: &str, item: &str) -> Self {
        Self {
            format: FORMAT.to_owned(),
            paper: paper.to_owned(),
            item: item.to_owned(),
            version: String::new(),
            commit: String::new(),
            unix_seconds: 0,
            seconds: 0.0,
            command: String::new(),
            is_quick: false,
            machine: Machine::default(),
            load: 0.0,
            series: Vec::new(),
            seen: Vec::new(),
            notes: Vec::new(),
            cannot_run: None,
        }
    }

    /// Returns the name of the item, as `PAPER/ITEM`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.paper, self.item)
    }

    /// Returns the series with this name in a panel; `None` if there is none.
    pub fn series(&self, panel: &str, name: &str) -> Option<&Series> {
        self.series.iter().find(|series| series.panel == panel && series.name == name)
    }

    /// Returns the largest spread of any point, in percent. The spread is half of the distance
    /// between the lowest and the highest sample. Returns `None` without points.
    pub fn spread_percent(&self) -> Option<f64> {
        let points = self.series.iter().flat_map(|series| &series.points);
        let spreads = points.filter(|point| point.value > 0.0);
        spreads.map(|point| (point.max - point.min) / point.value * 50.0).reduce(f64::max)
    }

    /// Returns the text of the document's file. Its last field is a checksum.
    ///
    /// # Errors
    /// Returns [`serde_json::Error`] if the document cannot be written as JSON.
    pub fn to_text(&self) -> Result<String, serde_json::Error> {
        let text = serde_json::to_string_pretty(self)?;
        let start = text.strip_suffix(END).unwrap_or(&text);
        Ok(format!("{start}{MARK}{}\"{END}", checksum(start)))
    }

    /// Parses the text of a file. Only [`crate::reading::read`] also checks whether the item
    /// exists.
    ///
    /// # Errors
    /// Returns [`DocumentError`]; each variant names one cause.
    pub fn parse(text: &str) -> Result<Self, DocumentError> {
        // The error text can quote control characters of the document.
        let malformed = |error: serde_json::Error| {
            DocumentError::Malformed(error.to_string().replace(char::is_control, "\u{fffd}"))
        };
        let json: Json = serde_json::from_str(text).map_err(malformed)?;
        let format = json.get("format").and_then(Json::as_str).unwrap_or("none");
        if format != FORMAT {
            return Err(DocumentError::Format(format.to_owned()));
        }
        // The checksum is computed from the text of the file. Parsing and formatting again could
        // change the last digit of a number, and then the checksum would differ.
        let (start, rest) = text.rsplit_once(MARK).unwrap_or((text, "none"));
        let found = rest.trim_end_matches(['\n', '}', '"']).to_owned();
        let expected = checksum(start);
        if found != expected {
            return Err(DocumentError::Edited { found, expected });
        }
        let mut json = serde_json::from_str(&format!("{start}{END}")).map_err(malformed)?;
        replace_control(&mut json);
        serde_json::from_value(json).map_err(malformed)
    }
}

/// Replaces control characters in all texts. A document can come from another machine, and a
/// terminal would execute escape sequences in it.
fn replace_control(json: &mut Json) {
    match json {
        Json::String(text) if text.contains(char::is_control) => {
            *text = text.replace(char::is_control, "\u{fffd}");
        }
        Json::Array(items) => items.iter_mut().for_each(replace_control),
        Json::Object(fields) => fields.values_mut().for_each(replace_control),
        _ => {}
    }
}

/// Returns the FNV-1a hash of the part of a document before its checksum. The hash detects
/// accidental changes, but not attacks.
fn checksum(text: &str) -> String {
    let fold = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(FNV_PRIME);
    format!("{:016x}", text.bytes().fold(FNV_START, fold))
}

/// Name and version of the document format.
pub const FORMAT: &str = "ethernot-paper/1";

/// The end of a document's text.
const END: &str = "\n}";

/// The text that precedes the checksum.
const MARK: &str = ",\n  \"checksum\": \"";
const FNV_START: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;

#[cfg(test)]
mod tests {
    use super::*;

    fn text() -> String {
        Document::new("sandia1999", "table1").to_text().unwrap()
    }

    #[test]
    fn foreign_escape_sequences_do_not_reach_the_terminal() {
        let mut document = Document::new("sandia1999", "table1");
        document.machine.host = "a\u{1b}[2Jb".to_owned();
        document.cannot_run = Some("no\u{9b}31m\n".to_owned());
        document.notes.push("\u{7}".to_owned());
        let read = Document::parse(&document.to_text().unwrap()).unwrap();
        assert_eq!(read.machine.host, "a\u{fffd}[2Jb");
        assert_eq!(read.cannot_run.as_deref(), Some("no\u{fffd}31m\u{fffd}"));
        assert_eq!(read.notes, ["\u{fffd}"]);
    }

    #[test]
    fn a_written_document_is_read_back() {
        let mut document = Document::new("sandia1999", "table1");
        // This number tests the precision of the parser. A fast, inexact parser would read its
        // shortest text as a neighbouring number.
        document.load = 55.678_858_723_958_335;
        document.seconds = 0.1 + 0.2;
        let read = Document::parse(&document.to_text().unwrap()).unwrap();
        assert!((read.load - document.load).abs() < 1e-12);
        assert_eq!(read.seconds.to_bits(), document.seconds.to_bits());
    }

    #[test]
    fn documents_of_other_versions_and_truncated_or_edited_ones_are_refused() {
        let other = text().replace(FORMAT, "ethernot-paper/9");
        assert!(matches!(Document::parse(&other), Err(DocumentError::Format(_))));
        let whole = text();
        let cut = &whole[..whole.len() / 2];
        assert!(matches!(Document::parse(cut), Err(DocumentError::Malformed(_))));
        let edited = text().replace("\"load\": 0.0", "\"load\": 1.0");
        assert!(matches!(Document::parse(&edited), Err(DocumentError::Edited { .. })));
    }
}
