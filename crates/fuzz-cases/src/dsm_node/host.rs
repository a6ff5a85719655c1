//! The memory of the node, and its peers, who answer as the input says.

use std::collections::{BTreeMap, VecDeque};

use dsm_protocol::diff::{self, Bitmap, PAGE_BYTES, PageBytes};
use dsm_protocol::{
    Access, Answer, Area, Arrival, Config, Control, Landing, Layout, Operation, PageNumber, Pages,
    Rank, Ticket, Transport,
};

use crate::input::Input;

/// What the machine sees.
pub(super) struct Host {
    config: Config,
    layout: Layout,
    frames: Vec<u8>,
    masters: Vec<u8>,
    control: Vec<u64>,
    twins: BTreeMap<PageNumber, Box<PageBytes>>,
    access: Vec<Access>,
    notes_writes: bool,
    written: Vec<PageNumber>,
    /// Operations that have no answer yet.
    pending: Vec<(Ticket, Asked)>,
    arrivals: VecDeque<(Arrival, Vec<u8>)>,
    now: u64,
}

/// What an answer to an operation consists of.
#[derive(Clone, Copy)]
enum Asked {
    /// So many bytes of the control memory, from this address on.
    Words(u64, usize),
    /// So many bytes, and where they go.
    Bytes(usize, Landing),
    /// The former value of a word.
    Value,
    /// Nothing but its completion.
    Done,
}

impl Host {
    pub(super) fn new(config: Config, notes_writes: bool) -> Self {
        let layout = Layout::new(config.nodes, config.pages, config.log_entries);
        let bytes = config.pages as usize * PAGE_BYTES;
        Self {
            config,
            layout,
            frames: vec![0; bytes],
            masters: vec![0; if config.races { bytes } else { 0 }],
            control: vec![0; layout.bytes() as usize / 8],
            twins: BTreeMap::new(),
            access: vec![Access::None; config.pages as usize],
            notes_writes,
            written: Vec::new(),
            pending: Vec::new(),
            arrivals: VecDeque::new(),
            now: 0,
        }
    }

    /// Lets the machine see an arrival at its next poll.
    pub(super) fn push(&mut self, arrival: Arrival, bytes: Vec<u8>) {
        self.arrivals.push_back((arrival, bytes));
    }

    /// Answers a pending operation: as a peer could that keeps to the protocol, or anyhow.
    pub(super) fn answer(&mut self, input: &mut Input<'_>, is_lie: bool) {
        if self.pending.is_empty() {
            return;
        }
        let (ticket, asked) = self.pending.swap_remove(input.below(self.pending.len()));
        let (mut answer, mut bytes) = self.honest_answer(asked, input);
        if is_lie {
            match input.u8() & 3 {
                0 => answer = Answer::Refused,
                1 => answer = Answer::Value(u64::from(input.u32()) << input.below(32)),
                2 => bytes.truncate(input.below(bytes.len() + 1)),
                _ => bytes = input.bytes(),
            }
        }
        self.push(Arrival::Completed { ticket, answer }, bytes);
    }

    /// Answers all pending operations.
    pub(super) fn answer_all(&mut self, input: &mut Input<'_>) {
        for (ticket, asked) in std::mem::take(&mut self.pending) {
            let (answer, bytes) = self.honest_answer(asked, input);
            self.push(Arrival::Completed { ticket, answer }, bytes);
        }
    }

    /// Returns an answer that could be true.
    fn honest_answer(&mut self, asked: Asked, input: &mut Input<'_>) -> (Answer, Vec<u8>) {
        match asked {
            Asked::Done => (Answer::Done, Vec::new()),
            // Most atomics are claims of pages, which find no home or one of the first ranks.
            Asked::Value => (Answer::Value(u64::from(input.u8() & 3)), Vec::new()),
            Asked::Words(address, length) => {
                let addresses = (address..).step_by(8).take(length / 8);
                let words = addresses.map(|address| self.honest_word(address, input));
                (Answer::Done, words.flat_map(u64::to_le_bytes).collect())
            }
            Asked::Bytes(length, landing) => {
                let bytes = vec![input.u8(); length];
                let is_landed = self.land(landing, &bytes);
                (Answer::Done, if is_landed { Vec::new() } else { bytes })
            }
        }
    }

    /// Returns a word of a peer's control memory that could be there.
    fn honest_word(&self, address: u64, input: &mut Input<'_>) -> u64 {
        let log_end = LOG + 8 * u64::from(self.config.log_entries);
        match address {
            0 | 8 => self.control.get(address as usize / 8).copied().unwrap_or_default(),
            16 => 64,
            MOVES..LOG => 0,
            LOG.. if address < log_end => {
                let page = u64::from(input.u8()) % u64::from(self.config.pages);
                page | ((address - LOG) / 8 + 1) << 32
            }
            _ => u64::from(input.u8() & 3),
        }
    }

