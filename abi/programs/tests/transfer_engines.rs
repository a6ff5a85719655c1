//! Transfer engines of inference servers, installed from wheels: Mooncake and NIXL between two
//! hosts, without settings.

use std::path::Path;
use std::{env, fs, process};

use programs::{Network, Program, Side, over_us, wheel};

#[test]
fn mooncake_discovers_and_uses_the_device() {
    uses_the_device("mooncake-transfer-engine-non-cuda", "transfer_mooncake.py");
}

#[test]
fn nixl_discovers_and_uses_the_device() {
    uses_the_device("nixl-cu12", "transfer_nixl.py");
}

/// Runs a program of `clients` with a wheel's Python on two hosts, and checks that its data went
/// over the device.
fn uses_the_device(name: &str, program: &str) {
    let Some(folder) = wheel(name) else { return };
    let Some(network) = Network::namespaces() else { return };
    let place = env::temp_dir().join(format!("ethernot-{name}-{}", process::id()));
    fs::create_dir_all(&place).expect("a folder");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("clients").join(program);
    let python = folder.join("bin/python").display().to_string();
    let side = |role: &str, address: String| {
        let words = [script.display().to_string(), role.into(), address];
        let program = words.iter().fold(Program::new(&python, "-B"), Program::argument);
        // The wheel's virtual environment uses this user's Python, which an unprivileged user may
        // not be able to read. So the program runs as the user of the test.
        over_us("", &program.argument(&place.join("meeting").display())).by_root()
    };
    let client = network.client_address().expect("both sides have an address").to_string();
    let sides = [Side::Server, Side::Client];
    let before = sides.map(|side| network.sent(side));
    let server = side("server", network.server_address().to_string());
    let server = server.start_bare(&network, Side::Server);
    let client = side("client", client).run_bare(&network, Side::Client);
    let server = server.finish();
    let sent = sides.map(|side| network.sent(side));
    fs::remove_dir_all(&place).expect("the folder is ours");
    for ended in [&client, &server] {
        let output = ended.expect_success();
        assert!(output.contains(": done"), "{ended}");
        let is_error = |line: &&str| line.contains("ERROR") || line.starts_with('E');
        assert_eq!(output.lines().find(is_error), None, "{ended}");
    }
    let [of_server, of_client] = [sent[0] - before[0], sent[1] - before[1]];
    // Each side sends at least 8 MiB. Over TCP these bytes would need at least 128 segments,
    // because a segment has at most 64 KiB. The two sides use TCP only to set up their connection.
    for sent in [of_server, of_client] {
        assert!(sent.segments < 100 && sent.datagrams > 16, "{sent:?}");
    }
    println!("figure: segments of TCP that {program} sends: {}", of_client.segments);
}
