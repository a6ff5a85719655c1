//! Checks that relative links in Markdown files lead to existing files.

use std::path::Path;

use super::Violation;

/// Checks that every relative link of the file resolves inside the repository.
pub(super) fn check_links(root: &Path, file: &Path, text: &str) -> Vec<Violation> {
    let folder = file.parent().unwrap_or(root);
    let place = super::place(root, file);
    let mut violations = Vec::new();
    for (line, target) in relative_links(text) {
        let path = match target.strip_prefix('/') {
            Some(from_root) => root.join(from_root),
            None => folder.join(target),
        };
        if !path.exists() {
            violations.push(Violation {
                place: format!("{place}:{line}"),
                what: format!("the link to `{target}` leads nowhere"),
            });
        }
    }
    violations
}

/// Returns the targets of relative links with their line numbers, without fragments. Skips code.
fn relative_links(text: &str) -> Vec<(usize, &str)> {
    let mut links = Vec::new();
    let mut in_fence = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
            continue;
        }
        if in_fence {
            continue;
        }
        // Backticks split the line into parts that are alternately prose and code; takes the prose.
        for prose in line.split('`').step_by(2) {
            links.extend(targets(prose).map(|target| (index + 1, target)));
        }
        // The target of `[`name`](target)` is after the code, so it is in a part that is prose.
    }
    links
}

fn targets(prose: &str) -> impl Iterator<Item = &str> {
    prose.split("](").skip(1).filter_map(|after| {
        let target = after.split([')', ' ']).next()?;
        let path = target.split('#').next()?;
        let is_elsewhere = path.contains("://") || path.starts_with("mailto:");
        (!path.is_empty() && !is_elsewhere).then_some(path)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_relative_links_are_found() {
        let text = "[a](b.md) and [c](https://example.org/d) and [e](#f)\n\
                    [`g`](h/i.md#j \"title\")\n\
                    `[k](l.md)`\n```\n[m](n.md)\n```\n![o](p.svg)\n";
        assert_eq!(relative_links(text), [(1, "b.md"), (2, "h/i.md"), (7, "p.svg")]);
    }
}
