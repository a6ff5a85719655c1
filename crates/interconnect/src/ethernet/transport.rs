//! Transport of hosts: connections whose frames have numbers, are acknowledged, retransmitted when they are lost, and
//! held back by a window.
//!
//! A connection is what one host sends another in one class. Its frames are numbered through all of its messages. Each
//! frame that arrives is answered by a frame of its own, which says what is expected next, which transmission it
//! answers, whether that was marked, and when it left: so neither losses nor round trips are guessed. Connections of a
//! host take turns, a frame each, when its link is free. Nothing is allocated for a frame: tables grow to the most
//! frames in flight.
//!
//! Cards do this, not processors: it costs hosts nothing.

mod hosts;
mod rate;
mod receiver;
mod sender;
mod window;

use std::collections::BTreeMap;

use rate::Rate;
use receiver::Receiver;
use sender::Sender;

pub use rate::DcqcnConfiguration;

/// How hosts repair losses, and what holds them back.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TransportConfiguration {
    /// What is retransmitted after a loss.
    pub recovery: Recovery,
    /// What sets the window.
    pub congestion: Congestion,
    /// Most frames of a connection in flight, 1 or more.
    pub window_frames: u32,
    /// The window of a new connection, where it is not fixed.
    pub initial_window_frames: u32,
    /// Payload of an acknowledgement; a frame of it is as long as one of data with so much.
    pub ack_bytes: u32,
    /// Least time without an acknowledgement of something new after which frames are retransmitted, in picoseconds;
    /// more where round trips are longer (RFC 6298), and twice as much each further time.
    pub timeout_ps: u64,
    /// A frame counts as lost when one that was sent so many later is acknowledged, 1 or more (RFC 9002,
    /// 6.1.1).
    pub loss_threshold_frames: u32,
    /// Frames lost at random, of a million.
    pub loss_ppm: u32,
}

/// What is retransmitted after a loss.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Recovery {
    /// All from the lost frame on: receivers take nothing out of order, as adapters of RoCE v2.
    GoBackN,
    /// The lost frame: receivers keep what comes out of order, as in IRN (SIGCOMM 2018).
    SelectiveRepeat,
}

/// What sets the window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Congestion {
    /// Nothing does.
    Fixed,
    /// The share of marked frames: DCTCP (SIGCOMM 2010, RFC 8257).
    Dctcp {
        /// How much of the estimated share comes from the last window, g, of a million.
        gain_ppm: u32,
    },
    /// Round trips: as Swift (SIGCOMM 2020).
    Delay {
        /// The round trip that is aimed at, in picoseconds.
        target_ps: u64,
        /// What is added to the target of a window of a frame; nothing is to one of 100 frames, and
        /// between them what 1 / √window is in proportion to (flow scaling). In picoseconds.
        scaling_ps: u64,
        /// What of a round trip's excess the window becomes smaller by, β, in percent.
        beta_percent: u32,
        /// The most that it becomes smaller by at a time, in percent.
        decrease_max_percent: u32,
    },
    /// Notifications that marks bring: DCQCN (SIGCOMM 2015). They set a rate, and the window stays.
    Dcqcn(DcqcnConfiguration),
}

impl Congestion {
    /// Whether the window stays as it is.
    pub(super) const fn has_fixed_window(&self) -> bool {
        matches!(self, Self::Fixed | Self::Dcqcn(_))
    }
}

/// What the transport of all hosts counted.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TransportCounts {
    /// Connections that sent something.
    pub connections: u64,
    /// Data frames sent, retransmissions included.
    pub data_frames: u64,
    /// Payload of them, in bytes.
    pub payload_bytes: u64,
    /// Data frames retransmitted.
    pub retransmitted_frames: u64,
    /// Times that no acknowledgement came for too long.
    pub timeouts: u64,
    /// Acknowledgements that came.
    pub acknowledgements: u64,
    /// Of those, the ones that report a mark.
    pub marked: u64,
    /// Frames of both kinds lost at random.
    pub frames_lost_at_random: u64,
    /// Data frames that came a second time.
    pub duplicate_frames: u64,
    /// Data frames that came out of order, and were not kept.
    pub discarded_frames: u64,
    /// Notifications of congestion that came, of DCQCN.
    pub notifications: u64,
    /// Whether receivers say what is sent, as with Homa: then there are neither windows nor round trips.
    pub is_receiver_driven: bool,
    /// Grants that came, of Homa.
    pub grants: u64,
    /// Requests to send frames again that came, of Homa.
    pub resends: u64,
    /// Longest round trip, in picoseconds.
    pub round_trip_max_ps: u64,
    round_trips_ps: u64,
    /// Windows at acknowledgements, in 1/256 frames.
    windows_256ths: u64,
    /// Rates at acknowledgements, in 10^6 bits per second.
    rates_mbps: u64,
}

