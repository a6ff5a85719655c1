//! Finds import cycles: files of a crate that import each other.

use std::path::Path;

use super::citations::is_test_file;
use super::without_tests::code_without_tests;
use super::{Violation, files_below, read};
use crate::error::XtaskError;
use crate::workspace::Workspace;

/// Checks that the files of a crate have no import cycle. If a crate had a cycle when this rule was
/// introduced, the cycle must not grow.
pub(super) fn check_circles(workspace: &Workspace) -> Result<Vec<Violation>, XtaskError> {
    let mut violations = Vec::new();
    for (package, files) in sources(workspace)? {
        let known = KNOWN.iter().find(|(name, _)| *name == package);
        violations.extend(check(package, &borrowed(&files), known.map_or(1, |(_, files)| *files)));
    }
    Ok(violations)
}

/// Returns the size in files of the largest cycle of each crate that has one.
pub(crate) fn of_all(workspace: &Workspace) -> Result<Vec<(String, usize)>, XtaskError> {
    let of_package = |(package, files): &(&str, Vec<Source>)| {
        let size = largest(&borrowed(files)).len();
        (size > 1).then(|| ((*package).to_owned(), size))
    };
    Ok(sources(workspace)?.iter().filter_map(of_package).collect())
}

/// A file: its path below `src`, and its text.
type Source = (String, String);

/// Returns the source files of each crate, without test files. A file is its path below `src` and
/// its text.
fn sources(workspace: &Workspace) -> Result<Vec<(&str, Vec<Source>)>, XtaskError> {
    let mut packages = Vec::new();
    for package in &workspace.packages {
        let Some(folder) = package.targets.iter().find_map(|target| source_folder(&target.source))
        else {
            continue;
        };
        let mut files = Vec::new();
        for path in files_below(folder, &workspace.target_dir)? {
            let place = path.strip_prefix(folder).unwrap_or(&path).display().to_string();
            let is_rust = path.extension().is_some_and(|extension| extension == "rs");
            let is_code = is_rust && !is_test_file(&format!("/{place}"));
            if is_code {
                files.push((place, read(&path)?));
            }
        }
        packages.push((package.name.as_str(), files));
    }
    Ok(packages)
}

fn borrowed(files: &[Source]) -> Vec<(&str, &str)> {
    files.iter().map(|(place, text)| (place.as_str(), text.as_str())).collect()
}

/// Returns the folder `src` of a target.
fn source_folder(source: &Path) -> Option<&Path> {
    source.parent().filter(|folder| folder.ends_with("src"))
}

fn check(package: &str, files: &[(&str, &str)], most: usize) -> Option<Violation> {
    let circle = largest(files);
    let what = match circle.len() {
        found if found > most => format!(
            "{found} files import each other in a circle ({}), {most} at most may; move what both \
             need below them",
            circle.join(", ")
        ),
        found if found < most => format!(
            "has no circle of {most} files any more, {found} at most; say so in KNOWN of \
             xtask/src/tidy/circles.rs"
        ),
        _ => return None,
    };
    Some(Violation { place: package.to_owned(), what })
}

/// Crates with an import cycle, and the largest permitted number of files in it.
const KNOWN: &[(&str, usize)] = &[
    ("bench", 14),
    ("delivery", 18),
    ("ethernot", 7),
    ("ethernot-cli", 3),
    ("fabric", 16),
    ("interconnect", 36),
    ("libibverbs-abi", 13),
    ("link", 35),
    ("mem", 14),
    ("programs", 3),
    ("rdma-cm", 2),
    ("report", 4),
    ("runtime", 15),
    ("semantics", 16),
    ("verbs", 20),
    ("verbs-edge", 3),
    ("wire-edge", 14),
    ("xtask", 22),
];

/// Returns the largest set of files in which every file imports every other file, directly or
/// through other files. A file is given by its path below `src` and its text. Any path in the text
/// that begins with `crate`, `super`, `self` or the name of a child module counts as an import. A
/// file that is in no cycle is a set of one file.
pub(crate) fn largest<'a>(files: &[(&'a str, &str)]) -> Vec<&'a str> {
    let modules: Vec<Vec<&str>> = files.iter().map(|(place, _)| module(place)).collect();
    let mut reaches: Vec<Vec<bool>> = files
        .iter()
        .zip(&modules)
        .map(|((_, text), own)| {
            let imported = imports(text, own, &modules);
            modules.iter().map(|module| imported.contains(&module)).collect()
        })
        .collect();
    // Every file that reaches `middle` also reaches all files that `middle` reaches.
    for middle in 0..files.len() {
        let beyond = reaches[middle].clone();
        for row in reaches.iter_mut().filter(|row| row[middle]) {
            row.iter_mut().zip(&beyond).for_each(|(there, beyond)| *there |= beyond);
        }
    }
    let circle = |from: usize| -> Vec<&'a str> {
        let is_in = |to: usize| to == from || reaches[from][to] && reaches[to][from];
        (0..files.len()).filter(|&to| is_in(to)).map(|to| files[to].0).collect()
    };
    let mut found = (0..files.len()).map(circle).max_by_key(Vec::len).unwrap_or_default();
    found.sort_unstable();
    found
}

/// Returns the module path of a file: `send_half/rest.rs` is `send_half::rest`; the root is empty.
fn module(place: &str) -> Vec<&str> {
    let path = place.strip_suffix(".rs").unwrap_or(place);
    let path = path.strip_suffix("/mod").unwrap_or(path);
    if path == "lib" { Vec::new() } else { path.split('/').collect() }
}

