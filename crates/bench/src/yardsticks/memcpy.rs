//! The memory bandwidth of the host: one thread copies a message from one place to another.

use std::hint::black_box;

use crate::transport::{
    Advertisement, ClientSide, Latencies, Observed, Phase, ServerSide, Setup, Test, Transport,
    TransportError,
};
use crate::transports::MEMCPY;

/// Repeated `memcpy` of a message within the client's process.
///
/// The copy reads one buffer and writes another. Each buffer has the size of a message. A stream of
/// writes also reads one such buffer and writes another, so the copy and the stream use the caches
/// in the same way. The server does nothing.
#[derive(Debug, Clone, Copy)]
pub struct Memcpy;

impl Transport for Memcpy {
    fn name(&self) -> &'static str {
        MEMCPY
    }

    fn description(&self) -> &'static str {
        "yardstick: one thread copies from one buffer to another"
    }

    fn is_optional(&self) -> bool {
        true
    }

    fn supports(&self, test: Test, message_bytes: u64, _mtu: Option<u32>) -> bool {
        test == Test::OneWay && message_bytes > 0
    }

    fn listen(&self, _setup: &Setup) -> Result<Box<dyn ServerSide>, TransportError> {
        Ok(Box::new(Server))
    }

    fn connect(
        &self,
        setup: &Setup,
        _advertisement: &Advertisement,
    ) -> Result<Box<dyn ClientSide>, TransportError> {
        let buffer = || vec![1; setup.message_bytes as usize];
        Ok(Box::new(Client { from: buffer(), to: buffer() }))
    }
}

struct Server;

impl ServerSide for Server {
    fn advertisement(&self) -> Advertisement {
        Advertisement::default()
    }

    fn accept(&mut self) -> Result<(), TransportError> {
        Ok(())
    }

    fn run(&mut self, _phase: Phase) -> Result<Observed, TransportError> {
        Ok(Observed::default())
    }
}

struct Client {
    from: Vec<u8>,
    to: Vec<u8>,
}

impl ClientSide for Client {
    fn run(&mut self, phase: Phase, _: &mut Latencies) -> Result<Observed, TransportError> {
        for _ in 0..phase.operations {
            // Hide both buffers from the compiler. Otherwise the compiler could remove the copies.
            black_box(self.to.as_mut_slice()).copy_from_slice(black_box(self.from.as_slice()));
        }
        Ok(Observed::default())
    }
}
