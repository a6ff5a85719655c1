//! `cargo xtask install`: installs the command, the libraries that the command loads into programs,
//! and their documents.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Component, Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::building::{build_program_in, checked};
use crate::error::XtaskError;
use crate::libraries_c::{CLibrary, FOR_C};
use crate::workspace::Workspace;
use crate::{libraries, perf_programs};

const USAGE: &str = "\
install --destdir DIR [--prefix PREFIX] [--debug]

  --destdir DIR    root of the tree: / is this host
  --prefix PREFIX  where in it [default: /usr/local]
  --debug          what tests use: soon built, and slow";

/// Builds all files to install, and places them below the given folder. Prints the files.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<ExitCode, XtaskError> {
    let options = Options::parse(arguments).map_err(|what| XtaskError::Usage { what })?;
    let mut tree = Tree::new(&options.destination, &options.prefix)?;
    // Checks this first, so that a user without write permission gets the error before the long
    // build.
    tree.try_to_write(BIN)?;
    let built = Built::build(workspace, options.is_release)?;
    lay(&mut tree, workspace, &built)?;
    tree.place(&workspace.root.join("LICENSE"), &format!("{DOCUMENTS}/LICENSE"), FILE)?;
    for file in &tree.files {
        println!("{}", file.display());
    }
    let own = [PROGRAM, FOLDER, DATA, DOCUMENTS].map(str::to_owned).into_iter();
    let for_c = FOR_C.iter().flat_map(places_for_c);
    let programs = perf_programs::built(&built.libraries).map(|(name, _)| format!("{BIN}/{name}"));
    let own = own.chain(for_c).chain(programs);
    let own: Vec<_> = own.map(|part| tree.path(&part).display().to_string()).collect();
    eprintln!("xtask: to remove it: rm -r {}", own.join(" "));
    Ok(ExitCode::SUCCESS)
}

/// The parsed command line.
#[derive(Debug, PartialEq)]
struct Options {
    destination: PathBuf,
    prefix: PathBuf,
    is_release: bool,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Self, String> {
        let (mut destination, mut prefix, mut is_release) = (None, None, true);
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            let place = match argument.as_str() {
                "--destdir" => &mut destination,
                "--prefix" => &mut prefix,
                "--debug" => {
                    is_release = false;
                    continue;
                }
                other => return Err(format!("unknown option `{other}`\n{USAGE}")),
            };
            let value = arguments.next().filter(|value| !value.is_empty());
            let value = value.ok_or_else(|| format!("{argument} needs a folder\n{USAGE}"))?;
            *place = Some(PathBuf::from(value));
        }
        let destination = destination
            .ok_or_else(|| format!("install where? --destdir / is this host\n{USAGE}"))?;
        let prefix = prefix.unwrap_or_else(|| "/usr/local".into());
        check_prefix(&prefix)?;
        Ok(Self { destination, prefix, is_release })
    }
}

/// Checks that the prefix contains no space and no colon, because these separate the paths in the
/// lists that the loader reads.
fn check_prefix(prefix: &Path) -> Result<(), String> {
    let shown = prefix.display();
    let is_plain = |part| matches!(part, Component::RootDir | Component::Normal(_));
    if !prefix.is_absolute() || !prefix.components().all(is_plain) {
        return Err(format!("--prefix {shown}: the prefix begins with / and has no .. in it"));
    }
    if prefix.as_os_str().as_encoded_bytes().iter().any(|byte| b": \n".contains(byte)) {
        return Err(format!("--prefix {shown}: the loader takes no path with a space or a colon"));
    }
    Ok(())
}

/// The files that are built before the installation.
pub(crate) struct Built {
    program: PathBuf,
    libraries: PathBuf,
}

impl Built {
    pub(crate) fn build(workspace: &Workspace, is_release: bool) -> Result<Self, XtaskError> {
        let program = build_program_in(workspace, if is_release { "release" } else { "dev" })?;
        Ok(Self { program, libraries: libraries::build(workspace, is_release)? })
    }
}

