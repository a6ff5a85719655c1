//! Links over memory shared with processes of one host.

mod lending;
mod ring;
mod socket;
#[cfg(test)]
mod tests;

pub use self::ring::fuzz_shm_ring;
pub use self::socket::fuzz_shm_messages;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use delivery::{Evidence, Instant, LinkCaps, LinkEvent, RxFrame, TxBatch, TxFrame};
use mem::Payload;
use thiserror::Error;
use wire_edge::PeerAddr;

use self::lending::{Borrower, Lender};
use self::ring::{
    FRAME_BYTES_MAX, LentPlace, Mapping, Outside, Read, Reader, Shape, Writer, Written,
};
use self::socket::{Greeted, Greeting, Heard, Notice};
use crate::events::Events;
use crate::payload::PayloadCopier;
use crate::udp::PayloadUnmapped;
use crate::{Link, LinkStatistics, OnFrame, WaitFds};

/// The reason why a link over shared memory could not be opened.
#[derive(Debug, Error)]
#[error("cannot {attempt} for shared memory; `EndpointBuilder::shared_memory(false)` disables it")]
pub struct ShmError {
    /// The operation that failed.
    pub attempt: &'static str,
    /// The error of the system call.
    pub source: io::Error,
}

/// A link to other processes of the host, over memory shared with each peer.
///
/// The endpoint listens on an abstract Unix socket, which leaves no file behind. The first end that
/// sends to a peer connects to that peer's socket. It passes the peer a memory file (memfd) that
/// contains one ring of frames for each direction. The receiver maps the file only if its size is
/// correct and sealed.
///
/// After that, each end uses the socket to wake the other end if that end sleeps. If the other
/// process ends for any reason, the socket shows this. (A wake-up by a shared eventfd would be
/// cheaper, but a peer could make the write to the eventfd block.) If two peers connect to each
/// other at the same time, they have two channels. Each peer reads both channels, and sends over
/// the older channel.
///
/// A link copies the headers of a frame to private memory before it parses them, because the other
/// process may change shared memory at any time. It does not copy payload: the engine places the
/// bytes directly from the ring or from lent memory, although other processes may write that
/// memory. No frame is lost in the ring: if the ring is full, the sender waits.
#[derive(Debug)]
pub struct ShmLink {
    local: PeerAddr,
    listener: OwnedFd,
    /// Watches all sockets. A sleeping thread waits for this descriptor.
    epoll: OwnedFd,
    channels: Vec<Channel>,
    /// Accepted connections whose peer has not sent a greeting yet, with their keys in `epoll`.
    strangers: VecDeque<(u64, OwnedFd)>,
    /// Key in `epoll` for the next socket.
    next_key: u64,
    /// Index in `channels` of the channel to which the link last sent a batch.
    last_sent: usize,
    /// Index in `channels` of the channel that the next turn reads first.
    first_read: usize,
    attended_at: Instant,
    /// Time at which a frame last arrived.
    brought_at: Instant,
    copier: PayloadCopier,
    buffer: Box<[u8; FRAME_BYTES_MAX]>,
    events: Events,
    statistics: LinkStatistics,
}

/// Memory shared with one peer.
#[derive(Debug)]
struct Channel {
    key: u64,
    peer: PeerAddr,
    socket: OwnedFd,
    writer: Writer,
    reader: Reader,
    lender: Lender,
    borrower: Borrower,
    /// True if the peer is gone or violated the protocol. The link first reads the frames that the
    /// peer wrote, and then closes the channel.
    has_ended: bool,
}

