//! Tests C programs with servers that are written in Rust.

mod built;

use std::path::Path;
use std::process::Command;

use built::{Server, compiles, libraries};

#[test]
fn a_client_in_c_gets_and_puts_at_a_server_in_rust() {
    let folder = libraries();
    let program = folder.join("key_value_client");
    let (include, search) =
        (format!("-I{}", folder.join("include").display()), format!("-L{}", folder.display()));
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/key_value.c");
    let program_path = program.display().to_string();
    let strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"];
    let rest = [&include, source, "-o", &program_path, &search, "-lethernot"];
    if !compiles("cc", &[&strict[..], &rest].concat()) {
        return;
    }
    let server = Server::start();
    let run = |arguments: &[&str]| answer(&program, folder, &server.address, arguments);
    assert_eq!(run(&["get", "42"]), "none");
    assert_eq!(run(&["put", "42", "a value"]), "true");
    assert_eq!(run(&["get", "42"]), "a value");
    assert_eq!(run(&["message", "42", "another value"]), "true");
    assert_eq!(run(&["get", "42"]), "another value");
    assert_eq!(run(&["put", "7", &"x".repeat(96)]), "true");
    assert_eq!(run(&["get", "7"]), "x".repeat(96));
}

fn answer(program: &Path, libraries: &Path, address: &str, arguments: &[&str]) -> String {
    let output = Command::new(program)
        .env("LD_LIBRARY_PATH", libraries)
        .arg(address)
        .args(arguments)
        .output()
        .expect("the client runs");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {error}");
    String::from_utf8_lossy(&output.stdout).trim_end().to_owned()
}

#[test]
fn pkg_config_finds_the_library() {
    let folder = libraries();
    let output = Command::new("pkg-config")
        .env("PKG_CONFIG_PATH", folder.join("pkgconfig"))
        .args(["--cflags", "--libs", "ethernot"])
        .output();
    let Ok(output) = output else {
        println!("skipped: pkg-config is not installed");
        return;
    };
    let printed = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(
        printed.contains("-lethernot") && printed.contains("-I") && printed.contains("-L"),
        "{printed}"
    );
}
