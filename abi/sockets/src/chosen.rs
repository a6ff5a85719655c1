//! The settings of the library in this process.

use std::sync::{Arc, OnceLock};

use sockets::log::{LogLevel, note};
use sockets::{Moving, Settings};

/// Reads the settings from the environment. Called once, before `main`.
pub(crate) fn begin() {
    let settings = Settings::from_environment().unwrap_or_else(|error| {
        note(LogLevel::Error, format_args!("{error}; all connections stay on TCP"));
        Settings::off()
    });
    sockets::log::begin(settings.log_level(), settings.log_file());
    sockets::counters::begin(&settings);
    SETTINGS.get_or_init(|| Arc::new(settings));
}

/// Returns the settings. Returns `None` before they are read.
pub(crate) fn settings() -> Option<&'static Arc<Settings>> {
    SETTINGS.get()
}

/// Returns the setting that decides when connections move to the edge.
pub(crate) fn moving() -> Moving {
    SETTINGS.get().map_or(Moving::Never, |settings| settings.moving())
}

static SETTINGS: OnceLock<Arc<Settings>> = OnceLock::new();
