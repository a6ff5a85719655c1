//! Tests of the rules of verbs. They use a device in memory, which carries out work between queue
//! pairs of the process.
#![forbid(unsafe_code)]

mod completions;
mod endings;
mod events;
mod histories;
mod loopback;
mod memory;
mod objects;
mod posting;
mod shared;
mod states;
mod strict;
mod times;
mod transports;

use std::sync::Arc;

use mem::Buffer;
use verbs::{
    AccessFlags, AddressVectorAttributes, AttributeMask, CompletionQueue, Context, Device, Error,
    MemoryRegion, Modification, ProtectionDomain, QueuePair, QueuePairAttributes, QueuePairInit,
    QueuePairLimits, QueuePairState, QueuePairType, ReceiveRequest, ScatterGather, SendFlags,
    SendOpcode, SendRequest, WorkCompletion,
};

use loopback::{Loopback, own_gid};

/// An open device with a domain, a completion queue and registered memory.
struct Host {
    device: Arc<Loopback>,
    context: Arc<Context>,
    domain: Arc<ProtectionDomain>,
    queue: Arc<CompletionQueue>,
    buffer: Arc<Buffer>,
    region: Arc<MemoryRegion>,
}

impl Host {
    fn new() -> Self {
        Self::on(Loopback::new())
    }

    fn on(device: Arc<Loopback>) -> Self {
        let context = Device::new(device.clone()).open().expect("a context");
        let domain = context.allocate_domain().expect("a domain");
        let queue = context.create_completion_queue(64, None).expect("a queue");
        let buffer = Buffer::new(4096);
        let all = AccessFlags(0xf | AccessFlags::WINDOW_BIND.0);
        let address = buffer.address();
        let region = domain.register(address as usize, 4096, address, all).expect("a region");
        Self { device, context, domain, queue, buffer, region }
    }

    fn init(&self, service: QueuePairType) -> QueuePairInit {
        QueuePairInit {
            service,
            send_queue: Arc::clone(&self.queue),
            receive_queue: Arc::clone(&self.queue),
            shared_queue: None,
            limits: QueuePairLimits {
                sends: 4,
                receives: 4,
                send_pieces: 2,
                receive_pieces: 2,
                inline: 0,
            },
            signals_all: false,
        }
    }

    fn queue_pair(&self, service: QueuePairType) -> Arc<QueuePair> {
        self.domain.create_queue_pair(&self.init(service)).expect("a queue pair")
    }

    /// Creates two connected queue pairs.
    fn pair(&self) -> (Arc<QueuePair>, Arc<QueuePair>) {
        self.pair_of(&self.init(QueuePairType::Reliable))
    }

    fn pair_of(&self, init: &QueuePairInit) -> (Arc<QueuePair>, Arc<QueuePair>) {
        let make = || self.domain.create_queue_pair(init).expect("a queue pair");
        let (one, other) = (make(), make());
        connect(&one, &other);
        (one, other)
    }

    fn piece(&self, offset: u64, length: u32) -> ScatterGather {
        ScatterGather { address: self.buffer.address() + offset, length, key: self.region.key() }
    }

    /// Polls and returns all completions that are in the queue.
    fn poll(&self) -> Vec<WorkCompletion> {
        poll(&self.queue)
    }

    fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.buffer.read(offset, &mut bytes);
        bytes
    }
}

fn poll(queue: &CompletionQueue) -> Vec<WorkCompletion> {
    let mut all = Vec::new();
    loop {
        let mut some = [WorkCompletion::NOTHING; 3];
        let found = queue.poll(&mut some).expect("it can be polled");
        all.extend_from_slice(&some[..found]);
        if found == 0 {
            return all;
        }
    }
}

fn send(id: u64, pieces: &[ScatterGather]) -> SendRequest<'_> {
    SendRequest {
        id,
        opcode: SendOpcode::Send { immediate: None },
        flags: SendFlags { signalled: true, ..SendFlags::default() },
        pieces,
        inline: None,
        to: None,
    }
}

fn unsignalled(id: u64, pieces: &[ScatterGather]) -> SendRequest<'_> {
    SendRequest { flags: SendFlags::default(), ..send(id, pieces) }
}

fn receive(id: u64, pieces: &[ScatterGather]) -> ReceiveRequest<'_> {
    ReceiveRequest { id, pieces }
}

/// Returns the attributes that a program sets when it moves a queue pair to RTS. `destination` is
/// the number of the peer's queue pair.
fn attributes(destination: u32) -> QueuePairAttributes {
    let path = AddressVectorAttributes {
        gid: own_gid(),
        is_global: true,
        port: 1,
        ..AddressVectorAttributes::default()
    };
    QueuePairAttributes {
        path_mtu: 1024,
        queue_key: 0x1111,
        receive_psn: 7,
        send_psn: 8,
        destination,
        access: 0xf,
        path,
        reads_max: 1,
        peer_reads_max: 1,
        not_ready_timer: 12,
        timeout: 14,
        retries: 7,
        not_ready_retries: 7,
        partition_key_index: 0,
        port: 1,
    }
}

/// Returns the attribute mask that programs use for the transition to the state `to`.
fn mask_of(service: QueuePairType, to: QueuePairState) -> AttributeMask {
    let mask = match (service, to) {
        (QueuePairType::Datagram, QueuePairState::Init) => 0x71,
        (_, QueuePairState::Init) => 0x39,
        (QueuePairType::Datagram, QueuePairState::ReadyToReceive) => 0x1,
        (QueuePairType::Unreliable, QueuePairState::ReadyToReceive) => 0x10_1181,
        (_, QueuePairState::ReadyToReceive) => 0x12_9181,
        (QueuePairType::Reliable, QueuePairState::ReadyToSend) => 0x1_2e01,
        (_, QueuePairState::ReadyToSend) => 0x1_0001,
        _ => 0x1,
    };
    AttributeMask(mask)
}

fn modify(
    queue_pair: &QueuePair,
    state: QueuePairState,
    mask: AttributeMask,
    attributes: QueuePairAttributes,
) -> Result<(), Error> {
    let current = queue_pair.state();
    queue_pair.modify(&Modification { mask, state, current, drained_event: true, attributes })
}

/// Moves the queue pair to `state`, with the attributes that programs use.
fn go(queue_pair: &QueuePair, state: QueuePairState, destination: u32) {
    let mask = mask_of(queue_pair.service(), state);
    modify(queue_pair, state, mask, attributes(destination)).expect("a transition");
    assert_eq!(queue_pair.state(), state);
}

fn connect(one: &QueuePair, other: &QueuePair) {
    for state in [QueuePairState::Init, QueuePairState::ReadyToReceive, QueuePairState::ReadyToSend]
    {
        go(one, state, other.number());
        go(other, state, one.number());
    }
}

/// Returns the identifier and the status of each completion.
fn results(completions: &[WorkCompletion]) -> Vec<(u64, verbs::CompletionStatus)> {
    completions.iter().map(|completion| (completion.id, completion.status)).collect()
}
