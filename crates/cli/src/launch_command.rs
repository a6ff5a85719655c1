//! `ethernot run`: runs another program, so that the program sees an RDMA device, or so that its
//! TCP connections move to the edge.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

use clap::Args;

use crate::Failure;
use crate::program::Program;
use crate::surroundings::{Options, Variables, hidden_devices};

/// Run a program over the edge: with an RDMA device, or with its TCP connections moved.
///
/// Without --sockets the program sees an RDMA device, edge0: stock binaries that use libibverbs or
/// librdmacm run unmodified (docs/running-programs.md). With --sockets, TCP connections go over the
/// edge if the peer program also runs under this command; otherwise they stay on TCP
/// (docs/sockets.md).
///
/// Any user may run this command. The program can communicate with programs in other processes,
/// containers and hosts. The command replaces its own process by the program, so signals, input and
/// exit status are those of the program. Child processes of the program run in the same way. If the
/// program cannot run this way, the command ends with status 2 and a message.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    ethernot run -- ibv_devinfo\n  \
    ethernot run -- ib_write_bw                       (on one host)\n  \
    ethernot run -- ib_write_bw 192.0.2.1             (on the other)\n  \
    ethernot run -- mpirun --host a,b ./program       (on both, from one)\n  \
    ethernot run --links eth0,packet:eth1 --faults loss=0.01 -- ib_send_lat 192.0.2.1\n  \
    ethernot run --strict -- ./test-suite             (fails where an adapter would)\n  \
    ethernot run --sockets -- nginx                   (on one host)\n  \
    ethernot run --sockets -- curl http://192.0.2.1/  (on the other)\n  \
    ethernot run --sockets --networks 10.0.0.0/8 --except-ports 22 --log info -- redis-server\n  \
    ethernot run --sockets --poll -- sockperf ping-pong -i 192.0.2.1 --tcp")]
pub(crate) struct Arguments {
    #[command(flatten)]
    options: Options,
    /// The program and its arguments
    #[arg(
        value_name = "PROGRAM",
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true
    )]
    program: Vec<OsString>,
}

/// Replaces this process by the program. Returns only if that fails.
pub(crate) fn run(arguments: &Arguments) -> ExitCode {
    let Err(error) = become_program(arguments);
    eprintln!("ethernot: {}", crate::explain(&*error));
    ExitCode::from(NOT_RUN)
}

fn become_program(arguments: &Arguments) -> Result<std::convert::Infallible, Failure> {
    let (name, rest) = arguments.program.split_first().ok_or("name a program")?;
    let variables = Variables::of(&arguments.options)?;
    let wanted = arguments.options.wanted();
    // Searches with the `PATH` that the program will have.
    let program = Program::find(name, variables.value("PATH").as_deref(), wanted)?;
    variables.try_links(wanted)?;
    for warning in &program.warnings {
        eprintln!("ethernot: warning: {warning}");
    }
    let hidden = if wanted.device { hidden_devices() } else { Vec::new() };
    if !hidden.is_empty() {
        let names = hidden.join(", ");
        eprintln!(
            "ethernot: warning: the program does not see the RDMA devices of this host: {names}"
        );
    }
    let mut command = Command::new(&program.path);
    command.arg0(name).args(rest).envs(variables.0);
    let error = command.exec();
    Err(format!("start {}: {error}", program.path.display()).into())
}

/// Exit status if the program did not start.
const NOT_RUN: u8 = 2;
