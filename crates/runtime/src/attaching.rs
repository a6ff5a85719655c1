//! Attaches and detaches links and protocols while a runtime runs.

use std::sync::Arc;

use delivery::{Instant, LinkId};
use link::{Link, LinkStatistics};
use mem::MemoryAccess;
use wire_edge::PeerAddr;

use crate::driver::AttachError;
use crate::fork::Forked;
use crate::machine::{Machine, MachineError, MachineId};
use crate::runtime::Runtime;

impl Runtime {
    /// Attaches another link.
    ///
    /// # Errors
    /// Returns [`AttachError`]; each variant names one cause.
    pub fn attach_link(&self, link: Box<dyn Link>) -> Result<LinkId, AttachError> {
        self.shared.command(move |driver, host, _now, _memory| driver.attach(host, link))?
    }

    /// Detaches a link; connections continue over their other links. Returns false if there is no
    /// such link.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn detach_link(&self, link: LinkId) -> Result<bool, Forked> {
        self.shared.command(move |driver, host, _now, _memory| driver.detach(host, link))
    }

    /// Returns the attached links, each with the address at which peers reach it.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn link_addresses(&self) -> Result<Vec<(LinkId, PeerAddr)>, Forked> {
        self.shared.command(|driver, _host, _now, _memory| driver.link_addresses())
    }

    /// Returns the counters of a link's driver, or `None` if there is no such link.
    ///
    /// # Errors
    /// Returns [`Forked`] in a child process after `fork`.
    pub fn link_statistics(&self, link: LinkId) -> Result<Option<LinkStatistics>, Forked> {
        self.shared.command(move |driver, _host, _now, _memory| driver.link_statistics(link))
    }

    /// Attaches a protocol that the threads of the runtime drive beside the engine.
    ///
    /// # Errors
    /// Returns [`MachineError`]; each variant names one cause. After an error, the machine (the
    /// protocol) is dropped.
    pub fn attach_machine(&self, machine: Box<dyn Machine>) -> Result<MachineId, MachineError> {
        let shared = Arc::downgrade(&self.shared);
        self.shared.command(move |driver, host, _now, _memory| {
            host.sleeper.auxiliary.made().map_err(MachineError::Watch)?;
            let id = driver.machines.attach(shared, machine)?;
            // Wake a sleeping thread, because it may be sleeping without polling the epoll set.
            host.call_watch();
            Ok(id)
        })?
    }

    /// Detaches a protocol and returns it. Stops watching its descriptors.
    ///
    /// # Errors
    /// Returns [`MachineError::NotThere`] if this runtime has no such machine.
    pub fn detach_machine(&self, id: MachineId) -> Result<Box<dyn Machine>, MachineError> {
        self.shared.command(move |driver, host, _now, _memory| {
            driver.machines.detach(&host.sleeper.auxiliary, id)
        })?
    }

    /// Runs `work` inside the engine, on a protocol that was attached by
    /// [`Runtime::attach_machine`], and waits for the result of `work`. After `work`, the protocol
    /// makes a turn. Meant for the control path.
    ///
    /// # Errors
    /// Returns [`MachineError::NotThere`] if this runtime has no such machine, or the machine is
    /// not of type `M`.
    pub fn with_machine<M: Machine, R: Send + 'static>(
        &self,
        id: MachineId,
        work: impl FnOnce(&mut M, &MemoryAccess<'_>, Instant) -> R + Send + 'static,
    ) -> Result<R, MachineError> {
        self.shared.command(move |driver, _host, now, memory| {
            driver.machines.get(id).map(|machine| work(machine, memory.begun(), now))
        })?
    }
}
