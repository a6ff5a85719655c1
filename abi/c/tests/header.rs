//! Tests that the header matches the library, and that compilers accept it.

#[expect(dead_code, reason = "other tests use what this one does not")]
mod built;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;

const HEADER: &str = include_str!("../include/ethernot.h");

/// Compares the functions that the sources export with those of the header.
#[test]
fn the_header_declares_exactly_the_functions_of_the_library() {
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
    assert_eq!(exported, in_header, "make it again: see cbindgen.toml");
}

/// Runs the program in `CBINDGEN`, or the installed `cbindgen`. The version must be at least 0.29,
/// because older versions do not parse this edition of Rust.
#[test]
fn the_header_equals_the_output_of_cbindgen() {
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
    assert_eq!(made, HEADER, "make it again: see cbindgen.toml");
}

/// Returns the names that appear in comments of the header and that the header must declare.
fn named_in_comments() -> BTreeSet<&'static str> {
    let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
    let comments = HEADER.split("/*").skip(1).filter_map(|rest| rest.split("*/").next());
    let words = comments.flat_map(|comment| comment.split(move |letter| !is_part(letter)));
    let is_ours = |word: &&str| word.to_ascii_lowercase().starts_with("ethernot_");
    // Omit the include guard, which the header defines without a value.
    words.filter(is_ours).filter(|word| *word != "ETHERNOT_H").collect()
}

#[test]
fn every_name_in_a_comment_exists() {
    let names = named_in_comments();
    assert!(names.contains("ETHERNOT_WAITING_SPIN_FOR") && names.contains("ethernot_waiting"));
    let mut program = String::from("#include <ethernot.h>\nint main(void) {\n");
    for name in &names {
        let is_type = name.starts_with('e') && !HEADER.contains(&format!("{name}("));
        let used = if is_type { format!("({name} *)0") } else { (*name).to_owned() };
        writeln!(program, "    (void)({used});").expect("a string takes everything");
    }
    program += "    return 0;\n}\n";
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let include = concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include");
    for (compiler, source) in [("cc", "names.c"), ("c++", "names.cc")] {
        let source = folder.join(source);
        fs::write(&source, &program).expect("a folder for tests");
        let source = source.display().to_string();
        built::compiles(compiler, &["-Wall", "-Werror", "-fsyntax-only", include, &source]);
    }
}

#[test]
fn the_header_compiles_as_c11_and_cpp17_without_warnings() {
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/include/ethernot.h");
    let strict = ["-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only"];
    for (compiler, language, standard) in [("cc", "c", "-std=c11"), ("c++", "c++", "-std=c++17")] {
        let arguments = [&strict[..], &[standard, "-x", language, header]].concat();
        built::compiles(compiler, &arguments);
    }
}
