//! Runs the machine of one node of the distributed shared memory. The input bytes decide what its
//! threads call, what its peers write into its control memory, what they send, and how they answer
//! its operations.
//!
//! The test checks these properties:
//!
//! - No code panics.
//! - Each operation names a peer that exists, and bytes that the area has at the peer. A Patch is
//!   well-formed, and the bytes of a read land in a page of the region.
//! - The machine asks its memory only for pages of the region. It compares only pages with a twin.
//! - A failure names a rank that exists. Then every thread that waits gets the failure.

mod host;

use dsm_protocol::{
    Arrival, AtomicOperation, Call, Coherence, Config, Failure, Node, PageNumber, Rank, Reason,
    ThreadNumber,
};

use crate::input::Input;
use host::Host;

/// Maximum number of steps of one run.
const STEPS_MAX: usize = 400;

/// Runs this fuzz target on one input.
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let config = config(&mut input);
    let mut host = Host::new(config, input.one_in(2) && !config.races);
    let node = Node::new(config, &mut host).expect("the settings are valid");
    let mut run = Run { node, host, config, calls: vec![false; config.threads.into()] };
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        run.step(&mut input);
        run.check();
    }
}

fn config(input: &mut Input<'_>) -> Config {
    let (choice, nodes) = (input.u8(), [2, 3, 5, 64][input.below(4)]);
    Config {
        threads: 1 + u16::from(choice & 1),
        log_entries: [4, 16, 64, 1024][usize::from(choice >> 1 & 3)],
        coherence: if choice & 0xf8 == 8 {
            Coherence::SelfInvalidation
        } else {
            Coherence::Notices
        },
        fetch_pages: if choice & 0x30 == 0x30 { 8 } else { 1 },
        history: choice & 0x40 != 0,
        migrate_after: input.u8() % 3,
        races: choice & 0x88 == 0x80,
        ..Config::new(Rank(input.below(usize::from(nodes)) as u8), nodes, 1 + input.below(6) as u32)
    }
}

struct Run {
    node: Node,
    host: Host,
    config: Config,
    /// Whether each thread is in a call.
    calls: Vec<bool>,
}

impl Run {
    /// Performs the step that the next bytes of the input describe.
    fn step(&mut self, input: &mut Input<'_>) {
        let choice = input.u8();
        match choice & 15 {
            0..=3 => self.call(input),
            4..=6 => self.host.answer(input, choice >> 4 == 15),
            7 | 8 => self.host.answer_all(input),
            9 if choice >> 4 < 4 => {
                let (from, bytes) = (self.peer(input), input.bytes());
                self.host.push(Arrival::Received { from }, bytes);
            }
            9..=11 => {
                let (from, bytes) = (self.peer(input), message(input, self.config.nodes));
                self.host.push(Arrival::Received { from }, bytes);
            }
            12 if choice & 0xc0 != 0 => self.host.write_slot(input),
            12 => {
                let from = self.peer(input);
                let (round, series) = (u32::from(input.u8() & 7), u32::from(input.u8() & 3));
                let notification = 0xb100_0000 | round << 16 | series;
                let notification = if choice & 16 == 0 { notification } else { input.u32() };
                self.host.push(Arrival::Notified { from, notification }, Vec::new());
            }
            13 => self.host.write_control(input),
            14 if choice >> 4 == 15 => {
                let lock = u64::from(input.u8() & 0x1c);
                self.node.search(&mut self.host, lock);
            }
            14 => self.host.write_page(input),
            _ if choice >> 4 == 15 => {
                let rank = self.peer(input);
                self.host.push(Arrival::Died { rank, reason: Reason::Silent }, Vec::new());
            }
            _ => {}
        }
        self.node.poll(&mut self.host);
        for (thread, is_inside) in (0..).zip(&mut self.calls) {
            if *is_inside && self.node.take(ThreadNumber(thread)).is_some() {
                *is_inside = false;
            }
        }
        while self.node.poll_race().is_some() {}
    }

