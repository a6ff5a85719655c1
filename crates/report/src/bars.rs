//! A bar chart as an HTML list. It is used for values of different machines, because a curve must
//! not connect such values.

use std::fmt::Write;

use crate::format::digits;
use crate::page::escaped;

/// One bar.
#[derive(Debug, Clone)]
pub(crate) struct Bar {
    /// The label beside the bar.
    pub(crate) label: String,
    /// The value, shown as the length of the bar.
    pub(crate) value: f64,
    /// Index of the bar's colour in the style sheet.
    pub(crate) colour: usize,
}

/// Returns a list of bars. The longest bar has the full width. Returns an empty text if there are
/// no bars.
pub(crate) fn draw(caption: &str, unit: &str, bars: &[Bar]) -> String {
    let longest = bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
    if longest <= 0.0 {
        return String::new();
    }
    let mut html =
        format!("<figure><figcaption>{}</figcaption><ul class=\"bars\">\n", escaped(caption));
    for bar in bars {
        let percent = bar.value.max(0.0) / longest * 100.0;
        // Writing to a string cannot fail.
        let _ = writeln!(
            html,
            "<li><span>{}</span><span><i style=\"width:{percent:.1}%;background:var(--series-{})\"></i></span>\
             <b>{} {}</b></li>",
            escaped(&bar.label),
            bar.colour,
            digits(bar.value),
            escaped(unit)
        );
    }
    html.push_str("</ul></figure>\n");
    html
}

/// Additional rules for the style sheet of all pages.
pub(crate) const STYLE: &str = "
.bars { margin: .5rem 0; padding: 0; list-style: none; }
.bars li { display: grid; grid-template-columns: 13rem 1fr 6rem; gap: .6rem; align-items: center; }
.bars i { display: block; height: .8rem; border-radius: 3px; }
.bars b { font-weight: 600; text-align: right; font-variant-numeric: tabular-nums; }
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_bar_fills_the_width() {
        let bar = |label: &str, value| Bar { label: label.to_string(), value, colour: 1 };
        let html = draw("<c>", "µs", &[bar("a&b", 5.0), bar("c", 20.0)]);
        assert!(html.contains("width:25.0%") && html.contains("width:100.0%"), "{html}");
        assert!(html.contains("a&amp;b") && html.contains("&lt;c&gt;"));
        assert_eq!(draw("none", "µs", &[bar("a", 0.0)]), "");
    }
}
