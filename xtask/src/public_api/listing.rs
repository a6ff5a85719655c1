//! The public API as lines of text, one line for each item that programs can name or depend on.

use quote::ToTokens;
use syn::{Attribute, Fields, FnArg, ImplItem, Item, ReturnType, Signature, TraitItem};

use super::sources::{Crate, Definition, Sources, docs, is_for_tests, is_public};

/// A public item.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct PublicItem {
    /// The item's path after the name of the crate.
    pub(super) path: String,
    pub(super) kind: Kind,
    /// The rest of the item's declaration, in the form of code.
    pub(super) signature: String,
    pub(super) docs: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Struct,
    Enum,
    Trait,
    Type,
    Const,
    Function,
    Field,
    Variant,
    Implementation,
}

impl Kind {
    const fn word(self) -> &'static str {
        match self {
            Self::Struct => "struct",
            Self::Enum => "enum",
            Self::Trait => "trait",
            Self::Type => "type",
            Self::Const => "const",
            Self::Function => "fn",
            Self::Field => "field",
            Self::Variant => "variant",
            Self::Implementation => "impl",
        }
    }
}

impl PublicItem {
    /// Returns the item's line in the listing.
    pub(super) fn line(&self) -> String {
        let Self { path, kind, signature, .. } = self;
        match kind {
            Kind::Implementation => format!("impl {signature} for {path}"),
            _ => format!("{} {path}{signature}", kind.word()),
        }
    }
}

/// Marks a type to which no field or variant can be added without breaking programs.
pub(super) const CLOSED: &str = " (exhaustive)";

/// Returns everything that the root of a crate exports, sorted.
pub(super) fn entries(sources: &Sources, home: &str) -> Vec<PublicItem> {
    let mut found = Vec::new();
    let exports = sources.crate_of(home).map(Crate::exports).unwrap_or_default();
    for export in exports {
        if let Some(definition) = sources.resolve(home, export) {
            list(&format!("{home}::{}", export.name), &definition, &mut found);
        }
    }
    found.sort();
    found.dedup();
    found
}

fn list(path: &str, definition: &Definition<'_>, found: &mut Vec<PublicItem>) {
    let mut entry = |path: String, kind, signature: String, attributes: &[Attribute]| {
        found.push(PublicItem { path, kind, signature, docs: docs(attributes) });
    };
    match definition.item {
        Item::Struct(item) => {
            let is_closed = !is_open(&item.attrs)
                && !item.fields.is_empty()
                && item.fields.iter().all(|field| is_public(&field.vis));
            let closed = if is_closed { CLOSED } else { "" };
            entry(path.into(), Kind::Struct, code(&item.generics) + closed, &item.attrs);
            derives(path, &item.attrs, &mut entry);
            fields(path, &item.fields, true, &mut entry);
        }
        Item::Enum(item) => {
            let closed = if is_open(&item.attrs) { "" } else { CLOSED };
            entry(path.into(), Kind::Enum, code(&item.generics) + closed, &item.attrs);
            derives(path, &item.attrs, &mut entry);
            for variant in &item.variants {
                let path = format!("{path}::{}", variant.ident);
                entry(path.clone(), Kind::Variant, String::new(), &variant.attrs);
                fields(&path, &variant.fields, false, &mut entry);
            }
        }
        Item::Trait(item) => {
            let bounds = item.supertraits.to_token_stream();
            let bounds =
                if bounds.is_empty() { String::new() } else { format!(": {}", code(&bounds)) };
            entry(path.into(), Kind::Trait, code(&item.generics) + &bounds, &item.attrs);
            for inner in &item.items {
                trait_item(path, inner, &mut entry);
            }
        }
        Item::Type(item) => {
            entry(path.into(), Kind::Type, format!(" = {}", code(&item.ty)), &item.attrs);
        }
        Item::Const(item) => {
            entry(path.into(), Kind::Const, format!(": {}", code(&item.ty)), &item.attrs);
        }
        Item::Fn(item) => entry(path.into(), Kind::Function, signature(&item.sig), &item.attrs),
        _ => {}
    }
    let name = match definition.item {
        Item::Struct(item) => item.ident.to_string(),
        Item::Enum(item) => item.ident.to_string(),
        _ => return,
    };
    for implementation in definition.home.impls_of(&name) {
        if let Some((_, of, _)) = &implementation.trait_ {
            entry(path.into(), Kind::Implementation, code(of), &[]);
            continue;
        }
        for inner in &implementation.items {
            impl_item(path, inner, &mut entry);
        }
    }
}

