//! Errors of xtask's commands, and the usage text.

use std::path::PathBuf;

/// The usage text.
pub(crate) const USAGE: &str = "\
usage: cargo xtask COMMAND

  test                       format, lints, documentation, every test, torture; ends with a count
  check [--against COMMIT | --all]
                             format, lints, unit tests and project rules, for crates with a file that changed since the
                             last commit, or since COMMIT
  bench|sim|serve|report|doctor [ARGS]
                             build `ethernot` in release mode and run this command of it
  acceptance NAME [--quick] [--against COMMIT] [--only TEXT]...
                             measure a suite of bounds, or only rows whose names contain a TEXT; prints a table, exits
                             with status 1 if something does not work
  api                        check the public Rust API: listing, examples, errors (UPDATE_SNAPSHOTS=1 records it)
  constants [--list] [--only TEXT]...
                             give each constant that decides behaviour its neutral value, in a copy of the sources, and
                             print which tests fail; takes hours for all constants
  c-abi                      compare the ABI of the C library with the recorded one (needs abidiff; UPDATE_SNAPSHOTS=1 records it)
  dissector                  regenerate tools/wireshark/ethernot.lua
  fuzz --seconds N [TARGET...]
                             run every fuzz target one after the other, or the named ones, for N seconds in total
  guest build                build a virtual machine with the RDMA devices siw and rxe, from Debian packages
  guest run [OPTIONS] [--seconds N] -- COMMAND
                             start the machine, run a shell command in it, and end it
  guest pair [OPTIONS] -- COMMAND
                             start two machines on one network, and run a shell command on this host: `$A ls` runs `ls`
                             in the first, `$B ls` in the second
  guest start [--name NAME] [OPTIONS], guest exec [--name NAME] [--seconds N] -- COMMAND, guest stop [--name NAME]
                             start a machine, run commands in it, end it; OPTIONS:
                             --net none|user[:HOST=GUEST,...]|tap:NAME,HOST/PREFIX,GUEST   --device siw|rxe
                             --clock host|instructions   --processors N   --memory MIB   --share FOLDER   --pcap FILE
  install --destdir DIR [--prefix PREFIX]
                             build and install the command, its libraries and documents below DIR
  package [--output DIR]     build a Debian package of the same files (needs dpkg-dev); prints its path
  deny                       check licences, known vulnerabilities and sources of crates (needs cargo-deny)
  libraries [--release]      build the C libraries that RDMA programs load; prints their folder
  loom                       run the loom models of threads, in every interleaving
  miri                       run the tests of the crates without I/O under Miri (needs nightly)
  python                     build the Python packages and run their tests, in a separate environment
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