    /// Writes the slot of a round of barriers, as the peer of that round does, and notifies.
    pub(super) fn write_slot(&mut self, input: &mut Input<'_>) {
        let (nodes, series) = (u64::from(self.config.nodes), u64::from(input.u8() & 3));
        let round = input.below(self.config.nodes.next_power_of_two().ilog2() as usize) as u64;
        let all = nodes * u64::from(self.config.threads);
        let start = (BARRIERS + (2 * round + (series & 1)) * SLOT_BYTES) as usize / 8;
        let mut words =
            vec![series, u64::from(input.u8() & 0x1c), all, u64::from(input.u8() / 0xf0)];
        words.extend((0..nodes).map(|_| u64::from(input.u8() / 0xc0 * 2)));
        self.control[start..start + words.len()].copy_from_slice(&words);
        let from = (u64::from(self.config.rank.0) + nodes - (1 << round) % nodes) % nodes;
        let notification = 0xb100_0000 | (round << 16 | series) as u32;
        self.push(Arrival::Notified { from: Rank(from as u8), notification }, Vec::new());
    }

    /// Writes words of the control memory, as each peer may.
    pub(super) fn write_control(&mut self, input: &mut Input<'_>) {
        // Most words of interest are barrier slots, tables of moves, and the log.
        let base = match input.u8() & 7 {
            0 | 1 => BARRIERS + SLOT_BYTES * u64::from(input.u8() % 12),
            2 => MOVES + 512 * u64::from(input.u8() & 1),
            3 => LOG,
            4 => self.layout.bytes() - 64 * u64::from(self.config.pages),
            _ => u64::from(input.u16()) & !7,
        };
        for index in 0..u64::from(input.u8() & 15) {
            let word = (base / 8 + index) as usize % self.control.len();
            self.control[word] = u64::from(input.small());
        }
    }

    /// Writes a page as the application does, if it may.
    pub(super) fn write_page(&mut self, input: &mut Input<'_>) {
        let page = PageNumber(input.below(self.access.len()) as u32);
        let is_permitted = match self.access[page.index()] {
            Access::Write => true,
            Access::Read => self.notes_writes,
            Access::None => false,
        };
        if is_permitted {
            let start = page.index() * PAGE_BYTES + 4 * (input.below(PAGE_BYTES / 4));
            self.frames[start] = input.u8();
            self.written.push(page);
        }
    }

    /// Places the bytes of a read. Returns whether they go to a page.
    fn land(&mut self, landing: Landing, bytes: &[u8]) -> bool {
        let (target, page) = match landing {
            Landing::Frame(page) => (&mut self.frames, page),
            Landing::Master(page) => (&mut self.masters, page),
            Landing::Buffer => return false,
        };
        let start = page.index() * PAGE_BYTES;
        target[start..start + bytes.len()].copy_from_slice(bytes);
        true
    }

    /// Checks that an area of a peer has these bytes.
    fn check(&self, area: Area, address: u64, length: u64) {
        let size = match area {
            Area::Frames => self.frames.len() as u64,
            Area::Masters => self.masters.len() as u64,
            Area::Control => self.layout.bytes(),
        };
        let end = address.checked_add(length).expect("no address is so large");
        assert!(end <= size, "{length} bytes from {address:#x} on of {area:?} with {size}");
    }

    fn frame(&mut self, page: PageNumber) -> &mut PageBytes {
        let start = page.index() * PAGE_BYTES;
        (&mut self.frames[start..start + PAGE_BYTES])
            .try_into()
            .expect("the length is that of a page")
    }

    /// Performs an atomic of the node at itself.
    fn update(&mut self, area: Area, address: u64, new: impl Fn(u64) -> u64) -> Answer {
        let word = address as usize / 8;
        if area == Area::Control {
            let former = self.control[word];
            self.control[word] = new(former);
            return Answer::Value(former);
        }
        let memory = if area == Area::Frames { &mut self.frames } else { &mut self.masters };
        let place = &mut memory.as_chunks_mut::<8>().0[word];
        let former = u64::from_le_bytes(*place);
        *place = new(former).to_le_bytes();
        Answer::Value(former)
    }

