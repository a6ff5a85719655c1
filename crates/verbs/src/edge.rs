//! The device over the edge engine.

#[expect(dead_code, reason = "a device that is driven calls it")]
mod statistics;

use std::sync::Arc;

use crate::error::Error;
use crate::provider::Provider;
use crate::settings::Settings;

/// The provider of this process.
///
/// # Errors
/// What is wrong with the settings.
pub fn provider(settings: &Settings) -> Result<Arc<dyn Provider>, Error> {
    Err(Error::NotSupported(format!("the device {} is not there yet", settings.device)))
}
