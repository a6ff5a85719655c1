//! Wormhole switching with source routes. A message is one worm, which holds all links from its
//! head to its tail.
//!
//! A worm takes one event per hop. The simulation does not model single bytes: on each link of its
//! path, the worm is an interval of time. In the following, the head gets link i at time Tᵢ, and
//! the worm has L characters. The unit of time is the time of one character.
//!
//! * If the head is never stopped after link i, the tail has crossed link i at Tᵢ + L, and the link
//!   is then free.
//! * If the head waits for link m until Tₘ, the hops between i and m store B characters each. The
//!   tail then crosses link i at Tₘ + L − B·(m − i) or later.
//!
//! If the head is many links ahead, a later wait of the head cannot affect link i any more. The
//! time when link i becomes free can then be computed.

use std::collections::VecDeque;

use super::records::Grant;
use super::routing::{Hop, LaneChoice, Paths};
use super::simulation::{Context, Fabric, Stuck};
use super::slab::Slab;
use super::topology::{Link, LinkKind, Topology};
use super::wheel::Event;

/// Settings of a wormhole network. A character is the amount of data that a link carries in one
/// unit of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WormholeConfiguration {
    /// Time in which a link carries one character, in picoseconds.
    pub character_ps: u64,
    /// Payload of one character, in bytes.
    pub character_bytes: u32,
    /// Length of a worm's header, in characters.
    pub header_characters: u64,
    /// Time from getting a link to the arrival of the head at the next arbiter, in characters.
    pub hop_characters: u64,
    /// Time from getting the last link to the arrival of the head in the host's memory, in
    /// characters.
    pub exit_characters: u64,
    /// Minimum delay between two worms of the same interface, in characters.
    pub turnaround_characters: u64,
    /// Number of characters of a stopped worm that each hop stores.
    pub storage_characters: u64,
    /// Rule by which an arbiter chooses among waiting worms.
    pub arbiter: Arbiter,
    /// Rule by which a worm chooses a lane if it may use several.
    pub lanes: LaneSelection,
    /// Order of inputs from other switches at an arbiter; the input with the lowest number comes
    /// first. The four numbers are for inputs along the first dimension upwards and downwards, and
    /// along the second dimension upwards and downwards. Inputs from further dimensions come before
    /// these.
    pub direction_order: [u8; 4],
}

/// Rule by which a worm chooses a lane if it may use several.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LaneSelection {
    /// The worm uses the lane that becomes free first.
    FirstFree,
    /// The worm always uses the lane that belongs to its source.
    PerSource,
}

/// Rule by which an arbiter chooses among the worms that wait for a link.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Arbiter {
    /// The worm at the first input wins. Inputs from hosts come before other inputs.
    HostsFirst,
    /// The worm at the first input wins. Inputs from hosts come after other inputs.
    HostsLast,
    /// The worm that has waited longest wins.
    Fair,
}

/// A wormhole network, with the worms in it.
#[derive(Debug)]
pub struct Wormhole {
    configuration: WormholeConfiguration,
    paths: Paths,
    channels: Vec<Channel>,
    /// For each host, the link on which it sends.
    host_links: Vec<u32>,
    /// For each host, whether its interface has carried a worm.
    is_awake: Vec<bool>,
    worms: Slab<Worm>,
    /// For each worm, the times when it got its links; `stride` entries per worm.
    grants_ps: Vec<u64>,
    /// For each worm, the links that it got; `stride` entries per worm.
    granted: Vec<u32>,
    stride: usize,
    names: Vec<String>,
    sequence: u32,
    hops: u64,
}

/// A link with its arbiter.
#[derive(Clone, Debug)]
struct Channel {
    /// Worm that occupies the link until a time that is not known yet; [`NONE`] if there is no such
    /// worm.
    holder: u32,
    /// Time when the link becomes free, if it has no holder.
    free_ps: u64,
    /// Worms whose heads wait for the link.
    waiting: Vec<u32>,
    /// Worms on the link or in the buffer at its end, in order. Only the first worm can advance.
    queue: VecDeque<u32>,
    /// Time when the first worm in `queue` reaches the front of the buffer.
    front_ps: u64,
    /// Rank of the link among the inputs of the arbiters at its end. Simultaneous arrivals are
    /// ordered by this rank.
    rank: u32,
}

