//! The two hosts of a measurement: two namespaces with a link between them, each with its own CPU,
//! which runs its processes and processes its received packets; or this host and a peer.

use std::net::IpAddr;
use std::process::Command;
use std::time::Duration;

use super::mpi::Mpis;
use super::placement::{HostCpus, Wanted, choose};
use super::ranks::{RankHost, Ranks};
use super::traffic::Traffic;
use super::{Peer, Steering, VerbsError, Wishes};
use crate::cpu;
use crate::run::Observer;
use crate::unmodified::folder::Folder;
use crate::unmodified::running::{ProgramHost, ProgramPlace, Running};
use testbed::cleanup::remove_leftovers;
use testbed::namespace::end_inhabitants;
use testbed::pair::NamespacePair;

/// The two hosts. Drop removes those that are namespaces.
#[derive(Debug)]
pub(super) struct Hosts {
    kind: Kind,
    folder: Folder,
    cpus: Option<[HostCpus; 2]>,
    steering: Steering,
    /// The MPIs, if a test needs them.
    mpis: Option<Mpis>,
}

/// What the hosts are.
#[derive(Debug)]
enum Kind {
    Namespaces(NamespacePair),
    /// The client is this host.
    Real(Peer),
}

impl Hosts {
    pub(super) fn create(wishes: &Wishes, observer: &mut dyn Observer) -> Result<Self, VerbsError> {
        match &wishes.peer {
            None => Self::create_namespaces(wishes, observer),
            Some(peer) => Self::meet(wishes, peer),
        }
    }

    /// Checks that the peer has this version of the program.
    fn meet(wishes: &Wishes, peer: &Peer) -> Result<Self, VerbsError> {
        let hosts = Self {
            kind: Kind::Real(peer.clone()),
            folder: Folder::create("verbs")?,
            cpus: None,
            steering: Steering::Off,
            mpis: None,
        };
        let program = wishes.own_program.display().to_string();
        let failed = |reason: String| VerbsError::Peer {
            host: peer.remote.host().to_string(),
            program: program.clone(),
            reason,
        };
        let words = vec![program.clone(), "--version".to_string()];
        let finished = Running::start(&hosts.server(wishes), "peer-version", words)
            .and_then(|asked| asked.finish(ANSWERS_WITHIN))
            .map_err(|error| failed(error.to_string()))?;
        if finished.printed.split_whitespace().nth(1) != Some(env!("CARGO_PKG_VERSION")) {
            let (theirs, own) = (finished.printed.trim(), env!("CARGO_PKG_VERSION"));
            return Err(failed(format!("it says {theirs:?}, and this is version {own}")));
        }
        Ok(hosts)
    }

    fn create_namespaces(wishes: &Wishes, observer: &mut dyn Observer) -> Result<Self, VerbsError> {
        // Choose the CPUs first, so that nothing is created if there are too few.
        let cpus = cpus(wishes)?;
        for name in remove_leftovers() {
            observer.on_note(&format!("removed {name}, which a killed run had left behind"));
        }
        let pair = NamespacePair::create(1, wishes.mtu)?;
        let folder = Folder::create("verbs")?;
        if wishes.pinning && cpus.is_none() {
            observer.on_note("this process may use only one CPU, so both hosts share this CPU");
        }
        let steering = match cpus {
            Some(cpus) if wishes.steering => steer([pair.client(), pair.server()], cpus),
            _ => Steering::Off,
        };
        if let Steering::NotWritable(reason) = &steering {
            observer.on_note(&format!("packets are processed on the sender's CPU: {reason}"));
        }
        let runs_mpi = wishes.tests.iter().any(|test| test.runs_mpi());
        let mpis = if runs_mpi && !wishes.has_protocol_cpu {
            Some(Mpis::prepare(ranks(&pair, cpus, &folder)?, &folder))
        } else {
            None
        };
        Ok(Self { kind: Kind::Namespaces(pair), folder, cpus, steering, mpis })
    }

    /// Returns the MPIs, if a test needs them.
    pub(super) const fn mpis(&self) -> Option<&Mpis> {
        self.mpis.as_ref()
    }

    /// Returns the traffic that client and server have sent so far, if they are namespaces.
    pub(super) fn traffic(&self) -> [Traffic; 2] {
        match &self.kind {
            Kind::Namespaces(pair) => [pair.client(), pair.server()].map(Traffic::of),
            Kind::Real(_) => Default::default(),
        }
    }

    /// Kills all processes of both hosts, if they are namespaces.
    pub(super) fn end_all(&self) {
        if let Kind::Namespaces(pair) = &self.kind {
            for namespace in [pair.client(), pair.server()] {
                end_inhabitants(namespace);
            }
        }
    }

    /// Returns the CPUs of the programs of client and server, if each host has its own.
    pub(super) fn program_cpus(&self) -> Option<[usize; 2]> {
        self.cpus.map(|hosts| hosts.map(|cpus| cpus.program))
    }

    /// Returns the CPUs of the protocol of client and server, if each host has its own CPUs.
    pub(super) fn protocol_cpus(&self) -> Option<[usize; 2]> {
        self.cpus.map(|hosts| hosts.map(|cpus| cpus.protocol))
    }

