//! `ethernot bench verbs`: each test measures the device and the transports to compare with,
//! reports which of these are missing, and leaves no processes behind.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bench::verbs::curves::{Curve, CurvePoint, Method};
use bench::verbs::mpi::Mpi;
use bench::verbs::{FORMAT, Report};
use programs::{Finished, Libraries, Network, Program, Running, Side, are_installed};
use testbed::namespace::NAMESPACE_DIRECTORY;

/// Waits until no other test of this file measures. Each run takes both processors of a small
/// machine, so that two runs at once exceed the time limits of their programs.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts `ethernot bench verbs` with the libraries under test.
fn bench_verbs(words: &str) -> Option<Running> {
    if !Libraries::built().folder().join("perf/iwarp-perf").is_file() {
        println!(
            "skipped: iwarp-perf is not built without the headers of librdmacm (Debian's package librdmacm-dev)"
        );
        return None;
    }
    Network::namespaces()?;
    let program = programs::ethernot().display().to_string();
    let command = Program::new(&program, &format!("bench verbs {words}"));
    Some(command.start_bare(&Network::Loopback, Side::Client))
}

/// Runs `ethernot bench verbs` and returns its report.
fn report(words: &str) -> Option<Report> {
    let ended = bench_verbs(&format!("{words} --json -"))?.finish();
    let start = ended.expect_success().find('{').expect("a document");
    Some(serde_json::from_str(&ended.output[start..]).expect(&ended.output))
}

#[test]
fn bench_verbs_measures_both_devices_and_tcp_and_names_a_missing_device() {
    let _alone = alone();
    let words = "--quick --tests bandwidth,latency --device edge0,iwarp0,mlx5_0 --runs 2 --seconds 0.01 \
                 --operations write,send,read --sizes 1,64K --windows 3";
    let Some(report) = report(words) else { return };
    assert_eq!(report.format, FORMAT);
    let transports = report.devices.iter().map(|row| row.transport.as_deref());
    assert_eq!(transports.collect::<Vec<_>>(), [Some("InfiniBand"), Some("iWARP"), None]);
    assert!(report.devices[2].cannot_run.as_ref().is_some_and(|why| why.contains("mlx5_0")));
    // One-way bandwidth, two-way bandwidth, and latency. Two-way bandwidth has one size less,
    // because it has no messages of one byte.
    assert_eq!(report.points.len(), 6 + 5 + 6);
    for point in &report.points {
        assert!(point.contenders.len() >= 3);
        for one in &point.contenders {
            assert_eq!(one.cannot_run, None, "{}, {}", point.name, one.name);
            assert!(one.samples.len() == 2 && one.paper_mean > Some(0.0), "{one:?}");
        }
        for (one, device) in point.contenders.iter().zip(["edge0", "iwarp0"]) {
            assert_eq!(one.device, device);
            assert!(one.ratios.iter().any(|ratio| ratio.to == "tcp-polling"));
        }
    }
}

#[test]
fn tcp_is_measured_even_if_the_device_lacks_a_test() {
    let _alone = alone();
    let words = "--quick --tests latency,availability,registration --device mlx5_0 --runs 2 \
                 --seconds 0.01 --sizes 8";
    let Some(report) = report(words) else { return };
    let contenders = &report.points[0].contenders;
    assert!(contenders[0].cannot_run.is_some() && contenders[0].value.is_none());
    assert!(contenders[1].value.is_some());
    let availability = report.availability.expect("it was asked for");
    for curve in availability.curves {
        let is_of_tcp = curve.carrier == "tcp";
        assert!(!is_of_tcp || !curve.points.is_empty(), "{curve:?}");
        assert!(!curve.carrier.ends_with("edge0") || curve.cannot_run.is_some(), "{curve:?}");
    }
    let registration = report.registration.expect("it was asked for");
    assert!(registration.points.is_empty() && !registration.failures.is_empty());
}

#[test]
fn bench_verbs_measures_to_another_host_that_a_shell_reaches() {
    let _alone = alone();
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let stand_in = folder.join("stand-in-for-ssh");
    fs::write(&stand_in, "#!/bin/sh\n[ $1 = user@peer ] || exit 255\nexec sh -c \"$2\"\n")
        .expect("the folder can be written");
    fs::set_permissions(&stand_in, fs::Permissions::from_mode(0o755)).expect("its owner");
    let peer = |host: &str| {
        format!(
            "--peer {host} --peer-address 127.0.0.1 --ssh {} --quick --tests latency --runs 2 \
             --seconds 0.01 --sizes 8 --device iwarp0",
            stand_in.display()
        )
    };
    let Some(report) = report(&peer("user@peer")) else { return };
    assert_eq!(report.peer.as_deref(), Some("user@peer"));
    let contenders = &report.points[0].contenders;
    let names = contenders.iter().map(|one| (one.name.as_str(), one.cannot_run.as_deref()));
    let expected = ["iwarp0-polling", "tcp-polling", "tcp-events"].map(|name| (name, None));
    assert_eq!(names.collect::<Vec<_>>(), expected);

    let Some(running) = bench_verbs(&peer("user@nowhere")) else { return };
    let ended = running.finish();
    assert!(!ended.is_success(), "{ended}");
    assert!(ended.output.contains("the host user@nowhere is not ready"), "{ended}");
}