    fn call(&mut self, input: &mut Input<'_>) {
        let thread = ThreadNumber(input.below(self.calls.len()) as u16);
        let call = self.any_call(input);
        let started = self.node.start(&mut self.host, thread, call);
        if let (Ok(()), Some(is_inside)) = (started, self.calls.get_mut(usize::from(thread.0))) {
            assert!(!*is_inside, "a thread began a call inside of another one");
            *is_inside = true;
        }
    }

    fn any_call(&self, input: &mut Input<'_>) -> Call {
        let (kind, number) = (input.u8(), input.small());
        let page = PageNumber(number);
        let (first, count) = (page, 1 + input.u8() as u32 % 3);
        // Few addresses, so that calls and messages meet at them.
        let address = u64::from(input.u8() & 0x1c);
        let all = u32::from(self.config.nodes) * u32::from(self.config.threads);
        match kind % 28 {
            0..=2 => Call::ReadFault(page),
            3..=6 => Call::WriteFault(page),
            7 | 8 => Call::Lock(address),
            9 => Call::Unlock(address),
            10 => Call::ReadLock(address),
            11 => Call::WriteLock(address),
            12 => Call::ReadWriteUnlock(address),
            13..=15 => Call::Barrier { address, count: all },
            16 => Call::Barrier { address, count: number },
            17 => Call::Wait { condition: address, lock: address ^ 4 },
            18 => Call::Signal(address),
            19 => Call::Take(address),
            20 => Call::Give { semaphore: address, count: number },
            21 => match number & 3 {
                0 => Call::Await(address),
                1 => Call::Set(address),
                2 => Call::Clear(address),
                _ => Call::Broadcast(address),
            },
            22 => Call::Atomic {
                address: u64::from(number) * 4096 + address,
                operation: match count {
                    1 => AtomicOperation::FetchAdd(1),
                    2 => AtomicOperation::Swap(2),
                    _ => AtomicOperation::CompareSwap { expected: 0, desired: 3 },
                },
            },
            23 => Call::Release,
            24 => Call::Acquire,
            25 => Call::Prefetch { first, count },
            26 if number & 1 == 0 => Call::Unpin { first, count },
            26 => Call::Pin { first, count, is_written: address & 4 != 0 },
            _ => Call::Migrate { page, to: Rank(input.u8()) },
        }
    }

    fn peer(&self, input: &mut Input<'_>) -> Rank {
        let others = usize::from(self.config.nodes) - 1;
        let rank = input.below(others) as u8;
        Rank(rank + u8::from(rank >= self.config.rank.0))
    }

    fn check(&mut self) {
        let Some(failure) = self.node.failure() else { return };
        if let Failure::Died { rank, .. } | Failure::Protocol { rank, .. } = failure {
            assert!(rank.0 < self.config.nodes, "{failure:?}");
        }
        assert!(self.calls.iter().all(|is_inside| !is_inside), "a thread waits after {failure:?}");
    }
}

/// Returns a message whose kind and length fit together; all else is as the input says.
fn message(input: &mut Input<'_>, nodes: u8) -> Vec<u8> {
    let (kind, code) = (1 + input.u8() % 10, input.u8() & 15);
    let (thread, count) = (input.u8() & 3, input.small());
    // The largest number stands for the driver.
    let thread = if thread == 3 { u16::MAX } else { u16::from(thread & 1) };
    let address = u64::from(input.u8() & 0x1c);
    let mut bytes = vec![kind, code];
    bytes.extend(thread.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend(address.to_le_bytes());
    let clock = |bytes: &mut Vec<u8>, input: &mut Input<'_>| {
        for _ in 0..nodes {
            // Most peers have published nothing, or little.
            bytes.extend(u64::from(input.u8() / 0xc0 * 2).to_le_bytes());
        }
    };
    match kind {
        1 | 4 | 5 => clock(&mut bytes, input),
        2 => bytes.extend(u64::from(input.small()).to_le_bytes()),
        3 => {
            clock(&mut bytes, input);
            for _ in 0..count.min(64) {
                bytes.extend(input.small().to_le_bytes());
            }
        }
        7 => {
            clock(&mut bytes, input);
            bytes.extend([input.u8(); 128]);
        }
        _ => {}
    }
    bytes
}
