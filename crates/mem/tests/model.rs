//! Compares the table with a simple model. The test makes random registrations, accesses and
//! deregistrations in both. The table must accept exactly the calls that the model accepts, and
//! must change exactly the bytes that the model changes.

use std::sync::Arc;

use mem::{
    AccessError, Buffer, MemoryTable, ProtectionDomain, Region, Rights, TableLimits, Target,
};
use proptest::prelude::*;

/// Length of the arena in bytes. Regions may be anywhere in it and may overlap. All other bytes are
/// canaries.
const ARENA_BYTES: u64 = 512;
const CANARY: u8 = 0xa5;
const DOMAINS: usize = 2;
const REGIONS_MAX: u32 = 4;

#[derive(Clone, Debug)]
enum Step {
    Register { domain: usize, start: u64, len: u64, rights: Rights },
    Deregister { region: usize },
    Resolve { domain: usize, region: usize, offset: u64, len: u64, want: Rights },
    ResolveLocal { region: usize, offset: u64, len: u64, want: Rights },
    Place { target: usize, offset: u64, len: usize, byte: u8, tail: bool },
    CopyFrom { target: usize, offset: u64, len: usize },
    CopyOut { region: usize, offset: u64, len: usize },
    FetchAdd { target: usize, operand: u64 },
    CompareSwap { target: usize, compare: u64, swap: u64 },
}

/// Generates distances: mostly small numbers, sometimes numbers just below 2^64, rarely arbitrary
/// numbers.
fn distance() -> impl Strategy<Value = u64> {
    prop_oneof![
        16 => 0..80_u64,
        4 => 0..=ARENA_BYTES,
        1 => (0..80_u64).prop_map(|back| 0_u64.wrapping_sub(back)),
        1 => any::<u64>(),
    ]
}

