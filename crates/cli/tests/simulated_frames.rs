//! Tests `ethernot sim` on hosts with the real engine, as a user runs it: capture files, prices,
//! comparisons.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use wire_edge::{
    ETHERTYPE_DEFAULT, Envelope, EnvelopeKind, control_messages, decode, decode_handshake,
};

const ENGINES: &str = "[topology]\nhosts = 4\n[host]\nkind = \"edge\"\nrails = 2\n[workload]\nkind = \
                       \"all_to_all\"\nalgorithm = \"at_once\"\nbytes = 20000\niterations = 2\n";

/// A folder that is removed with its contents on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("frames-{name}"));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn with(self, name: &str, text: &str) -> Self {
        fs::write(self.0.join(name), text).unwrap();
        self
    }

    fn sim(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ethernot"));
        command.current_dir(&self.0).arg("sim").args(arguments).output().unwrap()
    }

    fn text(&self, arguments: &[&str]) -> String {
        let output = self.sim(arguments);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.text(arguments)).unwrap()
    }

    fn error(&self, arguments: &[&str]) -> String {
        let output = self.sim(arguments);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    }

    fn capture(&self, name: &str) -> Capture {
        Capture::read(&fs::read(self.0.join(name)).unwrap())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The contents of a pcapng file.
#[derive(Debug, Default, PartialEq)]
struct Capture {
    interfaces: Vec<String>,
    packets: Vec<Packet>,
}

#[derive(Debug, PartialEq)]
struct Packet {
    interface: usize,
    at_ns: u64,
    is_sent: bool,
    bytes: Vec<u8>,
}

impl Capture {
    fn read(mut rest: &[u8]) -> Self {
        let mut capture = Self::default();
        while !rest.is_empty() {
            let word = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
            let total = word(4) as usize;
            match word(0) {
                // A block that describes an interface. The first option is the name.
                1 => {
                    let length = usize::from(rest[18]);
                    let name = rest[20..20 + length].to_vec();
                    capture.interfaces.push(String::from_utf8(name).unwrap());
                }
                6 => {
                    let length = word(20) as usize;
                    assert_eq!(length, word(24) as usize, "nothing is cut");
                    let flags = 28 + length.next_multiple_of(4) + 4;
                    capture.packets.push(Packet {
                        interface: word(8) as usize,
                        at_ns: u64::from(word(12)) << 32 | u64::from(word(16)),
                        is_sent: word(flags) == 2,
                        bytes: rest[28..28 + length].to_vec(),
                    });
                }
                _ => {}
            }
            rest = &rest[total..];
        }
        capture
    }
}

/// Returns the edge frame in an Ethernet frame, and the host numbers in its destination and source
/// address.
fn opened(packet: &[u8]) -> ([u8; 2], &[u8]) {
    assert_eq!(packet[12..14], ETHERTYPE_DEFAULT.to_be_bytes());
    let (envelope, frame) = Envelope::decode(&packet[14..]).expect("an envelope");
    assert_eq!((envelope.kind, usize::from(envelope.length)), (EnvelopeKind::Frame, frame.len()));
    ([packet[4], packet[10]], frame)
}

fn assert_is_valid(frame: &[u8]) {
    if frame[0] == 0 {
        decode_handshake(frame).expect("a handshake");
        return;
    }
    let decoded = decode(frame).expect("a frame");
    if decoded.header == wire_edge::Header::Control {
        assert!(control_messages(decoded.payload).all(|message| message.is_ok()));
    }
}

#[test]
fn a_capture_has_the_sent_frames_and_does_not_change_the_result() {
    let folder = Folder::new("whole").with("engines.toml", ENGINES);
    let result = folder.json(&["run", "engines.toml", "--pcapng", "a.pcapng", "--json"]);
    let without = folder.json(&["run", "engines.toml", "--json"]);
    assert_eq!(result["result_hash"], without["result_hash"]);
    let capture = folder.capture("a.pcapng");
    let mut interfaces = capture.interfaces.clone();
    interfaces.sort();
    let all = (0..4).flat_map(|host| (0..2).map(move |rail| format!("h{host} rail {rail}")));
    assert_eq!(interfaces, all.collect::<Vec<_>>());
    let sent: Vec<&Packet> = capture.packets.iter().filter(|packet| packet.is_sent).collect();
    assert_eq!(sent.len() as u64, result["engines"]["frames_sent"].as_u64().unwrap());
    let received = capture.packets.len() - sent.len();
    assert_eq!(received as u64, result["engines"]["frames_received"].as_u64().unwrap());
    let completed_ns = (result["completed_us"].as_f64().unwrap() * 1e3) as u64;
    let mut payload_bytes = 0;
    for packet in &capture.packets {
        let ([to, from], frame) = opened(&packet.bytes);
        let own = if packet.is_sent { from } else { to };
        assert!(capture.interfaces[packet.interface].starts_with(&format!("h{own} ")));
        assert!(packet.at_ns <= completed_ns + 10_000_000, "{}", packet.at_ns);
        assert_is_valid(frame);
        if packet.is_sent && frame[0] != 0 {
            payload_bytes += decode(frame).map_or(0, |frame| frame.payload.len());
        }
    }
    // Each of four hosts sends to three others, twice.
    assert!(payload_bytes >= 4 * 3 * 2 * 20_000, "{payload_bytes}");
    // Every received frame was sent before, with equal bytes.
    for packet in capture.packets.iter().filter(|packet| !packet.is_sent) {
        let at =
            sent.iter().find(|sent| sent.bytes == packet.bytes).expect("somebody sent it").at_ns;
        assert!(at < packet.at_ns, "{at} {}", packet.at_ns);
    }
}

#[test]
fn a_capture_has_the_selected_hosts_and_number_of_frames() {
    let folder = Folder::new("some").with("engines.toml", ENGINES);
    let run = ["run", "engines.toml", "--pcapng", "a.pcapng"];
    folder.text(&[&run[..], &["--pcapng-hosts", "3,1"]].concat());
    let mut interfaces = folder.capture("a.pcapng").interfaces;
    interfaces.sort();
    assert_eq!(interfaces, ["h1 rail 0", "h1 rail 1", "h3 rail 0", "h3 rail 1"]);

    let all = folder.capture("a.pcapng").packets;
    let few = folder.sim(&[&run[..], &["--pcapng-hosts", "1,3", "--pcapng-frames", "7"]].concat());
    let printed = String::from_utf8(few.stderr).unwrap();
    assert!(
        printed.contains(&format!("{} later frames were not captured", all.len() - 7)),
        "{printed}"
    );
    assert_eq!(folder.capture("a.pcapng").packets[..], all[..7]);
}

#[test]
fn impossible_captures_are_refused_with_a_reason() {
    let folder = Folder::new("refused").with("engines.toml", ENGINES).with("model.toml", "");
    let error = folder.error(&["run", "model.toml", "--pcapng", "a.pcapng"]);
    assert!(error.contains("set kind = \"edge\" in [host]"), "{error}");
    assert!(!folder.0.join("a.pcapng").exists());
    let error =
        folder.error(&["run", "engines.toml", "--pcapng", "a.pcapng", "--pcapng-hosts", "4"]);
    assert!(error.contains("no host 4; hosts have the numbers 0 to 3"), "{error}");
    let error = folder.error(&["run", "engines.toml", "--pcapng-hosts", "0"]);
    assert!(error.contains("--pcapng <FILE>"), "{error}");
    let error = folder.error(&["run", "engines.toml", "--pcapng", "no/such/a.pcapng"]);
    assert!(error.contains("make its folder first"), "{error}");
}

/// The dissector decodes lost frames, plain acknowledgements and handshakes without reporting an
/// error. Skipped, with a message, if `tshark` is not installed.
#[test]
fn tshark_reads_frames_of_simulated_hosts() {
    let more = "loss_ppm = 20000\nconnects_ahead = false\npayload = \"bytes\"\n";
    let text = ENGINES.replace("rails = 2\n", &format!("rails = 2\n{more}"));
    let marks = "[fabric]\nshared_bytes = 100000\necn_max_bytes = 3000\n";
    let datagrams = text.replace("[workload]", &format!("ecn = true\n{marks}[workload]"));
    let folder = Folder::new("tshark").with("raw.toml", &text).with("udp.toml", &datagrams);
    for name in ["raw", "udp"] {
        let file = format!("{name}.pcapng");
        folder.text(&["run", &format!("{name}.toml"), "--pcapng", &file]);
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/wireshark/ethernot.lua");
        let columns = [
            "frame.interface_name",
            "ethernot.kind",
            "ethernot.envelope.checksum.status",
            "ip.dsfield.ecn",
            "_ws.expert.message",
            "ethernot.handshake.step",
        ];
        let output = Command::new("tshark")
            .args(["-n", "-r"])
            .arg(folder.0.join(&file))
            .args(["-o", "ethernot.udp_port:4791", "-X"])
            .arg(format!("lua_script:{}", script.display()))
            .args(["-T", "fields", "-E", "separator=;"])
            .args(columns.iter().flat_map(|column| ["-e", column]))
            .output();
        let Ok(output) = output else {
            println!("skipped: tshark is not installed");
            return;
        };
        let rows = String::from_utf8(output.stdout).unwrap();
        let rows: Vec<Vec<&str>> = rows.lines().map(|row| row.split(';').collect()).collect();
        assert!(rows.len() > 500, "{}: {}", rows.len(), String::from_utf8_lossy(&output.stderr));
        assert!(rows.iter().any(|row| number(row[5]).is_some()), "handshakes");
        for row in &rows {
            assert!(row[0].starts_with('h') && row[0].contains(" rail "), "{row:?}");
            // A frame belongs either to a handshake or to a connection.
            assert_ne!(number(row[1]).is_some(), number(row[5]).is_some(), "{row:?}");
            assert_eq!(row[4], "", "{row:?}");
            assert_eq!(row[2], if name == "raw" { "good" } else { "" }, "{row:?}");
        }
        let is_marked = rows.iter().any(|row| number(row[3]) == Some(3));
        assert_eq!(is_marked, name == "udp");
    }
}

/// Parses a column of tshark, decimal or hexadecimal.
fn number(column: &str) -> Option<u64> {
    match column.strip_prefix("0x") {
        Some(hexadecimal) => u64::from_str_radix(hexadecimal, 16).ok(),
        None => column.parse().ok(),
    }
}

#[test]
fn the_price_of_a_cluster_includes_all_rails() {
    let one = "[topology]\nhosts = 4\n[fabric]\nhost_rate_bps = 1_000_000_000\n";
    let workload = "[workload]\nkind = \"ring\"\niterations = 2\n";
    let engines = format!("{one}{workload}[host]\nkind = \"edge\"\nrails = 2\n");
    let models = format!("{one}rails = 2\n{workload}");
    let folder = Folder::new("cost")
        .with("one.toml", &format!("{one}{workload}"))
        .with("engines.toml", &engines)
        .with("models.toml", &models);
    let cost = |name: &str| folder.json(&["cost", name, "--simulate", "--json"]);
    let (one, engines, models) = (cost("one.toml"), cost("engines.toml"), cost("models.toml"));
    let field = |cost: &Value, name: &str| cost[name].as_f64().unwrap();
    for name in ["total", "per_node", "bisection_bits_per_second"] {
        for two in [&engines, &models] {
            let ratio = field(two, name) / field(&one, name);
            assert!((ratio - 2.0).abs() < 1e-9, "{name}: {ratio}");
        }
    }
    assert!(field(&engines, "completed_us") > 0.0);
}

#[test]
fn the_output_says_that_engines_are_not_compared_with_models() {
    let folder = Folder::new("compare").with("engines.toml", ENGINES);
    let error = folder.error(&["compare", "engines.toml"]);
    assert!(error.contains("kind = \"model\"") && error.contains("[host]"), "{error}");
}
