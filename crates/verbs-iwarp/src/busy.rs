//! The streams that each turn reads without waiting until the kernel reports them.

/// The streams whose peers probably speak soon: the one that brought something last, and those with
/// a read outstanding, at most [`AWAITED_MAX`].
///
/// While a program polls, the runtime asks the kernel for readable sockets only every 20 µs or so.
/// A turn therefore reads these streams itself. Each costs a system call in each turn, so their
/// number is limited.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct BusyStreams {
    last: Option<u32>,
    awaited: [u32; AWAITED_MAX],
    count: usize,
}

impl BusyStreams {
    /// Returns the streams, each once.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let awaited = self.awaited.iter().take(self.count).copied();
        self.last.into_iter().chain(awaited.filter(|index| Some(*index) != self.last))
    }

    /// Takes note of a turn of a stream: whether anything happened, and whether a read of this end
    /// is outstanding.
    pub(crate) fn on_turn(&mut self, index: u32, worked: bool, awaits_answers: bool) {
        if worked {
            self.last = Some(index);
        }
        let known = self.awaited.iter().take(self.count).position(|known| *known == index);
        match known {
            Some(place) if !awaits_answers => {
                self.count -= 1;
                self.awaited.swap(place, self.count);
            }
            None if awaits_answers => {
                if let Some(place) = self.awaited.get_mut(self.count) {
                    *place = index;
                    self.count += 1;
                }
            }
            _ => {}
        }
    }
}

/// Maximum number of streams with a read outstanding that each turn reads. Eight readings that find
/// nothing take a few microseconds, which is still less than the interval at which the kernel is
/// asked.
const AWAITED_MAX: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn busy(streams: &BusyStreams) -> Vec<u32> {
        streams.iter().collect()
    }

    #[test]
    fn a_stream_with_a_read_outstanding_is_busy_until_the_answer_has_arrived() {
        let mut streams = BusyStreams::default();
        streams.on_turn(1, true, true);
        streams.on_turn(2, true, true);
        streams.on_turn(3, true, false);
        assert_eq!(busy(&streams), [3, 1, 2]);
        streams.on_turn(1, false, false);
        assert_eq!(busy(&streams), [3, 2]);
        streams.on_turn(2, true, true);
        assert_eq!(busy(&streams), [2]);
        streams.on_turn(2, true, false);
        assert_eq!(busy(&streams), [2]);
    }

    #[test]
    fn a_bounded_number_of_streams_is_busy() {
        let mut streams = BusyStreams::default();
        for index in 0..100 {
            streams.on_turn(index, true, true);
        }
        assert_eq!(busy(&streams).len(), AWAITED_MAX + 1);
        for index in 0..100 {
            streams.on_turn(index, false, false);
        }
        assert_eq!(busy(&streams), [99]);
    }
}