fn fields(
    path: &str,
    fields: &Fields,
    must_be_public: bool,
    entry: &mut impl FnMut(String, Kind, String, &[Attribute]),
) {
    for (index, field) in fields.iter().enumerate() {
        if must_be_public && !is_public(&field.vis) {
            continue;
        }
        let name = field.ident.as_ref().map_or_else(|| index.to_string(), ToString::to_string);
        entry(
            format!("{path}::{name}"),
            Kind::Field,
            format!(": {}", code(&field.ty)),
            &field.attrs,
        );
    }
}

fn trait_item(
    path: &str,
    item: &TraitItem,
    entry: &mut impl FnMut(String, Kind, String, &[Attribute]),
) {
    match item {
        TraitItem::Fn(item) if !is_for_tests(&item.attrs) => {
            let required = if item.default.is_none() { REQUIRED } else { "" };
            let path = format!("{path}::{}", item.sig.ident);
            entry(path, Kind::Function, signature(&item.sig) + required, &item.attrs);
        }
        TraitItem::Const(item) => {
            let required = if item.default.is_none() { REQUIRED } else { "" };
            let signature = format!(": {}{required}", code(&item.ty));
            entry(format!("{path}::{}", item.ident), Kind::Const, signature, &item.attrs);
        }
        TraitItem::Type(item) => {
            entry(format!("{path}::{}", item.ident), Kind::Type, REQUIRED.into(), &item.attrs);
        }
        _ => {}
    }
}

/// Marks a member that every implementation of the trait must have.
pub(super) const REQUIRED: &str = " (required)";

fn impl_item(
    path: &str,
    item: &ImplItem,
    entry: &mut impl FnMut(String, Kind, String, &[Attribute]),
) {
    match item {
        ImplItem::Fn(item) if is_public(&item.vis) && !is_for_tests(&item.attrs) => {
            let path = format!("{path}::{}", item.sig.ident);
            entry(path, Kind::Function, signature(&item.sig), &item.attrs);
        }
        ImplItem::Const(item) if is_public(&item.vis) => {
            let path = format!("{path}::{}", item.ident);
            entry(path, Kind::Const, format!(": {}", code(&item.ty)), &item.attrs);
        }
        _ => {}
    }
}

/// Lists derived traits in the same form as other implementations.
fn derives(
    path: &str,
    attributes: &[Attribute],
    entry: &mut impl FnMut(String, Kind, String, &[Attribute]),
) {
    for attribute in attributes.iter().filter(|it| it.path().is_ident("derive")) {
        let _only_paths = attribute.parse_nested_meta(|meta| {
            if let Some(last) = meta.path.segments.last() {
                entry(path.into(), Kind::Implementation, last.ident.to_string(), &[]);
            }
            Ok(())
        });
    }
}

fn is_open(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| attribute.path().is_ident("non_exhaustive"))
}

/// Returns the part of a function's signature that callers depend on, without the names of
/// parameters.
fn signature(signature: &Signature) -> String {
    let inputs = signature.inputs.iter().map(|input| match input {
        FnArg::Receiver(receiver) => {
            let receiver = code(receiver);
            receiver.strip_prefix("mut ").map_or(receiver.clone(), str::to_owned)
        }
        FnArg::Typed(typed) => code(&typed.ty),
    });
    let inputs = inputs.collect::<Vec<_>>().join(", ");
    let output = match &signature.output {
        ReturnType::Default => String::new(),
        ReturnType::Type(_, output) => format!(" -> {}", code(output)),
    };
    let wheres = signature
        .generics
        .where_clause
        .as_ref()
        .map_or(String::new(), |wheres| format!(" {}", code(wheres)));
    let kinds = [
        (signature.constness.is_some(), " const"),
        (signature.asyncness.is_some(), " async"),
        (signature.unsafety.is_some(), " unsafe"),
    ];
    let kinds: String = kinds.into_iter().filter_map(|(is, word)| is.then_some(word)).collect();
    let kinds = if kinds.is_empty() { kinds } else { format!(" [{}]", kinds.trim_start()) };
    format!("{}({inputs}){output}{wheres}{kinds}", code(&signature.generics))
}

/// Formats tokens with the usual spacing of source code.
pub(super) fn code(tokens: &impl ToTokens) -> String {
    let mut text = tokens.to_token_stream().to_string().replace('\n', " ");
    // Replaces arrows temporarily, because the `>` of an arrow looks like the end of a list of type
    // arguments.
    for (from, to) in [
        ("->", "\u{1}"),
        (" :: ", "::"),
        (":: ", "::"),
        (" ::", "::"),
        (" < ", "<"),
        ("< ", "<"),
        (" <", "<"),
        (" >", ">"),
        (" ,", ","),
        ("& ", "&"),
        ("( ", "("),
        (" )", ")"),
        ("[ ", "["),
        (" ]", "]"),
        (" (", "("),
        (" :", ":"),
        (" ;", ";"),
        ("\u{1}(", "\u{1} ("),
        ("\u{1}", "->"),
    ] {
        text = text.replace(from, to);
    }
    text
}
