//! `cargo xtask libraries`: builds the C libraries that programs load instead of the system's.
//!
//! Links a static library of Rust to shared libraries that export the names and versions of
//! `abi/libibverbs/names.txt`. Each name is an entry point that jumps to a function of the project.
//! With such entry points one function can have several names and versions, which `rustc` alone
//! does not support.

use std::fmt::Write;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::building::{self, checked};
use crate::error::XtaskError;
use crate::floor;
use crate::libraries_c::FOR_C;
use crate::libraries_sockets as sockets;
use crate::perf_programs;
use crate::workspace::Workspace;

const PACKAGE: &str = "libibverbs-abi";
const ARCHIVE: &str = "libethernot_verbs.a";
const NAMES: &str = "abi/libibverbs/names.txt";

/// The crate of the library that shows device files to programs.
const PATHS_PACKAGE: &str = "paths-abi";
const PATHS: &str = "libethernot_paths.so";

/// A script that replaces the `rdma` tool, for programs that run this tool to list the devices.
const RDMA_TOOL: &str = "abi/paths/rdma";

/// File names of the libraries that are loaded into programs, in the folder of the libraries.
pub(crate) const SHARED: [&str; 4] = ["libibverbs.so.1", "librdmacm.so.1", PATHS, sockets::LIBRARY];

/// Path of the script in place of the `rdma` tool, in the folder of the libraries.
pub(crate) const TOOL: &str = "bin/rdma";

/// Folder of intermediate files, beside the libraries.
const MADE_OF: &str = "made-of";

/// Prefix of the crate's function names before they get their C names.
const PREFIX: &str = "ethernot_";

/// Builds the libraries and prints their folder.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<ExitCode, XtaskError> {
    let is_release = match arguments {
        [] => false,
        [argument] if argument == "--release" => true,
        _ => return Err(XtaskError::Usage { what: "libraries [--release]".into() }),
    };
    println!("{}", build(workspace, is_release)?.display());
    Ok(ExitCode::SUCCESS)
}

/// Builds the libraries and returns their folder.
pub(crate) fn build(workspace: &Workspace, is_release: bool) -> Result<PathBuf, XtaskError> {
    let [c, c_dsm] = FOR_C.map(|library| library.package);
    let packages = [PACKAGE, PATHS_PACKAGE, c, c_dsm, sockets::PACKAGE];
    let profile = if is_release { "release" } else { "dev" };
    checked(&mut building::build(profile, &packages, &["--lib"]))?;
    let profile = workspace.target_dir.join(if is_release { "release" } else { "debug" });
    let folder = profile.join("lib/ethernot");
    let _alone = lock(&folder.join(MADE_OF))?;
    let names = workspace.root.join(NAMES);
    let text = std::fs::read_to_string(&names)
        .map_err(|cause| XtaskError::Read { path: names.clone(), cause })?;
    let libraries = parse(&text).map_err(|what| XtaskError::Names { path: names, what })?;
    for library in &libraries {
        link(library, workspace, &profile, &folder)?;
    }
    sockets::link(&workspace.root, &profile, &folder, &folder.join(MADE_OF))?;
    place(&profile.join(PATHS), &folder.join(PATHS))?;
    for library in &FOR_C {
        library.place(workspace, &profile, &folder)?;
    }
    let tool = folder.join(TOOL);
    made(tool.parent().unwrap_or(&folder).to_path_buf())?;
    place(&workspace.root.join(RDMA_TOOL), &tool)?;
    perf_programs::build(&workspace.root, &folder)?;
    floor::check(SHARED.iter().map(|name| folder.join(name)))?;
    floor::check(FOR_C.iter().map(|library| folder.join(library.versioned())))?;
    Ok(folder)
}

/// Creates a folder and locks it against other builds until the returned file is dropped.
fn lock(folder: &Path) -> Result<File, XtaskError> {
    let path = folder.join("lock");
    let locked = std::fs::create_dir_all(folder)
        .and_then(|()| File::create(&path))
        .and_then(|file| file.lock().map(|()| file));
    locked.map_err(|cause| XtaskError::Write { path, cause })
}

/// Returns a folder. Creates it if it does not exist.
pub(crate) fn made(folder: PathBuf) -> Result<PathBuf, XtaskError> {
    std::fs::create_dir_all(&folder)
        .map_err(|cause| XtaskError::Write { path: folder.clone(), cause })?;
    Ok(folder)
}

/// Copies a file. A program that has the old file open keeps the old content.
pub(crate) fn place(from: &Path, to: &Path) -> Result<(), XtaskError> {
    let fresh = to.with_extension("fresh");
    let copied = std::fs::copy(from, &fresh).and_then(|_| std::fs::rename(&fresh, to));
    copied.map_err(|cause| XtaskError::Write { path: to.into(), cause })
}