/// Runs `ethernot bench verbs` with the libraries under test and with one processor.
fn on_one_processor(words: &str) -> Option<Finished> {
    if !are_installed(&["taskset"]) {
        return None;
    }
    // Checks whether it can run here.
    drop(bench_verbs("--help")?);
    let program = programs::ethernot().display().to_string();
    let command = Program::new("taskset", &format!("-c 0 {program} bench verbs {words}"));
    Some(command.start_bare(&Network::Loopback, Side::Client).finish())
}

#[test]
fn hosts_share_the_only_processor_and_the_report_says_so() {
    let _alone = alone();
    let words = "--quick --tests latency --runs 1 --seconds 0.01 --sizes 8 --json -";
    let Some(ended) = on_one_processor(words) else { return };
    let output = ended.expect_success();
    assert!(output.contains("only one CPU, so both hosts share"), "{ended}");
    let start = output.find("\n{").expect("a document");
    let report: Report = serde_json::from_str(&output[start..]).expect(output);
    assert_eq!((report.pinned_to, report.protocol_on), (None, None));
    let cannot_run = report.points[0].contenders.iter().filter_map(|one| one.cannot_run.as_ref());
    assert_eq!(cannot_run.count(), 0, "{ended}");
}

#[test]
fn a_cpu_for_the_protocol_is_refused_if_there_are_too_few() {
    let _alone = alone();
    let words = "--quick --tests latency --runs 1 --seconds 0.01 --sizes 8 --protocol-cpu --json -";
    let Some(ended) = on_one_processor(words) else { return };
    assert!(!ended.is_success(), "{ended}");
    for part in ["cannot be measured here", "need 4 CPUs", "may use 1", "--protocol-cpu"] {
        assert!(ended.output.contains(part), "{ended}");
    }
    assert!(!ended.output.contains(FORMAT), "{ended}");
}

#[test]
fn an_interrupted_bench_verbs_leaves_no_namespace_and_no_folder() {
    let _alone = alone();
    let Some(mut running) = bench_verbs("--tests bandwidth --runs 1000 --seconds 0.01") else {
        return;
    };
    let pid = running.id();
    let names = |folder: &Path, start: &str| -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with(start)).collect()
    };
    let namespaces = || names(Path::new(NAMESPACE_DIRECTORY), &format!("ethernot-bench-{pid}-"));
    let folders = || names(&std::env::temp_dir(), &format!("ethernot-verbs-{pid}-"));
    running.wait_until("makes no hosts", |_| !folders().is_empty());
    assert_eq!(namespaces().len(), 2);
    running.signal("INT");
    let ended = running.finish();
    assert_eq!(ended.status.code(), Some(130), "{ended}");
    assert!(namespaces().is_empty() && folders().is_empty());
}

/// Each rank has its own process group, and a daemon on another host starts one of the ranks. So
/// the command must kill more than one process group.
#[test]
#[ignore = "slow: run by `./x acceptance paper-001`"]
fn an_interrupted_bench_verbs_leaves_no_mpi_rank() {
    let _alone = alone();
    if !are_installed(&["mpirun.openmpi", "mpicc.openmpi"]) {
        return;
    }
    let words = "--tests mpi --sizes 64K --windows 1 --runs 1000 --seconds 60";
    let Some(mut running) = bench_verbs(words) else { return };
    let folder = format!("ethernot-verbs-{}-", running.id());
    let ranks = || -> usize {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let lines = entries.filter_map(|entry| fs::read(entry.path().join("cmdline")).ok());
        let is_rank = |line: &Vec<u8>| {
            let line = String::from_utf8_lossy(line);
            line.starts_with('/') && line.contains(&folder) && line.contains("open-mpi/mpi-perf\0")
        };
        lines.filter(is_rank).count()
    };
    running.wait_until("starts no ranks of MPI", |_| ranks() >= 2);
    running.signal("INT");
    assert_eq!(running.finish().status.code(), Some(130));
    // A killed process takes a moment to end, so check repeatedly.
    assert!((0..100).any(|_| ranks() == 0));
}

/// Returns whether a transport cannot run because an MPI is missing.
fn is_missing(cannot_run: Option<&String>) -> bool {
    cannot_run.is_some_and(|reason| reason.contains("is not installed"))
}

