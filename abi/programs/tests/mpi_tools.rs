//! `mpi-perf` and `comb-mpi` with Debian's MPICH over the edge: they print valid documents, compare
//! all bytes, and print errors for invalid arguments.

use std::path::{Path, PathBuf};

use programs::{Finished, Hosts, Launcher, Program, are_installed, build_mpi_tool, over_us};
use serde_json::Value;

/// Builds the program with MPICH's compiler and returns its path. Returns `None` and prints the
/// reason if MPICH is not installed.
fn built(name: &str) -> Option<PathBuf> {
    if !are_installed(&["mpiexec.mpich", "mpicc.mpich"]) {
        return None;
    }
    build_mpi_tool(Path::new("mpicc.mpich"), "mpich", name)
}

/// Runs a tool with `ranks` ranks on two hosts.
fn run(name: &str, ranks: u32, words: &str) -> Option<Finished> {
    let program = built(name)?;
    let hosts = Hosts::two()?;
    let launcher = Launcher::Hydra("mpiexec.mpich".into());
    let program = over_us("", &Program::new(&program.display().to_string(), words));
    Some(hosts.start(&launcher, ranks, "", &program).finish())
}

/// Returns the JSON document in the output. The output also contains messages of launcher and
/// libraries.
fn document(ended: &Finished) -> Value {
    let output = ended.expect_success();
    let start = output.find("{\n").expect(output);
    let mut documents = serde_json::Deserializer::from_str(&output[start..]).into_iter();
    documents.next().and_then(Result::ok).unwrap_or_else(|| panic!("no document: {ended}"))
}

#[test]
fn every_byte_that_mpi_perf_moves_arrives_unchanged() {
    for test in ["bandwidth", "both-ways", "latency"] {
        let shapes = if test == "latency" { "" } else { "--window 1,7" };
        let words = format!(
            "--test {test} --sizes 1,1000,100K {shapes} --iterations 3 --runs 2 --check --json"
        );
        let Some(ended) = run("mpi-perf", 2, &words) else { return };
        let document = document(&ended);
        assert_eq!(document["test"], test);
        let points = document["points"].as_array().expect("a list of points");
        assert_eq!(points.len(), if test == "latency" { 3 } else { 6 }, "{ended}");
    }
}

#[test]
fn comb_over_mpi_prints_every_point() {
    for method in ["polling", "post-work-wait"] {
        let words = format!(
            "--method {method} --sizes 1,100K --queue 3 --intervals 100,100K --seconds 0.05 --check --json"
        );
        let Some(ended) = run("comb-mpi", 2, &words) else { return };
        let document = document(&ended);
        assert_eq!(document["method"], method);
        assert_eq!(document["over"], "mpi");
        let points = document["points"].as_array().expect("a list of points");
        assert_eq!(points.len(), 4, "{ended}");
    }
}

#[test]
fn other_numbers_of_ranks_and_wrong_values_are_refused() {
    for name in ["mpi-perf", "comb-mpi"] {
        let Some(ended) = run(name, 4, "") else { return };
        assert!(!ended.is_success() && ended.output.contains("4 ranks: 2 are needed"), "{ended}");
        let Some(ended) = run(name, 2, "--sizes 0") else { return };
        assert!(
            !ended.is_success() && ended.output.contains("--sizes 0: a whole number"),
            "{ended}"
        );
    }
}
