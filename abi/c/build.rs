//! Tells programs which version of the library they were linked to, and has it start where the C library is as old as
//! 2.28 (see `abi/floor`).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../floor");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libethernot.so.0");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../floor");
    for file in ["library.S", "files.S"] {
        println!("cargo::rustc-cdylib-link-arg={folder}/{file}");
    }
    let parts = [
        "-Wl,--push-state,--no-as-needed",
        "-l:libpthread.so.0",
        "-l:libdl.so.2",
        "-Wl,--pop-state",
    ];
    for argument in parts {
        println!("cargo::rustc-cdylib-link-arg={argument}");
    }
}
