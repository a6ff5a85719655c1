//! Translates errors of the runtime into errors of verbs.

use runtime::Forked;
use verbs::Error;

pub(crate) fn forked(error: Forked) -> Error {
    Error::NoDevice(error.to_string())
}