/// A shared library and its versions.
#[derive(Debug, Default, PartialEq)]
struct Library {
    file: String,
    nodes: Vec<Node>,
}

/// A symbol version, and the names of the functions that have this version.
#[derive(Debug, Default, PartialEq)]
struct Node {
    name: String,
    parent: Option<String>,
    names: Vec<Name>,
    /// Whether programs link to this version of a name that has several versions.
    is_default: bool,
}

#[derive(Debug, PartialEq)]
struct Name {
    name: String,
    what: What,
}

#[derive(Debug, PartialEq)]
enum What {
    /// An entry point that jumps to this function.
    Function(String),
    /// A variable, with its size in bytes.
    Variable(u32),
}

/// Parses the list; its first lines explain the format.
fn parse(text: &str) -> Result<Vec<Library>, String> {
    let mut libraries: Vec<Library> = Vec::new();
    let mut numbers: Vec<String> = Vec::new();
    // The names on the following lines belong to the last `open` nodes of the library. That is one
    // node, or one node for each number in the last `private` line.
    let mut open = 0;
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let wrong = || format!("line {number}: {line}");
        match words.as_slice() {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            ["library", file] => {
                libraries.push(Library { file: (*file).into(), nodes: Vec::new() });
                open = 0;
            }
            ["private", all @ ..] => numbers = all.iter().map(|&number| number.into()).collect(),
            ["node", name, parent @ ..] if parent.len() < 2 => {
                let library = libraries.last_mut().ok_or_else(wrong)?;
                let parent = parent.first().map(|&parent| parent.to_owned());
                let mut made = made_of(name, &numbers);
                for node in &mut made {
                    node.parent.clone_from(&parent);
                }
                open = made.len();
                library.nodes.append(&mut made);
            }
            [name, how @ ..] => {
                let what = match how {
                    [] => What::Function(format!("{PREFIX}{name}")),
                    ["=", function] => What::Function(format!("{PREFIX}{function}")),
                    [":", bytes] => What::Variable(bytes.parse().map_err(|_| wrong())?),
                    _ => return Err(wrong()),
                };
                let nodes = &mut libraries.last_mut().ok_or_else(wrong)?.nodes;
                let first = nodes.len().checked_sub(open).ok_or_else(wrong)?;
                for node in nodes.get_mut(first..).unwrap_or_default() {
                    let suffix = node.name.rsplit('_').next().unwrap_or_default();
                    let name = name.replace('*', suffix);
                    node.names.push(Name { name, what: what.copied() });
                }
            }
        }
    }
    Ok(libraries)
}

impl What {
    fn copied(&self) -> Self {
        match self {
            Self::Function(function) => Self::Function(function.clone()),
            Self::Variable(bytes) => Self::Variable(*bytes),
        }
    }
}

/// Returns one node with this name. If the name contains a `*`, returns one node for each number,
/// with the number in place of the `*`.
fn made_of(name: &str, numbers: &[String]) -> Vec<Node> {
    if !name.contains('*') {
        return vec![Node { name: name.into(), is_default: true, ..Node::default() }];
    }
    let node = |(place, number): (usize, &String)| Node {
        name: name.replace('*', number),
        is_default: place == 0,
        ..Node::default()
    };
    numbers.iter().enumerate().map(node).collect()
}

impl Library {
    /// Returns whether programs link to this version of the name.
    fn is_default(&self, place: usize, name: &str) -> bool {
        let is_newer =
            |node: &Node| node.is_default && node.names.iter().any(|other| other.name == name);
        self.nodes.get(place).is_some_and(|node| node.is_default)
            && !self.nodes.iter().skip(place + 1).any(is_newer)
    }

    /// Returns the assembly of the entry points, which jump to the functions.
    fn entries(&self) -> String {
        let jump = if cfg!(target_arch = "aarch64") { "b" } else { "jmp" };
        let at_call = if cfg!(target_arch = "aarch64") { "" } else { "@PLT" };
        let mut text = String::new();
        for (place, node) in self.nodes.iter().enumerate() {
            for (index, Name { name, what }) in node.names.iter().enumerate() {
                let label = format!("ethernot_entry_{place}_{index}");
                let body = match what {
                    // The function has this name already, so it needs no entry point.
                    What::Function(function) if function == name => continue,
                    What::Function(function) => format!(
                        ".text\n.p2align 4\n.globl {label}\n.type {label}, %function\n{label}:\n    {jump} {function}{at_call}\n.size {label}, . - {label}\n"
                    ),
                    What::Variable(bytes) => format!(
                        ".bss\n.p2align 4\n.globl {label}\n.type {label}, %object\n.size {label}, {bytes}\n{label}:\n    .zero {bytes}\n"
                    ),
                };
                let at = if self.is_default(place, name) { "@@" } else { "@" };
                let _ = writeln!(text, "{body}.symver {label}, {name}{at}{}", node.name);
            }
        }
        text + ".section .note.GNU-stack, \"\", %progbits\n"
    }

