//! `cargo xtask package`: packs the tree of `install` as a package for Debian and its derivatives,
//! and as a tarball for other systems.

use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use crate::building::checked;
use crate::error::XtaskError;
use crate::install::{Built, DOCUMENTS, FILE, FOLDER, PROGRAM, Tree, lay, make_folder};
use crate::libraries;
use crate::libraries_c::FOR_C;
use crate::workspace::Workspace;

const USAGE: &str = "\
package [--output DIR] [--debug]

  --output DIR  where package and tarball go [default: package in the folder of all that is built]
  --debug       what tests use: soon built, and slow";

/// Builds the package and the tarball, and prints their paths.
pub(crate) fn run(workspace: &Workspace, arguments: &[String]) -> Result<ExitCode, XtaskError> {
    let work = workspace.target_dir.join("package");
    let (output, is_release) = parse(arguments).map_err(|what| XtaskError::Usage { what })?;
    let output = output.unwrap_or_else(|| work.clone());
    let output = std::path::absolute(&output)
        .map_err(|cause| XtaskError::Write { path: output.clone(), cause })?;
    let architecture = said(Command::new("dpkg").arg("--print-architecture"))?;
    make_folder(&output)?;
    let built = Built::build(workspace, is_release)?;
    // An earlier run may have left this folder.
    remove(&work.join(NAME))?;
    let mut tree = Tree::new(&work.join(NAME), Path::new("/usr"))?;
    lay(&mut tree, workspace, &built)?;
    let about = About::of(workspace, architecture)?;
    let copyright = format!("{DOCUMENTS}/copyright");
    tree.write(&copyright, COPYRIGHT.as_bytes(), FILE)?;
    let changelog = format!("{DOCUMENTS}/changelog");
    tree.write(&changelog, about.changelog().as_bytes(), FILE)?;
    checked(Command::new("gzip").args(["-9nf"]).arg(tree.path(&changelog)))?;
    let depends = depends(&work)?;
    describe(&work, &about, &depends)?;

    let package = output.join(format!("{NAME}_{}_{}.deb", about.version, about.architecture));
    let mut command = Command::new("dpkg-deb");
    command.env("SOURCE_DATE_EPOCH", &about.seconds).args(["--root-owner-group", "--build"]);
    if !is_release {
        command.arg("-Znone");
    }
    command.arg(work.join(NAME)).arg(&package).stdout(Stdio::null());
    checked(&mut command)?;
    println!("{}", package.display());
    println!("{}", tarball(workspace, &built, &about, [&work, &output], is_release)?.display());
    Ok(ExitCode::SUCCESS)
}

/// Creates a tarball with one folder, which can be unpacked anywhere. Returns the path of the
/// tarball.
fn tarball(
    workspace: &Workspace,
    built: &Built,
    about: &About,
    [work, output]: [&Path; 2],
    is_release: bool,
) -> Result<PathBuf, XtaskError> {
    let name = format!("{NAME}-{}-{}", about.version, std::env::consts::ARCH);
    remove(&work.join(&name))?;
    let mut tree = Tree::new(&work.join(&name), Path::new("/"))?;
    lay(&mut tree, workspace, built)?;
    tree.place(&workspace.root.join("LICENSE"), &format!("{DOCUMENTS}/LICENSE"), FILE)?;
    let path = output.join(format!("{name}.tar.gz"));
    let compress = if is_release { "gzip -9n" } else { "gzip -1n" };
    let mut command = Command::new("tar");
    // These options make the bytes reproducible.
    command.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    command.arg(format!("--mtime=@{}", about.seconds)).args(["--use-compress-program", compress]);
    command.arg("--create").arg("--file").arg(&path).arg("--directory").arg(work).arg(&name);
    checked(&mut command)?;
    Ok(path)
}

fn parse(arguments: &[String]) -> Result<(Option<PathBuf>, bool), String> {
    let (mut output, mut is_release) = (None, true);
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--debug" => is_release = false,
            "--output" => {
                let folder = arguments.next().filter(|folder| !folder.is_empty());
                let folder = folder.ok_or_else(|| format!("--output needs a folder\n{USAGE}"))?;
                output = Some(PathBuf::from(folder));
            }
            other => return Err(format!("unknown option `{other}`\n{USAGE}")),
        }
    }
    Ok((output, is_release))
}

