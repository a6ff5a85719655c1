//! Information from cargo about this workspace.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::error::XtaskError;

/// The workspace: its root, its target folder and its packages.
pub(crate) struct Workspace {
    /// Folder of the root `Cargo.toml`.
    pub(crate) root: PathBuf,
    /// Cargo's target folder; honours `CARGO_TARGET_DIR`.
    pub(crate) target_dir: PathBuf,
    /// Members of the workspace.
    pub(crate) packages: Vec<Package>,
}

/// One member of the workspace.
pub(crate) struct Package {
    /// Name in the package's `Cargo.toml`. For a crate that is published under a longer name
    /// ([`package_name`]), its short name.
    pub(crate) name: String,
    pub(crate) version: String,
    /// Folder of the package's `Cargo.toml`.
    pub(crate) folder: PathBuf,
    /// Direct dependencies of the package, of every kind.
    pub(crate) dependencies: Vec<Dependency>,
    /// Libraries and programs that the package builds, without tests, examples and benches.
    pub(crate) targets: Vec<Target>,
}

/// A dependency as written in `Cargo.toml`, before version resolution.
pub(crate) struct Dependency {
    /// Name of the required package.
    pub(crate) name: String,
    /// Whether only tests, examples and benches use the dependency.
    pub(crate) is_dev: bool,
    /// Whether the required package is in this repository.
    pub(crate) is_local: bool,
}

/// A library or a program of a package.
pub(crate) struct Target {
    pub(crate) name: String,
    /// Root source file of the target.
    pub(crate) source: PathBuf,
    pub(crate) is_program: bool,
}

impl Workspace {
    /// Loads the information from cargo. Does not use the network or change the lock file.
    pub(crate) fn load() -> Result<Self, XtaskError> {
        let output = cargo()
            .args(["metadata", "--format-version", "1", "--no-deps"])
            .output()
            .map_err(|cause| XtaskError::Start { program: "cargo metadata".into(), cause })?;
        if !output.status.success() {
            return Err(XtaskError::Metadata {
                reason: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
            });
        }
        let metadata: Value = serde_json::from_slice(&output.stdout)
            .map_err(|cause| XtaskError::Metadata { reason: cause.to_string() })?;
        Ok(Self {
            root: PathBuf::from(text(&metadata, "workspace_root")),
            target_dir: PathBuf::from(text(&metadata, "target_directory")),
            packages: list(&metadata, "packages").iter().map(Package::from_metadata).collect(),
        })
    }

    /// Returns the path of a program of the workspace after a build in a profile.
    pub(crate) fn program_in(&self, profile: &str, name: &str) -> PathBuf {
        let folder = if profile == "dev" { "debug" } else { profile };
        self.target_dir.join(folder).join(name)
    }

    /// Returns the package that builds the program `name`.
    pub(crate) fn package_of_program(&self, name: &str) -> Option<&Package> {
        self.packages.iter().find(|package| {
            package.targets.iter().any(|target| target.is_program && target.name == name)
        })
    }
}

impl Package {
    fn from_metadata(value: &Value) -> Self {
        let manifest = PathBuf::from(text(value, "manifest_path"));
        Self {
            name: short_name(&text(value, "name")),
            version: text(value, "version"),
            folder: manifest.parent().map(Path::to_path_buf).unwrap_or_default(),
            dependencies: list(value, "dependencies")
                .iter()
                .map(|dependency| Dependency {
                    name: short_name(&text(dependency, "name")),
                    is_dev: text(dependency, "kind") == "dev",
                    is_local: dependency.get("path").is_some_and(Value::is_string),
                })
                .collect(),
            targets: list(value, "targets").iter().filter_map(Target::from_metadata).collect(),
        }
    }
}

impl Target {
    fn from_metadata(value: &Value) -> Option<Self> {
        let kinds: Vec<&str> = list(value, "kind").iter().filter_map(Value::as_str).collect();
        let is_program = kinds.contains(&"bin");
        let is_library = kinds.iter().any(|kind| kind.ends_with("lib") || *kind == "proc-macro");
        (is_program || is_library).then(|| Self {
            name: text(value, "name"),
            source: PathBuf::from(text(value, "src_path")),
            is_program,
        })
    }
}

/// Returns the package name of a crate, given the name that code and documents use.
pub(crate) fn package_name(name: &str) -> String {
    if PUBLISHED.contains(&name) { format!("{PREFIX}{name}") } else { name.into() }
}

/// Returns the short name of a package: the inverse of [`package_name`].
fn short_name(package: &str) -> String {
    let short = package.strip_prefix(PREFIX).filter(|name| PUBLISHED.contains(name));
    short.unwrap_or(package).into()
}

/// Crates on which `ethernot` depends, and the formats and machines of other wires. They are published under
/// longer names, because the short names may be taken.
const PUBLISHED: [&str; 13] = [
    "delivery",
    "engine",
    "iwarp",
    "link",
    "links",
    "mem",
    "page-faults",
    "runtime",
    "semantics",
    "waiting",
    "wire-edge",
    "wire-iwarp",
    "work",
];

const PREFIX: &str = "ethernot-";

/// Returns a command for the running cargo, at the root of the workspace.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.current_dir(source_root());
    command
}

/// Returns the root of the sources. Uses the variable that cargo sets when it runs a program,
/// because the program may have been built when the folder had another name. Without the variable,
/// returns the folder of the build.
pub(crate) fn source_root() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    here.parent().unwrap_or(&here).to_path_buf()
}

fn text(value: &Value, key: &str) -> String {
    value.get(key).and_then(Value::as_str).unwrap_or_default().to_owned()
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value.get(key).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}
