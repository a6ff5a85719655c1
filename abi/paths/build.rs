//! Has the library start where the C library is as old as 2.28 (see `abi/floor`).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../floor");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../floor");
    // Functions of files are the library's own.
    println!("cargo::rustc-cdylib-link-arg={folder}/library.S");
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
