//! The guest's file system: programs of Debian packages, kernel modules and the scripts of
//! `tools/guest`, in one archive that the kernel unpacks into memory.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::archive::Archive;
use super::error::{GuestError, output_of};
use super::kernel::Kernel;
use super::modules;
use super::packages::{self, Package};

/// Packages whose programs a guest contains. Of the packages on which they depend, a guest contains
/// only the libraries.
///
/// `coreutils` is here because busybox's own `timeout`, `nohup` and `env` start applets of busybox
/// instead of programs, for example its `ip`. busybox's shell does the same, hence `dash`.
const PROGRAMS: &[&str] = &[
    "busybox-static",
    "coreutils",
    "dash",
    "ethtool",
    "ibverbs-utils",
    "iperf3",
    "iproute2",
    "perftest",
    "qperf",
    "rdmacm-utils",
    "tcpdump",
];

/// Packages that programs load at run time: the drivers of the devices in user space, and the
/// library that glibc needs to end a thread.
const LIBRARIES: &[&str] = &["ibverbs-providers", "libgcc-s1"];

/// Files that configure the programs.
const SETTINGS: &[(&str, &str)] = &[
    ("etc/passwd", "root:x:0:0:root:/root:/bin/sh\ntcpdump:x:0:0::/root:/bin/sh\n"),
    ("etc/group", "root:x:0:\ntcpdump:x:0:\n"),
    ("etc/hosts", "127.0.0.1 localhost\n"),
    ("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
    ("etc/libibverbs.d/siw.driver", "driver siw\n"),
    ("etc/libibverbs.d/rxe.driver", "driver rxe\n"),
];

/// Programs and scripts of `tools/guest` in the guest's /usr/bin.
const SCRIPTS: &[&str] = &["veth-pair", "await-listener"];

/// Builds the archive from packages in the folder `debs`; unpacks them in `folder`.
pub(crate) fn build(
    kernel: &Kernel,
    tools: &Path,
    folder: &Path,
    debs: &Path,
) -> Result<Vec<u8>, GuestError> {
    let mut archive = Archive::default();
    for link in ["bin", "sbin", "lib", "lib64"] {
        archive.add_link(link, &format!("usr/{link}"));
    }
    for place in ["dev", "proc", "sys", "tmp", "run", "share", "root", "var/tmp"] {
        archive.add_folder(place);
    }
    let names: Vec<String> = PROGRAMS.iter().chain(LIBRARIES).map(|name| (*name).into()).collect();
    for package in packages::fetch_all(&names, debs)? {
        let tree = unpacked(&package, folder)?;
        let has_programs = PROGRAMS.contains(&package.name.as_str());
        add_tree(&tree, &tree, has_programs, &mut archive)?;
    }
    add_link_of_shell(&mut archive);
    for (path, content) in SETTINGS {
        archive.add_file(path, 0o644, content.as_bytes());
    }
    add_modules(kernel, &mut archive)?;
    archive.copy(&tools.join("init"), "init")?;
    for script in SCRIPTS {
        archive.copy(&tools.join(script), &format!("usr/bin/{script}"))?;
    }
    archive.copy(&agent(tools, folder)?, "usr/bin/guest-agent")?;
    Ok(archive.finish())
}

/// Unpacks a package into a folder with the name of its file, unless an earlier build has done so.
fn unpacked(package: &Package, folder: &Path) -> Result<PathBuf, GuestError> {
    let tree = folder.join(package.path.file_stem().unwrap_or_default());
    if !tree.exists() {
        let partial = folder.join("partial");
        if partial.exists() {
            fs::remove_dir_all(&partial).map_err(GuestError::write(&partial))?;
        }
        fs::create_dir_all(&partial).map_err(GuestError::write(&partial))?;
        package.unpack(&partial)?;
        fs::rename(&partial, &tree).map_err(GuestError::write(&tree))?;
    }
    Ok(tree)
}

/// Adds the programs and libraries below `folder`, in a fixed order.
fn add_tree(
    tree: &Path,
    folder: &Path,
    has_programs: bool,
    archive: &mut Archive,
) -> Result<(), GuestError> {
    let read = || GuestError::read(folder);
    let entries = fs::read_dir(folder).map_err(read())?;
    let paths: Result<BTreeSet<PathBuf>, _> = entries.map(|entry| Ok(entry?.path())).collect();
    for path in paths.map_err(read())? {
        if path.is_dir() && !path.is_symlink() {
            add_tree(tree, &path, has_programs, archive)?;
        } else if let Some(place) =
            path.strip_prefix(tree).ok().and_then(|path| place(path, has_programs))
            && !archive.contains(&place)
        {
            archive.copy(&path, &place)?;
        }
    }
    Ok(())
}

/// Returns the place of a package's file in the guest, or `None` if the guest does not need it.
fn place(path: &Path, has_programs: bool) -> Option<String> {
    let path = path.to_str()?;
    // Debian 12 packages still contain /bin, /sbin, /lib and /lib64, which are links in /usr.
    let place = if path.starts_with("usr/") { path.into() } else { format!("usr/{path}") };
    let (folder, file) = place.rsplit_once('/')?;
    let is_program = has_programs && (folder == "usr/bin" || folder == "usr/sbin");
    let is_library = match folder {
        "usr/lib64" | "usr/lib/x86_64-linux-gnu" => file.contains(".so"),
        "usr/lib/x86_64-linux-gnu/libibverbs" => {
            file.starts_with("libsiw") || file.starts_with("librxe")
        }
        _ => false,
    };
    (is_program || is_library).then_some(place)
}

/// Adds /bin/sh, if dash's package leaves it to its installation.
fn add_link_of_shell(archive: &mut Archive) {
    if !archive.contains("usr/bin/sh") {
        archive.add_link("usr/bin/sh", "dash");
    }
}

fn add_modules(kernel: &Kernel, archive: &mut Archive) -> Result<(), GuestError> {
    let mut files = modules::in_order(&kernel.modules)?;
    files.push(kernel.siw.clone());
    let mut order = String::new();
    for file in files {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        archive.copy(&file, &format!("modules/{name}"))?;
        order.push_str(&name);
        order.push('\n');
    }
    archive.add_file("modules/order", 0o644, order.as_bytes());
    Ok(())
}

/// Builds the agent. It is static, so that it runs whatever libraries the guest has.
fn agent(tools: &Path, folder: &Path) -> Result<PathBuf, GuestError> {
    let program = folder.join("agent");
    let warnings = ["-Wall", "-Wextra", "-Werror"];
    let mut command = Command::new("gcc");
    command.args(["-O2", "-static", "-s"]).args(warnings).arg("-o").arg(&program);
    output_of(command.arg(tools.join("agent.c")))?;
    Ok(program)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_come_only_from_chosen_packages_and_libraries_from_all() {
        let of = |path: &str, has_programs| place(Path::new(path), has_programs);
        assert_eq!(of("bin/dash", true).as_deref(), Some("usr/bin/dash"));
        assert_eq!(of("usr/sbin/tc", true).as_deref(), Some("usr/sbin/tc"));
        assert_eq!(of("usr/bin/perl", false), None);
        for library in ["lib/x86_64-linux-gnu/libc.so.6", "lib64/ld-linux-x86-64.so.2"] {
            assert_eq!(of(library, false), Some(format!("usr/{library}")));
        }
    }

    #[test]
    fn only_the_drivers_of_devices_in_a_guest_are_taken() {
        let folder = "usr/lib/x86_64-linux-gnu/libibverbs";
        let taken = |file: &str| place(&Path::new(folder).join(file), false).is_some();
        assert!(taken("libsiw-rdmav34.so") && taken("librxe-rdmav34.so"));
        assert!(!taken("libmlx4-rdmav34.so"));
        for other in ["usr/share/doc/dash/copyright", "usr/lib/x86_64-linux-gnu/gconv/UTF-16.so"] {
            assert_eq!(place(Path::new(other), true), None);
        }
    }
}
