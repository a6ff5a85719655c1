//! Joining the other ranks, and leaving them.

use std::ffi::{CStr, CString, c_char, c_void};
use std::time::Duration;

use dsm::{Dsm, RankFailure};

use crate::created;
use crate::failure::{Failure, Result, call};
use crate::options::{self, known};
use crate::outputs::{has_place, put};
use crate::rank::{self, dsm};

/// How writes to the memory are found.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[repr(u32)]
pub enum Method {
    /// What the environment variable `ETHERNOT_DSM_METHOD` names, or else the first of the others
    /// that works on this host.
    Default = 0,
    /// userfaultfd with asynchronous write protection (Linux 6.7 and later).
    Asynchronous = 1,
    /// userfaultfd with synchronous write protection (Linux 5.19 and later).
    Synchronous = 2,
    /// `mprotect`.
    Mprotect = 3,
}

/// Handles the failure of a rank. `place` is the process and host of the rank. Both strings are
/// valid during the call.
type OnFailure = Option<
    unsafe extern "C" fn(
        rank: u32,
        place: *const c_char,
        reason: *const c_char,
        context: *mut c_void,
    ),
>;

/// Options of `ethernot_dsm_init`. Fields that are zero have defaults.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Options {
    /// Size of this structure in bytes; 0 means the size in the first version of the library.
    pub size: usize,
    /// Size of the region in bytes, up to 64 GiB; the default is 256 MiB. Only pages that are
    /// touched use memory. Must be equal on all ranks.
    pub region_bytes: u64,
    /// Address at which rank 0 waits for the others, such as "10.0.0.1:7000". The default is the
    /// environment variable `ETHERNOT_DSM_MEET`.
    pub meet: *const c_char,
    /// Called on a thread of the library if a rank fails; after that, all calls return
    /// `ETHERNOT_DSM_RESULT_FAILED`, and an access to a page that is not present ends the process.
    /// If this is NULL, the process prints the failure and ends with status 70.
    pub on_failure: OnFailure,
    /// Last argument of `on_failure`.
    pub context: *mut c_void,
    /// Limit of the wait for the other ranks in milliseconds; the default is 30 seconds.
    pub limit_ms: u64,
    /// Bytes of each rank for `ethernot_dsm_alloc_local`; the default is none. Must be equal on all
    /// ranks.
    pub local_bytes: u64,
    /// If other threads wait for a thread that has made no call for this long, in milliseconds, its
    /// rank says so on standard error. The default is 10 seconds; `UINT64_MAX` switches it off.
    pub watchdog_ms: u64,
    /// Number of ranks. If this is 0, rank and number come from the environment: from
    /// `ETHERNOT_DSM_RANK` and `ETHERNOT_DSM_SIZE`, or from the variables of PMI, Open MPI or Slurm.
    pub ranks: u32,
    /// Rank of this process, from 0. Used only if `ranks` is not 0.
    pub rank: u32,
    /// Number of threads of this process that use the memory; the default is the environment
    /// variable `ETHERNOT_DSM_THREADS`, or 1. Each of them must enter each barrier. Must be equal on
    /// all ranks.
    pub threads: u32,
    /// How writes are found, an `ethernot_dsm_method`.
    pub method: u32,
    /// If this is not 0, races are reported on standard error. Must be equal on all ranks. Needs a
    /// method other than `ETHERNOT_DSM_METHOD_ASYNCHRONOUS`.
    pub detect_races: u32,
    /// If this is not 0, `ethernot_dsm_init` returns on rank 0 only. The other ranks run functions
    /// that rank 0 starts by `ethernot_dsm_create`, and end when rank 0 calls
    /// `ethernot_dsm_finalize`. Only rank 0 allocates then. Must be equal on all ranks.
    pub creates: u32,
}

// SAFETY: the structure has C layout, begins with its size, and has no padding at its end. Zeros are
// null pointers and numbers.
unsafe impl options::Options for Options {
    const NAME: &'static str = "ethernot_dsm_options";
    const FIRST_BYTES: usize = 88;
}

const _: () = assert!(size_of::<Options>() == 88);

/// Joins the other ranks; returns when all are there. `options` may be NULL. Without options and
/// without variables of the environment, the process is the only rank.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_dsm_init(options: *const Options) -> Result {
    call(|| {
        // SAFETY: the program upholds that the pointer is null or valid for the size in the
        // structure.
        let given = unsafe { known(options) }?;
        let creates = given.is_some_and(|given| given.creates != 0);
        let options = match given {
            None => dsm::Options::new(),
            // SAFETY: the program upholds that the strings end with a zero byte, and that
            // `on_failure` may be called on any thread.
            Some(given) => unsafe { to_rust(given) }?,
        };
        let dsm = Dsm::join(options)?;
        rank::set(dsm);
        if creates { created::begin() } else { Ok(()) }
    })
}

/// Returns the rank of this process, from 0, or -1 if the process has not joined.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_rank() -> i32 {
    number(Dsm::rank)
}

/// Returns the number of ranks, or -1 if the process has not joined.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_size() -> i32 {
    number(Dsm::size)
}

/// Returns the method that finds writes, an `ethernot_dsm_method`, or -1 if the process has not
/// joined.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_method_in_use() -> i32 {
    number(|dsm| match dsm.method() {
        dsm::Method::Asynchronous => Method::Asynchronous as usize,
        dsm::Method::Synchronous => Method::Synchronous as usize,
        dsm::Method::Protection => Method::Mprotect as usize,
    })
}