/// A message that crosses the network as a worm.
#[derive(Clone, Copy, Debug)]
struct Worm {
    message: u32,
    source: u32,
    destination: u32,
    /// Number of links of the path: the link of the source host, the links between switches, and
    /// the link of the destination host.
    links: u16,
    /// Number of links that the worm has got so far.
    granted: u16,
    /// Number of links that the worm has left, or whose time of leaving is already known.
    released: u16,
    /// Lane of the link that the worm got last.
    lane: u8,
    is_waiting: bool,
    /// Whether the head is at the end of a link but another worm is ahead of it in the buffer.
    is_behind: bool,
    /// Index of the first hop between switches in the paths.
    path: u32,
    /// Length, in characters.
    length: u32,
    /// Place of the worm in the order of posting.
    sequence: u32,
    /// Order among worms that wait for the same link: the rank of the input, or the order of
    /// posting.
    rank: u32,
}

impl Wormhole {
    /// Creates a wormhole network over a topology.
    pub fn new(topology: &Topology, paths: Paths, configuration: WormholeConfiguration) -> Self {
        let links = topology.links();
        let order = |link: u32| {
            let is_from_host = topology.is_host(links[link as usize].from);
            let Link { kind, lane, .. } = links[link as usize];
            let direction = match kind {
                LinkKind::Switch { dimension, .. } => dimension as usize * 2 + (link & 1) as usize,
                LinkKind::Host => 0,
            };
            let port =
                (configuration.direction_order.get(direction).copied().unwrap_or_default(), lane);
            match configuration.arbiter {
                Arbiter::HostsLast => (is_from_host, port, link),
                Arbiter::HostsFirst | Arbiter::Fair => (!is_from_host, port, link),
            }
        };
        let mut ordered: Vec<u32> = (0..links.len() as u32).collect();
        ordered.sort_by_key(|&link| order(link));
        let free = Channel {
            holder: NONE,
            free_ps: 0,
            waiting: Vec::new(),
            queue: VecDeque::new(),
            front_ps: 0,
            rank: 0,
        };
        let mut channels = vec![free; links.len()];
        for (rank, &link) in ordered.iter().enumerate() {
            channels[link as usize].rank = rank as u32;
        }
        Self {
            configuration,
            stride: paths.hops_max() + 2,
            paths,
            channels,
            host_links: (0..topology.hosts()).map(|host| topology.host_link(host)).collect(),
            is_awake: vec![false; topology.hosts() as usize],
            worms: Slab::new(),
            grants_ps: Vec::new(),
            granted: Vec::new(),
            names: (0..links.len() as u32).map(|link| topology.link_name(link)).collect(),
            sequence: 0,
            hops: 0,
        }
    }

    /// Requests the next link on a worm's path.
    fn request(&mut self, context: &mut Context, index: u32, rank: u32) {
        let now_ps = context.wheel.now_ps();
        let lanes = self.wanted(index);
        for (link, lane) in lanes.iter() {
            let channel = &self.channels[link as usize];
            if channel.holder == NONE && channel.free_ps <= now_ps && channel.waiting.is_empty() {
                self.grant(context, index, link, lane);
                return;
            }
        }
        let worm = self.worms.get_mut(index);
        worm.is_waiting = true;
        worm.rank = rank;
        for (link, _) in lanes.iter() {
            let channel = &mut self.channels[link as usize];
            channel.waiting.push(index);
            if channel.holder == NONE && channel.waiting.len() == 1 {
                context.schedule(channel.free_ps, RELEASE | link, 0);
            }
        }
    }

