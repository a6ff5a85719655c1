use std::sync::Arc;

use proptest::prelude::*;

use super::*;
use crate::buffer::Buffer;
use crate::table::{Region, TableLimits};

const BYTES: u64 = 64;
const KEY: RemoteKey = RemoteKey(0x1234_5678);

struct Place {
    table: MemoryTable,
    domain: ProtectionDomain,
    buffer: Arc<Buffer>,
    region: Region,
}

impl Place {
    /// Makes a region that only its owner may write to.
    fn new() -> Self {
        Self::with_rights(Rights::LOCAL_WRITE)
    }

    fn with_rights(rights: Rights) -> Self {
        let table = MemoryTable::new(TableLimits { regions_max: 8, domains_max: 4 }, [1, 2]);
        let domain = table.allocate_domain();
        let buffer = Buffer::new(BYTES);
        let region = table.register(domain, Arc::clone(&buffer), rights).expect("room");
        Self { table, domain, buffer, region }
    }

    /// Makes a window of the bytes 16 to 48, at the remote addresses 1000 to 1032.
    fn window(&self, rights: Rights) -> Window {
        let reach = Reach::Domain;
        Window { region: self.region.id, offset: 16, len: 32, remote_start: 1000, rights, reach }
    }

    fn resolve(&self, address: u64, len: u64, want: Rights) -> Result<(), AccessError> {
        self.resolve_as(5, KEY, address, len, want)
    }

    fn resolve_as(
        &self,
        connection: u64,
        key: RemoteKey,
        address: u64,
        len: u64,
        want: Rights,
    ) -> Result<(), AccessError> {
        let access = self.table.access();
        access.resolve_for(self.domain, connection, key, address, len, want).map(|_| ())
    }
}

const UNKNOWN: AccessError = AccessError::InvalidKey { name: KEY.0 as u64 };

#[test]
fn a_window_is_written_and_read_at_its_offset_in_the_region() {
    let place = Place::new();
    let rights = Rights::REMOTE_WRITE.union(Rights::REMOTE_READ).union(Rights::REMOTE_ATOMIC);
    place.table.bind(KEY, place.window(rights)).expect("a window");
    let access = place.table.access();
    let resolve = |want| access.resolve_for(place.domain, 5, KEY, 1008, 8, want).expect("inside");
    access.place(&resolve(Rights::REMOTE_WRITE), 0, &[7; 8]).expect("written");
    let mut bytes = [0; BYTES as usize];
    place.buffer.read(0, &mut bytes);
    let expected: Vec<u8> =
        (0..BYTES).map(|at| if (24..32).contains(&at) { 7 } else { 0 }).collect();
    assert_eq!(bytes[..], expected);
    let mut read = [0; 8];
    access.copy_from(&resolve(Rights::REMOTE_READ), 0, &mut read).expect("read");
    assert_eq!(read, [7; 8]);
    let held = access.fetch_add(&resolve(Rights::REMOTE_ATOMIC), 1).expect("added");
    assert_eq!(held, u64::from_ne_bytes([7; 8]));
}

#[test]
fn a_target_of_a_window_reaches_no_byte_outside_it() {
    let place = Place::new();
    place.table.bind(KEY, place.window(Rights::REMOTE_WRITE)).expect("a window");
    let access = place.table.access();
    let target =
        access.resolve_for(place.domain, 5, KEY, 1024, 8, Rights::REMOTE_WRITE).expect("inside");
    assert!(access.place(&target, 1, &[7; 8]).is_err());
    for (address, len) in [(999, 1), (1025, 8), (1033, 0), (1000, 33), (0, 8), (u64::MAX, 2)] {
        let refused = place.resolve(address, len, Rights::REMOTE_WRITE);
        let limits = AccessError::Bounds { address, len, start: 1000, limit: 32 };
        assert_eq!(refused, Err(limits));
    }
}

#[test]
fn a_window_gives_the_rights_it_was_bound_with_and_no_others() {
    let place = Place::with_rights(Rights::ALL);
    place.table.bind(KEY, place.window(Rights::REMOTE_READ)).expect("a window");
    let (wanted, granted) = (Rights::REMOTE_WRITE, Rights::REMOTE_READ);
    assert_eq!(place.resolve(1000, 8, wanted), Err(AccessError::Permission { wanted, granted }));
    assert_eq!(place.resolve(1000, 8, granted), Ok(()));
}

