//! Queue pairs of unreliable datagrams.

use std::sync::Arc;

use super::instance::Instance;
use crate::error::Error;
use crate::provider::Wire;
use crate::queue_pair::QueuePair;

/// The wire of a datagram queue pair.
pub(crate) fn wire(
    instance: &Arc<Instance>,
    queue_pair: &Arc<QueuePair>,
) -> Result<Box<dyn Wire>, Error> {
    let _ = (instance, queue_pair);
    Err(Error::NotSupported("queue pairs of unreliable datagrams".into()))
}