impl ShmLink {
    /// Opens a link for an endpoint of this process.
    ///
    /// # Errors
    /// Returns [`ShmError`] with the error of the system call that failed.
    pub fn open() -> Result<Self, ShmError> {
        let failed = |attempt| move |source| ShmError { attempt, source };
        let host = socket::host_identity().map_err(failed("identify this host"))?;
        let endpoint = socket::random().map_err(failed("get a random number"))?;
        let listener = socket::listen(endpoint).map_err(failed("listen on a Unix socket"))?;
        // SAFETY: no memory is passed.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(failed("create an epoll descriptor")(io::Error::last_os_error()));
        }
        // SAFETY: the kernel just returned this descriptor; it has no other owner.
        let epoll = unsafe { OwnedFd::from_raw_fd(epoll) };
        watch_arrivals(&epoll, listener.as_fd()).map_err(failed("watch a Unix socket"))?;
        Ok(Self {
            local: PeerAddr::shared_memory(host, endpoint),
            listener,
            epoll,
            channels: Vec::with_capacity(CHANNELS_MAX),
            strangers: VecDeque::with_capacity(STRANGERS_MAX),
            next_key: LISTENER_KEY + 1,
            last_sent: 0,
            first_read: 0,
            attended_at: Instant(0),
            brought_at: Instant(0),
            copier: PayloadCopier::new(1),
            buffer: ring::frame_buffer(),
            events: Events::new(EVENTS_MAX),
            statistics: LinkStatistics::default(),
        })
    }

    /// Returns the number of channels. If both ends connected, there are two channels to one peer.
    pub const fn channels(&self) -> usize {
        self.channels.len()
    }

    /// Returns the position of the channel to `peer`. Connects if there is no channel.
    #[inline]
    fn channel_to(&mut self, peer: PeerAddr) -> Option<usize> {
        let is_it = |channel: &Channel| channel.peer == peer && !channel.has_ended;
        if self.channels.get(self.last_sent).is_some_and(is_it) {
            return Some(self.last_sent);
        }
        let found = self.channels.iter().position(is_it);
        found.or_else(|| self.connect(peer)).inspect(|&position| self.last_sent = position)
    }

    /// Creates a channel to `peer`.
    #[cold]
    fn connect(&mut self, peer: PeerAddr) -> Option<usize> {
        let (host, endpoint) = peer.to_shared_memory()?;
        if self.local.to_shared_memory().is_none_or(|(own, _)| own != host)
            || self.channels.len() >= CHANNELS_MAX
        {
            return None;
        }
        self.statistics.send_calls += 1;
        match self.try_connect(peer, endpoint) {
            Ok(()) => Some(self.channels.len() - 1),
            Err(error) => {
                if error.kind() == io::ErrorKind::ConnectionRefused {
                    self.refuse(peer);
                }
                None
            }
        }
    }

    /// Reports that no listener exists at the address of `peer`. Does nothing while an earlier
    /// event of this kind for `peer` waits to be polled.
    #[cold]
    fn refuse(&mut self, peer: PeerAddr) {
        let says_so = |event: &LinkEvent| matches!(event, LinkEvent::Refused(at, _) if *at == peer);
        if !self.events.iter().any(says_so) {
            self.events.push(LinkEvent::Refused(peer, Evidence::Local));
        }
    }

    fn try_connect(&mut self, peer: PeerAddr, endpoint: u64) -> io::Result<()> {
        let socket = socket::connect(endpoint)?;
        let memory = socket::create_memory()?;
        let mapping = Mapping::new(memory.as_fd())?;
        let greeting = Greeting { from: self.local, to: peer };
        socket::greet(socket.as_fd(), &greeting, memory.as_fd())?;
        self.add_channel(peer, socket, mapping.ends(CONNECTOR))
    }

    fn add_channel(
        &mut self,
        peer: PeerAddr,
        socket: OwnedFd,
        (writer, reader): (Writer, Reader),
    ) -> io::Result<()> {
        let key = self.next_key;
        self.next_key += 1;
        watch(&self.epoll, socket.as_fd(), key)?;
        // A thread of this end may already sleep. When the thread went to sleep, the channel did
        // not exist, so announce the sleep to the new peer here.
        reader.announce_sleep();
        let (lender, borrower) = (Lender::default(), Borrower::default());
        let has_ended = false;
        self.channels.push(Channel {
            key,
            peer,
            socket,
            writer,
            reader,
            lender,
            borrower,
            has_ended,
        });
        Ok(())
    }

    /// Handles socket events: peers that connect, that send a wake-up or a notice, or that are
    /// gone.
    #[cold]
    fn attend(&mut self) {
        let mut ready = [libc::epoll_event { events: 0, u64: 0 }; READY_MAX];
        // SAFETY: the kernel writes at most as many entries as the array has.
        let count = unsafe {
            libc::epoll_wait(
                self.epoll.as_raw_fd(),
                ready.as_mut_ptr(),
                ready.len().cast_signed() as i32,
                0,
            )
        };
        self.statistics.receive_calls += 1;
        for channel in &mut self.channels {
            channel.lender.forget_gone(channel.socket.as_fd());
        }
        for entry in ready.iter().take(usize::try_from(count).unwrap_or(0)) {
            let key = entry.u64;
            if key == LISTENER_KEY {
                self.accept();
            } else if let Some(channel) = self.channels.iter_mut().find(|c| c.key == key) {
                if !channel.listen() {
                    channel.end(&self.epoll);
                }
            } else if let Some(at) = self.strangers.iter().position(|&(other, _)| other == key) {
                self.meet(at);
            }
        }
    }

    fn accept(&mut self) {
        for left in (0..=STRANGERS_MAX).rev() {
            if left == 0 {
                // More connections may wait. Watch the listener again, so that `epoll` reports the
                // waiting connections to the next call. If this fails, `epoll` reports them when
                // the next peer connects.
                let _unwatched = watch_arrivals(&self.epoll, self.listener.as_fd());
                break;
            }
            let Ok(Some(socket)) = socket::accept(self.listener.as_fd()) else { break };
            if self.strangers.len() == STRANGERS_MAX {
                // Drop the connection that has waited longest without a greeting.
                self.strangers.pop_front();
                self.statistics.receive_discarded += 1;
            }
            let key = self.next_key;
            self.next_key += 1;
            if watch(&self.epoll, socket.as_fd(), key).is_ok() {
                self.strangers.push_back((key, socket));
                self.meet(self.strangers.len() - 1);
            }
        }
    }

    /// Reads the greeting of an accepted connection and adds a channel if the greeting is valid.
    fn meet(&mut self, at: usize) {
        let Some((key, socket)) = self.strangers.remove(at) else { return };
        match socket::be_greeted(socket.as_fd()) {
            Greeted::NotYet => self.strangers.push_back((key, socket)),
            Greeted::Well(greeting, memory) if self.is_acceptable(&greeting, memory.as_fd()) => {
                unwatch(&self.epoll, socket.as_fd());
                let added = Mapping::new(memory.as_fd()).and_then(|mapping| {
                    self.add_channel(greeting.from, socket, mapping.ends(ACCEPTOR))
                });
                self.statistics.receive_discarded += u64::from(added.is_err());
            }
            Greeted::Well(..) | Greeted::Badly => self.statistics.receive_discarded += 1,
        }
    }

    fn is_acceptable(&self, greeting: &Greeting, memory: BorrowedFd<'_>) -> bool {
        let host = |address: PeerAddr| address.to_shared_memory().map(|(host, _)| host);
        let from_peer = self.channels.iter().filter(|channel| channel.peer == greeting.from);
        greeting.to == self.local
            && host(greeting.from) == host(self.local)
            && from_peer.count() < CHANNELS_PER_PEER
            && self.channels.len() < CHANNELS_MAX
            && socket::is_sealed_memory(memory)
    }

    /// Passes frames of all channels to `on_frame`.
    #[inline]
    fn receive_all(&mut self, now: Instant, limit: usize, on_frame: OnFrame<'_>) -> usize {
        let count = self.channels.len();
        if self.first_read >= count {
            self.first_read = 0;
        }
        let mut frames = 0;
        let mut over = None;
        for step in 0..count {
            let position = self.first_read + step;
            let position = if position < count { position } else { position - count };
            if frames >= limit {
                self.first_read = position;
                break;
            }
            match self.receive_from(position, now, limit - frames, on_frame) {
                Some(some) => frames += some,
                None => over = Some(position),
            }
        }
        if let Some(position) = over {
            self.close(position);
        }
        frames
    }

    /// Returns whether a frame arrives during a few more polls of the rings.
    #[inline]
    fn has_frame_soon(&self) -> bool {
        let has_frame = |channel: &Channel| channel.reader.has_frame();
        (0..LOOKS).any(|_| self.channels.iter().any(has_frame))
    }

    /// Passes frames of one channel to `on_frame`. Returns `None` if the channel must be closed.
    #[inline]
    fn receive_from(
        &mut self,
        position: usize,
        now: Instant,
        limit: usize,
        on_frame: OnFrame<'_>,
    ) -> Option<usize> {
        let Self { channels, buffer, statistics, epoll, .. } = self;
        let channel = channels.get_mut(position)?;
        let from = channel.peer;
        let mut frames = 0;
        while frames < limit {
            match channel.reader.read(buffer) {
                Read::Frame(headers, outside) => {
                    frames += 1;
                    let outside = match outside {
                        Outside::Ring(payload) => Some(payload),
                        Outside::Lent(place, len) => channel.lent(place, len, epoll),
                    };
                    if let Some(outside) = outside {
                        let bytes = buffer.get_mut(..headers)?;
                        statistics.receive_bytes += (bytes.len() + outside.len()) as u64;
                        on_frame(RxFrame {
                            bytes,
                            outside,
                            received_at: now,
                            congestion_experienced: false,
                            from,
                        });
                    } else {
                        statistics.receive_discarded += 1;
                    }
                    if channel.reader.release() {
                        socket::wake(channel.socket.as_fd());
                    }
                }
                Read::Nothing if channel.has_ended => return None,
                Read::Nothing => break,
                Read::Broken => {
                    statistics.receive_discarded += 1;
                    channel.has_ended = true;
                    return None;
                }
            }
        }
        statistics.receive_frames += frames as u64;
        statistics.receive_messages += u64::from(frames > 0);
        Some(frames)
    }

    /// Closes a channel and frees its memory.
    #[cold]
    fn close(&mut self, position: usize) {
        if position < self.channels.len() {
            let channel = self.channels.swap_remove(position);
            let has_other = self.channels.iter().any(|c| c.peer == channel.peer && !c.has_ended);
            if !has_other {
                self.refuse(channel.peer);
            }
        }
    }
}

