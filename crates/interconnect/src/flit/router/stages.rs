//! A cycle of a router: flits and credits arrive, packets get channels, flits cross the switch.

use super::{
    Bid, Context, InputChannel, LaneChoice, NEVER, OutputChannel, Request, RouterFabric, Stage,
    Turns, Work, mix,
};
use crate::flit::allocator::turn;

impl RouterFabric {
    /// Runs one cycle of a router.
    pub(super) fn work(&mut self, context: &mut Context, index: u32) {
        let cycle = self.cycle(context);
        let router = &mut self.routers[index as usize];
        if router.next != cycle {
            // The router has worked since this event was scheduled, or another event is scheduled
            // for it.
            return;
        }
        router.next = NEVER;
        self.take_arrivals(index, cycle);
        if self.routers[index as usize].flits == 0 {
            self.sleep(context, index, cycle);
            return;
        }
        let mut work = std::mem::take(&mut self.work);
        self.ask(index, cycle, &mut work);
        let is_busy = !work.channel.is_empty() || !work.switch.is_empty();
        let router = &mut self.routers[index as usize];
        router.channel_turns.allocate(&mut work.channel, &mut work.channel_matching);
        router.switch_turns.allocate(&mut work.switch, &mut work.switch_matching);
        self.give_channels(index, cycle, &work);
        self.cross(context, index, cycle, &work);
        Turns::clear(&work.channel, &mut work.channel_matching);
        Turns::clear(&work.switch, &mut work.switch_matching);
        self.work = work;
        if is_busy {
            self.wake(context, index, cycle + 1);
        } else {
            self.sleep(context, index, cycle);
        }
    }

    /// Schedules the next cycle in which a router has work: a flit or credit arrives, or a packet
    /// can make a request.
    fn sleep(&mut self, context: &mut Context, index: u32, cycle: u64) {
        let channels = usize::from(self.configuration.channels);
        let router = &self.routers[index as usize];
        let mut next = NEVER;
        for &link in &router.arriving {
            let arriving = self.wires[link as usize].flits.front();
            next = next.min(arriving.map_or(NEVER, |(there, ..)| *there));
            if router.flits > 0 {
                let credit = self.wires[link as usize ^ 1].credits.front();
                next = next.min(credit.map_or(NEVER, |(there, _)| *there));
                let first = link as usize * channels;
                let waiting = self.inputs[first..first + channels].iter();
                let later = waiting.filter(|input| input.len > 0 && input.ready > cycle);
                next = next.min(later.map(|input| input.ready).min().unwrap_or(NEVER));
            }
        }
        if next != NEVER {
            self.wake(context, index, next.max(cycle + 1));
        }
    }

    /// Moves arrived flits into their buffers, and adds arrived credits to their channels.
    fn take_arrivals(&mut self, index: u32, cycle: u64) {
        let depth = self.configuration.buffer_flits;
        let channels = usize::from(self.configuration.channels);
        for port in 0..self.routers[index as usize].arriving.len() {
            let link = self.routers[index as usize].arriving[port];
            self.take_credits(link ^ 1, cycle);
            while let Some(&(there, flit, channel)) = self.wires[link as usize].flits.front()
                && there <= cycle
            {
                self.wires[link as usize].flits.pop_front();
                let at = link as usize * channels + usize::from(channel);
                let input = &mut self.inputs[at];
                let end = input.first + input.len;
                let slot = if end < depth { end } else { end - depth };
                input.len += 1;
                assert!(input.len <= depth, "a credit belongs to a free slot");
                self.buffers[at * usize::from(depth) + usize::from(slot)] = flit;
                self.routers[index as usize].flits += 1;
                if input.stage == Stage::Idle {
                    self.route(at, flit >> 1, cycle);
                }
            }
        }
    }

    /// Determines the next link of the packet at the front of a buffer. Its routing stage starts at
    /// `cycle`.
    fn route(&mut self, at: usize, index: u32, cycle: u64) {
        let channels = self.configuration.channels;
        let packet = *self.packets.get(index);
        let (link, class) = if packet.path == packet.path_end {
            (self.host_links[packet.destination as usize] ^ 1, None)
        } else {
            let hop = self.paths[packet.way as usize].hop(packet.path);
            let class = match hop.lane {
                LaneChoice::Any => None,
                LaneChoice::Fixed(class) => Some(class),
                LaneChoice::Same => Some(packet.lane),
                LaneChoice::Drawn => Some((mix(packet.serial, packet.path.into()) & 1) as u8),
            };
            (hop.link, class)
        };
        let half = channels.div_ceil(2);
        let input = &mut self.inputs[at];
        input.link = link;
        input.usable = match class {
            Some(0) => (0, half),
            Some(_) => (half, channels),
            None => (0, channels),
        };
        (input.stage, input.has_head) = (Stage::Routed, true);
        input.ready = cycle + u64::from(self.router.routing_cycles);
    }

