//! Compares the speed at which NumPy reads shared memory that another process has written with that
//! of native reads.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::AtomicU32;

use dsm::launch::{Launch, Streams};

/// Prints the speed of NumPy against that of native reads, which alternate. Two processes fill
/// halves of an array of 64 MiB, and read the half of the other at the same time. The test builds the
/// package in the environment that `./x python` makes, with optimisations. Run it alone:
///
/// ```sh
/// cargo test --release -p dsm --test numpy_speed -- --ignored --nocapture
/// ```
#[test]
#[ignore = "slow: run by `./x acceptance dsm`, after `./x python`; measures"]
fn reads_by_numpy_against_native_reads() {
    let programs = testbed::built::target_folder().join("python/venv/bin");
    let python = programs.join("python");
    if !has_numpy(&python) || !programs.join("maturin").exists() {
        println!(
            "skipped: {} cannot import `numpy`, or has no `maturin`; to install them there: ./x python",
            python.display()
        );
        return;
    }
    let package = package(&programs);
    let mut ratios = [Vec::new(), Vec::new()];
    for _ in 0..TURNS {
        let native = native();
        let found = numpy(&python, &package);
        println!("native {native:.3e} B/s, NumPy {:.3e}, with a hint {:.3e}", found[0], found[1]);
        for (ratios, bytes_per_second) in ratios.iter_mut().zip(found) {
            ratios.push(bytes_per_second / native);
        }
    }
    let names = ["NumPy against native reads", "NumPy with a hint against native reads"];
    for (mut ratios, name) in ratios.into_iter().zip(names) {
        ratios.sort_by(f64::total_cmp);
        println!("{name}: {:.2} to {:.2}", ratios[0], ratios[TURNS - 1]);
        println!("figure: {name}: {:.3}", ratios[TURNS / 2]);
    }
}

/// Returns whether the interpreter runs and has NumPy.
fn has_numpy(python: &Path) -> bool {
    let mut imports = Command::new(python);
    imports.args(["-c", "import numpy"]).stderr(Stdio::null());
    imports.status().is_ok_and(|status| status.success())
}

/// Builds the package with optimisations, and returns the folder with its modules. The package that
/// `./x python` installs has none.
fn package(programs: &Path) -> PathBuf {
    let folder = testbed::built::target_folder().join("python");
    let (wheels, modules) = (folder.join("release-wheels"), folder.join("release-modules"));
    for old in [&wheels, &modules] {
        if old.exists() {
            fs::remove_dir_all(old).expect("the folder of an earlier build can be removed");
        }
    }
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/ethernot");
    let mut maturin = Command::new(programs.join("maturin"));
    maturin.args(["build", "--release", "--quiet", "--locked", "--out"]).arg(&wheels);
    maturin.current_dir(sources).env("CARGO_TARGET_DIR", &folder);
    run(&mut maturin);
    let wheel = fs::read_dir(&wheels).expect("maturin makes the folder").next();
    let wheel = wheel.expect("maturin makes a wheel").expect("the folder can be read").path();
    let mut unpack = Command::new(programs.join("python"));
    run(unpack.args(["-m", "zipfile", "-e"]).args([&wheel, &modules]));
    modules
}

fn run(command: &mut Command) {
    let status = command.status().expect("the program starts");
    assert!(status.success(), "{command:?} ends with {status}");
}

/// Returns the mean speed of the two processes of the example `native_reads`, in bytes a second.
fn native() -> f64 {
    let folder = testbed::built::build("dsm", &["--example", "native_reads"]);
    let program = folder.join("examples/native_reads");
    let start = |address: Option<&OsStr>| {
        let mut command = Command::new(&program);
        command.args(address).stdout(Stdio::piped()).spawn().expect("the example is built")
    };
    let mut first = start(None);
    let mut lines = BufReader::new(first.stdout.take().expect("a pipe"));
    let mut address = String::new();
    lines.read_line(&mut address).expect("it prints its address");
    let mut second = start(Some(OsStr::new(address.trim())));
    let mut rest = String::new();
    lines.read_to_string(&mut rest).expect("it prints its speed");
    let mut other = String::new();
    let mut output = second.stdout.take().expect("a pipe");
    output.read_to_string(&mut other).expect("it prints its speed");
    let ended = |process: &mut Child| process.wait().is_ok_and(|status| status.success());
    assert!(ended(&mut first) && ended(&mut second), "{rest}{other}");
    let speed = |text: &str| text.trim().parse::<f64>().expect("bytes a second");
    f64::midpoint(speed(&rest), speed(&other))
}

/// Returns the mean speeds of two ranks without and with a hint, in bytes a second.
fn numpy(python: &Path, package: &Path) -> [f64; 2] {
    let (mut output, mut errors) = (Vec::new(), Vec::new());
    let streams = Streams { output: &mut output, errors: &mut errors };
    // The threads of OpenBLAS spin, and would take the processors from the ranks.
    let launch = Launch::new(2, python)
        .arguments(["-c", SCRIPT])
        .variable("PYTHONPATH", package)
        .variable("OPENBLAS_NUM_THREADS", "1");
    let ended = launch.run(streams, &AtomicU32::new(0)).expect("the ranks start");
    let text = String::from_utf8_lossy(&output);
    assert_eq!(ended.failure, None, "{text}{}", String::from_utf8_lossy(&errors));
    let mut sums = [0.0; 2];
    for line in text.lines() {
        let speeds = line.split_whitespace().skip(1).filter_map(|word| word.parse::<f64>().ok());
        for (sum, speed) in sums.iter_mut().zip(speeds) {
            *sum += speed;
        }
    }
    sums.map(|sum| sum / 2.0)
}

const TURNS: usize = 7;

const SCRIPT: &str = "
import time
import numpy
from ethernot import dsm

shared = dsm.join()
count = 64 << 17
arrays = [shared.array(count), shared.array(count)]
mine = shared.part(count)
theirs = slice(0, count // 2) if shared.rank else slice(count // 2, count)

def read(array):
    return array.view[theirs].sum()

def read_with_hint(array):
    with array.reading(theirs) as view:
        return view.sum()

speeds = []
# Each way has pages that the rank has never fetched, so that no barrier fetches them in advance.
for turn, (array, reading) in enumerate(zip(arrays, [read, read_with_hint])):
    array[mine] = turn + 1
    shared.barrier()
    began = time.perf_counter()
    total = reading(array)
    speeds.append(count * 4 / (time.perf_counter() - began))
    assert total == (turn + 1) * (count // 2), total
    shared.barrier()
print(*speeds, flush=True)
";