impl Channel {
    #[cold]
    fn end(&mut self, epoll: &OwnedFd) {
        unwatch(epoll, self.socket.as_fd());
        self.has_ended = true;
    }

    /// Reads wake-ups and notices of the peer. Returns false if the peer is gone or a notice is
    /// invalid.
    #[cold]
    fn listen(&mut self) -> bool {
        for _ in 0..NOTICES_MAX {
            match socket::hear(self.socket.as_fd()) {
                Heard::Nothing => return true,
                Heard::Call => {}
                Heard::Notice(Notice::Lent { memory, len }, Some(file)) => {
                    if self.borrower.borrow(memory, len, file.as_fd()).is_err() {
                        // Frames that refer to this memory are lost. The peer retransmits their
                        // content with the payload in the ring.
                        socket::send_notice(self.socket.as_fd(), Notice::Refused, None);
                    }
                }
                Heard::Notice(Notice::Gone(memory), None) => self.borrower.give_back(memory),
                Heard::Notice(Notice::Refused, None) => self.lender.on_refused(),
                Heard::Notice(..) | Heard::End => return false,
            }
        }
        true
    }

    /// Returns payload in memory of the peer; `None` if that memory is not available.
    #[inline]
    fn lent(&mut self, place: LentPlace, len: usize, epoll: &OwnedFd) -> Option<Payload<'_>> {
        // The peer sends the notice about lent memory before it writes the frame.
        if !self.borrower.has(place, len) && !self.listen() {
            self.end(epoll);
        }
        self.borrower.find(place, len)
    }

    /// Writes frame `index` of a batch to the ring.
    #[inline]
    fn write(&mut self, batch: &TxBatch, index: usize, copier: &mut PayloadCopier) -> Written {
        let TxFrame { header, payload, is_lasting } = batch.frame(index);
        let place =
            if is_lasting { self.lender.place_of(payload, self.socket.as_fd()) } else { None };
        let shape = Shape { headers: header.len(), payload: payload.len as usize, lent: place };
        self.writer.write(&shape, |to, payload_to| {
            // SAFETY: the record has room for the headers, and no reference to that room exists.
            unsafe { mem::copy_foreign(to, header.as_ptr(), header.len()) };
            let Some(to) = payload_to else { return true };
            // SAFETY: the record has room for the payload too, and is ours until it is published.
            unsafe { copier.push(to, payload) };
            copier.copy().is_ok()
        })
    }
}

