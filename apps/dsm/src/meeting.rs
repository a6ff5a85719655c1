//! How the ranks find and connect to each other.
//!
//! Rank 0 listens at an address that all ranks know. Each other rank connects to it, and then gets a
//! table with the addresses of all ranks. After that each rank connects to those below it.
//!
//! The rank that accepts a connection sends the first message. Without this message, the other rank
//! could keep a dead connection: if its confirmation is late, the accepting rank forgets the
//! connection and waits for a new request.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ethernot::{
    CompletionQueue, ConnectError, ConnectOptions, Connection, ConnectionRequest, Endpoint, Grants,
    Listener, OperationError, OperationFailure, OperationOptions, Polling, PostError, RejectReason,
    Terms, WaitError,
};

use crate::error::Error;
use crate::greeting::{Greeting, GreetingError, parse_table};

/// A rank's place in the program.
#[derive(Clone, Debug)]
pub(crate) struct Seat {
    pub(crate) rank: usize,
    pub(crate) size: usize,
    /// The address of rank 0.
    pub(crate) meet: String,
}

/// A peer that is connected.
pub(crate) struct Met {
    pub(crate) connection: Connection,
    pub(crate) greeting: Greeting,
}

/// Makes the endpoint of a rank. On the loopback interface it has one link, otherwise one for each
/// interface; those of rank 0 have the port at which the ranks meet.
pub(crate) fn open(seat: &Seat) -> Result<Endpoint, Error> {
    let is_loopback = seat.meet.starts_with("127.") || seat.meet.starts_with("localhost");
    let port = seat.meet.rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let build = |shared_memory| {
        let builder = Endpoint::builder().polling(Polling::for_at_most(AWAKE));
        // The rank has a progress thread of its own. A second one would wake up beside each thread
        // that waits in a call.
        let builder = builder.shared_memory(shared_memory).progress_thread(false);
        match (seat.rank, is_loopback, port) {
            (0, false, Some(port)) => builder.port(port).build(),
            (0, _, _) => builder.bind(seat.meet.clone()).build(),
            (_, true, _) => builder.bind("127.0.0.1:0").build(),
            (_, false, _) => builder.build(),
        }
    };
    // A host without shared memory has other links.
    build(true).or_else(|_| build(false)).map_err(Error::network(format!(
        "open the links of rank {} (meeting at {})",
        seat.rank, seat.meet
    )))
}

/// Connects a rank to all others. Returns them by their ranks.
pub(crate) fn meet(
    endpoint: &Endpoint,
    queue: &Arc<CompletionQueue>,
    seat: &Seat,
    greeting: &Greeting,
    limit: Duration,
) -> Result<BTreeMap<usize, Met>, Error> {
    if seat.size == 1 {
        return Ok(BTreeMap::new());
    }
    let listener = endpoint.listen(SERVICE).map_err(Error::network("listen for ranks"))?;
    let deadline = Instant::now() + limit;
    let meeting = Meeting { endpoint, queue, seat, greeting, limit, deadline, listener };
    if seat.rank == 0 { meeting.host() } else { meeting.visit() }
}

struct Meeting<'a> {
    endpoint: &'a Endpoint,
    queue: &'a Arc<CompletionQueue>,
    seat: &'a Seat,
    greeting: &'a Greeting,
    limit: Duration,
    deadline: Instant,
    listener: Listener,
}

