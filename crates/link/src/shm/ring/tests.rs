use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::shm::socket::create_memory;

#[test]
fn a_sleeping_reader_is_notified_once_and_an_awake_one_never() {
    let (mut writer, reader) = ring();
    assert_eq!(put(&mut writer, b"x"), Written::Yes);
    assert!(!writer.must_wake(), "the writer wakes a reader that does not sleep");
    reader.announce_sleep();
    assert!(reader.has_frame(), "the reader would sleep although a frame is in the ring");
    assert!(writer.must_wake());
    assert!(!writer.must_wake(), "the writer wakes the reader a second time");
}

#[test]
fn a_waiting_writer_is_notified_when_the_ring_has_been_read() {
    let (mut writer, mut reader) = ring();
    let frame = vec![7; FRAME_BYTES_MAX];
    while put(&mut writer, &frame) == Written::Yes {}
    writer.announce_wait();
    assert_eq!(put(&mut writer, &frame), Written::Full);
    let mut calls = 0;
    while let Read::Frame(..) = reader.read(&mut buffer()) {
        calls += u32::from(reader.release());
    }
    assert_eq!(calls, 1);
    assert_eq!(put(&mut writer, &frame), Written::Yes);
}

#[test]
fn a_read_position_beyond_the_written_bytes_is_detected() {
    let (mut writer, _reader) = ring();
    let frame = vec![7; FRAME_BYTES_MAX];
    while put(&mut writer, &frame) == Written::Yes {}
    for lie in [u64::MAX, writer.written + 1] {
        writer.area.consumed().store(lie, Ordering::Relaxed);
        assert_eq!(put(&mut writer, &frame), Written::Broken, "{lie}");
    }
    writer.consumed = 1;
    writer.area.consumed().store(0, Ordering::Relaxed);
    assert_eq!(put(&mut writer, &frame), Written::Broken, "reading does not go backwards");
}

#[test]
fn invalid_frame_lengths_are_refused() {
    for (at, header, second) in [
        (0, FRAME_BYTES_MAX as u32 + 1, 0),
        (0, u32::MAX - 1, 0),
        (0, WRAP, 0),
        (0, 9, FRAME_BYTES_MAX as u32 - 8),
        (0, 9, LENT - 1),
        (0, 9, LENT),
        (0, 9, u32::MAX),
        (RING_BYTES - LINE_BYTES, 57, 0),
        (RING_BYTES - LINE_BYTES, 41, LENT | 1),
        (RING_BYTES - LINE_BYTES, 1, 1),
    ] {
        let (_writer, mut reader) = ring();
        reader.read = at as u64;
        reader.area.second(at).store(second, Ordering::Relaxed);
        reader.area.header(at).store(header, Ordering::Relaxed);
        let read = reader.read(&mut buffer());
        assert!(matches!(read, Read::Broken), "{header}, {second} at {at}: {read:?}");
    }
}

