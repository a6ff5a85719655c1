//! Two hosts in the form that launchers of MPI need. A replacement for ssh starts commands on them.
//! Each host has its own name and its own shared memory.

use std::fs::{self, Permissions};
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::unmodified::folder::Folder;

/// A host that runs a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RankHost {
    pub(super) namespace: String,
    pub(super) address: IpAddr,
    pub(super) cpu: Option<usize>,
}

/// The hosts. The launcher runs on the first host.
#[derive(Debug)]
pub(super) struct Ranks {
    hosts: [RankHost; 2],
    folder: PathBuf,
    stand_in: PathBuf,
}

impl Ranks {
    /// Writes the replacement for ssh to a folder.
    pub(super) fn create(hosts: [RankHost; 2], folder: &Folder) -> io::Result<Self> {
        let folder_path = folder.path().to_path_buf();
        let text = stand_in(&hosts, &folder_path);
        let stand_in = folder.write("ssh", text)?;
        fs::set_permissions(&stand_in, Permissions::from_mode(0o755))?;
        Ok(Self { hosts, folder: folder_path, stand_in })
    }

    /// Returns the addresses in the order of the ranks.
    pub(super) fn addresses(&self) -> [IpAddr; 2] {
        [self.hosts[0].address, self.hosts[1].address]
    }

    pub(super) fn stand_in(&self) -> &Path {
        &self.stand_in
    }

    /// Returns the words to put before a command, so that the command runs on the first host.
    pub(super) fn on_first(&self) -> Vec<String> {
        on(&self.hosts, 0, &self.folder)
    }
}

/// Returns the words to put before a command, so that the command runs on a host. The words give
/// each host a name and shared memory of its own. Without this, an MPI would treat both ranks as
/// processes of one host, and use shared memory between them.
fn on(hosts: &[RankHost; 2], index: usize, folder: &Path) -> Vec<String> {
    let host = &hosts[index];
    let enter = format!("mount -t tmpfs none /dev/shm && hostname host{index} && exec \"$@\"");
    let alone = ["unshare", "--uts", "--ipc", "sh", "-c", &enter, "sh"];
    let words = ["ip", "netns", "exec", &host.namespace].into_iter().chain(alone);
    let cpu = host.cpu.map(|cpu| cpu.to_string());
    // Remove these two variables, which the measurement of yardsticks sets. With these variables,
    // UCX would use TCP instead of the device.
    let temporary = format!("TMPDIR={}", folder.display());
    let pinned = cpu.iter().flat_map(|cpu| ["taskset", "-c", cpu]);
    let plain = ["env", "-u", "UCX_TLS", "-u", "UCX_WARN_UNUSED_ENV_VARS", &temporary];
    words.chain(pinned).chain(plain).map(str::to_string).collect()
}

/// Returns a script that takes the arguments of ssh: options, a host, and words. A shell on the
/// host executes the words as a command. Like ssh, the script does not pass environment variables
/// on to the command.
fn stand_in(hosts: &[RankHost; 2], folder: &Path) -> String {
    let quoted = |index| {
        let words = on(hosts, index, folder).into_iter().map(|word| format!("'{word}'"));
        words.collect::<Vec<_>>().join(" ")
    };
    let [first, second] = [0, 1].map(|index: usize| hosts[index].address);
    format!(
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
        quoted(0),
        quoted(1)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_runs_on_the_cpu_and_in_the_namespace_of_its_host() {
        let host = |index: u8, cpu| RankHost {
            namespace: format!("space{index}"),
            address: IpAddr::from([10, 77, 1, index]),
            cpu,
        };
        let hosts = [host(1, None), host(2, Some(7))];
        let second = on(&hosts, 1, Path::new("/tmp/x")).join(" ");
        assert!(second.starts_with("ip netns exec space2 unshare"), "{second}");
        assert!(second.contains("taskset -c 7") && second.ends_with("TMPDIR=/tmp/x"), "{second}");
        assert!(!on(&hosts, 0, Path::new("/tmp/x")).contains(&"taskset".to_string()));
        let script = stand_in(&hosts, Path::new("/tmp/x"));
        assert!(
            script.contains("10.77.1.2|host1) exec $kept 'ip' 'netns' 'exec' 'space2'"),
            "{script}"
        );
    }
}
