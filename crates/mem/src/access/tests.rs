//! Tests of lookups, placement and atomics.

use std::sync::Arc;
use std::thread;

use super::*;
use crate::buffer::Buffer;
use crate::error::RegisterError;
use crate::table::TableLimits;

const EVERY_RIGHT: [Rights; 4] =
    [Rights::LOCAL_WRITE, Rights::REMOTE_READ, Rights::REMOTE_WRITE, Rights::REMOTE_ATOMIC];

//= protocol.md: violation.3
#[test]
fn ranges_at_the_edges_of_a_region_and_of_the_address_space_are_checked() {
    let world = World::new(100, Rights::ALL);
    let start = world.region.start;
    let resolve = |address, len| world.resolve(address, len, Rights::REMOTE_WRITE).is_ok();
    for (address, len) in [(start, 100), (start + 99, 1), (start, 0), (start + 100, 0)] {
        assert!(resolve(address, len), "{len} bytes at start + {}", address - start);
    }
    for (address, len) in [
        (start, 101),
        (start + 99, 2),
        (start + 100, 1),
        (start + 101, 0),
        (start - 1, 1),
        (start - 1, 0),
        (start - 1, 101),
        (start, u64::MAX),
        (start + 1, u64::MAX),
        (start, u64::MAX - start + 1),
        (u64::MAX, 0),
        (u64::MAX, 1),
        (u64::MAX, u64::MAX),
        (0, 0),
        (0, u64::MAX),
    ] {
        assert!(!resolve(address, len), "{len} bytes at {address:#x}");
        let limits = AccessError::Bounds { address, len, start, limit: 100 };
        assert_eq!(world.resolve(address, len, Rights::NONE).unwrap_err(), limits);
    }
}

#[test]
fn local_offsets_are_checked_like_addresses() {
    let world = World::new(100, Rights::ALL);
    let (access, id) = (world.table.access(), world.region.id);
    for (offset, len) in [(0, 101), (100, 1), (101, 0), (u64::MAX, 1), (u64::MAX, u64::MAX)] {
        let bounds = |error| matches!(error, AccessError::Bounds { len: l, .. } if l == len);
        assert!(bounds(access.resolve_local(id, offset, len, Rights::NONE).unwrap_err()));
        if let Ok(len) = u32::try_from(len) {
            assert!(bounds(access.source(id, offset, len).unwrap_err()));
        }
    }
    assert!(access.copy_out(id, 99, &mut [0; 2]).is_err());
    assert!(access.copy_out(id, u64::MAX, &mut [0; 2]).is_err());
    assert_eq!(access.source(id, 100, 0).unwrap().len, 0);
    assert_eq!(access.source(id, 7, 9).unwrap().start, world.buffer.as_ptr().wrapping_add(7));
}

#[test]
fn the_kernel_stores_received_bytes_in_a_sink() {
    let world = World::new(100, Rights::ALL);
    let access = world.table.access();
    let target = world.resolve(world.region.start + 10, 20, Rights::REMOTE_WRITE).unwrap();
    let sink = access.sink(&target, 5, 4).unwrap();
    let (reader, mut writer) = std::io::pipe().unwrap();
    std::io::Write::write_all(&mut writer, b"abcdefgh").unwrap();
    let pieces = [libc::iovec { iov_base: sink.start().cast(), iov_len: sink.len() as usize }];
    // SAFETY: the memory of the sink stays valid until the access ends, and it is writable.
    let read = unsafe { libc::readv(std::os::fd::AsRawFd::as_raw_fd(&reader), pieces.as_ptr(), 1) };
    assert_eq!(read, 4);
    let bytes = world.bytes();
    assert_eq!(
        (&bytes[..15], &bytes[15..19], &bytes[19..]),
        (&[0; 15][..], &b"abcd"[..], &[0; 81][..])
    );
}