    /// Returns all CPUs of the hosts, or nothing if the hosts share all CPUs of this machine.
    pub(super) fn all_cpus(&self) -> Vec<usize> {
        let hosts = self.cpus.into_iter().flatten();
        let mut cpus: Vec<_> = hosts.flat_map(|cpus| [cpus.program, cpus.protocol]).collect();
        cpus.dedup();
        cpus
    }

    pub(super) const fn steering(&self) -> &Steering {
        &self.steering
    }

    pub(super) fn server_address(&self) -> IpAddr {
        match &self.kind {
            Kind::Namespaces(pair) => pair.links()[0].server,
            Kind::Real(peer) => peer.address,
        }
    }

    pub(super) fn client<'a>(&'a self, wishes: &'a Wishes) -> ProgramPlace<'a> {
        let host = match &self.kind {
            Kind::Namespaces(pair) => ProgramHost::Namespace(pair.client()),
            Kind::Real(_) => ProgramHost::This,
        };
        self.place(wishes, host, 0)
    }

    pub(super) fn server<'a>(&'a self, wishes: &'a Wishes) -> ProgramPlace<'a> {
        let host = match &self.kind {
            Kind::Namespaces(pair) => ProgramHost::Namespace(pair.server()),
            Kind::Real(peer) => ProgramHost::Remote(&peer.remote),
        };
        self.place(wishes, host, 1)
    }

    fn place<'a>(
        &'a self,
        wishes: &'a Wishes,
        host: ProgramHost<'a>,
        index: usize,
    ) -> ProgramPlace<'a> {
        let cpus = self.cpus.map(|hosts| hosts[index]);
        let protocol = cpus.filter(|cpus| cpus.has_protocol_cpu()).map(|cpus| cpus.protocol);
        ProgramPlace {
            own_program: &wishes.own_program,
            host,
            cpu: cpus.map(|cpus| cpus.program),
            protocol_cpu: protocol,
            folder: self.folder.path(),
        }
    }
}

/// Chooses the CPUs of the hosts. Returns `None` if the hosts share all CPUs.
fn cpus(wishes: &Wishes) -> Result<Option<[HostCpus; 2]>, VerbsError> {
    if !wishes.pinning {
        return Ok(None);
    }
    let allowed = cpu::allowed();
    let wanted = if wishes.has_protocol_cpu { Wanted::Two } else { Wanted::One };
    match choose(&allowed, wanted) {
        None if wanted == Wanted::Two => {
            Err(VerbsError::TooFewCpus { needed: wanted.needed(), allowed: allowed.len() })
        }
        chosen => Ok(chosen),
    }
}

/// Returns the hosts in the form that the launchers of MPI need.
fn ranks(
    pair: &NamespacePair,
    cpus: Option<[HostCpus; 2]>,
    folder: &Folder,
) -> Result<Ranks, VerbsError> {
    let link = &pair.links()[0];
    let host = |namespace: &str, address, index: usize| RankHost {
        namespace: namespace.to_string(),
        address,
        cpu: cpus.map(|cpus| cpus[index].program),
    };
    let first = host(pair.client(), link.client.unwrap_or(link.server), 0);
    Ok(Ranks::create([first, host(pair.server(), link.server, 1)], folder)?)
}

/// Makes the kernel process a host's received packets on the host's CPU for the protocol. Otherwise
/// the kernel processes them on the CPU of the sender.
fn steer(namespaces: [&str; 2], cpus: [HostCpus; 2]) -> Steering {
    for (namespace, cpus) in namespaces.into_iter().zip(cpus) {
        let mask = mask(cpus.protocol);
        let script = format!("for file in {QUEUES}; do echo {mask} > \"$file\" || exit 1; done");
        // In `ip netns exec`, `/sys` shows the interfaces of the namespace.
        let words = ["netns", "exec", namespace, "sh", "-c", &script];
        let reason = match Command::new("ip").args(words).output() {
            Ok(output) if output.status.success() => continue,
            Ok(output) => String::from_utf8_lossy(&output.stderr).trim().to_string(),
            Err(error) => format!("run ip: {error}"),
        };
        return Steering::NotWritable(format!("rps_cpus cannot be set to {mask}: {reason}"));
    }
    Steering::On
}

/// Returns a set that contains only this CPU, in the kernel's format: groups of 32 CPUs, the
/// highest group first.
fn mask(cpu: usize) -> String {
    let groups = ",00000000".repeat(cpu / 32);
    format!("{:x}{groups}", 1_u32 << (cpu % 32))
}

/// Time limit for the peer to report its version. A shell to another host may need seconds to connect.
const ANSWERS_WITHIN: Duration = Duration::from_secs(30);

/// The `rps_cpus` files of the receive queues of all interfaces.
const QUEUES: &str = "/sys/class/net/*/queues/rx-*/rps_cpus";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_cannot_be_written_is_reported_with_the_reason() {
        let cpus = choose(&[0, 1], Wanted::One).unwrap();
        let steering = steer(["no-such-host-1", "no-such-host-2"], cpus);
        let Steering::NotWritable(reason) = steering else { panic!("{steering:?}") };
        assert!(reason.starts_with("rps_cpus cannot be set to 1: "), "{reason}");
        assert!(!reason.ends_with(": "), "{reason}");
    }

    #[test]
    fn masks_have_groups_of_32_cpus() {
        let masks = [0, 1, 5, 31, 32, 65].map(mask);
        assert_eq!(masks, ["1", "2", "20", "80000000", "1,00000000", "2,00000000,00000000"]);
    }
}
