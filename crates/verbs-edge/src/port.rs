//! Watches the interfaces of a device, and reports when the device's port becomes active or goes
//! down.

use std::sync::Arc;

use link::host::{InterfaceWatch, WatchStopper, interfaces};
use link::start_thread;
use verbs::Registry;

use super::addresses::Places;

/// The thread that watches the interfaces of a device. The thread ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct PortWatch(WatchStopper);

impl PortWatch {
    /// Starts the thread. Returns `None` if the kernel does not report changes of interfaces.
    /// Without the thread, the device raises no events of its port.
    pub(crate) fn start(places: &Places, registry: &Arc<Registry>) -> Option<Self> {
        let watch = InterfaceWatch::open().ok()?;
        let stopper = watch.stopper();
        let (registry, places) = (Arc::downgrade(registry), places.clone());
        let mut known = places.port().state;
        start_thread("ethernot-port", move || {
            while let Ok(Some(_)) = watch.wait(None) {
                let (Some(registry), Ok(host)) = (registry.upgrade(), interfaces()) else { return };
                let state = places.now(&host).port().state;
                if std::mem::replace(&mut known, state) != state {
                    registry.on_port(state);
                }
            }
        })
        .ok()?;
        Some(Self(stopper))
    }
}

impl Drop for PortWatch {
    fn drop(&mut self) {
        self.0.stop();
    }
}
