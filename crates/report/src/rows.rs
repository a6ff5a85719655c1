//! Tables of texts, for a terminal and for a page.

use std::fmt::Write;

use comfy_table::{Cell, CellAlignment, ContentArrangement, LineStyle, Table, TableStyle};

use crate::page::escaped;

/// A column: its name and its alignment.
pub(crate) type Column = (&'static str, CellAlignment);

/// Returns a table for a terminal of `columns` columns.
pub(crate) fn terminal_table<const N: usize>(
    header: &[Column; N],
    rows: impl IntoIterator<Item = [String; N]>,
    columns: u16,
) -> Table {
    let cell = |text: &str, (_, alignment): Column| Cell::new(text).set_alignment(alignment);
    let mut table = Table::new();
    table.load_style(LINES).set_width(columns);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(header.map(|column| cell(column.0, column)));
    for row in rows {
        table.add_row(row.iter().zip(header).map(|(text, column)| cell(text, *column)));
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    table
}

/// Returns a table for a page. A row with text in its first column begins a new group of rows. A
/// line separates each group from the group above. On a narrow screen, a row becomes a list of its
/// cells with the names of their columns.
pub(crate) fn page_table<const N: usize>(
    header: &[Column; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let class = |(_, alignment): &Column| match alignment {
        CellAlignment::Left => " class=\"text\"",
        _ => "",
    };
    let mut html = String::from("<div class=\"wide\"><table class=\"stacked\"><thead><tr>");
    // Writing to a string cannot fail, here and below.
    for column in header {
        let _ = write!(html, "<th{}>{}</th>", class(column), escaped(column.0));
    }
    html.push_str("</tr></thead><tbody>\n");
    for row in rows {
        html.push_str(if row[0].is_empty() { "<tr>" } else { "<tr class=\"case\">" });
        for (text, column) in row.iter().zip(header) {
            let (class, name) = (class(column), escaped(column.0));
            let _ = write!(html, "<td{class} data-label=\"{name}\">{}</td>", escaped(text));
        }
        html.push_str("</tr>\n");
    }
    html.push_str("</tbody></table></div>\n");
    html
}

/// Lines above and below the table, and under the header.
const LINES: TableStyle = TableStyle::new()
    .top_border(LineStyle::none().fill('─').junction('─'))
    .header_separator(LineStyle::none().fill('─').junction('─'))
    .bottom_border(LineStyle::none().fill('─').junction('─'));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_escaped_on_a_page_and_aligned_by_column() {
        let header = [("name", CellAlignment::Left), ("ns", CellAlignment::Right)];
        let rows = [["<b>".to_string(), "1".to_string()], [String::new(), "20".to_string()]];
        let html = page_table(&header, rows.clone());
        let (name, ns) = ("<td class=\"text\" data-label=\"name\">", "<td data-label=\"ns\">");
        let first = format!("<tr class=\"case\">{name}&lt;b&gt;</td>{ns}1</td></tr>");
        assert!(html.contains(&first), "{html}");
        assert!(html.contains(&format!("<tr>{name}</td>{ns}20</td></tr>")), "{html}");
        let text = terminal_table(&header, rows, 80).to_string();
        assert!(text.contains("<b>    1") && text.contains("      20"), "{text}");
    }
}
