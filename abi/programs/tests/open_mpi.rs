//! Open MPI 4 as Debian has it: ranks on two hosts, whose messages go by libfabric (`--mca mtl ofi`) over the device.

use std::path::PathBuf;

use programs::{Finished, Hosts, Launcher, Program, are_installed, build_mpi_client, over_us};

/// What selects TCP. Debian leaves out one-sided operations over messages, which TCP needs as well.
const TCP: &str = "--mca pml ob1 --mca btl tcp,self --mca osc pt2pt";

/// What selects the device, and has it told which one it is.
const OVER_US: &str = "--mca pml cm --mca mtl ofi --mca mtl_ofi_provider_include verbs;ofi_rxm \
                       --mca osc pt2pt --mca mtl_base_verbose 100";

/// What a rank says that has found the device, if it is asked to say much.
const FOUND: &str = "mtl:ofi:provider: edge0";

/// A program of ranks, and who starts them.
struct Client {
    launcher: Launcher,
    path: PathBuf,
}

impl Client {
    /// Builds it for Debian's Open MPI; nothing, and a printed reason, if that is not installed.
    fn built(name: &str) -> Option<Self> {
        if !are_installed(&["mpirun.openmpi", "mpicc.openmpi"]) {
            return None;
        }
        let path = build_mpi_client("mpicc.openmpi".as_ref(), "openmpi", name)?;
        Some(Self { launcher: Launcher::OpenMpi4("mpirun.openmpi".into()), path })
    }

    fn program(&self, arguments: &str) -> Program {
        Program::new(&self.path.display().to_string(), arguments)
    }

    fn over_tcp(&self, hosts: &Hosts, ranks: u32, arguments: &str) -> Finished {
        hosts.start(&self.launcher, ranks, TCP, &self.program(arguments)).finish()
    }

    /// Over the device, with these options of `ethernot run`.
    fn over_us(&self, hosts: &Hosts, ranks: u32, options: &str, arguments: &str) -> Finished {
        let program = over_us(options, &self.program(arguments));
        hosts.start(&self.launcher, ranks, OVER_US, &program).finish()
    }
}

/// What rank 0 has printed of results.
fn results(ended: &Finished) -> Vec<&str> {
    let is_result = |line: &&str| line.contains(" rank ") || line.starts_with("done by");
    let lines: Vec<_> = ended.expect_success().lines().filter(is_result).collect();
    let is_whole = lines.last().is_some_and(|last| last.starts_with("done by"));
    assert!(is_whole, "{ended}");
    lines
}

/// Asserts that so many ranks use the device.
fn expect_the_device(ended: &Finished, ranks: u32) {
    let found = ended.output.matches(FOUND).count();
    assert_eq!(found, ranks as usize, "{ended}");
}

#[test]
fn results_of_two_and_four_ranks_are_those_over_tcp() {
    let Some(client) = Client::built("mpi_results") else { return };
    let Some(hosts) = Hosts::two() else { return };
    for ranks in [2, 4] {
        let over_us = client.over_us(&hosts, ranks, "", "");
        expect_the_device(&over_us, ranks);
        assert_eq!(results(&over_us), results(&client.over_tcp(&hosts, ranks, "")), "{over_us}");
    }
}
