//! A ping-pong on one of the many connections of an endpoint, alternating with a ping-pong on the
//! only connection of another endpoint. The difference between their latencies is the cost of many
//! idle connections.

use std::sync::atomic::{AtomicU64, Ordering};

use ethernot::{Connection, PeerSpec};

use crate::cpu;
use crate::transport::{
    Advertisement, ClientSide, Latencies, Observed, Phase, ServerSide, Setup, TransportError,
    counter,
};

/// The side that accepts connections and answers.
pub(super) struct Server {
    crowd: super::Server,
    alone: super::Server,
    idle: Idle,
}

impl Server {
    pub(super) fn listen(setup: &Setup) -> Result<Self, TransportError> {
        Ok(Self {
            crowd: super::Server::listen(setup, super::Rules::Own)?,
            alone: super::Server::listen(setup, super::Rules::Own)?,
            idle: Idle::new(setup),
        })
    }
}

impl ServerSide for Server {
    fn advertisement(&self) -> Advertisement {
        let mut advertisement = self.crowd.advertisement();
        let alone = super::listed(&self.alone.peers());
        advertisement.parameters.insert(ALONE.to_string(), alone);
        advertisement
    }

    fn accept(&mut self) -> Result<(), TransportError> {
        self.crowd.accept()?;
        self.alone.accept()?;
        self.idle.make(|| self.crowd.accept_one())
    }

    fn run(&mut self, phase: Phase) -> Result<Observed, TransportError> {
        for operation in 0..phase.operations {
            match turn(operation) {
                ActiveGroup::Crowd => self.crowd.answer()?,
                ActiveGroup::Alone => self.alone.answer()?,
            }
        }
        let mut observed = self.crowd.half.observed(&self.crowd.endpoint)?;
        let bytes = counter::BYTES_PER_IDLE_CONNECTION.to_string();
        observed.counters.insert(bytes, self.idle.bytes_each(&AT_SERVER));
        Ok(observed)
    }
}

/// The side that connects and sends the first message.
pub(super) struct Client {
    crowd: super::Client,
    alone: super::Client,
    idle: Idle,
    alone_latencies: Latencies,
}

impl Client {
    pub(super) fn connect(
        setup: &Setup,
        advertisement: &Advertisement,
    ) -> Result<Self, TransportError> {
        let alone = advertisement.parameters.get(ALONE).map_or("", String::as_str);
        let alone = PeerSpec::parse_list(alone)
            .map_err(|_| TransportError::Advertisement { what: ALONE })?;
        let mut client = Self {
            crowd: super::Client::new(setup, super::peers_of(advertisement)?, super::Rules::Own)?,
            alone: super::Client::new(setup, alone, super::Rules::Own)?,
            idle: Idle::new(setup),
            alone_latencies: Latencies::new(),
        };
        client.crowd.connect()?;
        client.alone.connect()?;
        client.idle.make(|| client.crowd.connect_one())?;
        Ok(client)
    }
}

impl ClientSide for Client {
    fn run(&mut self, phase: Phase, latencies: &mut Latencies) -> Result<Observed, TransportError> {
        self.alone_latencies.clear();
        for operation in 0..phase.operations {
            match turn(operation) {
                ActiveGroup::Crowd => self.crowd.round_trip(latencies)?,
                ActiveGroup::Alone => self.alone.round_trip(&mut self.alone_latencies)?,
            }
        }
        let mut observed = self.crowd.half.observed(&self.crowd.endpoint)?;
        let bytes = counter::CLIENT_BYTES_PER_IDLE_CONNECTION.to_string();
        observed.counters.insert(bytes, self.idle.bytes_each(&AT_CLIENT));
        if let (Some(crowd), Some(alone)) = (latencies.summary(), self.alone_latencies.summary()) {
            observed.counters.insert(counter::SLOWDOWN.to_string(), crowd.p50 / alone.p50);
        }
        Ok(observed)
    }
}

/// Idle connections.
struct Idle {
    wanted: u32,
    connections: Vec<Connection>,
    /// Growth of the process's memory while the connections were opened, in bytes.
    grown_bytes: u64,
}

impl Idle {
    fn new(setup: &Setup) -> Self {
        let wanted = setup.connections.saturating_sub(1);
        Self { wanted, connections: Vec::new(), grown_bytes: 0 }
    }

    fn make(
        &mut self,
        one: impl Fn() -> Result<Connection, TransportError>,
    ) -> Result<(), TransportError> {
        let before = cpu::resident_bytes();
        for _ in 0..self.wanted {
            self.connections.push(one()?);
        }
        self.grown_bytes = cpu::resident_bytes().saturating_sub(before);
        Ok(())
    }

    /// Returns the memory per connection, including all memory that the process allocates for it.
    /// `most` contains the largest growth in all samples of this process. The result is computed
    /// from the largest growth, because a later sample reuses memory that an earlier sample has
    /// freed, so that the process grows less.
    fn bytes_each(&self, most: &AtomicU64) -> f64 {
        let seen = most.fetch_max(self.grown_bytes, Ordering::Relaxed);
        seen.max(self.grown_bytes) as f64 / f64::from(self.wanted.max(1))
    }
}

/// The endpoint whose connection performs the next operation.
enum ActiveGroup {
    Crowd,
    Alone,
}

/// Returns the endpoint that performs operation number `operation`. Both ends compute the same
/// result. Operations alternate in blocks, so that most operations of a block run in a steady
/// state.
fn turn(operation: u64) -> ActiveGroup {
    if (operation / BLOCK_OPERATIONS).is_multiple_of(2) {
        ActiveGroup::Crowd
    } else {
        ActiveGroup::Alone
    }
}

/// A block takes two or three milliseconds. This is short compared with changes of the machine's
/// speed, and long compared with the first round trips of a block.
const BLOCK_OPERATIONS: u64 = 256;

/// Parameter with the addresses of the endpoint with one connection.
const ALONE: &str = "alone";

static AT_SERVER: AtomicU64 = AtomicU64::new(0);
static AT_CLIENT: AtomicU64 = AtomicU64::new(0);
