//! Checks which crate depends on which, by the layers in `docs/architecture.md`.

use std::path::Path;

use super::Violation;
use crate::workspace::{Package, Workspace};

/// The crates, lowest layer first. A crate may depend only on crates that precede it in this list,
/// so there are no cycles.
const ROOMS: &[Room] = &[
    Room { name: "wire-edge", lean: Lean::SansIo, is_unsafe: false },
    Room { name: "wire-iwarp", lean: Lean::SansIo, is_unsafe: false },
    // The handler of memory faults of a process. Depends on nothing.
    Room { name: "page-faults", lean: Lean::On(&[]), is_unsafe: true },
    Room { name: "mem", lean: Lean::On(&["wire-edge", "page-faults"]), is_unsafe: true },
    Room { name: "work", lean: Lean::SansIo, is_unsafe: false },
    Room { name: "delivery", lean: Lean::SansIo, is_unsafe: false },
    // Decides when threads spin and when they sleep, for the runtime and the simulator.
    Room { name: "waiting", lean: Lean::SansIo, is_unsafe: false },
    Room { name: "semantics", lean: Lean::SansIo, is_unsafe: false },
    Room { name: "engine", lean: Lean::SansIo, is_unsafe: false },
    Room { name: "iwarp", lean: Lean::On(&["wire-iwarp", "delivery"]), is_unsafe: false },
    // A driver moves frames without interpreting them.
    Room { name: "link", lean: Lean::On(&["wire-edge", "mem", "delivery"]), is_unsafe: true },
    Room { name: "runtime", lean: Lean::Below, is_unsafe: true },
    Room { name: "links", lean: Lean::Below, is_unsafe: false },
    // Only the file `registration.rs` of this crate contains `unsafe`.
    Room { name: "verbs", lean: Lean::Below, is_unsafe: true },
    Room { name: "rdma-cm", lean: Lean::On(&["verbs"]), is_unsafe: false },
    // The verbs device over the edge engine, and its connection manager.
    Room { name: "verbs-edge", lean: Lean::Below, is_unsafe: false },
    // The verbs device that speaks iWARP over TCP, and its connection manager.
    Room { name: "verbs-iwarp", lean: Lean::Below, is_unsafe: false },
    // The C ABI of libibverbs and librdmacm: structures and functions.
    Room {
        name: "libibverbs-abi",
        lean: Lean::On(&["work", "verbs", "rdma-cm", "verbs-edge", "verbs-iwarp"]),
        is_unsafe: true,
    },
    Room { name: "sockets", lean: Lean::Below, is_unsafe: false },
    // Interposes on the C library in programs, and depends on nothing.
    Room { name: "paths-abi", lean: Lean::On(&[]), is_unsafe: true },
    // Like `paths-abi`, interposes on the C library in programs.
    Room { name: "sockets-abi", lean: Lean::On(&["sockets"]), is_unsafe: true },
    Room { name: "ethernot", lean: Lean::Below, is_unsafe: false },
    // The objects of the crate `ethernot` for programs written in C.
    Room { name: "ethernot-c", lean: Lean::On(&["ethernot"]), is_unsafe: true },
    // The results that five papers print. The simulator and the benchmarks show them next to their
    // own results.
    Room { name: "papers", lean: Lean::SansIo, is_unsafe: false },
    // The simulator runs the engine itself, without the public API or any real link.
    Room { name: "fabric", lean: Lean::SansIo, is_unsafe: false },
    // The machine of a node of the distributed shared memory. Depends on nothing.
    Room { name: "dsm-protocol", lean: Lean::SansIo, is_unsafe: false },
    // Simulates clusters and their networks; hosts may run the engine.
    Room { name: "interconnect", lean: Lean::SansIo, is_unsafe: false },
    // The command line of programs on other hosts. Depends on nothing.
    Room { name: "remote-shell", lean: Lean::On(&[]), is_unsafe: false },
    // Shared memory for programs: drives that machine over the public API of `ethernot`.
    Room {
        name: "dsm",
        lean: Lean::On(&["page-faults", "ethernot", "dsm-protocol", "remote-shell"]),
        is_unsafe: true,
    },
    // The shared memory for programs written in C.
    Room { name: "ethernot-dsm-c", lean: Lean::On(&["dsm"]), is_unsafe: true },
    // Hosts on one machine, for measurements and tests. Depends on nothing.
    Room { name: "testbed", lean: Lean::On(&[]), is_unsafe: false },
    Room { name: "bench", lean: Lean::Below, is_unsafe: false },
    // Shows results, whose format `bench` defines; does not depend on the crates that produce them.
    Room { name: "report", lean: Lean::On(&["papers", "bench"]), is_unsafe: false },
    Room { name: "ethernot-cli", lean: Lean::Below, is_unsafe: false },
];

/// Tools of the project. A tool may depend on every crate; no crate depends on a tool.
const TOOLS: &[&str] = &["xtask", "dissector", "fuzz-cases", "programs"];

/// The crate that accesses application memory for the others. Crates without I/O may use it,
/// although it contains `unsafe`.
const MEMORY: &str = "mem";

struct Room {
    name: &'static str,
    lean: Lean,
    /// Whether the crate may contain `unsafe`; every other crate forbids it at its root.
    is_unsafe: bool,
}

/// The lower crates on which a crate may depend.
enum Lean {
    /// All crates in lower layers.
    Below,
    /// Only these crates.
    On(&'static [&'static str]),
    /// Only lower crates that have no I/O and no clock, and the crate `mem`. The depending crate
    /// itself has no I/O and no clock either.
    SansIo,
}