/// Returns the modules that paths in `text` name; `text` is the content of the module `own`.
fn imports<'a>(text: &str, own: &[&str], modules: &'a [Vec<&'a str>]) -> Vec<&'a Vec<&'a str>> {
    let is_below =
        |name: &str| modules.iter().any(|module| module.split_last() == Some((&name, own)));
    let code = code_without_tests(text);
    let mut paths = Vec::new();
    let mut rest = code.as_str();
    let mut previous = ' ';
    while let Some(first) = rest.chars().next() {
        let length = word_len(rest);
        let word = rest.get(..length).unwrap_or_default();
        let is_start = !matches!(previous, ':' | '$')
            && rest.get(length..).is_some_and(|after| after.starts_with("::"))
            && (["crate", "super", "self"].contains(&word) || is_below(word));
        rest = if is_start {
            tree(rest, &mut Vec::new(), &mut paths)
        } else {
            rest.get(length.max(first.len_utf8())..).unwrap_or_default()
        };
        previous = if length == 0 { first } else { ' ' };
    }
    paths.iter().filter_map(|path| resolve(path, own, modules)).collect()
}

/// Expands a path with groups, such as `crate::{a::A, b}`, and adds all resulting paths to `found`.
/// Returns the text after the path.
fn tree<'a>(text: &'a str, path: &mut Vec<&'a str>, found: &mut Vec<Vec<&'a str>>) -> &'a str {
    let depth = path.len();
    let mut rest = text;
    loop {
        if let Some(group) = rest.strip_prefix('{') {
            rest = group.trim_start();
            while !rest.is_empty() && !rest.starts_with('}') {
                rest = tree(rest, path, found);
                // Skips `as name` and `*`.
                rest = rest.trim_start_matches(|c| c != ',' && c != '}');
                rest = rest.trim_start_matches(|c: char| c == ',' || c.is_whitespace());
            }
            rest = rest.strip_prefix('}').unwrap_or(rest);
            break;
        }
        let (word, after) = rest.split_at(word_len(rest));
        path.push(word);
        rest = after;
        let Some(after) = rest.strip_prefix("::") else {
            found.push(path.clone());
            break;
        };
        rest = after.trim_start();
    }
    path.truncate(depth);
    rest
}

fn word_len(text: &str) -> usize {
    text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len())
}

/// Returns the module with the longest name that is a prefix of a path.
fn resolve<'a>(
    path: &[&str],
    own: &[&str],
    modules: &'a [Vec<&'a str>],
) -> Option<&'a Vec<&'a str>> {
    let mut at: Vec<&str> = if path.first() == Some(&"crate") { Vec::new() } else { own.to_vec() };
    for word in path {
        match *word {
            "crate" | "self" => {}
            "super" => drop(at.pop()),
            word => at.push(word),
        }
    }
    (0..=at.len()).rev().find_map(|length| {
        modules.iter().find(|module| Some(module.as_slice()) == at.get(..length))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_import_each_other_form_a_cycle() {
        let files = [
            ("lib.rs", "mod a;\nmod b;\nmod c;\nmod d;\npub use a::A;\n"),
            ("a.rs", "use crate::b::B;\n"),
            ("b.rs", "use std::fmt;\nuse crate::{\n    c::{self, C},\n    d::D as E,\n};\n"),
            ("c.rs", "fn f() { crate::a::f::<u8>() }\n"),
            ("d.rs", "// use crate::a::A;\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}\n"),
        ];
        assert_eq!(largest(&files), ["a.rs", "b.rs", "c.rs"]);
    }

    #[test]
    fn a_cycle_that_grows_or_shrinks_is_reported_with_its_files() {
        let files = [("a.rs", "use crate::b::B;\n"), ("b.rs", "use crate::a::A;\n")];
        let grown = check("c", &files, 1).expect("two files are too many");
        assert!(grown.what.contains("(a.rs, b.rs)"), "{grown}");
        assert!(check("c", &files, 2).is_none());
        assert!(check("c", &files, 3).is_some_and(|shrunk| shrunk.what.contains("KNOWN")));
    }

    #[test]
    fn without_a_cycle_each_file_is_alone() {
        let files = [("a.rs", "use crate::b::B;\nuse crate::a::X;\n"), ("b.rs", "")];
        assert_eq!(largest(&files).len(), 1);
        assert!(largest(&[]).is_empty());
    }

    #[test]
    fn folders_are_modules_and_importing_from_above_counts() {
        let files = [
            ("a.rs", "mod below;\nuse below::Below;\n"),
            ("a/below.rs", "use super::A;\n"),
            ("c/mod.rs", "use crate::a::below::Below;\n"),
        ];
        assert_eq!(largest(&files), ["a.rs", "a/below.rs"]);
    }

    #[test]
    fn a_name_of_the_root_is_an_import_of_the_root() {
        let files = [("lib.rs", "pub use a::A;\n"), ("a.rs", "use crate::Other;\n")];
        assert_eq!(largest(&files), ["a.rs", "lib.rs"]);
        let macros = [("lib.rs", "pub use a::A;\n"), ("a.rs", "$crate::x!();\nother::a::b();\n")];
        assert_eq!(largest(&macros).len(), 1);
    }
}
