//! Tests on hosts where threads cannot always run: one processor, part of a processor, other
//! scheduling classes, competing processes, late timers, stalls. On such hosts, endpoints must make
//! progress, and they must use almost no processor time while idle.
//!
//! No assertion depends on the speed of the host. A wait for an event is limited to a minute. The
//! limits of processor time and of sleeps are relative to the elapsed time.
#![expect(clippy::disallowed_methods, reason = "phases of a test last for a while")]

#[expect(dead_code, reason = "other tests use what this one does not")]
mod copy;
mod ends;

use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use std::{fs, thread};

use ends::{End, Usage, connect, obey};
use nix::sys::signal::Signal;

#[test]
fn ends_sharing_one_processor_make_progress_and_idle_between_operations() {
    if let Some(setting) = copy::argument() {
        return obey(&setting);
    }
    let _alone = alone();
    let name = "ends_sharing_one_processor_make_progress_and_idle_between_operations";
    let processor = processor();
    let launcher = ["taskset", "-c", &processor];
    for setting in SETTINGS {
        let ends = [(); 2].map(|()| End::start(&launcher, name, setting));
        exercise(setting, ends);
    }
}

#[test]
fn ends_with_half_a_processor_make_progress_and_idle_between_operations() {
    if let Some(setting) = copy::argument() {
        return obey(&setting);
    }
    let _alone = alone();
    let name = "ends_with_half_a_processor_make_progress_and_idle_between_operations";
    let group = match Group::with_half_a_processor() {
        Ok(group) => group,
        Err(reason) => {
            return println!("skipped: no control group with a part of a processor: {reason}");
        }
    };
    let join = format!("echo $$ > {}/cgroup.procs && exec \"$@\"", group.path);
    let launcher = ["sh", "-c", &join, "sh"];
    for setting in SETTINGS {
        let ends = [(); 2].map(|()| End::start(&launcher, name, setting));
        exercise(setting, ends);
    }
}

#[test]
fn a_real_time_end_leaves_the_processor_to_its_peer() {
    if let Some(setting) = copy::argument() {
        return obey(&setting);
    }
    let _alone = alone();
    let name = "a_real_time_end_leaves_the_processor_to_its_peer";
    let processor = processor();
    let pinned = ["taskset", "-c", &processor];
    let may = Command::new("chrt").args(["--fifo", "1", "true"]).output();
    if !may.is_ok_and(|output| output.status.success()) {
        return println!("skipped: no right to real-time scheduling, or no command `chrt`");
    }
    let real_time = [&pinned[..], &["chrt", "--fifo", "1"]].concat();
    let rest = [&pinned[..], &["chrt", "--idle", "0"]].concat();
    for (client, server, setting) in [
        (&real_time, &rest, "ADAPTIVE"),
        (&real_time, &rest, "NEVER"),
        (&rest, &real_time, "ADAPTIVE"),
    ] {
        let ends = [client, server].map(|launcher| End::start(launcher, name, setting));
        for Phase { what, elapsed, used } in exercise(setting, ends) {
            // If the kernel throttles real-time threads, it leaves 5 % of the time to other threads
            // that are ready. A thread of the class `SCHED_IDLE` gives its processor to any other
            // thread, so an end of this class may poll while its peer is silent.
            let real_time_used = used[usize::from(server == &real_time)];
            let is_left = real_time_used.processor * 100 < elapsed * 97;
            assert!(is_left, "{what}: {used:?} in {elapsed:?}");
        }
    }
}

#[test]
fn ends_make_progress_with_late_timers() {
    if let Some(setting) = copy::argument() {
        return obey(&setting);
    }
    let _alone = alone();
    let name = "ends_make_progress_with_late_timers";
    let ends = [(); 2].map(|()| End::start(&[], name, "ADAPTIVE LATE"));
    exercise("ADAPTIVE LATE", ends);
}

