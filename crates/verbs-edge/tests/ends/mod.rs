//! Queue pairs on loopback. The tests exchange the queue pair numbers themselves, like programs of
//! verbs do.
#![allow(dead_code, reason = "not every test uses everything")]

use std::sync::Arc;

use links::LinkSpec;
use mem::Buffer;
use verbs::{
    AccessFlags, AddressVectorAttributes, AttributeMask, CompletionQueue, CompletionStatus,
    Context, Gid, MemoryRegion, Modification, ProtectionDomain, QueuePair, QueuePairAttributes,
    QueuePairInit, QueuePairLimits, QueuePairState, QueuePairType, ReceiveRequest, ScatterGather,
    SendFlags, SendOpcode, SendRequest, SharedReceiveQueue, WorkCompletion,
};
use verbs_edge::Settings;

/// Size of each program's memory in bytes.
pub(crate) const BYTES: u64 = 1 << 20;

/// Objects that a program needs before it creates queue pairs.
pub(crate) struct Program {
    pub(crate) context: Arc<Context>,
    pub(crate) domain: Arc<ProtectionDomain>,
    pub(crate) buffer: Arc<Buffer>,
    pub(crate) region: Arc<MemoryRegion>,
}

/// A queue pair with its own completion queue.
pub(crate) struct End {
    pub(crate) queue_pair: Arc<QueuePair>,
    pub(crate) queue: Arc<CompletionQueue>,
    pub(crate) gid: Gid,
    /// Index in the GID table of the GID that this end uses.
    pub(crate) index: u8,
    pub(crate) psn: u32,
}

/// Identity of an end, which the end announces to its peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name {
    pub(crate) gid: Gid,
    pub(crate) number: u32,
    pub(crate) psn: u32,
}

pub(crate) fn loopback() -> Settings {
    with_links("udp:127.0.0.1")
}

pub(crate) fn with_links(links: &str) -> Settings {
    Settings {
        links: LinkSpec::parse_list(links).expect("they mean something"),
        ..Settings::default()
    }
}

impl Program {
    pub(crate) fn new(settings: &Settings) -> Self {
        let managed = verbs_edge::devices(settings).expect("the settings are good").remove(0);
        Self::of(managed.device.open().expect("it opens"))
    }

    pub(crate) fn of(context: Arc<Context>) -> Self {
        let domain = context.allocate_domain().expect("a domain");
        let buffer = Buffer::new(BYTES);
        let (address, all) = (buffer.address(), AccessFlags(0x1f));
        let region = domain.register(address as usize, BYTES, address, all).expect("it is there");
        Self { context, domain, buffer, region }
    }

    pub(crate) fn end(&self, psn: u32) -> End {
        self.end_of(QueuePairType::Reliable, psn, None)
    }

    pub(crate) fn end_of(
        &self,
        service: QueuePairType,
        psn: u32,
        shared_queue: Option<&Arc<SharedReceiveQueue>>,
    ) -> End {
        let queue = self.context.create_completion_queue(4096, None).expect("a queue");
        let limits = QueuePairLimits {
            sends: 1024,
            receives: 512,
            send_pieces: 4,
            receive_pieces: 4,
            inline: 64,
        };
        let init = QueuePairInit {
            service,
            send_queue: Arc::clone(&queue),
            receive_queue: Arc::clone(&queue),
            shared_queue: shared_queue.cloned(),
            limits,
            signals_all: false,
        };
        let queue_pair = self.domain.create_queue_pair(&init).expect("a queue pair");
        let gid = self.context.query_gid(1, 0).expect("the first GID").gid;
        End { queue_pair, queue, gid, index: 0, psn }
    }

    /// Returns a scatter/gather entry for part of the program's memory.
    pub(crate) fn piece(&self, offset: u64, length: u32) -> ScatterGather {
        ScatterGather { address: self.address(offset), length, key: self.region.key() }
    }

    pub(crate) fn address(&self, offset: u64) -> u64 {
        self.buffer.address() + offset
    }

    pub(crate) fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.buffer.read(offset, &mut bytes);
        bytes
    }
}

impl End {
    pub(crate) fn name(&self) -> Name {
        Name { gid: self.gid, number: self.queue_pair.number(), psn: self.psn }
    }

    pub(crate) fn modify(
        &self,
        state: QueuePairState,
        mask: AttributeMask,
        attributes: QueuePairAttributes,
    ) {
        self.try_modify(state, mask, attributes).expect("it is allowed");
    }

    pub(crate) fn try_modify(
        &self,
        state: QueuePairState,
        mask: AttributeMask,
        attributes: QueuePairAttributes,
    ) -> Result<(), verbs::Error> {
        let (current, drained_event) = (QueuePairState::Reset, false);
        let mask = mask | AttributeMask::STATE;
        self.queue_pair.modify(&Modification { mask, state, current, drained_event, attributes })
    }

    pub(crate) fn init(&self) {
        let mask = AttributeMask::PARTITION_KEY | AttributeMask::PORT | AttributeMask::ACCESS;
        let attributes = QueuePairAttributes { port: 1, access: 0xf, ..Default::default() };
        self.modify(QueuePairState::Init, mask, attributes);
    }