/// Waits until all ranks have come here, and leaves. No thread of the process may use the memory
/// afterwards. If another thread is inside of a call, returns `ETHERNOT_DSM_RESULT_MISUSE`.
///
/// A rank that ends without this call has failed for the other ranks.
#[unsafe(no_mangle)]
pub extern "C" fn ethernot_dsm_finalize() -> Result {
    call(|| {
        created::end()?;
        rank::leave()
    })
}

/// What the library has done on this rank. Counts since the process has joined.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Counters {
    /// Size of this structure in bytes. The program sets it; the library writes only that many
    /// bytes. 0 means the size in the first version of the library.
    pub size: usize,
    /// Faults of reads and writes.
    pub faults: u64,
    /// Pages that were read from other ranks.
    pub fetches: u64,
    /// Of these, pages that no thread waited for.
    pub prefetches: u64,
    /// Changes of pages that were sent to other ranks.
    pub patches: u64,
    /// Pages that became invalid because another rank wrote them.
    pub invalidations: u64,
    /// Locks that were passed to other ranks.
    pub handovers: u64,
}

/// Size in bytes of the counters in the first version of the library.
const COUNTERS_FIRST_BYTES: usize = 56;

const _: () = assert!(size_of::<Counters>() == COUNTERS_FIRST_BYTES);

/// Returns what the library has done on this rank. The program sets the field `size` first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ethernot_dsm_read_counters(counters: *mut Counters) -> Result {
    call(|| {
        has_place(counters)?;
        // SAFETY: the program upholds that the structure begins with its size.
        let given = match unsafe { counters.cast::<usize>().read() } {
            0 => COUNTERS_FIRST_BYTES,
            given => given,
        };
        if given < COUNTERS_FIRST_BYTES {
            let text = format!(
                "size {given} of ethernot_dsm_counters; set it to sizeof(ethernot_dsm_counters), or to 0"
            );
            return Err(Failure::new(Result::Invalid, text));
        }
        let found = dsm()?.counters();
        let dsm::Counters {
            faults, fetches, prefetches, patches, invalidations, handovers, ..
        } = found;
        let size = given.min(size_of::<Counters>());
        let found =
            Counters { size, faults, fetches, prefetches, patches, invalidations, handovers };
        // SAFETY: the program upholds that the structure has at least its first version's fields,
        // and `found` has no others. No lock is held.
        unsafe { put(counters, found) };
        Ok(())
    })
}

/// Returns a number of the rank, or -1.
fn number(of: impl FnOnce(&Dsm) -> usize) -> i32 {
    let mut found = -1;
    call(|| {
        found = i32::try_from(of(&*dsm()?)).unwrap_or(i32::MAX);
        Ok(())
    });
    found
}

/// Converts the options of a program.
///
/// # Safety
/// The strings must be null or end with a zero byte. `on_failure` must be null or permit calls on
/// any thread with `context`, until the process ends.
unsafe fn to_rust(given: Options) -> std::result::Result<dsm::Options, Failure> {
    let mut options = dsm::Options::new();
    if given.region_bytes != 0 {
        options = options.region_bytes(given.region_bytes);
    }
    if !given.meet.is_null() {
        // SAFETY: the caller upholds that a zero byte ends the string.
        let meet = unsafe { CStr::from_ptr(given.meet) }.to_str();
        let meet = meet.map_err(|_| Failure::new(Result::Invalid, "meet is not UTF-8"))?;
        options = options.meet(meet);
    }
    if given.limit_ms != 0 {
        options = options.limit(Duration::from_millis(given.limit_ms));
    }
    options = options.local_bytes(given.local_bytes);
    options = match given.watchdog_ms {
        0 => options,
        u64::MAX => options.watchdog(None),
        limit_ms => options.watchdog(Some(Duration::from_millis(limit_ms))),
    };
    if given.detect_races != 0 {
        options = options.detect_races();
    }
    if given.ranks != 0 {
        options = options.rank(given.rank as usize, given.ranks as usize);
    } else if given.rank != 0 {
        let text = format!("rank {} without a number of ranks; set ranks", given.rank);
        return Err(Failure::new(Result::Invalid, text));
    }
    if given.threads != 0 {
        options = options.threads(given.threads as usize);
    }
    options = match given.method {
        0 => options,
        1 => options.method(dsm::Method::Asynchronous),
        2 => options.method(dsm::Method::Synchronous),
        3 => options.method(dsm::Method::Protection),
        other => {
            let text = format!("method {other} is unknown; use a value of ethernot_dsm_method");
            return Err(Failure::new(Result::Invalid, text));
        }
    };
    if let Some(on_failure) = given.on_failure {
        let context = Context(given.context);
        options = options.on_failure(move |failure| {
            let place = CString::new(failure.place()).unwrap_or_default();
            let reason = CString::new(failure.reason()).unwrap_or_default();
            let (rank, context) = (rank_of(failure), context.pointer());
            // SAFETY: the program upholds that the function may be called on any thread with this
            // context.
            unsafe { on_failure(rank, place.as_ptr(), reason.as_ptr(), context) }
        });
    }
    Ok(options)
}

fn rank_of(failure: &RankFailure) -> u32 {
    u32::try_from(failure.rank()).unwrap_or(u32::MAX)
}

/// The pointer that a program gives for its own function.
struct Context(*mut c_void);

// SAFETY: this library only passes the pointer on. The program upholds that its function may get it
// on any thread.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn pointer(&self) -> *mut c_void {
        self.0
    }
}