#[test]
fn targets_for_reading_and_ghost_regions_are_no_sinks() {
    let world = World::new(100, Rights::ALL);
    let access = world.table.access();
    let target = world.resolve(world.region.start, 20, Rights::REMOTE_READ).unwrap();
    assert!(matches!(access.sink(&target, 0, 4), Err(AccessError::Permission { .. })));
    let domain = world.table.allocate_domain();
    let ghost = world.table.register_ghost(domain, 1 << 40, 1 << 20, Rights::ALL).unwrap();
    let target = access.resolve_local(ghost.id, 0, 20, Rights::LOCAL_WRITE).unwrap();
    assert!(matches!(access.sink(&target, 0, 4), Err(AccessError::Unmapped { .. })));
}

#[test]
fn accesses_beyond_a_target_are_refused() {
    let world = World::new(100, Rights::ALL);
    let access = world.table.access();
    let target = world.resolve(world.region.start + 10, 20, Rights::ALL).unwrap();
    assert_eq!((target.address(), target.len()), (world.region.start + 10, 20));
    for (offset, len) in [(0, 21), (20, 1), (21, 0), (u64::MAX, 1), (u64::MAX - 5, 8)] {
        let mut bytes = vec![1; len];
        assert!(access.place(&target, offset, &bytes).is_err());
        assert!(access.place_tail(&target, offset, &bytes).is_err());
        assert!(access.copy_from(&target, offset, &mut bytes).is_err());
        assert!(access.source_of(&target, offset, len as u32).is_err());
        assert!(access.sink(&target, offset, len as u32).is_err());
    }
    assert_eq!(world.bytes(), [0; 100]);
    access.place(&target, 20, &[]).unwrap();
    access.place_tail(&target, 20, &[]).unwrap();
    access.place(&target, 0, &[1; 20]).unwrap();
    assert_eq!(world.bytes()[..10], [0; 10]);
    assert_eq!(world.bytes()[10..30], [1; 20]);
    assert_eq!(world.bytes()[30..], [0; 70]);
}

//= protocol.md: peer.1
#[test]
fn every_set_of_rights_grants_exactly_its_members() {
    for granted in (0..=Rights::ALL.bits()).filter_map(Rights::from_bits) {
        let world = World::new(64, granted);
        for wanted in (0..=Rights::ALL.bits()).filter_map(Rights::from_bits) {
            let remote = world.resolve(world.region.start, 8, wanted);
            let access = world.table.access();
            let local = access.resolve_local(world.region.id, 0, 8, wanted);
            assert_eq!(remote.is_ok(), granted.contains(wanted));
            assert_eq!(local.is_ok(), granted.contains(wanted));
            if let Err(error) = remote {
                assert_eq!(error, AccessError::Permission { wanted, granted });
            }
        }
    }
}

#[test]
fn a_target_serves_only_the_access_it_was_resolved_for() {
    let world = World::new(64, Rights::ALL);
    let access = world.table.access();
    for right in EVERY_RIGHT {
        let target = world.resolve(world.region.start, 8, right).unwrap();
        let writes = right == Rights::LOCAL_WRITE || right == Rights::REMOTE_WRITE;
        let atomics = right == Rights::LOCAL_WRITE || right == Rights::REMOTE_ATOMIC;
        let reads = right == Rights::LOCAL_WRITE || right == Rights::REMOTE_READ;
        assert_eq!(access.place(&target, 0, &[1]).is_ok(), writes);
        assert_eq!(access.place_tail(&target, 0, &[1]).is_ok(), writes);
        assert_eq!(access.write_value(&target, 1).is_ok(), writes);
        assert_eq!(access.fetch_add(&target, 1).is_ok(), atomics);
        assert_eq!(access.compare_swap(&target, 1, 1).is_ok(), atomics);
        assert_eq!(access.copy_from(&target, 0, &mut [1]).is_ok(), reads);
        assert_eq!(access.source_of(&target, 0, 1).is_ok(), reads);
    }
    let local = access.resolve_local(world.region.id, 0, 8, Rights::NONE).unwrap();
    assert!(access.source_of(&local, 0, 8).is_ok());
    assert!(access.place(&local, 0, &[1]).is_err());
}

//= protocol.md: peer.1
#[test]
fn a_region_is_accessible_from_its_own_domain_only() {
    let world = World::new(64, Rights::ALL);
    let accessor = world.table.allocate_domain();
    for domain in [accessor, ProtectionDomain::NONE] {
        let access = world.table.access();
        let found = access.resolve(domain, world.region.key, world.region.start, 8, Rights::NONE);
        let owner = world.domain;
        assert_eq!(found.unwrap_err(), AccessError::WrongDomain { accessor: domain, owner });
    }
}