/// Checks that dependencies between members of the workspace lead only to lower layers.
pub(super) fn check_arrows(workspace: &Workspace) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in &workspace.packages {
        let place = format!("{}/Cargo.toml", super::place(&workspace.root, &package.folder));
        if TOOLS.contains(&package.name.as_str()) {
            continue;
        }
        if rank(&package.name).is_none() {
            let what = "the crate is not in the table: add it to ROOMS in xtask/src/tidy/arrows.rs and to \
                        docs/architecture.md";
            violations.push(Violation { place, what: what.into() });
            continue;
        }
        for dependency in package.dependencies.iter().filter(|dep| dep.is_local && !dep.is_dev) {
            if let Some(what) = refusal(&package.name, &dependency.name) {
                violations.push(Violation { place: place.clone(), what });
            }
        }
    }
    violations
}

/// Checks that every external dependency has its row in `docs/dependencies.md`.
pub(super) fn check_documented(workspace: &Workspace, documented: &str) -> Vec<Violation> {
    let mut violations = Vec::new();
    for package in &workspace.packages {
        for dependency in package.dependencies.iter().filter(|dependency| !dependency.is_local) {
            let row = format!("| `{}` |", dependency.name);
            if !documented.lines().any(|line| line.starts_with(&row)) {
                violations.push(Violation {
                    place: format!("{}/Cargo.toml", super::place(&workspace.root, &package.folder)),
                    what: format!(
                        "docs/dependencies.md has no line starting with {row} to say why it is used"
                    ),
                });
            }
        }
    }
    violations
}

/// Returns whether the file is part of a crate that does no I/O.
pub(super) fn is_sans_io(workspace: &Workspace, file: &Path) -> bool {
    workspace
        .packages
        .iter()
        .filter(|package| room(&package.name).is_some_and(|room| matches!(room.lean, Lean::SansIo)))
        .any(|package| file.starts_with(package.folder.join("src")))
}

/// Returns whether the package may contain `unsafe`.
pub(super) fn may_be_unsafe(package: &Package) -> bool {
    room(&package.name).is_some_and(|room| room.is_unsafe)
}

/// Returns the reason why `from` may not depend on `to`, if there is one.
fn refusal(from: &str, to: &str) -> Option<String> {
    let to_rank = rank(to);
    let Some(to_rank) = to_rank else {
        return Some(format!("{from} -> {to}: no crate may depend on a tool"));
    };
    if rank(from).is_some_and(|from_rank| to_rank >= from_rank) {
        return Some(format!("{from} -> {to}: the arrow points up; {to} is not below {from}"));
    }
    let is_allowed = match room(from)?.lean {
        Lean::Below => true,
        Lean::On(names) => names.contains(&to),
        Lean::SansIo => to == MEMORY || matches!(room(to)?.lean, Lean::SansIo),
    };
    (!is_allowed).then(|| format!("{from} -> {to}: {from} may not know {to}"))
}

fn room(name: &str) -> Option<&'static Room> {
    ROOMS.iter().find(|room| room.name == name)
}

fn rank(name: &str) -> Option<usize> {
    ROOMS.iter().position(|room| room.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workspace::Dependency;

    #[test]
    fn dependencies_on_lower_layers_are_accepted() {
        for (from, to) in [
            ("delivery", "mem"),
            ("link", "delivery"),
            ("interconnect", "fabric"),
            ("report", "bench"),
        ] {
            assert_eq!(refusal(from, to), None);
        }
    }

    #[test]
    fn dependencies_on_higher_layers_and_on_itself_are_refused() {
        for (from, to) in [("mem", "delivery"), ("bench", "report"), ("mem", "mem")] {
            assert!(refusal(from, to).is_some(), "{from} -> {to}");
        }
    }

    #[test]
    fn crates_without_io_do_not_depend_on_crates_with_io() {
        for to in ["link", "runtime", "links", "ethernot"] {
            assert!(refusal("fabric", to).is_some(), "fabric -> {to}");
        }
        assert!(refusal("link", "semantics").is_some());
        assert!(refusal("link", "engine").is_some());
    }

    #[test]
    fn no_crate_depends_on_a_tool() {
        assert!(refusal("ethernot-cli", "xtask").is_some());
    }

    #[test]
    fn the_violation_names_the_manifest_and_tests_are_exempt() {
        let dependency = |is_dev| Dependency { name: "fabric".into(), is_dev, is_local: true };
        let workspace = workspace_of("delivery", vec![dependency(false), dependency(true)]);
        let places: Vec<_> =
            check_arrows(&workspace).into_iter().map(|violation| violation.place).collect();
        assert_eq!(places, ["crates/delivery/Cargo.toml"]);
    }

    #[test]
    fn a_crate_without_a_layer_is_found() {
        assert_eq!(check_arrows(&workspace_of("attic", Vec::new())).len(), 1);
    }

    #[test]
    fn an_undocumented_dependency_is_found() {
        let dependency = Dependency { name: "libc".into(), is_dev: true, is_local: false };
        let workspace = workspace_of("mem", vec![dependency]);
        assert_eq!(check_documented(&workspace, "| `libc-extra` | mem | calls |").len(), 1);
        assert!(check_documented(&workspace, "| `libc` | mem | calls |").is_empty());
    }

    fn workspace_of(name: &str, dependencies: Vec<Dependency>) -> Workspace {
        let folder = Path::new("/root").join("crates").join(name);
        let (name, version, targets) = (name.into(), String::new(), Vec::new());
        let package = Package { name, version, folder, dependencies, targets };
        Workspace {
            root: "/root".into(),
            target_dir: "/root/target".into(),
            packages: vec![package],
        }
    }
}
