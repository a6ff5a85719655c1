//! Transport of hosts: connections with numbered frames. Receivers acknowledge the frames. Senders
//! retransmit lost frames, and a window limits the frames in flight.
//!
//! A connection carries all messages of one class from one host to another. Frame numbers continue
//! from one message to the next. The receiver answers each frame with an acknowledgement frame. The
//! acknowledgement contains the next expected frame, the transmission that it answers, whether that
//! transmission was marked, and when the sender sent it. The sender therefore knows losses and
//! round trips exactly. When the link of a host is free, the host's connections send one frame
//! each, one connection after the other. The simulator does not allocate memory per frame: tables
//! grow to the largest number of frames in flight.
//!
//! In the model, the network card executes the transport, so the transport costs no processor time.

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
    /// Rule that determines which frames a sender retransmits after a loss.
    pub recovery: Recovery,
    /// Rule that determines the window.
    pub congestion: Congestion,
    /// Maximum number of frames in flight per connection, 1 or more.
    pub window_frames: u32,
    /// Window of a new connection, in frames. Not used if the window is fixed.
    pub initial_window_frames: u32,
    /// Payload of an acknowledgement, in bytes. Its frame has the length of a data frame with this
    /// payload.
    pub ack_bytes: u32,
    /// Minimum retransmission timeout, in picoseconds. The timeout expires if no new frame is
    /// acknowledged for this time. Longer round trips make the timeout longer (RFC 6298). Each
    /// consecutive expiry doubles the timeout.
    pub timeout_ps: u64,
    /// Loss threshold, 1 or more (RFC 9002, 6.1.1). Suppose that a later frame is acknowledged
    /// before an earlier frame. The sender declares the earlier frame lost if the later frame was
    /// sent at least this number of frames after it.
    pub loss_threshold_frames: u32,
    /// Random losses, in frames per million.
    pub loss_ppm: u32,
}

/// Rule that determines which frames a sender retransmits after a loss.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Recovery {
    /// The sender retransmits all frames from the lost frame on. Receivers discard frames out of
    /// order, as RoCE v2 adapters do.
    GoBackN,
    /// The sender retransmits only the lost frame. Receivers store frames that arrive out of order,
    /// as in IRN (SIGCOMM 2018).
    SelectiveRepeat,
}

/// Rule that determines the window.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Congestion {
    /// The window is fixed.
    Fixed,
    /// The fraction of marked frames determines the window: DCTCP (SIGCOMM 2010, RFC 8257).
    Dctcp {
        /// Weight g of the latest window in the estimated fraction, per million.
        gain_ppm: u32,
    },
    /// Round-trip times determine the window, as in Swift (SIGCOMM 2020).
    Delay {
        /// Target round-trip time, in picoseconds.
        target_ps: u64,
        /// Addition to the target if the window is one frame, in picoseconds (flow scaling). If the
        /// window is 100 frames or more, the addition is 0. Between these two windows, the addition
        /// is linear in 1 / √window.
        scaling_ps: u64,
        /// Decrease factor β, in percent. The relative decrease of the window is β × (excess of the
        /// round trip over the target) / round trip.
        beta_percent: u32,
        /// Maximum decrease of the window in one step, in percent of the window.
        decrease_max_percent: u32,
    },
    /// Congestion notifications determine a rate: DCQCN (SIGCOMM 2015). Receivers send these
    /// notifications when marked frames arrive. The window is fixed.
    Dcqcn(DcqcnConfiguration),
}

impl Congestion {
    /// Returns whether the window is fixed.
    pub(super) const fn has_fixed_window(&self) -> bool {
        matches!(self, Self::Fixed | Self::Dcqcn(_))
    }
}

/// Sums of the transport counters of all hosts.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TransportCounts {
    /// Number of connections that sent data.
    pub connections: u64,
    /// Number of data frames sent, including retransmissions.
    pub data_frames: u64,
    /// Payload of the data frames, in bytes.
    pub payload_bytes: u64,
    /// Number of data frames retransmitted.
    pub retransmitted_frames: u64,
    /// Number of retransmission timeouts.
    pub timeouts: u64,
    /// Number of acknowledgements received.
    pub acknowledgements: u64,
    /// Number of acknowledgements received that report a mark.
    pub marked: u64,
    /// Number of frames of all kinds lost at random.
    pub frames_lost_at_random: u64,
    /// Number of data frames received more than once.
    pub duplicate_frames: u64,
    /// Number of data frames that arrived out of order and were discarded.
    pub discarded_frames: u64,
    /// Number of congestion notifications received (DCQCN).
    pub notifications: u64,
    /// Whether receivers control sending, as in Homa. Such a transport has no windows and measures
    /// no round trips.
    pub is_receiver_driven: bool,
    /// Number of grants received (Homa).
    pub grants: u64,
    /// Number of requests for retransmission received (Homa).
    pub resends: u64,
    /// Longest round trip, in picoseconds.
    pub round_trip_max_ps: u64,
    round_trips_ps: u64,
    /// Sum of window samples, in 1/256 frames. Each arriving acknowledgement adds the window that
    /// its connection then has.
    windows_256ths: u64,
    /// Sum of rate samples, in 10^6 bits per second. Each arriving acknowledgement adds the rate
    /// that its connection then has.
    rates_mbps: u64,
}

