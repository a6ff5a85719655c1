//! The programs of `tools/perf` on siw and rxe, the RDMA devices of the Linux kernel, in the guest
//! of `cargo xtask guest build`. Without a guest, the tests are skipped.
//!
//! Both ends of a connection are processes of the guest, because rxe works only in the first
//! network namespace of a kernel. The guest has the programs and the libraries of rdma-core, but
//! nothing of this project's libraries.

use programs::{Card, Finished, Guest, Libraries, Place};
use serde_json::Value;

/// A device of the guest's kernel, with the transport that the programs print.
#[derive(Clone, Copy)]
struct Device {
    /// Name of the kernel's driver. The guest's device has this name, followed by 0.
    driver: &'static str,
    transport: &'static str,
}

const SIW: Device = Device { driver: "siw", transport: "iWARP" };
const RXE: Device = Device { driver: "rxe", transport: "InfiniBand" };

const NAMES: [&str; 4] = ["iwarp-perf", "comb", "memory-registration", "tcp-perf"];

/// A guest whose network card has one of the devices, with the programs in its shared folder.
struct Trial {
    guest: Guest,
    device: Device,
    /// Paths of the programs in the guest, in the order of [`NAMES`].
    inside: Vec<String>,
}

impl Trial {
    /// Starts a guest. Returns `None` and prints the reason if there is no guest, or if the
    /// programs are not built.
    fn start(device: Device) -> Option<Self> {
        let folder = Libraries::built().folder().join("perf");
        let missing = NAMES.iter().find(|name| !folder.join(name).is_file());
        if let Some(name) = missing {
            println!(
                "skipped: {name} is not built without the headers of librdmacm (Debian's package librdmacm-dev)"
            );
            return None;
        }
        let guest = Guest::start(Card::User, &format!("perf-{}", device.driver))?;
        let inside = NAMES.iter().map(|name| guest.share(&folder.join(name))).collect();
        guest.replace_device(device.driver);
        Some(Self { guest, device, inside })
    }

    fn program(&self, name: &str) -> &str {
        let place = NAMES.iter().position(|other| *other == name).expect("one of the programs");
        &self.inside[place]
    }

    /// Starts a server in the guest. Runs clients with each of `kinds` as further arguments, and
    /// passes their documents to `check`. Then ends the server.
    fn serve(&self, name: &str, of_server: &str, kinds: &[&str], check: impl Fn(&Value, &str)) {
        let program = self.program(name);
        let address = self.guest.own_address(Place::Guest);
        let mut server = self.guest.start_inside(&format!("{program} --keep {of_server}"));
        server.wait_for_output("listening on port");
        for kind in kinds {
            let command = format!("{program} {address} {kind} --check --json");
            let ended = self.guest.run_inside(&command);
            check(&self.document(&ended), kind);
        }
        drop(server);
    }

    /// Runs the programs as a user who may lock less memory than they register. No server is needed,
    /// because the programs register their memory before they connect.
    fn refuse_too_little_locked_memory(&self) {
        let address = self.guest.own_address(Place::Guest);
        for name in ["iwarp-perf", "comb", "memory-registration"] {
            let bind = if name == "memory-registration" { "--bind " } else { "" };
            let words = format!("{} {bind}{address} --sizes 1M", self.program(name));
            let limited = format!("ulimit -l 64; exec {words}");
            let command = format!("chroot --userspec=65534:65534 / sh -c '{limited}'");
            let ended = self.guest.run_inside(&command);
            assert!(!ended.is_success() && ended.output.contains("(ulimit -l)"), "{ended}");
        }
    }

    /// Returns the document that a program printed.
    fn document(&self, ended: &Finished) -> Value {
        assert!(ended.is_success(), "{ended}\n{}", self.guest.messages());
        serde_json::from_str(&ended.output).unwrap_or_else(|error| panic!("{error}: {ended}"))
    }

    /// Checks that a document is of this device.
    fn expect_device(&self, document: &Value, kind: &str) {
        assert_eq!(document["device"]["name"], format!("{}0", self.device.driver), "{kind}");
        assert_eq!(document["device"]["transport"], self.device.transport, "{kind}");
    }
}

