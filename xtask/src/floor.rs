//! The oldest C library with which the built files start. The files in `abi/floor` make the linker
//! use its symbol versions.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::XtaskError;

/// Version of the GNU C library in Debian 10 and RHEL 8, and for wheels tagged `manylinux_2_28`.
const OLDEST: (u32, u32) = (2, 28);

include!("../../abi/floor/link.rs");

/// Returns the linker's arguments for a library.
pub(crate) fn arguments(root: &Path) -> Vec<String> {
    link_arguments(&root.join("abi/floor").display().to_string(), &["library.S", "files.S"])
}

/// Returns the linker's arguments for a C program.
pub(crate) fn program_arguments(root: &Path) -> Vec<String> {
    let files = ["library.S", "files.S", "program.S"];
    link_arguments(&root.join("abi/floor").display().to_string(), &files)
}

/// Returns an error if one of these files needs a newer C library. The error names the symbols that
/// need it.
pub(crate) fn check(files: impl IntoIterator<Item = PathBuf>) -> Result<(), XtaskError> {
    for path in files {
        let mut command = Command::new("objdump");
        command.arg("--dynamic-syms").arg(&path);
        let output = command.output().map_err(|cause| XtaskError::Start {
            program: "objdump (Debian's package binutils)".into(),
            cause,
        })?;
        if !output.status.success() {
            let program = format!("objdump {}", path.display());
            return Err(XtaskError::Failed { program, status: output.status });
        }
        let names = newer(&String::from_utf8_lossy(&output.stdout));
        if !names.is_empty() {
            return Err(XtaskError::CLibrary { path, names: names.join(", ") });
        }
    }
    Ok(())
}

/// Returns the undefined symbols with a version that the oldest C library does not have, such as
/// `name@GLIBC_2.34`.
fn newer(symbols: &str) -> Vec<String> {
    let name = |line: &str| {
        let rest = line.split_once("*UND*")?.1;
        let mut words = rest.split_whitespace().skip(1);
        let version = words.next()?.trim_matches(['(', ')']);
        let number = version.strip_prefix("GLIBC_")?;
        let mut parts = number.split('.').map(|part| part.parse().unwrap_or(u32::MAX));
        let is_newer = (parts.next()?, parts.next()?) > OLDEST;
        is_newer.then(|| Some(format!("{}@{version}", words.next()?)))?
    };
    symbols.lines().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_newer_version_are_found() {
        let symbols = "\
ethernot:     file format elf64-x86-64

DYNAMIC SYMBOL TABLE:
0000000000000000      DF *UND*\t0000000000000000 (GLIBC_2.34) dlsym
0000000000000000      DF *UND*\t0000000000000000  GLIBC_2.2.5 puts
0000000000000000  w   DF *UND*\t0000000000000000 (GLIBC_2.28) statx
0000000000000000  w   D  *UND*\t0000000000000000  Base        __gmon_start__
0000000000000000      DF *UND*\t0000000000000000 (GCC_3.0)   _Unwind_Resume
0000000000000000  w   DF *UND*\t0000000000000000 (GLIBC_2.29) pow
0000000000001000 g    DF .text\t0000000000000010  IBVERBS_1.1 ibv_open_device
";
        assert_eq!(newer(symbols), ["dlsym@GLIBC_2.34", "pow@GLIBC_2.29"]);
    }
}
