//! Finds the measuring programs.

use std::path::{Path, PathBuf};

/// The paths of the measuring programs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Programs {
    /// `iwarp-perf`.
    pub iwarp_perf: PathBuf,
    /// `tcp-perf`.
    pub tcp_perf: PathBuf,
    /// `comb`.
    pub comb: PathBuf,
    /// `memory-registration`.
    pub memory_registration: PathBuf,
}

/// A program was not found.
#[derive(Debug, thiserror::Error)]
#[error(
    "the program {name} is not in the folder of this program ({}); build it: sudo apt-get install \
     -y gcc libibverbs-dev librdmacm-dev && cargo run -p xtask -- libraries{PROFILE}",
    places.join(", ")
)]
pub struct MissingProgram {
    name: &'static str,
    places: Vec<String>,
}

/// Option that builds the programs with the profile of this program. Only then they are in one of
/// its folders.
const PROFILE: &str = if cfg!(debug_assertions) { "" } else { " --release" };

impl Programs {
    /// Finds the programs beside `own_program`, where they are installed, or in the build folder.
    ///
    /// # Errors
    /// Returns [`MissingProgram`] with the name of the missing program.
    pub fn find(own_program: &Path) -> Result<Self, MissingProgram> {
        let folder = own_program.parent().unwrap_or(Path::new("/"));
        let folders = [folder.to_path_buf(), folder.join(BUILT)];
        let find = |name| {
            let files = folders.iter().map(|folder| folder.join(name));
            files.into_iter().find(|file| file.is_file()).ok_or_else(|| MissingProgram {
                name,
                places: folders.iter().map(|folder| folder.display().to_string()).collect(),
            })
        };
        Ok(Self {
            iwarp_perf: find("iwarp-perf")?,
            tcp_perf: find("tcp-perf")?,
            comb: find("comb")?,
            memory_registration: find("memory-registration")?,
        })
    }
}

/// The build folder, relative to the folder of programs.
const BUILT: &str = "lib/ethernot/perf";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_program_is_named_with_the_command_that_installs_it() {
        let error = Programs::find(Path::new("/nowhere/ethernot")).unwrap_err().to_string();
        assert!(error.contains("program iwarp-perf") && error.contains("/nowhere/lib"), "{error}");
        assert!(error.contains("xtask -- libraries"), "{error}");
    }
}
