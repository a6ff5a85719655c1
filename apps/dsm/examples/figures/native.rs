//! A connection between ranks 0 and 1 beside the shared memory, on the same links and with the same
//! polling.

use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dsm::Dsm;
use ethernot::{
    Buffer, Connection, Endpoint, MemoryRegion, OperationOptions, Polling, RemoteRegion, Rights,
};

/// One of the two ends.
pub(super) struct Native {
    endpoint: Endpoint,
    connection: Connection,
    memory: Arc<Buffer>,
    region: MemoryRegion,
    peer: RemoteRegion,
}

/// Bytes of the memory of each end.
const BYTES: u64 = 1 << 20;

const LIMIT: Option<Duration> = Some(Duration::from_secs(20));

/// Longest text of an address.
const ADDRESS_BYTES: usize = 64;

impl Native {
    /// Connects rank 1 to rank 0. Returns `None` on other ranks. All ranks must call it.
    pub(super) fn connect(dsm: &Dsm) -> Result<Option<Self>, Box<dyn Error>> {
        let address = dsm.alloc::<u8>(ADDRESS_BYTES)?;
        if dsm.rank() > 1 {
            dsm.barrier()?;
            return Ok(None);
        }
        // As the ranks do.
        let awake = Polling::for_at_most(Duration::from_micros(50));
        let endpoint = Endpoint::builder().polling(awake).shared_memory(true).build()?;
        let memory = Buffer::new(BYTES);
        let region = endpoint.register(Arc::clone(&memory), Rights::ALL)?;
        let own = region.remote().to_bytes();
        let connection = if dsm.rank() == 0 {
            let listener = endpoint.listen(0)?;
            let text = endpoint.local_addresses()?.first().ok_or("no address")?.to_string();
            for (index, byte) in text.bytes().enumerate() {
                address.set(index, byte);
            }
            dsm.barrier()?;
            let request = listener.accept(LIMIT)?;
            let peer = request.private_data().to_vec();
            let connection = request.accept(&own)?;
            let peer = RemoteRegion::from_bytes(&peer)?;
            return Ok(Some(Self { endpoint, connection, memory, region, peer }));
        } else {
            dsm.barrier()?;
            let bytes = (0..ADDRESS_BYTES).map(|index| address.get(index));
            let text: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
            let peer: SocketAddr = String::from_utf8(text)?.parse()?;
            let options = ethernot::ConnectOptions::new().private_data(own).limit(LIMIT);
            endpoint.connect_with(peer, options)?
        };
        let peer = RemoteRegion::from_bytes(&connection.peer_data())?;
        Ok(Some(Self { endpoint, connection, memory, region, peer }))
    }

    /// Returns the nanoseconds of a read of 4 KiB of the other end, which polls.
    pub(super) fn time_of_read(&self, index: u64) -> Result<f64, Box<dyn Error>> {
        let offset = index * 4096 % BYTES;
        let begin = Instant::now();
        let (region, peer) = (&self.region, &self.peer);
        self.connection
            .read(region, offset, peer, offset, 4096, OperationOptions::NONE)?
            .wait(LIMIT)?;
        Ok(begin.elapsed().as_nanos() as f64)
    }

    /// Lets writes of 8 bytes go back and forth. Both ends must call it with the same numbers, which
    /// are larger than those of earlier calls. Returns the nanoseconds of one way.
    pub(super) fn one_way_time(
        &self,
        is_first: bool,
        numbers: std::ops::Range<u64>,
    ) -> Result<f64, Box<dyn Error>> {
        let count = (numbers.end - numbers.start) as f64;
        let write = |number: u64| {
            let bytes = number.to_le_bytes();
            self.connection.write_bytes(&bytes, &self.peer, 0, OperationOptions::NONE).map(drop)
        };
        let begin = Instant::now();
        for number in numbers {
            if is_first {
                write(number)?;
            }
            while self.memory.load_u64(0) != number {
                if self.connection.closed().is_some() {
                    return Err("the native connection has ended".into());
                }
                self.endpoint.poll(self.connection.queue())?;
            }
            if !is_first {
                write(number)?;
            }
        }
        Ok(begin.elapsed().as_nanos() as f64 / count / 2.0)
    }
}
