//! Tests C programs with servers that are written in Rust.

mod built;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use built::{Server, compiles, libraries};
use ethernot::{Buffer, CompletionKind, Connection, Endpoint, EngineConfig, Rights};

/// Limit of waits. It is far longer than any step of a test, and only limits the time of a failing
/// test.
const LIMIT: Duration = Duration::from_secs(20);

#[test]
fn a_client_in_c_gets_and_puts_at_a_server_in_rust() {
    let folder = libraries();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/key_value.c");
    let Some(program) = program(folder, source, "key_value_client") else {
        return;
    };
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

/// Compiles a C program beside the library, and returns its path. Returns `None` if there is no
/// compiler.
fn program(folder: &Path, source: &str, name: &str) -> Option<PathBuf> {
    let program = folder.join(name);
    let (include, search) =
        (format!("-I{}", folder.join("include").display()), format!("-L{}", folder.display()));
    let path = program.display().to_string();
    let strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-O1"];
    let rest = [&include, source, "-o", &path, &search, "-lethernot"];
    compiles("cc", &[&strict[..], &rest].concat()).then_some(program)
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

/// Size of the area that the C program `patches` changes, in bytes. The word that it swaps follows.
const AREA: usize = 4096;

/// Returns the old bytes of the area.
fn area() -> Vec<u8> {
    (0..AREA).map(|at| (at * 7 % 251) as u8).collect()
}

/// A server in this process for the C program `patches`, which has connected to it.
struct Patched {
    connection: Connection,
    buffer: Arc<Buffer>,
    /// Output of the C program.
    printed: String,
}

/// Runs the C program `patches` at a server. Returns `None` if there is no compiler.
fn patched(engine: EngineConfig, argument: &str) -> Option<Patched> {
    let folder = libraries();
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/patches.c");
    let program = program(folder, source, &format!("patches_{argument}"))?;
    let server = Endpoint::builder().bind("127.0.0.1:0").engine(engine).build();
    let server = server.expect("a server on loopback");
    let buffer = Buffer::new(AREA as u64 + 8);
    buffer.write(0, &area());
    buffer.store_u64(AREA as u64, 40);
    let rights = [Rights::REMOTE_READ, Rights::REMOTE_WRITE, Rights::REMOTE_ATOMIC];
    let rights = rights.into_iter().fold(Rights::NONE, Rights::union);
    let region = server.register(Arc::clone(&buffer), rights).expect("memory is registered");
    let listener = server.listen(0).expect("the service is free");
    let address = server.local_addresses().expect("not forked")[0].to_string();
    thread::scope(|scope| {
        let accepted = scope.spawn(|| {
            let request = listener.accept(Some(LIMIT)).expect("a request");
            request.accept(&region.remote().to_bytes()).expect("the peer is there")
        });
        let printed = answer(&program, folder, &address, &[argument]);
        let connection = accepted.join().expect("the server accepts");
        Some(Patched { connection, buffer, printed })
    })
}

//= protocol.md: patch.6
#[test]
fn a_program_in_c_patches_words_and_swaps_a_word() {
    let Some(Patched { connection, buffer, printed }) = patched(EngineConfig::default(), "all")
    else {
        return;
    };
    assert_eq!(printed, "40\n41", "a swap returns the value that it replaces");
    let mut expected = area();
    // One byte of each changed word: the first byte of the first word, and so on.
    for at in [0, 4 * 31 + 1, 4 * 32 + 2, 4 * 1023 + 3] {
        expected[at] ^= 0xff;
    }
    let mut found = vec![0; AREA];
    buffer.read(0, &mut found);
    assert_eq!(found, expected);
    assert_eq!(buffer.load_u64(AREA as u64), 42);
    let notified = connection.wait_completion(Some(LIMIT)).expect("a notification");
    let facts = (notified.kind, notified.bytes, notified.immediate);
    assert_eq!(facts, (CompletionKind::Notification, 40, Some(5)));
}

//= protocol.md: patch.8
#[test]
fn a_program_in_c_learns_that_its_peer_has_no_patches_and_swaps() {
    let engine = EngineConfig::default().patches(false);
    let Some(Patched { buffer, printed, .. }) = patched(engine, "refused") else {
        return;
    };
    let causes: Vec<&str> = printed.lines().collect();
    assert!(
        causes.len() == 2 && causes.iter().all(|cause| cause.contains("no patches and swaps")),
        "{printed}"
    );
    let mut found = vec![0; AREA];
    buffer.read(0, &mut found);
    assert_eq!((found, buffer.load_u64(AREA as u64)), (area(), 40));
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
