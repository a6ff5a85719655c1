//! The rank of this process.

use std::sync::{Arc, PoisonError, RwLock};

use dsm::Dsm;

use crate::failure::{Failure, Result};

/// Sets the rank that the process has joined as.
pub(crate) fn set(dsm: Dsm) {
    *JOINED.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(dsm));
}

/// Returns the rank of this process.
pub(crate) fn dsm() -> std::result::Result<Arc<Dsm>, Failure> {
    let joined = JOINED.read().unwrap_or_else(PoisonError::into_inner);
    joined.clone().ok_or_else(not_joined)
}

fn not_joined() -> Failure {
    let text = "the process has not joined, or has left; call ethernot_dsm_init first";
    Failure::new(Result::NotJoined, text)
}

/// Waits until all ranks have come here, and leaves.
pub(crate) fn leave() -> std::result::Result<(), Failure> {
    let mut joined = JOINED.write().unwrap_or_else(PoisonError::into_inner);
    let dsm = joined.take().ok_or_else(not_joined)?;
    let dsm = Arc::try_unwrap(dsm).map_err(|dsm| {
        *joined = Some(dsm);
        let text = "another thread is inside of a call; join the threads of the program first";
        Failure::new(Result::Misuse, text)
    })?;
    drop(joined);
    Ok(dsm.finalize()?)
}

/// The rank of this process. Locked only to copy or replace the reference, never during a call of
/// the rank.
static JOINED: RwLock<Option<Arc<Dsm>>> = RwLock::new(None);