#[test]
fn a_writable_window_needs_a_locally_writable_region() {
    let place = Place::with_rights(Rights::REMOTE_WRITE);
    for wanted in [Rights::REMOTE_WRITE, Rights::REMOTE_ATOMIC] {
        let refused = RegisterError::WindowRights { wanted, granted: Rights::REMOTE_WRITE };
        assert_eq!(place.table.bind(KEY, place.window(wanted)), Err(refused));
    }
    assert_eq!(place.table.bind(KEY, place.window(Rights::REMOTE_READ)), Ok(()));
}

#[test]
fn an_invalidated_key_is_refused() {
    let place = Place::new();
    let rights = Rights::REMOTE_READ;
    let window = Window { reach: Reach::Connection(5), ..place.window(rights) };
    place.table.bind(KEY, window).expect("a window");
    assert_eq!(place.resolve(1000, 8, rights), Ok(()));
    assert_eq!(place.table.invalidate(place.domain, 5, KEY), Ok(window));
    assert_eq!(place.resolve(1000, 8, rights), Err(UNKNOWN));
    assert_eq!(place.table.invalidate(place.domain, 5, KEY), Err(UNKNOWN));
    // Bind the window to another key.
    place.table.bind(RemoteKey(KEY.0 + 1), window).expect("a window");
    assert_eq!(place.resolve(1000, 8, rights), Err(UNKNOWN));
    assert_eq!(place.resolve_as(5, RemoteKey(KEY.0 + 1), 1000, 8, rights), Ok(()));
}

#[test]
fn another_connection_neither_uses_nor_invalidates_a_window() {
    let place = Place::new();
    let rights = Rights::REMOTE_READ;
    let window = Window { reach: Reach::Connection(5), ..place.window(rights) };
    place.table.bind(KEY, window).expect("a window");
    assert_eq!(place.resolve_as(6, KEY, 1000, 8, rights), Err(UNKNOWN));
    assert_eq!(place.table.invalidate(place.domain, 6, KEY), Err(UNKNOWN));
    assert_eq!(place.resolve_as(5, KEY, 1000, 8, rights), Ok(()));
}

#[test]
fn a_connection_cannot_invalidate_a_window_of_its_whole_domain() {
    let place = Place::new();
    place.table.bind(KEY, place.window(Rights::REMOTE_READ)).expect("a window");
    assert_eq!(place.table.invalidate(place.domain, 5, KEY), Err(UNKNOWN));
    assert!(place.table.unbind(KEY).is_some());
    assert_eq!(place.table.unbind(KEY), None);
}

#[test]
fn another_domain_sees_no_window() {
    let place = Place::new();
    let other = place.table.allocate_domain();
    let window = Window { reach: Reach::Connection(5), ..place.window(Rights::REMOTE_READ) };
    place.table.bind(KEY, window).expect("a window");
    let access = place.table.access();
    let refused = access.resolve_for(other, 5, KEY, 1000, 8, Rights::REMOTE_READ);
    assert_eq!(refused.map(|_| ()), Err(UNKNOWN));
    assert_eq!(place.table.invalidate(other, 5, KEY), Err(UNKNOWN));
}

#[test]
fn a_region_with_windows_cannot_be_deregistered() {
    let place = Place::new();
    let region = place.region.id;
    for key in [1, 2] {
        place.table.bind(RemoteKey(key), place.window(Rights::REMOTE_READ)).expect("a window");
    }
    let busy = |windows| Err(RegisterError::WindowsBound { region, windows });
    assert_eq!(place.table.deregister(region), busy(2));
    place.table.unbind(RemoteKey(1));
    assert_eq!(place.table.deregister(region), busy(1));
    place.table.unbind(RemoteKey(2));
    assert_eq!(place.table.deregister(region), Ok(()));
    let refused = place.table.bind(KEY, place.window(Rights::REMOTE_READ));
    assert_eq!(refused, Err(RegisterError::UnknownRegion { region }));
}

#[test]
fn a_window_key_is_bound_once_and_never_equals_a_region_key() {
    let place = Place::new();
    let window = place.window(Rights::REMOTE_READ);
    for key in [place.region.key, RemoteKey(0), WHOLE_ADDRESS_SPACE_KEY] {
        assert_eq!(place.table.bind(key, window), Err(RegisterError::KeyInUse { key }));
    }
    place.table.bind(KEY, window).expect("a window");
    assert_eq!(place.table.bind(KEY, window), Err(RegisterError::KeyInUse { key: KEY }));
}

