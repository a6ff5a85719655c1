//! The capture file of a process.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use link::{CaptureClock, CaptureOutput};

use crate::error::Error;

/// The capture file that all devices of a process share. The first device that starts creates the
/// file. Clones stand for the same file.
#[derive(Clone, Debug, Default)]
pub struct SharedCapture {
    /// The configured path; `None` if nothing is captured.
    path: Option<PathBuf>,
    output: Arc<Mutex<Option<CaptureOutput>>>,
}

impl SharedCapture {
    /// Returns the capture with this path, in which `%p` stands for the process number. Without a
    /// path, nothing is captured.
    pub fn new(path: Option<PathBuf>) -> Self {
        Self { path, output: Arc::default() }
    }

    /// Returns the file, and creates it if no device has. Returns `None` if nothing is captured.
    ///
    /// # Errors
    /// Returns [`Error::Failed`] if the file cannot be created.
    pub fn open(&self) -> Result<Option<CaptureOutput>, Error> {
        let Some(path) = &self.path else { return Ok(None) };
        let mut begun = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        if begun.is_none() {
            let path = path.to_string_lossy().replace("%p", &std::process::id().to_string());
            let output = CaptureOutput::create(path.as_ref(), CaptureClock::Wall);
            *begun = Some(output.map_err(|error| Error::Failed(error.to_string()))?);
        }
        Ok(begun.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_share_one_file_and_the_process_number_is_part_of_its_name() {
        let folder = std::env::temp_dir();
        let capture = SharedCapture::new(Some(folder.join("ethernot-shared-%p.pcapng")));
        let path = folder.join(format!("ethernot-shared-{}.pcapng", std::process::id()));
        drop(capture.open().expect("a file").expect("a path"));
        std::fs::remove_file(&path).expect("it is there");
        assert!(capture.clone().open().expect("it is open").is_some());
        assert!(!path.exists());
        assert!(SharedCapture::default().open().expect("nothing to do").is_none());
    }
}