    /// Returns the version script. Names without a version are private: the script puts them into a
    /// separate version and makes them local there. If they were local in a version with other
    /// names, the linker would also hide those other names.
    fn script(&self) -> String {
        let mut text = String::new();
        for node in &self.nodes {
            let _ = writeln!(text, "{} {{\n  global:", node.name);
            for name in &node.names {
                let _ = writeln!(text, "    {};", name.name);
            }
            let parent = node.parent.as_deref().map(|parent| format!(" {parent}"));
            let _ = writeln!(text, "}}{};", parent.unwrap_or_default());
        }
        text + "ETHERNOT_HIDDEN {\n  local: *;\n};\n"
    }
}

/// Links a library from the archive. A library that only calls another library contains only its
/// entry points.
fn link(
    library: &Library,
    workspace: &Workspace,
    profile: &Path,
    folder: &Path,
) -> Result<(), XtaskError> {
    let made_of = folder.join(MADE_OF);
    let write = |extension: &str, text: String| {
        let path = made_of.join(&library.file).with_extension(extension);
        std::fs::write(&path, text)
            .map_err(|cause| XtaskError::Write { path: path.clone(), cause })
            .map(|()| path)
    };
    let entries = write("s", library.entries())?;
    let script = write("map", library.script())?;
    // Replaces the file instead of overwriting it, because a running program keeps the old file
    // mapped.
    let fresh = folder.join(format!("{}.fresh", library.file));
    let mut command = Command::new("cc");
    command.args(["-shared", "-o"]).arg(&fresh).arg(&entries);
    command.arg(format!("-Wl,-soname,{}", library.file));
    command.arg(format!("-Wl,--version-script={}", script.display()));
    command.args(["-Wl,-z,nodelete", "-Wl,-z,defs", "-Wl,-Bsymbolic", "-Wl,--gc-sections"]);
    if library.file.starts_with("libibverbs") {
        command.arg("-Wl,--whole-archive").arg(profile.join(ARCHIVE)).arg("-Wl,--no-whole-archive");
        command.args(floor::arguments(&workspace.root));
        command.args(["-lgcc_s", "-lm", "-lc"]);
    } else {
        command.arg(folder.join("libibverbs.so.1")).arg("-Wl,-rpath,$ORIGIN");
    }
    checked(&mut command)?;
    let path = folder.join(&library.file);
    std::fs::rename(&fresh, &path).map_err(|cause| XtaskError::Write { path, cause })
}

/// Returns whether a command of `ethernot` measures programs that run with the libraries.
pub(crate) fn are_needed(arguments: &[String]) -> bool {
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    matches!(words[..], ["bench", "sockets" | "apache" | "ganglia" | "programs" | "verbs", ..])
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
# a comment
library libone.so.1
private 34 25

node ONE_1
call = null
only
node ONE_2 ONE_1
call
node PRIVATE_*
register_* = nothing
flag : 1
node OWN
ethernot_null = null
library libtwo.so.1
node TWO
other
";

    #[test]
    fn a_name_of_two_versions_is_linked_by_the_later_one() {
        let entries = parse(LIST).unwrap()[0].entries();
        assert!(entries.contains(", call@ONE_1\n"), "{entries}");
        assert!(entries.contains(", call@@ONE_2\n"), "{entries}");
        assert!(entries.contains(", only@@ONE_1\n"), "{entries}");
    }

    #[test]
    fn each_version_number_has_a_node_and_the_first_is_the_default() {
        let libraries = parse(LIST).unwrap();
        let entries = libraries[0].entries();
        assert!(entries.contains(", register_34@@PRIVATE_34\n"), "{entries}");
        assert!(entries.contains(", register_25@PRIVATE_25\n"), "{entries}");
        assert!(entries.contains(", flag@PRIVATE_25\n"), "{entries}");
        assert_eq!(libraries[1].nodes.len(), 1);
    }

    #[test]
    fn a_function_exported_unchanged_has_no_entry() {
        let library = &parse(LIST).unwrap()[0];
        assert!(!library.entries().contains(", ethernot_null"));
        assert!(library.script().contains("OWN {\n  global:\n    ethernot_null;\n};\n"));
    }

    #[test]
    fn the_error_names_an_invalid_line() {
        assert_eq!(parse("library a\nnode B\nname ? x\n"), Err("line 3: name ? x".into()));
        assert_eq!(parse("name\n"), Err("line 1: name".into()));
    }

    #[test]
    fn the_list_of_this_repository_is_parsed() {
        let text = std::fs::read_to_string(crate::workspace::source_root().join(NAMES)).unwrap();
        let libraries = parse(&text).unwrap();
        let files: Vec<_> = libraries.iter().map(|library| library.file.as_str()).collect();
        assert_eq!(files, SHARED[..2]);
    }
}
