//! Tells programs which version of the library they were linked to.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libethernot.so.0");
}
