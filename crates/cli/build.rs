//! Links against symbol versions of C library 2.28, so that the command also starts on hosts with
//! an older C library (see `abi/floor`).

include!("../../abi/floor/link.rs");

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../abi/floor");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../abi/floor");
    for argument in link_arguments(folder, &["library.S", "files.S", "program.S"]) {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
