//! MPI ranks on two hosts, which are network namespaces. A script that replaces `ssh` starts
//! commands on the hosts.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, io};

use testbed::pair::NamespacePair;

use crate::libraries::{Libraries, ethernot};
use crate::network::{Network, Sent};
use crate::process::{Program, Running};

/// A program that starts ranks. The variants differ in how they get the list of hosts.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Launcher {
    /// `mpirun` of Open MPI 4.
    OpenMpi4(PathBuf),
    /// `mpirun` of Open MPI 5, a part of PRRTE.
    OpenMpi5(PathBuf),
    /// `mpirun` of MPICH.
    Hydra(PathBuf),
    /// A script that replaces Slurm's `srun`. It passes environment variables and the working
    /// folder to every task.
    Slurm,
}

/// Two hosts on which a launcher can start ranks.
#[derive(Debug)]
pub struct Hosts {
    pair: NamespacePair,
    /// Folder for the scripts, and for a launcher's files during its run.
    folder: PathBuf,
}

impl Hosts {
    /// Creates two hosts with one link between them. Returns `None` and prints the reason if this
    /// process may not create namespaces.
    ///
    /// # Panics
    /// Panics if the temporary folder cannot be written.
    pub fn two() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let Network::Namespaces(pair) = Network::namespaces()? else { return None };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // The name is short because launchers create sockets in this folder, and paths of sockets
        // have a short limit.
        let folder = env::temp_dir().join(format!("ranks-{}-{number}", process::id()));
        let hosts = Self { pair, folder };
        fs::create_dir_all(&hosts.folder)
            .and_then(|()| hosts.write_stand_in())
            .and_then(|()| hosts.write_srun())
            .expect("the folder for temporary files can be written");
        Some(hosts)
    }

    /// Returns the addresses of both hosts. Launchers run on the first.
    pub fn addresses(&self) -> [String; 2] {
        let link = &self.pair.links()[0];
        let client = link.client.expect("both ends have addresses");
        [client.to_string(), link.server.to_string()]
    }

    /// Returns the traffic that each host has sent so far.
    ///
    /// # Panics
    /// Panics if the kernel does not report the traffic.
    pub fn sent(&self) -> [Sent; 2] {
        [self.pair.client(), self.pair.server()].map(Sent::by)
    }

    /// Starts `ranks` ranks of `program` by a launcher, half of them on each host. Spaces separate
    /// the options of the launcher. If the ranks shall use the libraries, `program` must begin with
    /// `ethernot run` ([`over_us`]).
    ///
    /// # Panics
    /// Panics if the operating system cannot start the launcher.
    pub fn start(
        &self,
        launcher: &Launcher,
        ranks: u32,
        options: &str,
        program: &Program,
    ) -> Running {
        self.start_on_first(&self.command(launcher, ranks, options, program))
    }

    /// Returns the command with which [`Self::start`] starts the ranks.
    pub fn command(
        &self,
        launcher: &Launcher,
        ranks: u32,
        options: &str,
        program: &Program,
    ) -> Program {
        let (path, arguments) = launcher.command(ranks, self);
        let mut command = Program::new(&path.display().to_string(), &arguments);
        for option in options.split_whitespace() {
            command = command.argument(&option);
        }
        program.words().iter().fold(command, Program::argument)
    }

    /// Starts a command on the launchers' host.
    ///
    /// # Panics
    /// Panics if the operating system cannot start the command.
    pub fn start_on_first(&self, command: &Program) -> Running {
        // At the end of its input, MPICH's launcher writes to the process that started the ranks. If
        // that process has already ended, SIGPIPE kills the launcher.
        command.start_with_open_input(self.on(0))
    }

    /// Returns the path of the script that replaces `ssh`.
    fn stand_in(&self) -> PathBuf {
        self.folder.join("ssh")
    }

    /// Returns the path of the script that replaces `srun`.
    fn srun(&self) -> PathBuf {
        self.folder.join("srun")
    }

    /// Returns the words to put before a command so that it runs on a host. Each host has its own
    /// host name and shared memory, like real hosts.
    fn on(&self, host: usize) -> Vec<String> {
        let namespace = [self.pair.client(), self.pair.server()][host];
        let enter = format!("mount -t tmpfs none /dev/shm && hostname host{host} && exec \"$@\"");
        let alone = ["unshare", "--uts", "--ipc", "sh", "-c", &enter, "sh"];
        let words = ["ip", "netns", "exec", namespace].into_iter().chain(alone);
        let temporary = format!("TMPDIR={}", self.folder.display());
        words.chain(["env", &temporary]).map(str::to_owned).collect()
    }

    /// Returns the words of [`Self::on`], quoted for a shell.
    fn quoted(&self, host: usize) -> String {
        let words = self.on(host).into_iter().map(|word| format!("'{word}'"));
        words.collect::<Vec<_>>().join(" ")
    }

    /// Writes the script that replaces `ssh`. The script has the arguments of `ssh`: options, a
    /// host, and the words of a shell command. Like `ssh`, it does not pass environment variables.
    fn write_stand_in(&self) -> io::Result<()> {
        let [first, second] = self.addresses();
        let text = format!(
            "#!/bin/sh\n\
             while [ \"${{1#-}}\" != \"$1\" ]; do case $1 in -l|-p|-o|-i|-F) shift;; esac; shift; done\n\
             host=$1; shift\n\
             kept=\"env -i PATH=$PATH HOME=$HOME\"\n\
             case $host in\n\
             {first}|host0) exec $kept {} sh -c \"$*\";;\n\
             {second}|host1) exec $kept {} sh -c \"$*\";;\n\
             esac\n\
             echo \"no host $host\" >&2\n\
             exit 255\n",
            self.quoted(0),
            self.quoted(1)
        );
        write_program(&self.stand_in(), &text)
    }

    /// Writes the script that replaces `srun`. Its arguments are the number of tasks and a command.
    /// Tasks have no standard input. The exit status of the script is the highest exit status of a
    /// task.
    fn write_srun(&self) -> io::Result<()> {
        let text = format!(
            "#!/bin/sh\n\
             tasks=$2; shift 2\n\
             export SLURM_NTASKS=$tasks\n\
             task=0 running=\n\
             while [ $task -lt $tasks ]; do\n\
             export SLURM_PROCID=$task\n\
             if [ $((task * 2)) -lt $tasks ]; then {} \"$@\" <&- & else {} \"$@\" <&- & fi\n\
             running=\"$running $!\" task=$((task + 1))\n\
             done\n\
             status=0\n\
             for task in $running; do\n\
             wait $task; ended=$?; [ $ended -le $status ] || status=$ended\n\
             done\n\
             exit $status\n",
            self.quoted(0),
            self.quoted(1)
        );
        write_program(&self.srun(), &text)
    }

    /// Kills all processes that still run on the hosts. This is necessary because the daemons of a
    /// killed launcher continue to run.
    fn kill_all(&self) {
        for namespace in [self.pair.client(), self.pair.server()] {
            let shown = Command::new("ip").args(["netns", "pids", namespace]).output();
            let Ok(shown) = shown else { continue };
            let pids = String::from_utf8_lossy(&shown.stdout).into_owned();
            for pid in pids.split_whitespace() {
                // Ignore errors: the process may have ended already.
                drop(Command::new("kill").args(["-KILL", pid]).output());
            }
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.kill_all();
        // If this fails, the files remain in the temporary folder.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Launcher {
    /// Returns the path of the launcher, and the arguments that start `ranks` ranks: the first half
    /// of the ranks on the first host, the second half on the second host.
    fn command(&self, ranks: u32, hosts: &Hosts) -> (PathBuf, String) {
        let [first, second] = hosts.addresses();
        let half = ranks / 2;
        let places = format!("{first}:{half},{second}:{half}");
        let stand_in = hosts.stand_in().display().to_string();
        match self {
            // With `--leave-session-attached`, daemons remain children of the launcher, so that
            // they end when the launcher ends.
            Self::OpenMpi4(path) => (
                path.clone(),
                format!(
                    "--allow-run-as-root --oversubscribe --bind-to none --leave-session-attached \
                     --mca plm_rsh_agent {stand_in} --host {places} -np {ranks}"
                ),
            ),
            Self::OpenMpi5(path) => (
                path.clone(),
                format!(
                    "--allow-run-as-root --map-by slot:OVERSUBSCRIBE --bind-to none \
                     --leave-session-attached --prtemca plm_ssh_agent {stand_in} \
                     --host {places} -np {ranks}"
                ),
            ),
            Self::Hydra(path) => (
                path.clone(),
                format!(
                    "-launcher ssh -launcher-exec {stand_in} -localhost {first} -hosts {places} -n {ranks}"
                ),
            ),
            Self::Slurm => (hosts.srun(), format!("-n {ranks}")),
        }
    }
}

/// Writes a script that every user may run.
fn write_program(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Returns the command `ethernot run` with these options and `program`, which a user would start on
/// each host.
pub fn over_us(options: &str, program: &Program) -> Program {
    // Sets the variable in the command, because launchers do not pass the environment of the test
    // to other hosts.
    let libraries = format!("ETHERNOT_LIBRARIES={}", Libraries::built().folder().display());
    let mut command = Program::new("env", "").argument(&libraries);
    command = command.argument(&ethernot().display()).argument(&"run");
    for option in options.split_whitespace() {
        command = command.argument(&option);
    }
    program.words().iter().fold(command.argument(&"--"), Program::argument)
}
