//! Compares the speed of operations that have the same effect: writes from sixteen pieces and from
//! one range, patches and writes. `./x acceptance` runs these tests for rows of its tables.

mod pair;

use std::sync::Arc;
use std::time::Instant;

use engine::ConnectionHandle;
use mem::{Buffer, RegionId, Rights};
use pair::{Side, connect};
use semantics::{CompletionQueue, Operation, OperationFlags, Piece, PieceList, Request, Source};
use wire_edge::encode_patch;

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

/// Size of a page in bytes, and number of its words that change in a round.
const PAGE: usize = 4096;
const SCATTERED: usize = 64;

/// Number of rounds, and of repetitions in a round.
const ROUNDS: u32 = 15;
const REPEATED: u32 = 400;

/// Number of pages that are changed at once, as at the end of an interval of a shared memory.
const IN_BATCH: usize = 64;

/// Number of operations that are posted together. Only the last of them is signalled. At most
/// `BATCHES` such batches are outstanding: their operations fill the window.
const BATCH: usize = 128;
const BATCHES: usize = 8;

/// Returns the seconds that it takes to post all `operations` and to wait until they are complete,
/// `REPEATED` times.
#[expect(clippy::disallowed_methods, reason = "it measures")]
fn seconds_of(sides: [&Side; 2], to: ConnectionHandle, operations: &[Operation]) -> f64 {
    let [client, server] = sides;
    let began = Instant::now();
    for _ in 0..REPEATED {
        let mut batches = operations.chunks(BATCH);
        let mut outstanding = 0;
        loop {
            while outstanding < BATCHES
                && let Some(batch) = batches.next()
            {
                let batch = batch.to_vec();
                let result = client.runtime.control(move |engine, memory, _| {
                    for operation in &batch {
                        engine.post(memory, to, operation)?;
                    }
                    Ok::<_, semantics::PostError>(())
                });
                result.expect("not forked").expect("there is room");
                outstanding += 1;
            }
            client.runtime.drive().expect("not forked");
            server.runtime.drive().expect("not forked");
            if let Some(completion) = client.queue.poll() {
                assert_eq!(completion.result, Ok(()));
                outstanding -= 1;
            }
            if outstanding == 0 && batches.len() == 0 {
                break;
            }
        }
    }
    began.elapsed().as_secs_f64()
}

/// Returns the number of frames that both sides have sent.
fn frames(sides: [&Side; 2]) -> u64 {
    let sent = sides.map(|side| {
        let (link, _) = side.runtime.link_addresses().expect("not forked")[0];
        side.runtime.link_statistics(link).expect("not forked").expect("it exists").send_frames
    });
    sent.iter().sum()
}

/// Returns how many times as long some operations take as others: the median of several rounds, in
/// turn. One thread runs both ends. So the times contain the processor time of both, and the time for
/// which both wait.
fn median_ratio(
    sides: [&Side; 2],
    to: ConnectionHandle,
    one: &[Operation],
    other: &[Operation],
) -> f64 {
    let mut ratios = Vec::new();
    let (mut seconds, mut sent) = ([0.0; 2], [0; 2]);
    for _ in 0..ROUNDS {
        let [time, other_time] = [one, other].map(|operations| seconds_of(sides, to, operations));
        ratios.push(time / other_time);
        seconds = [seconds[0] + time, seconds[1] + other_time];
    }
    for (operations, sent) in [one, other].iter().zip(&mut sent) {
        let before = frames(sides);
        seconds_of(sides, to, operations);
        *sent = frames(sides) - before;
    }
    ratios.sort_by(f64::total_cmp);
    let repetitions = f64::from(ROUNDS * REPEATED);
    let [time, other_time] = seconds.map(|seconds| seconds * 1e6 / repetitions);
    let [sent, other_sent] = sent.map(|frames| frames as f64 / f64::from(REPEATED));
    println!("{time:.2} against {other_time:.2} µs, {sent:.1} against {other_sent:.1} frames");
    println!("from {:.3} to {:.3}", ratios[0], ratios[ratios.len() - 1]);
    ratios[ratios.len() / 2]
}

/// Repeats operations for `pages` pages. Only the last operation of a batch is signalled.
fn for_pages(pages: usize, operations: &[Operation]) -> Vec<Operation> {
    let mut all = operations.repeat(pages);
    let count = all.len();
    for (at, operation) in all.iter_mut().enumerate() {
        operation.flags.signalled = (at + 1) % BATCH == 0 || at + 1 == count;
    }
    all
}

#[test]
#[ignore = "slow: run by hand, in release mode with --ignored --nocapture; prints three figures"]
fn patches_against_writes() {
    let (mut client, server) = (Side::new(false), Side::new(false));
    // Each operation takes a place in the queue until it is complete, signalled or not.
    client.queue = Arc::new(CompletionQueue::new(BATCH * BATCHES));
    let connection = connect(&client, &server);
    let memory = server.runtime.memory();
    let buffer = Buffer::new(PAGE as u64);
    let target = memory.register(server.domain, buffer.clone(), Rights::REMOTE_WRITE);
    let target = target.expect("it is registered");
    let own = Buffer::new(4 * PAGE as u64);
    let region = client.runtime.memory().register(client.domain, own.clone(), Rights::NONE);
    let region = region.expect("it is registered").id;
    let operation = |request, length: usize, signalled| Operation {
        request,
        length: length as u32,
        flags: OperationFlags { signalled, ..OperationFlags::default() },
        immediate: None,
        context: 0,
        status: None,
    };
    let (key, start) = (target.key, target.start);
    // The page comes first, then the records of some words, then those of all words.
    let page: Vec<u8> = (0..PAGE).map(|at| (at / 4 * 7 + 1) as u8 | 1).collect();
    own.write(0, &page);
    let offsets: Vec<usize> = (0..SCATTERED).map(|nth| nth * PAGE / SCATTERED).collect();
    let mut scattered = vec![0; PAGE];
    for &at in &offsets {
        scattered[at..at + 4].copy_from_slice(&page[at..at + 4]);
    }
    let patch = |after: &[u8], at: usize| {
        let mut records = vec![0; PAGE + PAGE / 16];
        let length = encode_patch(&[0; PAGE], after, &mut records).expect("there is room");
        own.write(at as u64, &records[..length]);
        let source = Source::Region { region, offset: at as u64 };
        operation(Request::Patch { source, key, address: start }, length, true)
    };
    let (some, all) = (patch(&scattered, PAGE), patch(&page, 2 * PAGE));
    let write = |at: usize, length, signalled| {
        let source = Source::Region { region, offset: at as u64 };
        let request = Request::Write { source, key, address: start + at as u64 };
        operation(request, length, signalled)
    };
    let words: Vec<Operation> =
        offsets.iter().map(|&at| write(at, 4, Some(&at) == offsets.last())).collect();
    let whole = write(0, PAGE, true);
    let sides = [&client, &server];
    let figure = median_ratio(sides, connection, &words, &[some]);
    println!("figure: 64 scattered words by a patch against writes: {figure:.3}");
    let (words, some) = (for_pages(IN_BATCH, &words), for_pages(IN_BATCH, &[some]));
    let figure = median_ratio(sides, connection, &words, &some);
    println!(
        "figure: 64 scattered words of each of 64 pages by patches against writes: {figure:.3}"
    );
    let figure = median_ratio(sides, connection, &[whole], &[all]);
    println!("figure: whole page by a patch against a write: {figure:.3}");
    let mut found = vec![0; PAGE];
    buffer.read(0, &mut found);
    assert_eq!(found, page);
}