/// Returns the points of a document, and checks their number.
fn points<'a>(document: &'a Value, count: usize, kind: &str) -> &'a [Value] {
    let points = document["points"].as_array().expect("a list of points");
    assert_eq!(points.len(), count, "{kind}: {document}");
    points
}

fn is_positive(value: &Value) -> bool {
    value.as_f64() > Some(0.0)
}

/// Checks a document of `iwarp-perf` or `tcp-perf`: all bytes were compared, and each run has a
/// figure.
fn expect_speeds(document: &Value, kind: &str, sizes: usize) {
    assert_eq!(document["checked"], true, "{kind}");
    let is_latency = kind.contains("latency");
    for point in points(document, if is_latency { sizes } else { 2 * sizes }, kind) {
        let runs = point["runs"].as_array().expect("a list of runs");
        let amount = if is_latency { "rounds" } else { "bytes" };
        let is_whole = |run: &Value| is_positive(&run[amount]) && is_positive(&run["seconds"]);
        assert!(runs.len() == 2 && runs.iter().all(is_whole), "{kind}: {document}");
    }
}

/// Checks a document of `comb`, which compares all bytes of the messages it counts.
fn expect_availability(document: &Value, kind: &str) {
    for point in points(document, 4, kind) {
        for run in point["runs"].as_array().expect("a list of runs") {
            let has_figure = |name: &str| is_positive(&run[name]);
            assert!(has_figure("availability") && has_figure("seconds"), "{kind}: {document}");
            assert!(kind.contains("polling") || has_figure("bytes"), "{kind}: {document}");
        }
    }
}

/// The measurements of `iwarp-perf`: each operation, each test, and both manners of waiting.
const SPEEDS: [&str; 9] = [
    "--test bandwidth --operation write",
    "--test bandwidth --operation send --events",
    "--test bandwidth --operation read",
    "--test both-ways --operation write --events",
    "--test both-ways --operation send",
    "--test both-ways --operation read --events",
    "--test latency --operation write",
    "--test latency --operation send --events",
    "--test latency --operation read --events",
];

/// Runs the four programs on a device, with few repetitions. The sizes are less than, equal to and
/// more than a packet.
fn programs_run_on(device: Device) {
    let Some(trial) = Trial::start(device) else { return };
    let shapes = |kind: &str| {
        let window = if kind.contains("latency") { "" } else { "--window 1,7" };
        format!("{kind} --sizes 2,1000,100K {window} --iterations 3 --runs 2")
    };
    let kinds = SPEEDS.map(shapes);
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    trial.serve("iwarp-perf", "", &kinds, |document, kind| {
        trial.expect_device(document, kind);
        expect_speeds(document, kind, 3);
    });

    let kinds = ["--test bandwidth", "--test both-ways --events", "--test latency"].map(shapes);
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    trial.serve("tcp-perf", "", &kinds, |document, kind| expect_speeds(document, kind, 3));

    let methods = ["polling", "post-work-wait"];
    let kinds = methods.map(|method| {
        format!("--method {method} --sizes 88,100K --queue 3 --intervals 10,100K --seconds 0.05")
    });
    let kinds: Vec<&str> = kinds.iter().map(String::as_str).collect();
    trial.serve("comb", "", &kinds, |document, kind| {
        assert_eq!(document["device"]["name"], format!("{}0", trial.device.driver), "{kind}");
        expect_availability(document, kind);
    });

    let words = "--sizes 1,4K,100001,2M --threads 1,2 --iterations 2 --check --json";
    let address = trial.guest.own_address(Place::Guest);
    let program = trial.program("memory-registration");
    let ended = trial.guest.run_inside(&format!("{program} --bind {address} {words}"));
    let document = trial.document(&ended);
    trial.expect_device(&document, words);
    for point in points(&document, 4 * 2, words) {
        for quantity in ["register", "deregister", "move", "register_and_move"] {
            assert!(is_positive(&point[quantity]["median_us"]), "{quantity}: {document}");
        }
    }
    trial.refuse_too_little_locked_memory();
    println!("figure: programs of tools/perf that run on {}: {}", device.driver, NAMES.len());
}

#[test]
fn programs_run_on_siw() {
    programs_run_on(SIW);
}

#[test]
fn programs_run_on_rxe() {
    programs_run_on(RXE);
}