    pub(crate) fn be_ready_to_receive(&self, peer: Name) {
        let attributes = QueuePairAttributes {
            path_mtu: 1024,
            destination: peer.number,
            receive_psn: peer.psn,
            peer_reads_max: 16,
            not_ready_timer: 12,
            path: AddressVectorAttributes {
                gid: peer.gid,
                source_index: self.index,
                is_global: true,
                port: 1,
                ..Default::default()
            },
            ..Default::default()
        };
        let mut mask = AttributeMask::PATH
            | AttributeMask::PATH_MTU
            | AttributeMask::DESTINATION
            | AttributeMask::RECEIVE_PSN;
        if self.queue_pair.service() == QueuePairType::Reliable {
            mask = mask | AttributeMask::PEER_READS_MAX | AttributeMask::NOT_READY_TIMER;
        }
        self.modify(QueuePairState::ReadyToReceive, mask, attributes);
    }

    pub(crate) fn be_ready_to_send(&self) {
        self.be_ready_to_send_with(QueuePairAttributes {
            timeout: 14,
            retries: 7,
            not_ready_retries: 7,
            ..Default::default()
        });
    }

    /// Enters RTS with the timeouts in `timers`.
    pub(crate) fn be_ready_to_send_with(&self, timers: QueuePairAttributes) {
        self.be_ready_to_send_as(QueuePairAttributes { send_psn: self.psn, ..timers });
    }

    /// Enters RTS with `send_psn` as the first packet number.
    pub(crate) fn be_ready_to_send_with_psn(&self, send_psn: u32) {
        let usual = QueuePairAttributes { timeout: 14, retries: 7, ..Default::default() };
        self.be_ready_to_send_as(QueuePairAttributes { send_psn, not_ready_retries: 7, ..usual });
    }

    fn be_ready_to_send_as(&self, attributes: QueuePairAttributes) {
        let attributes = QueuePairAttributes { reads_max: 16, ..attributes };
        let mut mask = AttributeMask::SEND_PSN;
        if self.queue_pair.service() == QueuePairType::Reliable {
            mask = mask
                | AttributeMask::TIMEOUT
                | AttributeMask::RETRIES
                | AttributeMask::NOT_READY_RETRIES
                | AttributeMask::READS_MAX;
        }
        self.modify(QueuePairState::ReadyToSend, mask, attributes);
    }

    /// Moves the queue pair from RESET to RTS.
    pub(crate) fn connect(&self, peer: Name) {
        self.init();
        self.be_ready_to_receive(peer);
        self.be_ready_to_send();
    }

    pub(crate) fn go(&self, state: QueuePairState) {
        self.modify(state, AttributeMask::NONE, QueuePairAttributes::default());
    }

    pub(crate) fn post(&self, id: u64, opcode: SendOpcode, pieces: &[ScatterGather]) {
        let flags = SendFlags { signalled: true, ..SendFlags::default() };
        self.post_with(id, opcode, pieces, flags);
    }

    pub(crate) fn post_with(
        &self,
        id: u64,
        opcode: SendOpcode,
        pieces: &[ScatterGather],
        flags: SendFlags,
    ) {
        let request = SendRequest { id, opcode, flags, pieces, inline: None, to: None };
        self.queue_pair.post_send(&[request]).expect("it is posted");
    }

    pub(crate) fn send(&self, id: u64, piece: ScatterGather) {
        self.post(id, SendOpcode::Send { immediate: None }, &[piece]);
    }

    pub(crate) fn receive(&self, id: u64, pieces: &[ScatterGather]) {
        self.queue_pair.post_receive(&[ReceiveRequest { id, pieces }]).expect("it is posted");
    }

    /// Polls the completions that are in the queue, at most 16.
    pub(crate) fn poll(&self) -> Vec<WorkCompletion> {
        self.poll_at_most(16)
    }

    fn poll_at_most(&self, count: usize) -> Vec<WorkCompletion> {
        let mut done = vec![WorkCompletion::NOTHING; count.min(16)];
        let count = self.queue.poll(&mut done).expect("not forked");
        done.truncate(count);
        done
    }

    /// Polls until `count` completions have arrived, and returns them.
    pub(crate) fn next(&self, count: usize) -> Vec<WorkCompletion> {
        let mut done = Vec::new();
        while done.len() < count {
            done.extend(self.poll_at_most(count - done.len()));
        }
        done
    }

    /// Polls and returns the next completion. It must belong to `id` and report success.
    pub(crate) fn succeed(&self, id: u64) -> WorkCompletion {
        let done = self.next(1)[0];
        assert_eq!((done.id, done.status), (id, CompletionStatus::Success));
        done
    }
}

/// Creates two programs with one queue pair each, and connects them.
pub(crate) fn pair() -> [(Program, End); 2] {
    let programs = [0, 1].map(|_| Program::new(&loopback()));
    let ends = [11, 22].map(|psn| psn);
    let [first, second] = programs;
    let (one, other) = (first.end(ends[0]), second.end(ends[1]));
    one.connect(other.name());
    other.connect(one.name());
    [(first, one), (second, other)]
}
