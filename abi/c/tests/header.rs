//! The header says what the library has, and compilers take it.

#[expect(dead_code, reason = "other tests use what this one does not")]
mod built;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

const HEADER: &str = include_str!("../include/ethernot.h");

/// Names that the sources give to C: functions, and the constants of enums and others.
#[test]
fn the_header_has_every_function_of_the_library_and_no_other() {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut exported = BTreeSet::new();
    for file in fs::read_dir(sources).expect("the sources").flatten() {
        let text = fs::read_to_string(file.path()).expect("a source");
        let mut lines = text.lines();
        while lines.by_ref().any(|line| line.contains("no_mangle")) {
            let name = lines.next().and_then(|line| line.split("extern \"C\" fn ").nth(1));
            let name = name.and_then(|rest| rest.split('(').next()).expect("a function of C");
            exported.insert(name.to_owned());
        }
    }
    let declared =
        |line: &&str| !line.starts_with([' ', '/', '#', '*']) && line.contains("ethernot_");
    let named = HEADER.lines().filter(declared).filter_map(|line| line.split('(').next());
    let in_header = named.filter_map(|line| line.split([' ', '*']).next_back());
    let in_header: BTreeSet<_> =
        in_header.filter(|name| HEADER.contains(&format!("{name}("))).map(str::to_owned).collect();
    assert!(exported.len() > 30, "{exported:?}");
    assert_eq!(exported, in_header, "make it anew: see cbindgen.toml");
}

/// By the program that `CBINDGEN` names, or the one there is: from 0.29 on, as older ones do not read this edition.
#[test]
fn the_header_is_what_cbindgen_makes_of_the_library() {
    let program = std::env::var("CBINDGEN").unwrap_or_else(|_| "cbindgen".into());
    let version = Command::new(&program).arg("--version").output();
    let version = version.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let minor = version.ok().and_then(|text| text.trim().split('.').nth(1)?.parse::<u32>().ok());
    if minor.is_none_or(|minor| minor < 29) {
        println!("skipped: no cbindgen 0.29 (cargo install cbindgen, or name it in CBINDGEN)");
        return;
    }
    let folder = env!("CARGO_MANIFEST_DIR");
    let output = Command::new(program)
        .current_dir(folder)
        .args(["--quiet", "--config", "cbindgen.toml", "--crate", "ethernot-c"])
        .output()
        .expect("cbindgen runs");
    let made = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(made, HEADER, "make it anew: see cbindgen.toml");
}

#[test]
fn compilers_of_c11_and_cpp17_take_the_header_without_a_warning() {
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/include/ethernot.h");
    let strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"];
    for (compiler, language, standard) in [("cc", "c", "-std=c11"), ("c++", "c++", "-std=c++17")] {
        let arguments = [&strict[..], &[standard, "-x", language, header]].concat();
        built::compiles(compiler, &arguments);
    }
}