impl TransportCounts {
    /// Returns the payload sent, retransmissions included, in bits per second of a run of so many picoseconds.
    pub fn throughput_bps(&self, completed_ps: u64) -> f64 {
        self.payload_bytes as f64 * 8e12 / completed_ps.max(1) as f64
    }

    /// Returns the mean window when an acknowledgement came, in frames.
    pub fn window_frames(&self) -> f64 {
        self.windows_256ths as f64 / 256.0 / self.acknowledgements.max(1) as f64
    }

    /// Returns the mean rate of a connection when an acknowledgement came, in bits per second; `None` where
    /// connections have no rates.
    pub fn rate_bps(&self) -> Option<f64> {
        let mean_mbps = self.rates_mbps as f64 / self.acknowledgements.max(1) as f64;
        (self.rates_mbps > 0).then_some(mean_mbps * 1e6)
    }

    /// Returns the mean round trip, in picoseconds.
    pub fn round_trip_ps(&self) -> f64 {
        self.round_trips_ps as f64 / self.acknowledgements.max(1) as f64
    }

    /// Returns the share of acknowledgements that report a mark, in percent.
    pub fn marked_percent(&self) -> f64 {
        self.marked as f64 * 100.0 / self.acknowledgements.max(1) as f64
    }

    /// Returns the share of data frames that were retransmitted, in percent.
    pub fn retransmitted_percent(&self) -> f64 {
        self.retransmitted_frames as f64 * 100.0 / self.data_frames.max(1) as f64
    }

    /// Nothing, of a transport that receivers drive.
    pub(super) fn of_receivers() -> Self {
        Self { is_receiver_driven: true, ..Self::default() }
    }

    /// Adds what another part of the network counted.
    pub(super) fn merge(&mut self, part: &Self) {
        self.connections += part.connections;
        self.data_frames += part.data_frames;
        self.payload_bytes += part.payload_bytes;
        self.retransmitted_frames += part.retransmitted_frames;
        self.timeouts += part.timeouts;
        self.acknowledgements += part.acknowledgements;
        self.marked += part.marked;
        self.frames_lost_at_random += part.frames_lost_at_random;
        self.duplicate_frames += part.duplicate_frames;
        self.discarded_frames += part.discarded_frames;
        self.round_trip_max_ps = self.round_trip_max_ps.max(part.round_trip_max_ps);
        self.round_trips_ps += part.round_trips_ps;
        self.windows_256ths += part.windows_256ths;
        self.notifications += part.notifications;
        self.rates_mbps += part.rates_mbps;
        self.grants += part.grants;
        self.resends += part.resends;
    }
}

/// What frames carry for the transport.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// Place of the connection at its sender, in the part of the network where that is.
    connection: u32,
    /// Host where the connection begins.
    source: u32,
    /// Number of the data frame; of an acknowledgement, of the frame that it answers.
    sequence: u32,
    /// Of an acknowledgement, the number of the first data frame that is missing.
    expected: u32,
    /// Which transmission of its connection it is, or answers.
    transmission: u32,
    /// When the data frame left its host, in picoseconds.
    sent_ps: u64,
    /// Part of the network where the sender is.
    part: u8,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Data,
    Acknowledgement {
        is_marked: bool,
    },
    /// Marked frames have come, of DCQCN.
    Notification,
}

const _: () = assert!(size_of::<Segment>() <= 32);

/// Connections of all hosts of a network, or of a part of it.
#[derive(Clone, Debug)]
pub(super) struct Transport {
    configuration: TransportConfiguration,
    classes: usize,
    /// Place among the senders, by source, destination and class.
    places: BTreeMap<(u32, u32, u8), u32>,
    senders: Vec<Sender>,
    /// By part of the network where the sender is, and place of the connection there.
    receivers: Vec<Vec<Receiver>>,
    /// Connections with something to send, in turns, of each host and class.
    rings: Vec<Ring>,
    /// When each host will look for something to send; [`u64::MAX`] if that is not scheduled.
    pulls_ps: Vec<u64>,
    /// Of each frame.
    segments: Vec<Segment>,
    counts: TransportCounts,
}

/// A list of connections, each of which names the next.
#[derive(Clone, Copy, Debug)]
struct Ring {
    first: u32,
    last: u32,
}