/// Places all files whose content does not depend on the place of installation.
pub(crate) fn lay(tree: &mut Tree, workspace: &Workspace, built: &Built) -> Result<(), XtaskError> {
    tree.place(&built.program, PROGRAM, PROGRAM_MODE)?;
    strip(&tree.path(PROGRAM))?;
    for name in libraries::SHARED {
        let place = format!("{FOLDER}/{name}");
        tree.place(&built.libraries.join(name), &place, FILE)?;
        strip(&tree.path(&place))?;
    }
    let tool = libraries::TOOL;
    tree.place(&built.libraries.join(tool), &format!("{FOLDER}/{tool}"), PROGRAM_MODE)?;
    for (name, file) in perf_programs::built(&built.libraries) {
        let place = format!("{BIN}/{name}");
        tree.place(&file, &place, PROGRAM_MODE)?;
        strip(&tree.path(&place))?;
    }
    for library in &FOR_C {
        lay_for_c(tree, workspace, built, library)?;
    }
    let dissector = "ethernot.lua";
    let from = workspace.root.join("tools/wireshark").join(dissector);
    tree.place(&from, &format!("{DATA}/{dissector}"), FILE)?;
    for page in ["README.md", "CHANGELOG.md"] {
        tree.place(&workspace.root.join(page), &format!("{DOCUMENTS}/{page}"), FILE)?;
    }
    for page in pages(&workspace.root, Path::new("docs"))? {
        let place = format!("{DOCUMENTS}/{}", page.display());
        tree.place(&workspace.root.join(&page), &place, FILE)?;
    }
    Ok(())
}

/// Places a library for C, its header and its file for pkg-config in the folders that compilers and
/// loaders search.
fn lay_for_c(
    tree: &mut Tree,
    workspace: &Workspace,
    built: &Built,
    library: &CLibrary,
) -> Result<(), XtaskError> {
    let [place, link, header, pkg_config] = places_for_c(library);
    let versioned = library.versioned();
    tree.place(&built.libraries.join(&versioned), &place, FILE)?;
    strip(&tree.path(&place))?;
    tree.link(&versioned, &link)?;
    tree.place(&workspace.root.join(library.header), &header, FILE)?;
    let text = library.pkg_config(workspace, "../include")?;
    tree.write(&pkg_config, text.as_bytes(), FILE)
}

/// Returns the places of a library for C, of the link to it, of its header and of its file for
/// pkg-config.
fn places_for_c(library: &CLibrary) -> [String; 4] {
    [
        format!("lib/{}", library.versioned()),
        format!("lib/{}", library.name),
        format!("include/{}", library.header_name()),
        format!("lib/pkgconfig/{}", library.pkg_config_name()),
    ]
}

/// Lists the documents in a folder and the folders below it, as paths relative to the root.
fn pages(root: &Path, folder: &Path) -> Result<Vec<PathBuf>, XtaskError> {
    let path = root.join(folder);
    let read = |cause| XtaskError::Read { path: path.clone(), cause };
    let mut found = Vec::new();
    for entry in fs::read_dir(&path).map_err(read)? {
        let entry = entry.map_err(read)?;
        let name = folder.join(entry.file_name());
        if entry.file_type().map_err(read)?.is_dir() {
            found.append(&mut pages(root, &name)?);
        } else if name.extension().is_some_and(|extension| extension == "md") {
            found.push(name);
        }
    }
    found.sort();
    Ok(found)
}

/// Removes debug information, if the tool for it is installed.
fn strip(path: &Path) -> Result<(), XtaskError> {
    let mut command = Command::new("strip");
    command.args(["--strip-unneeded", "--remove-section=.comment"]).arg(path);
    match checked(&mut command) {
        Err(XtaskError::Start { cause, .. }) if cause.kind() == ErrorKind::NotFound => Ok(()),
        outcome => outcome,
    }
}

/// A tree of files that will be copied to a host.
#[derive(Debug)]
pub(crate) struct Tree {
    root: PathBuf,
    /// The prefix without its leading slash, so that it is relative.
    prefix: PathBuf,
    /// Paths of the files that were placed in the tree.
    pub(crate) files: Vec<PathBuf>,
}

impl Tree {
    pub(crate) fn new(root: &Path, prefix: &Path) -> Result<Self, XtaskError> {
        let root = std::path::absolute(root)
            .map_err(|cause| XtaskError::Write { path: root.into(), cause })?;
        let prefix = prefix.strip_prefix("/").unwrap_or(prefix).into();
        Ok(Self { root, prefix, files: Vec::new() })
    }

    /// Returns the path of a part of the installation.
    pub(crate) fn path(&self, part: &str) -> PathBuf {
        self.root.join(&self.prefix).join(part)
    }

    /// Creates a folder and checks that files can be created in it.
    fn try_to_write(&self, folder: &str) -> Result<(), XtaskError> {
        let folder = self.path(folder);
        make_folder(&folder)?;
        let trial = folder.join(format!(".ethernot-{}", std::process::id()));
        let tried = fs::write(&trial, "").and_then(|()| fs::remove_file(&trial));
        tried.map_err(|cause| XtaskError::Write { path: folder, cause })
    }