proptest! {
    #[test]
    fn no_bytes_of_a_peer_make_the_ring_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..9000),
    ) {
        fuzz_shm_ring(&bytes);
    }

    /// Overwrites the control words and the ring with cache lines that are similar to records. This
    /// must not cause a panic.
    #[test]
    fn no_line_counts_of_a_peer_make_the_ring_panic(
        lines in prop::collection::vec((word(), word(), any::<u8>()), 1..200),
    ) {
        let bytes: Vec<u8> = lines
            .into_iter()
            .flat_map(|(first, second, fill)| {
                let mut line = [fill; LINE_BYTES];
                line[..4].copy_from_slice(&first.to_ne_bytes());
                line[4..8].copy_from_slice(&second.to_ne_bytes());
                line
            })
            .collect();
        fuzz_shm_ring(&bytes);
    }

    #[test]
    fn frames_pass_the_ring_unchanged(
        steps in prop::collection::vec(
            (any::<bool>(), 1..=300_usize, 0..FRAME_BYTES_MAX - 300, any::<u8>(), any::<bool>()),
            1..200,
        ),
    ) {
        let (mut writer, mut reader) = ring();
        let mut model = VecDeque::new();
        let mut buffer = buffer();
        for (is_write, headers, payload, byte, is_lent) in steps {
            if is_write {
                let place = LentPlace { memory: u64::MAX - u64::from(byte), offset: 1 << 40 };
                let lent = (is_lent && payload > 0).then_some(place);
                let shape = Shape { headers, payload, lent };
                match put_shape(&mut writer, &shape, byte) {
                    Written::Yes => model.push_back((shape, byte)),
                    written => {
                        prop_assert_eq!(written, Written::Full);
                        prop_assert!(!model.is_empty(), "an empty ring has room");
                    }
                }
            } else {
                match (reader.read(&mut buffer), model.pop_front()) {
                    (Read::Frame(headers, outside), Some((shape, byte))) => {
                        prop_assert_eq!(headers, shape.headers);
                        prop_assert!(buffer[..headers].iter().all(|&b| b == byte));
                        match outside {
                            Outside::Lent(place, len) => {
                                prop_assert_eq!((Some(place), len), (shape.lent, shape.payload));
                            }
                            Outside::Ring(payload) => {
                                let len = payload.len();
                                prop_assert_eq!((None, len), (shape.lent, shape.payload));
                                payload.copy_to(&mut buffer[..len]);
                                prop_assert!(buffer[..len].iter().all(|&b| b == !byte));
                            }
                        }
                        reader.release();
                    }
                    (read, expected) => {
                        prop_assert!(matches!((&read, expected), (Read::Nothing, None)), "{read:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn no_bytes_of_a_peer_cause_an_access_outside_the_ring(
        words in prop::collection::vec(any::<(u16, u32)>(), 1..64),
        near in prop::collection::vec((any::<u16>(), 0..70_000_u32), 1..64),
    ) {
        let (_writer, mut reader) = ring();
        for (at, word) in words.into_iter().chain(near) {
            let (line, is_second) = (usize::from(at) >> 1, at & 1 != 0);
            let at = line * LINE_BYTES % RING_BYTES;
            let area = &reader.area;
            let place = if is_second { area.second(at) } else { area.header(at) };
            place.store(word, Ordering::Relaxed);
        }
        let mut buffer = buffer();
        let ring = reader.area.place(0, 0) as usize;
        for _ in 0..RING_BYTES / LINE_BYTES {
            let Read::Frame(headers, outside) = reader.read(&mut buffer) else { break };
            prop_assert!((1..=FRAME_BYTES_MAX).contains(&headers));
            if let Outside::Ring(payload) = outside {
                let (from, len) = (payload.as_ptr() as usize, payload.len());
                prop_assert!(headers + len <= FRAME_BYTES_MAX);
                prop_assert!(len == 0 || from >= ring && from + len <= ring + RING_BYTES);
            }
            reader.release();
        }
    }
}

/// Generates words that have a meaning at the start of a record, and also arbitrary words.
fn word() -> impl Strategy<Value = u32> {
    prop_oneof![
        Just(EMPTY),
        Just(WRAP),
        1..100_u32,
        0..70_000_u32,
        (0..70_000_u32).prop_map(|bytes| bytes | LENT),
        any::<u32>(),
    ]
}

fn ring() -> (Writer, Reader) {
    let file = create_memory().expect("memory");
    let mapping = Mapping::new(file.as_fd()).expect("a mapping");
    let (writer, _) = mapping.ends(0);
    let (_, reader) = mapping.ends(1);
    (writer, reader)
}

fn buffer() -> Box<[u8; FRAME_BYTES_MAX]> {
    frame_buffer()
}

fn put(writer: &mut Writer, frame: &[u8]) -> Written {
    let shape = Shape { headers: frame.len(), payload: 0, lent: None };
    writer.write(&shape, |headers, _| {
        // SAFETY: the record has room for the frame.
        unsafe { mem::copy_foreign(headers, frame.as_ptr(), frame.len()) };
        true
    })
}

/// Writes headers filled with `byte`, and payload filled with its complement.
fn put_shape(writer: &mut Writer, shape: &Shape, byte: u8) -> Written {
    writer.write(shape, |headers, payload| {
        // SAFETY: the record has room for the sizes in the shape.
        unsafe {
            headers.write_bytes(byte, shape.headers);
            if let Some(to) = payload {
                to.write_bytes(!byte, shape.payload);
            }
        }
        true
    })
}
