//! Compares the speed of writes from sixteen pieces of memory with the speed of writes from one
//! range. `./x acceptance` runs this test for a row of its table.

mod pair;

use std::time::Instant;

use engine::ConnectionHandle;
use mem::{Buffer, RegionId, Rights};
use pair::{Side, connect};
use semantics::{Operation, OperationFlags, Piece, PieceList, Request, Source};

const MEBIBYTE: u32 = 1 << 20;

/// Number of writes in a round. `IN_FLIGHT` of them are outstanding at a time.
const WRITES: u32 = 200;
const IN_FLIGHT: u32 = 4;

/// Returns sixteen pieces with gaps between them. Their lengths differ, and none is a multiple
/// of the word size.
fn uneven(region: RegionId) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let (mut offset, mut left) = (3, MEBIBYTE);
    for at in 0..16_u32 {
        let length = if at == 15 { left } else { 1001 + at * 8209 };
        pieces.push(Piece { region, offset, length });
        (offset, left) = (offset + u64::from(length) + 61, left - length);
    }
    pieces
}

/// Returns the seconds that a round of writes takes. Each write sends a mebibyte from `pieces` or
/// from one range.
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn seconds(
    sides: [&Side; 2],
    to: ConnectionHandle,
    write: Operation,
    pieces: Option<&[Piece]>,
) -> f64 {
    let [client, server] = sides;
    let began = Instant::now();
    let (mut posted, mut done) = (0, 0);
    while done < WRITES {
        while posted < WRITES && posted - done < IN_FLIGHT {
            let pieces = pieces.map(<[Piece]>::to_vec);
            let result = client.runtime.control(move |engine, memory, _| match pieces {
                Some(pieces) => {
                    let list = PieceList::new(&pieces).expect("a list");
                    engine.post_list(memory, to, &write, list)
                }
                None => engine.post(memory, to, &write),
            });
            result.expect("not forked").expect("there is room");
            posted += 1;
        }
        client.runtime.drive().expect("not forked");
        server.runtime.drive().expect("not forked");
        while let Some(completion) = client.queue.poll() {
            assert_eq!(completion.result, Ok(()));
            done += 1;
        }
    }
    began.elapsed().as_secs_f64()
}

#[test]
#[ignore = "slow: run by hand, in release mode with --ignored --nocapture; prints a figure"]
fn sixteen_uneven_pieces_against_one() {
    let (client, server) = (Side::new(false), Side::new(false));
    let connection = connect(&client, &server);
    let memory = server.runtime.memory();
    let target = memory.register(server.domain, Buffer::new(1 << 20), Rights::REMOTE_WRITE);
    let target = target.expect("it is registered");
    let memory = client.runtime.memory();
    let source = memory.register(client.domain, Buffer::new(2 << 20), Rights::NONE);
    let region = source.expect("it is registered").id;
    let pieces = uneven(region);
    let source = Source::Region { region, offset: 0 };
    let write = Operation {
        request: Request::Write { source, key: target.key, address: target.start },
        length: MEBIBYTE,
        flags: OperationFlags { signalled: true, ..OperationFlags::default() },
        immediate: None,
        context: 0,
        status: None,
    };
    let sides = [&client, &server];
    let mut ratios: Vec<f64> = (0..15)
        .map(|_| {
            let one = seconds(sides, connection, write, None);
            one / seconds(sides, connection, write, Some(&pieces))
        })
        .collect();
    ratios.sort_by(f64::total_cmp);
    println!("from {:.3} to {:.3}", ratios[0], ratios[ratios.len() - 1]);
    println!("figure: sixteen pieces against one: {:.3}", ratios[ratios.len() / 2]);
}