//= protocol.md: name.2
#[test]
fn keys_and_targets_of_a_deregistered_region_stay_stale_when_its_slot_is_reused() {
    let limits = TableLimits { regions_max: 1, domains_max: 1 };
    let world = World::in_table(MemoryTable::new(limits, [5, 6]), 64, Rights::ALL);
    let old = world.region;
    let target = world.resolve(old.start, 8, Rights::ALL).unwrap();
    let mut keys = vec![old.key];
    for _ in 0..100 {
        let region = world.table.access().region(target.region());
        if region.is_ok() {
            world.table.deregister(old.id).unwrap();
        }
        let new = world.table.register(world.domain, world.buffer.clone(), Rights::ALL).unwrap();
        assert!(!keys.contains(&new.key));
        keys.push(new.key);
        let access = world.table.access();
        let gone = AccessError::InvalidKey { name: old.id.to_raw() };
        assert_eq!(access.place(&target, 0, &[1]), Err(gone));
        assert_eq!(access.place_tail(&target, 0, &[1]), Err(gone));
        assert_eq!(access.copy_from(&target, 0, &mut [1]), Err(gone));
        assert_eq!(access.source_of(&target, 0, 1).unwrap_err(), gone);
        assert_eq!(access.source(old.id, 0, 1).unwrap_err(), gone);
        assert_eq!(access.copy_out(old.id, 0, &mut [1]), Err(gone));
        assert_eq!(access.fetch_add(&target, 1), Err(gone));
        let unknown = AccessError::InvalidKey { name: u64::from(old.key.0) };
        assert_eq!(world.resolve(old.start, 8, Rights::NONE).unwrap_err(), unknown);
        drop(access);
        world.table.deregister(new.id).unwrap();
    }
    assert_eq!(world.bytes(), [0; 64]);
}

#[test]
fn a_cached_key_is_not_found_after_its_region_is_deregistered() {
    let world = World::new(64, Rights::ALL);
    let access = world.table.access();
    let resolve = |access: &MemoryAccess<'_>| {
        let (key, start) = (world.region.key, world.region.start);
        access.resolve(world.domain, key, start, 8, Rights::NONE)
    };
    resolve(&access).unwrap();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| world.table.deregister(world.region.id));
        while resolve(&access).is_ok() {
            thread::yield_now();
        }
        drop(access);
        waiter.join().unwrap().unwrap();
    });
}

//= protocol.md: name.2
#[test]
fn guessed_keys_find_nothing() {
    let world = World::new(64, Rights::ALL);
    let access = world.table.access();
    let found = (0..100_000)
        .chain(u32::MAX - 1000..=u32::MAX)
        .filter(|&key| key != world.region.key.0)
        .filter(|&key| {
            let start = world.region.start;
            access.resolve(world.domain, RemoteKey(key), start, 8, Rights::NONE).is_ok()
        });
    assert_eq!(found.count(), 0);
}

#[test]
fn keys_of_another_table_are_refused() {
    let (theirs, ours) = (World::new(64, Rights::ALL), World::new(64, Rights::ALL));
    let (region, own) = (theirs.region.id, ours.region.id);
    assert_eq!((region.index(), region.generation()), (own.index(), own.generation()));
    let target = theirs.resolve(theirs.region.start, 64, Rights::LOCAL_WRITE).unwrap();
    let refused = AccessError::ForeignRegion { region };
    let access = ours.table.access();
    assert_eq!(access.place(&target, 0, &[1]).unwrap_err(), refused);
    assert_eq!(access.source_of(&target, 0, 1).unwrap_err(), refused);
    assert_eq!(access.resolve_again(&target, ours.region.start, 1).unwrap_err(), refused);
    assert_eq!(access.resolve_local(region, 0, 1, Rights::NONE).unwrap_err(), refused);
    assert_eq!(access.source(region, 0, 1).unwrap_err(), refused);
    assert_eq!(access.copy_out(region, 0, &mut [0]).unwrap_err(), refused);
    drop(access);
    let refused = RegisterError::ForeignRegion { region };
    assert_eq!(ours.table.deregister(region), Err(refused));
    assert_eq!(ours.table.regions(), 1);
}

