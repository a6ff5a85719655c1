//! Transport of hosts: connections with numbered frames, which are acknowledged, retransmitted
//! after a loss, and limited by a window.
//!
//! A connection carries all messages of one class from one host to another. Its frames are numbered
//! through all of its messages. Each arriving frame is answered by an acknowledgement frame, which
//! contains the next expected frame, the transmission that it answers, whether that transmission
//! was marked, and when it was sent. Neither losses nor round trips are therefore guessed.
//! Connections of a host take turns, one frame each, when the host's link is free. No memory is
//! allocated per frame: tables grow to the largest number of frames in flight.
//!
//! Network cards do this work, so it costs no processor time.

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

/// Settings for loss recovery and congestion control of hosts.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct TransportConfiguration {
    /// Which frames are retransmitted after a loss.
    pub recovery: Recovery,
    /// How the window is set.
    pub congestion: Congestion,
    /// Maximum number of frames in flight per connection, 1 or more.
    pub window_frames: u32,
    /// Window of a new connection, unless the window is fixed.
    pub initial_window_frames: u32,
    /// Payload of an acknowledgement. Its frame is as long as a data frame with this payload.
    pub ack_bytes: u32,
    /// Minimum retransmission timeout, in picoseconds: the time without an acknowledgement of a new
    /// frame. The timeout is longer if round trips are longer (RFC 6298), and doubles with each
    /// timeout in a row.
    pub timeout_ps: u64,
    /// A frame is declared lost when a frame that was sent this many frames later is acknowledged,
    /// 1 or more (RFC 9002, 6.1.1).
    pub loss_threshold_frames: u32,
    /// Frames lost at random, per million.
    pub loss_ppm: u32,
}

/// Which frames are retransmitted after a loss.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Recovery {
    /// All frames from the lost one on. Receivers discard frames out of order, as RoCE v2 adapters
    /// do.
    GoBackN,
    /// Only the lost frame. Receivers keep frames out of order, as in IRN (SIGCOMM 2018).
    SelectiveRepeat,
}

/// How the window is set.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Congestion {
    /// The window is fixed.
    Fixed,
    /// By the share of marked frames: DCTCP (SIGCOMM 2010, RFC 8257).
    Dctcp {
        /// Weight of the last window in the estimated share, g, per million.
        gain_ppm: u32,
    },
    /// By round-trip times, as in Swift (SIGCOMM 2020).
    Delay {
        /// Target round-trip time, in picoseconds.
        target_ps: u64,
        /// Addition to the target for a window of one frame, in picoseconds. For 100 frames the
        /// addition is 0; between these windows it is linear in 1 / √window (flow scaling).
        scaling_ps: u64,
        /// Share of the relative excess of a round trip by which the window shrinks, β, in percent.
        beta_percent: u32,
        /// Maximum decrease at a time, in percent.
        decrease_max_percent: u32,
    },
    /// By notifications that marks cause: DCQCN (SIGCOMM 2015). They set a rate; the window is
    /// fixed.
    Dcqcn(DcqcnConfiguration),
}

impl Congestion {
    /// Returns whether the window is fixed.
    pub(super) const fn has_fixed_window(&self) -> bool {
        matches!(self, Self::Fixed | Self::Dcqcn(_))
    }
}

/// Counters of the transport of all hosts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TransportCounts {
    /// Connections that sent data.
    pub connections: u64,
    /// Data frames sent, retransmissions included.
    pub data_frames: u64,
    /// Payload of the data frames, in bytes.
    pub payload_bytes: u64,
    /// Data frames retransmitted.
    pub retransmitted_frames: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Acknowledgements received.
    pub acknowledgements: u64,
    /// Acknowledgements received that report a mark.
    pub marked: u64,
    /// Frames of all kinds lost at random.
    pub frames_lost_at_random: u64,
    /// Data frames received more than once.
    pub duplicate_frames: u64,
    /// Data frames received out of order and discarded.
    pub discarded_frames: u64,
    /// Notifications of congestion received (DCQCN).
    pub notifications: u64,
    /// Whether receivers control sending, as in Homa. There are then neither windows nor round
    /// trips.
    pub is_receiver_driven: bool,
    /// Grants received (Homa).
    pub grants: u64,
    /// Requests for retransmission received (Homa).
    pub resends: u64,
    /// Longest round trip, in picoseconds.
    pub round_trip_max_ps: u64,
    round_trips_ps: u64,
    /// Sum of the windows at acknowledgements, in 1/256 frames.
    windows_256ths: u64,
    /// Sum of the rates at acknowledgements, in 10^6 bits per second.
    rates_mbps: u64,
}

