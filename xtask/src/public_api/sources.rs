//! Items that the crates of this workspace define and export, found in their source text.

use std::collections::BTreeMap;
use std::path::Path;

use syn::{Attribute, Item, ItemImpl, UseTree, Visibility};

use crate::error::XtaskError;
use crate::tidy::{files_below, read};
use crate::workspace::Workspace;

/// The parsed crates, by the names that code uses.
pub(super) struct Sources {
    crates: BTreeMap<String, Crate>,
}

/// The items of a crate, from all modules, without tests.
#[derive(Default)]
pub(super) struct Crate {
    items: Vec<Item>,
    impls: Vec<ItemImpl>,
    exports: Vec<Export>,
    /// The documentation at the root of the crate.
    pub(super) docs: String,
}

/// A name exported at the root of a crate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Export {
    pub(super) name: String,
    /// The item's name where it is defined.
    original: String,
    /// The crate that defines the item, if that is another crate.
    from: Option<String>,
}

/// An item, with the crate that defines it.
pub(super) struct Definition<'a> {
    pub(super) item: &'a Item,
    pub(super) home: &'a Crate,
}

impl Sources {
    /// Parses the libraries of these packages.
    pub(super) fn load(workspace: &Workspace, packages: &[&str]) -> Result<Self, XtaskError> {
        let mut crates = BTreeMap::new();
        for package in &workspace.packages {
            if packages.contains(&package.name.as_str()) {
                let parsed = Crate::load(&package.folder.join("src"), workspace)?;
                crates.insert(package.name.replace('-', "_"), parsed);
            }
        }
        Ok(Self { crates })
    }

    /// Returns a crate that was loaded.
    pub(super) fn crate_of(&self, name: &str) -> Option<&Crate> {
        self.crates.get(name)
    }

    /// Returns all crates, by name.
    pub(super) fn crates(&self) -> impl Iterator<Item = (&str, &Crate)> {
        self.crates.iter().map(|(name, parsed)| (name.as_str(), parsed))
    }

    /// Returns the definition of an export; `None` if it is in a crate that was not loaded.
    pub(super) fn resolve(&self, home: &str, export: &Export) -> Option<Definition<'_>> {
        let origin = export.from.as_deref().unwrap_or(home);
        let found = self.crates.get(origin)?;
        if let Some(item) = found.item(&export.original) {
            return Some(Definition { item, home: found });
        }
        // The crate exports the name, but does not define it. If no other crate defines it either,
        // it names an item of another kind, such as a macro.
        let passed_on = found
            .exports
            .iter()
            .find(|other| other.name == export.original && other.from.is_some())?;
        self.resolve(origin, passed_on)
    }
}

impl Crate {
    fn load(folder: &Path, workspace: &Workspace) -> Result<Self, XtaskError> {
        let mut parsed = Self::default();
        for file in files_below(folder, &workspace.target_dir)? {
            let is_code = file.extension().is_some_and(|extension| extension == "rs");
            let is_tests = file.components().any(|part| {
                matches!(part.as_os_str().to_str(), Some("tests" | "tests.rs" | "model.rs"))
            });
            // Skips files that only the documentation includes, because they are not modules.
            if !is_code || is_tests || file.ends_with("guide/pair.rs") {
                continue;
            }
            let text = read(&file)?;
            let what = |error: syn::Error| format!("which does not parse: {error}");
            let syntax = syn::parse_file(&text)
                .map_err(|error| XtaskError::Names { path: file.clone(), what: what(error) })?;
            if file.ends_with("src/lib.rs") {
                parsed.docs = docs(&syntax.attrs);
                parsed.exports = exports(&syntax.items);
            }
            parsed.take(syntax.items);
        }
        Ok(parsed)
    }

    fn take(&mut self, items: Vec<Item>) {
        for item in items {
            match item {
                Item::Mod(module) if !is_for_tests(&module.attrs) => {
                    if let Some((_, inner)) = module.content {
                        self.take(inner);
                    }
                }
                Item::Impl(implementation) => self.impls.push(implementation),
                Item::Macro(item) if item.mac.path.segments.last().is_some_and(is_setters) => {
                    self.impls.extend(setters(&item.mac.tokens.to_string()));
                }
                other => self.items.push(other),
            }
        }
    }

    /// Returns the exports of the crate's root.
    pub(super) fn exports(&self) -> &[Export] {
        &self.exports
    }

    /// Returns all items.
    pub(super) fn items(&self) -> &[Item] {
        &self.items
    }

    /// Returns the public item of this name, if there is one.
    fn item(&self, name: &str) -> Option<&Item> {
        self.items.iter().find(|item| public_name(item).is_some_and(|found| found == name))
    }

    /// Returns the documentation of implementations and of their members.
    pub(super) fn docs_of_impls(&self) -> impl Iterator<Item = String> {
        self.impls.iter().map(|implementation| docs(&implementation.attrs))
    }

    /// Returns the `impl` blocks of a type, with and without a trait.
    pub(super) fn impls_of<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a ItemImpl> {
        self.impls.iter().filter(move |implementation| {
            let syn::Type::Path(path) = &*implementation.self_ty else { return false };
            let is_named = path.path.segments.last().is_some_and(|last| last.ident == name);
            is_named && !is_for_tests(&implementation.attrs)
        })
    }
}

