//! Mistakes of programs, by name, and what the library says to each.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::time::Duration;
use std::{env, io, process, ptr, thread};

use dsm::{Access, Dsm, DsmSlice, Error, Method, Options};

fn main() -> Result<(), Error> {
    let argument = env::args().nth(1).unwrap_or_default();
    let mistake = argument.as_str();
    let options = Options::new().limit(Duration::from_secs(3));
    match mistake {
        "range-taken" => map_at(0x2000_0000_0000),
        "handler-before" => set_handler(),
        _ => {}
    }
    let options = match mistake {
        "threads-differ" if is_rank("1") => options.threads(2),
        "pages-differ" if is_rank("1") => options.region_bytes(1 << 20),
        // The report ends the process, because the ranks would wait for ever.
        "deadlock" | "other-barrier" => {
            options.watchdog(Some(Duration::from_millis(300))).on_stall(|stall| {
                eprintln!("{stall}");
                process::exit(1);
            })
        }
        "mappings" => options.method(Method::Protection).region_bytes(1 << 30),
        _ => options,
    };
    let dsm = Dsm::join(options)?;
    let values = dsm.alloc::<u64>(512)?;
    match mistake {
        "unlocked-twice" => {
            dsm.lock(64)?;
            dsm.unlock(64)?;
            dsm.unlock(64)?;
        }
        "unlocked-by-another" => {
            if dsm.rank() == 0 {
                dsm.lock(64)?;
            }
            dsm.barrier()?;
            if dsm.rank() == 1 {
                dsm.unlock(64)?;
            }
        }
        "locked-twice" => {
            dsm.lock(64)?;
            dsm.lock(64)?;
        }
        "deadlock" => {
            let (first, second) = if dsm.rank() == 0 { (64, 72) } else { (72, 64) };
            dsm.lock(first)?;
            dsm.barrier()?;
            dsm.lock(second)?;
        }
        // One thread too few for its barrier, while the others are at the barrier of all threads.
        "other-barrier" => dsm.barrier_at(96, if dsm.rank() == 2 { 2 } else { 3 })?,
        "other-count" if dsm.rank() < 2 => dsm.barrier_at(96, 2 + dsm.rank() as u32)?,
        "system-call" if dsm.rank() == 1 => read_into(&dsm, values)?,
        "other-allocation" if dsm.rank() == 1 => drop(dsm.alloc::<u64>(5)?),
        "barrier-left-out" if dsm.rank() == 1 => return dsm.finalize(),
        "left" if dsm.rank() == 1 => return Ok(()),
        "child-reads" => in_child(|| println!("read {}", values.get(0))),
        "child-writes" => in_child(|| values.set(0, 1)),
        "child-waits" => in_child(|| println!("{}", dsm.barrier().unwrap_err())),
        "handler-after" => {
            set_handler();
            dsm.barrier()?;
        }
        "mappings" => {
            // Each second page is mapped apart.
            let pages = dsm.alloc::<u64>(512 * 200_000)?;
            (0..100_000).for_each(|page| pages.set(page * 1024, 1));
        }
        "too-large" => drop(dsm.alloc::<u64>(1 << 40)?),
        "second-thread" => {
            // This thread uses the memory until it ends.
            dsm.lock(72)?;
            let other = thread::scope(|scope| scope.spawn(|| dsm.lock(64)).join());
            other.expect("it does not panic")?;
        }
        _ => {}
    }
    values.set(dsm.rank(), 7);
    dsm.barrier()?;
    println!("sum {}", (0..dsm.size()).map(|rank| values.get(rank)).sum::<u64>());
    if mistake == "handler-before" {
        // A fault that is no concern of the library.
        // SAFETY: none; the access is an error, and ends the process.
        unsafe { ptr::without_provenance_mut::<u8>(0x10).write_volatile(1) };
    }
    dsm.finalize()
}

/// Lets the kernel fill elements of another rank: first without a pin, then with one.
fn read_into(dsm: &Dsm, values: DsmSlice<'_, u64>) -> Result<(), Error> {
    let zeros = File::open("/dev/zero").expect("the file exists");
    let elements = values.slice(256..512);
    let read = |into: *mut u64| {
        // SAFETY: the elements are memory of the region, which no other thread uses meanwhile.
        let found = unsafe { libc::read(zeros.as_raw_fd(), into.cast(), 2048) };
        if found < 0 { io::Error::last_os_error().to_string() } else { format!("{found} bytes") }
    };
    println!("without a pin: {}", read(elements.as_ptr()));
    let mut pin = dsm.pin(elements, Access::Write)?;
    println!("with a pin: {}", read(pin.as_mut_ptr()));
    Ok(())
}

fn is_rank(rank: &str) -> bool {
    env::var(dsm::RANK).as_deref() == Ok(rank)
}

/// Maps a page at an address.
fn map_at(address: usize) {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let wanted = ptr::without_provenance_mut(address);
    // SAFETY: the flags exclude that other memory is replaced.
    let found = unsafe { libc::mmap(wanted, 4096, libc::PROT_READ, flags, -1, 0) };
    assert_eq!(found, wanted);
}

/// Installs a handler of the program.
fn set_handler() {
    extern "C" fn on_fault(_signal: i32) {
        let text = b"the program's own handler\n";
        // SAFETY: the calls are permitted in handlers of signals.
        unsafe {
            libc::write(2, text.as_ptr().cast(), text.len());
            libc::_exit(9);
        }
    }
    for signal in [libc::SIGSEGV, libc::SIGBUS] {
        let handler: extern "C" fn(i32) = on_fault;
        // SAFETY: the handler may run at any time.
        unsafe { libc::signal(signal, handler as libc::sighandler_t) };
    }
}

/// Runs `work` in a forked child, and prints how that ended.
fn in_child(work: impl FnOnce()) {
    // SAFETY: the child uses only what is permitted after a fork of a process with threads.
    let child = unsafe { libc::fork() };
    if child == 0 {
        work();
        // SAFETY: ends the child without handlers of the parent.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: the place is a variable of this function.
    unsafe { libc::waitpid(child, &raw mut status, 0) };
    println!("child: signal {}", status & 0x7f);
}
