//! Tests the arguments that `ethernot bench verbs` refuses before it measures. Measurements are
//! tested with the libraries, in `abi/programs`.

use std::process::Command;

#[test]
fn bad_input_is_refused_with_the_value_and_the_choices() {
    let refused: [(&[&str], &[&str]); 11] = [
        (&["--tests", "speed"], &["speed", "bandwidth, latency, availability, registration, mpi"]),
        (&["--operations", "atomic"], &["atomic", "write, send, read"]),
        (&["--sizes", "0"], &["0", "above 0"]),
        (&["--sizes", "2048M"], &["2048M", "1024 M"]),
        (&["--windows", "0"], &["0", "--windows"]),
        (&["--windows", "65537"], &["65537", "1..=65536"]),
        (&["--runs", "0"], &["0", "--runs"]),
        (&["--seconds", "1000"], &["1000", "0.001 to 600"]),
        (&["--steering", "maybe"], &["maybe", "on, off"]),
        (&["--protocol-cpu", "--no-pinning"], &["--protocol-cpu", "--no-pinning"]),
        (&["--protocol-cpu", "--peer", "a@b"], &["--protocol-cpu", "--peer"]),
    ];
    for (arguments, wanted) in refused {
        let output = Command::new(env!("CARGO_BIN_EXE_ethernot"))
            .args(["bench", "verbs"])
            .args(arguments)
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}");
        assert!(wanted.iter().all(|word| error.contains(word)), "{arguments:?}: {error}");
    }
}
