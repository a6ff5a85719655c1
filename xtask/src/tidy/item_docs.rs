//! Checks the documentation of public functions. It must begin with a verb in the third person. If
//! the function returns a `Result`, the documentation must have a section on errors.

use syn::{Attribute, Expr, File, ImplItem, Item, Lit, Meta, ReturnType, Signature};
use syn::{TraitItem, Type, Visibility};

use super::citations::is_test_file;
use super::{Violation, files_below, place, read};
use crate::error::XtaskError;
use crate::workspace::{Package, Workspace};

/// Words that end like a verb in the third person but must not begin the documentation. The list
/// contains "has", because documentation should say "wakes a task" instead of "has a task woken".
const NO_VERBS: &[&str] = &[
    "Acknowledgements",
    "Addresses",
    "Always",
    "Arguments",
    "Bytes",
    "Cells",
    "Challenges",
    "Classes",
    "Completions",
    "Connections",
    "Cookies",
    "Counters",
    "Datagrams",
    "Defaults",
    "Differences",
    "Events",
    "Flits",
    "Fluids",
    "Frames",
    "Has",
    "Hops",
    "Hosts",
    "Identifiers",
    "Ids",
    "Is",
    "Its",
    "Keys",
    "Lengths",
    "Links",
    "Messages",
    "Microseconds",
    "Milliseconds",
    "Nanoseconds",
    "Numbers",
    "Operations",
    "Packets",
    "Peers",
    "Picoseconds",
    "Pieces",
    "Pools",
    "Ports",
    "Ranks",
    "Rates",
    "Regions",
    "Routers",
    "Routes",
    "Seconds",
    "Speeds",
    "Switches",
    "Tasks",
    "This",
    "Threads",
    "Values",
    "Vectors",
    "Words",
    "Works",
];

/// Faults in the documentation of a crate's functions, one line each.
#[derive(Default)]
struct Found {
    /// Functions whose documentation does not begin with a verb.
    without_verb: Vec<String>,
    /// Functions that return a `Result` and do not describe its errors.
    without_errors: Vec<String>,
    /// Number of all public functions.
    functions: usize,
}

/// Checks all crates. Returns violations, and a summary.
pub(super) fn check_item_docs(
    workspace: &Workspace,
) -> Result<(Vec<Violation>, String), XtaskError> {
    let mut violations = Vec::new();
    let (mut functions, mut without_verb, mut without_errors) = (0, 0, 0);
    for (package, found) in found(workspace)? {
        let what = "functions whose documentation does not begin with a verb in the third person \
                    (\"Returns …\", \"Whether …\")";
        violations.extend(violation(package, &found.without_verb, what));
        let what = "functions that return a `Result` have no section `# Errors`";
        violations.extend(violation(package, &found.without_errors, what));
        functions += found.functions;
        without_verb += found.without_verb.len();
        without_errors += found.without_errors.len();
    }
    let summary = format!(
        "documentation of {functions} public functions: {without_verb} without a verb first, \
         {without_errors} without errors"
    );
    Ok((violations, summary))
}

/// Returns the number of faults in the documentation of all crates.
pub(crate) fn count(workspace: &Workspace) -> Result<usize, XtaskError> {
    let found = found(workspace)?;
    Ok(found.iter().map(|(_, found)| found.without_verb.len() + found.without_errors.len()).sum())
}

/// Returns the faults of each crate.
fn found(workspace: &Workspace) -> Result<Vec<(&str, Found)>, XtaskError> {
    let of_package = |package: &Package| {
        let mut found = Found::default();
        let sources = package.folder.join("src");
        for path in files_below(&sources, &workspace.target_dir)? {
            let is_rust = path.extension().is_some_and(|extension| extension == "rs");
            let place = place(&workspace.root, &path);
            // The guides include this file as a program, and it is not a public module of the
            // crate.
            if !is_rust || is_test_file(&place) || place.ends_with("src/guide/pair.rs") {
                continue;
            }
            let file = syn::parse_file(&read(&path)?).map_err(|error| XtaskError::Names {
                path: path.clone(),
                what: format!("which does not parse: {error}"),
            })?;
            found.take_file(&place, &file);
        }
        Ok(found)
    };
    let packages = workspace.packages.iter();
    packages.map(|package| Ok((package.name.as_str(), of_package(package)?))).collect()
}

fn violation(package: &str, found: &[String], what: &str) -> Option<Violation> {
    let listed = || format!("{} {what}: {}", found.len(), found.join(", "));
    (!found.is_empty()).then(|| Violation { place: package.to_owned(), what: listed() })
}

impl Found {
    fn take_file(&mut self, place: &str, file: &File) {
        self.take_items(place, &file.items);
    }