#[test]
fn ends_make_progress_beside_busy_threads_on_the_same_processor() {
    if let Some(setting) = copy::argument() {
        return obey(&setting);
    }
    let _alone = alone();
    let name = "ends_make_progress_beside_busy_threads_on_the_same_processor";
    let processor = processor();
    let launcher = ["taskset", "-c", &processor];
    let _busy = [(); 2].map(|()| Busy::start(&launcher));
    for setting in SETTINGS {
        let ends = [(); 2].map(|()| End::start(&launcher, name, setting));
        exercise(setting, ends);
    }
}

#[test]
fn streams_continue_after_an_end_was_stopped_briefly() {
    if let Some(setting) = copy::argument() {
        return obey(&setting);
    }
    let _alone = alone();
    let name = "streams_continue_after_an_end_was_stopped_briefly";
    let mut ends = [(); 2].map(|()| End::start(&[], name, "ADAPTIVE"));
    connect(&mut ends);
    for style in STYLES {
        ends[0].begin(&format!("write {style} 800"));
        for turn in 0..6 {
            let stopped = &ends[turn % 2];
            stopped.signal(Signal::SIGSTOP);
            thread::sleep(Duration::from_millis(100));
            stopped.signal(Signal::SIGCONT);
            thread::sleep(Duration::from_millis(20));
        }
        let written = ends[0].answer();
        println!("{style} beside stalls: {written} writes");
    }
}

#[test]
fn a_waiting_end_sleeps_while_its_peer_is_stopped() {
    if let Some(setting) = copy::argument() {
        return obey(&setting);
    }
    let _alone = alone();
    let name = "a_waiting_end_sleeps_while_its_peer_is_stopped";
    for (setting, exchange) in [("ADAPTIVE", "ping"), ("NEVER", "ping"), ("ADAPTIVE", "write")] {
        let mut ends = [(); 2].map(|()| End::start(&[], name, setting));
        connect(&mut ends);
        if exchange == "ping" {
            ends[1].begin("echo waiting");
        }
        ends[0].begin(&format!("{exchange} waiting 1200"));
        thread::sleep(Duration::from_millis(50));
        ends[1].signal(Signal::SIGSTOP);
        let what = format!("{setting} {exchange}, peer stopped");
        let silence = measured(what, &mut ends, |_| thread::sleep(Duration::from_secs(1)));
        ends[1].signal(Signal::SIGCONT);
        demand_rest(&silence, silence.used[0]);
        ends[0].answer();
        if exchange == "ping" {
            ends[1].answer();
        }
    }
}

/// A phase of a test, with the resources that each end used in this phase.
struct Phase {
    what: String,
    elapsed: Duration,
    used: [Usage; 2],
}

/// Connects a client and a server, exchanges data in each style of waiting (`STYLES`), and then
/// leaves both ends idle. Returns the phases of the test.
///
/// Panics if an end spins or wakes up without a reason.
fn exercise(setting: &str, ends: [End; 2]) -> Vec<Phase> {
    let mut ends = ends;
    connect(&mut ends);
    let mut phases = Vec::new();
    for style in STYLES {
        ends[1].begin(&format!("echo {style}"));
        phases.push(exchange(setting, &mut ends, &format!("ping {style} 40")));
        ends[1].answer();
        phases.push(exchange(setting, &mut ends, &format!("write {style} 40")));
        let silence = measured(format!("{setting} silence, {style}"), &mut ends, |ends| {
            ends[0].run(&format!("silence {style} 100"));
        });
        // A thread that polls may keep its processor, so the test limits only its sleeps.
        demand_few_sleeps(&silence, 0);
        if style == "waiting" && setting != "ALWAYS" {
            demand_rest(&silence, silence.used[0]);
        }
        phases.push(silence);
    }
    let idle = measured(format!("{setting} idle"), &mut ends, |_| thread::sleep(IDLE));
    demand_few_sleeps(&idle, 0);
    if setting != "ALWAYS" {
        for used in idle.used {
            demand_rest(&idle, used);
        }
    }
    phases.push(idle);
    phases
}

fn exchange(setting: &str, ends: &mut [End; 2], command: &str) -> Phase {
    let mut operations = 0;
    let phase = measured(format!("{setting} {command}"), ends, |ends| {
        operations = ends[0].run(command).parse().expect("a number");
    });
    println!("{operations} operations");
    demand_few_sleeps(&phase, operations);
    phase
}

