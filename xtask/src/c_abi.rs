//! Checks the ABI of the C libraries with `abidiff`, if it is installed: programs compiled today
//! must run with later libraries.
//!
//! A header defines the ABI, because a test checks that the library exports exactly the functions of
//! the header. This check compiles the header, with empty function bodies, to a library with
//! debug information, which contains the types. `abidiff` compares this library with a recorded
//! description.

use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

use crate::building::checked;
use crate::count::Count;
use crate::error::XtaskError;
use crate::libraries_c::{CLibrary, FOR_C};
use crate::workspace::Workspace;

/// Compares the ABIs with the recorded descriptions. With `UPDATE_SNAPSHOTS=1`, records the ABIs.
pub(crate) fn run(workspace: &Workspace) -> Result<ExitCode, XtaskError> {
    if std::env::var_os("UPDATE_SNAPSHOTS").is_none_or(|value| value != "1") {
        let count = test(workspace)?;
        return Ok(if count.failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    for library in &FOR_C {
        let compiled = compile(workspace, library)?;
        let mut describe = Command::new("abidw");
        describe.args(["--no-corpus-path", "--no-comp-dir-path", "--no-show-locs", "--out-file"]);
        checked(describe.arg(workspace.root.join(library.recorded)).arg(compiled))?;
        println!("{}", library.recorded);
    }
    Ok(ExitCode::SUCCESS)
}

/// Compares the ABIs with the recorded descriptions. Permits new functions, and new fields at the
/// end of option structures.
pub(crate) fn test(workspace: &Workspace) -> Result<Count, XtaskError> {
    if !is_installed("abidiff") {
        println!(
            "skipped: abidiff is not installed, so the ABI of the C libraries is not compared"
        );
        println!("         with the recorded one. To have it: apt-get install abigail-tools");
        return Ok(Count::ONE_SKIPPED);
    }
    let mut count = Count::NONE;
    for library in &FOR_C {
        let is_compatible = is_compatible(workspace, library)?;
        count.add(if is_compatible { Count::ONE_PASSED } else { Count::ONE_FAILED });
    }
    Ok(count)
}

/// Returns whether programs that are linked to the recorded ABI run with the library.
fn is_compatible(workspace: &Workspace, library: &CLibrary) -> Result<bool, XtaskError> {
    let compiled = compile(workspace, library)?;
    let mut compare = Command::new("abidiff");
    compare.args(["--no-show-locs", "--no-architecture", "--no-added-syms", "--suppressions"]);
    compare.arg(workspace.root.join(library.may_change));
    compare.arg(workspace.root.join(library.recorded)).arg(compiled);
    let status = compare.stdin(Stdio::null()).status().map_err(|cause| start("abidiff", cause))?;
    if !status.success() {
        println!(
            "programs in C that are compiled already may fail with this {}; if that is meant: raise its version in \
             xtask/src/libraries_c.rs, add a line to CHANGELOG.md and run `UPDATE_SNAPSHOTS=1 cargo xtask c-abi`",
            library.name
        );
    }
    Ok(status.success())
}

fn is_installed(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// Compiles the header of a library to an empty library and returns its path.
fn compile(workspace: &Workspace, library: &CLibrary) -> Result<PathBuf, XtaskError> {
    let header = workspace.root.join(library.header);
    let text = std::fs::read_to_string(&header)
        .map_err(|cause| XtaskError::Read { path: header, cause })?;
    let folder = workspace.target_dir.join("c-abi");
    let source = folder.join("functions.c");
    std::fs::create_dir_all(&folder)
        .and_then(|()| std::fs::write(&source, with_bodies(&text)))
        .map_err(|cause| XtaskError::Write { path: source.clone(), cause })?;
    let name = library.versioned();
    let library = folder.join(&name);
    let mut compiler = Command::new("cc");
    // Runs inside the folder, so that the description does not contain the folder's path.
    compiler.current_dir(&folder).args(["-g", "-shared", "-fPIC", "-w"]);
    compiler.arg(format!("-Wl,-soname,{name}"));
    checked(compiler.args(["-o", &name, "functions.c"]))?;
    Ok(library)
}

/// Returns the header with a body for each function that it declares.
fn with_bodies(header: &str) -> String {
    let mut text = String::new();
    let mut is_in_function = false;
    for line in header.lines() {
        is_in_function |= line.starts_with(|first: char| first.is_ascii_lowercase())
            && !line.starts_with("typedef")
            && line.contains('(');
        match line.strip_suffix(");") {
            Some(declared) if is_in_function => {
                text += declared;
                text += ") { __builtin_trap(); }";
                is_in_function = false;
            }
            _ => text += line,
        }
        text.push('\n');
    }
    text
}

fn start(program: &str, cause: std::io::Error) -> XtaskError {
    XtaskError::Start { program: program.into(), cause }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recorded_descriptions_have_no_machine_specific_path() {
        for library in &FOR_C {
            let path = crate::workspace::source_root().join(library.recorded);
            let text = std::fs::read_to_string(path).expect("it is recorded");
            assert!(text.contains("path='functions.c'"), "{}", library.recorded);
        }
    }

    #[test]
    fn functions_get_bodies_and_types_stay_unchanged() {
        let header =
            "/* f(); */\ntypedef int (*call)(void);\nint a(int b,\n      int c);\nvoid d(void);\n";
        let wanted = "/* f(); */\ntypedef int (*call)(void);\nint a(int b,\n      int c) { __builtin_trap(); }\n\
                      void d(void) { __builtin_trap(); }\n";
        assert_eq!(with_bodies(header), wanted);
    }

    #[test]
    fn every_function_of_the_headers_gets_a_body() {
        for (library, least) in FOR_C.iter().zip([30, 15]) {
            let path = crate::workspace::source_root().join(library.header);
            let text = std::fs::read_to_string(path).expect("the header");
            let bodies = with_bodies(&text).matches("{ __builtin_trap(); }").count();
            let declared =
                text.lines().filter(|line| line.ends_with(");") && !line.starts_with("typedef"));
            assert!(bodies > least, "{}", library.header);
            assert_eq!(bodies, declared.count());
        }
    }
}
