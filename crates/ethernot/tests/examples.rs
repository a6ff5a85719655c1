//! Runs the examples, which check their own results. The waits of the examples have limits, so the
//! tests always end.
#![forbid(unsafe_code)]

#[path = "../examples/completions.rs"]
mod completions;
#[path = "../examples/http.rs"]
mod http;
#[path = "../examples/key_value/main.rs"]
mod key_value;
#[path = "../examples/links.rs"]
mod links;
#[path = "../examples/lock.rs"]
mod lock;
#[path = "../examples/tokio_echo.rs"]
mod tokio_echo;
#[path = "../examples/two_links.rs"]
mod two_links;
#[path = "../examples/work_queue.rs"]
mod work_queue;

#[test]
fn completions_that_are_polled() {
    completions::main().expect("it runs");
}

#[test]
fn links_of_every_kind() {
    links::main().expect("it runs");
}

#[test]
fn http_over_a_byte_stream() {
    http::main().expect("it runs");
}

#[test]
fn key_value_store() {
    key_value::main().expect("it runs");
}

#[test]
fn lock_write_unlock() {
    lock::main().expect("it runs");
}

#[test]
fn an_echo_on_tokio() {
    tokio_echo::main().expect("it runs");
}

#[test]
fn two_links_and_a_failover() {
    two_links::main().expect("it runs");
}

#[test]
fn work_queue_of_several_consumers() {
    work_queue::main().expect("it runs");
}