impl Link for ShmLink {
    fn caps(&self) -> LinkCaps {
        LinkCaps {
            frame_bytes_max: FRAME_BYTES_MAX as u16,
            frame_bytes_safe: FRAME_BYTES_MAX as u16,
            segments: SEGMENTS,
            offloads: true,
            // A full ring drops no frames.
            receive_buffer_bytes: u32::MAX,
            rate: None,
            local: self.local,
        }
    }

    #[inline]
    fn receive(&mut self, now: Instant, limit: usize, on_frame: OnFrame<'_>) -> io::Result<usize> {
        if now.since_ns(self.attended_at) >= ATTEND_NS {
            self.attended_at = now;
            self.attend();
        }
        let mut frames = self.receive_all(now, limit, on_frame);
        if frames == 0 && now.since_ns(self.brought_at) < BUSY_NS && self.has_frame_soon() {
            frames = self.receive_all(now, limit, on_frame);
        }
        if frames > 0 {
            self.brought_at = now;
        }
        Ok(frames)
    }

    #[inline]
    fn send(&mut self, batch: &TxBatch) -> io::Result<usize> {
        let Some(position) = self.channel_to(batch.to()) else {
            self.statistics.send_unreachable += batch.len() as u64;
            return Ok(batch.len());
        };
        let Self { channels, copier, statistics, epoll, .. } = self;
        let Some(channel) = channels.get_mut(position) else { return Ok(batch.len()) };
        let mut sent = 0;
        let mut has_waited = false;
        let mut unmapped = false;
        while sent < batch.len() {
            let len = batch.frame(sent).len();
            if !(1..=FRAME_BYTES_MAX).contains(&len) || batch.frame(sent).header.is_empty() {
                statistics.send_too_big += 1;
                sent += 1;
                continue;
            }
            match channel.write(batch, sent, copier) {
                Written::Yes => {
                    sent += 1;
                    statistics.send_frames += 1;
                    statistics.send_bytes += len as u64;
                }
                Written::Full if !has_waited => {
                    has_waited = true;
                    channel.writer.announce_wait();
                }
                Written::Full => {
                    statistics.send_full += 1;
                    break;
                }
                Written::Abandoned => {
                    unmapped = true;
                    break;
                }
                Written::Broken => {
                    channel.end(epoll);
                    return Ok(batch.len());
                }
            }
        }
        statistics.send_messages += 1;
        if channel.writer.must_wake() {
            statistics.send_calls += 1;
            if !socket::wake(channel.socket.as_fd()) {
                channel.end(epoll);
            }
        }
        if unmapped { Err(PayloadUnmapped { frame: sent }.into()) } else { Ok(sent) }
    }

