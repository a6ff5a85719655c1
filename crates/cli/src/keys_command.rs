//! `ethernot sim keys`: lists the keys of a configuration.

use std::fmt::Write as _;

use clap::Args;
use interconnect::configuration::{Key, keys, markdown};
use serde_json::{Value, json};

use crate::Failure;
use crate::output::print;

/// List the keys of a configuration: unit, default, range and meaning.
///
/// The list is generated from the code that reads the keys. docs/simulator-keys.md contains the
/// same list.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot sim keys\n  \
    ethernot sim keys fabric\n  \
    ethernot sim keys fabric.ecn\n  \
    ethernot sim keys mtu_bytes --json")]
pub(crate) struct Arguments {
    /// List only keys that begin with this text, with or without their section
    prefix: Option<String>,
    /// Print a list of objects
    #[arg(long)]
    json: bool,
    /// Print the documentation page
    #[arg(long, conflicts_with_all = ["json", "prefix"])]
    markdown: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.markdown {
        return print(&markdown());
    }
    let prefix = arguments.prefix.as_deref().unwrap_or_default();
    let is_wanted = |key: &Key| {
        format!("{}.{}", key.section, key.name).starts_with(prefix) || key.name.starts_with(prefix)
    };
    let wanted: Vec<Key> = keys().into_iter().filter(is_wanted).collect();
    if wanted.is_empty() {
        return Err(format!("no key begins with {prefix}; `ethernot sim keys` lists all").into());
    }
    if arguments.json {
        let list: Value = wanted.iter().map(to_json).collect();
        return print(&format!("{list:#}\n"));
    }
    let mut text = String::new();
    let mut section = "";
    for key in &wanted {
        // Writing to a `String` cannot fail, here and below.
        if key.section != section {
            let gap = if section.is_empty() { "" } else { "\n" };
            let _ = writeln!(text, "{gap}[{}]", key.section);
            section = &key.section;
        }
        let default = match key.default.as_str() {
            "" => String::new(),
            default => format!(" = {default}"),
        };
        let _ = writeln!(text, "{}{default}  ({})", key.name, key.values);
        let _ = writeln!(text, "    {}", key.meaning());
        if !key.needs.is_empty() {
            let _ = writeln!(text, "    only with {}", key.needs.join(" and "));
        }
    }
    print(&text)
}

fn to_json(key: &Key) -> Value {
    json!({
        "section": key.section,
        "name": key.name,
        "unit": key.unit.plain(),
        "default": key.default,
        "values": key.values,
        "words": key.words,
        "meaning": key.meaning(),
        "only_with": key.needs,
    })
}