#[test]
fn a_domain_of_another_table_is_refused() {
    let (theirs, ours) = (World::new(64, Rights::ALL), World::new(64, Rights::ALL));
    let domain = theirs.domain;
    assert_eq!(format!("{domain:?}"), format!("{:?}", ours.domain));
    let refused = RegisterError::ForeignDomain { domain };
    assert_eq!(ours.table.register(domain, Buffer::new(8), Rights::NONE), Err(refused));
    assert_eq!(ours.table.release_domain(domain), Err(refused));
    let (access, Region { key, start, .. }) = (ours.table.access(), ours.region);
    let reached = access.resolve(domain, key, start, 8, Rights::REMOTE_READ);
    assert!(matches!(reached, Err(AccessError::WrongDomain { .. })), "{reached:?}");
}

//= protocol.md: answer.3
#[test]
fn atomics_refuse_misaligned_or_partial_words() {
    let world = World::new(64, Rights::ALL);
    let access = world.table.access();
    for offset in 1..8 {
        let address = world.region.start + offset;
        let target = world.resolve(address, 8, Rights::REMOTE_ATOMIC).unwrap();
        assert_eq!(access.fetch_add(&target, 1), Err(AccessError::Misaligned { address }));
        let swapped = access.compare_swap(&target, 0, 1);
        assert_eq!(swapped, Err(AccessError::Misaligned { address }));
    }
    let short = world.resolve(world.region.start, 7, Rights::REMOTE_ATOMIC).unwrap();
    assert!(matches!(access.fetch_add(&short, 1), Err(AccessError::Bounds { .. })));
    assert_eq!(world.bytes(), [0; 64]);
}

//= protocol.md: answer.3
#[test]
fn atomics_return_the_previous_value_of_the_word() {
    let world = World::new(64, Rights::ALL);
    let access = world.table.access();
    let target = world.resolve(world.region.start + 8, 8, Rights::REMOTE_ATOMIC).unwrap();
    world.buffer.store_u64(8, u64::MAX);
    assert_eq!(access.fetch_add(&target, 3), Ok(u64::MAX));
    assert_eq!(access.compare_swap(&target, 1, 9), Ok(2));
    assert_eq!(access.compare_swap(&target, 2, 9), Ok(2));
    assert_eq!(world.buffer.load_u64(8), 9);
    let target = world.resolve(world.region.start + 16, 8, Rights::LOCAL_WRITE).unwrap();
    access.write_value(&target, 77).unwrap();
    assert_eq!(access.read_value(&target), Ok(77));
    assert_eq!(world.buffer.load_u64(16), 77);
}

//= protocol.md: answer.4
#[test]
fn atomics_of_many_threads_lose_nothing() {
    const THREADS: u64 = 4;
    let rounds = if cfg!(miri) { 20 } else { 20_000 };
    let world = World::new(64, Rights::ALL);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..rounds {
                    let access = world.table.access();
                    let start = world.region.start;
                    let sum = world.resolve(start, 8, Rights::REMOTE_ATOMIC).unwrap();
                    access.fetch_add(&sum, 1).unwrap();
                    let swapped = world.resolve(start + 8, 8, Rights::REMOTE_ATOMIC).unwrap();
                    let mut held = access.compare_swap(&swapped, 0, 1).unwrap();
                    loop {
                        let now = access.compare_swap(&swapped, held, held + 1).unwrap();
                        if now == held {
                            break;
                        }
                        held = now;
                    }
                }
            });
        }
    });
    assert_eq!(world.buffer.load_u64(0), THREADS * rounds);
    // One thread has also replaced 0 by 1, which counts as one more addition.
    assert_eq!(world.buffer.load_u64(8), THREADS * rounds + 1);
}