    /// Collects the requests of all buffers. Heads request a channel; flits that have a channel
    /// request the switch.
    fn ask(&self, index: u32, cycle: u64, work: &mut Work) {
        work.channel.clear();
        work.bids.clear();
        let channels = self.configuration.channels;
        let speedup = self.router.input_speedup;
        for (port, &link) in (0_u16..).zip(&self.routers[index as usize].arriving) {
            for channel in 0..channels {
                let input = self.inputs[self.channel_at(link, channel)];
                if input.len == 0 || input.ready > cycle {
                    continue;
                }
                let mut bid = Bid {
                    input: port * u16::from(speedup) + u16::from(channel % speedup),
                    output: self.out_port(input.link),
                    channel,
                    port,
                    is_speculative: false,
                };
                if input.stage == Stage::Active {
                    if self.output(input.link, input.channel).credits > 0 {
                        self.bid(index, bid, &mut work.bids);
                    }
                    continue;
                }
                let mut has_credit = false;
                for wanted in input.usable.0..input.usable.1 {
                    let output = self.output(input.link, wanted);
                    if output.is_taken {
                        continue;
                    }
                    has_credit |= output.credits > 0;
                    work.channel.push(Request {
                        input: port * u16::from(channels) + u16::from(channel),
                        output: bid.output * u16::from(channels) + u16::from(wanted),
                        is_speculative: false,
                    });
                }
                if self.router.is_speculative && has_credit {
                    bid.is_speculative = true;
                    self.bid(index, bid, &mut work.bids);
                }
            }
        }
        work.switch.clear();
        work.switch.extend(work.bids.iter().map(|bid| Request {
            input: bid.input,
            output: bid.output,
            is_speculative: bid.is_speculative,
        }));
    }

    /// Adds a bid for the switch. If several channels of a switch input want the same output, keeps
    /// only the bid of the channel with the highest priority.
    fn bid(&self, index: u32, bid: Bid, bids: &mut Vec<Bid>) {
        let first = self.routers[index as usize].turns[usize::from(bid.input)];
        let rank = |bid: &Bid| {
            let channels = u16::from(self.configuration.channels);
            (bid.is_speculative, turn(bid.channel.into(), first.into(), channels))
        };
        // Bids of the same port are adjacent in the list.
        let mut own = bids.iter_mut().rev().take_while(|other| other.port == bid.port);
        match own.find(|other| (other.input, other.output) == (bid.input, bid.output)) {
            Some(other) if rank(&bid) < rank(other) => *other = bid,
            Some(_) => {}
            None => bids.push(bid),
        }
    }

    /// Gives the matched channels to their packets.
    fn give_channels(&mut self, index: u32, cycle: u64, work: &Work) {
        let channels = self.configuration.channels;
        let depth = usize::from(self.configuration.buffer_flits);
        for request in &work.channel {
            if work.channel_matching.output_of(request.input) != Some(request.output) {
                continue;
            }
            let (port, from) = split(request.input, channels);
            let (_, channel) = split(request.output, channels);
            let link = self.routers[index as usize].arriving[usize::from(port)];
            let at = self.channel_at(link, from);
            let input = &mut self.inputs[at];
            (input.stage, input.channel) = (Stage::Active, channel);
            input.ready = cycle + u64::from(self.router.channel_cycles);
            let (out, first) = (input.link, usize::from(input.first));
            let out = self.channel_at(out, channel);
            (self.outputs[out].is_taken, self.outputs[out].owner) = (true, at as u32);
            let packet = self.packets.get_mut(self.buffers[at * depth + first] >> 1);
            packet.lane = u8::from(channel >= channels.div_ceil(2));
            packet.path += u32::from(packet.path < packet.path_end);
        }
    }

    /// Sends the flits of inputs that were matched with an output.
    fn cross(&mut self, context: &mut Context, index: u32, cycle: u64, work: &Work) {
        let channels = self.configuration.channels;
        for bid in &work.bids {
            if work.switch_matching.output_of(bid.input) != Some(bid.output) {
                continue;
            }
            let link = self.routers[index as usize].arriving[usize::from(bid.port)];
            let at = self.channel_at(link, bid.channel);
            self.routers[index as usize].turns[usize::from(bid.input)] =
                (bid.channel + self.router.input_speedup) % channels;
            let input = self.inputs[at];
            // A speculative request for the switch is useless if the packet got no channel, or if
            // its channel has no credit. No flit then crosses.
            if input.stage == Stage::Active && self.output(input.link, input.channel).credits > 0 {
                self.leave(context, index, at, cycle);
                let crossed = cycle + u64::from(self.router.switch_cycles) - 1;
                self.credit(context, link, bid.channel, crossed);
            }
        }
    }

    /// Sends the first flit of a buffer to its link.
    fn leave(&mut self, context: &mut Context, index: u32, at: usize, cycle: u64) {
        let depth = self.configuration.buffer_flits;
        let slots = at * usize::from(depth);
        let input = &mut self.inputs[at];
        let flit = self.buffers[slots + usize::from(input.first)];
        input.first = if input.first + 1 == depth { 0 } else { input.first + 1 };
        input.len -= 1;
        let InputChannel { link, channel, len, first, has_head, .. } = *input;
        self.routers[index as usize].flits -= 1;
        let (packet, is_tail) = (flit >> 1, flit & 1 == 1);
        (input.has_head, input.ready) = (false, cycle + 1);
        let out = self.channel_at(link, channel);
        self.outputs[out].credits -= 1;
        if is_tail {
            self.outputs[out].is_taken = false;
            self.inputs[at].stage = Stage::Idle;
            if len > 0 {
                let next = self.buffers[slots + usize::from(first)] >> 1;
                self.route(at, next, cycle + 1);
            }
        }
        let sent = cycle + u64::from(self.router.switch_cycles - 1 + self.router.crossing_cycles);
        if context.recorder.is_some() {
            self.record(context, (link, channel), packet, (has_head, is_tail), sent);
        }
        self.send(context, (link, channel), flit, sent);
    }

    fn channel_at(&self, link: u32, channel: u8) -> usize {
        link as usize * usize::from(self.configuration.channels) + usize::from(channel)
    }

    fn output(&self, link: u32, channel: u8) -> &OutputChannel {
        &self.outputs[self.channel_at(link, channel)]
    }
}

/// Splits an input or output number of the channel allocator into port and channel.
const fn split(place: u16, channels: u8) -> (u16, u8) {
    (place / channels as u16, (place % channels as u16) as u8)
}