    /// Returns the links that a worm may use next, with their lanes.
    fn wanted(&self, index: u32) -> Lanes {
        let worm = self.worms.get(index);
        let mut lanes = Lanes { links: [0; LANES], numbers: [0; LANES], count: 0 };
        if worm.granted == 0 {
            lanes.push(self.host_links[worm.source as usize], 0);
        } else if worm.granted + 1 == worm.links {
            lanes.push(self.host_links[worm.destination as usize] ^ 1, 0);
        } else {
            let hop: &Hop = self.paths.hop(worm.path + u32::from(worm.granted) - 1);
            let links = self.paths.links(hop);
            let only = |lane: u8| (links[usize::from(lane) % links.len()], lane);
            match hop.lane {
                LaneChoice::Fixed(lane) => lanes.push(only(lane).0, lane),
                LaneChoice::Same => lanes.push(only(worm.lane).0, worm.lane),
                LaneChoice::Any | LaneChoice::Drawn
                    if self.configuration.lanes == LaneSelection::PerSource =>
                {
                    let lane = (worm.source as usize % links.len()) as u8;
                    lanes.push(only(lane).0, lane);
                }
                LaneChoice::Any | LaneChoice::Drawn => {
                    for (lane, &link) in links.iter().enumerate().take(LANES) {
                        lanes.push(link, lane as u8);
                    }
                }
            }
        }
        lanes
    }

    /// Gives a link to a worm now. The worm's head advances, and links behind the head can become
    /// free.
    fn grant(&mut self, context: &mut Context, index: u32, link: u32, lane: u8) {
        let WormholeConfiguration {
            character_ps,
            hop_characters,
            exit_characters,
            turnaround_characters,
            ..
        } = self.configuration;
        let worm = self.worms.get_mut(index);
        let mut start_ps = context.wheel.now_ps();
        if worm.granted == 0 && std::mem::replace(&mut self.is_awake[worm.source as usize], true) {
            start_ps += turnaround_characters * character_ps;
        }
        let at = index as usize * self.stride + usize::from(worm.granted);
        self.grants_ps[at] = start_ps;
        self.granted[at] = link;
        worm.granted += 1;
        worm.lane = lane;
        worm.is_waiting = false;
        let is_last = worm.granted == worm.links;
        let length_ps = u64::from(worm.length) * character_ps;
        let channel = &mut self.channels[link as usize];
        channel.holder = index;
        if !is_last {
            channel.queue.push_back(index);
        }
        let (time_ps, place) = if is_last {
            (start_ps + length_ps + exit_characters * character_ps, DELIVERED)
        } else {
            (start_ps + hop_characters * character_ps, 0)
        };
        let rank = self.channels[link as usize].rank;
        if let Some(recorder) = &mut context.recorder {
            let worm = self.worms.get(index);
            let exit_ps = exit_characters * character_ps;
            recorder.on_granted(Grant {
                packet: index,
                message: worm.message,
                link,
                channel: 0,
                is_first: worm.granted == 1,
                bytes: worm.length * self.configuration.character_bytes,
                ready_ps: (worm.granted == 1)
                    .then(|| recorder.handed_ps(worm.message).unwrap_or(start_ps)),
                started_ps: start_ps,
                sent_ps: if is_last { time_ps - exit_ps } else { start_ps },
                arrived_ps: time_ps,
                busy_until_ps: None,
                is_counted: true,
            });
        }
        context.schedule(time_ps, place | rank, index);
        self.hops += 1;
        self.release_behind(context, index, is_last);
    }