    fn take_items(&mut self, place: &str, items: &[Item]) {
        for item in items {
            match item {
                Item::Mod(module) if !is_for_tests(&module.attrs) => {
                    let inner = module.content.iter().flat_map(|(_, items)| items);
                    inner.for_each(|item| self.take_items(place, std::slice::from_ref(item)));
                }
                Item::Fn(function) if !is_for_tests(&function.attrs) => {
                    self.take(place, &function.vis, &function.attrs, &function.sig);
                }
                Item::Impl(block) if block.trait_.is_none() && !is_for_tests(&block.attrs) => {
                    for item in &block.items {
                        if let ImplItem::Fn(method) = item
                            && !is_for_tests(&method.attrs)
                        {
                            self.take(place, &method.vis, &method.attrs, &method.sig);
                        }
                    }
                }
                Item::Trait(definition) => {
                    for item in &definition.items {
                        if let TraitItem::Fn(method) = item {
                            self.take(place, &definition.vis, &method.attrs, &method.sig);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    fn take(
        &mut self,
        place: &str,
        visibility: &Visibility,
        attributes: &[Attribute],
        signature: &Signature,
    ) {
        if !matches!(visibility, Visibility::Public(_)) {
            return;
        }
        self.functions += 1;
        let docs = docs(attributes);
        let name = || format!("`{}` in {place}", signature.ident);
        if !begins_with_verb(&docs) {
            self.without_verb.push(name());
        }
        if returns_result(&signature.output) && !docs.lines().any(|line| line.trim() == "# Errors")
        {
            self.without_errors.push(name());
        }
    }
}

/// Returns whether the first word is `Whether`, or has the form of a verb in the third person and
/// is not in [`NO_VERBS`].
fn begins_with_verb(docs: &str) -> bool {
    let word = docs.split_whitespace().next().unwrap_or_default().trim_end_matches([',', ':', ';']);
    let is_word = word.starts_with(|first: char| first.is_ascii_uppercase())
        && word.chars().skip(1).all(|c| c.is_ascii_lowercase());
    let ends_as_verb = word.ends_with('s') && !word.ends_with("ss");
    word == "Whether" || is_word && ends_as_verb && !NO_VERBS.contains(&word)
}

/// Returns whether a function returns a `Result`, or a future or `Poll` of a `Result`.
fn returns_result(output: &ReturnType) -> bool {
    let ReturnType::Type(_, kind) = output else { return false };
    is_result(kind)
}

fn is_result(kind: &Type) -> bool {
    let text = quote::quote!(#kind).to_string().replace(' ', "");
    let after = text.strip_prefix("implFuture<Output=").unwrap_or(&text);
    let after = after.strip_prefix("Poll<").unwrap_or(after);
    // A `Result` without type arguments is a status code of the C interface, not Rust's `Result`.
    after.split_once('<').is_some_and(|(name, _)| name == "Result" || name.ends_with("::Result"))
}

fn docs(attributes: &[Attribute]) -> String {
    let mut text = String::new();
    for attribute in attributes {
        if let Meta::NameValue(pair) = &attribute.meta
            && pair.path.is_ident("doc")
            && let Expr::Lit(literal) = &pair.value
            && let Lit::Str(line) = &literal.lit
        {
            text.push_str(&line.value());
            text.push('\n');
        }
    }
    text
}

fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && matches!(&attribute.meta, Meta::List(list) if list.tokens.to_string() == "test")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(code: &str) -> Found {
        let mut found = Found::default();
        found.take_file("a.rs", &syn::parse_file(code).unwrap());
        found
    }

    #[test]
    fn docs_must_begin_with_a_third_person_verb() {
        for docs in ["Returns it.", "Whether it is.", "Parses, then sorts."] {
            assert!(begins_with_verb(docs), "{docs}");
        }
        for docs in ["", "Return it.", "The length.", "Bytes.", "Address of it.", "`a` as b."] {
            assert!(!begins_with_verb(docs), "{docs}");
        }
    }

    #[test]
    fn public_functions_of_files_modules_types_and_traits_are_checked() {
        let found = of("pub fn a() {} fn b() {} pub(crate) fn c() {}\n\
             mod d { impl E { pub fn e(&self) {} } impl F for E { fn f() {} } }\n\
             pub trait G { fn g(); } trait H { fn h(); }\n\
             #[cfg(test)] mod tests { pub fn i() {} }\n\
             /// Makes it.\npub fn j() {}");
        assert_eq!(found.functions, 4);
        assert_eq!(found.without_verb, ["`a` in a.rs", "`e` in a.rs", "`g` in a.rs"]);
    }

    #[test]
    fn functions_that_return_results_must_document_errors() {
        let found = of("/// Reads.\npub fn a() -> io::Result<u8> {}\n\
             /// Reads.\n///\n/// # Errors\n/// Some.\npub fn b() -> Result<(), E> {}\n\
             /// Reads.\npub fn c() -> impl Future<Output = Result<(), E>> + Send {}\n\
             /// Reads.\npub fn d() -> Poll<Result<(), E>> {}\n\
             /// Reads.\npub fn e() -> Option<Result<(), E>> {}\n");
        assert_eq!(found.without_errors, ["`a` in a.rs", "`c` in a.rs", "`d` in a.rs"]);
    }

    #[test]
    fn each_fault_is_refused() {
        let found = ["x".to_owned()];
        assert!(violation("a", &found, "f").is_some());
        assert!(violation("a", &[], "f").is_none());
    }
}
