//! Installation from a package and by `install`, into a root file system without other software.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use programs::{CleanRoot, Network, Program, Side, are_installed, expect_both};
use testbed::built::xtask;

/// Programs of rdma-core that use the device.
const PROGRAMS: [&str; 2] = ["rping", "ibv_devinfo"];

/// Runs `xtask` with these arguments and returns its output.
fn done(arguments: &[&str]) -> String {
    let output = xtask(arguments);
    assert!(output.status.success(), "{arguments:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs programs with the libraries installed in `root`.
fn programs_run(root: &CleanRoot, command: &str, port: u16) {
    let network = Network::Loopback;
    let run = |arguments: &str| {
        // Name loopback explicitly, because the device uses loopback by default only if there is no
        // other interface.
        root.program(&format!("{command} run --links udp:127.0.0.1,shm -- {arguments}"))
    };
    let seen = run("ibv_devinfo").run_bare(&network, Side::Client);
    assert!(seen.expect_success().contains("edge0"), "{seen}");
    let both = format!("-a 127.0.0.1 -p {port} -C 100");
    let mut server = run(&format!("rping -s {both}")).start_bare(&network, Side::Server);
    server.wait_for_manager_port(port);
    let client = run(&format!("rping -c {both}")).run_bare(&network, Side::Client);
    expect_both(&[server.finish(), client]);
}

/// The paths that `install` prints with the command to remove them.
const PARTS: [&str; 16] = [
    "bin/ethernot",
    "lib/ethernot",
    "share/ethernot",
    "share/doc/ethernot",
    "lib/libethernot.so.0",
    "lib/libethernot.so",
    "include/ethernot.h",
    "lib/pkgconfig/ethernot.pc",
    "lib/libethernot-dsm.so.0",
    "lib/libethernot-dsm.so",
    "include/ethernot_dsm.h",
    "lib/pkgconfig/ethernot-dsm.pc",
    "bin/iwarp-perf",
    "bin/comb",
    "bin/memory-registration",
    "bin/tcp-perf",
];

/// The programs among `PARTS` that need the headers of rdma-core.
const VERBS_PROGRAMS: [&str; 3] = ["bin/iwarp-perf", "bin/comb", "bin/memory-registration"];

#[test]
fn installed_programs_run_on_a_host_without_other_packages() {
    if !are_installed(&PROGRAMS) {
        return;
    }
    let Some(root) = CleanRoot::with("install", &PROGRAMS) else { return };
    let before = root.content();
    let destination = root.path("").display().to_string();
    let installed = done(&["install", "--debug", "--destdir", &destination]);
    for file in installed.lines() {
        assert!(Path::new(file).is_file(), "{file}");
    }
    let laid: BTreeSet<_> = root.content().difference(&before).cloned().collect();
    let files = laid.iter().filter(|path| path.is_file());
    assert!(files.eq(installed.lines().map(Path::new).collect::<BTreeSet<_>>()), "{installed}");
    assert!(root.path("usr/local/lib/ethernot/libibverbs.so.1").is_file());

    for file in installed.lines().map(Path::new) {
        root.copy_libraries_of(file);
    }
    programs_run(&root, "ethernot", 23_400);
    // Install over existing files. The installation must replace each file by a new file, because
    // a running program still uses the content of the old file.
    let again = done(&["install", "--debug", "--destdir", &destination]);
    assert_eq!(again, installed);
    // Remove the files with the commands that `install` printed.
    for part in PARTS {
        let path = root.path("usr/local").join(part);
        if VERBS_PROGRAMS.contains(&part) && !path.exists() {
            println!("{part} is not built without the headers of librdmacm");
            continue;
        }
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }
            .unwrap_or_else(|error| panic!("{part}: {error}"));
    }
    let left: Vec<_> = root.content().into_iter().filter(|path| laid.contains(path)).collect();
    assert!(left.iter().all(|path| path.is_dir()), "{left:?}");
}

#[test]
fn the_package_leaves_no_trace_and_the_tarball_runs_anywhere() {
    if !are_installed(&PROGRAMS) {
        return;
    }
    for tool in ["dpkg-deb", "dpkg-shlibdeps", "dpkg"] {
        if !Path::new("/usr/bin").join(tool).exists() {
            println!("skipped: `{tool}` is not installed (Debian's packages dpkg and dpkg-dev)");
            return;
        }
    }
    let Some(root) = CleanRoot::with("package", &PROGRAMS) else { return };
    let output = root.path("tmp").display().to_string();
    let packages = done(&["package", "--debug", "--output", &output]);
    let mut paths = packages.lines();
    let [package, tarball] = [(); 2].map(|()| paths.next().expect("two paths"));
    let name = Path::new(package).file_name().and_then(|name| name.to_str()).expect("a name");
    assert!(name.starts_with(&format!("ethernot_{}_", env!("CARGO_PKG_VERSION"))), "{name}");

    let before = root.content();
    let refused = root.dpkg(&["--install", package]);
    assert!(text(&refused.stderr).contains("depends on libc6"), "{}", text(&refused.stderr));
    let removed = root.dpkg(&["--purge", "ethernot"]);
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    assert_eq!(root.content(), before);

    let depends = Program::new("dpkg-deb", "--field").argument(&package).argument(&"Depends");
    let depends = depends.run_bare(&Network::Loopback, Side::Client);
    for wanted in depends.expect_success().trim().split(", ") {
        let wanted = wanted.split_whitespace().next().expect("a name");
        assert!(root.copy_package(wanted), "{wanted} is installed, as it was found here");
    }
    let libraries = root.content();
    let installed = root.dpkg(&["--install", package]);
    assert!(installed.status.success(), "{}", text(&installed.stderr));
    assert!(root.path("usr/bin/ethernot").is_file());
    programs_run(&root, "ethernot", 23_410);

    let removed = root.dpkg(&["--purge", "ethernot"]);
    assert!(removed.status.success(), "{}", text(&removed.stderr));
    let known = fs::read_to_string(root.path("var/lib/dpkg/status")).expect("a list of packages");
    assert!(!known.contains("Package: ethernot\n"), "{known}");
    assert_eq!(root.content(), libraries);

    let place = root.path("any/where");
    fs::create_dir_all(&place).expect("a folder");
    let unpack = Program::new("tar", "--extract --file").argument(&tarball);
    let unpack = unpack.argument(&"--directory").argument(&place.display());
    unpack.run_bare(&Network::Loopback, Side::Client).expect_success();
    let name = Path::new(tarball).file_name().and_then(|name| name.to_str()).expect("a name");
    let folder = name.strip_suffix(".tar.gz").expect("a tarball");
    programs_run(&root, &format!("/any/where/{folder}/bin/ethernot"), 23_420);
}

#[test]
fn an_installation_without_write_permission_fails_at_once() {
    let Some(root) = CleanRoot::with("refusal", &[]) else { return };
    fs::write(root.path("file"), "").expect("a file");
    let place = root.path("file").display().to_string();
    for (arguments, expected) in [
        (&["install", "--destdir", &place][..], "cannot write"),
        (&["install"], "--destdir / is this host"),
        (&["install", "--destdir", &place, "--prefix", "usr"], "begins with /"),
        (&["package", "--output", &place], "cannot write"),
        (&["package", "--fast"], "unknown option `--fast`"),
    ] {
        let refused = xtask(arguments);
        let error = text(&refused.stderr);
        assert!(!refused.status.success() && error.contains(expected), "{arguments:?}: {error}");
    }
}
