//! A device under test, with what a program needs to use it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use mem::Buffer;
use rdma_cm::{
    Caller, End, Exchange, Listener, ManagedDevice, Over, PortSpace, Refusal, Reply, Request, Route,
};
use verbs::{
    AccessFlags, AttributeMask, CompletionQueue, CompletionStatus, Context, Gid, MemoryRegion,
    Modification, ProtectionDomain, QueuePair, QueuePairAttributes, QueuePairInit, QueuePairLimits,
    QueuePairState, QueuePairType, ReceiveRequest, ScatterGather, SendFlags, SendOpcode,
    SendRequest, SharedReceiveQueue, WorkCompletion,
};
use verbs_iwarp::Settings;

use crate::peer::{Peer, PeerPort};

/// A started device with a domain, a completion queue and registered memory.
pub(crate) struct Host {
    pub(crate) managed: ManagedDevice,
    pub(crate) context: Arc<Context>,
    pub(crate) domain: Arc<ProtectionDomain>,
    pub(crate) queue: Arc<CompletionQueue>,
    pub(crate) buffer: Arc<Buffer>,
    region: Arc<MemoryRegion>,
}

/// A connection of a queue pair to a peer.
pub(crate) struct Connection {
    pub(crate) queue_pair: Arc<QueuePair>,
    pub(crate) exchange: Arc<dyn Exchange>,
    pub(crate) peer: Peer,
    pub(crate) over: Receiver<Over>,
}

impl Host {
    pub(crate) fn new() -> Self {
        let managed = verbs_iwarp::device(Settings::new("iwarp0")).expect("the host has one");
        let context = managed.device.open().expect("it opens");
        let domain = context.allocate_domain().expect("a domain");
        let queue = context.create_completion_queue(1024, None).expect("a queue");
        let buffer = Buffer::new(BUFFER_BYTES);
        let region = registered(&domain, &buffer);
        Self { managed, context, domain, queue, buffer, region }
    }

    /// Returns a scatter/gather entry of the registered memory.
    pub(crate) fn piece(&self, offset: u64, length: u32) -> ScatterGather {
        ScatterGather { address: self.buffer.address() + offset, length, key: self.region.key() }
    }

    /// Connects a queue pair with this shared receive queue, if any, to a new peer.
    pub(crate) fn connect(&self, shared: Option<&Arc<SharedReceiveQueue>>) -> Connection {
        let port = PeerPort::new();
        let (queue_pair, exchange, news) = self.ask(shared, port.address());
        let peer = port.accept();
        news.wait_for_acceptance();
        Connection { queue_pair, exchange, peer, over: news.over }
    }

    /// Asks a peer to connect to a new queue pair.
    pub(crate) fn ask(
        &self,
        shared: Option<&Arc<SharedReceiveQueue>>,
        to: SocketAddr,
    ) -> (Arc<QueuePair>, Arc<dyn Exchange>, News) {
        let init = QueuePairInit {
            service: QueuePairType::Reliable,
            send_queue: Arc::clone(&self.queue),
            receive_queue: Arc::clone(&self.queue),
            shared_queue: shared.cloned(),
            limits: QueuePairLimits {
                sends: 256,
                receives: 16,
                send_pieces: 1,
                receive_pieces: 1,
                inline: 0,
            },
            signals_all: true,
        };
        let queue_pair = self.domain.create_queue_pair(&init).expect("a queue pair");
        go(&queue_pair, QueuePairState::Init);
        let (caller, news) = news();
        let from = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let gid = Gid::of(from.ip());
        let request = Request {
            space: PortSpace::Tcp,
            port: to.port(),
            source_port: 0,
            to: Gid::of(to.ip()),
            end: end(gid, queue_pair.number()),
            private_data: Vec::new(),
        };
        let route = Route { gid, from, to };
        let manager = &self.managed.manager;
        let exchange = manager.connect(route, &request, Some(&queue_pair), caller);
        (queue_pair, exchange.expect("a request"), news)
    }

