//! Sets the soname of the library. Also links the files in `abi/floor`, so that the library runs
//! with C library 2.28 and later.

include!("../floor/link.rs");

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../floor");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libethernot-dsm.so.0");
    // The handler of page faults stays in the process.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../floor");
    for argument in link_arguments(folder, &["library.S", "files.S"]) {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
