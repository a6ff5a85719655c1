//! Each kind of object by which ranks wait for each other, atomics, and memory for system calls.
//!
//! `ethernot dsm run -n 3 -- target/debug/examples/objects` runs it with three ranks.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;

use dsm::{Access, Dsm, Error, Options};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let dsm = Dsm::join(Options::new())?;
    condition(&dsm)?;
    read_write_lock(&dsm)?;
    semaphore_and_event(&dsm)?;
    atomics(&dsm)?;
    homes(&dsm)?;
    system_calls(&dsm)?;
    streams(&dsm)?;
    misuse(&dsm)?;
    if dsm.rank() == 0 {
        println!("the objects of {} ranks are right ({})", dsm.size(), dsm.method());
    }
    dsm.finalize()?;
    Ok(())
}

/// The ranks take turns: each waits until the turn is its own.
fn condition(dsm: &Dsm) -> Outcome {
    let turn = dsm.mutex::<u64>()?;
    let has_changed = dsm.condition()?;
    for round in 0..5 {
        let own = (round * dsm.size() + dsm.rank()) as u64;
        let mut guard = has_changed.wait_until(turn.lock()?, |turn| *turn == own)?;
        *guard += 1;
        drop(guard);
        has_changed.notify_all()?;
    }
    dsm.barrier_named("turns", dsm.size() as u32)?;
    assert_eq!(*turn.lock()?, 5 * dsm.size() as u64);
    Ok(())
}

/// A writer replaces two numbers, which readers must find equal.
fn read_write_lock(dsm: &Dsm) -> Outcome {
    let pair = dsm.read_write_lock::<[u64; 2]>()?;
    for round in 0..20 {
        if round % dsm.size() == dsm.rank() {
            let mut guard = pair.write()?;
            guard[0] += 1;
            guard[1] += 1;
        } else {
            let guard = pair.read()?;
            assert_eq!(guard[0], guard[1]);
        }
    }
    dsm.barrier()?;
    assert_eq!(*pair.read()?, [20, 20]);
    Ok(())
}

/// Rank 0 makes numbers, which the others add up.
fn semaphore_and_event(dsm: &Dsm) -> Outcome {
    let numbers = dsm.alloc::<u64>(1024)?;
    let sum = dsm.mutex::<u64>()?;
    let (made, has_ended) = (dsm.semaphore()?, dsm.event()?);
    let others = dsm.size() - 1;
    if dsm.rank() == 0 {
        for index in 0..others * 8 {
            numbers.set(index, index as u64);
            made.post(1)?;
        }
        has_ended.set()?;
    } else {
        for index in 0..8 {
            made.wait()?;
            // All numbers up to the one that was posted are visible.
            assert_eq!(numbers.get(index), index as u64);
        }
        has_ended.wait()?;
        for index in 0..8 {
            *sum.lock()? += numbers.get((dsm.rank() - 1) * 8 + index);
        }
    }
    dsm.barrier()?;
    let count = (others * 8) as u64;
    assert_eq!(*sum.lock()?, count * count.saturating_sub(1) / 2);
    Ok(())
}

fn atomics(dsm: &Dsm) -> Outcome {
    let (counts, masses) = (dsm.alloc::<u64>(1024)?, dsm.alloc::<f64>(1024)?);
    for _ in 0..10 {
        dsm.fetch_add(counts, 0, 2)?;
        dsm.fetch_add_f64(masses, 0, 0.5)?;
    }
    let own = dsm.rank() as u64 + 1;
    let is_first = dsm.compare_swap(counts, 1, 0, own)? == 0;
    dsm.fetch_add(counts, 2, u64::from(is_first))?;
    dsm.barrier()?;
    let size = dsm.size() as u64;
    assert_eq!(dsm.load(counts, 0)?, 20 * size);
    assert_eq!(masses.get(0).to_bits(), (5.0 * size as f64).to_bits());
    assert!((1..=size).contains(&counts.get(1)));
    assert_eq!(counts.get(2), 1);
    dsm.barrier()?;
    if dsm.rank() == 0 {
        assert_eq!(dsm.swap(counts, 0, 7)?, 20 * size);
        dsm.store(counts, 1, 8)?;
    }
    dsm.barrier()?;
    assert_eq!((counts.get(0), counts.get(1)), (7, 8));
    Ok(())
}

