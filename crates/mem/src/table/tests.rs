use std::sync::atomic::AtomicBool;
use std::thread;

use super::*;
use crate::copy;
use crate::error::AccessError;
#[cfg(not(miri))]
use crate::mapping::Mapping;

#[test]
fn deregister_waits_for_an_access_that_began_before() {
    let (table, domain) = table();
    let region = table.register(domain, Buffer::new(64), Rights::LOCAL_WRITE).unwrap();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        let access = table.access();
        let target = access.resolve_local(region.id, 0, 64, Rights::LOCAL_WRITE).unwrap();
        let waiter = scope.spawn(|| {
            table.deregister(region.id).unwrap();
            assert!(ended.load(Ordering::SeqCst), "the wait ended before the access");
        });
        while !table.gate.is_waited_for() && !waiter.is_finished() {
            thread::yield_now();
        }
        let stale = Err(AccessError::InvalidKey { name: region.id.to_raw() });
        assert_eq!(access.place(&target, 0, &[1]), stale);
        ended.store(true, Ordering::SeqCst);
        drop(access);
        waiter.join().unwrap();
    });
}

#[test]
fn a_changed_region_keeps_only_its_key() {
    let (table, domain) = table();
    let other = table.allocate_domain();
    let (before, after) = (Buffer::new(64), Buffer::new(32));
    let rights = Rights::REMOTE_READ;
    // SAFETY: the buffers outlive the table's use of them.
    let region = unsafe { table.register_raw_lazily(domain, before.as_ptr(), 64, 0x1000, rights) };
    let region = region.unwrap();
    let change = |id, domain, len| {
        let start = after.as_ptr();
        // SAFETY: the buffers outlive the table's use of them.
        unsafe { table.change_raw_lazily(id, domain, start, len, 0x2000, Rights::LOCAL_WRITE) }
    };
    let unknown = ProtectionDomain::NONE;
    assert!(change(region.id, unknown, 32).is_err());
    let reads = |domain, start| {
        table.access().resolve(domain, region.key, start, 8, Rights::REMOTE_READ).is_ok()
    };
    assert!(reads(domain, 0x1000), "a refused change removed the region's rights");
    let changed = change(region.id, other, 32).unwrap();
    assert_eq!(changed.key, region.key);
    assert_eq!((changed.start, changed.len, changed.rights), (0x2000, 32, Rights::LOCAL_WRITE));
    assert!(!reads(domain, 0x1000) && !reads(other, 0x2000), "the former right still works");
    let writes = |id, len| table.access().resolve_local(id, 0, len, Rights::LOCAL_WRITE).is_ok();
    assert!(writes(changed.id, 32) && !writes(changed.id, 33));
    assert!(!writes(region.id, 8), "work from before the change accesses the region");
    assert_eq!(table.regions(), 1);
    table.release_domain(domain).unwrap();
    assert!(table.release_domain(other).is_err(), "the region does not belong to the other domain");
    assert!(change(region.id, other, 32).is_err());
    table.deregister(changed.id).unwrap();
    table.release_domain(other).unwrap();
    assert_eq!(
        same_key_generation(1_u32.wrapping_neg() << KEY_GENERATION_BITS),
        1 << KEY_GENERATION_BITS
    );
}

