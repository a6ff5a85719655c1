//! Measures the cost of a small message: two endpoints on one thread alternately write 8 bytes to
//! each other.
//!
//! The purpose of the program is to count instructions, because their number does not depend on the
//! load of the host. With a processor for each endpoint, the exchange would be faster, but less
//! repeatable. Compile the program crate by crate. If all crates are compiled as one unit,
//! callgrind does not find the function that it measures (`exchange_all`):
//! ```sh
//! cargo build --release -p ethernot --example message_cost
//! valgrind --tool=callgrind --collect-atstart=no --toggle-collect='*exchange*' \
//!     target/release/examples/message_cost shm 10000 slow
//! ```
//!
//! Arguments:
//! * the link: `shm`, `udp`, a name for both endpoints such as `packet:lo`, or a name for each
//!   endpoint such as `packet:veth0+packet:veth1`;
//! * the number of round trips;
//! * `slow`, if the program runs under callgrind or a similar tool. Such a tool slows the program
//!   so much that every acknowledgement would be due before the answer is sent. With `slow`,
//!   acknowledgements may wait a thousand times as long.
#![expect(clippy::disallowed_methods, reason = "measures time")]

use std::error::Error;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ethernot::{
    Buffer, CompletionQueue, ConnectOptions, Connection, Endpoint, EngineConfig, LinkState,
    Operation, OperationFlags, Order, PeerSpec, Polling, RemoteRegion, Request, Rights, Source,
};

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let link = arguments.next().unwrap_or_else(|| "shm".to_owned());
    let rounds = arguments.next().map_or(Ok(200_000), |rounds| rounds.parse())?;
    let factor = if arguments.next().as_deref() == Some("slow") { SLOW } else { 1 };
    let sides = connect(&link, factor)?;
    await_links(&sides, if link == "shm" { 2 } else { 1 })?;
    exchange_all(&sides, 0, WARM_UP)?;
    let frames = sides.each_ref().map(Side::frames);
    let started = Instant::now();
    exchange_all(&sides, WARM_UP, rounds)?;
    let took = started.elapsed();
    let messages = 2 * rounds;
    println!("{} ns a message", took.as_nanos() / u128::from(messages));
    for (side, before) in sides.iter().zip(frames) {
        let (data, acknowledgements) = side.frames();
        println!(
            "{} data frames, {} acknowledgement frames for {rounds} messages",
            data - before.0,
            acknowledgements - before.1
        );
    }
    Ok(())
}

/// One endpoint of the exchange.
struct Side {
    endpoint: Endpoint,
    connection: Connection,
    buffer: Arc<Buffer>,
    write: Operation,
}

impl Side {
    /// Returns two numbers: data frames sent, and frames sent that contain only an acknowledgement.
    fn frames(&self) -> (u64, u64) {
        let info = self.connection.info().ok().flatten();
        let paths = info.iter().flat_map(|info| &info.paths);
        paths.fold((0, 0), |(data, acknowledgements), path| {
            let counters = &path.counters;
            (data + counters.data_frames_sent, acknowledgements + counters.explicit_acks_sent)
        })
    }
}

/// Exchanges all messages. This function is not inlined, so that counting tools find it.
#[inline(never)]
fn exchange_all(sides: &[Side; 2], before: u64, rounds: u64) -> Result<(), Failure> {
    let [left, right] = sides;
    for round in before + 1..=before + rounds {
        pass(left, right, round)?;
        pass(right, left, round)?;
    }
    Ok(())
}

/// Passes one message. Returns when its bytes are visible at the receiver.
#[inline]
fn pass(from: &Side, to: &Side, round: u64) -> Result<(), Failure> {
    from.buffer.store_u64(WORD_BYTES, round);
    from.connection.post(&from.write)?;
    while to.buffer.load_u64(0) != round {
        to.endpoint.drive()?;
    }
    Ok(())
}