//= protocol.md: relaxed.2
#[test]
fn a_reader_that_sees_the_tail_sees_all_bytes_before_it() {
    const LEN: usize = 200;
    let rounds: u8 = if cfg!(miri) { 3 } else { 250 };
    for first in [0, 1, 3, 4, 6] {
        let world = World::new(256, Rights::ALL);
        thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    let access = world.table.access();
                    let start = world.region.start;
                    let target = world.resolve(start, 256, Rights::REMOTE_WRITE).unwrap();
                    access.place(&target, first, &[round; LEN]).unwrap();
                    let more = first + LEN as u64;
                    access.place_tail(&target, more, &[round; 32]).unwrap();
                    while world.buffer.load_u8(255) != round {
                        thread::yield_now();
                    }
                }
            });
            for round in 1..=rounds {
                let last = first + LEN as u64 + 31;
                while world.buffer.load_u8(last) != round {
                    thread::yield_now();
                }
                let mut seen = [0; LEN + 32];
                world.buffer.read(first, &mut seen);
                assert_eq!(seen, [round; LEN + 32]);
                world.buffer.write(255, &[round]);
            }
        });
    }
}

#[test]
fn a_region_may_have_another_address_for_peers() {
    let (table, domain) = table();
    let buffer = Buffer::new(64);
    // SAFETY: the buffer outlives the table's accesses, and no reference to its bytes exists.
    let region = unsafe {
        table.register_raw_as(domain, buffer.as_ptr().wrapping_add(4), 40, 0, Rights::ALL)
    };
    let region = region.unwrap();
    assert_eq!((region.start, region.len), (0, 40));
    let access = table.access();
    let target = access.resolve(domain, region.key, 16, 8, Rights::ALL).unwrap();
    access.place(&target, 0, &[7; 8]).unwrap();
    let mut bytes = [0; 8];
    buffer.read(20, &mut bytes);
    assert_eq!(bytes, [7; 8]);
    assert_eq!(access.fetch_add(&target, 1), Err(AccessError::Misaligned { address: 16 }));
}

#[cfg(not(miri))]
mod whole_address_space {
    use super::*;
    use crate::error::RegisterError;
    use crate::mapping::Mapping;
    use crate::table::WHOLE_ADDRESS_SPACE_KEY;

    #[test]
    fn the_whole_address_space_region_reaches_all_bytes_and_words() {
        let Some((table, domain, whole)) = whole() else { return };
        assert_eq!(whole.key, WHOLE_ADDRESS_SPACE_KEY);
        let mapping = Mapping::new(2);
        let access = table.access();
        let start = mapping.address() + 4000;
        let target = access.resolve(domain, whole.key, start, 200, Rights::ALL).unwrap();
        access.place(&target, 0, &[1; 100]).unwrap();
        access.place_tail(&target, 100, &[2; 100]).unwrap();
        assert_eq!(mapping.bytes()[4000..4100], [1; 100]);
        assert_eq!(mapping.bytes()[4100..4200], [2; 100]);
        let mut out = [0; 2];
        access.copy_from(&target, 99, &mut out).unwrap();
        assert_eq!(out, [1, 2]);
        access.copy_out(whole.id, start + 99, &mut out).unwrap();
        assert_eq!(out, [1, 2]);
        let slice = access.source(whole.id, start, 10).unwrap();
        assert_eq!(slice.start, mapping.start().wrapping_add(4000).cast_const());

        let word = mapping.address() + 64;
        let target = access.resolve(domain, whole.key, word, 8, Rights::ALL).unwrap();
        assert_eq!(access.fetch_add(&target, 5), Ok(0));
        assert_eq!(access.compare_swap(&target, 5, 6), Ok(5));
        assert_eq!(access.read_value(&target), Ok(6));
    }