    /// Performs an operation of the node at itself, about which no peer can lie.
    fn perform(&mut self, ticket: Ticket, operation: Operation<'_>) {
        let mut bytes = Vec::new();
        let answer = match operation {
            Operation::Read { area, address, length, landing } => {
                let (start, length) = (address as usize, length as usize);
                bytes = match area {
                    Area::Frames => self.frames[start..start + length].to_vec(),
                    Area::Masters => self.masters[start..start + length].to_vec(),
                    Area::Control => {
                        let words = &self.control[start / 8..start / 8 + length.div_ceil(8)];
                        words.iter().flat_map(|word| word.to_le_bytes()).collect()
                    }
                };
                bytes.truncate(length);
                if self.land(landing, &bytes) {
                    bytes.clear();
                }
                Answer::Done
            }
            Operation::FetchAdd { area, address, operand } => {
                self.update(area, address, |former| former.wrapping_add(operand))
            }
            Operation::CompareSwap { area, address, expected, desired } => {
                let new = |former| if former == expected { desired } else { former };
                self.update(area, address, new)
            }
            Operation::Swap { area, address, operand } => self.update(area, address, |_| operand),
            Operation::Send { message } => {
                let from = self.config.rank;
                self.push(Arrival::Received { from }, message.to_vec());
                Answer::Done
            }
            Operation::Write { .. } | Operation::Patch { .. } => Answer::Done,
        };
        self.push(Arrival::Completed { ticket, answer }, bytes);
    }
}

impl Transport for Host {
    fn post(&mut self, peer: Rank, ticket: Ticket, _fence: bool, operation: Operation<'_>) {
        assert!(peer.0 < self.config.nodes, "there is no {peer}");
        let asked = match operation {
            Operation::Read { area, address, length, landing } => {
                self.check(area, address, length.into());
                let place = match landing {
                    Landing::Frame(page) => Some((Area::Frames, page)),
                    Landing::Master(page) => Some((Area::Masters, page)),
                    Landing::Buffer => None,
                };
                if let Some((area, page)) = place {
                    let start = page.index() as u64 * PAGE_BYTES as u64;
                    self.check(area, start, length.into());
                }
                match area {
                    Area::Control => Asked::Words(address, length as usize),
                    Area::Frames | Area::Masters => Asked::Bytes(length as usize, landing),
                }
            }
            Operation::Write { area, address, bytes, .. } => {
                self.check(area, address, bytes.len() as u64);
                Asked::Done
            }
            Operation::Patch { area, address, payload } => {
                self.check(area, address, PAGE_BYTES as u64);
                assert!(address.is_multiple_of(PAGE_BYTES as u64));
                assert!(diff::decode(payload).is_some(), "{payload:?}");
                Asked::Done
            }
            Operation::FetchAdd { area, address, .. }
            | Operation::CompareSwap { area, address, .. }
            | Operation::Swap { area, address, .. } => {
                self.check(area, address, 8);
                assert!(address.is_multiple_of(8));
                Asked::Value
            }
            Operation::Send { .. } => Asked::Done,
        };
        if peer == self.config.rank {
            self.perform(ticket, operation);
        } else {
            self.pending.push((ticket, asked));
        }
    }

    fn poll(&mut self, buffer: &mut Vec<u8>) -> Option<Arrival> {
        let (arrival, bytes) = self.arrivals.pop_front()?;
        *buffer = bytes;
        Some(arrival)
    }

    fn now(&self) -> u64 {
        self.now
    }
}

impl Pages for Host {
    fn notes_writes(&self) -> bool {
        self.notes_writes
    }

    fn take_written(&mut self, pages: &mut Vec<PageNumber>) {
        for page in std::mem::take(&mut self.written) {
            if self.access[page.index()] != Access::None {
                self.access[page.index()] = Access::Read;
                pages.push(page);
            }
        }
    }

    fn protect(&mut self, page: PageNumber, access: Access) {
        self.access[page.index()] = access;
        if access == Access::Write {
            self.written.push(page);
        }
    }

    fn clear(&mut self, page: PageNumber) {
        *self.frame(page) = [0; PAGE_BYTES];
    }

    fn make_twin(&mut self, page: PageNumber) {
        let twin = Box::new(*self.frame(page));
        self.twins.insert(page, twin);
    }

    fn diff(&mut self, page: PageNumber, words: &mut Vec<u8>) -> Bitmap {
        let frame = *self.frame(page);
        let twin = self.twins.get_mut(&page).expect("a page that is compared has a twin");
        let bitmap = diff::compare(&frame, twin, words);
        **twin = frame;
        bitmap
    }

    fn drop_twin(&mut self, page: PageNumber) {
        self.twins.remove(&page);
    }

    fn merge(&mut self, page: PageNumber, bytes: &PageBytes) {
        *self.frame(page) = *bytes;
        if let Some(twin) = self.twins.get_mut(&page) {
            **twin = *bytes;
        }
    }
}

impl Control for Host {
    fn load(&self, address: u64) -> u64 {
        self.control[address as usize / 8]
    }

    fn store(&mut self, address: u64, value: u64) {
        self.control[address as usize / 8] = value;
    }
}

/// Where tables of the control memory begin: docs/dsm-protocol.md, section 2.
const BARRIERS: u64 = 0x100;
const MOVES: u64 = 0x1c00;
const LOG: u64 = 0x2000;

/// Bytes of a barrier slot.
const SLOT_BYTES: u64 = 544;
