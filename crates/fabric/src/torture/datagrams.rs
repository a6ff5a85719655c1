//! Datagrams between hosts, in addition to their connections. Datagrams can get lost. A datagram
//! must not arrive changed, at a wrong port or with a wrong key. It may arrive twice only if the
//! network makes copies.

use std::collections::BTreeMap;

use delivery::{Instant, LinkId};
use wire_edge::{ROUTE_HEADER_BYTES, route_header};

use super::run::{Run, Wake};
use crate::host::{Completion, CompletionKind, Datagram, HostEngine, Refusal, Region};
use crate::oracle::Violation;
use crate::world::World;

/// The datagram port of a host, and the memory of the port. A host gets a new port after each
/// restart.
#[derive(Debug)]
pub(super) struct PortMemory {
    life: u32,
    /// Memory of receives, in slots of equal size. `outbox` is the memory of outgoing datagrams.
    inbox: Region,
    outbox: Region,
    posted: BTreeMap<u64, u32>,
    free_receives: Vec<u32>,
    leaving: BTreeMap<u64, u32>,
    free_sends: Vec<u32>,
    next_context: u64,
}

/// A posted datagram.
#[derive(Debug)]
pub(super) struct Sent {
    from: usize,
    to: usize,
    link: usize,
    immediate: Option<u32>,
    content: Vec<u8>,
    /// Whether a port with the datagram's number and key exists.
    is_right: bool,
    received: u32,
}

