//! The wire of a queue pair: a stream carries its work.

use std::sync::Arc;

use runtime::WorkSource;
use verbs::{Error, Gid, Wire};

use crate::instance::Instance;
use crate::source::QueuePairSource;

/// The wire (the transport) of a queue pair.
pub(crate) struct StreamWire {
    instance: Arc<Instance>,
    source: Arc<QueuePairSource>,
    /// The same object as `source`, but with the type that the runtime requires.
    rung: Arc<dyn WorkSource>,
}

impl StreamWire {
    pub(crate) fn new(instance: &Arc<Instance>, source: &Arc<QueuePairSource>) -> Self {
        let rung = Arc::clone(source);
        Self { instance: Arc::clone(instance), source: Arc::clone(source), rung }
    }
}

impl Wire for StreamWire {
    fn open(&self) -> Result<(), Error> {
        self.instance.check()
    }

    fn connect(&self) -> Result<(), Error> {
        let what = "only the connection manager connects queue pairs of iWARP; use rdma_cm";
        Err(Error::Invalid(what.into()))
    }

    fn update(&self) -> Result<(), Error> {
        self.instance.check()
    }

    fn ring(&self) {
        // Ignore the error: a forked child has no runtime.
        let _forked = self.instance.runtime().ring(&self.rung);
    }

    /// Does nothing if no message waits: a stream takes a receive when a message arrives for it.
    fn receives(&self) {
        if self.source.wants_receives() {
            self.ring();
        }
    }

    fn drain(&self) {
        self.source.drain();
        self.ring();
    }

    fn send_out(&self) {
        // Ignore the error: a forked child has nothing to send.
        let _forked = self.instance.runtime().send_out(&self.rung);
    }

    fn close(&self) {
        let Some(stream) = self.source.stream() else { return };
        let close = move |streams: &mut crate::streams::Streams,
                          access: &mem::MemoryAccess<'_>,
                          now| streams.close(now, access, stream);
        // Ignore the error: a forked child has nothing to close.
        let _forked = self.instance.with_streams(close);
    }

    fn set_membership(&self, _group: Gid, _is_member: bool) -> Result<(), Error> {
        Err(Error::Invalid("only datagram queue pairs are in groups".into()))
    }
}

impl Drop for StreamWire {
    fn drop(&mut self) {
        self.instance.forget(self.source.queue_pair().number());
    }
}
