//! Has the command start where the C library is as old as 2.28 (see `abi/floor`).

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=../../abi/floor");
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../abi/floor");
    for file in ["library.S", "files.S", "program.S"] {
        println!("cargo::rustc-link-arg-bins={folder}/{file}");
    }
    let parts = [
        "-Wl,--push-state,--no-as-needed",
        "-l:libpthread.so.0",
        "-l:libdl.so.2",
        "-Wl,--pop-state",
    ];
    for argument in parts {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