/// Runs a phase and measures its usage.
fn measured(what: String, ends: &mut [End; 2], run: impl FnOnce(&mut [End; 2])) -> Phase {
    let before = ends.each_ref().map(End::usage);
    let began = Instant::now();
    run(ends);
    let elapsed = began.elapsed();
    let after = ends.each_ref().map(End::usage);
    let used = [after[0] - before[0], after[1] - before[1]];
    println!("{what}: {used:?} in {elapsed:?}");
    Phase { what, elapsed, used }
}

/// Panics if an idle end used a fifth of a processor, or slept more than 600 times in a second.
fn demand_rest(phase: &Phase, used: Usage) {
    let Phase { what, elapsed, .. } = phase;
    assert!(used.processor < *elapsed / 5, "{what}: {used:?} in {elapsed:?}");
    let sleeps_max = elapsed.as_millis() * 6 / 10;
    assert!(u128::from(used.sleeps) < sleeps_max, "{what}: {used:?} in {elapsed:?}");
}

/// Panics if an end slept too often. The limit is 50 sleeps per operation plus 50 sleeps per
/// millisecond.
fn demand_few_sleeps(phase: &Phase, operations: u64) {
    let Phase { what, elapsed, used } = phase;
    let sleeps_max = 50 * u128::from(operations) + 50 * elapsed.as_millis();
    let are_few = |used: &Usage| u128::from(used.sleeps) < sleeps_max;
    assert!(used.iter().all(are_few), "{what}: {used:?} in {elapsed:?}");
}

/// A control group. Dropping this value removes the group after its processes have ended.
struct Group {
    path: String,
}

impl Group {
    fn with_half_a_processor() -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/mounts").map_err(|error| error.to_string())?;
        let mut mounts = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let found = mounts.find_map(|mount| match *mount {
            [_, root, "cgroup", options, ..]
                if options.split(',').any(|option| option == "cpu") =>
            {
                Some((root.to_owned(), "cpu.cfs_quota_us", "50000"))
            }
            [_, root, "cgroup2", ..] => {
                let controllers =
                    fs::read_to_string(format!("{root}/cgroup.subtree_control")).ok()?;
                let has_it = controllers.split_whitespace().any(|controller| controller == "cpu");
                has_it.then(|| (root.to_owned(), "cpu.max", "50000 100000"))
            }
            _ => None,
        });
        let (root, file, half) = found.ok_or("no controller of processors is mounted")?;
        let path = format!("{root}/ethernot-test-{}", std::process::id());
        fs::create_dir(&path).map_err(|error| format!("{path}: {error}"))?;
        let group = Self { path };
        let file = format!("{}/{file}", group.path);
        fs::write(&file, half).map_err(|error| format!("{file}: {error}"))?;
        Ok(group)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // The kernel needs some time to remove an ended process from its group.
        let until = Instant::now() + ends::LIMIT;
        while fs::remove_dir(&self.path).is_err() && Instant::now() < until {
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// A process with a thread that always runs.
struct Busy(Child);

impl Busy {
    fn start(launcher: &[&str]) -> Self {
        let command = [launcher, &["sh", "-c", "while :; do :; done"]].concat();
        let mut command_line = Command::new(command[0]);
        Self(command_line.args(&command[1..]).stdin(Stdio::null()).spawn().expect("a shell"))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        // Both calls fail only if the process has already ended.
        let _killed = self.0.kill();
        let _ended = self.0.wait();
    }
}

/// Returns the first processor that this process may use.
fn processor() -> String {
    let status = fs::read_to_string("/proc/self/status").expect("procfs");
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let digits = list.expect("Linux says so").trim().split([',', '-']).next();
    digits.expect("there is one").to_owned()
}

/// Serializes the tests of this file, because tests that run at the same time would take processor
/// time from each other.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Time during which the ends stay idle.
const IDLE: Duration = Duration::from_millis(300);

const SETTINGS: [&str; 3] = ["ADAPTIVE", "NEVER", "ALWAYS"];

const STYLES: [&str; 2] = ["waiting", "polling"];