#[test]
fn no_new_region_has_the_key_of_a_window() {
    let place = Place::new();
    let next = || place.table.register(place.domain, Buffer::new(8), Rights::NONE).expect("room");
    // All tables of this test encrypt region keys with the same secret. So the second region of
    // `place.table` would get the same key as the second region of another table.
    let key = Place::new();
    let key = key.table.register(key.domain, Buffer::new(8), Rights::NONE).expect("room").key;
    place.table.bind(key, place.window(Rights::REMOTE_READ)).expect("a window");
    assert_ne!(next().key, key);
}

#[test]
fn a_window_is_within_its_region_and_the_address_space() {
    let place = Place::new();
    let window = place.window(Rights::REMOTE_READ);
    for (offset, len) in [(33, 32), (65, 0), (u64::MAX, 1)] {
        let refused = RegisterError::OutsideRegion { offset, len, region_bytes: BYTES };
        assert_eq!(place.table.bind(KEY, Window { offset, len, ..window }), Err(refused));
    }
    let remote_start = u64::MAX - 30;
    let refused = RegisterError::Wraps { start: remote_start, len: 32 };
    assert_eq!(place.table.bind(KEY, Window { remote_start, ..window }), Err(refused));
    let other = Place::new();
    let region = other.region.id;
    let refused = RegisterError::ForeignRegion { region };
    assert_eq!(place.table.bind(KEY, Window { region, ..window }), Err(refused));
}

#[derive(Clone, Debug)]
enum Step {
    Bind { key: u32, offset: u64, len: u64, connection: Option<u64> },
    Unbind { key: u32 },
    Invalidate { key: u32, connection: u64 },
    Resolve { key: u32, connection: u64, at: u64, len: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let (key, connection, at) = (1..5_u32, 1..3_u64, 0..80_u64);
    prop_oneof![
        (key.clone(), at.clone(), at.clone(), prop::option::of(connection.clone()))
            .prop_map(|(key, offset, len, connection)| Step::Bind { key, offset, len, connection }),
        key.clone().prop_map(|key| Step::Unbind { key }),
        (key.clone(), connection.clone())
            .prop_map(|(key, connection)| Step::Invalidate { key, connection }),
        (key, connection, at.clone(), at).prop_map(|(key, connection, at, len)| Step::Resolve {
            key,
            connection,
            at,
            len
        }),
    ]
}

proptest! {
    #[test]
    fn windows_grant_the_same_access_as_the_model(steps in prop::collection::vec(step(), 1..80)) {
        let place = Place::new();
        let rights = Rights::REMOTE_WRITE;
        let mut model: HashMap<u32, (u64, u64, Option<u64>)> = HashMap::new();
        for step in steps {
            match step {
                Step::Bind { key, offset, len, connection } => {
                    let reach = connection.map_or(Reach::Domain, Reach::Connection);
                    let window = Window { offset, len, remote_start: offset, reach, ..place.window(rights) };
                    let fits = offset + len <= BYTES && !model.contains_key(&key);
                    prop_assert_eq!(place.table.bind(RemoteKey(key), window).is_ok(), fits);
                    if fits {
                        model.insert(key, (offset, len, connection));
                    }
                }
                Step::Unbind { key } => {
                    let was_bound = model.remove(&key).is_some();
                    prop_assert_eq!(place.table.unbind(RemoteKey(key)).is_some(), was_bound);
                }
                Step::Invalidate { key, connection } => {
                    let is_own = model.get(&key).is_some_and(|known| known.2 == Some(connection));
                    let done = place.table.invalidate(place.domain, connection, RemoteKey(key));
                    prop_assert_eq!(done.is_ok(), is_own);
                    if is_own {
                        model.remove(&key);
                    }
                }
                Step::Resolve { key, connection, at, len } => {
                    let grants = |&(offset, bytes, whose): &(u64, u64, Option<u64>)| {
                        whose.is_none_or(|whose| whose == connection)
                            && offset <= at
                            && at + len <= offset + bytes
                    };
                    let found = place.resolve_as(connection, RemoteKey(key), at, len, rights);
                    prop_assert_eq!(found.is_ok(), model.get(&key).is_some_and(grants));
                }
            }
            let busy = !model.is_empty();
            prop_assert_eq!(place.table.check_without_windows(place.region.id).is_err(), busy);
        }
    }
}