/// A rank writes a page, whose home then moves to the last rank.
fn homes(dsm: &Dsm) -> Outcome {
    let page = dsm.alloc::<u64>(512)?;
    let address = page.as_ptr().addr();
    if dsm.rank() == 0 {
        page.set(0, 5);
        dsm.migrate(page, dsm.size() - 1)?;
    }
    dsm.barrier()?;
    dsm.prefetch(page)?;
    assert_eq!(page.get(0), 5);
    assert_eq!(dsm.home_of(address)?, Some(dsm.size() - 1));
    dsm.barrier()?;
    if dsm.rank() == 0 {
        page.set(0, 6);
        dsm.release()?;
        dsm.set_event(address as u64)?;
    } else {
        dsm.await_event(address as u64)?;
        dsm.acquire()?;
        assert_eq!(page.get(0), 6);
    }
    Ok(())
}

/// Rank 0 reads a file into shared memory. All ranks write it to another one.
fn system_calls(dsm: &Dsm) -> Outcome {
    let bytes = dsm.alloc::<u8>(40_000)?;
    let content: Vec<u8> = (0..40_000_u32).map(|index| (index % 251) as u8).collect();
    let mut file = temporary_file()?;
    if dsm.rank() == 0 {
        file.write_all(&content)?;
        file.rewind()?;
        let mut pin = dsm.pin(bytes, Access::Write)?;
        // SAFETY: the other ranks access the bytes after the barrier.
        file.read_exact(unsafe { pin.as_mut_slice() })?;
        file.set_len(0)?;
        file.rewind()?;
    }
    dsm.barrier()?;
    let pin = dsm.pin(bytes, Access::Read)?;
    // SAFETY: no rank writes the bytes any more.
    file.write_all(unsafe { pin.as_slice() })?;
    drop(pin);
    file.rewind()?;
    let mut found = Vec::new();
    file.read_to_end(&mut found)?;
    assert_eq!(found, content);
    Ok(())
}

/// The same with a copy, without a pin.
fn streams(dsm: &Dsm) -> Outcome {
    let bytes = dsm.alloc::<u8>(100_000)?;
    if dsm.rank() == 0 {
        let content = vec![7; 80_000];
        assert_eq!(bytes.read_from(&mut content.as_slice())?, 80_000);
    }
    dsm.barrier()?;
    let mut found = Vec::new();
    bytes.slice(..80_000).write_to(&mut found)?;
    assert_eq!(found, vec![7; 80_000]);
    Ok(())
}

/// What the program does wrong is an error that names address and remedy.
fn misuse(dsm: &Dsm) -> Outcome {
    let key = 0x40;
    let error = dsm.unlock(key).unwrap_err().to_string();
    assert!(
        error.contains("0x40") && error.contains("unlock on the thread that has locked"),
        "{error}"
    );
    dsm.lock(key)?;
    let error = dsm.lock(key).unwrap_err();
    assert!(matches!(&error, Error::Misuse(misuse) if misuse.rank() == dsm.rank()), "{error}");
    dsm.unlock(key)?;
    let error = dsm.barrier_at(8, 1000).unwrap_err().to_string();
    assert!(error.contains("1000 threads"), "{error}");
    let error = dsm.prefetch_range(8..16).unwrap_err().to_string();
    assert!(error.contains("0x8 to 0x10 are not in the shared region"), "{error}");
    let error = dsm.unpin_range(dsm.region()).unwrap_err().to_string();
    assert!(error.contains("is not pinned"), "{error}");
    Ok(())
}

/// Makes a file without a name.
fn temporary_file() -> Result<File, Box<dyn std::error::Error>> {
    // SAFETY: the name ends with zero. The call returns a new descriptor, or -1.
    let descriptor = unsafe { libc::memfd_create(c"objects".as_ptr(), 0) };
    if descriptor < 0 {
        return Err(std::io::Error::last_os_error().into());
    }
    // SAFETY: the descriptor is open, and nothing else owns it.
    let file = unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(descriptor) };
    assert!(file.as_raw_fd() >= 0);
    Ok(file)
}
