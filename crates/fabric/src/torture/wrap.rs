//! Sequence numbers that wrap around, and keys and ids that are reused.

use crate::host::Shape;
use crate::random::Random;

/// The numbers with which a run begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wrap {
    /// Number of the first packet, operation and message.
    pub(crate) numbers_from: u32,
    /// Number of connections that each engine had before the run.
    pub(crate) worn_connections: u32,
}

impl Wrap {
    pub(super) fn draw(random: &mut Random) -> Self {
        let before = random.pick(&[1_u32, 20, 200, 1_000]);
        Self {
            numbers_from: random.pick(&[0, 0_u32.wrapping_sub(before), (1 << 31) - before]),
            worn_connections: random.pick(&[0, 4_094, 4_096, 8_191]),
        }
    }

    pub(super) const fn shape(self, shape: Shape) -> Shape {
        let Self { numbers_from, worn_connections } = self;
        Shape { numbers_from, worn_connections, ..shape }
    }
}
