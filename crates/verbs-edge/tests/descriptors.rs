//! Test of a process that has no free file descriptors. This must be the only test in its file,
//! because the limit applies to the whole process.

mod ends;

use std::fs::File;

use ends::loopback;
use mem::Buffer;
use nix::errno::Errno;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use verbs::{AccessFlags, Error};
use verbs_edge::devices;

/// Limit on the open descriptors of the process.
const LIMIT: u64 = 64;

/// Makes the calls with which a program starts, up to the creation of queue pairs.
fn start() -> Result<(), Error> {
    let context = devices(&loopback())?.remove(0).device.open()?;
    let domain = context.allocate_domain()?;
    let buffer = Buffer::new(4096);
    let access = AccessFlags(0x1f);
    let _region = domain.register(buffer.address() as usize, 4096, buffer.address(), access)?;
    let channel = context.create_channel()?;
    let _queue = context.create_completion_queue(16, Some(&channel))?;
    Ok(())
}

/// If a call fails because no descriptor is free, the program must get `EMFILE`, like from the
/// driver of a network adapter. The call must release everything that it has allocated.
#[test]
fn a_program_without_a_descriptor_gets_an_error() {
    let (_, most) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit");
    setrlimit(Resource::RLIMIT_NOFILE, LIMIT, most).expect("a lower one");
    for left in 0..LIMIT as usize {
        let mut taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        assert!(taken.len() > left, "a start that fails leaves descriptors behind");
        taken.truncate(taken.len() - left);
        match start() {
            Ok(()) => return assert!(left > 3, "it needs sockets"),
            Err(error) => assert!(
                matches!(error, Error::System { number, .. } if number == Errno::EMFILE as i32),
                "with {left} left: {error}"
            ),
        }
    }
    panic!("it does not start with {LIMIT} descriptors");
}