    /// Releases links of a worm if no later wait of its head can affect the time at which the tail
    /// leaves them.
    fn release_behind(&mut self, context: &mut Context, index: u32, is_last: bool) {
        let WormholeConfiguration { character_ps, storage_characters, .. } = self.configuration;
        let worm = *self.worms.get(index);
        let (granted, length) = (u64::from(worm.granted), u64::from(worm.length));
        let start = index as usize * self.stride;
        let mut released = worm.released;
        while released < worm.granted {
            let reach = storage_characters * (granted - u64::from(released));
            if !is_last && reach < length {
                break;
            }
            let own = usize::from(released);
            let mut release_ps = self.grants_ps[start + own] + length * character_ps;
            for further in own + 1..usize::from(worm.granted) {
                let stored = storage_characters * (further - own) as u64;
                if stored >= length {
                    break;
                }
                let crossed_ps = self.grants_ps[start + further] + (length - stored) * character_ps;
                release_ps = release_ps.max(crossed_ps);
            }
            let link = self.granted[start + own];
            let channel = &mut self.channels[link as usize];
            channel.holder = NONE;
            channel.free_ps = release_ps;
            if let Some(recorder) = &mut context.recorder {
                recorder.on_released(link, 0, release_ps);
                recorder.on_busy(link, self.grants_ps[start + own], release_ps);
            }
            if !channel.waiting.is_empty() {
                context.schedule(release_ps, RELEASE | link, 0);
            }
            if released > 0 {
                let before = self.granted[start + own - 1];
                self.advance(context, before, release_ps);
            }
            released += 1;
        }
        self.worms.get_mut(index).released = released;
    }

    /// Handles the departure of the first worm from the buffer at the end of a link. The next worm
    /// is then at the front of the buffer.
    fn advance(&mut self, context: &mut Context, link: u32, time_ps: u64) {
        let channel = &mut self.channels[link as usize];
        channel.queue.pop_front();
        channel.front_ps = time_ps;
        if let Some(&next) = channel.queue.front()
            && std::mem::take(&mut self.worms.get_mut(next).is_behind)
        {
            context.schedule(time_ps, channel.rank, next);
        }
    }

    /// Handles the arrival of a worm's head at the end of a link.
    fn reach(&mut self, context: &mut Context, index: u32, rank: u32) {
        let worm = self.worms.get_mut(index);
        let link = self.granted[index as usize * self.stride + usize::from(worm.granted) - 1];
        let channel = &self.channels[link as usize];
        if channel.queue.front() != Some(&index) {
            worm.is_behind = true;
        } else if channel.front_ps > context.wheel.now_ps() {
            context.schedule(channel.front_ps, rank, index);
        } else {
            self.request(context, index, rank);
        }
    }

    /// Gives a link that has become free to one of the waiting worms.
    fn arbitrate(&mut self, context: &mut Context, link: u32) {
        let channel = &self.channels[link as usize];
        if channel.holder != NONE || channel.free_ps > context.wheel.now_ps() {
            return;
        }
        let is_fair = self.configuration.arbiter == Arbiter::Fair;
        let order = |&(at, &index): &(usize, &u32)| {
            let worm = self.worms.get(index);
            if is_fair { (at as u32, 0) } else { (worm.rank, worm.sequence) }
        };
        let Some((_, &index)) = channel.waiting.iter().enumerate().min_by_key(order) else {
            return;
        };
        let lanes = self.wanted(index);
        let mut lane_granted = 0;
        for (other, lane) in lanes.iter() {
            if other == link {
                lane_granted = lane;
            }
            self.channels[other as usize].waiting.retain(|&waiting| waiting != index);
        }
        self.grant(context, index, link, lane_granted);
    }

    fn arrive(&mut self, context: &mut Context, index: u32) {
        let worm = self.worms.remove(index);
        self.is_awake[worm.destination as usize] = true;
        if let Some(recorder) = &mut context.recorder {
            recorder.on_arrived(index, worm.message);
        }
        context.deliver(worm.message);
    }

    /// Returns the worm for which a worm waits.
    fn awaited(&self, index: u32) -> Option<u32> {
        let worm = self.worms.get(index);
        if worm.is_behind {
            let last = index as usize * self.stride + usize::from(worm.granted) - 1;
            return self.channels[self.granted[last] as usize].queue.front().copied();
        }
        let holders = self.wanted(index);
        let mut holders = holders.iter().map(|(link, _)| self.channels[link as usize].holder);
        holders.find(|&holder| holder != NONE)
    }

