//! Processes with ids of the connection manager, on loopback. Each process has its own device.
#![allow(dead_code, reason = "not every test uses everything")]

use std::net::SocketAddr;
use std::sync::Arc;

use rdma_cm::{ConnectOptions, Event, EventChannel, EventKind, Id, ManagedHost, PortSpace};
use verbs_edge::{Settings, devices};

use crate::ends::{End, Program, loopback};

/// A process: its device, its verbs objects, and an event channel for its ids.
pub(crate) struct Process {
    pub(crate) program: Program,
    pub(crate) host: Arc<ManagedHost>,
    pub(crate) channel: Arc<EventChannel>,
}

impl Process {
    pub(crate) fn new() -> Self {
        Self::with(&loopback())
    }

    pub(crate) fn with(settings: &Settings) -> Self {
        let managed = devices(settings).expect("the settings are good").remove(0);
        let program = Program::of(managed.device.open().expect("it opens"));
        let host = ManagedHost::new(vec![managed]);
        let channel = EventChannel::new(&host).expect("a channel");
        Self { program, host, channel }
    }

    pub(crate) fn id(&self) -> Arc<Id> {
        Id::new(&self.host, &self.channel, PortSpace::Tcp, None).expect("an id")
    }

    pub(crate) fn listener(&self) -> (Arc<Id>, SocketAddr) {
        let id = self.id();
        id.bind(([127, 0, 0, 1], 0).into()).expect("a free port");
        id.listen(0).expect("it listens");
        let at = id.local().expect("an address");
        (id, at)
    }

    /// Returns the next event, which must have this kind, and acknowledges it. Skips notes that the
    /// number of an ended connection is free again, because they come a while after the end.
    pub(crate) fn got(&self, kind: EventKind) -> Event {
        loop {
            let event = self.channel.get().expect("there will be an event");
            event.acknowledge();
            if event.kind != EventKind::TimewaitExit || kind == EventKind::TimewaitExit {
                assert_eq!(event.kind, kind, "{event:?}");
                return event;
            }
        }
    }

    /// Returns an id that has a resolved route and a queue pair.
    pub(crate) fn resolved(&self, to: SocketAddr) -> (Arc<Id>, End) {
        let id = self.bare(to);
        let end = self.pair_of(&id);
        (id, end)
    }

    /// Returns an id that has a resolved route and no queue pair.
    pub(crate) fn bare(&self, to: SocketAddr) -> Arc<Id> {
        let id = self.id();
        id.resolve_address(None, to).expect("it is looked for");
        self.got(EventKind::AddressResolved);
        id.resolve_route().expect("it is looked for");
        self.got(EventKind::RouteResolved);
        id
    }

    /// Creates a queue pair and attaches it to an id.
    pub(crate) fn pair_of(&self, id: &Id) -> End {
        let end = self.program.end(0);
        id.take_queue_pair(&end.queue_pair).expect("it is in RESET");
        end
    }
}

/// Returns the options of a request that carries `private_data`.
pub(crate) fn saying(private_data: &[u8]) -> ConnectOptions {
    let private_data = private_data.to_vec();
    ConnectOptions { private_data, retries: 7, not_ready_retries: 7, ..Default::default() }
}
