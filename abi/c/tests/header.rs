//! Tests that the header matches the library, and that compilers accept it.

#[expect(dead_code, reason = "other tests use what this one does not")]
mod built;
#[path = "built/headers.rs"]
mod headers;

use headers::Header;

const HEADER: Header = Header {
    text: include_str!("../include/ethernot.h"),
    name: "ethernot.h",
    guard: "ETHERNOT_H",
    package: "ethernot-c",
    folder: env!("CARGO_MANIFEST_DIR"),
    temporary: env!("CARGO_TARGET_TMPDIR"),
    functions_least: 30,
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
    assert!(names.contains("ETHERNOT_WAITING_SPIN_FOR") && names.contains("ethernot_waiting"));
    HEADER.has_every_name_of_its_comments(&[]);
}

#[test]
fn the_header_compiles_as_c11_and_cpp17_without_warnings() {
    HEADER.compiles();
}