/// The metadata of the package.
struct About {
    version: String,
    architecture: String,
    maintainer: String,
    /// The time of the sources' commit, in seconds since 1970. It depends only on the sources, so
    /// that packages of equal sources have equal bytes.
    seconds: String,
    /// The time of the sources' commit, in the format of mail headers.
    date: String,
}

impl About {
    fn of(workspace: &Workspace, architecture: String) -> Result<Self, XtaskError> {
        let package = workspace.package_of_program(NAME);
        let package = package.ok_or_else(|| XtaskError::NotBuilt { program: NAME.into() })?;
        let set = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let committed = || {
            let arguments = ["log", "-1", "--format=%ct"];
            said(Command::new("git").arg("-C").arg(&workspace.root).args(arguments)).ok()
        };
        // Without a git repository there is no commit time, so this uses the current time.
        let seconds = match set("SOURCE_DATE_EPOCH").or_else(committed) {
            Some(seconds) => seconds,
            None => said(Command::new("date").arg("+%s"))?,
        };
        let at = format!("@{seconds}");
        let date = said(Command::new("date").env("LC_ALL", "C").args(["-u", "-R", "-d", &at]))?;
        let name = set("DEBFULLNAME").unwrap_or_else(|| "Ethernot maintainers".into());
        let address = set("DEBEMAIL").unwrap_or_else(|| "maintainers@ethernot.invalid".into());
        let maintainer = format!("{name} <{address}>");
        let version = package.version.clone();
        Ok(Self { version, architecture, maintainer, seconds, date })
    }

    fn control(&self, depends: &str, size_kib: u64) -> String {
        let Self { version, architecture, maintainer, .. } = self;
        let depends =
            if depends.is_empty() { String::new() } else { format!("Depends: {depends}\n") };
        format!(
            "Package: {NAME}\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: {maintainer}\n\
             Installed-Size: {size_kib}\n{depends}Suggests: ibverbs-utils, perftest, rdmacm-utils\n\
             Section: net\nPriority: optional\n{DESCRIPTION}"
        )
    }

    fn changelog(&self) -> String {
        let Self { version, maintainer, date, .. } = self;
        format!(
            "{NAME} ({version}) unstable; urgency=medium\n\n  * What users notice: CHANGELOG.md in this folder.\n\n \
             -- {maintainer}  {date}\n"
        )
    }
}

/// Returns the packages that programs and libraries in the tree need, from the output of
/// `dpkg-shlibdeps`.
fn depends(work: &Path) -> Result<String, XtaskError> {
    // `dpkg-shlibdeps` expects a source package and the root of the package's tree.
    let debian = work.join("debian");
    make_folder(&debian)?;
    make_folder(&work.join(NAME).join(HEAD))?;
    let path = debian.join("control");
    let source = format!("Source: {NAME}\n\nPackage: {NAME}\nArchitecture: any\n");
    fs::write(&path, source).map_err(|cause| XtaskError::Write { path, cause })?;
    let mut command = Command::new("dpkg-shlibdeps");
    // Without this option the tool would add the system's package libibverbs1, because one of the
    // project's libraries needs the project's own libibverbs.so.1.
    command.current_dir(work).args(["-O", "--ignore-missing-info", "-xlibibverbs1"]);
    command.arg(format!("-l{NAME}/usr/{FOLDER}")).arg(format!("-e{NAME}/usr/{PROGRAM}"));
    command.args(libraries::SHARED.map(|name| format!("-e{NAME}/usr/{FOLDER}/{name}")));
    command.args(FOR_C.map(|library| format!("-e{NAME}/usr/lib/{}", library.versioned())));
    let text = said(&mut command)?;
    Ok(text.strip_prefix("shlibs:Depends=").unwrap_or_default().to_owned())
}

