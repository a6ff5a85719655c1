//! Ranks of MPI on two hosts: network namespaces, which are reached by a stand-in for ssh.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{self, Command};
use std::sync::atomic::{AtomicU32, Ordering};
use std::{env, io};

use bench::namespaces::NamespacePair;

use crate::libraries::{Libraries, ethernot};
use crate::network::{Network, Sent};
use crate::process::{Program, Running};

/// What starts ranks, and how it learns where.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Launcher {
    /// `mpirun` of Open MPI 4.
    OpenMpi4(PathBuf),
    /// `mpirun` of Open MPI 5, which is that of PRRTE.
    OpenMpi5(PathBuf),
    /// `mpirun` of MPICH.
    Hydra(PathBuf),
    /// A stand-in for Slurm's `srun`, which brings variables and the working folder to every task.
    Slurm,
}

/// Two hosts that a launcher can start ranks on.
#[derive(Debug)]
pub struct Hosts {
    pair: NamespacePair,
    /// With the stand-in for ssh, and for what a launcher keeps while it runs.
    folder: PathBuf,
}

impl Hosts {
    /// Makes two hosts with one link between them. Returns `None` and prints the reason if this process may not
    /// make namespaces.
    ///
    /// # Panics
    /// If the folder for temporary files cannot be written.
    pub fn two() -> Option<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let Network::Namespaces(pair) = Network::namespaces()? else { return None };
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // Launchers put paths of sockets there, which are short.
        let folder = env::temp_dir().join(format!("ranks-{}-{number}", process::id()));
        let hosts = Self { pair, folder };
        fs::create_dir_all(&hosts.folder)
            .and_then(|()| hosts.write_stand_in())
            .and_then(|()| hosts.write_srun())
            .expect("the folder for temporary files can be written");
        Some(hosts)
    }

    /// Returns their addresses. A launcher runs on the first.
    pub fn addresses(&self) -> [String; 2] {
        let link = &self.pair.links()[0];
        let client = link.client.expect("both ends have addresses");
        [client.to_string(), link.server.to_string()]
    }

    /// Returns what was sent on both until now.
    ///
    /// # Panics
    /// If the kernel does not say.
    pub fn sent(&self) -> [Sent; 2] {
        [self.pair.client(), self.pair.server()].map(Sent::by)
    }

    /// Starts so many ranks by a launcher with these options, separated by spaces, half of them on each host. What
    /// they run is `program`; over the libraries it is behind `ethernot run` ([`over_us`]).
    ///
    /// # Panics
    /// If the operating system cannot start it.
    pub fn start(
        &self,
        launcher: &Launcher,
        ranks: u32,
        options: &str,
        program: &Program,
    ) -> Running {
        self.start_on_first(&self.command(launcher, ranks, options, program))
    }

    /// Returns the command by which a launcher starts the ranks, as [`Self::start`] does.
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

    /// Starts a command where launchers run.
    ///
    /// # Panics
    /// If the operating system cannot start it.
    pub fn start_on_first(&self, command: &Program) -> Running {
        command.start_behind(self.on(0))
    }

    /// The stand-in for ssh.
    fn stand_in(&self) -> PathBuf {
        self.folder.join("ssh")
    }

    /// The stand-in for srun.
    fn srun(&self) -> PathBuf {
        self.folder.join("srun")
    }

    /// What stands before a command that runs on a host. Each has a name and shared memory of its own, as hosts do.
    fn on(&self, host: usize) -> Vec<String> {
        let namespace = [self.pair.client(), self.pair.server()][host];
        let enter = format!("mount -t tmpfs none /dev/shm && hostname host{host} && exec \"$@\"");
        let alone = ["unshare", "--uts", "--ipc", "sh", "-c", &enter, "sh"];
        let words = ["ip", "netns", "exec", namespace].into_iter().chain(alone);
        let temporary = format!("TMPDIR={}", self.folder.display());
        words.chain(["env", &temporary]).map(str::to_owned).collect()
    }

    /// What stands before a command that runs on a host, as a shell reads it.
    fn quoted(&self, host: usize) -> String {
        let words = self.on(host).into_iter().map(|word| format!("'{word}'"));
        words.collect::<Vec<_>>().join(" ")
    }

    /// It takes what ssh does: options, a host, and words that a shell there makes a command of. As with ssh, variables
    /// stay behind.
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

    /// It takes what srun does: a number of tasks and a command. Tasks have no input; the exit status is the greatest of
    /// theirs.
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

    /// Kills what still runs there: daemons of a launcher have no parent when it was killed.
    fn kill_all(&self) {
        for namespace in [self.pair.client(), self.pair.server()] {
            let shown = Command::new("ip").args(["netns", "pids", namespace]).output();
            let Ok(shown) = shown else { continue };
            let pids = String::from_utf8_lossy(&shown.stdout).into_owned();
            for pid in pids.split_whitespace() {
                // It may have ended.
                drop(Command::new("kill").args(["-KILL", pid]).output());
            }
        }
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        self.kill_all();
        // What is left there is in the folder for temporary files.
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl Launcher {
    /// Its path, and the arguments by which it starts so many ranks: half on each host, in order.
    fn command(&self, ranks: u32, hosts: &Hosts) -> (PathBuf, String) {
        let [first, second] = hosts.addresses();
        let half = ranks / 2;
        let places = format!("{first}:{half},{second}:{half}");
        let stand_in = hosts.stand_in().display().to_string();
        match self {
            // Daemons stay with the launcher, so that nothing is left when it ends.
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

/// Writes a script that everyone may run.
fn write_program(path: &Path, text: &str) -> io::Result<()> {
    fs::write(path, text)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Returns a program as a user would start it on each host: behind `ethernot run` with these options.
pub fn over_us(options: &str, program: &Program) -> Program {
    // The environment of a test does not reach other hosts.
    let libraries = format!("ETHERNOT_LIBRARIES={}", Libraries::built().folder().display());
    let mut command = Program::new("env", "").argument(&libraries);
    command = command.argument(&ethernot().display()).argument(&"run");
    for option in options.split_whitespace() {
        command = command.argument(&option);
    }
    program.words().iter().fold(command.argument(&"--"), Program::argument)
}
