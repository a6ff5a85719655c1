//! `libethernot-sockets.so`: replaces functions of the C library for the program, but not for the
//! code inside the library itself.
//!
//! A call of `read` by the program must reach the library's function. A call of `read` by code
//! inside the library, such as Rust's standard library, must reach the C library's function. The
//! linker's option `--wrap` redirects the calls of the code inside. For this the functions of the
//! archive must have other names than their entry points. `rustc` alone cannot do this, because it
//! compiles and links in one step.

use std::fmt::Write;
use std::path::Path;
use std::process::Command;

use crate::building::checked;
use crate::error::XtaskError;
use crate::floor;

pub(crate) const PACKAGE: &str = "sockets-abi";
pub(crate) const LIBRARY: &str = "libethernot-sockets.so";
const ARCHIVE: &str = "libethernot_sockets.a";
const NAMES: &str = "abi/sockets/names.txt";

/// Builds the library in a folder, with its intermediate files in another.
pub(crate) fn link(
    root: &Path,
    profile: &Path,
    folder: &Path,
    made_of: &Path,
) -> Result<(), XtaskError> {
    let path = root.join(NAMES);
    let text = std::fs::read_to_string(&path)
        .map_err(|cause| XtaskError::Read { path: path.clone(), cause })?;
    let names = parse(&text).map_err(|what| XtaskError::Names { path, what })?;
    let write = |extension: &str, text: String| {
        let path = made_of.join(LIBRARY).with_extension(extension);
        std::fs::write(&path, text)
            .map_err(|cause| XtaskError::Write { path: path.clone(), cause })
            .map(|()| path)
    };
    let (entries, script) = (write("s", entries(&names))?, write("map", script(&names))?);
    // Replaces the file instead of overwriting it, because a running program keeps the old file
    // mapped.
    let fresh = folder.join(format!("{LIBRARY}.fresh"));
    let mut command = Command::new("cc");
    command.args(["-shared", "-o"]).arg(&fresh).arg(&entries);
    command.arg(format!("-Wl,-soname,{LIBRARY}"));
    command.arg(format!("-Wl,--version-script={}", script.display()));
    command.args(["-Wl,-z,nodelete", "-Wl,-z,defs", "-Wl,-z,now", "-Wl,--gc-sections"]);
    command.args(names.iter().map(|name| format!("-Wl,--wrap={}", name.name)));
    command.arg(profile.join(ARCHIVE)).args(floor::arguments(root));
    command.args(["-lgcc_s", "-lm", "-lc"]);
    checked(&mut command)?;
    let path = folder.join(LIBRARY);
    std::fs::rename(&fresh, &path).map_err(|cause| XtaskError::Write { path, cause })
}

/// A line of the list of names that the library replaces.
#[derive(Debug, PartialEq)]
struct Name {
    name: String,
    /// Whether the library exports a function with this name. If so, programs call this function
    /// instead of the function of the C library.
    is_put: bool,
}

/// Parses the list; its first lines explain the format.
fn parse(text: &str) -> Result<Vec<Name>, String> {
    let mut names = Vec::new();
    for (number, line) in (1..).zip(text.lines()) {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words.as_slice() {
            [] => {}
            [first, ..] if first.starts_with('#') => {}
            [how @ ("put" | "inside"), name] => {
                names.push(Name { name: (*name).into(), is_put: *how == "put" });
            }
            _ => return Err(format!("line {number}: {line}")),
        }
    }
    Ok(names)
}

/// Returns the assembly: for each name an entry point that jumps to its function, and the
/// initialization call.
fn entries(names: &[Name]) -> String {
    let jump = if cfg!(target_arch = "aarch64") { "b" } else { "jmp" };
    let mut text = String::from(".text\n");
    let mut entry = |label: &str, function: &str| {
        let _ = writeln!(
            text,
            ".p2align 4\n.globl {label}\n.type {label}, %function\n{label}:\n    {jump} {function}\n.size {label}, . - {label}"
        );
    };
    for Name { name, is_put } in names {
        if *is_put {
            entry(name, &format!("ethernot_sockets_{name}"));
        }
        entry(&format!("__wrap_{name}"), &format!("ethernot_inside_{name}"));
    }
    text + ".section .init_array, \"aw\"\n.p2align 3\n.quad ethernot_sockets_begin\n\
            .section .note.GNU-stack, \"\", %progbits\n"
}

/// Returns the version script. The names have no version, so that the loader uses them for requests
/// of any version.
fn script(names: &[Name]) -> String {
    let mut text = String::from("{\n  global:\n");
    for name in names.iter().filter(|name| name.is_put) {
        let _ = writeln!(text, "    {};", name.name);
    }
    text + "  local: *;\n};\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_means_different_functions_in_programs_and_in_the_library() {
        let names = parse("# a comment\n\nput read\ninside socket\n").unwrap();
        let entries = entries(&names);
        assert!(entries.contains("\nread:\n    "), "{entries}");
        assert!(entries.contains("\n__wrap_read:\n    "), "{entries}");
        assert!(entries.contains("\n__wrap_socket:\n    "), "{entries}");
        assert!(!entries.contains("\nsocket:\n"), "{entries}");
        assert_eq!(script(&names), "{\n  global:\n    read;\n  local: *;\n};\n");
    }

    #[test]
    fn the_error_names_an_invalid_line() {
        assert_eq!(parse("put a\nput\n"), Err("line 2: put".into()));
    }

    #[test]
    fn the_list_of_this_repository_is_parsed() {
        let text = std::fs::read_to_string(crate::workspace::source_root().join(NAMES)).unwrap();
        assert!(parse(&text).unwrap().len() > 30);
    }
}