impl<E: HostEngine> Run<'_, E> {
    pub(super) fn schedule_datagrams(&mut self, world: &mut World<E>) {
        let Some(queue_pairs) = self.plan.queue_pairs else { return };
        for host in 0..self.plan.hosts {
            if queue_pairs.datagrams > 0 {
                let wake = Wake::Datagrams { host, left: queue_pairs.datagrams };
                let at_ns = self.gates.below(200_000);
                self.wake_at(world, Instant(at_ns), wake);
            }
        }
    }

    /// Handles a wake-up of a datagram application, which polls its port and sends one datagram.
    pub(super) fn send_datagrams(&mut self, world: &mut World<E>, host: usize, left: u32) {
        if !world.is_paused(host) {
            self.open_mailbox(world, host);
            self.collect_datagrams(world, host);
            self.post_mail_receives(world, host);
            if !self.healed {
                self.send_datagram(world, host);
            }
        }
        if left > 1 && !self.healed {
            let at = world.now().after_ns(self.gates.between(2_000, 200_000));
            self.wake_at(world, at, Wake::Datagrams { host, left: left - 1 });
        }
    }

    fn open_mailbox(&mut self, world: &mut World<E>, host: usize) {
        let life = self.hosts[host].life;
        let is_open = self.hosts[host].port_memory.as_ref().is_some_and(|open| open.life == life);
        if is_open {
            return;
        }
        let engine = world.engine_mut(host);
        engine.turn_to(0);
        engine.open_port(number_of(host), key_of(host, life));
        self.hosts[host].port_memory = Some(PortMemory {
            life,
            inbox: engine.register(SLOTS * SLOT_BYTES),
            outbox: engine.register(SLOTS * SLOT_BYTES),
            posted: BTreeMap::new(),
            free_receives: (0..SLOTS).collect(),
            leaving: BTreeMap::new(),
            free_sends: (0..SLOTS).collect(),
            next_context: 0,
        });
    }

    fn post_mail_receives(&mut self, world: &mut World<E>, host: usize) {
        let ahead = self.gates.below(8) as usize;
        if self.shares_receives() {
            return;
        }
        let Some(port_memory) = &mut self.hosts[host].port_memory else { return };
        while port_memory.posted.len() < ahead
            && let Some(slot) = port_memory.free_receives.pop()
        {
            let context = port_memory.next_context;
            port_memory.next_context += 1;
            port_memory.posted.insert(context, slot);
            let place = (port_memory.inbox, slot * SLOT_BYTES, SLOT_BYTES);
            let engine = world.engine_mut(host);
            if let Err(refusal) = engine.post_datagram_receive(number_of(host), place, context) {
                return self.refused(host, "a receive of datagrams", refusal);
            }
        }
    }

    fn send_datagram(&mut self, world: &mut World<E>, host: usize) {
        let to = self.gates.below(self.plan.hosts as u64) as usize;
        let link = self.gates.below(self.plan.links.len() as u64) as usize;
        let wrong = self.gates.below(10);
        let length = self.gates.pick(&[8, 8, 24, 64, 300, 1_000]);
        let immediate = self.gates.chance_ppm(300_000).then(|| self.gates.next_u64() as u32);
        let mut content = vec![0; length];
        self.gates.fill(&mut content);
        content[..8].copy_from_slice(&(self.datagrams.len() as u64).to_le_bytes());
        let life = self.hosts[to].life;
        let peer = self.plan.address(to, link);
        let Some(port_memory) = &mut self.hosts[host].port_memory else { return };
        let Some(slot) = port_memory.free_sends.pop().filter(|_| to != host) else { return };
        let context = port_memory.next_context;
        port_memory.next_context += 1;
        let datagram = Datagram {
            link: LinkId(link as u8),
            to: peer,
            destination: number_of(to) ^ u32::from(wrong == 0) << 8,
            key: key_of(to, life) ^ u32::from(wrong == 1),
            immediate,
            local: port_memory.outbox,
            local_offset: slot * SLOT_BYTES,
            length_bytes: length as u32,
            signalled: true,
            context,
        };
        let engine = world.engine_mut(host);
        engine.write_memory(datagram.local, datagram.local_offset, &content);
        match engine.post_datagram(number_of(host), &datagram) {
            Ok(()) => {
                port_memory.leaving.insert(context, slot);
                let is_right = wrong > 1;
                let sent = Sent { from: host, to, link, immediate, content, is_right, received: 0 };
                self.datagrams.push(sent);
            }
            Err(Refusal::Full) => port_memory.free_sends.push(slot),
            Err(refusal) => self.refused(host, "a datagram", refusal),
        }
    }

    /// Polls the completions of a host's port. The completions report arrived datagrams and sent
    /// datagrams.
    pub(super) fn collect_datagrams(&mut self, world: &mut World<E>, host: usize) {
        let life = self.hosts[host].life;
        if self.hosts[host].port_memory.as_ref().is_none_or(|port_memory| port_memory.life != life)
        {
            return;
        }
        while let Some((found, source)) = world.engine_mut(host).poll_datagrams(number_of(host)) {
            let outcome = match found.kind {
                CompletionKind::Send => self.take_sent(host, &found),
                _ => self.take_datagram(world, host, &found, source),
            };
            let outcome = outcome.map_err(|what| Violation::Datagram { host, what });
            self.check(outcome);
        }
    }

    fn take_sent(&mut self, host: usize, found: &Completion) -> Result<(), String> {
        let Some(port_memory) = &mut self.hosts[host].port_memory else { return Ok(()) };
        let slot = port_memory.leaving.remove(&found.context);
        let slot = slot.ok_or("one that was not posted, or twice, was sent")?;
        port_memory.free_sends.push(slot);
        if found.success { Ok(()) } else { Err(format!("failed as {:?}", found.fault)) }
    }

    fn take_datagram(
        &mut self,
        world: &World<E>,
        host: usize,
        found: &Completion,
        source: u32,
    ) -> Result<(), String> {
        let (region, offset) = if self.shares_receives() {
            self.take_shared_receive(host, found)
        } else {
            let Some(port_memory) = &mut self.hosts[host].port_memory else { return Ok(()) };
            let slot = port_memory.posted.remove(&found.context);
            port_memory.free_receives.extend(slot);
            slot.map(|slot| (port_memory.inbox, slot * SLOT_BYTES))
        }
        .ok_or("a receive that was not posted was filled")?;
        if !found.success {
            return Err(format!("a receive failed as {:?}", found.fault));
        }
        let mut bytes = vec![0; found.length_bytes as usize];
        world.engine(host).read_memory(region, offset, &mut bytes);
        let (header, content) =
            bytes.split_at_checked(ROUTE_HEADER_BYTES).ok_or("without a header")?;
        let index = content.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
        // Attackers replay recorded frames from their own addresses, so datagrams can arrive twice.
        let has_strangers = self.plan.classes.strangers.is_some();
        let faults = &self.plan.faults;
        let makes_copies = faults.duplicate_ppm > 0 || faults.replay_ppm > 0 || has_strangers;
        let sent = self.datagrams.get_mut(index as usize).ok_or("no host sent it")?;
        let plan = &self.plan;
        let [from, to] = [sent.from, sent.to].map(|host| plan.address(host, sent.link));
        sent.received += 1;
        self.tally.delivered += 1;
        if sent.content != content || sent.immediate != found.immediate {
            return Err("altered".to_owned());
        }
        if sent.to != host || source != number_of(sent.from) {
            return Err(format!("for host {} from {source:#x}", sent.to));
        }
        if header != route_header(from, to, content.len() as u16) && !has_strangers {
            return Err(format!("under the header {header:02x?}"));
        }
        if !sent.is_right {
            return Err("with a wrong number or key".to_owned());
        }
        if sent.received > 1 && !makes_copies {
            return Err("for the second time".to_owned());
        }
        Ok(())
    }
}

/// Returns the queue pair number of a host's port.
const fn number_of(host: usize) -> u32 {
    0x1000 + host as u32
}

/// Returns the queue key of the port that a host has after `life` restarts. The key is even.
const fn key_of(host: usize, life: u32) -> u32 {
    0x5eed_0000 | life << 8 | (host as u32) << 1
}

const SLOTS: u32 = 16;

/// Size of a slot in bytes, for the route header and the longest datagram.
const SLOT_BYTES: u32 = 1_040;