    fn poll_event(&mut self) -> Option<LinkEvent> {
        self.events.pop()
    }

    fn wait_fds(&self) -> WaitFds<'_> {
        [Some(self.epoll.as_fd()), None]
    }

    fn prepare_sleep(&mut self) -> bool {
        self.attend();
        for channel in &self.channels {
            channel.reader.announce_sleep();
        }
        !self.channels.iter().any(|channel| channel.has_ended || channel.reader.has_frame())
    }

    fn statistics(&self) -> LinkStatistics {
        LinkStatistics { events_dropped: self.events.dropped(), ..self.statistics }
    }
}

fn watch(epoll: &OwnedFd, socket: BorrowedFd<'_>, key: u64) -> io::Result<()> {
    let wanted = libc::epoll_event { events: libc::EPOLLIN as u32, u64: key };
    control(epoll, libc::EPOLL_CTL_ADD, socket, wanted)
}

/// Watches the listener edge-triggered, with one report per arrival. The reason: if the process has
/// no descriptor left, it cannot accept a connection. With level-triggered watching, the waiting
/// connection would then wake the threads again and again. If the listener is watched already,
/// `epoll` reports waiting connections again.
fn watch_arrivals(epoll: &OwnedFd, listener: BorrowedFd<'_>) -> io::Result<()> {
    let events = (libc::EPOLLIN | libc::EPOLLET) as u32;
    let wanted = libc::epoll_event { events, u64: LISTENER_KEY };
    match control(epoll, libc::EPOLL_CTL_ADD, listener, wanted) {
        Err(error) if error.raw_os_error() == Some(libc::EEXIST) => {
            control(epoll, libc::EPOLL_CTL_MOD, listener, wanted)
        }
        watched => watched,
    }
}

