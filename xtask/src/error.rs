//! Errors of xtask's commands, and the usage text.

use std::path::PathBuf;

/// The usage text.
pub(crate) const USAGE: &str = "\
usage: cargo xtask COMMAND

  test                       format, lints, documentation, every test, torture; ends with a count
  check [--against COMMIT | --all]
                             format, lints, unit tests and the rules of the project, of crates with a file that changed
                             since the last commit, or since COMMIT
  bench|sim|serve|report|doctor [ARGS]
                             build `ethernot` in release and run that command of it
  acceptance NAME [--quick] [--against COMMIT] [--only TEXT]...
                             measure a suite of bounds, or its rows with a TEXT in their names; prints a table, exits 1
                             if something does not work
  api                        check the public Rust API: listing, examples, errors (UPDATE_SNAPSHOTS=1 keeps it)
  constants [--list] [--only TEXT]...
                             give each constant that decides behaviour its neutral value, in a copy of the sources, and
                             print which test notices; hours for all
  c-abi                      compare the ABI of the C library with the recorded one (needs abidiff; UPDATE_SNAPSHOTS=1 keeps it)
  dissector                  regenerate tools/wireshark/ethernot.lua
  fuzz --seconds N [TARGET...]
                             run every fuzz target in turn, or those named, N seconds in all
  install --destdir DIR [--prefix PREFIX]
                             build and install the command, its libraries and documents below DIR
  package [--output DIR]     the same as a package for Debian (needs dpkg-dev); prints its path
  deny                       check licences, known faults and sources of crates (needs cargo-deny)
  libraries [--release]      build the C libraries that programs for RDMA load; prints their folder
  loom                       run the models of threads, in every interleaving
  miri                       interpret the tests of the crates that only compute (needs nightly)
  python                     build the Python packages and run their tests, in an environment of their own
  tidy                       check the rules of the project";

/// The reason why a command of xtask failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(crate) enum XtaskError {
    #[error("cannot start `{program}`: {cause}")]
    Start { program: String, cause: std::io::Error },
    #[error("`{program}` failed ({status})")]
    Failed { program: String, status: std::process::ExitStatus },
    #[error("cargo metadata: {reason}")]
    Metadata { reason: String },
    #[error("cannot read {path}: {cause}", path = path.display())]
    Read { path: PathBuf, cause: std::io::Error },
    #[error("cannot write {path}: {cause}", path = path.display())]
    Write { path: PathBuf, cause: std::io::Error },
    #[error("no package of this workspace builds `{program}`")]
    NotBuilt { program: String },
    #[error("{path}, {what}", path = path.display())]
    Names { path: PathBuf, what: String },
    #[error(
        "{path} needs a C library newer than 2.28, for {names}; add these names to abi/floor",
        path = path.display()
    )]
    CLibrary { path: PathBuf, names: String },
    #[error("{what}\n\n{USAGE}")]
    Usage { what: String },
}
