//! Requests and connections of ids, as the connection manager sees them.

use std::sync::Arc;

use rdma_cm::{Exchange, Listening, Refusal, Reply};
use verbs::{Error, QueuePair, Registry};

use crate::instance::Instance;
use crate::streams::Home;

/// A stream of an id, at either end.
pub(crate) struct StreamExchange {
    pub(crate) instance: Arc<Instance>,
    /// The bits of the stream's owner.
    pub(crate) stream: u64,
}

impl Exchange for StreamExchange {
    fn accept(&self, reply: &Reply, queue_pair: Option<&Arc<QueuePair>>) -> Result<(), Error> {
        let queue_pair = queue_pair
            .ok_or_else(|| Error::Invalid("iWARP connects only the queue pair of an id".into()))?;
        let source = self.instance.source_of(queue_pair)?;
        let (stream, private_data) = (self.stream, reply.private_data.clone());
        let reads = (reply.end.responder_resources.into(), reply.end.initiator_depth.into());
        let accepted = self.instance.with_streams(move |streams, _, _| {
            streams.accept(stream, &source, &private_data, reads)
        })?;
        if accepted { Ok(()) } else { Err(withdrawn()) }
    }

    fn take_over(&self, _queue_pair: &Arc<QueuePair>) -> Result<(), Error> {
        Ok(())
    }

    fn reject(&self, refusal: &Refusal) -> Result<(), Error> {
        let (stream, private_data) = (self.stream, refusal.private_data.clone());
        self.instance.with_streams(move |streams, _, _| streams.reject(stream, &private_data))
    }

    fn close(&self) {
        let stream = self.stream;
        // Ignore the error, because a forked child has nothing to close.
        let _forked = self
            .instance
            .with_streams(move |streams, access, now| streams.disconnect(now, access, stream));
    }
}

impl Drop for StreamExchange {
    fn drop(&mut self) {
        self.instance.forget_exchange(self.stream);
    }
}

impl Home for Instance {
    fn registry(&self) -> &Registry {
        self.registry()
    }

    fn exchange(self: Arc<Self>, stream: u64) -> Arc<dyn Exchange> {
        Arc::new(StreamExchange { instance: self, stream })
    }
}

/// A port at which an id listens.
pub(crate) struct StreamListening {
    pub(crate) instance: Arc<Instance>,
    pub(crate) port: usize,
}

impl Listening for StreamListening {}

impl Drop for StreamListening {
    fn drop(&mut self) {
        let port = self.port;
        let _forked = self.instance.with_streams(move |streams, _, _| streams.stop_listening(port));
    }
}

fn withdrawn() -> Error {
    Error::Invalid("the peer has withdrawn its request".into())
}
