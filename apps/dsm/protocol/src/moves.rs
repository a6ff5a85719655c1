//! Homes that move. All nodes agree at a barrier, so that no node uses an old home.

use crate::barrier_state::{Move, Phase};
use crate::diff::PAGE_BYTES;
use crate::error::Fault;
use crate::faults::{directory_word, frame_address};
use crate::identity::{PageNumber, Rank};
use crate::layout::{Layout, MOVES_MAX};
use crate::memory::Host;
use crate::node::{Node, word_at};
use crate::node_state::Pending;
use crate::page_table::State;
use crate::planted::{Planted, is_planted};
use crate::transport::{Area, Landing, Operation};

impl Node {
    /// Asks for a move at the next barrier.
    pub(crate) fn request_move(&mut self, page: PageNumber, to: Rank) {
        let requested = &mut self.barrier.requested;
        if self.pages.get(page).home != Some(to) && requested.iter().all(|other| other.page != page)
        {
            requested.push(Move { page, to });
        }
    }

    //= dsm-protocol.md: move.2
    /// Writes the table of the moves that this node asks for. Returns a mask with the bit of this
    /// node if there are any.
    pub(crate) fn write_moves(&mut self, host: &mut dyn Host) -> u64 {
        let sequence = self.barrier.sequence;
        let table = Layout::moves(sequence);
        let count = self.barrier.requested.len().min(MOVES_MAX);
        host.store(table, sequence << 8 | count as u64);
        for (address, Move { page, to }) in
            (table + 8..).step_by(8).zip(self.barrier.requested.drain(..count))
        {
            host.store(address, u64::from(to.0) << 32 | u64::from(page.0));
        }
        if count == 0 { 0 } else { 1 << self.me().0 }
    }

    /// Reads the tables of all nodes that ask for moves. The barrier's series of rounds has ended.
    pub(crate) fn read_moves(&mut self, host: &mut dyn Host) {
        self.barrier.phase = Phase::Moving;
        self.barrier.asked.clear();
        self.barrier.agreed.clear();
        let movers = self.barrier.movers;
        self.barrier.outstanding = movers.count_ones() as usize;
        let table = Layout::moves(self.barrier.sequence - 1);
        let length = 8 * (MOVES_MAX as u32 + 1);
        for rank in (0..self.config.nodes).filter(|rank| movers >> rank & 1 == 1) {
            self.read_control(host, Rank(rank), table, length, Pending::Moves);
        }
    }

    //= dsm-protocol.md: move.3
    /// Handles the table of moves of a node.
    pub(crate) fn handle_moves(
        &mut self,
        host: &mut dyn Host,
        from: Rank,
        bytes: &[u8],
    ) -> Result<(), Fault> {
        let header = word_at(bytes, 0).ok_or(Fault::Completion)?;
        let count = (header & 0xff) as usize;
        if header >> 8 != self.barrier.sequence - 1 || count > MOVES_MAX {
            return Err(Fault::Move(header));
        }
        let mut moves = Vec::with_capacity(count);
        for index in 1..=count {
            let entry = word_at(bytes, index).ok_or(Fault::Completion)?;
            let page = PageNumber(entry as u32);
            let to = entry >> 32;
            if !self.pages.has(page) || to >= u64::from(self.config.nodes) {
                return Err(Fault::Move(entry));
            }
            moves.push(Move { page, to: Rank(to as u8) });
        }
        self.barrier.asked.insert(from, moves);
        self.barrier.outstanding = self.barrier.outstanding.saturating_sub(1);
        if self.barrier.outstanding == 0 {
            self.agree(host);
        }
        Ok(())
    }

    /// Begins the moves to this node. All nodes find the same moves.
    fn agree(&mut self, host: &mut dyn Host) {
        for moves in std::mem::take(&mut self.barrier.asked).into_values() {
            for Move { page, to } in moves {
                self.barrier.agreed.entry(page).or_insert(to);
            }
        }
        let me = self.me();
        let agreed = self.barrier.agreed.iter();
        let to_me =
            agreed.filter(|(page, to)| **to == me && self.pages.get(**page).home != Some(me));
        let to_me: Vec<_> = to_me.map(|(page, _)| *page).collect();
        self.barrier.outstanding = to_me.len();
        for page in to_me {
            let (rank, address) = self.layout.directory(page);
            self.read_control(host, rank, address, 8, Pending::MoveLookup(page));
        }
        self.end_moves_to_me();
    }