/// Writes the control files of the package, and the checksums of its files.
fn describe(work: &Path, about: &About, depends: &str) -> Result<(), XtaskError> {
    let tree = work.join(NAME);
    let mut files = Vec::new();
    collect(&tree.join("usr"), &mut files)?;
    files.sort();
    let mut bytes = 0;
    let mut sums = Command::new("md5sum");
    sums.current_dir(&tree);
    for file in &files {
        let found = fs::metadata(file);
        bytes += found.map_err(|cause| XtaskError::Read { path: file.clone(), cause })?.len();
        sums.arg(file.strip_prefix(&tree).unwrap_or(file));
    }
    let mut sums = said(&mut sums)?;
    let _ = writeln!(sums);
    let control = tree.join(HEAD);
    for (name, text) in
        [("md5sums", sums), ("control", about.control(depends, bytes.div_ceil(1024)))]
    {
        let path = control.join(name);
        fs::write(&path, text)
            .and_then(|()| fs::set_permissions(&path, fs::Permissions::from_mode(FILE)))
            .map_err(|cause| XtaskError::Write { path, cause })?;
    }
    Ok(())
}

/// Collects all files below a folder.
fn collect(folder: &Path, files: &mut Vec<PathBuf>) -> Result<(), XtaskError> {
    let read = |cause| XtaskError::Read { path: folder.into(), cause };
    for entry in fs::read_dir(folder).map_err(read)? {
        let path = entry.map_err(read)?.path();
        if path.is_dir() { collect(&path, files)? } else { files.push(path) }
    }
    Ok(())
}

/// Returns the output of a command without its last line end.
fn said(command: &mut Command) -> Result<String, XtaskError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.stderr(Stdio::inherit()).output().map_err(|cause| {
        let program = match program.as_str() {
            "dpkg-shlibdeps" => format!("{program} (Debian's package dpkg-dev)"),
            "dpkg" => format!("{program} (packages are built on Debian and its kin)"),
            _ => program.clone(),
        };
        XtaskError::Start { program, cause }
    })?;
    if !output.status.success() {
        return Err(XtaskError::Failed { program, status: output.status });
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim_end().to_owned())
}

fn remove(folder: &Path) -> Result<(), XtaskError> {
    match fs::remove_dir_all(folder) {
        Err(cause) if cause.kind() != std::io::ErrorKind::NotFound => {
            Err(XtaskError::Write { path: folder.into(), cause })
        }
        _ => Ok(()),
    }
}

/// The folder of the package's control files.
const HEAD: &str = "DEBIAN";

/// Name of the package and of the program in it.
const NAME: &str = "ethernot";

const DESCRIPTION: &str = "\
Description: RDMA over ordinary Ethernet, in user space
 Runs unmodified RDMA programs on hosts without an RDMA adapter: `ethernot run'
 gives programs that use libibverbs or librdmacm a device over the network that
 is there, without a kernel module and without privileges.
 .
 Also measures, simulates clusters and their interconnects, and tells which
 links a host can have.
";

const COPYRIGHT: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: ethernot

Files: *
Copyright: The Ethernot authors
License: Apache-2.0
 On Debian systems the text of the Apache License 2.0 is in
 /usr/share/common-licenses/Apache-2.0.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_name_the_wrong_argument() {
        let parsed = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
            parse(&words)
        };
        assert_eq!(parsed(&[]), Ok((None, true)));
        assert_eq!(parsed(&["--debug", "--output", "x"]), Ok((Some("x".into()), false)));
        for (words, expected) in [(["--output"], "needs a folder"), (["x"], "unknown option `x`")] {
            let error = parsed(&words).expect_err("it is wrong");
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn the_package_header_has_the_fields_that_debian_requires() {
        let about = About {
            version: "1.2.3".into(),
            architecture: "amd64".into(),
            maintainer: "A <a@b.invalid>".into(),
            seconds: "0".into(),
            date: "Thu, 01 Jan 1970 00:00:00 +0000".into(),
        };
        let control = about.control("libc6 (>= 2.34)", 7);
        for field in ["Package: ethernot\n", "Version: 1.2.3\n", "Depends: libc6 (>= 2.34)\n"] {
            assert!(control.contains(field), "{control}");
        }
        assert!(control.ends_with(" have.\n") && !control.contains("\n\n"), "{control}");
        assert!(!about.control("", 7).contains("Depends"));
        let changelog = about.changelog();
        assert!(changelog.starts_with("ethernot (1.2.3) unstable; urgency=medium\n\n  * "));
        assert!(changelog.ends_with("\n\n -- A <a@b.invalid>  Thu, 01 Jan 1970 00:00:00 +0000\n"));
    }
}
