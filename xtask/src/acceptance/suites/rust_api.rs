//! The Rust API, and the C and Python APIs that use it.

use super::{printed, tests};
use crate::acceptance::{Bound, Row};

/// A row about a figure that an ignored test of `ethernot` prints.
const fn measured(
    name: &'static str,
    bound: Bound,
    figure: &'static str,
    target: &'static str,
    part: &'static str,
) -> Row {
    printed(name, bound, figure, tests("ethernot", target, part))
}

/// A row about a figure that the tool for the public API counts.
const fn counted(name: &'static str, figure: &'static str, part: &'static str) -> Row {
    printed(name, Bound::AtMost(0.0, "of them"), figure, tests("xtask", "--bin=xtask", part))
}

/// A row about tests, none of which may fail.
const fn none_fails(name: &'static str, package: &'static str, chosen: &'static str) -> Row {
    super::none_fails(name, package, chosen, true)
}

pub(super) const ROWS: &[Row] = &[
    measured(
        "one-sided get against a polling TCP server, passive server, loopback, p50",
        Bound::AtMost(0.8, "x"),
        "get against TCP, p50, loopback",
        "--test=get_against_tcp",
        "get_over_loopback",
    ),
    measured(
        "same, p99",
        Bound::AtMost(1.0, "x"),
        "get against TCP, p99, loopback",
        "--test=get_against_tcp",
        "get_over_loopback",
    ),
    measured(
        "same over virtual Ethernet, p50",
        Bound::AtMost(0.8, "x"),
        "get against TCP, p50, veth",
        "--test=get_against_tcp",
        "get_over_veth",
    ),
    measured(
        "same between namespaces, p99",
        Bound::AtMost(1.0, "x"),
        "get against TCP, p99, veth",
        "--test=get_against_tcp",
        "get_over_veth",
    ),
    measured(
        "awaited operations against handles waited for, 8 B, 1 in flight",
        Bound::AtMost(1.3, "x"),
        "awaited operations against waited, 1 in flight",
        "--test=futures",
        "speeds_of_awaited_operations",
    ),
    measured(
        "same, 64 in flight",
        Bound::AtMost(1.3, "x"),
        "awaited operations against waited, 64 in flight",
        "--test=futures",
        "speeds_of_awaited_operations",
    ),
    none_fails("awaited operations allocate nothing", "ethernot", "--test=no_allocation"),
    measured(
        "4 threads on one connection, operations and messages: answers that reached their thread, none another",
        Bound::AtLeast(1e6, "answers"),
        "answers of 4 threads that reached their thread",
        "--test=receives",
        "speeds_of_threads_that_share_a_connection",
    ),
    measured(
        "same, throughput against one thread",
        Bound::AtLeast(2.0, "x"),
        "throughput of 4 threads against 1",
        "--test=receives",
        "speeds_of_threads_that_share_a_connection",
    ),
    measured(
        "1 MiB reads over two links without a rate against one",
        Bound::AtLeast(0.97, "x"),
        "reads of 1 MiB over two links against one",
        "--test=two_links",
        "reads_over_two_links_against_one",
    ),
    counted(
        "public items without an example",
        "public items without an example",
        "the_public_api_is_listed_and_shown",
    ),
    counted(
        "errors without a cause and remedy; changes of the public API are shown",
        "errors without a remedy",
        "the_public_api_is_listed_and_shown",
    ),
    counted(
        "links broken in rustdoc",
        "links broken in rustdoc",
        "links_of_the_documentation_resolve",
    ),
    none_fails("examples and guides", "ethernot", "--test=examples"),
    none_fails(
        "bad input: a typed error or defined behaviour for each",
        "ethernot",
        "--test=misuse",
    ),
    none_fails("a client in C against a server in Rust", "ethernot-c", "--test=programs"),
    none_fails("bad input of programs in C", "ethernot-c", "--test=misuse"),
    none_fails("the header of C is current, C11 and C++17 take it", "ethernot-c", "--test=header"),
    measured(
        "get of Python's asyncio against Rust's, p50 (after `./x python`, which tests its client)",
        Bound::AtMost(3.0, "x"),
        "Python's asyncio get against Rust's, p50",
        "--test=python_speed",
        "gets_of_asyncio_against_those_of_rust",
    ),
];
