//! Builds the C programs of `tools/perf` in the folder of the libraries. The programs can measure
//! any RDMA device.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::building::checked;
use crate::error::XtaskError;
use crate::floor;

/// A program and the libraries that it links.
struct Program {
    name: &'static str,
    libraries: &'static [&'static str],
    /// A header that the program's libraries provide, and the command that installs the header.
    needs: Option<(&'static str, &'static str)>,
}

const VERBS: Option<(&str, &str)> =
    Some(("rdma/rdma_cma.h", "sudo apt-get install -y libibverbs-dev librdmacm-dev"));

/// The programs. The source of each is `tools/perf/NAME.c`.
const PROGRAMS: &[Program] = &[
    Program { name: "comb", libraries: &["-lrdmacm", "-libverbs"], needs: VERBS },
    Program { name: "iwarp-perf", libraries: &["-lrdmacm", "-libverbs"], needs: VERBS },
    Program { name: "memory-registration", libraries: &["-lrdmacm", "-libverbs"], needs: VERBS },
    Program { name: "tcp-perf", libraries: &[], needs: None },
];

/// Folder of the sources, relative to the root.
const SOURCES: &str = "tools/perf";

/// Folder of the programs, in the folder of the libraries.
const FOLDER: &str = "perf";

/// Builds the programs in the folder of the libraries. Skips a program whose headers are missing,
/// with a message.
pub(crate) fn build(root: &Path, libraries: &Path) -> Result<(), XtaskError> {
    let folder = libraries.join(FOLDER);
    fs::create_dir_all(&folder)
        .map_err(|cause| XtaskError::Write { path: folder.clone(), cause })?;
    for program in PROGRAMS {
        let file = folder.join(program.name);
        if let Some((header, remedy)) = program.needs.filter(|(header, _)| !has_header(header)) {
            // Removes the program of an earlier build, which may come from other sources.
            let _none = fs::remove_file(&file);
            eprintln!(
                "xtask: {} is not built: there is no header {header}; to have it: {remedy}",
                program.name
            );
            continue;
        }
        let fresh = folder.join(format!("{}.fresh", program.name));
        let mut command = Command::new("cc");
        command.args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&fresh);
        command.arg(root.join(SOURCES).join(program.name).with_extension("c"));
        command.args(program.libraries).arg("-Wl,--gc-sections");
        command.args(floor::program_arguments(root)).args(["-lm", "-lc"]);
        checked(&mut command)?;
        fs::rename(&fresh, &file).map_err(|cause| XtaskError::Write { path: file, cause })?;
    }
    floor::check(built(libraries).map(|(_, file)| file))
}

/// Returns names and paths of the programs that were built.
pub(crate) fn built(libraries: &Path) -> impl Iterator<Item = (&'static str, PathBuf)> {
    let folder = libraries.join(FOLDER);
    let programs = PROGRAMS.iter().map(move |program| (program.name, folder.join(program.name)));
    programs.filter(|(_, file)| file.is_file())
}

/// Returns whether the compiler finds a header.
fn has_header(header: &str) -> bool {
    let mut command = Command::new("cc");
    command.args(["-E", "-x", "c", "-include", header, "/dev/null", "-o", "/dev/null"]);
    command.stderr(std::process::Stdio::null());
    // Ignores a missing compiler, because the build of the libraries has already reported it.
    command.status().is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_header_is_not_found() {
        assert!(has_header("stdio.h"));
        assert!(!has_header("rdma/no_such_header.h"));
    }
}