fn rights() -> impl Strategy<Value = Rights> {
    let any_rights = (0..=Rights::ALL.bits()).prop_filter_map("unknown right", Rights::from_bits);
    prop_oneof![
        2 => Just(Rights::ALL),
        1 => Just(Rights::REMOTE_WRITE),
        1 => Just(Rights::LOCAL_WRITE),
        1 => Just(Rights::REMOTE_ATOMIC),
        2 => any_rights,
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let (d, r, t, len) = (0..DOMAINS, any::<usize>(), any::<usize>(), 0..64_usize);
    prop_oneof![
        3 => (d.clone(), 0..ARENA_BYTES, 0..200_u64, rights())
            .prop_map(|(domain, start, len, rights)| Step::Register {
                domain,
                start,
                len: len.min(ARENA_BYTES - start),
                rights,
            }),
        2 => r.prop_map(|region| Step::Deregister { region }),
        6 => (d, r, distance(), distance(), rights())
            .prop_map(|(domain, region, offset, len, want)| Step::Resolve {
                domain, region, offset, len, want,
            }),
        2 => (r, distance(), distance(), rights())
            .prop_map(|(region, offset, len, want)| Step::ResolveLocal {
                region, offset, len, want,
            }),
        8 => (t, distance(), len.clone(), any::<u8>(), any::<bool>())
            .prop_map(|(target, offset, len, byte, tail)| Step::Place {
                target, offset, len, byte, tail,
            }),
        3 => (t, distance(), len.clone())
            .prop_map(|(target, offset, len)| Step::CopyFrom { target, offset, len }),
        2 => (r, distance(), len)
            .prop_map(|(region, offset, len)| Step::CopyOut { region, offset, len }),
        2 => (t, any::<u64>())
            .prop_map(|(target, operand)| Step::FetchAdd { target, operand }),
        2 => (t, prop_oneof![Just(u64::from_ne_bytes([CANARY; 8])), any::<u64>()], any::<u64>())
            .prop_map(|(target, compare, swap)| Step::CompareSwap { target, compare, swap }),
    ]
}

struct ModelRegion {
    region: Region,
    domain: usize,
    live: bool,
}

impl ModelRegion {
    /// Returns whether the region contains a range. Computes in 128 bits, so that no sum wraps.
    fn contains(&self, address: u128, len: u64) -> bool {
        let (start, end) = (u128::from(self.region.start), address + u128::from(len));
        start <= address && end <= start + u128::from(self.region.len)
    }
}

struct ModelTarget {
    target: Target,
    region: usize,
}

struct World {
    table: MemoryTable,
    domains: Vec<ProtectionDomain>,
    arena: Arc<Buffer>,
    bytes: Vec<u8>,
    regions: Vec<ModelRegion>,
    targets: Vec<ModelTarget>,
}

impl World {
    fn new() -> Self {
        let limits = TableLimits::default().regions_max(REGIONS_MAX).domains_max(DOMAINS as u32);
        let table = MemoryTable::new(limits, [0x1234, 0x5678]);
        let domains = (0..DOMAINS).map(|_| table.allocate_domain()).collect();
        let arena = Buffer::new(ARENA_BYTES);
        let bytes = vec![CANARY; ARENA_BYTES as usize];
        arena.write(0, &bytes);
        Self { table, domains, arena, bytes, regions: Vec::new(), targets: Vec::new() }
    }

    fn run(&mut self, step: &Step) -> Result<(), TestCaseError> {
        match *step {
            Step::Register { domain, start, len, rights } => {
                self.register(domain, start, len, rights)
            }
            Step::Deregister { region } => self.deregister(region),
            Step::Resolve { domain, region, offset, len, want } => {
                self.resolve(domain, region, offset, len, want)
            }
            Step::ResolveLocal { region, offset, len, want } => {
                self.resolve_local(region, offset, len, want)
            }
            Step::Place { target, offset, len, byte, tail } => {
                let pattern: Vec<u8> = (0..len).map(|at| byte.wrapping_add(at as u8)).collect();
                self.place(target, offset, &pattern, tail)
            }
            Step::CopyFrom { target, offset, len } => self.copy_from(target, offset, len),
            Step::CopyOut { region, offset, len } => self.copy_out(region, offset, len),
            Step::FetchAdd { target, operand } => self.atomic(
                target,
                |table, target| table.access().fetch_add(target, operand),
                |held| held.wrapping_add(operand),
            ),
            Step::CompareSwap { target, compare, swap } => self.atomic(
                target,
                |table, target| table.access().compare_swap(target, compare, swap),
                |held| if held == compare { swap } else { held },
            ),
        }?;
        let mut now = vec![0; self.bytes.len()];
        self.arena.read(0, &mut now);
        prop_assert_eq!(&now, &self.bytes);
        Ok(())
    }

    fn register(
        &mut self,
        domain: usize,
        start: u64,
        len: u64,
        rights: Rights,
    ) -> Result<(), TestCaseError> {
        let memory = self.arena.as_ptr().wrapping_add(start as usize);
        // SAFETY: the range lies in the arena, which outlives the table and is only copied.
        let registered =
            unsafe { self.table.register_raw(self.domains[domain], memory, len, rights) };
        let live = self.regions.iter().filter(|region| region.live).count();
        prop_assert_eq!(registered.is_ok(), live < REGIONS_MAX as usize);
        if let Ok(region) = registered {
            let known = |old: &ModelRegion| old.region.key == region.key;
            prop_assert!(!self.regions.iter().any(known), "the key was used before");
            prop_assert_eq!(region.start, self.arena.address() + start);
            self.regions.push(ModelRegion { region, domain, live: true });
        }
        Ok(())
    }

    fn deregister(&mut self, region: usize) -> Result<(), TestCaseError> {
        let Some(region) = pick(self.regions.len(), region) else { return Ok(()) };
        let region = &mut self.regions[region];
        prop_assert_eq!(self.table.deregister(region.region.id).is_ok(), region.live);
        region.live = false;
        Ok(())
    }

    fn resolve(
        &mut self,
        domain: usize,
        region: usize,
        offset: u64,
        len: u64,
        want: Rights,
    ) -> Result<(), TestCaseError> {
        let Some(index) = pick(self.regions.len(), region) else { return Ok(()) };
        let known = &self.regions[index];
        let address = known.region.start.wrapping_add(offset);
        let resolved =
            self.table.access().resolve(self.domains[domain], known.region.key, address, len, want);
        let granted = known.live
            && known.domain == domain
            && known.region.rights.contains(want)
            && known.contains(u128::from(address), len);
        prop_assert_eq!(resolved.is_ok(), granted, "{:?}", resolved);
        let located =
            self.table.access().locate(self.domains[domain], known.region.key, address, len, want);
        let place = granted.then(|| (known.region.id, address - known.region.start));
        prop_assert_eq!(located.ok(), place);
        self.keep(index, address, len, resolved)
    }

    fn resolve_local(
        &mut self,
        region: usize,
        offset: u64,
        len: u64,
        want: Rights,
    ) -> Result<(), TestCaseError> {
        let Some(index) = pick(self.regions.len(), region) else { return Ok(()) };
        let known = &self.regions[index];
        let address = u128::from(known.region.start) + u128::from(offset);
        let resolved = self.table.access().resolve_local(known.region.id, offset, len, want);
        let granted =
            known.live && known.region.rights.contains(want) && known.contains(address, len);
        prop_assert_eq!(resolved.is_ok(), granted, "{:?}", resolved);
        self.keep(index, address as u64, len, resolved)
    }

    fn keep(
        &mut self,
        region: usize,
        address: u64,
        len: u64,
        resolved: Result<Target, AccessError>,
    ) -> Result<(), TestCaseError> {
        if let Ok(target) = resolved {
            prop_assert_eq!((target.address(), target.len()), (address, len));
            self.targets.push(ModelTarget { target, region });
        }
        Ok(())
    }

    fn place(
        &mut self,
        target: usize,
        offset: u64,
        pattern: &[u8],
        tail: bool,
    ) -> Result<(), TestCaseError> {
        let Some(known) = pick(self.targets.len(), target).map(|at| &self.targets[at]) else {
            return Ok(());
        };
        let access = self.table.access();
        let placed = if tail {
            access.place_tail(&known.target, offset, pattern)
        } else {
            access.place(&known.target, offset, pattern)
        };
        let granted = self.usable(known, offset, pattern.len() as u64)
            && known.target.rights().intersects(Rights::LOCAL_WRITE | Rights::REMOTE_WRITE);
        prop_assert_eq!(placed.is_ok(), granted, "{:?}", placed);
        if granted {
            let start = self.position(known.target.address() + offset);
            self.bytes[start..start + pattern.len()].copy_from_slice(pattern);
        }
        Ok(())
    }

    fn copy_from(&self, target: usize, offset: u64, len: usize) -> Result<(), TestCaseError> {
        let Some(known) = pick(self.targets.len(), target).map(|at| &self.targets[at]) else {
            return Ok(());
        };
        let mut out = vec![0; len];
        let copied = self.table.access().copy_from(&known.target, offset, &mut out);
        let rights = known.target.rights();
        let granted = self.usable(known, offset, len as u64)
            && (rights.contains(Rights::REMOTE_READ)
                || !rights.intersects(Rights::REMOTE_WRITE | Rights::REMOTE_ATOMIC));
        prop_assert_eq!(copied.is_ok(), granted, "{:?}", copied);
        if granted {
            let start = self.position(known.target.address() + offset);
            prop_assert_eq!(&out[..], &self.bytes[start..start + len]);
        }
        Ok(())
    }

    fn copy_out(&self, region: usize, offset: u64, len: usize) -> Result<(), TestCaseError> {
        let Some(known) = pick(self.regions.len(), region).map(|at| &self.regions[at]) else {
            return Ok(());
        };
        let mut out = vec![0; len];
        let copied = self.table.access().copy_out(known.region.id, offset, &mut out);
        let address = u128::from(known.region.start) + u128::from(offset);
        prop_assert_eq!(copied.is_ok(), known.live && known.contains(address, len as u64));
        if copied.is_ok() {
            let start = self.position(address as u64);
            prop_assert_eq!(&out[..], &self.bytes[start..start + len]);
        }
        Ok(())
    }

    fn atomic(
        &mut self,
        target: usize,
        run: impl Fn(&MemoryTable, &Target) -> Result<u64, AccessError>,
        change: impl Fn(u64) -> u64,
    ) -> Result<(), TestCaseError> {
        let Some(known) = pick(self.targets.len(), target).map(|at| &self.targets[at]) else {
            return Ok(());
        };
        let result = run(&self.table, &known.target);
        let granted = self.usable(known, 0, 8)
            && known.target.address().is_multiple_of(8)
            && known.target.rights().intersects(Rights::LOCAL_WRITE | Rights::REMOTE_ATOMIC);
        prop_assert_eq!(result.is_ok(), granted, "{:?}", result);
        if let Ok(held) = result {
            let start = self.position(known.target.address());
            let word = &mut self.bytes[start..start + 8];
            prop_assert_eq!(&held.to_ne_bytes()[..], &word[..]);
            word.copy_from_slice(&change(held).to_ne_bytes());
        }
        Ok(())
    }

    /// Returns whether the target's region is live and the range is within the target.
    fn usable(&self, known: &ModelTarget, offset: u64, len: u64) -> bool {
        let end = u128::from(offset) + u128::from(len);
        self.regions[known.region].live && end <= u128::from(known.target.len())
    }

    fn position(&self, address: u64) -> usize {
        (address - self.arena.address()) as usize
    }
}

fn pick(len: usize, choice: usize) -> Option<usize> {
    choice.checked_rem(len)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: if cfg!(miri) { 4 } else { 512 },
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn grants_and_bytes_match_the_model(steps in prop::collection::vec(step(), 1..120)) {
        let mut world = World::new();
        for step in &steps {
            world.run(step)?;
        }
    }
}
