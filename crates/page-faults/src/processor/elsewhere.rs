//! Processors and systems without the handler.

use crate::error::{ClaimError, NotInForce};

pub(crate) fn install() -> Result<(), ClaimError> {
    Err(ClaimError::Unsupported)
}

pub(crate) fn check() -> Result<(), NotInForce> {
    Err(NotInForce::NotInstalled)
}