impl Meeting<'_> {
    /// Meets the others as rank 0.
    fn host(&self) -> Result<BTreeMap<usize, Met>, Error> {
        let mut met = BTreeMap::new();
        let mut addresses = BTreeMap::new();
        while met.len() + 1 < self.seat.size {
            let (rank, address, peer) = self.accept(&met, 1)?;
            addresses.insert(rank, address);
            met.insert(rank, peer);
        }
        let lines = addresses.iter().map(|(rank, address)| format!("{rank} {address}\n"));
        let table = lines.collect::<Vec<_>>().concat();
        for (rank, peer) in &met {
            let step = || Error::network(format!("send the table of addresses to rank {rank}"));
            let sent = peer.connection.send_message(table.as_bytes(), OperationOptions::NONE);
            let sent = sent.map_err(step())?;
            sent.wait(Some(self.left()))
                .map_err(Error::network(format!("send the table of addresses to rank {rank}")))?;
        }
        Ok(met)
    }

    /// Meets the others as a rank above 0.
    fn visit(&self) -> Result<BTreeMap<usize, Met>, Error> {
        let (first, table) = self.join(0, &self.seat.meet)?;
        let addresses = parse_table(&String::from_utf8_lossy(&table));
        let mut met = BTreeMap::from([(0, first)]);
        for rank in 1..self.seat.rank {
            let address = addresses.get(&rank);
            let address = address.ok_or_else(|| self.missing(vec![rank], None))?;
            let (peer, _welcome) = self.join(rank, &address.to_string())?;
            met.insert(rank, peer);
        }
        while met.len() + 1 < self.seat.size {
            let (rank, peer) = self.welcome(&met)?;
            met.insert(rank, peer);
        }
        Ok(met)
    }

    /// Accepts a rank above this one, and sends it the message for which it waits.
    fn welcome(&self, met: &BTreeMap<usize, Met>) -> Result<(usize, Met), Error> {
        let (rank, _, peer) = self.accept(met, self.seat.rank + 1)?;
        // If this fails, the connection has ended, which is reported apart.
        let _ended = peer.connection.send_message(WELCOME, OperationOptions::NONE);
        Ok((rank, peer))
    }

    /// Connects to a rank below this one, and receives its first message. Connects again if that rank
    /// has forgotten the connection.
    fn join(&self, rank: usize, address: &str) -> Result<(Met, Vec<u8>), Error> {
        loop {
            let peer = self.connect(rank, address)?;
            if let Some(message) = self.first_message(rank, &peer.connection)? {
                return Ok((peer, message));
            }
        }
    }

    /// Receives the first message of a rank. Returns `None` if the rank has forgotten the connection,
    /// because it got no confirmation in time.
    fn first_message(
        &self,
        rank: usize,
        connection: &Connection,
    ) -> Result<Option<Vec<u8>>, Error> {
        let step = format!("receive the first message of rank {rank}");
        let receive = match connection.receive_message(TABLE_BYTES_MAX) {
            Ok(receive) => receive,
            Err(PostError::Closed(ethernot::Closed::PeerRestarted)) => return Ok(None),
            Err(error) => return Err(Error::network(step)(error)),
        };
        match receive.wait(Some(self.left())) {
            Ok(message) => message.to_vec().map(Some).map_err(Error::network(step)),
            Err(OperationFailure::Failed(OperationError::PeerRestarted)) => Ok(None),
            Err(failure) => Err(self.silent(rank, failure)),
        }
    }

    /// Accepts a rank, which must be at least `lowest`.
    ///
    /// A process that gets no processor for half a second counts as silent. It tries again then, so
    /// this rank waits for it as before.
    fn accept(
        &self,
        met: &BTreeMap<usize, Met>,
        lowest: usize,
    ) -> Result<(usize, SocketAddr, Met), Error> {
        loop {
            let request = self.request(met, lowest)?;
            if let Some(accepted) = self.answer(request, met, lowest)? {
                return Ok(accepted);
            }
        }
    }

    /// Waits until a rank asks to be met.
    fn request(
        &self,
        met: &BTreeMap<usize, Met>,
        lowest: usize,
    ) -> Result<ConnectionRequest, Error> {
        match self.listener.accept(Some(self.left())) {
            Ok(request) => Ok(request),
            Err(WaitError::TimedOut { .. }) => {
                let is_missing = |rank: &usize| !met.contains_key(rank);
                let ranks = (lowest..self.seat.size).filter(is_missing).collect();
                Err(self.missing(ranks, None))
            }
            Err(error) => Err(Error::network("wait for ranks")(error)),
        }
    }

    /// Answers the request of a rank. Returns `None` if the connection has ended before it was
    /// established.
    fn answer(
        &self,
        request: ConnectionRequest,
        met: &BTreeMap<usize, Met>,
        lowest: usize,
    ) -> Result<Option<(usize, SocketAddr, Met)>, Error> {
        let greeting = match Greeting::from_bytes(request.private_data()) {
            Ok(greeting) => greeting,
            Err(error) => return Err(refuse(request, &error.to_string())),
        };
        let rank = greeting.rank as usize;
        if let Some(reason) = greeting.refusal(self.greeting.settings) {
            return Err(refuse(request, &reason));
        }
        // A process that was met may not know it, and tries again.
        let is_other = |met: &Met| met.greeting.place() != greeting.place();
        if met.get(&rank).is_some_and(is_other) || rank < lowest {
            let reason = format!("there are two processes with rank {rank}; give each its own");
            return Err(refuse(request, &reason));
        }
        let address = request.peer().to_socket();
        let address = address.ok_or_else(|| self.missing(vec![rank], None))?;
        let accepted = request.accept_with(self.options());
        Ok(accepted.ok().map(|connection| (rank, address, Met { connection, greeting })))
    }

    /// Connects to a rank, and tries again while it is not there yet.
    fn connect(&self, rank: usize, address: &str) -> Result<Met, Error> {
        loop {
            let error = match self.endpoint.connect_with(address, self.options()) {
                Ok(connection) => {
                    let greeting = Greeting::from_bytes(&connection.peer_data());
                    let refused =
                        |error: GreetingError| Error::Refused { rank, reason: error.to_string() };
                    let greeting = greeting.map_err(refused)?;
                    return Ok(Met { connection, greeting });
                }
                Err(error) => error,
            };
            match error {
                ConnectError::Closed {
                    reason: ethernot::Closed::Rejected(RejectReason::Application),
                    private_data,
                    ..
                } if !private_data.is_empty() => {
                    let reason = String::from_utf8_lossy(&private_data).into_owned();
                    return Err(Error::Refused { rank, reason });
                }
                error @ (ConnectError::Closed { .. } | ConnectError::TimedOut { .. }) => {
                    if self.left().is_zero() {
                        return Err(self.missing(vec![rank], Some(error.to_string())));
                    }
                    thread::sleep(PAUSE);
                }
                other => return Err(Error::network(format!("connect to rank {rank}"))(other)),
            }
        }
    }

    fn options(&self) -> ConnectOptions {
        let grants =
            Grants::default().keep_alive_ns(Some(KEEP_ALIVE_NS)).silence_ns(Some(SILENCE_NS));
        ConnectOptions::new()
            .service(SERVICE)
            .private_data(self.greeting.to_bytes())
            .queue(Arc::clone(self.queue))
            .limit(Some(self.left()))
            .terms(Terms::default().grants(grants))
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    fn missing(&self, ranks: Vec<usize>, cause: Option<String>) -> Error {
        let Seat { size, meet, .. } = self.seat.clone();
        Error::Missing { ranks, size, meet, limit: self.limit, cause }
    }

    /// Returns the error if a rank sends no first message: it waits for another rank, or has ended.
    fn silent(&self, rank: usize, failure: OperationFailure) -> Error {
        let step = if self.left().is_zero() {
            format!("wait until rank {rank} has met other ranks")
        } else {
            format!("rank {rank} has ended while it waited for the other ranks; see its output")
        };
        Error::network(step)(failure)
    }
}