    #[test]
    fn unmapped_memory_is_an_error_with_the_address() {
        let Some((table, domain, whole)) = whole() else { return };
        let mapping = Mapping::new(3);
        mapping.unmap_page(1);
        mapping.protect_page(2, libc::PROT_READ);
        let access = table.access();
        let hole = mapping.address() + 4096;
        let resolve =
            |address, len| access.resolve(domain, whole.key, address, len, Rights::ALL).unwrap();
        let unmapped = AccessError::Unmapped { address: hole };

        let across = resolve(hole - 10, 20);
        assert_eq!(access.place(&across, 0, &[9; 20]), Err(unmapped));
        assert_eq!(access.place_tail(&across, 0, &[9; 20]), Err(unmapped));
        assert_eq!(access.copy_from(&across, 0, &mut [0; 20]), Err(unmapped));
        assert_eq!(access.place(&across, 0, &[9; 10]), Ok(()));
        let word = resolve(hole, 8);
        assert_eq!(access.fetch_add(&word, 1), Err(unmapped));
        assert_eq!(access.compare_swap(&word, 0, 1), Err(unmapped));

        let read_only = resolve(hole + 4096, 8);
        let unmapped = AccessError::Unmapped { address: hole + 4096 };
        assert_eq!(access.place(&read_only, 0, &[1]), Err(unmapped));
        assert_eq!(access.fetch_add(&read_only, 1), Err(unmapped));
        assert_eq!(access.read_value(&read_only), Ok(0));

        for address in [0, 8, 1 << 63, u64::MAX - 15] {
            let target = resolve(address, 8);
            let unmapped = Err(AccessError::Unmapped { address });
            assert_eq!(access.place(&target, 0, &[1]), unmapped);
            assert_eq!(access.copy_from(&target, 0, &mut [1]), unmapped);
            assert_eq!(access.fetch_add(&target, 1).map(drop), unmapped);
        }
        let wraps = access.resolve(domain, whole.key, u64::MAX, 2, Rights::ALL);
        assert!(matches!(wraps, Err(AccessError::Bounds { .. })));
    }

    //= protocol.md: feature.2
    #[test]
    fn the_whole_address_space_region_is_found_only_in_its_domain_while_registered() {
        let Some((table, domain, whole)) = whole() else { return };
        let other = table.allocate_domain();
        let access = table.access();
        let unknown = AccessError::InvalidKey { name: u64::from(u32::MAX) };
        let resolve = |domain| access.resolve(domain, whole.key, 4096, 8, Rights::REMOTE_READ);
        assert!(resolve(domain).is_ok());
        assert_eq!(resolve(other).unwrap_err(), unknown);
        assert_eq!(resolve(ProtectionDomain::NONE).unwrap_err(), unknown);
        let twice = table.register_whole_address_space(domain, Rights::NONE);
        assert_eq!(twice, Err(RegisterError::WholeAddressSpaceTwice { domain }));
        drop(access);

        table.deregister(whole.id).unwrap();
        let access = table.access();
        let gone = access.resolve(domain, whole.key, 4096, 8, Rights::REMOTE_READ);
        assert_eq!(gone.unwrap_err(), unknown);
        let again = table.register_whole_address_space(domain, Rights::REMOTE_READ).unwrap();
        let write = access.resolve(domain, again.key, 4096, 8, Rights::REMOTE_WRITE);
        assert!(matches!(write, Err(AccessError::Permission { .. })));
    }

    /// Registers the whole address space. Returns `None` if the process may not copy its own memory
    /// through the kernel.
    fn whole() -> Option<(MemoryTable, ProtectionDomain, Region)> {
        let (table, domain) = table();
        match table.register_whole_address_space(domain, Rights::ALL) {
            Ok(whole) => Some((table, domain, whole)),
            Err(error @ RegisterError::NoFaultSafeCopies { .. }) => {
                println!("skipped: {error}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// One region in one table.
struct World {
    table: MemoryTable,
    domain: ProtectionDomain,
    buffer: Arc<Buffer>,
    region: Region,
}

impl World {
    fn new(len: u64, rights: Rights) -> Self {
        Self::in_table(table().0, len, rights)
    }

    fn in_table(table: MemoryTable, len: u64, rights: Rights) -> Self {
        let buffer = Buffer::new(len);
        let domain = table.allocate_domain();
        let region = table.register(domain, buffer.clone(), rights).unwrap();
        Self { table, domain, buffer, region }
    }

    fn resolve(&self, address: u64, len: u64, want: Rights) -> Result<Target, AccessError> {
        self.table.access().resolve(self.domain, self.region.key, address, len, want)
    }

    fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.buffer.len() as usize];
        self.buffer.read(0, &mut bytes);
        bytes
    }
}

fn table() -> (MemoryTable, ProtectionDomain) {
    let table = MemoryTable::new(TableLimits::default(), [0x5eed, 0xfeed]);
    let domain = table.allocate_domain();
    (table, domain)
}
