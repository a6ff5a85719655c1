//! The environment variables that name the rank of a process.

use std::env;

use page_faults::Method;

use crate::error::Error;
use crate::variables::{RANK, SIZE, THREADS};

/// Pairs of variables with rank and size, in the order in which they are tried.
const STARTERS: [(&str, &str); 4] = [
    (RANK, SIZE),
    ("PMI_RANK", "PMI_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
];

/// Returns rank and size, if a starter has set them.
pub(crate) fn rank_and_size(
    variable: impl Fn(&str) -> Option<String>,
) -> Result<Option<(usize, usize)>, Error> {
    for (rank_name, size_name) in STARTERS {
        let Some(rank) = variable(rank_name) else { continue };
        let Some(size) = variable(size_name) else {
            return Err(Error::Variable { name: size_name, value: String::new() });
        };
        return Ok(Some((number(rank_name, rank)?, number(size_name, size)?)));
    }
    Ok(None)
}

/// Returns the address at which the ranks of a job meet, if its starter has set no other one and runs
/// all ranks on this host. It follows from the name of the job, so that jobs differ.
pub(crate) fn meeting_place(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let is_equal = |(own, all)| variable(own).is_some_and(|ranks| variable(all) == Some(ranks));
    let is_here = HERE.into_iter().any(is_equal)
        || NODES.into_iter().any(|name| variable(name).as_deref() == Some("1"));
    let names = JOBS.into_iter().map(|name| variable(name).unwrap_or_default());
    let job = names.collect::<Vec<_>>().concat();
    if !is_here || job.is_empty() {
        return None;
    }
    // FNV-1a.
    let mix = |hash: u32, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
    let hash = job.bytes().fold(0x811c_9dc5, mix);
    Some(format!("127.0.0.1:{}", FIRST_PORT + hash % PORTS))
}

/// Pairs of variables with the number of ranks on this host and of all ranks.
const HERE: [(&str, &str); 2] =
    [("OMPI_COMM_WORLD_LOCAL_SIZE", "OMPI_COMM_WORLD_SIZE"), ("MPI_LOCALNRANKS", "PMI_SIZE")];

/// Variables with the number of hosts.
const NODES: [&str; 2] = ["SLURM_STEP_NUM_NODES", "SLURM_NNODES"];

/// Variables that name a job, or a step of it.
const JOBS: [&str; 5] =
    ["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "SLURM_JOB_ID", "SLURM_STEP_ID"];

/// Ports of meeting places. The kernel gives ports from 32768 on to sockets that name none.
const FIRST_PORT: u32 = 20_000;
const PORTS: u32 = 10_000;

/// Returns the method that the environment asks for.
pub(crate) fn method(value: Option<&str>) -> Result<Option<Method>, Error> {
    match value {
        None | Some("") => Ok(None),
        Some("asynchronous") => Ok(Some(Method::Asynchronous)),
        Some("synchronous") => Ok(Some(Method::Synchronous)),
        Some("mprotect") => Ok(Some(Method::Protection)),
        Some(other) => Err(Error::Method(other.into())),
    }
}

/// Returns the number of threads that the environment asks for, or 1.
pub(crate) fn threads(value: Option<String>) -> Result<usize, Error> {
    value.filter(|value| !value.is_empty()).map_or(Ok(1), |value| number(THREADS, value))
}

/// Returns whether a variable switches an option on: it is there, and neither empty nor `0`.
pub(crate) fn is_set(value: Option<&str>) -> bool {
    value.is_some_and(|value| !matches!(value, "" | "0"))
}

/// Returns a variable of the process.
pub(crate) fn of_process(name: &str) -> Option<String> {
    env::var(name).ok()
}

fn number(name: &'static str, value: String) -> Result<usize, Error> {
    value.parse().map_err(|_| Error::Variable { name, value })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(pairs: &[(&str, &str)], name: &str) -> Option<String> {
        pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned())
    }

    fn of(pairs: &[(&str, &str)]) -> Result<Option<(usize, usize)>, Error> {
        rank_and_size(|name| value(pairs, name))
    }

    #[test]
    fn rank_and_size_come_from_any_starter_and_ours_is_first() {
        assert_eq!(of(&[]).unwrap(), None);
        assert_eq!(of(&[("SLURM_PROCID", "3"), ("SLURM_NTASKS", "8")]).unwrap(), Some((3, 8)));
        let both = [(RANK, "1"), (SIZE, "2"), ("PMI_RANK", "5"), ("PMI_SIZE", "6")];
        assert_eq!(of(&both).unwrap(), Some((1, 2)));
    }

    #[test]
    fn a_rank_without_a_size_or_without_digits_is_refused_with_the_variable() {
        let missing = of(&[(RANK, "1")]).unwrap_err().to_string();
        assert!(missing.contains(SIZE), "{missing}");
        let wrong = of(&[(RANK, "one"), (SIZE, "2")]).unwrap_err().to_string();
        assert!(wrong.contains("ETHERNOT_DSM_RANK=one"), "{wrong}");
    }

    #[test]
    fn jobs_on_one_host_have_their_own_meeting_places_and_others_have_none() {
        let place = |pairs: &[(&str, &str)]| meeting_place(|name| value(pairs, name));
        let here = [("OMPI_COMM_WORLD_LOCAL_SIZE", "4"), ("OMPI_COMM_WORLD_SIZE", "4")];
        let job = |name| place(&[here[0], here[1], ("PMIX_NAMESPACE", name)]);
        let first = job("3511681025").unwrap();
        assert!(first.starts_with("127.0.0.1:2"), "{first}");
        assert_eq!(job("3511681025"), Some(first.clone()));
        assert_ne!(job("3511681026"), Some(first));
        let apart = [("OMPI_COMM_WORLD_LOCAL_SIZE", "2"), here[1], ("PMIX_NAMESPACE", "1")];
        assert_eq!(place(&apart), None);
        let slurm = [("SLURM_NNODES", "1"), ("SLURM_JOB_ID", "7"), ("SLURM_STEP_ID", "0")];
        assert!(place(&slurm).is_some());
        assert_eq!(place(&[("SLURM_NNODES", "2"), ("SLURM_JOB_ID", "7")]), None);
        assert_eq!(place(&here), None);
    }

    #[test]
    fn an_option_is_on_unless_its_variable_is_missing_empty_or_zero() {
        assert_eq!([None, Some(""), Some("0"), Some("1")].map(is_set), [false, false, false, true]);
    }

    #[test]
    fn a_rank_has_one_thread_unless_the_variable_has_a_number() {
        let of = |value: Option<&str>| threads(value.map(str::to_owned));
        assert_eq!([None, Some(""), Some("4")].map(|value| of(value).unwrap()), [1, 1, 4]);
        let wrong = of(Some("many")).unwrap_err().to_string();
        assert!(wrong.contains("ETHERNOT_DSM_THREADS=many is not a number"), "{wrong}");
    }

    #[test]
    fn methods_have_names() {
        assert_eq!(method(None).unwrap(), None);
        assert_eq!(method(Some("mprotect")).unwrap(), Some(Method::Protection));
        assert!(method(Some("fast")).unwrap_err().to_string().contains("synchronous"));
    }
}