    /// Handles the directory entry of a page that moves to this node.
    pub(crate) fn handle_move_lookup(
        &mut self,
        host: &mut dyn Host,
        page: PageNumber,
        entry: u64,
    ) -> Result<(), Fault> {
        let home = self.decode_directory(page, entry)?;
        if home == Some(self.me()) {
            return Err(Fault::Directory { page, entry });
        }
        let is_present = !self.config.races && self.pages.get(page).state != State::Absent;
        match home {
            // A valid copy is what the home has, because all changes are placed at a barrier.
            home if is_present => self.claim_move(host, page, home),
            None => {
                host.clear(page);
                self.claim_move(host, page, None);
            }
            Some(home) => {
                let landing =
                    if self.config.races { Landing::Master(page) } else { Landing::Frame(page) };
                let (area, length) = (self.area(), PAGE_BYTES as u32);
                let read = Operation::Read { area, address: frame_address(page), length, landing };
                self.post(host, home, false, Pending::MoveRead(page, home), read);
            }
        }
        Ok(())
    }

    //= dsm-protocol.md: move.4
    /// Replaces the directory entry of a page whose contents are here.
    pub(crate) fn claim_move(&mut self, host: &mut dyn Host, page: PageNumber, home: Option<Rank>) {
        let (rank, address) = self.layout.directory(page);
        let expected = home.map_or(0, directory_word);
        let desired = directory_word(self.me());
        let swap = Operation::CompareSwap { area: Area::Control, address, expected, desired };
        self.post(host, rank, false, Pending::MoveClaim(page, expected), swap);
    }

    /// Handles the former directory entry of a page that moves to this node.
    pub(crate) fn handle_move_claim(
        &mut self,
        host: &mut dyn Host,
        page: PageNumber,
        expected: u64,
        entry: u64,
    ) -> Result<(), Fault> {
        if entry != expected {
            return Err(Fault::Directory { page, entry });
        }
        // Nodes that have ended the second series change the frame before this node has ended it. A
        // diff in between would find their changes.
        self.change_home(host, page, self.me());
        if !self.config.races && self.pages.get(page).state == State::Absent {
            self.make_clean(host, page);
        }
        self.counters.moves += 1;
        self.barrier.outstanding = self.barrier.outstanding.saturating_sub(1);
        self.end_moves_to_me();
        Ok(())
    }

    /// Begins the second series of rounds if all pages that move to this node are here.
    fn end_moves_to_me(&mut self) {
        if self.barrier.outstanding == 0 {
            self.begin_rounds(Phase::RoundsOfMoves, 0);
        }
    }

    //= dsm-protocol.md: move.5
    /// Uses the new homes. All pages have moved, and no thread of any node runs.
    pub(crate) fn end_moves(&mut self, host: &mut dyn Host) {
        self.barrier.sequence += 1;
        let me = self.me();
        for (page, to) in std::mem::take(&mut self.barrier.agreed) {
            if to != me && self.is_in_place(page) && is_planted(Planted::ForgetsMove) {
                continue;
            }
            if self.pages.get(page).home != Some(to) {
                self.change_home(host, page, to);
            }
        }
        self.leave_barrier(host);
    }

    /// Uses another home of a page.
    fn change_home(&mut self, host: &mut dyn Host, page: PageNumber, to: Rank) {
        let was_in_place = self.is_in_place(page);
        let found = self.pages.at(page);
        found.home = Some(to);
        found.is_announced = false;
        found.is_tracked = true;
        if found.state == State::Open && found.pins > 0 {
            found.state = State::Dirty;
            self.interval.dirty.push(page);
        }
        let state = self.pages.get(page).state;
        let is_in_place = self.is_in_place(page);
        match state {
            State::Open => self.make_clean(host, page),
            State::Dirty if was_in_place => host.make_twin(page),
            State::Dirty if is_in_place => host.drop_twin(page),
            //= dsm-protocol.md: noted.4
            State::Clean if was_in_place && host.notes_writes() => host.make_twin(page),
            State::Clean if is_in_place && host.notes_writes() => host.drop_twin(page),
            _ => {}
        }
    }
}