    /// Polls until there are `count` completions.
    pub(crate) fn completions(&self, count: usize) -> Vec<WorkCompletion> {
        let mut all = Vec::new();
        while all.len() < count {
            let mut some = [WorkCompletion::NOTHING; 16];
            let found = self.queue.poll(&mut some).expect("it can be polled");
            all.extend_from_slice(&some[..found]);
            thread::yield_now();
        }
        all
    }
}

/// Registers a buffer for all local and remote accesses.
pub(crate) fn registered(domain: &Arc<ProtectionDomain>, buffer: &Buffer) -> Arc<MemoryRegion> {
    let address = buffer.address();
    let region = domain.register(address as usize, BUFFER_BYTES, address, AccessFlags(0x7));
    region.expect("a region")
}

/// Moves a queue pair to a state, without other attributes.
pub(crate) fn go(queue_pair: &QueuePair, state: QueuePairState) {
    let change = Modification {
        mask: AttributeMask::STATE,
        state,
        current: queue_pair.state(),
        drained_event: false,
        attributes: QueuePairAttributes::default(),
    };
    queue_pair.modify(&change).expect("a transition");
}

pub(crate) fn send(id: u64, pieces: &[ScatterGather]) -> SendRequest<'_> {
    SendRequest {
        id,
        opcode: SendOpcode::Send { immediate: None },
        flags: SendFlags::default(),
        pieces,
        inline: None,
        to: None,
    }
}

pub(crate) fn receive(id: u64, pieces: &[ScatterGather]) -> ReceiveRequest<'_> {
    ReceiveRequest { id, pieces }
}

/// Returns the identifier and the status of each completion.
pub(crate) fn results(completions: &[WorkCompletion]) -> Vec<(u64, CompletionStatus)> {
    completions.iter().map(|completion| (completion.id, completion.status)).collect()
}

/// What the caller of a request is notified of.
pub(crate) struct News {
    accepted: Receiver<()>,
    over: Receiver<Over>,
}

impl News {
    /// Waits until the peer has accepted.
    pub(crate) fn wait_for_acceptance(&self) {
        self.accepted.recv().expect("the peer accepts");
    }
}

struct TestCaller {
    accepted: Sender<()>,
    over: Sender<Over>,
}

impl Caller for TestCaller {
    fn on_accepted(&self, _reply: Reply) {
        // The test may not wait for this.
        let _ended = self.accepted.send(());
    }

    fn on_established(&self) {}

    fn on_over(&self, over: Over) {
        let _ended = self.over.send(over);
    }

    fn on_quiet(&self) {}
}

fn news() -> (Arc<dyn Caller>, News) {
    let (accepted, of_acceptance) = channel();
    let (over, of_end) = channel();
    let news = News { accepted: of_acceptance, over: of_end };
    (Arc::new(TestCaller { accepted, over }), news)
}

/// Refuses each request, after it has passed the request on.
#[derive(Default)]
pub(crate) struct Refuses {
    pub(crate) requests: Option<Sender<Request>>,
}

impl Listener for Refuses {
    fn on_request(
        &self,
        request: Request,
        exchange: Arc<dyn Exchange>,
    ) -> Result<Arc<dyn Caller>, Refusal> {
        drop(exchange);
        if let Some(requests) = &self.requests {
            requests.send(request).expect("the test waits for it");
        }
        Err(Refusal::of(3))
    }
}

fn end(gid: Gid, number: u32) -> End {
    End {
        service: QueuePairType::Reliable,
        number,
        psn: 0,
        queue_key: 0,
        gid,
        responder_resources: 4,
        initiator_depth: 4,
        retries: 7,
        not_ready_retries: 7,
        flow_control: false,
        is_shared: false,
        takes_over: true,
        not_ready_timer: 0,
    }
}

/// Length of the registered memory.
pub(crate) const BUFFER_BYTES: u64 = 1 << 20;