    fn describe(&self, index: u32) -> String {
        let worm = self.worms.get(index);
        let start = index as usize * self.stride;
        let held = start + usize::from(worm.released)..start + usize::from(worm.granted);
        let name = |link: u32| self.names[link as usize].as_str();
        let held: Vec<&str> = self.granted[held].iter().map(|&held| name(held)).collect();
        let awaited: Vec<&str> = self.wanted(index).iter().map(|(link, _)| name(link)).collect();
        let (source, destination) = (worm.source, worm.destination);
        let what =
            if worm.is_behind { "waits for the worm before it, then for" } else { "waits for" };
        format!(
            "  h{source} to h{destination} holds {} and {what} {}",
            if held.is_empty() { "nothing".to_owned() } else { held.join(" ") },
            awaited.join(" or ")
        )
    }
}

impl Fabric for Wormhole {
    fn inject(&mut self, context: &mut Context, index: u32) {
        let message = *context.messages.get(index);
        let (path, end) = self.paths.between(message.source, message.destination);
        let characters = message.bytes.div_ceil(self.configuration.character_bytes.max(1));
        let worm = self.worms.insert(Worm {
            message: index,
            source: message.source,
            destination: message.destination,
            links: (end - path) as u16 + 2,
            granted: 0,
            released: 0,
            lane: 0,
            is_waiting: false,
            is_behind: false,
            path,
            length: characters + self.configuration.header_characters as u32,
            sequence: self.sequence,
            rank: 0,
        });
        self.sequence = self.sequence.wrapping_add(1);
        let room = self.worms.len_max() * self.stride;
        if self.grants_ps.len() < room {
            self.grants_ps.resize(room, 0);
            self.granted.resize(room, 0);
        }
        self.request(context, worm, 0);
    }

    #[inline]
    fn handle(&mut self, context: &mut Context, event: Event) {
        let Event { place, subject, .. } = event;
        if place & RELEASE != 0 {
            self.arbitrate(context, place & !RELEASE);
        } else if place & DELIVERED != 0 {
            self.arrive(context, subject);
        } else {
            self.reach(context, subject, place);
        }
    }

    /// Follows the waits from worm to worm until a worm occurs a second time. The worms since its
    /// first occurrence form a circle.
    fn diagnose(&self, context: &Context) -> Stuck {
        let silent = Stuck::Silent { messages: context.messages.len() };
        let mut waiting = self.channels.iter().filter_map(|channel| channel.waiting.first());
        let Some(&first) = waiting.next() else { return silent };
        let mut way: Vec<u32> = Vec::new();
        let mut index = first;
        loop {
            if let Some(start) = way.iter().position(|&before| before == index) {
                let circle = way[start..].iter().map(|&worm| self.describe(worm)).collect();
                return Stuck::Deadlock { circle };
            }
            way.push(index);
            let Some(next) = self.awaited(index) else { return silent };
            index = next;
        }
    }

    fn hops(&self) -> u64 {
        self.hops
    }

    fn slot_ps(&self) -> u64 {
        self.configuration.hop_characters * self.configuration.character_ps / 2
    }
}

/// The links that a worm may use next.
struct Lanes {
    links: [u32; LANES],
    numbers: [u8; LANES],
    count: usize,
}

impl Lanes {
    fn push(&mut self, link: u32, lane: u8) {
        if let (Some(slot), Some(number)) =
            (self.links.get_mut(self.count), self.numbers.get_mut(self.count))
        {
            (*slot, *number) = (link, lane);
            self.count += 1;
        }
    }

    fn iter(&self) -> impl Iterator<Item = (u32, u8)> {
        self.links.iter().copied().zip(self.numbers).take(self.count)
    }
}

const NONE: u32 = u32::MAX;
/// Flag in `Event::place`: a waiting worm gets a link.
const RELEASE: u32 = 1 << 29;
/// Flag in `Event::place`: a worm has reached its host completely. Without a flag, the event is the
/// arrival of a worm's head at the end of a link.
const DELIVERED: u32 = 1 << 28;
/// Maximum number of lanes among which a worm chooses.
const LANES: usize = 8;
