//! Finds kernel modules and the order in which a guest loads them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::error::GuestError;

/// Modules that a guest loads, besides `siw`. A module comes after modules that ask the kernel for
/// it only at run time: a guest has no `modprobe`, so the kernel could not load it then.
const WANTED: &[&str] = &[
    "virtio_pci",
    "virtio_net",
    "virtio_console",
    "veth",
    "9pnet_virtio",
    "9p",
    // `libcrc32c`, `siw` and `rxe` ask for their checksums at run time.
    "crc32c_generic",
    "crc32c_intel",
    "crc32_generic",
    "crc32_pclmul",
    "libcrc32c",
    "ib_core",
    "ib_uverbs",
    "iw_cm",
    "rdma_cm",
    "rdma_ucm",
    "rdma_rxe",
    // Delay, loss and rate of interfaces.
    "sch_netem",
    "sch_tbf",
];

/// Returns the files of all modules to load, dependencies first. `folder` is `lib/modules/RELEASE`;
/// modules that are part of the kernel itself are left out.
pub(crate) fn in_order(folder: &Path) -> Result<Vec<PathBuf>, GuestError> {
    let mut files = BTreeMap::new();
    find(&folder.join("kernel"), &mut files)?;
    let builtin_path = folder.join("modules.builtin");
    let builtin = fs::read_to_string(&builtin_path).map_err(GuestError::read(&builtin_path))?;
    let builtin: Vec<String> = builtin.lines().map(|line| name_of(Path::new(line))).collect();
    let mut order = Vec::new();
    for name in WANTED {
        if builtin.iter().any(|other| other == name) {
            continue;
        }
        if !files.contains_key(*name) {
            let what = format!("the kernel has no module `{name}`");
            return Err(GuestError::Content { path: folder.into(), what });
        }
        add(name, &files, &mut order)?;
    }
    Ok(order)
}

/// Adds a module behind the modules on which it depends.
fn add(
    name: &str,
    files: &BTreeMap<String, PathBuf>,
    order: &mut Vec<PathBuf>,
) -> Result<(), GuestError> {
    // A dependency without a file is part of the kernel. The kernel's build rejects circles.
    let Some(file) = files.get(name).filter(|file| !order.contains(file)) else {
        return Ok(());
    };
    let content = fs::read(file).map_err(GuestError::read(file))?;
    for dependency in dependencies(&content) {
        add(&dependency, files, order)?;
    }
    order.push(file.clone());
    Ok(())
}

/// Returns the names in the entry `depends=` of a module's section `.modinfo`. The section consists
/// of texts `KEY=VALUE`, each ended by a zero byte.
fn dependencies(module: &[u8]) -> Vec<String> {
    let text = module.split(|byte| *byte == 0).find_map(|text| text.strip_prefix(b"depends="));
    let text = String::from_utf8_lossy(text.unwrap_or_default());
    text.split(',').filter(|name| !name.is_empty()).map(plain).collect()
}

fn find(folder: &Path, files: &mut BTreeMap<String, PathBuf>) -> Result<(), GuestError> {
    for entry in fs::read_dir(folder).map_err(GuestError::read(folder))? {
        let path = entry.map_err(GuestError::read(folder))?.path();
        if path.is_dir() {
            find(&path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "ko") {
            files.insert(name_of(&path), path);
        }
    }
    Ok(())
}

/// Returns the module's name, given its file.
fn name_of(file: &Path) -> String {
    plain(&file.file_stem().unwrap_or_default().to_string_lossy())
}

/// Replaces the hyphens in a module's name. The kernel takes both characters for the same.
fn plain(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_from_the_modules_information() {
        let module = b"\x7fELF\0author=x\0depends=ib_core,crc32-pclmul\0retpoline=Y\0";
        assert_eq!(dependencies(module), ["ib_core", "crc32_pclmul"]);
        assert!(dependencies(b"a\0depends=\0b").is_empty());
        assert!(dependencies(b"").is_empty());
    }

    #[test]
    fn a_module_comes_after_its_dependencies_and_once() {
        let folder = std::env::temp_dir().join(format!("xtask-modules-{}", std::process::id()));
        fs::create_dir_all(&folder).expect("a folder");
        let mut files = BTreeMap::new();
        for (name, depends) in [("a", ""), ("b", "a,builtin"), ("c", "b,a")] {
            let file = folder.join(format!("{name}.ko"));
            fs::write(&file, format!("x\0depends={depends}\0")).expect("a file");
            files.insert(name.to_owned(), file);
        }
        let mut order = Vec::new();
        for name in ["c", "a", "b"] {
            add(name, &files, &mut order).expect("readable files");
        }
        fs::remove_dir_all(&folder).expect("removed");
        let names: Vec<String> = order.iter().map(|file| name_of(file)).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }
}
