//! The wire of a queue pair with a reliable or unreliable connection: the edge protocol carries its
//! work.

use std::sync::Arc;

use engine::Engine;
use mem::MemoryAccess;
use runtime::WorkSource;
use verbs::{Error, Gid, Wire};

use super::connection_table::ConnectionTable;
use super::instance::Instance;
use super::source::QueuePairSource;

/// The wire (the transport) of a connected queue pair.
pub(crate) struct ConnectedWire {
    instance: Arc<Instance>,
    source: Arc<QueuePairSource>,
    /// The same object as `source`, but with the type that the runtime requires.
    rung: Arc<dyn WorkSource>,
}

impl ConnectedWire {
    pub(crate) fn new(instance: &Arc<Instance>, source: QueuePairSource) -> Self {
        let source = Arc::new(source);
        let rung = Arc::clone(&source);
        instance.table().enter(&source);
        Self { instance: Arc::clone(instance), source, rung }
    }

    fn number(&self) -> u32 {
        self.source.queue_pair().number()
    }
}

impl Wire for ConnectedWire {
    fn open(&self) -> Result<(), Error> {
        self.instance.check()
    }

    fn connect(&self) -> Result<(), Error> {
        let number = self.number();
        let wanted = self.instance.wanted(&self.source)?;
        self.instance.with_table(move |table, engine, memory, now| {
            table.seek(engine, memory, now, number, wanted);
        })
    }

    fn update(&self) -> Result<(), Error> {
        let number = self.number();
        self.instance.with_table(move |table, engine, _, now| table.update(engine, now, number))
    }

    fn ring(&self) {
        // Ignore the error: a forked child has no runtime.
        let _forked = self.instance.runtime().ring(&self.rung);
    }

    fn receives(&self) {
        self.ring();
    }

    fn drain(&self) {
        self.source.drain();
        self.ring();
    }

    fn send_out(&self) {
        // A forked child sends nothing, so return.
        if self.instance.runtime().send_out(&self.rung).is_err() {
            return;
        }
        // Wait for acknowledgements before the connection is closed, because frames may be lost,
        // and because the Close on one link may overtake frames on another link.
        let source = Arc::clone(&self.source);
        let is_acknowledged =
            move |_: &ConnectionTable, engine: &mut Engine, _: &MemoryAccess<'_>, now| {
                source.is_acknowledged(engine, now)
            };
        let mut is_done = false;
        while !is_done {
            self.instance.wait(&mut || {
                is_done = self.instance.with_table(is_acknowledged.clone()) != Ok(false);
                is_done
            });
            // Send the work that was deferred since the last call, because no other code sends it.
            is_done |= self.instance.runtime().send_out(&self.rung).is_err();
        }
    }

    fn close(&self) {
        let number = self.number();
        let close =
            move |table: &ConnectionTable, engine: &mut Engine, _: &MemoryAccess<'_>, now| {
                table.close(engine, now, number);
            };
        // Ignore the error, because a forked child has nothing to close.
        let _forked = self.instance.with_table(close);
    }

    fn set_membership(&self, _group: Gid, _is_member: bool) -> Result<(), Error> {
        Err(Error::Invalid("only datagram queue pairs are in groups".into()))
    }
}

impl Drop for ConnectedWire {
    fn drop(&mut self) {
        let number = self.number();
        let leave =
            move |table: &ConnectionTable, engine: &mut Engine, _: &MemoryAccess<'_>, now| {
                table.leave(engine, now, number);
            };
        // Ignore the error, because a forked child has nothing to remove.
        let _forked = self.instance.with_table(leave);
    }
}
