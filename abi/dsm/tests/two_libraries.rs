//! Two libraries of this project in one process: libethernot and libethernot-dsm. Both handle page
//! faults.

#[expect(dead_code, reason = "other tests use what this one does not")]
#[path = "../../c/tests/built/mod.rs"]
mod built;
#[expect(dead_code, reason = "other tests use what this one does not")]
mod ranks;

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use built::libraries;

/// Compiles the program `copies`, and returns its path. Returns `None` if there is no compiler.
fn copies() -> Option<PathBuf> {
    ranks::program("tests/programs/copies.c", "copies", &["-lethernot", "-ldl"])
}

/// A process that the test ends, whatever happens.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // The process may have ended already.
        let _gone = self.0.kill();
        let _status = self.0.wait();
    }
}

/// Returns the speed of `count` writes from one process to another, in MiB/s. With `both`, the
/// second library is loaded in both processes.
fn speed(program: &Path, count: u32, both: bool) -> f64 {
    let library = libraries().join("libethernot-dsm.so");
    let command = |arguments: &[&str]| {
        let mut command = Command::new(program);
        command.env("LD_LIBRARY_PATH", libraries()).args(arguments);
        command.args(both.then_some(&library)).stdout(Stdio::piped());
        command
    };
    let mut server = Process(command(&["serve"]).spawn().expect("the server starts"));
    let mut address = String::new();
    let output = server.0.stdout.as_mut().expect("its output is a pipe");
    BufReader::new(output).read_line(&mut address).expect("it prints its address");
    let client = command(&[address.trim(), &count.to_string()]).stderr(Stdio::piped()).output();
    let client = client.expect("the client runs");
    assert!(client.status.success(), "{}", String::from_utf8_lossy(&client.stderr));
    assert!(server.0.wait().expect("the server ends").success());
    let printed = String::from_utf8_lossy(&client.stdout);
    printed.trim().parse().unwrap_or_else(|_| panic!("{printed:?} is no speed"))
}

#[test]
fn copies_over_shared_memory_are_right_beside_a_shared_memory_of_pages() {
    let Some(program) = copies() else { return };
    assert!(speed(&program, 16, true) > 0.0);
}

/// Number of measurements of each kind. Their median counts.
const ROUNDS: usize = 15;

/// Number of writes of 1 MiB in a measurement, which takes about half a second.
const WRITES: u32 = 2000;

#[test]
#[ignore = "slow: run by `./x acceptance dsm`"]
fn copies_with_two_libraries_against_one() {
    let Some(program) = copies() else { return };
    let ratios = (0..ROUNDS).map(|round| {
        // The first of two measurements is the other one in each round.
        let first = speed(&program, WRITES, round % 2 == 0);
        let second = speed(&program, WRITES, round % 2 != 0);
        if round % 2 == 0 { first / second } else { second / first }
    });
    let mut ratios: Vec<f64> = ratios.collect();
    ratios.sort_by(f64::total_cmp);
    let [least, median, most] = [0, ROUNDS / 2, ROUNDS - 1].map(|at| ratios[at]);
    println!("figure: copies with two libraries against one: {median:.3}");
    println!("from {least:.3} to {most:.3}");
}