/// Returns whether `name` names the macro `delivery::setters!`, which generates a method for each
/// field of a configuration.
fn is_setters(name: &syn::PathSegment) -> bool {
    name.ident == "setters"
}

/// Returns the implementation that `delivery::setters!` generates from `Name { field: Type, … }`.
fn setters(tokens: &str) -> Option<ItemImpl> {
    let fields: syn::ItemStruct = syn::parse_str(&format!("struct {tokens}")).ok()?;
    let methods = fields.fields.iter().filter_map(|field| {
        let (name, of) = (field.ident.as_ref()?, quote::ToTokens::to_token_stream(&field.ty));
        Some(format!("pub fn {name}(self, value: {of}) -> Self {{ self }}"))
    });
    let methods: String = methods.collect();
    syn::parse_str(&format!("impl {} {{ {methods} }}", fields.ident)).ok()
}

/// Returns the text of documentation comments.
pub(super) fn docs(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| {
        let syn::Meta::NameValue(pair) = &attribute.meta else { return None };
        let syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }) = &pair.value else {
            return None;
        };
        pair.path.is_ident("doc").then(|| text.value())
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns whether the item is hidden or exists for tests only.
pub(super) fn is_for_tests(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let text = quote::ToTokens::to_token_stream(attribute).to_string();
        text.contains("cfg (test)")
            || text.contains("cfg (all (test")
            || text.contains("doc (hidden)")
    })
}

/// Returns the name of a public item of a kind that can be exported.
pub(super) fn public_name(item: &Item) -> Option<&syn::Ident> {
    let (visibility, name) = match item {
        Item::Struct(item) => (&item.vis, &item.ident),
        Item::Enum(item) => (&item.vis, &item.ident),
        Item::Trait(item) => (&item.vis, &item.ident),
        Item::Type(item) => (&item.vis, &item.ident),
        Item::Const(item) => (&item.vis, &item.ident),
        Item::Fn(item) => (&item.vis, &item.sig.ident),
        _ => return None,
    };
    is_public(visibility).then_some(name)
}

/// Returns whether the visibility is `pub`.
pub(super) const fn is_public(visibility: &Visibility) -> bool {
    matches!(visibility, Visibility::Public(_))
}

/// Returns the exports that the `pub use` items of a crate's root define.
fn exports(items: &[Item]) -> Vec<Export> {
    let modules: Vec<String> = items
        .iter()
        .filter_map(|item| match item {
            Item::Mod(module) => Some(module.ident.to_string()),
            _ => None,
        })
        .collect();
    let mut found = Vec::new();
    for item in items {
        match item {
            Item::Use(used) if is_public(&used.vis) => {
                let mut leaves = Vec::new();
                collect_leaves(&used.tree, &mut Vec::new(), &mut leaves);
                found.extend(leaves.into_iter().filter_map(|(path, name)| {
                    let (first, original) = (path.first()?, path.last()?);
                    let is_own = modules.contains(first) || first == "crate" || path.len() == 1;
                    let from = (!is_own).then(|| first.clone());
                    Some(Export { name, original: original.clone(), from })
                }));
            }
            other => found.extend(public_name(other).map(|name| {
                let name = name.to_string();
                Export { original: name.clone(), name, from: None }
            })),
        }
    }
    found
}

/// Collects the leaves of a `use` tree: their paths, and the names under which they are imported.
fn collect_leaves(tree: &UseTree, path: &mut Vec<String>, leaves: &mut Vec<(Vec<String>, String)>) {
    match tree {
        UseTree::Path(step) => {
            path.push(step.ident.to_string());
            collect_leaves(&step.tree, path, leaves);
            path.pop();
        }
        UseTree::Group(group) => {
            group.items.iter().for_each(|inner| collect_leaves(inner, path, leaves));
        }
        UseTree::Name(leaf) => {
            let name = leaf.ident.to_string();
            leaves.push(([&path[..], std::slice::from_ref(&name)].concat(), name));
        }
        UseTree::Rename(leaf) => {
            let path = [&path[..], &[leaf.ident.to_string()]].concat();
            leaves.push((path, leaf.rename.to_string()));
        }
        UseTree::Glob(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn setters_of_configurations_are_methods() {
        let mut parsed = Crate::default();
        parsed.take(
            syn::parse_file("far::setters!(Tea { sugar: u8, milk: Option<bool> });").unwrap().items,
        );
        let methods: Vec<_> = parsed.impls_of("Tea").flat_map(|it| &it.items).collect();
        assert_eq!(methods.len(), 2);
    }

    #[test]
    fn exports_are_found_with_their_names_and_crates() {
        let code = "mod a; mod b { } pub use a::{Own, Other as Renamed}; pub use far::deep::Far;
                    use a::Private; pub struct Here; pub(crate) struct Not;";
        let found = exports(&syn::parse_file(code).unwrap().items);
        let shown: Vec<String> = found
            .iter()
            .map(|it| format!("{} {} {}", it.name, it.original, it.from.as_deref().unwrap_or("-")))
            .collect();
        assert_eq!(shown, ["Own Own -", "Renamed Other -", "Far Far far", "Here Here -"]);
    }
}
