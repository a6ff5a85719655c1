//! Checks the symbols of the built libraries. Compares them with the symbols of the system's
//! libraries, and with the symbols that programs of the system need.

mod built;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

use built::folder;

const SYSTEM: &str = "/usr/lib/x86_64-linux-gnu";

/// Our libraries must have every symbol of the system's libraries, in every version.
#[test]
fn no_name_of_the_systems_libraries_is_missing() {
    let mut all_missing = 0;
    for library in ["libibverbs.so.1", "librdmacm.so.1"] {
        let stock = Path::new(SYSTEM).join(library);
        if !stock.exists() {
            println!("skipped: {} is not installed", stock.display());
            continue;
        }
        let (stock, ours) = (names(&stock), names(&folder().join(library)));
        let missing: Vec<_> = stock.difference(&ours).collect();
        assert!(!stock.is_empty() && missing.is_empty(), "{library} has not {missing:?}");
        all_missing += missing.len();
    }
    println!("figure: names that are missing: {all_missing}");
}

/// Every exported symbol must have a version. Internal symbols must be hidden.
#[test]
fn every_exported_symbol_has_a_version() {
    for (library, expected) in [
        ("libibverbs.so.1", "ibv_create_comp_cntr@IBVERBS_1.18"),
        ("libibverbs.so.1", "verbs_register_driver_59@IBVERBS_PRIVATE_59"),
        ("librdmacm.so.1", "rdma_write_cm_event@RDMACM_1.4"),
    ] {
        let names = names(&folder().join(library));
        assert!(names.contains(expected), "{library} has not {expected}");
        let bare: Vec<_> = names.iter().filter(|name| !name.contains('@')).collect();
        assert!(bare.is_empty(), "{library}: {bare:?}");
    }
}

/// The system's programs and modules must find all symbols that they need in our libraries.
#[test]
fn programs_and_modules_of_the_system_load_with_our_libraries() {
    let clients = clients();
    if clients.is_empty() {
        println!("skipped: no program for RDMA is installed");
        return;
    }
    let (count, mut all_unresolved) = (clients.len(), 0);
    for client in clients {
        let output = Command::new("ldd")
            .arg("-r")
            .arg(&client)
            .env("LD_LIBRARY_PATH", folder())
            .output()
            .expect("ldd");
        let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
        text += &String::from_utf8_lossy(&output.stderr);
        let ours = format!("libibverbs.so.1 => {}", folder().display());
        assert!(text.contains(&ours), "{} loads another library:\n{text}", client.display());
        // Ignore symbols of other libraries, because a module gets them from the program that loads
        // the module.
        let unresolved: Vec<&str> = text
            .lines()
            .filter(|line| line.contains("undefined symbol") || line.contains("not found"))
            .filter(|line| {
                ["ibv", "rdma", "verbs", "mlx5", "efa", "IBVERBS", "RDMACM"]
                    .iter()
                    .any(|part| line.contains(part))
            })
            .filter(|line| !line.contains("undefined symbol: Py"))
            .collect();
        assert!(unresolved.is_empty(), "{}: {unresolved:?}", client.display());
        all_unresolved += unresolved.len();
    }
    println!("figure: symbols that clients do not find: {all_unresolved} ({count} clients)");
}

/// Returns the system's files that are linked to `libibverbs.so.1`.
fn clients() -> Vec<PathBuf> {
    let folders = [
        "/usr/bin",
        SYSTEM,
        "/usr/lib/x86_64-linux-gnu/ucx",
        "/usr/lib/python3/dist-packages/pyverbs",
    ];
    let named = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let starts = [
            "ib_",
            "ibv_",
            "raw_ethernet_",
            "rdma",
            "rping",
            "ucmatose",
            "udaddy",
            "udpong",
            "mckey",
            "cmtime",
            "rstream",
            "riostream",
            "rcopy",
            "qperf",
            "libmlx",
            "libefa",
            "libuct",
            "libfabric.so.1",
        ];
        starts.iter().any(|start| name.starts_with(start))
            || path.parent().is_some_and(|folder| folder.ends_with("pyverbs"))
    };
    let mut found = Vec::new();
    for folder in folders {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        for path in entries.flatten().map(|entry| entry.path()).filter(|path| named(path)) {
            if needs_verbs(&path) {
                found.push(path);
            }
        }
    }
    found
}

fn needs_verbs(path: &Path) -> bool {
    let output = Command::new("readelf").arg("-d").arg(path).output().expect("readelf");
    String::from_utf8_lossy(&output.stdout).contains("[libibverbs.so.1]")
}

/// Returns all exported symbols of a library with their versions, including versions that are not
/// the default.
fn names(library: &Path) -> BTreeSet<String> {
    let output = Command::new("nm")
        .args(["-D", "--with-symbol-versions", "--defined-only"])
        .arg(library)
        .output()
        .expect("nm");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| match line.split_whitespace().collect::<Vec<_>>().as_slice() {
            // Ignore absolute symbols, which are the names of the versions.
            [_, "A", _] => None,
            [_, _, name] => Some(name.replace("@@", "@")),
            _ => None,
        })
        .collect()
}