    /// Copies a file. A program that has the old file open keeps the old content.
    pub(crate) fn place(&mut self, from: &Path, to: &str, mode: u32) -> Result<(), XtaskError> {
        let bytes =
            fs::read(from).map_err(|cause| XtaskError::Read { path: from.into(), cause })?;
        self.write(to, &bytes, mode)
    }

    /// Creates a link to a file in the same folder; replaces an existing link.
    fn link(&mut self, target: &str, to: &str) -> Result<(), XtaskError> {
        let path = self.path(to);
        let fresh = path.with_extension("fresh");
        // An interrupted run may have left this file.
        let _none = fs::remove_file(&fresh);
        std::os::unix::fs::symlink(target, &fresh)
            .and_then(|()| fs::rename(&fresh, &path))
            .map_err(|cause| XtaskError::Write { path: path.clone(), cause })?;
        self.files.push(path);
        Ok(())
    }

    /// Creates a file with this content.
    pub(crate) fn write(&mut self, to: &str, bytes: &[u8], mode: u32) -> Result<(), XtaskError> {
        let path = self.path(to);
        make_folder(path.parent().unwrap_or(&self.root))?;
        let mut fresh = path.clone().into_os_string();
        fresh.push(".fresh");
        fs::write(&fresh, bytes)
            .and_then(|()| fs::set_permissions(&fresh, Permissions::from_mode(mode)))
            .and_then(|()| fs::rename(&fresh, &path))
            .map_err(|cause| XtaskError::Write { path: path.clone(), cause })?;
        self.files.push(path);
        Ok(())
    }
}

/// Creates a folder and its parents. All users can read them, independent of the umask.
pub(crate) fn make_folder(path: &Path) -> Result<(), XtaskError> {
    if path.is_dir() {
        return Ok(());
    }
    if let Some(above) = path.parent() {
        make_folder(above)?;
    }
    fs::create_dir(path)
        .and_then(|()| fs::set_permissions(path, Permissions::from_mode(PROGRAM_MODE)))
        .map_err(|cause| XtaskError::Write { path: path.into(), cause })
}

/// Folders and files of the installation. The command searches for its libraries in
/// `../lib/ethernot`, relative to its own folder.
const BIN: &str = "bin";
pub(crate) const PROGRAM: &str = "bin/ethernot";
pub(crate) const FOLDER: &str = "lib/ethernot";
const DATA: &str = "share/ethernot";
pub(crate) const DOCUMENTS: &str = "share/doc/ethernot";

/// Mode of files that all users may read and execute.
const PROGRAM_MODE: u32 = 0o755;

/// Mode of files that all users may read.
pub(crate) const FILE: u32 = 0o644;

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&words)
    }

    fn refused(line: &str, word: &str) {
        let message = parsed(line).expect_err(line);
        assert!(message.contains(word), "{line}: {message}");
    }

    #[test]
    fn the_root_is_mandatory_and_other_options_have_defaults() {
        let (destination, prefix) = ("/d".into(), "/usr/local".into());
        let expected = Options { destination, prefix, is_release: true };
        assert_eq!(parsed("--destdir /d"), Ok(expected));
        let all = parsed("--debug --prefix /opt/e --destdir d").expect("it is right");
        assert_eq!((all.prefix, all.is_release), ("/opt/e".into(), false));
        refused("", "--destdir / is this host");
        refused("--prefix /usr", "--destdir");
    }

    #[test]
    fn errors_name_the_wrong_argument() {
        refused("--destdir", "--destdir needs a folder");
        refused("--destdir /d --prefix", "--prefix needs a folder");
        refused("--destdir /d --verbose", "unknown option `--verbose`");
        refused("/d", "unknown option `/d`");
        refused("--destdir /d --prefix usr", "begins with /");
        refused("--destdir /d --prefix /usr/../..", "has no ..");
        refused("--destdir /d --prefix /a:b", "colon");
    }

    #[test]
    fn the_error_names_an_unwritable_folder() {
        let file = std::env::temp_dir().join(format!("ethernot-tree-{}", std::process::id()));
        fs::write(&file, "").expect("a file");
        let tree = Tree::new(&file, Path::new("/usr")).expect("a tree");
        let error = tree.try_to_write(BIN).expect_err("a file is no folder").to_string();
        fs::remove_file(&file).expect("it was there");
        assert!(error.contains("cannot write") && error.contains("ethernot-tree-"), "{error}");
    }
}
