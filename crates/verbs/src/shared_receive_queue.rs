//! Shared receive queues.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use crossbeam_queue::ArrayQueue;
use mem::Rights;
use wire_edge::RemoteKey;
use work::SharedReceives;
use work::{PIECES_MAX, Piece, PieceList};

use crate::acknowledged::Unacknowledged;
use crate::async_event::{AsyncEventKind, EventElement};
use crate::error::Error;
use crate::protection_domain::ProtectionDomain;
use crate::queue_pair::check_pieces;
use crate::uses::Uses;
use crate::work_request::{ReceiveRequest, ScatterGather};

/// A shared receive queue.
#[derive(Debug)]
pub struct SharedReceiveQueue {
    this: std::sync::Weak<Self>,
    domain: Arc<ProtectionDomain>,
    uses: Uses,
    receives: Arc<SharedReceives>,
    pieces_max: u32,
    /// The program's identifiers of the receives, by place. The device's completion of a receive
    /// contains the index of the place.
    ids: Box<[AtomicU64]>,
    /// Numbers of the places that contain no receive.
    free: ArrayQueue<u32>,
    /// Number of receives below which the queue raises an event; 0 means no event.
    limit: AtomicU32,
    events: Unacknowledged,
    /// Value that the C API stores with this object.
    pub user: AtomicUsize,
}

/// Attributes of a shared receive queue.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SharedReceiveQuery {
    /// Maximum number of receives.
    pub receives: u32,
    /// Maximum number of scatter/gather entries of a receive.
    pub pieces: u32,
    /// Number of receives below which the queue raises an event; 0 means no event.
    pub limit: u32,
}

impl SharedReceiveQueue {
    pub(crate) fn new(
        domain: &Arc<ProtectionDomain>,
        receives: u32,
        pieces: u32,
    ) -> Result<Arc<Self>, Error> {
        let context = domain.context();
        let attributes = context.device().attributes();
        let (receives_max, pieces_max) = (attributes.shared_receives_max, attributes.pieces_max);
        if receives == 0 || receives > receives_max || pieces > pieces_max {
            let what = format!(
                "{receives} receives of {pieces} pieces: 1 to {receives_max} of at most {pieces_max}"
            );
            return Err(Error::Invalid(what));
        }
        domain.memory()?;
        let max = attributes.shared_queues_max;
        context.begin("shared receive queues", max, |counts| &mut counts.shared_queues)?;
        let begun = domain.uses().begin_of("protection domain");
        begun.inspect_err(|_| context.end(|counts| &mut counts.shared_queues))?;
        let free = ArrayQueue::new(receives as usize);
        for place in 0..receives {
            // This cannot fail, because the free list has room for all places.
            let _ = free.push(place);
        }
        let made = Arc::new_cyclic(|this| Self {
            this: std::sync::Weak::clone(this),
            domain: Arc::clone(domain),
            uses: Uses::default(),
            receives: Arc::new(SharedReceives::new(receives as usize)),
            pieces_max: pieces.max(1),
            ids: (0..receives).map(|_| AtomicU64::new(0)).collect(),
            free,
            limit: AtomicU32::new(0),
            events: Unacknowledged::default(),
            user: AtomicUsize::new(0),
        });
        context.provider().registry().add_receives(&made);
        Ok(made)
    }

    /// Returns the protection domain.
    pub const fn domain(&self) -> &Arc<ProtectionDomain> {
        &self.domain
    }

    /// Returns the queue from which the device takes receives.
    pub const fn receives(&self) -> &Arc<SharedReceives> {
        &self.receives
    }

