//! Reads documents, and checks that their items exist.

use crate::document::{Document, DocumentError};
use crate::printed;

/// Parses the text of a document. The document must be about an item of one of the papers.
///
/// # Errors
/// Returns [`DocumentError`]; each variant names one cause.
pub fn read(text: &str) -> Result<Document, DocumentError> {
    let document = Document::parse(text)?;
    let item = printed::paper(&document.paper).and_then(|paper| paper.item(&document.item));
    item.map(|_| ()).ok_or_else(|| DocumentError::Unknown(document.name()))?;
    Ok(document)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_of_unknown_items_are_refused() {
        let known = Document::new("sandia1999", "table1").to_text().unwrap();
        assert!(read(&known).is_ok());
        let foreign = Document::new("sandia1999", "table9").to_text().unwrap();
        assert_eq!(read(&foreign), Err(DocumentError::Unknown("sandia1999/table9".to_owned())));
    }
}
