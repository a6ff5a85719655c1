//! Captures the frames of a real run. Then `tshark` reads the file with the project's dissector.
//!
//! If `tshark` is not installed, the test prints a message and does nothing.

#[expect(dead_code, reason = "other tests use what this one does not")]
mod pair;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, process};

use ethernot::{Capture, CaptureClock, Endpoint, OperationOptions, UdpConfig, UdpLink};
use pair::{EVERYTHING, LIMIT, Pair, loopback};

/// Performs every kind of operation, so that every kind of frame is in the capture.
fn run(capture: &Path) {
    let address = "127.0.0.1:0".parse().expect("an address");
    let link = UdpLink::bind(address, &UdpConfig::default()).expect("a link on loopback");
    let link = Capture::create(link, capture, CaptureClock::Wall).expect("a capture file");
    let rights = EVERYTHING.into_iter().fold(ethernot::Rights::NONE, ethernot::Rights::union);
    let pair = Pair::build(Endpoint::builder().link(Box::new(link)), loopback(), rights);
    let (client, server) = (&pair.client, &pair.server);
    let none = OperationOptions::NONE;
    let options = OperationOptions::NOTIFY.immediate(Some(7));
    server.connection.post_receive(&server.region, 0, 4096, 1).expect("a receive");
    let operations = [
        client.connection.write(&client.region, 0, &pair.remote, 0, 300_000, none),
        client.connection.write(&client.region, 0, &pair.remote, 0, 3000, OperationOptions::STRICT),
        client.connection.write_bytes(b"eight by", &pair.remote, 0, options),
        client.connection.read(&client.region, 0, &pair.remote, 0, 100_000, none),
        client.connection.fetch_add(&pair.remote, 0, 1, none),
        client.connection.compare_swap(&pair.remote, 8, 0, 1, none),
        client.connection.send(&client.region, 0, 4096, options),
    ];
    for operation in operations {
        operation.expect("posted").wait(Some(LIMIT)).expect("done");
    }
    client.connection.close(b"enough").expect("closed");
    client.connection.wait_closed(Some(LIMIT)).expect("over");
    client.endpoint.shutdown(Some(LIMIT)).expect("the same process");
}

#[test]
fn a_capture_of_a_real_run_has_every_kind_of_frame_and_none_malformed() {
    if Command::new("tshark").arg("--version").output().is_err() {
        println!("skipped: tshark is not installed");
        return;
    }
    let folder = env::temp_dir().join(format!("ethernot-capture-{}", process::id()));
    fs::create_dir_all(&folder).expect("a folder for the capture");
    let file = folder.join("run.pcapng");
    run(&file);
    let rows = dissect(&file);
    fs::remove_dir_all(&folder).expect("the folder is ours");
    assert!(rows.len() > 40, "{} frames", rows.len());
    let mut kinds: Vec<&str> = rows.iter().map(|row| row.0.as_str()).collect();
    kinds.sort_unstable();
    kinds.dedup();
    // Expect all kinds from the handshake to AtomicResponse. There is no probe of the path MTU,
    // because loopback needs none.
    for kind in ["0", "1", "2", "3", "4", "5", "6", "7", "8"] {
        assert!(kinds.contains(&kind), "no frame of kind {kind} among {kinds:?}");
    }
    for (kind, complaint) in rows {
        assert!(complaint.is_empty(), "a frame of kind {kind}: {complaint}");
    }
}

/// Returns the kind of each frame, and the errors that the dissector reports for the frame.
fn dissect(file: &Path) -> Vec<(String, String)> {
    let script =
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tools/wireshark/ethernot.lua");
    let output = Command::new("tshark")
        .arg("-X")
        .arg(format!("lua_script:{}", script.display()))
        .arg("-r")
        .arg(file)
        .args(["-T", "fields", "-E", "separator=|"])
        .args(["-e", "ethernot.kind", "-e", "ethernot.handshake.step"])
        .args(["-e", "_ws.expert.message", "-e", "_ws.malformed"])
        .output()
        .expect("tshark runs");
    let complaints = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !complaints.contains("Lua"), "tshark: {complaints}");
    let printed = String::from_utf8(output.stdout).expect("tshark prints UTF-8");
    printed
        .lines()
        .map(|line| {
            let mut columns = line.splitn(3, '|');
            let mut column = || columns.next().unwrap_or_default();
            let (kind, step, complaint) = (column(), column(), column());
            let kind = if kind.is_empty() && !step.is_empty() { "0" } else { kind };
            (kind.to_string(), complaint.trim_matches('|').to_string())
        })
        .collect()
}
