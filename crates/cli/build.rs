//! Links against symbol versions that the C library has had since 2.28 (see `abi/floor`).

include!("../../abi/floor/link.rs");

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../abi/floor");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../abi/floor");
    for argument in link_arguments(folder, &["library.S", "files.S", "program.S"]) {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
