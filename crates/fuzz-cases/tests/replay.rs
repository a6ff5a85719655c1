//! Runs every fuzz target without a fuzzer: on the inputs in its corpus, then on inputs derived
//! from the corpus. The derived inputs are the same in every run. `./x fuzz` searches for further
//! failures.

mod engine_frames;

use std::path::{Path, PathBuf};
use std::{env, fs, process, thread};

use fabric::Random;
use fuzz_cases::{CASES, Case};

/// Number of inputs derived for each target. Their runs take a second or two.
const MADE: u64 = 20_000;

/// Number of inputs derived for a target whose runs take hundreds of times as long as others.
const MADE_OF_SLOW: u64 = 1_000;

/// Length of the longest input in bytes. It has room for some frames, and for enough bytes to
/// decide all steps of a slow target.
const BYTES_MAX: u64 = 2_048;

#[test]
fn connection_manager() {
    replay("connection_manager");
}

#[test]
fn control_messages() {
    replay("control_messages");
}

#[test]
fn decode_datagram() {
    replay("decode_datagram");
}

#[test]
fn decode_frame() {
    replay("decode_frame");
}

#[test]
fn decode_handshake() {
    replay("decode_handshake");
}

#[test]
fn dsm_greeting() {
    replay("dsm_greeting");
}

#[test]
fn dsm_node() {
    replay("dsm_node");
}

#[test]
fn redirect_port() {
    replay("redirect_port");
}

#[test]
fn engine_frames_in_any_order() {
    replay_as("engine_frames", engine_frames::run, MADE_OF_SLOW);
}

#[test]
fn ethernet_frame() {
    replay("ethernet_frame");
}

#[test]
fn greeting() {
    replay("greeting");
}

#[test]
fn iwarp_frames() {
    replay("iwarp_frames");
}

#[test]
fn iwarp_streams() {
    replay("iwarp_streams");
}

#[test]
fn goal_trace() {
    replay("goal_trace");
}

#[test]
fn shm_messages() {
    replay("shm_messages");
}

#[test]
fn shm_ring() {
    replay("shm_ring");
}

#[test]
fn every_target_has_its_case_and_every_case_its_target() {
    let mut targets: Vec<String> = fs::read_dir(project().join("fuzz/fuzz_targets"))
        .expect("the targets")
        .map(|entry| entry.expect("a file").path())
        .filter_map(|path| Some(path.file_stem()?.to_str()?.to_owned()))
        .collect();
    targets.sort();
    let mut cases = CASES.map(|(name, _)| name).to_vec();
    cases.push("engine_frames");
    cases.sort_unstable();
    assert_eq!(targets, cases);
}

fn replay(name: &str) {
    let (_, case) = CASES.into_iter().find(|(case, _)| *case == name).expect("a case");
    replay_as(name, case, MADE);
}

fn replay_as(name: &str, case: Case, made: u64) {
    let corpus = corpus(name);
    for bytes in &corpus {
        run(name, case, bytes);
    }
    let mut random = Random::new(0x6661_7a7a);
    for _ in 0..made {
        run(name, case, &make(&corpus, &mut random));
    }
}

/// Runs a case. If it panics, stores the input and prints its path.
fn run(name: &str, case: Case, bytes: &[u8]) {
    let _kept = KeptOnPanic { name, bytes };
    case(bytes);
}

struct KeptOnPanic<'a> {
    name: &'a str,
    bytes: &'a [u8],
}

impl Drop for KeptOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let path = env::temp_dir().join(format!("ethernot-{}-{}", self.name, process::id()));
            let location = fs::write(&path, self.bytes).map_or_else(
                |error| format!("could not be kept ({error}): {:02x?}", self.bytes),
                |()| format!("is in {}; belongs into fuzz/corpus/{}", path.display(), self.name),
            );
            println!("the input {location}");
        }
    }
}

/// Returns an input of the corpus with a few changes, or random bytes.
fn make(corpus: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    if corpus.is_empty() || random.below(8) == 0 {
        let length = random.below(random.clone().between(1, BYTES_MAX));
        return (0..length).map(|_| random.next_u64() as u8).collect();
    }
    let one = |random: &mut Random| &corpus[random.below(corpus.len() as u64) as usize];
    let mut bytes = one(random).clone();
    for _ in 0..=random.below(4) {
        let place = random.below(bytes.len() as u64 + 1) as usize;
        match random.below(5) {
            0 => bytes.truncate(place),
            1 => bytes.insert(place, random.next_u64() as u8),
            2 => {
                // Replaces the end with the end of another input.
                let other = one(random);
                bytes.truncate(place);
                bytes.extend(other.iter().skip(place));
            }
            3 => {
                // Writes a number that is a limit of its type.
                let number = random.pick(&[0, 1, u64::MAX >> 1, u64::MAX - 1, u64::MAX]);
                let width = 1 << random.below(4);
                for (byte, value) in
                    bytes.iter_mut().skip(place).zip(number.to_le_bytes()).take(width)
                {
                    *byte = value;
                }
            }
            _ => {
                if let Some(byte) = bytes.get_mut(place) {
                    *byte ^= 1 << random.below(8);
                }
            }
        }
    }
    bytes.truncate(BYTES_MAX as usize);
    bytes
}

/// Returns the stored inputs of a target, in the order of their names. Returns an empty list if the
/// target has none.
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let Ok(entries) = fs::read_dir(project().join("fuzz/corpus").join(name)) else {
        return Vec::new();
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("a file").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("an input")).collect()
}

fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