#[test]
fn memory_is_not_accessed_after_deregister_while_other_accesses_continue() {
    const PLACERS: usize = 2;
    const BYTES: usize = 256;
    let rounds = if cfg!(miri) { 5 } else { 200 };
    let (table, domain) = table();
    let buffer = Buffer::new(BYTES as u64);
    // The key and the identifier of the current region. The placing threads read them without
    // synchronization.
    let current = [AtomicU64::new(0), AtomicU64::new(0)];
    let stop = AtomicBool::new(false);
    let placed = AtomicU64::new(0);
    let mut touched = false;
    thread::scope(|scope| {
        for _ in 0..PLACERS {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    let key = RemoteKey(current[0].load(Ordering::Relaxed) as u32);
                    let raw = current[1].load(Ordering::Relaxed);
                    let id = RegionId::from_raw(table.number, raw);
                    let (start, len) = (buffer.address(), BYTES as u64);
                    let access = table.access();
                    let remote = access.resolve(domain, key, start, len, Rights::REMOTE_READ);
                    let remote = remote.and_then(|at| access.source_of(&at, 0, BYTES as u32));
                    let local = access.source(id, 0, BYTES as u32);
                    for slice in [remote, local].into_iter().flatten() {
                        // Hold the slice about as long as a turn may hold it.
                        thread::yield_now();
                        let bytes = [0xff; BYTES];
                        // SAFETY: the buffer outlives the threads.
                        unsafe { copy::copy(slice.start.cast_mut(), bytes.as_ptr(), BYTES) };
                        placed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
        for _ in 0..rounds {
            let region = table.register(domain, buffer.clone(), Rights::ALL).unwrap();
            current[0].store(u64::from(region.key.0), Ordering::Relaxed);
            current[1].store(region.id.to_raw(), Ordering::Relaxed);
            let before = placed.load(Ordering::Relaxed);
            while placed.load(Ordering::Relaxed) == before {
                thread::yield_now();
            }
            table.deregister(region.id).unwrap();
            buffer.write(0, &[0; BYTES]);
            for _ in 0..3 {
                thread::yield_now();
                let mut bytes = [0; BYTES];
                buffer.read(0, &mut bytes);
                touched |= bytes != [0; BYTES];
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    assert!(!touched, "bytes changed after the end of their region");
}

#[test]
fn a_buffer_lives_until_its_region_is_deregistered() {
    let (table, domain) = table();
    let buffer = Buffer::new(64);
    let region = table.register(domain, buffer.clone(), Rights::NONE).unwrap();
    assert_eq!(Arc::strong_count(&buffer), 2);
    table.deregister(region.id).unwrap();
    assert_eq!(Arc::strong_count(&buffer), 1);
}

#[test]
fn deregister_inside_an_access_is_refused_instead_of_deadlocking() {
    let (table, domain) = table();
    let region = table.register(domain, Buffer::new(64), Rights::NONE).unwrap().id;
    let access = table.access();
    assert_eq!(table.deregister(region), Err(RegisterError::InsideAccess { region }));
    drop(access);
    assert_eq!(table.deregister(region), Ok(()));
    assert_eq!(table.deregister(region), Err(RegisterError::UnknownRegion { region }));
}

#[cfg(not(miri))]
#[test]
fn a_lazily_registered_range_works_like_any_other() {
    // These are more bytes than any test machine has.
    const BYTES: usize = 1 << 42;
    const HOLE_BYTES: usize = 1 << 21;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: the kernel chooses an unused address.
    let start = unsafe { libc::mmap(core::ptr::null_mut(), BYTES, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        println!("skipped: no range of addresses as large");
        return;
    }
    let (table, domain) = table();
    let (rights, len) = (Rights::REMOTE_WRITE, BYTES as u64);
    // SAFETY: the mapping stays until the region has ended.
    let region = unsafe { table.register_raw_lazily(domain, start.cast(), len, 0, rights) };
    let region = region.expect("mapped");
    let access = table.access();
    let target = access.resolve(domain, region.key, len / 2, 8, rights).expect("in the region");
    assert_eq!(access.place(&target, 0, &[7; 8]), Ok(()));
    drop(access);
    table.deregister(region.id).expect("registered");
    // SAFETY: the mapping belongs to this test, including the hole.
    unsafe {
        assert_eq!(libc::munmap(start.wrapping_byte_add(BYTES / 2), HOLE_BYTES), 0);
        let refused = table.register_raw_lazily(domain, start.cast(), len, 0, rights);
        let address = start.expose_provenance() as u64;
        let hole = address + len / 2;
        let expected = RegisterError::Unreadable { start: address, len, address: hole };
        assert_eq!(refused, Err(expected));
        // Another test may have mapped memory in the hole, so do not unmap the hole again.
        libc::munmap(start, BYTES / 2);
        let behind = BYTES / 2 + HOLE_BYTES;
        libc::munmap(start.wrapping_byte_add(behind), BYTES - behind);
    }
}

#[test]
fn a_full_table_refuses_registrations_until_a_slot_is_free() {
    let limits = TableLimits { regions_max: 3, domains_max: 4 };
    let table = MemoryTable::new(limits, [1, 2]);
    let domain = table.allocate_domain();
    let register = || table.register(domain, Buffer::new(8), Rights::NONE);
    let regions: Vec<_> = (0..3).map(|_| register().unwrap()).collect();
    assert_eq!(register(), Err(RegisterError::TableFull { regions_max: 3 }));
    table.deregister(regions[1].id).unwrap();
    let region = register().unwrap();
    assert_eq!(region.id.index(), regions[1].id.index());
    assert_ne!(region.id, regions[1].id);
    assert_ne!(region.key, regions[1].key);
    assert_eq!(table.regions(), 3);
}

#[test]
fn reserved_keys_are_never_handed_out() {
    let limits = TableLimits { regions_max: 1, domains_max: 1 };
    for reserved in [0, u32::MAX] {
        // Find a table key with which slot 0 gets the reserved key in some generation.
        let (seed, generation) = (0..)
            .find_map(|seed| {
                let plain = KeyedPermutation::new([seed, 0]).decrypt(reserved);
                (plain <= KEY_GENERATION_MASK && plain > 0).then_some((seed, plain))
            })
            .unwrap();
        let table = MemoryTable::new(limits, [seed, 0]);
        let next = table.next_generation(0, generation - 1);
        assert!(next > generation, "generation {generation} was not skipped");
    }
}

#[test]
fn released_domains_are_invalid_and_their_names_are_not_reused() {
    let limits = TableLimits { regions_max: 8, domains_max: 2 };
    let table = MemoryTable::new(limits, [1, 2]);
    let (first, second) = (table.allocate_domain(), table.allocate_domain());
    assert_ne!(first, second);
    assert_eq!(table.allocate_domain(), ProtectionDomain::NONE);
    let register = |domain| table.register(domain, Buffer::new(8), Rights::NONE);
    let none = Err(RegisterError::UnknownDomain { domain: ProtectionDomain::NONE });
    assert_eq!(register(ProtectionDomain::NONE), none);

    let region = register(first).unwrap();
    let busy = RegisterError::DomainBusy { domain: first, regions: 1 };
    assert_eq!(table.release_domain(first), Err(busy));
    table.deregister(region.id).unwrap();
    assert_eq!(table.release_domain(first), Ok(()));
    let unknown = RegisterError::UnknownDomain { domain: first };
    assert_eq!(table.release_domain(first), Err(unknown));
    assert_eq!(register(first), Err(unknown));
    let third = table.allocate_domain();
    assert_eq!(third.index(), first.index());
    assert_ne!(third, first);
    assert_eq!(register(first), Err(unknown));
    assert!(register(third).is_ok());
}

#[test]
fn ranges_that_wrap_are_refused() {
    let (table, domain) = table();
    let register = |start: u64, len| {
        let start = core::ptr::without_provenance_mut(start as usize);
        // SAFETY: every call below is refused, or registers no byte.
        unsafe { table.register_raw(domain, start, len, Rights::NONE) }
    };
    for (start, len) in [(u64::MAX, 1), (1, u64::MAX), (u64::MAX - 4095, 4096)] {
        assert_eq!(register(start, len), Err(RegisterError::Wraps { start, len }));
    }
    assert!(register(u64::MAX, 0).is_ok());
}

#[test]
#[cfg(not(miri))]
fn registering_unmapped_memory_fails_with_its_address() {
    let (table, domain) = table();
    let mapping = Mapping::new(3);
    mapping.protect_page(2, libc::PROT_READ);
    let (start, len) = (mapping.address(), 3 * Mapping::PAGE as u64);
    let register = |rights| {
        // SAFETY: the mapping outlives the table's accesses; the test makes none.
        unsafe { table.register_raw(domain, mapping.start(), len, rights) }
    };
    for rights in [Rights::LOCAL_WRITE, Rights::REMOTE_WRITE, Rights::REMOTE_ATOMIC] {
        let address = start + 2 * Mapping::PAGE as u64;
        assert_eq!(register(rights), Err(RegisterError::Unwritable { start, len, address }));
    }
    let region = register(Rights::REMOTE_READ).unwrap();
    table.deregister(region.id).unwrap();
    mapping.unmap_page(1);
    let address = start + Mapping::PAGE as u64;
    let refused = Err(RegisterError::Unreadable { start, len, address });
    assert_eq!(register(Rights::REMOTE_READ), refused);
    assert_eq!(table.regions(), 0);
}

#[test]
fn resolving_again_without_a_look_up_equals_a_fresh_resolution() {
    let (table, domain) = table();
    let rights = Rights::REMOTE_WRITE;
    let region = table.register(domain, Buffer::new(64), rights).unwrap();
    let access = table.access();
    let resolve = |address, len| access.resolve(domain, region.key, address, len, rights);
    let known = resolve(region.start, 0).unwrap();
    for (address, len) in [(region.start + 8, 56), (region.start, 65), (region.start - 1, 1)] {
        let (again, fresh) = (access.resolve_again(&known, address, len), resolve(address, len));
        assert_eq!(again.map(|target| target.address()), fresh.map(|target| target.address()));
    }
    drop(access);
    table.deregister(region.id).unwrap();
    assert!(table.access().resolve_again(&known, region.start, 8).is_err());
}

#[test]
fn memory_registered_under_two_addresses_resolves_to_one_memory_address() {
    let (table, domain) = table();
    let buffer = Buffer::new(64);
    let rights = Rights::REMOTE_WRITE;
    let plain = table.register(domain, Arc::clone(&buffer), rights).unwrap();
    let named = table.register_as(domain, Arc::clone(&buffer), 0, rights);
    let wraps = table.register_as(domain, Arc::clone(&buffer), u64::MAX - 62, rights);
    assert_eq!(wraps, Err(RegisterError::Wraps { start: u64::MAX - 62, len: 64 }));
    let access = table.access();
    for (region, address) in [(plain, plain.start + 8), (named.unwrap(), 8)] {
        let target = access.resolve(domain, region.key, address, 8, rights).unwrap();
        assert_eq!(access.memory_address(&target), Ok(buffer.address() + 8));
    }
}

#[test]
fn a_part_of_a_buffer_has_its_own_bounds_and_addresses() {
    let (table, domain) = table();
    let buffer = Buffer::new(64);
    let register =
        |part, start| table.register_part(domain, Arc::clone(&buffer), part, start, Rights::ALL);
    let region = register(8..24, 0x1000).unwrap();
    let access = table.access();
    let resolve =
        |address, len| access.resolve(domain, region.key, address, len, Rights::REMOTE_WRITE);
    access.place(&resolve(0x1000, 16).unwrap(), 0, &[7; 16]).unwrap();
    for (address, len) in [(0xfff, 1), (0x1000, 17), (0x1010, 1)] {
        assert!(resolve(address, len).is_err());
    }
    let mut bytes = [0; 64];
    buffer.read(0, &mut bytes);
    assert!(bytes.iter().enumerate().all(|(at, &byte)| (byte == 7) == (8..24).contains(&at)));
    let (start, buffer_bytes) = (60, 64);
    let outside = Err(RegisterError::OutsideBuffer { start, end: 65, buffer_bytes });
    assert_eq!(register(60..65, 0), outside);
    assert!(matches!(register(0..8, u64::MAX), Err(RegisterError::Wraps { .. })));
}

#[test]
fn the_table_is_shared_between_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<MemoryTable>();
    shared::<crate::access::Target>();
}

fn table() -> (MemoryTable, ProtectionDomain) {
    let table = MemoryTable::new(TableLimits::default(), [0x5eed, 0xfeed]);
    let domain = table.allocate_domain();
    (table, domain)
}