fn connect(link: &str, factor: u32) -> Result<[Side; 2], Failure> {
    let (server_link, client_link) = link.split_once('+').unwrap_or((link, link));
    let (server, server_memory) = endpoint(server_link, factor)?;
    let (client, client_memory) = endpoint(client_link, factor)?;
    let listener = server.listen(SERVICE)?;
    let addresses = server.links()?.into_iter();
    let peers: Vec<_> =
        addresses.filter_map(|(_, address)| PeerSpec::of_address(address)).collect();
    let (accepted, connected) = thread::scope(|scope| {
        let accepted = scope.spawn(|| -> Result<Connection, Failure> {
            let request = listener.accept(Some(LIMIT))?;
            Ok(request.accept_with(server_memory.options())?)
        });
        let connected = client.connect_with(peers.as_slice(), client_memory.options());
        (accepted.join(), connected)
    });
    let accepted = accepted.map_err(|_panic| "accepting has panicked")??;
    Ok([client_memory.side(client, connected?)?, server_memory.side(server, accepted)?])
}

/// The memory of an endpoint before it is connected.
struct Memory {
    buffer: Arc<Buffer>,
    region: ethernot::MemoryRegion,
    queue: Arc<CompletionQueue>,
}

impl Memory {
    fn options(&self) -> ConnectOptions {
        ConnectOptions::new()
            .service(SERVICE)
            .private_data(self.region.remote().to_bytes())
            .queue(Arc::clone(&self.queue))
    }

    fn side(self, endpoint: Endpoint, connection: Connection) -> Result<Side, Failure> {
        let remote = RemoteRegion::from_bytes(&connection.peer_data())?;
        let source = Source::Region { region: self.region.region().id, offset: WORD_BYTES };
        let write = Operation {
            request: Request::Write { source, key: remote.key, address: remote.address },
            length: WORD_BYTES as u32,
            flags: OperationFlags { order: Order::Strict, ..OperationFlags::default() },
            immediate: None,
            context: 0,
            status: None,
        };
        // Keep the region registered until the program ends.
        std::mem::forget(self.region);
        Ok(Side { endpoint, connection, buffer: self.buffer, write })
    }
}

fn endpoint(link: &str, factor: u32) -> Result<(Endpoint, Memory), Failure> {
    let mut engine = EngineConfig::default();
    engine.acknowledgement.ack_delay_ns *= factor;
    let builder = Endpoint::builder().engine(engine).polling(Polling::ALWAYS);
    let endpoint = match link {
        "shm" => builder.bind("127.0.0.1:0").shared_memory(true),
        "udp" => builder.bind("127.0.0.1:0"),
        name => builder.links(name),
    }
    .build()?;
    let buffer = Buffer::new(2 * WORD_BYTES);
    let region = endpoint.register(Arc::clone(&buffer), Rights::REMOTE_WRITE)?;
    let queue = Arc::new(CompletionQueue::new(QUEUE_ENTRIES));
    Ok((endpoint, Memory { buffer, region, queue }))
}

/// Waits until `links` links carry data in both directions.
fn await_links(sides: &[Side; 2], links: usize) -> Result<(), Failure> {
    let started = Instant::now();
    while started.elapsed() < LIMIT {
        let mut ready = 0;
        for side in sides {
            side.endpoint.drive()?;
            let info = side.connection.info()?.ok_or("the connection has ended")?;
            let up = info.paths.iter().filter(|path| path.state == LinkState::Up);
            ready += usize::from(up.count() >= links);
        }
        if ready == sides.len() {
            return Ok(());
        }
    }
    Err("the links do not come up".into())
}

/// Length of a polled word in bytes.
const WORD_BYTES: u64 = 8;
/// Number of round trips before the measured round trips.
const WARM_UP: u64 = 2000;
/// Factor by which a tool that counts instructions slows the program.
const SLOW: u32 = 1000;
const SERVICE: u32 = 0;
const QUEUE_ENTRIES: usize = 64;
const LIMIT: Duration = Duration::from_secs(20);