fn control(
    epoll: &OwnedFd,
    how: libc::c_int,
    socket: BorrowedFd<'_>,
    mut wanted: libc::epoll_event,
) -> io::Result<()> {
    // SAFETY: the kernel reads one entry.
    match unsafe { libc::epoll_ctl(epoll.as_raw_fd(), how, socket.as_raw_fd(), &raw mut wanted) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn unwatch(epoll: &OwnedFd, socket: BorrowedFd<'_>) {
    let (epoll, socket) = (epoll.as_raw_fd(), socket.as_raw_fd());
    // SAFETY: no memory is passed. The call fails only if the socket is not watched.
    unsafe { libc::epoll_ctl(epoll, libc::EPOLL_CTL_DEL, socket, std::ptr::null_mut()) };
}

/// Key in `epoll` of the listening socket.
const LISTENER_KEY: u64 = 0;

/// Index of the ring to which the connecting end writes. The accepting end writes to the other
/// ring.
const CONNECTOR: usize = 0;
const ACCEPTOR: usize = 1;

/// Maximum number of channels. Each takes half a MiB, so all take 32 MiB. Further peers use other
/// links.
const CHANNELS_MAX: usize = 64;

/// Maximum number of channels with one peer: each of the two ends may have opened one. The third is
/// for a peer that lost a channel and opened a new one before this end noticed the loss.
const CHANNELS_PER_PEER: usize = 3;

/// Maximum number of accepted connections whose peer has not sent a greeting.
const STRANGERS_MAX: usize = 8;

/// Maximum number of queued events: two for each peer.
const EVENTS_MAX: usize = 2 * CHANNELS_MAX;

/// Maximum number of sockets handled per call. If more are ready, the next call handles them.
const READY_MAX: usize = 16;

/// Maximum number of messages read from a peer per call: notices about lent memory, and one wake-up
/// for each time that this end went to sleep. The next call reads further messages.
const NOTICES_MAX: usize = 3 * 64;

/// Maximum number of frames in a batch. No system call limits this number, because a frame is sent
/// by writing to shared memory.
const SEGMENTS: u16 = 64;

/// Number of polls of empty rings in one turn, if a frame arrived in the last [`BUSY_NS`]. A poll
/// costs 1 to 2 ns, and the rest of a turn costs 60 ns. The polls together take about as long as
/// the rest of a turn, but notice a frame sooner than the next turn would.
const LOOKS: u32 = 32;

/// For this many nanoseconds after a frame has arrived, a turn polls empty rings several times. The
/// time is a few round trips.
const BUSY_NS: u64 = 20_000;

/// Interval in nanoseconds between checks of the sockets while a thread polls the link. 10,000
/// checks per second, each of 200 ns, take 0.2 % of a processor. A connecting peer waits for at
/// most one interval.
const ATTEND_NS: u64 = 100_000;