impl TransportCounts {
    /// Returns the rate of sent payload, retransmissions included, in bits per second of a run of
    /// `completed_ps`.
    pub fn throughput_bps(&self, completed_ps: u64) -> f64 {
        self.payload_bytes as f64 * 8e12 / completed_ps.max(1) as f64
    }

    /// Returns the mean window at the arrival of acknowledgements, in frames.
    pub fn window_frames(&self) -> f64 {
        self.windows_256ths as f64 / 256.0 / self.acknowledgements.max(1) as f64
    }

    /// Returns the mean rate of a connection at the arrival of acknowledgements, in bits per
    /// second; `None` if connections have no rates.
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

    /// Returns empty counters for a receiver-driven transport.
    pub(super) fn of_receivers() -> Self {
        Self { is_receiver_driven: true, ..Self::default() }
    }

    /// Adds the counters of another part of the network.
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

/// Transport header of a frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segment {
    /// Index of the connection at its sender, within the sender's part of the network.
    connection: u32,
    /// Sending host of the connection.
    source: u32,
    /// Number of the data frame, or of the frame that an acknowledgement answers.
    sequence: u32,
    /// In an acknowledgement, the number of the first missing data frame.
    expected: u32,
    /// Transmission of the connection that the frame is, or answers.
    transmission: u32,
    /// When the data frame left its host, in picoseconds.
    sent_ps: u64,
    /// Part of the network to which the sender belongs.
    part: u8,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Kind {
    Data,
    Acknowledgement {
        is_marked: bool,
    },
    /// Marked frames have arrived (DCQCN).
    Notification,
}

const _: () = assert!(size_of::<Segment>() <= 32);

/// Connections of all hosts of a network, or of one part of it.
#[derive(Clone, Debug)]
pub(super) struct Transport {
    configuration: TransportConfiguration,
    classes: usize,
    /// Index in `senders`, by source, destination and class.
    places: BTreeMap<(u32, u32, u8), u32>,
    senders: Vec<Sender>,
    /// Receiving ends, by the sender's part of the network and the connection's index there.
    receivers: Vec<Vec<Receiver>>,
    /// Connections with frames to send, in turns, by host and class.
    rings: Vec<Ring>,
    /// When each host next checks for frames to send; [`u64::MAX`] if no check is scheduled.
    pulls_ps: Vec<u64>,
    /// Transport header of each frame.
    segments: Vec<Segment>,
    counts: TransportCounts,
}

/// A linked list of connections; each names the next.
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

    /// Returns the counters.
    pub(super) const fn counts(&self) -> &TransportCounts {
        &self.counts
    }

    /// Adds the counters of another part.
    pub(super) fn merge(&mut self, part: &Self) {
        self.counts.merge(&part.counts);
    }

    /// Returns the transport header of a frame.
    pub(super) fn segment(&self, frame: u32) -> Segment {
        self.segments[frame as usize]
    }

    /// Stores the transport header of a frame.
    pub(super) fn set_segment(&mut self, frame: u32, segment: Segment) {
        if self.segments.len() <= frame as usize {
            self.segments.resize(frame as usize + 1, segment);
        }
        self.segments[frame as usize] = segment;
    }

    /// Records when a data frame leaves its host.
    pub(super) fn on_left(&mut self, frame: u32, now_ps: u64) {
        if let Some(segment) = self.segments.get_mut(frame as usize)
            && segment.kind == Kind::Data
        {
            segment.sent_ps = now_ps;
        }
    }

    /// Returns the index of the connection from a host to another, and creates it if needed.
    /// `line_bps` is the rate of the source's cable, in bits per second.
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

    /// Returns the receiving end of a connection.
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

    /// Queues a connection for its turn, if it may send now and is not queued yet. Returns whether
    /// it was queued.
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

    /// Returns whether connections of a host wait for their turn.
    fn has_ready(&self, host: u32) -> bool {
        let at = host as usize * self.classes;
        self.rings[at..at + self.classes].iter().any(|ring| ring.first != NONE)
    }

    /// Removes and returns the next connection of a host and class. Skips connections that can no
    /// longer send, because nothing is left to retransmit or because the window has shrunk.
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

/// Returns whether a sequence number is before another, if they are less than 2^31 apart.
const fn is_before(number: u32, other: u32) -> bool {
    number.wrapping_sub(other).cast_signed() < 0
}

pub(super) use hosts::{NO_MESSAGE, TRANSPORT};

/// Marks the end of a ring.
const NONE: u32 = u32::MAX;