#[test]
#[ignore = "slow: run by `./x acceptance paper-001`"]
fn availability_has_a_curve_of_each_method_and_carrier() {
    let _alone = alone();
    let words = "--quick --tests availability --runs 1 --seconds 0.1 --sizes 64K";
    let Some(report) = report(words) else { return };
    assert!(report.points.is_empty() && report.registration.is_none());
    let availability = report.availability.expect("it was asked for");
    // A quick run of the silent method measures only the device.
    let carriers = 2 + 2 * Mpi::ALL.len();
    assert_eq!(availability.curves.len(), (Method::ALL.len() - 1) * carriers + 1);
    for curve in &availability.curves {
        if is_missing(curve.cannot_run.as_ref()) {
            continue;
        }
        assert_eq!(curve.cannot_run, None, "{}", curve.name);
        assert!(curve.points.len() >= 2, "{curve:?}");
        let is_positive = |point: &CurvePoint| point.availability.median > 0.0;
        assert!(curve.points.iter().all(is_positive), "{curve:?}");
        // At long intervals, a program makes few calls in the short time of a point. If its messages
        // advance only inside calls, or if the machine is busy, none may arrive.
        let has_moved = curve.points.iter().any(|point| point.bytes_per_second.max > 0.0);
        assert_eq!(has_moved, curve.method != Method::Silent, "{curve:?}");
    }
    let curve = |name: &str| -> &Curve {
        availability.curves.iter().find(|curve| curve.name == name).expect(name)
    };
    assert!(curve("silent-65536-edge0").silent_availability.is_some());
    assert!(curve("post-work-wait-65536-edge0").wait_ratio.is_some());
    let polling = curve("polling-65536-edge0");
    assert!(polling.half_bandwidth.is_some() && polling.ratios[0].to == "tcp", "{polling:?}");
    // If the machine has one processor, both hosts share it, so the report has no times of each
    // host.
    if report.pinned_to.is_some() {
        let accounting = availability.accounting.expect("hosts have a CPU each");
        let points: usize = availability.curves.iter().map(|curve| curve.points.len()).sum();
        assert_eq!(accounting.points as usize, points);
        assert!(polling.points.iter().all(|point| point.softirq_share.is_some()));
    }
}

#[test]
#[ignore = "slow: run by `./x acceptance paper-001`"]
fn registration_has_costs_of_sizes_kinds_regions_and_threads() {
    let _alone = alone();
    let words = "--quick --tests registration --runs 2 --seconds 0.01 --sizes 4K,1M";
    let Some(report) = report(words) else { return };
    let registration = report.registration.expect("it was asked for");
    assert!(registration.failures.is_empty(), "{:?}", registration.failures);
    let names: Vec<_> = registration.points.iter().map(|point| point.name.as_str()).collect();
    for name in ["touched-4096-1-1", "fresh-1048576-1-1", "file-4096-1-1", "shared-4096-1-1"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(registration.points.iter().any(|point| point.alive > 1));
    assert!(registration.points.iter().any(|point| point.threads > 1));
    for point in &registration.points {
        assert!(point.samples >= 10 && point.sum_to_move.median > 0.0, "{point:?}");
        assert!(point.register.p99_us >= 0.0 && point.r#move.mean_us.median > 0.0, "{point:?}");
    }
    let growth = registration.growth.iter().find(|growth| growth.memory == "touched");
    let growth = growth.expect("there are two sizes");
    assert_eq!((growth.smallest, growth.largest), (4096, 1 << 20));
    assert!(growth.register.median > 0.0 && growth.deregister.median > 0.0);
}

#[test]
#[ignore = "slow: run by `./x acceptance paper-001`"]
fn mpi_is_measured_over_the_device_and_over_tcp() {
    let _alone = alone();
    let words = "--quick --tests mpi --runs 1 --seconds 0.1 --sizes 64K --windows 4";
    let Some(report) = report(words) else { return };
    let names: Vec<_> = report.points.iter().map(|point| point.name.as_str()).collect();
    assert_eq!(names, ["mpi-bandwidth-write-65536-4", "mpi-latency-write-65536-1"]);
    for point in &report.points {
        for mpi in Mpi::ALL {
            let contender = |over: &str| {
                let name = format!("{}-{over}", mpi.name());
                point.contenders.iter().find(|one| one.name == name).expect(&name)
            };
            let (edge, tcp) = (contender("edge0"), contender("tcp"));
            if is_missing(edge.cannot_run.as_ref()) {
                continue;
            }
            assert_eq!((&edge.cannot_run, &tcp.cannot_run), (&None, &None), "{}", point.name);
            assert!(edge.value.is_some() && tcp.value.is_some());
            let to: Vec<_> = edge.ratios.iter().map(|ratio| ratio.to.as_str()).collect();
            assert_eq!(to, ["edge0-polling", "tcp-polling", &tcp.name], "{edge:?}");
        }
    }
}
