//! Tests that the header matches the library, and that compilers accept it.

#[expect(dead_code, reason = "other tests use what this one does not")]
#[path = "../../c/tests/built/mod.rs"]
mod built;
#[path = "../../c/tests/built/headers.rs"]
mod headers;

use std::collections::BTreeSet;
use std::process::Command;

use headers::Header;

const HEADER: Header = Header {
    text: include_str!("../include/ethernot_dsm.h"),
    name: "ethernot_dsm.h",
    guard: "ETHERNOT_DSM_H",
    package: "ethernot-dsm-c",
    folder: env!("CARGO_MANIFEST_DIR"),
    temporary: env!("CARGO_TARGET_TMPDIR"),
    functions_least: 15,
};

#[test]
fn the_header_declares_exactly_the_functions_of_the_library() {
    HEADER.declares_exactly_the_functions_of_the_library();
}

#[test]
fn the_header_equals_the_output_of_cbindgen() {
    HEADER.equals_the_output_of_cbindgen();
}

#[test]
fn every_name_in_a_comment_exists() {
    let names = HEADER.named_in_comments();
    assert!(names.contains("ETHERNOT_DSM_RESULT_FAILED") && names.contains("ethernot_dsm_method"));
    // Environment variables.
    let names = ["RANK", "SIZE", "MEET", "METHOD", "THREADS"];
    let variables = names.map(|name| format!("ETHERNOT_DSM_{name}"));
    let variables = variables.each_ref().map(String::as_str);
    HEADER.has_every_name_of_its_comments(&variables);
}

#[test]
fn the_header_compiles_as_c11_and_cpp17_without_warnings() {
    HEADER.compiles();
}

#[test]
fn the_library_exports_exactly_the_functions_of_the_header() {
    let library = built::libraries().join("libethernot-dsm.so");
    let output = Command::new("objdump").arg("--dynamic-syms").arg(library).output();
    let Ok(output) = output else {
        println!("skipped: objdump is not installed; to have it: apt-get install binutils");
        return;
    };
    let text = String::from_utf8_lossy(&output.stdout);
    let is_exported = |line: &&str| line.contains(" .") && line.contains(" g ");
    let exported: BTreeSet<_> = text
        .lines()
        .filter(is_exported)
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    assert!(exported.iter().all(|name| HEADER.text.contains(&format!("{name}("))), "{exported:?}");
    assert!(exported.len() > HEADER.functions_least, "{exported:?}");
}