impl TransportCounts {
    /// Returns the rate at which hosts sent payload, in bits per second, including retransmissions.
    /// The run lasted `completed_ps` picoseconds.
    pub fn throughput_bps(&self, completed_ps: u64) -> f64 {
        self.payload_bytes as f64 * 8e12 / completed_ps.max(1) as f64
    }

    /// Returns the mean window, in frames. The window is sampled when an acknowledgement arrives.
    pub fn window_frames(&self) -> f64 {
        self.windows_256ths as f64 / 256.0 / self.acknowledgements.max(1) as f64
    }

    /// Returns the mean rate of a connection, in bits per second. The rate is sampled when an
    /// acknowledgement arrives. Returns `None` if connections have no rates.
    pub fn rate_bps(&self) -> Option<f64> {
        let mean_mbps = self.rates_mbps as f64 / self.acknowledgements.max(1) as f64;
        (self.rates_mbps > 0).then_some(mean_mbps * 1e6)
    }

    /// Returns the mean round trip, in picoseconds.
    pub fn round_trip_ps(&self) -> f64 {
        self.round_trips_ps as f64 / self.acknowledgements.max(1) as f64
    }

    /// Returns the number of acknowledgements that report a mark, in percent of all
    /// acknowledgements.
    pub fn marked_percent(&self) -> f64 {
        self.marked as f64 * 100.0 / self.acknowledgements.max(1) as f64
    }

    /// Returns the number of retransmitted data frames, in percent of all data frames.
    pub fn retransmitted_percent(&self) -> f64 {
        self.retransmitted_frames as f64 * 100.0 / self.data_frames.max(1) as f64
    }

    /// Returns counters of 0 for a receiver-driven transport.
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
    /// Index of the connection in the sender's part of the network.
    connection: u32,
    /// Host that sends the connection's data.
    source: u32,
    /// Number of the data frame, or of the frame that an acknowledgement answers.
    sequence: u32,
    /// In an acknowledgement, the number of the first data frame that is missing.
    expected: u32,
    /// Number of the transmission within its connection. An acknowledgement has the number of the
    /// transmission that it answers.
    transmission: u32,
    /// Time when the data frame left its host, in picoseconds.
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
    /// Reports that marked frames have arrived (DCQCN).
    Notification,
}

const _: () = assert!(size_of::<Segment>() <= 32);

/// The connections of all hosts of a network, or of all hosts in one part of a divided network.
#[derive(Clone, Debug)]
pub(super) struct Transport {
    configuration: TransportConfiguration,
    classes: usize,
    /// Index of a connection in `senders`, by source, destination and class.
    places: BTreeMap<(u32, u32, u8), u32>,
    senders: Vec<Sender>,
    /// Receiving ends of connections, by the sender's part and the connection's index in that part.
    receivers: Vec<Vec<Receiver>>,
    /// For each host and class, the connections that wait for their turn to send.
    rings: Vec<Ring>,
    /// For each host, the time of its next check for frames to send; [`u64::MAX`] if none is
    /// scheduled.
    pulls_ps: Vec<u64>,
    /// Transport header of each frame.
    segments: Vec<Segment>,
    counts: TransportCounts,
}

/// A linked list of connections. Each connection contains the index of the next connection in the
/// list.
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

    /// Adds the counters of another part of a divided network.
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

    /// Records the time when a data frame leaves its host.
    pub(super) fn on_left(&mut self, frame: u32, now_ps: u64) {
        if let Some(segment) = self.segments.get_mut(frame as usize)
            && segment.kind == Kind::Data
        {
            segment.sent_ps = now_ps;
        }
    }

    /// Returns the index of the connection from one host to another; creates the connection if
    /// needed. `line_bps` is the rate of the source's cable, in bits per second.
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

    /// Queues a connection for its turn, if the connection may send now and is not queued yet.
    /// Returns whether this call queued it.
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

    /// Returns whether any connection of a host waits for its turn.
    fn has_ready(&self, host: u32) -> bool {
        let at = host as usize * self.classes;
        self.rings[at..at + self.classes].iter().any(|ring| ring.first != NONE)
    }

    /// Removes and returns the next connection of a host and class that may send. Skips connections
    /// that may no longer send, because their window has shrunk or they have nothing left to
    /// retransmit.
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

/// Returns whether a sequence number is before another. The numbers must be less than 2^31 apart.
const fn is_before(number: u32, other: u32) -> bool {
    number.wrapping_sub(other).cast_signed() < 0
}

pub(super) use hosts::{NO_MESSAGE, TRANSPORT};

/// Index that marks the end of a linked list of connections.
const NONE: u32 = u32::MAX;