/// Refuses a request, and returns the error of this rank.
fn refuse(request: ConnectionRequest, reason: &str) -> Error {
    let peer = request.peer();
    // If this fails, the peer has gone already.
    let _gone = request.reject(reason.as_bytes());
    Error::network(format!("the process at {peer} cannot join"))(reason.to_owned())
}

/// The number of the service at which ranks listen.
const SERVICE: u32 = 0x0044_534d;

/// How long the endpoint polls after a frame before its threads sleep.
pub(crate) const AWAKE: Duration = Duration::from_micros(50);

/// Pause between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(20);

/// Silence after which a rank is asked for a sign of life, and after which it counts as dead: 0.5 s
/// and 1.2 s, so that its death is known within 2 s.
const KEEP_ALIVE_NS: u64 = 500_000_000;
const SILENCE_NS: u64 = 1_200_000_000;

/// The first message of a rank above 0, which has no table.
const WELCOME: &[u8] = b"welcome";

/// Bytes of a table: 64 lines of a rank and an address.
const TABLE_BYTES_MAX: u32 = 64 * 64;

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use ethernot::{RemoteKey, RemoteRegion};

    use super::*;
    use crate::greeting::Settings;
    use crate::launch::free_meeting_place;
    use crate::network::PeerMemory;

    fn greeting(rank: usize) -> Greeting {
        let region = RemoteRegion { key: RemoteKey(0), address: 0, len: 0 };
        Greeting {
            rank: rank as u32,
            settings: Settings { size: 2, pages: 1, threads: 1, races: false },
            process: 7,
            memory: PeerMemory { frames: region, control: region, masters: None },
            host: "here".into(),
        }
    }

    /// Ends a thread when it is dropped.
    struct End<'a>(&'a AtomicBool);

    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    /// Does `work`, while another thread drives the endpoint, as the progress thread of a rank does
    /// after the meeting.
    fn driven(endpoint: &Endpoint, work: impl FnOnce()) {
        let has_ended = AtomicBool::new(false);
        thread::scope(|scope| {
            let _end = End(&has_ended);
            scope.spawn(|| {
                while !has_ended.load(Ordering::Relaxed) {
                    endpoint.drive().unwrap();
                }
            });
            work();
        });
    }

    #[test]
    fn a_rank_that_is_silent_when_it_is_accepted_is_met_when_it_tries_again() {
        let place = free_meeting_place().unwrap();
        let seat = |rank| Seat { rank, size: 2, meet: place.clone() };
        let queue = || Arc::new(CompletionQueue::new(64));
        let limit = Duration::from_mins(1);
        let first = open(&seat(0)).unwrap();
        // No thread drives this endpoint, so it sends its request and then nothing.
        let silent = Endpoint::builder().bind("127.0.0.1:0").progress_thread(false);
        let silent = silent.build().unwrap();
        let (queue_0, seat_0, greeting_0) = (queue(), seat(0), greeting(0));
        let meeting = Meeting {
            endpoint: &first,
            queue: &queue_0,
            seat: &seat_0,
            greeting: &greeting_0,
            limit,
            deadline: Instant::now() + limit,
            listener: first.listen(SERVICE).unwrap(),
        };
        let options = ConnectOptions::new().service(SERVICE).private_data(greeting(1).to_bytes());
        let _silent = silent.start_connect(place.as_str(), options).unwrap();
        // This sends the request, after which the endpoint sends nothing.
        let request = loop {
            assert!(silent.poll(&queue()).unwrap().is_none());
            match meeting.listener.accept(Some(Duration::from_millis(1))) {
                Err(WaitError::TimedOut { .. }) => {}
                request => break request.unwrap(),
            }
        };
        assert!(meeting.answer(request, &BTreeMap::new(), 1).unwrap().is_none());
        let second = open(&seat(1)).unwrap();
        let both = || {
            thread::scope(|scope| {
                let host = scope.spawn(|| meeting.host());
                let met = meet(&second, &queue(), &seat(1), &greeting(1), limit).unwrap();
                assert_eq!(met.keys().copied().collect::<Vec<_>>(), [0]);
                let met = host.join().unwrap().unwrap();
                assert_eq!(met.keys().copied().collect::<Vec<_>>(), [1]);
            });
        };
        driven(&first, || driven(&second, both));
    }

    #[test]
    fn a_process_with_another_version_is_refused_and_both_ends_name_both_versions() {
        let place = free_meeting_place().unwrap();
        let seat = Seat { rank: 0, size: 2, meet: place.clone() };
        let first = open(&seat).unwrap();
        let queue = Arc::new(CompletionQueue::new(64));
        let limit = Duration::from_mins(1);
        let mut data = greeting(1).to_bytes();
        // The version is behind the name of 7 bytes.
        data[7] = 9;
        thread::scope(|scope| {
            let host = scope.spawn(|| meet(&first, &queue, &seat, &greeting(0), limit).map(drop));
            let other = Endpoint::bind("127.0.0.1:0").unwrap();
            let refused = loop {
                let options = ConnectOptions::new().service(SERVICE).private_data(&data[..]);
                match other.connect_with(place.as_str(), options).unwrap_err() {
                    ConnectError::Closed { private_data, .. } if !private_data.is_empty() => {
                        break String::from_utf8(private_data).unwrap();
                    }
                    // The first rank does not listen yet.
                    ConnectError::Closed { .. } | ConnectError::TimedOut { .. } => {}
                    error => panic!("{error}"),
                }
            };
            let both = "it speaks version 9 of the shared memory, this rank version 1";
            assert!(refused.contains(both), "{refused}");
            let error = host.join().unwrap().unwrap_err().to_string();
            assert!(error.contains("cannot join") && error.contains(both), "{error}");
        });
    }

    #[test]
    fn a_rank_whose_confirmation_was_late_connects_again_to_a_rank_above_0() {
        let seat = |rank| Seat { rank, size: 3, meet: "127.0.0.1:9".into() };
        let greeting = |rank| {
            let settings = Settings { size: 3, ..greeting(rank).settings };
            Greeting { settings, ..greeting(rank) }
        };
        let (seats, greetings) = ([seat(1), seat(2)], [greeting(1), greeting(2)]);
        let queues = [0, 1].map(|_| Arc::new(CompletionQueue::new(64)));
        let first = open(&seats[0]).unwrap();
        // No thread drives this endpoint: it sends and receives only in calls.
        let second = Endpoint::builder().bind("127.0.0.1:0").progress_thread(false);
        let endpoints = [first, second.build().unwrap()];
        let limit = Duration::from_mins(1);
        let [first, second] = [0, 1].map(|index| Meeting {
            endpoint: &endpoints[index],
            queue: &queues[index],
            seat: &seats[index],
            greeting: &greetings[index],
            limit,
            deadline: Instant::now() + limit,
            listener: endpoints[index].listen(SERVICE).unwrap(),
        });
        let address = endpoints[0].local_addresses().unwrap()[0];
        let connecting = endpoints[1].start_connect(address, second.options()).unwrap();
        let request = loop {
            assert!(endpoints[1].poll(&queues[1]).unwrap().is_none());
            match first.listener.accept(Some(Duration::from_millis(1))) {
                Err(WaitError::TimedOut { .. }) => {}
                request => break request.unwrap(),
            }
        };
        // The endpoint sends no confirmation, so the first rank forgets the connection.
        assert!(first.answer(request, &BTreeMap::new(), 2).unwrap().is_none());
        // The acceptance has arrived meanwhile, so the connection looks established.
        let connection = connecting.wait(Some(limit)).unwrap();
        driven(&endpoints[0], || {
            // The first rank says that it has no such connection.
            assert_eq!(second.first_message(1, &connection).unwrap(), None);
            thread::scope(|scope| {
                let welcomed = scope.spawn(|| first.welcome(&BTreeMap::new()));
                let (peer, message) = second.join(1, &address.to_string()).unwrap();
                assert_eq!((peer.greeting.rank, &message[..]), (1, WELCOME));
                assert_eq!(welcomed.join().unwrap().unwrap().0, 2);
            });
        });
    }
}