impl Transport {
    pub(super) fn new(configuration: TransportConfiguration, hosts: u32, classes: u8) -> Self {
        let classes = usize::from(classes.max(1));
        Self {
            configuration,
            classes,
            places: BTreeMap::new(),
            senders: Vec::new(),
            receivers: Vec::new(),
            rings: vec![Ring { first: NONE, last: NONE }; hosts as usize * classes],
            pulls_ps: vec![u64::MAX; hosts as usize],
            segments: Vec::new(),
            counts: TransportCounts::default(),
        }
    }

    /// What was counted.
    pub(super) const fn counts(&self) -> &TransportCounts {
        &self.counts
    }

    /// Takes over what another part counted.
    pub(super) fn merge(&mut self, part: &Self) {
        self.counts.merge(&part.counts);
    }

    /// What a frame carries.
    pub(super) fn segment(&self, frame: u32) -> Segment {
        self.segments[frame as usize]
    }

    /// Notes what a frame carries.
    pub(super) fn set_segment(&mut self, frame: u32, segment: Segment) {
        if self.segments.len() <= frame as usize {
            self.segments.resize(frame as usize + 1, segment);
        }
        self.segments[frame as usize] = segment;
    }

    /// A frame leaves its host.
    pub(super) fn on_left(&mut self, frame: u32, now_ps: u64) {
        if let Some(segment) = self.segments.get_mut(frame as usize)
            && segment.kind == Kind::Data
        {
            segment.sent_ps = now_ps;
        }
    }

    /// Place of the connection of a host, on a cable of so many bits per second, to another.
    fn connection(&mut self, (source, line_bps): (u32, u64), destination: u32, class: u8) -> u32 {
        let (senders, counts) = (&mut self.senders, &mut self.counts);
        let configuration = &self.configuration;
        *self.places.entry((source, destination, class)).or_insert_with(|| {
            counts.connections += 1;
            let rate = match configuration.congestion {
                Congestion::Dcqcn(_) => Some(Rate::new(line_bps)),
                _ => None,
            };
            senders.push(Sender::new(configuration, source, destination, class).with_rate(rate));
            senders.len() as u32 - 1
        })
    }

    /// The other end of a connection.
    fn receiver(&mut self, part: u8, connection: u32) -> &mut Receiver {
        let part = usize::from(part);
        if self.receivers.len() <= part {
            self.receivers.resize(part + 1, Vec::new());
        }
        let receivers = &mut self.receivers[part];
        if receivers.len() <= connection as usize {
            receivers.resize(connection as usize + 1, Receiver::default());
        }
        &mut receivers[connection as usize]
    }

    /// Has a connection wait for its turn, if it may send now and does not wait yet.
    fn make_ready(&mut self, connection: u32, now_ps: u64) -> bool {
        let sender = &mut self.senders[connection as usize];
        if sender.is_ready || !sender.may_send() || sender.paced_until_ps() > now_ps {
            return false;
        }
        sender.is_ready = true;
        sender.next_ready = NONE;
        let at = sender.source as usize * self.classes + usize::from(sender.class);
        let ring = &mut self.rings[at];
        let last = std::mem::replace(&mut ring.last, connection);
        match self.senders.get_mut(last as usize) {
            Some(last) => last.next_ready = connection,
            None => ring.first = connection,
        }
        true
    }

    /// Whether connections of a host wait for their turn.
    fn has_ready(&self, host: u32) -> bool {
        let at = host as usize * self.classes;
        self.rings[at..at + self.classes].iter().any(|ring| ring.first != NONE)
    }

    /// The next connection of a host and class. Connections are skipped that have learned meanwhile that they have
    /// nothing to retransmit, or that their window is smaller.
    fn take_ready(&mut self, host: u32, class: usize) -> Option<u32> {
        let ring = &mut self.rings[host as usize * self.classes + class];
        loop {
            let first = ring.first;
            let sender = self.senders.get_mut(first as usize)?;
            sender.is_ready = false;
            ring.first = sender.next_ready;
            if ring.first == NONE {
                ring.last = NONE;
            }
            if sender.may_send() {
                return Some(first);
            }
        }
    }
}

/// Whether a sequence number is before another, of which they are less than 2^31 apart.
const fn is_before(number: u32, other: u32) -> bool {
    number.wrapping_sub(other).cast_signed() < 0
}

pub(super) use hosts::{NO_MESSAGE, TRANSPORT};

/// The end of a ring.
const NONE: u32 = u32::MAX;