    /// Posts receives in order. Stops at the first receive that is rejected. Does not check whether
    /// the memory is registered. If it is not registered, the receive fails when a message arrives
    /// for it.
    ///
    /// # Errors
    /// Returns the index in `requests` of the rejected receive, and one of these causes:
    /// * [`Error::NoRoom`] if the queue is full.
    /// * [`Error::Invalid`] if the receive has too many scatter/gather entries, or if an entry is
    ///   too long.
    pub fn post(&self, requests: &[ReceiveRequest<'_>]) -> Result<(), (usize, Error)> {
        let provider = self.domain.context().provider();
        provider.check().map_err(|error| (0, error))?;
        let mut is_waited_for = false;
        let posted = requests.iter().enumerate().try_for_each(|(index, request)| {
            let posted = self.post_one(request).map_err(|error| (index, error));
            posted.map(|waited_for| is_waited_for |= waited_for)
        });
        if is_waited_for {
            provider.receives_posted(&self.receives);
        }
        posted
    }

    /// Posts one receive. Returns whether connections wait for receives of this queue.
    fn post_one(&self, request: &ReceiveRequest<'_>) -> Result<bool, Error> {
        check_pieces(request.pieces, self.pieces_max)?;
        let mut pieces = [Piece::NOTHING; PIECES_MAX];
        let pieces = pieces.get_mut(..request.pieces.len()).unwrap_or_default();
        self.locate(request.pieces, pieces)?;
        let list = PieceList::new(pieces).map_err(|error| Error::Invalid(error.to_string()))?;
        let full = || Error::NoRoom("the shared receive queue is full".into());
        let place = self.free.pop().ok_or_else(full)?;
        if let Some(id) = self.ids.get(place as usize) {
            id.store(request.id, Ordering::Release);
        }
        self.receives.post_list(list, place.into()).map_err(|_| {
            let _ = self.free.push(place);
            full()
        })
    }

    /// Resolves scatter/gather entries to regions and offsets. If an entry lies in no region that
    /// may be written, the resolved entry has no region.
    fn locate(&self, pieces: &[ScatterGather], located: &mut [Piece]) -> Result<(), Error> {
        let (table, domain) = self.domain.memory()?;
        let access = table.access();
        for (piece, located) in pieces.iter().zip(located) {
            let ScatterGather { address, length, key } = *piece;
            let (key, bytes) = (RemoteKey(key), u64::from(length));
            let target = access.resolve(domain, key, address, bytes, Rights::LOCAL_WRITE);
            let found = target.and_then(|target| {
                let region = access.region(target.region())?;
                Ok((region.id, address - region.start))
            });
            *located = match found {
                Ok((region, offset)) => Piece { region, offset, length },
                Err(_) => Piece { length, ..Piece::NOTHING },
            };
        }
        Ok(())
    }

    /// Retires the receive at `place` and returns its identifier.
    pub(crate) fn retire(&self, place: u64) -> u64 {
        let id = self.ids.get(place as usize).map_or(0, |id| id.load(Ordering::Acquire));
        let _ = self.free.push(place as u32);
        id
    }

    /// Requests an event for the moment when the queue has fewer than `limit` receives. A limit of
    /// 0 cancels the request.
    ///
    /// # Errors
    /// Returns [`Error::Invalid`] if the limit exceeds the capacity.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        let provider = self.domain.context().provider();
        provider.check()?;
        if limit as usize > self.receives.capacity() {
            let what = format!("a limit of {limit}: it holds {}", self.receives.capacity());
            return Err(Error::Invalid(what));
        }
        self.limit.store(limit, Ordering::SeqCst);
        if provider.arm_limit(&self.receives, limit)? {
            self.on_below_limit();
        }
        Ok(())
    }

    /// Returns the attributes.
    ///
    /// # Errors
    /// Returns [`Error::NoDevice`] in a forked child.
    pub fn query(&self) -> Result<SharedReceiveQuery, Error> {
        self.domain.context().provider().check()?;
        Ok(SharedReceiveQuery {
            receives: self.receives.capacity() as u32,
            pieces: self.pieces_max,
            limit: self.limit.load(Ordering::SeqCst),
        })
    }

    /// Raises the event and cancels the limit, if the program has set a limit.
    pub(crate) fn on_below_limit(&self) {
        if self.limit.swap(0, Ordering::SeqCst) != 0
            && let Some(this) = self.this.upgrade()
        {
            let kind = AsyncEventKind::ReceiveLimitReached;
            self.domain.context().raise(kind, EventElement::SharedReceiveQueue(this));
        }
    }

    /// Destroys the queue. Waits until the program has acknowledged every event of the queue that
    /// the program has read.
    ///
    /// # Errors
    /// Returns [`Error::Busy`] if a queue pair uses the queue.
    pub fn destroy(&self) -> Result<(), Error> {
        let context = self.domain.context();
        context.provider().check()?;
        self.uses.destroy("shared receive queue")?;
        context.provider().registry().remove_receives(self);
        context.forget_events(|element| {
            matches!(element, EventElement::SharedReceiveQueue(of) if std::ptr::eq(Arc::as_ptr(of), self))
        });
        self.events.wait();
        context.end(|counts| &mut counts.shared_queues);
        self.domain.uses().end();
        Ok(())
    }

    pub(crate) const fn uses(&self) -> &Uses {
        &self.uses
    }

    pub(crate) const fn async_events(&self) -> &Unacknowledged {
        &self.events
    }
}
