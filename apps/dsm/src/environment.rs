//! The environment variables that name the rank of a process.

use std::env;

use page_faults::Method;

use crate::error::Error;
use crate::variables::{RANK, SIZE};

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

    fn of(pairs: &[(&str, &str)]) -> Result<Option<(usize, usize)>, Error> {
        rank_and_size(|name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.to_owned()))
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
    fn methods_have_names() {
        assert_eq!(method(None).unwrap(), None);
        assert_eq!(method(Some("mprotect")).unwrap(), Some(Method::Protection));
        assert!(method(Some("fast")).unwrap_err().to_string().contains("synchronous"));
    }
}
