//! Links this library to symbol versions that the C library has had since 2.28 (see `abi/floor`).

include!("../floor/link.rs");

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../floor");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../floor");
    // Omit `files.S`, because this library itself defines the functions on files.
    for argument in link_arguments(folder, &["library.S"]) {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
