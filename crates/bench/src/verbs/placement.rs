//! Which CPUs the two hosts have, and which of its CPUs a host uses for the protocol.

/// The CPUs of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HostCpus {
    /// The CPU of the host's programs.
    pub(super) program: usize,
    /// The CPU of the protocol: of the device's progress threads and of received packets. It equals
    /// `program` if the host has only one CPU.
    pub(super) protocol: usize,
}

impl HostCpus {
    /// Returns whether the protocol has a CPU of its own.
    pub(super) const fn has_protocol_cpu(self) -> bool {
        self.program != self.protocol
    }
}

/// How many CPUs each host has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// One CPU, for the programs and for the protocol.
    One,
    /// One CPU for the programs, and one for the protocol.
    Two,
}

impl Wanted {
    /// Returns the number of CPUs that the two hosts need together.
    pub(super) const fn needed(self) -> usize {
        match self {
            Self::One => 2,
            Self::Two => 4,
        }
    }
}

/// Chooses the CPUs of client and server among the CPUs that this process may use. The client has
/// the first ones. Returns `None` if there are too few.
///
/// CPUs with neighbouring numbers often share a cache, so both CPUs of a host are neighbours.
pub(super) fn choose(allowed: &[usize], wanted: Wanted) -> Option<[HostCpus; 2]> {
    let one = |cpu: usize| HostCpus { program: cpu, protocol: cpu };
    match (wanted, allowed) {
        (Wanted::One, &[client, server, ..]) => Some([one(client), one(server)]),
        (Wanted::Two, &[program, protocol, of_server, protocol_of_server, ..]) => Some([
            HostCpus { program, protocol },
            HostCpus { program: of_server, protocol: protocol_of_server },
        ]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the chosen CPUs in the order program, protocol of the client, then of the server.
    fn chosen(allowed: &[usize], wanted: Wanted) -> Option<[usize; 4]> {
        let [client, server] = choose(allowed, wanted)?;
        Some([client.program, client.protocol, server.program, server.protocol])
    }

    #[test]
    fn hosts_get_one_cpu_each_from_two_cpus_on_and_two_from_four_on() {
        for count in 1..=16 {
            let allowed: Vec<usize> = (0..count).collect();
            let one = (count >= 2).then_some([0, 0, 1, 1]);
            assert_eq!(chosen(&allowed, Wanted::One), one, "{count} CPUs");
            let two = (count >= 4).then_some([0, 1, 2, 3]);
            assert_eq!(chosen(&allowed, Wanted::Two), two, "{count} CPUs");
        }
        assert_eq!(chosen(&[], Wanted::One), None);
    }

    #[test]
    fn only_cpus_that_the_process_may_use_are_chosen() {
        let allowed = [3, 5, 8, 13, 21];
        assert_eq!(chosen(&allowed, Wanted::One), Some([3, 3, 5, 5]));
        assert_eq!(chosen(&allowed, Wanted::Two), Some([3, 5, 8, 13]));
    }

    #[test]
    fn the_number_of_needed_cpus_is_the_smallest_that_suffices() {
        for wanted in [Wanted::One, Wanted::Two] {
            let allowed: Vec<usize> = (0..wanted.needed()).collect();
            assert!(choose(&allowed, wanted).is_some());
            assert!(choose(&allowed[1..], wanted).is_none());
        }
    }

    #[test]
    fn the_protocol_shares_the_cpu_of_a_host_with_one_cpu() {
        let shares =
            |wanted| choose(&[0, 1, 2, 3], wanted).map(|hosts| hosts[0].has_protocol_cpu());
        assert_eq!((shares(Wanted::One), shares(Wanted::Two)), (Some(false), Some(true)));
    }
}
